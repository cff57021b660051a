"""Stage `rescore_lattices`: the lattices of a set with another language model's costs.

Each lattice is determinised, so that every word sequence has one path; then the costs
of the grammar that it was decoded with are taken out, and those of the new model put
in. Determinising first makes the result many times smaller, and takes less time than
exchanging the costs of all paths of a raw lattice. Lattices are read, worked on by a
pool of threads and written in order; memory holds the models and a few lattices.

Written files:

* `lattices.ark`: compact lattices, Kaldi's binary form, acoustic costs unscaled;
* `ledger.jsonl`: utterances without a path;
* `rescore.json`: `utterances`, `skipped`, `frames`; `depth_before` and `depth_after`,
  mean numbers of transition-ids over a frame, and `depth_determinised`, between the
  two; `cpu_seconds` of reading both models and of all lattices; `wall_seconds`,
  `threads` and the options.

Public: `rescore_lattices`.

Source: Kaldi `steps/lmrescore_const_arpa.sh`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.lang.directory import read_symbols
from latflow.lang.lm_trie import LmTrie
from latflow.lattice.compact import CompactLattice
from latflow.lattice.determinise import determinise
from latflow.lattice.io import CompactLatticeWriter, read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.prune import prune
from latflow.lattice.rescore import rescore
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import map_in_order

log = logging.getLogger(__name__)


def rescore_lattices(
    lattices: str | Path,
    grammar: str | Path,
    arpa: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float = 0.0,
) -> None:
    """Exchange the language model of a set's lattices.

    Args:
        lattices: `lattices.ark` of the set; raw or compact.
        grammar: `G.fst` that they were decoded with.
        arpa: the new model: an ARPA file, or what `LmTrie.save` wrote.
        lang_dir: language directory of both, for its `words.txt`.
        out_dir: folder for the files named in the module's description.
        options: `beam`, how much more than the best path a path may cost, in scaled
            costs: before, in determinising, and after; `acoustic_scale`.
        threads: lattices worked on at a time.
        max_skipped_fraction: share of utterances that may be left out.

    Raises:
        UserError: a file is missing or faulty; a word of the grammar is not in the new
            model, which has no `<unk>` either; too many utterances are skipped.
    """
    started, out = time.perf_counter(), Path(out_dir)
    before = time.process_time()
    models = _Models.load(grammar, arpa, read_symbols(Path(lang_dir, "words.txt")))
    tally = _Tally(time.process_time() - before)
    ledger = Ledger("rescore_lattices")

    def work(item: tuple[str, Lattice]) -> _Rescored:
        return _rescored(*item, models, options)

    with CompactLatticeWriter.open(out / "lattices.ark") as writer:
        results = map_in_order(work, read_lattices(lattices), threads)
        for result in progress(results, "rescore"):
            tally.add(result)
            if result.lattice is not None:
                writer.write(result.utterance, result.lattice)
            elif result.error is not None:
                reason = f"{result.error.what} - {result.error.remedy}"
                ledger.record(result.utterance, reason)
        ledger.write(out / "ledger.jsonl")
        ledger.check(tally.utterances, max_skipped_fraction=max_skipped_fraction)
    summary = {
        **tally.summary(),
        "wall_seconds": time.perf_counter() - started,
        "threads": threads,
        "beam": options["beam"],
        "acoustic_scale": options["acoustic_scale"],
    }
    with atomic_output(out / "rescore.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class _Models:
    """The model that goes and the one that comes."""

    old: LmTrie
    new: LmTrie

    @classmethod
    def load(
        cls, grammar: str | Path, arpa: str | Path, word_ids: Mapping[str, int]
    ) -> _Models:
        """Read both, and see whether the new one knows the words of the old one."""
        old = LmTrie.from_graph(Graph.load(grammar), word_ids, file=grammar)
        new = LmTrie.load(arpa, word_ids)
        words = np.flatnonzero(~old.lacks(np.arange(max(word_ids.values()) + 1)))
        try:
            new.labels(words)
        except UserError as error:
            raise UserError(error.what, file=arpa, remedy=error.remedy) from None
        unknown = words[new.lacks(words)]
        if len(unknown):
            log.warning(
                "%s lacks %d of the %d words of %s, which count as its unknown word: "
                "%s ...",
                arpa, len(unknown), len(words), grammar,
                ", ".join(str(new.names[word]) for word in unknown[:5].tolist()),
            )  # fmt: skip
        return cls(old, new)


@dataclass(frozen=True, eq=False)
class _Rescored:
    """What became of one lattice.

    Attributes:
        lattice: with the new costs; None where there is an error.
        arcs: arcs over frames, before, determinised and after.
        seconds: processor time.
    """

    utterance: str
    lattice: CompactLattice | None
    error: UserError | None
    frames: int
    arcs: tuple[int, int, int]
    seconds: float


def _rescored(
    utterance: str, lattice: Lattice, models: _Models, options: Mapping[str, Any]
) -> _Rescored:
    """Exchange the costs of one lattice."""
    started = time.thread_time()
    beam, scale = options["beam"], options["acoustic_scale"]
    result, error = None, None
    arcs = int(np.count_nonzero(lattice.transition_id)), 0, 0
    try:
        small = determinise(lattice, beam=beam, acoustic_scale=scale)
        changed = rescore(small, models.old, models.new)
        result = prune(changed, beam, acoustic_scale=scale)
        arcs = arcs[0], _arc_frames(small), _arc_frames(result)
    except UserError as caught:
        error = caught
    seconds = time.thread_time() - started
    return _Rescored(utterance, result, error, lattice.num_frames, arcs, seconds)


def _arc_frames(lattice: CompactLattice) -> int:
    """Frames of all arcs together."""
    return len(lattice.string) + len(lattice.final_string)


class _Tally:
    """Adds up sizes and times.

    Args:
        model_seconds: processor time of reading the models.
    """

    def __init__(self, model_seconds: float) -> None:
        self.utterances = 0
        self._skipped = 0
        self._frames = 0
        self._arcs = np.zeros(3, np.int64)
        self._seconds = {"models": model_seconds, "lattices": 0.0}

    def add(self, result: _Rescored) -> None:
        """Take one utterance in; sizes of those that are skipped do not count."""
        self.utterances += 1
        self._seconds["lattices"] += result.seconds
        if result.lattice is None:
            self._skipped += 1
            return
        self._frames += result.frames
        self._arcs += result.arcs

    def summary(self) -> dict[str, Any]:
        """What was added up, for `rescore.json`."""
        depth = (self._arcs / max(self._frames, 1)).tolist()
        return {
            "utterances": self.utterances,
            "skipped": self._skipped,
            "frames": self._frames,
            "depth_before": depth[0],
            "depth_determinised": depth[1],
            "depth_after": depth[2],
            "cpu_seconds": self._seconds,
        }
