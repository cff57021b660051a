"""Copies of a corpus at other speeds and volumes, to train networks on."""

from __future__ import annotations

import heapq
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import cast

import numpy as np
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.utils import fastcopy

from latflow.corpus.derived_options import PerturbationOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import (
    VOLUME,
    ItemT,
    read_cuts,
    read_recordings,
    read_supervisions,
    renamed,
)
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger

# Filters that resampling needs grow with the denominator of the speed in samples.
_MOST_FILTERS = 2000


def perturb_corpus(
    cuts_dir: Path, out_dir: Path, *, options: PerturbationOptions, seed: int
) -> None:
    """Write a corpus folder with every utterance at each of some speeds.

    At speed s an utterance lasts 1/s of its time, and its frequencies are s times what
    they were. Ids of utterances, recordings and speakers begin with `sp<speed>-`; at
    speed 1 they stay. No audio is written: manifests say what readers are to do. The
    volume of an utterance, a factor of its samples, is in its cut's field `volume`.

    Args:
        cuts_dir: corpus folder to copy.
        out_dir: corpus folder to write, replaced as a whole.
        options: speeds, and the range of volumes.
        seed: of the volumes, which are drawn by utterance.

    Raises:
        UserError: a speed that a recording's sample rate does not allow.

    Source: Kaldi `utils/data/perturb_data_dir_speed_3way.sh` and
    `perturb_data_dir_volume.sh`.
    """
    sources: dict[str, Callable[[Path], Iterator]] = {
        "recordings": lambda path: _copies(read_recordings, path, _recording, options),
        "supervisions": lambda path: _copies(
            read_supervisions, path, _supervision, options
        ),
        "cuts": lambda path: (
            _with_volume(cut, options, seed)
            for cut in _copies(read_cuts, path, at_speed, options)
        ),
    }
    with atomic_directory(out_dir) as folder:
        for name, copies in sources.items():
            with ManifestWriter(folder / f"{name}.jsonl.gz") as writer:
                for item in copies(Path(cuts_dir) / f"{name}.jsonl.gz"):
                    writer.write(item)
        Ledger("perturb_corpus").write(folder / "ledger.jsonl")


def _copies(
    read: Callable[[Path], Iterator[ItemT]],
    path: Path,
    change: Callable[[ItemT, float], ItemT],
    options: PerturbationOptions,
) -> Iterator[ItemT]:
    """Yield the items of a manifest at all speeds, sorted by id."""

    def at(speed: float) -> Iterable[ItemT]:
        return (change(item, speed) for item in read(path))

    return heapq.merge(*map(at, options.speeds), key=attrgetter("id"))


def at_speed(cut: MonoCut, speed: float) -> MonoCut:
    """Return an utterance at another speed, with the ids that belong to it.

    Raises:
        UserError: the sample rate does not allow the speed.
    """
    if speed == 1.0:
        return cut
    check_speed(int(cut.sampling_rate), speed, cut.id)
    changed = cast("MonoCut", cut.perturb_speed(speed, affix_id=False))
    return renamed(changed, partial(_named, speed=speed))


def _recording(recording: Recording, speed: float) -> Recording:
    """Return a recording at another speed."""
    if speed == 1.0:
        return recording
    changed = recording.perturb_speed(speed, affix_id=False)
    return renamed(changed, partial(_named, speed=speed))


def _supervision(supervision: SupervisionSegment, speed: float) -> SupervisionSegment:
    """Return a supervision at another speed, its times in the changed recording.

    The recording's rate is not known here: times are whole nanoseconds.
    """
    if speed == 1.0:
        return supervision
    changed = supervision.perturb_speed(speed, sampling_rate=10**9, affix_id=False)
    return renamed(changed, partial(_named, speed=speed))


def _named(name: str, speed: float) -> str:
    """Return a name at a speed, as Kaldi gives it."""
    return f"sp{speed:g}-{name}"


def without_speed(name: str) -> str:
    """Return the name that an utterance has at speed 1."""
    return _SPEED.sub("", name)


_SPEED = re.compile(r"^sp[0-9.]+-")


def check_speed(rate: int, speed: float, utterance: str | None = None) -> None:
    """Refuse a speed that no short resampling filter leads to.

    Args:
        rate: sample rate, Hz.
        speed: factor of frequencies.
        utterance: id that the error names.

    Raises:
        UserError: the speed times the rate is not a whole number, or has hardly a
            factor in common with it.
    """
    changed = round(rate * speed)
    is_whole = math.isclose(changed, rate * speed)
    if not is_whole or rate // math.gcd(rate, changed) > _MOST_FILTERS:
        raise UserError(
            f"{rate} Hz at speed {speed:g} cannot be resampled",
            utterance=utterance,
            remedy="take speeds of two digits, or set a sample_rate of 8000 or 16000",
        )


def _with_volume(cut: MonoCut, options: PerturbationOptions, seed: int) -> MonoCut:
    """Return a cut with the volume that is drawn for it."""
    if options.volume is None:
        return cut
    rng = np.random.default_rng([seed, zlib.crc32(cut.id.encode()), _VOLUME_KEY])
    volume = round(float(rng.uniform(*options.volume)), 4)
    return fastcopy(cut, custom={**(cut.custom or {}), VOLUME: volume})


_VOLUME_KEY = zlib.crc32(b"volume")
