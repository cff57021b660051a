"""Stages that make one of what several jobs wrote, each for a part of a split.

What the parts have is written again in the order of the whole, by the writers of the
stage, so that the files have the bytes that a single job would have written; only times
of decoding differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from latflow.align.aligner import Alignment, AlignmentFailure
from latflow.align.corpus import (
    LOG_LIKES,
    AlignmentArchive,
    AlignmentSummary,
    LogLikes,
    Split,
)
from latflow.align.options import AlignSplitOptions
from latflow.decode.options import SearchOptions
from latflow.decode.totals import PART, Totals, write_summary
from latflow.files import read_json, reading
from latflow.gmm.speaker_gains import SpeakerGain, summarize_gains
from latflow.graphs.hclg import load_model
from latflow.kaldi.io import read_matrices, write_matrices
from latflow.lang.directory import Lang
from latflow.lattice.io.archives import read_lattices, write_lattices
from latflow.ledger import Ledger, read_ledger
from latflow.logs import progress
from latflow.parts import in_order_of_ids

FactT = TypeVar("FactT")

TRANSFORMS = "trans.ark"  # of speakers, in the folder of a part
STATISTICS = "statistics.json"  # of alignments, likewise
_AGAIN = "remove it, and run the job of the part again"


def join_lattices(
    parts: Sequence[Path],
    out_dir: Path,
    *,
    options: SearchOptions,
    max_skipped_fraction: float,
    transforms: Path | None = None,
) -> None:
    """Make one decoding of those of all parts of a split (stage).

    Args:
        parts: folders that decoding wrote, each of a part of the split.
        out_dir: folder for the files that decoding writes of a whole split.
        options: of the search.
        max_skipped_fraction: share of utterances of the split that may be left out.
        transforms: archive to write of the transforms of all speakers; None for systems
            that adapt to none.

    Raises:
        UserError: lattices, ledger or transforms of a part are missing or damaged; more
            utterances than allowed are skipped.
    """
    totals = Totals.of_parts(_read_parts(parts, PART, _totals))
    ledger = Ledger.of_parts("decode", [part / "ledger.jsonl" for part in parts])
    ledger.write(out_dir / "ledger.jsonl")
    ledger.check(totals.utterances, max_skipped_fraction=max_skipped_fraction)
    lattices = in_order_of_ids(read_lattices(part / "lattices.ark") for part in parts)
    number = totals.utterances - totals.skipped
    joined = progress(lattices, "join", number)
    entries = write_lattices(out_dir / "lattices.ark", joined)
    facts = _read_parts(parts, PART, lambda content: dict(content["facts"]))[0]
    if transforms is not None:
        _join_transforms(parts, transforms)
        with reading(parts[0] / PART, "does not fit the other parts", _AGAIN):
            facts = _adaptation(_read_parts(parts, PART, dict))
    write_summary(out_dir, None, totals, options, facts, lattices=entries)


def join_alignments(
    parts: Sequence[Path],
    lang_dir: Path,
    model_dir: Path,
    out_dir: Path,
    *,
    options: AlignSplitOptions,
    max_skipped_fraction: float,
    transforms: Path | None = None,
) -> None:
    """Make one alignment of those of all parts of a split (stage).

    Args:
        parts: folders that alignment wrote, each of a part of the split.
        lang_dir: the lang directory.
        model_dir: folder of the system that aligned.
        out_dir: folder for the files that alignment writes of a whole split.
        options: of the search.
        max_skipped_fraction: share of the utterances of the split that may fail.
        transforms: archive to write of the transforms of all speakers; None for systems
            that adapt to none.

    Raises:
        UserError: alignments, ledger or transforms of a part are missing or damaged;
            too many utterances failed.
    """
    facts = {}
    counts = _read_parts(parts, STATISTICS, _num_utterances)
    frame_shifts = _read_parts(
        parts, STATISTICS, lambda content: float(content["frame_shift"])
    )
    _, transitions = load_model(model_dir)
    split = Split(
        Lang.load(lang_dir),
        model_dir.name,
        out_dir,
        sum(counts),
        max_skipped_fraction,
        frame_shifts[0],
    )
    if transforms is not None:
        _join_transforms(parts, transforms)
        gains = _read_parts(parts, STATISTICS, lambda content: _gains(content["gains"]))
        facts = {"adaptation": summarize_gains([*chain.from_iterable(gains)])}
    alignments = in_order_of_ids(_alignments(part, options.beam) for part in parts)
    split.write(alignments, AlignmentSummary(options), transitions, facts)


def _read_parts(
    parts: Sequence[Path], name: str, make: Callable[[dict[str, Any]], FactT]
) -> list[FactT]:
    """Return what is made of the JSON files of a name of all parts."""
    what = "what is known of a part of a set"
    return [read_json(part / name, make, what, _AGAIN) for part in parts]


def _totals(content: Mapping[str, Any]) -> Totals:
    """Return the sizes and times of a part."""
    numbers = content["totals"]
    if any(not isinstance(number, int | float) for number in numbers.values()):
        raise TypeError("totals that are not numbers")
    return Totals(**numbers)


def _num_utterances(content: Mapping[str, Any]) -> int:
    """Return how many utterances of a part were aligned or failed."""
    return int(content["num_aligned"]) + int(content["num_failed"])


def _gains(rows: Iterable[Sequence[Any]]) -> list[SpeakerGain]:
    """Return gains by speakers' transforms."""
    return [
        SpeakerGain(float(frames), float(gain), bool(is_estimated))
        for frames, gain, is_estimated in rows
    ]


def _alignments(
    part: Path, beam: float
) -> Iterator[tuple[str, Alignment | AlignmentFailure]]:
    """Yield what alignment found of the utterances of a part, sorted by id.

    Args:
        part: its folder.
        beam: of the utterances that the ledger does not name.
    """
    entries = {entry.utterance: entry for entry in read_ledger(part / "ledger.jsonl")}
    paths = AlignmentArchive(part / "ali.ark")
    scores = LogLikes.load(part / LOG_LIKES)
    failed = [e.utterance for e in entries.values() if e.action == "skipped"]
    for utterance in sorted([*scores.utt_ids, *failed]):
        entry = entries.get(utterance)
        found_with = beam if entry is None else entry.beam
        found_with = math.inf if found_with is None else found_with
        ids, log_likes = paths.get(utterance), scores.get(utterance)
        if ids is None or log_likes is None:
            reason = "no alignment was written" if entry is None else entry.reason
            yield utterance, AlignmentFailure(reason, found_with)
        else:
            yield utterance, Alignment(ids, log_likes, math.nan, found_with)


def _join_transforms(parts: Sequence[Path], path: Path) -> None:
    """Write one archive of the transforms of the speakers of all parts."""
    archives = (read_matrices(part / TRANSFORMS) for part in parts)
    write_matrices(path, in_order_of_ids(archives))


def _adaptation(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of adaptation to speakers, joined from those of parts."""
    rounds = [
        [gain for gains in found for gain in _gains(gains)]
        for found in zip(*(one["gains"] for one in parts), strict=True)
    ]
    seconds = [one["seconds"] for one in parts]
    return {
        "adaptation": [summarize_gains(gains) for gains in rounds],
        "other_cpu_seconds": {
            name: sum(one[name] for one in seconds) for name in seconds[0]
        },
    }
