"""Stage `analyse_lattices`: how much a set's lattices hold, and how good the best is.

The *oracle* error of a lattice is the least number of word errors of any of its paths:
what rescoring with a perfect model would leave. The *depth* is the mean number of arcs
over a frame: what the lattice costs in memory and time.

Written files:

* `lattices.json`: of the whole set, see `_Tally.summary`;
* `lattices.tsv`: `COLUMNS` of each utterance.

Public: `analyse_lattices`, `COLUMNS`.

Source: Kaldi `latbin/lattice-oracle.cc`, `lattice-depth.cc`,
`steps/diagnostic/analyze_lats.sh`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latflow.decode.tune import read_scales
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.io import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.oracle import oracle
from latflow.logs import progress
from latflow.parallel import map_in_order
from latflow.scoring.alignment import ErrorCounts, count_errors
from latflow.scoring.references import read_references
from latflow.scoring.results import write_tsv
from latflow.scoring.text import WordFilter

COLUMNS = ("utterance", "frames", "states", "arcs", "depth", "words", "best", "oracle")
_PERCENTILES = (5, 25, 50, 75, 95)


def analyse_lattices(
    lattices: str | Path,
    cuts: str | Path,
    lang_dir: str | Path,
    scales: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
) -> None:
    """Measure depth and oracle word errors of a set's lattices.

    Args:
        lattices: `lattices.ark` of the set.
        cuts: `cuts.jsonl.gz` of the set: the references.
        lang_dir: language directory that the graph was made of.
        scales: `scales.json` with the `lmwt` and `wip` of the best path.
        out_dir: folder for the files named in the module's description.
        options: section `score` of the configuration.
        threads: lattices measured at a time.

    Raises:
        UserError: a lattice has no reference.
    """
    references = read_references(cuts).words
    chosen = read_scales(scales)
    ids = _WordIds.load(lang_dir, WordFilter.from_options(options))
    scale = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])

    def measure(item: tuple[str, Lattice]) -> _Measured:
        utterance, lattice = item
        if utterance not in references:
            raise UserError(
                "a lattice without a reference",
                file=lattices,
                utterance=utterance,
                remedy="decode the set that the references are of",
            )
        reference = ids.of_reference(references[utterance])
        counted = replace(lattice, word=ids.of_lattice(lattice.word))
        # The path is chosen by what was decoded, the penalty counts every word.
        best = ids.of_lattice(best_paths(lattice, [scale])[0].words)
        errors = count_errors(reference.tolist(), best[best != 0].tolist())
        return _Measured(utterance, lattice, errors, oracle(counted, reference).counts)

    tally = _Tally()
    items = progress(read_lattices(lattices), "lattices", total=len(references))
    out = Path(out_dir)
    rows = tally.rows(map_in_order(measure, items, threads))
    write_tsv(out / "lattices.tsv", COLUMNS, rows)
    with atomic_output(out / "lattices.json") as temporary:
        text = json.dumps(tally.summary(), indent=2)
        temporary.write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class _Measured:
    """One lattice with the errors of its best path and of its least wrong one."""

    utterance: str
    lattice: Lattice
    best: ErrorCounts
    oracle: ErrorCounts


@dataclass(frozen=True, eq=False)
class _WordIds:
    """Numbers of words as scoring compares them.

    Attributes:
        by_word: number of each word that counts.
        by_id: int32[highest word id + 1], the number of each word of the lattices; 0
            for words that do not count.
    """

    keep: WordFilter
    by_word: dict[str, int]
    by_id: np.ndarray

    @classmethod
    def load(cls, lang_dir: str | Path, keep: WordFilter) -> _WordIds:
        """Number the words of a language directory; equal ones get equal numbers."""
        words = Lang.load(lang_dir).words
        by_word: dict[str, int] = {}
        by_id = np.zeros(max(words) + 1, np.int32)
        for word_id, word in words.items():
            for kept in keep([word]) if word_id else ():
                by_id[word_id] = by_word.setdefault(kept, len(by_word) + 1)
        return cls(keep, by_word, by_id)

    def of_lattice(self, word: np.ndarray) -> np.ndarray:
        """Numbers of word ids."""
        return self.by_id[word]

    def of_reference(self, words: list[str]) -> np.ndarray:
        """Numbers of words that count; unknown ones get one that no lattice has."""
        unknown = len(self.by_word) + 1
        kept = [self.by_word.get(word, unknown) for word in self.keep(words)]
        return np.array(kept, np.int32)


class _Tally:
    """Adds up what was measured."""

    def __init__(self) -> None:
        self.best, self.oracle = ErrorCounts(), ErrorCounts()
        self.frames, self.arcs = 0, 0  # arcs that consume a frame
        self.depths: list[float] = []

    def rows(self, measured: Iterator[_Measured]) -> Iterator[tuple[object, ...]]:
        """Take each utterance in, and pass its row of `lattices.tsv` on."""
        for one in measured:
            lattice = one.lattice
            self.best += one.best
            self.oracle += one.oracle
            self.frames += lattice.num_frames
            self.arcs += int(np.count_nonzero(lattice.transition_id))
            self.depths.append(lattice.depth)
            yield (
                one.utterance,
                lattice.num_frames,
                lattice.num_states,
                lattice.num_arcs,
                f"{lattice.depth:.3f}",
                one.best.words,
                one.best.errors,
                one.oracle.errors,
            )

    def summary(self) -> dict[str, Any]:
        """The contents of `lattices.json`; rates in per cent, over utterances found."""
        depths = self.depths or [0.0]
        return {
            "utterances": len(self.depths),
            "frames": self.frames,
            "words": self.best.words,
            "depth": self.arcs / max(self.frames, 1),
            "depth_percentiles": {
                str(p): float(np.percentile(depths, p)) for p in _PERCENTILES
            },
            "best_wer": self.best.wer if self.best.words else None,
            "oracle_wer": self.oracle.wer if self.oracle.words else None,
            "oracle_ins": self.oracle.ins,
            "oracle_del": self.oracle.del_,
            "oracle_sub": self.oracle.sub,
        }
