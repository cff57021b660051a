"""Sets of recordings with pauses, made of the utterances of another set.

People pause before they speak and between what they say; utterances that were cut out
of recordings don't. A set with pauses holds what a served model hears, to train on it
and to be scored on it.
"""

from __future__ import annotations

import heapq
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import numpy as np
import soundfile
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

from latflow.corpus.derived_options import PausedSetOptions
from latflow.corpus.json_lines import ManifestWriter, Spool
from latflow.corpus.manifests import (
    at_rate,
    load_samples,
    read_cuts,
    read_recordings,
    read_supervisions,
    speaker_of,
    supervision_of,
    text_of,
)
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool

log = logging.getLogger(__name__)

PREFIX = "paused-"  # of ids: a set may hold the utterances by themselves, too
_KEY = zlib.crc32(b"pauses")
_WINDOW = 0.032  # of the spectrum of an utterance's noise, seconds
_QUIETEST = 0.2  # share of its windows that hold the noise alone


def join_with_pauses(
    cuts_dir: Path, out_dir: Path, *, options: PausedSetOptions, seed: int, threads: int
) -> None:
    """Write a corpus folder of another one's utterances, joined by pauses (stage).

    Utterances of a speaker are joined in an order that is drawn, and so are their
    transcripts. The id is that of the first one after `paused-`, which speakers get
    before their names, too. Audio is FLAC of 16 bits in `audio/`. A recording above
    full scale is made softer as a whole, and noted in the ledger.

    Args:
        cuts_dir: corpus folder of the other set.
        out_dir: corpus folder to write, replaced as a whole.
        options: how many are joined, and the pauses.
        seed: of all draws.
        threads: recordings at the same time.

    Raises:
        UserError: there are no utterances, or audio cannot be read.
    """
    final = Path(os.path.abspath(out_dir))
    ledger = Ledger("join_with_pauses")
    with (
        atomic_directory(out_dir) as folder,
        Spool(folder, MonoCut.from_dict) as given,
        Spool(folder, MonoCut.from_dict) as made,
        worker_pool(threads) as pool,
    ):
        (folder / "audio").mkdir()
        groups = _groups(_by_speaker(cuts_dir, given), options, seed)

        def join(item: tuple[int, list[MonoCut]]) -> tuple[MonoCut, float]:
            number, parts = item
            rng = np.random.default_rng([seed, _code(parts[0].id), _KEY])
            wave = _joined(parts, options, rng)
            softer = max(1.0, float(np.abs(wave).max()))
            name, rate = f"audio/{number:06d}.flac", int(parts[0].sampling_rate)
            soundfile.write(folder / name, wave / softer, rate, subtype="PCM_16")
            return _as_cut(parts, final / name, len(wave)), softer

        parts = ([given[name] for name in names] for names in groups)
        done = in_order(pool, join, enumerate(parts))
        for cut, softer in progress(done, "join with pauses", total=len(groups)):
            made.add(cut)
            if softer > 1:
                what = f"above full scale: made softer by the factor {1 / softer:.3g}"
                ledger.record(cut.id, what, action="noted")
        _write(folder, made, cuts_dir if options.alone else None)
        ledger.write(folder / "ledger.jsonl")


def _code(name: str) -> int:
    """Return a number that stands for a name in seeds."""
    return zlib.crc32(name.encode())


def _by_speaker(cuts_dir: Path, spool: Spool[MonoCut]) -> dict[str, list[str]]:
    """Keep the utterances of a set, all at the first one's rate; return their ids."""
    path = cuts_dir / "cuts.jsonl.gz"
    speakers: dict[str, list[str]] = {}
    rate = 0
    for cut in read_cuts(path):
        rate = rate or int(cut.sampling_rate)
        spool.extend(at_rate([cut], rate, may_resample=True), file=path)
        speakers.setdefault(speaker_of(cut), []).append(cut.id)
    if not speakers:
        raise UserError("holds no utterances", file=path)
    return speakers


def _groups(
    speakers: dict[str, list[str]], options: PausedSetOptions, seed: int
) -> list[list[str]]:
    """Return the ids of the utterances of each recording, every one once."""
    groups = []
    for speaker, names in speakers.items():
        rng = np.random.default_rng([seed, _code(speaker), _KEY])
        left = rng.permutation(names).tolist()
        while left:
            number = int(rng.integers(*options.utterances, endpoint=True))
            groups.append(left[:number])
            left = left[number:]
    return groups


def _joined(
    parts: list[MonoCut], options: PausedSetOptions, rng: np.random.Generator
) -> np.ndarray:
    """Return the samples of utterances with pauses before, between and behind them."""
    waves = [load_samples(part) for part in parts]
    rate = int(parts[0].sampling_rate)
    pieces = [_pause(waves[0], rate, options, rng)]
    for wave, following in zip(waves, [*waves[1:], None], strict=True):
        pieces.append(wave)
        if following is None:
            pieces.append(_pause(wave, rate, options, rng))
        elif rng.random() >= options.no_pause:
            around = wave if rng.random() < 0.5 else following
            pieces.append(_pause(around, rate, options, rng))
    return np.concatenate(pieces)


def _pause(
    wave: np.ndarray, rate: int, options: PausedSetOptions, rng: np.random.Generator
) -> np.ndarray:
    """Draw a pause beside an utterance: its noise, quiet noise, or nothing at all."""
    num_samples = round(rng.uniform(*options.pause) * rate)
    kind = rng.random()
    if kind < options.digital:
        return np.zeros(num_samples, np.float32)
    noise = noise_like(wave, rate, num_samples, rng)
    if kind < options.digital + options.quiet:
        power = float(np.mean(noise**2)) if num_samples else 0.0
        level = 10 ** (rng.uniform(*options.quiet_db) / 20)
        noise *= np.float32(level / np.sqrt(power)) if power else np.float32(0)
    return noise


def noise_like(
    wave: np.ndarray, rate: int, num_samples: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw noise as loud as, and of the spectrum of, the quietest parts of a signal.

    Args:
        wave: float32 [L].
        rate: Hz.
        num_samples: of the noise.
        rng: of the draws.

    Returns:
        float32 [num_samples]: Gaussian noise; nothing but zeros where the quietest
        fifth of the signal is.
    """
    size = max(2, round(_WINDOW * rate))
    padded = np.pad(wave, (0, max(0, size - len(wave))))
    window = np.hanning(size)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[:: size // 2]
    power = np.abs(np.fft.rfft(windows * window, axis=1)) ** 2
    order = np.argsort(power.sum(axis=1))
    quietest = order[: max(1, round(_QUIETEST * len(order)))]
    density = power[quietest].mean(axis=0) / np.sum(window**2)
    if not num_samples:
        return np.zeros(0, np.float32)
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    at = np.linspace(0, len(density) - 1, len(spectrum))
    spectrum *= np.sqrt(np.interp(at, np.arange(len(density)), density))
    return np.fft.irfft(spectrum, num_samples).astype(np.float32)


def _as_cut(parts: list[MonoCut], path: Path, num_samples: int) -> MonoCut:
    """Return joined utterances as the whole of a recording."""
    name, rate = PREFIX + parts[0].id, int(parts[0].sampling_rate)
    seconds = num_samples / rate
    recording = Recording(
        id=name,
        sources=[AudioSource("file", [0], str(path))],
        sampling_rate=rate,
        num_samples=num_samples,
        duration=seconds,
    )
    supervision = SupervisionSegment(
        id=name,
        recording_id=name,
        start=0.0,
        duration=seconds,
        channel=0,
        text=" ".join(filter(None, map(text_of, parts))),
        speaker=PREFIX + speaker_of(parts[0]),
        gender=supervision_of(parts[0]).gender,
        language=supervision_of(parts[0]).language,
    )
    supervisions = [supervision]
    return MonoCut(
        name, 0.0, seconds, 0, supervisions=supervisions, recording=recording
    )


def _write(folder: Path, made: Spool[MonoCut], alone: Path | None) -> None:
    """Write the manifests of joined utterances, and of a set beside them."""
    kinds: dict[str, tuple[Callable, Callable[[Path], Iterator]]] = {
        "recordings": (attrgetter("recording"), read_recordings),
        "supervisions": (supervision_of, read_supervisions),
        "cuts": (lambda cut: cut, read_cuts),
    }
    for kind, (of_cut, read) in kinds.items():
        name = f"{kind}.jsonl.gz"
        others = () if alone is None else read(alone / name)
        with ManifestWriter(folder / name) as writer:
            for item in heapq.merge(map(of_cut, made), others, key=attrgetter("id")):
                writer.write(item)
