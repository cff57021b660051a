"""A dev set is held out of a corpus folder.

Items of manifests go to one side or the other as they are; Lhotse is not needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from latflow.corpus.json_lines import ManifestWriter, read_cut_lines, read_items
from latflow.corpus.options import HoldOutSource
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger, read_ledger


def hold_out(
    cuts_dir: Path,
    train_dir: Path,
    dev_dir: Path,
    *,
    options: HoldOutSource,
    seed: int,
) -> None:
    """Divide a corpus folder in two: a dev set, and the rest to train on.

    Speakers (or utterances) are drawn until they hold the share of the speech wanted;
    at least one stays on each side.

    Args:
        cuts_dir: corpus folder to divide.
        train_dir: corpus folder of the rest; it gets the ledger of `cuts_dir`.
        options: the unit that goes to one side, and the share of the speech, in
            seconds, that the dev set holds at least.

    Raises:
        UserError: there is only one speaker or utterance to draw from.
    """
    by = options.by
    file = cuts_dir / "supervisions.jsonl.gz"
    seconds: dict[str, float] = {}
    for supervision in read_items(file, "duration", "recording_id"):
        key = _key(supervision.values, by)
        seconds[key] = seconds.get(key, 0.0) + supervision.values["duration"]
    if len(seconds) < 2:
        raise UserError(
            f"only one {by} in the corpus; no dev set can be held out",
            file=file,
            remedy="set corpus.dev.by: utterance"
            if by == "speaker"
            else "name a dev set in corpus.dev",
        )
    held = _draw_held(seconds, options.fraction, seed)
    with (
        atomic_directory(train_dir) as train,
        atomic_directory(dev_dir) as dev,
    ):
        _divide(cuts_dir, {False: train, True: dev}, held, by)


def _key(supervision: dict[str, Any], by: str) -> str:
    """Return what an utterance is drawn with."""
    return supervision.get("speaker") or "" if by == "speaker" else supervision["id"]


def _draw_held(seconds: Mapping[str, float], fraction: float, seed: int) -> set[str]:
    """Draw keys until they hold the wanted share of the seconds; one is left over."""
    rng = np.random.default_rng([seed, zlib.crc32(b"hold_out")])
    wanted = fraction * sum(seconds.values())
    order = rng.permutation(sorted(seconds)).tolist()
    held: set[str] = set()
    total = 0.0
    for key in order[:-1]:
        if held and total >= wanted:
            break
        held.add(key)
        total += seconds[key]
    return held


def _divide(
    corpus: Path, folders: Mapping[bool, Path], held: set[str], by: str
) -> None:
    """Write each item of a corpus folder to its side (True: held out)."""
    recording_sides: dict[str, set[bool]] = {}
    with ExitStack() as stack:
        writers = {
            (name, side): stack.enter_context(
                ManifestWriter(folder / f"{name}.jsonl.gz")
            )
            for side, folder in folders.items()
            for name in ("recordings", "supervisions", "cuts")
        }
        for supervision in read_items(corpus / "supervisions.jsonl.gz"):
            side = _key(supervision.values, by) in held
            recording_sides.setdefault(supervision.values["recording_id"], set()).add(
                side
            )
            writers["supervisions", side].write(supervision)
        cuts = corpus / "cuts.jsonl.gz"
        for cut in read_cut_lines(cuts):
            supervisions = cut.values.get("supervisions")
            if not supervisions:
                raise UserError(
                    "has no supervision, which decides its side",
                    file=cuts,
                    utterance=cut.id,
                    remedy="run prepare_corpus again",
                )
            side = _key(supervisions[0], by) in held
            writers["cuts", side].write(cut)
        for recording in read_items(corpus / "recordings.jsonl.gz"):
            for side in recording_sides.get(recording.id, ()):
                writers["recordings", side].write(recording)
    ledger = Ledger("prepare_corpus")
    ledger.entries.extend(read_ledger(corpus / "ledger.jsonl"))
    ledger.write(folders[False] / "ledger.jsonl")
    Ledger("prepare_corpus").write(folders[True] / "ledger.jsonl")
