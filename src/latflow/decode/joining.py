"""Stages that make one of what several jobs wrote, each for a part of a split.

What the parts have is written anew in the order of the whole, by the writers of the
stage, so that the files have the bytes that a single job would have written; only times
of decoding differ.

Public: `join_lattices`, `join_alignments`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from latflow.gmm.speaker_gains import SpeakerGain, summarize_gains
from latflow.graphs.hclg import load_model
from latflow.kaldi.io import read_matrices, write_matrices
from latflow.lang.directory import Lang
from latflow.lattice.io.archives import read_lattices, write_lattices
from latflow.ledger import Ledger, read_ledger
from latflow.logs import progress
from latflow.parts import in_order_of_ids

TRANSFORMS = "trans.ark"  # of speakers, in the folder of a part


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
    said = _said(parts, PART)
    totals = Totals.of_parts([Totals(**one["totals"]) for one in said])
    ledger = Ledger.of_parts("decode", [part / "ledger.jsonl" for part in parts])
    ledger.write(out_dir / "ledger.jsonl")
    ledger.check(totals.utterances, max_skipped_fraction=max_skipped_fraction)
    lattices = in_order_of_ids(read_lattices(part / "lattices.ark") for part in parts)
    number = totals.utterances - totals.skipped
    write_lattices(out_dir / "lattices.ark", progress(lattices, "join", number))
    facts = said[0]["facts"]
    if transforms is not None:
        _join_transforms(parts, transforms)
        facts = _adaptation(said)
    write_summary(out_dir, None, totals, options, facts)


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
    said = _said(parts, "statistics.json")
    _, transitions = load_model(model_dir)
    split = Split(
        Lang.load(lang_dir),
        model_dir.name,
        out_dir,
        sum(one["num_aligned"] + one["num_failed"] for one in said),
        max_skipped_fraction,
        said[0]["frame_shift"],
    )
    facts = {}
    if transforms is not None:
        _join_transforms(parts, transforms)
        gains = [SpeakerGain(*gain) for one in said for gain in one["gains"]]
        facts = {"adaptation": summarize_gains(gains)}
    found = in_order_of_ids(_alignments(part, options.beam) for part in parts)
    split.write(found, AlignmentSummary(options), transitions, facts)


def _said(parts: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """Return what the JSON files of a name of all parts say."""
    return [json.loads((part / name).read_text(encoding="utf-8")) for part in parts]


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


def _adaptation(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is said of adaptation to speakers, from what parts say of it."""
    rounds = [
        [SpeakerGain(*gain) for gains in found for gain in gains]
        for found in zip(*(one["gains"] for one in said), strict=True)
    ]
    seconds = [one["seconds"] for one in said]
    return {
        "adaptation": [summarize_gains(gains) for gains in rounds],
        "other_cpu_seconds": {
            name: sum(one[name] for one in seconds) for name in seconds[0]
        },
    }
