"""The stage that makes one decoding of those of parts of a split.

The parts' lattices are written anew in the order of the whole, so that the files have
the bytes that a single job would have written; only times differ.

Public: `join_lattices`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latflow.decode.options import SearchOptions
from latflow.decode.totals import PART, Totals, write_summary
from latflow.gmm.speaker_gains import SpeakerGain, summarize_gains
from latflow.kaldi.io import read_matrices, write_matrices
from latflow.lattice.io.archives import read_lattices, write_lattices
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parts import in_order_of_ids


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
    said = [json.loads((part / PART).read_text(encoding="utf-8")) for part in parts]
    totals = Totals.of_parts([Totals(**one["totals"]) for one in said])
    ledger = Ledger.of_parts("decode", [part / "ledger.jsonl" for part in parts])
    ledger.write(out_dir / "ledger.jsonl")
    ledger.check(totals.utterances, max_skipped_fraction=max_skipped_fraction)
    lattices = in_order_of_ids(read_lattices(part / "lattices.ark") for part in parts)
    number = totals.utterances - totals.skipped
    write_lattices(out_dir / "lattices.ark", progress(lattices, "join", number))
    facts = said[0]["facts"]
    if transforms is not None:
        speakers = in_order_of_ids(read_matrices(part / "trans.ark") for part in parts)
        write_matrices(transforms, speakers)
        facts = _adaptation(said)
    write_summary(out_dir, None, totals, options, facts)


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
