"""Corpora of any origin become corpus folders; a dev set is held out of train.

Public: `prepare_corpus`, `hold_out`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import Checks, CorpusWriter, RecordingJob
from latflow.corpus.audio import confirm
from latflow.corpus.kaldi_dir import read_kaldi_dir
from latflow.corpus.manifests import (
    ManifestWriter,
    Spool,
    read_cuts,
    read_recordings,
    read_supervisions,
)
from latflow.corpus.recipes import missing_utterances, recipe_manifests
from latflow.corpus.synthetic import synthesise
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger, read_ledger


@dataclass(frozen=True)
class _Task:
    """One preparation.

    Attributes:
        source: complete source description (schema `corpus.yaml`).
        split: name of the split.
        folder: where to write; becomes `final` when all went well.
        final: the corpus folder.
        seed: of all draws.
        threads: jobs at the same time.
        max_skipped_fraction: largest share of utterances that may be skipped.
        ledger: where skipped utterances are noted.
    """

    source: Mapping[str, Any]
    split: str
    folder: Path
    final: Path
    seed: int
    threads: int
    max_skipped_fraction: float
    ledger: Ledger


def prepare_corpus(
    source: Mapping[str, Any],
    split: str,
    out_dir: str | Path,
    *,
    seed: int,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Write the manifests of one split.

    Args:
        source: source description, complete with defaults; `type` is one of
            `synthetic`, `kaldi`, `lhotse`, `manifests` (schema `corpus.yaml`).
        split: name of the split, e.g. `train`.
        out_dir: folder for `recordings.jsonl.gz`, `supervisions.jsonl.gz`,
            `cuts.jsonl.gz` and `ledger.jsonl` (synthetic speech: also `audio/`);
            replaced if it exists, untouched if anything fails.
        seed: of all draws.
        threads: audio files decoded, or speakers synthesised, at the same time.
        max_skipped_fraction: largest share of utterances that may be skipped.

    Raises:
        UserError: the source or an utterance is faulty; names file and remedy.
    """
    final = Path(os.path.abspath(out_dir))
    with atomic_directory(out_dir) as folder:
        _PREPARATIONS[source["type"]](
            _Task(
                source=source,
                split=split,
                folder=folder,
                final=final,
                seed=seed,
                threads=threads,
                max_skipped_fraction=max_skipped_fraction,
                ledger=Ledger("prepare_corpus"),
            )
        )


def _prepare_synthetic(task: _Task) -> None:
    """Speak the demo corpus."""
    with (
        CorpusWriter(task.folder, task.final, Checks(), task.ledger) as writer,
        Spool(task.folder, SupervisionSegment.from_dict) as supervisions,
    ):
        jobs = _synthetic_jobs(task, supervisions)
        writer.add_recordings(jobs, threads=1, total=task.source["utterances"])
        writer.add_utterances(iter(supervisions), total=len(supervisions))
        writer.finish(max_skipped_fraction=task.max_skipped_fraction)


def _synthetic_jobs(
    task: _Task, supervisions: Spool[SupervisionSegment]
) -> Iterator[RecordingJob]:
    """Yield spoken recordings, and keep their supervisions."""
    for recording, supervision in synthesise(
        task.source,
        task.split,
        task.folder / "audio",
        task.final / "audio",
        seed=task.seed,
        threads=task.threads,
    ):
        supervisions.add(supervision)
        yield recording.id, partial(_itself, recording)


def _itself(recording: Recording) -> Recording:
    """A recording that needs no check: it was just made."""
    return recording


def _prepare_kaldi(task: _Task) -> None:
    """Read a Kaldi data directory."""
    read_kaldi_dir(
        task.source["path"],
        task.folder,
        checks=Checks.of(task.source),
        ledger=task.ledger,
        allow_commands=task.source["allow_commands"],
        threads=task.threads,
        max_skipped_fraction=task.max_skipped_fraction,
    )


def _prepare_manifests(task: _Task) -> None:
    """Read Lhotse manifests."""
    recordings, supervisions = task.source["recordings"], task.source["supervisions"]
    with _Spools(task.folder) as spools:
        spools.recordings.extend(read_recordings(recordings), file=recordings)
        spools.supervisions.extend(read_supervisions(supervisions), file=supervisions)
        _write_checked(task, spools, supervisions, [])


def _prepare_lhotse(task: _Task) -> None:
    """Prepare a corpus by Lhotse's recipe."""
    source = task.source
    lost: list[tuple[Path, str]] = []
    with _Spools(task.folder) as spools:
        for part, (recordings, supervisions) in recipe_manifests(
            source["recipe"],
            source["root"],
            source["parts"],
            download=source["download"],
        ):
            file = Path(source["root"], part)
            spools.recordings.extend(recordings, file=file)
            spools.supervisions.extend(supervisions, file=file)
            lost += missing_utterances(
                source["recipe"], source["root"], part, recordings
            )
        _write_checked(task, spools, source["root"], lost)


class _Spools:
    """Recordings and supervisions of a source in any order, sorted on disk."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self.recordings = self._stack.enter_context(Spool(folder, Recording.from_dict))
        self.supervisions = self._stack.enter_context(
            Spool(folder, SupervisionSegment.from_dict)
        )

    def __enter__(self) -> _Spools:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _write_checked(
    task: _Task, spools: _Spools, origin: str | Path, lost: list[tuple[Path, str]]
) -> None:
    """Check and write recordings and supervisions of a source.

    Args:
        task: the preparation.
        spools: what the source holds.
        origin: file or folder that errors name.
        lost: (file, utterance) of utterances whose audio is missing.
    """
    checks = Checks.of(task.source)
    jobs: Iterator[RecordingJob] = (
        (
            rec.id,
            partial(confirm, _with_absolute_paths(rec), verify=checks.verify_audio),
        )
        for rec in spools.recordings
    )
    with CorpusWriter(task.folder, origin, checks, task.ledger) as writer:
        for file, utt_id in lost:
            writer.reject(
                utt_id,
                "its audio file does not exist",
                file=file,
                remedy="restore the file, remove the line",
            )
        writer.add_recordings(jobs, threads=task.threads, total=len(spools.recordings))
        writer.add_utterances(iter(spools.supervisions), total=len(spools.supervisions))
        writer.finish(max_skipped_fraction=task.max_skipped_fraction)


def _with_absolute_paths(recording: Recording) -> Recording:
    """The recording with paths that hold from any working directory."""
    sources = [
        replace(s, source=os.path.abspath(str(s.source))) if s.type == "file" else s
        for s in recording.sources
    ]
    return replace(recording, sources=sources)


_PREPARATIONS: dict[str, Callable[[_Task], None]] = {
    "synthetic": _prepare_synthetic,
    "kaldi": _prepare_kaldi,
    "lhotse": _prepare_lhotse,
    "manifests": _prepare_manifests,
}


def hold_out(
    cuts_dir: str | Path,
    out_train_dir: str | Path,
    out_dev_dir: str | Path,
    *,
    by: str,
    fraction: float,
    seed: int,
) -> None:
    """Divide a corpus folder in two: a dev set, and the rest to train on.

    Speakers (or utterances) are drawn until they hold the share of the speech wanted;
    at least one stays on each side.

    Args:
        cuts_dir: corpus folder to divide.
        out_train_dir: corpus folder of the rest; it gets the ledger of `cuts_dir`.
        out_dev_dir: corpus folder of the dev set.
        by: `speaker` (all utterances of a speaker go to one side) or `utterance`.
        fraction: share of the speech, in seconds, that the dev set holds at least.
        seed: of the draws.

    Raises:
        UserError: there is only one speaker or utterance to draw from.
    """
    corpus = Path(cuts_dir)
    file = corpus / "supervisions.jsonl.gz"
    seconds: dict[str, float] = {}
    for supervision in read_supervisions(file):
        key = _key(supervision, by)
        seconds[key] = seconds.get(key, 0.0) + supervision.duration
    if len(seconds) < 2:
        raise UserError(
            f"only one {by} in the corpus; no dev set can be held out",
            file=file,
            remedy="set corpus.dev.by: utterance"
            if by == "speaker"
            else "name a dev set in corpus.dev",
        )
    held = _draw_held(seconds, fraction, seed)
    with (
        atomic_directory(out_train_dir) as train,
        atomic_directory(out_dev_dir) as dev,
    ):
        _divide(corpus, {False: train, True: dev}, held, by)


def _key(supervision: SupervisionSegment, by: str) -> str:
    """What an utterance is drawn with."""
    return supervision.speaker or "" if by == "speaker" else supervision.id


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
        for supervision in read_supervisions(corpus / "supervisions.jsonl.gz"):
            side = _key(supervision, by) in held
            recording_sides.setdefault(supervision.recording_id, set()).add(side)
            writers["supervisions", side].write(supervision)
        for cut in read_cuts(corpus / "cuts.jsonl.gz"):
            side = _key(cut.supervisions[0], by) in held
            writers["cuts", side].write(cut)
        for recording in read_recordings(corpus / "recordings.jsonl.gz"):
            for side in recording_sides.get(recording.id, ()):
                writers["recordings", side].write(recording)
    ledger = Ledger("prepare_corpus")
    ledger.entries.extend(read_ledger(corpus / "ledger.jsonl"))
    ledger.write(folders[False] / "ledger.jsonl")
    Ledger("prepare_corpus").write(folders[True] / "ledger.jsonl")
