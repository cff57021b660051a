"""Sizes of a set's lattices, and their least word errors (in the stage `score_wer`).

The *oracle* error of a lattice is the least number of word errors of any of its paths:
what rescoring with a perfect model would leave. The *depth* is the mean number of arcs
over a frame: what the lattice costs in memory and time.

Written files:

* `lattices.tsv`: `COLUMNS` of each utterance;
* `lattices.json`: sums and percentiles of the whole set, see `_summary`.

Source: Kaldi `latbin/lattice-oracle.cc`, `lattice-depth.cc`,
`steps/diagnostic/analyze_lats.sh`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.files import write_json
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import count_errors
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.oracle import oracle
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.scoring.options import ComparisonOptions
from latflow.scoring.results import write_rows
from latflow.scoring.tune import read_scales

COLUMNS = ["utterance", "frames", "states", "arcs", "depth", "words", "best", "oracle"]
_PERCENTILES = (5, 25, 50, 75, 95)


def analyze_lattices(
    lattices: Path,
    references: Mapping[str, list[str]],
    lang_dir: Path,
    scales: Path,
    out_dir: Path,
    *,
    options: ComparisonOptions,
    threads: int,
) -> None:
    """Measure depth and oracle word errors of a set's lattices.

    Args:
        lattices: `lattices.ark` of the set.
        references: words of each utterance of the set.
        lang_dir: language directory that the graph was made of.
        scales: `scales.json` with the `lmwt` and `wip` of the best path.
        out_dir: folder for the files named in the module's description.
        options: words that count.
        threads: lattices measured at a time.

    Raises:
        UserError: a lattice has no reference.
    """
    chosen = read_scales(scales)
    scale = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
    numbers, by_id = _number_words(lang_dir, options)

    def measure(item: tuple[str, Lattice]) -> dict[str, Any]:
        utterance, lattice = item
        if utterance not in references:
            raise UserError(
                "a lattice without a reference",
                file=lattices,
                utterance=utterance,
                remedy="decode the set that the references are of",
            )
        kept = options.filter(references[utterance])
        # A word that the lang directory has not gets a number that no lattice has.
        reference = np.array(
            [numbers.get(word, len(numbers) + 1) for word in kept], np.int32
        )
        # The path is chosen by what was decoded, the penalty counts every word.
        best = by_id[best_paths(lattice, [scale])[0].words]
        errors = count_errors(reference.tolist(), best[best != 0].tolist())
        least = oracle(replace(lattice, word=by_id[lattice.word]), reference).counts
        return {
            "utterance": utterance,
            "frames": lattice.num_frames,
            "states": lattice.num_states,
            "arcs": lattice.num_arcs,
            "frame_arcs": int(np.count_nonzero(lattice.transition_id)),
            "depth": lattice.depth,
            "words": errors.words,
            "best": errors.errors,
            "oracle": least.errors,
            "oracle_ins": least.ins,
            "oracle_del": least.del_,
            "oracle_sub": least.sub,
        }

    items = progress(read_lattices(lattices), "lattices", total=len(references))
    with worker_pool(threads) as pool:
        rows = list(in_order(pool, measure, items, ahead=2 * threads))
    cells = ([row[name] for name in COLUMNS] for row in rows)
    write_rows(out_dir / "lattices.tsv", COLUMNS, cells, {"depth": 3})
    write_json(out_dir / "lattices.json", _summary(rows))


def _number_words(
    lang_dir: Path, options: ComparisonOptions
) -> tuple[dict[str, int], np.ndarray]:
    """Number the words of a language directory from 1; equal ones get equal numbers.

    Returns:
        (number of each word that counts; int32[highest word id + 1], the number of each
        word id, 0 for words that do not count).
    """
    words = Lang.load(lang_dir).words
    numbers: dict[str, int] = {}
    by_id = np.zeros(max(words) + 1, np.int32)
    for word_id, word in words.items():
        for kept in options.filter([word]) if word_id else ():
            by_id[word_id] = numbers.setdefault(kept, len(numbers) + 1)
    return numbers, by_id


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of `lattices.json`; rates in per cent."""
    oracle_errors = ("oracle_ins", "oracle_del", "oracle_sub")
    names = ("frames", "frame_arcs", "words", "best", "oracle", *oracle_errors)
    sums = {name: sum(row[name] for row in rows) for name in names}
    depths = [row["depth"] for row in rows] or [0.0]
    percentiles = np.percentile(depths, _PERCENTILES).tolist()
    words = sums["words"]
    return {
        "utterances": len(rows),
        "frames": sums["frames"],
        "words": words,
        "depth": sums["frame_arcs"] / max(sums["frames"], 1),
        "depth_percentiles": dict(
            zip(map(str, _PERCENTILES), percentiles, strict=True)
        ),
        "best_wer": 100 * sums["best"] / words if words else None,
        "oracle_wer": 100 * sums["oracle"] / words if words else None,
        **{name: sums[name] for name in oracle_errors},
    }
