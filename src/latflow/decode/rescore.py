"""Stage `rescore_lattices`: the lattices of a set with another language model's costs.

Each lattice is determinized, so that every word sequence has one path; then the costs
of the grammar that it was decoded with are taken out, and those of the new model put
in. Determinising first makes the result many times smaller, and takes less time than
exchanging the costs of all paths of a raw lattice. Lattices are read, worked on by a
pool of threads and written in order; memory holds the models and a few lattices.

Written files:

* `lattices.ark`: compact lattices, Kaldi's binary form, acoustic costs unscaled;
* `ledger.jsonl`: utterances without a path;
* `rescore.json`: `utterances`, `skipped`, `frames`; `depth_before` and `depth_after`,
  mean numbers of transition-ids over a frame, and `depth_determinized`, between the
  two; `cpu_seconds` of reading both models and of all lattices; `wall_seconds`,
  `threads` and the options.

Source: Kaldi `steps/lmrescore_const_arpa.sh`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.archive_sizes import archive_sizes
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.lang.directory import read_symbols
from latflow.lang.lm_trie import LmTrie
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import LatticeWriter, read_lattices
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.prune import prune
from latflow.lattice.rescore import rescore
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RescoreJob:
    """Lattices of a set whose language model is exchanged."""

    lattices: Path
    """`lattices.ark` of the set; raw or compact."""
    grammar: Path
    """`G.fst` that they were decoded with."""
    lang_dir: Path
    """Language directory of the grammar, for its `words.txt`."""
    out_dir: Path
    """Folder for the files named in `latflow.decode.rescore`."""
    beam: float
    """Cost above that of the best path that a path may have, scaled: before, in
    determinizing, and after."""
    threads: int = 1
    """Lattices worked on at a time."""
    max_skipped_fraction: float = 0.0
    """Share of utterances that may be left out."""


def rescore_lattices(job: RescoreJob, arpa: Path, *, acoustic_scale: float) -> None:
    """Exchange the language model of a set's lattices.

    Args:
        job: the lattices.
        arpa: the new model: an ARPA file, or what `LmTrie.save` wrote.
        acoustic_scale: factor on acoustic costs.

    Raises:
        UserError: a file is missing or faulty; a word of the grammar is not in the new
            model, which has no `<unk>` either; too many utterances are skipped.
    """
    started, before = time.perf_counter(), time.process_time()
    word_ids = read_symbols(Path(job.lang_dir, "words.txt"))
    models = LanguageModels.load(job.grammar, arpa, word_ids)
    totals = RescoreTotals(started, time.process_time() - before)

    def work(item: tuple[str, Lattice]) -> Rescored:
        return _rescored(*item, models, job.beam, acoustic_scale)

    with worker_pool(job.threads) as pool:
        write_rescored(
            in_order(pool, work, read_lattices(job.lattices), ahead=2 * job.threads),
            job.out_dir,
            totals,
            stage="rescore_lattices",
            max_skipped_fraction=job.max_skipped_fraction,
            settings={
                "threads": job.threads,
                "beam": job.beam,
                "acoustic_scale": acoustic_scale,
            },
        )


def write_rescored(
    results: Iterable[Rescored],
    out_dir: Path,
    totals: RescoreTotals,
    *,
    stage: str,
    max_skipped_fraction: float,
    settings: Mapping[str, Any],
) -> None:
    """Write the files of a set's rescored lattices, see the module's description.

    Args:
        results: of each utterance, in the order in which they are written.
        out_dir: folder for the files.
        totals: the results are added to them.
        stage: its name, for the ledger.
        max_skipped_fraction: share of utterances that may be left out.
        settings: for `rescore.json`.

    Raises:
        UserError: too many utterances are skipped.
    """
    ledger = Ledger(stage)
    with LatticeWriter.open(out_dir / "lattices.ark") as writer:
        for result in progress(results, "rescore"):
            totals.add(result)
            for note in result.notes:
                ledger.record(result.utterance, note, action="noted")
            if result.lattice is not None:
                writer.write(result.utterance, result.lattice)
            elif result.error is not None:
                reason = f"{result.error.what} - {result.error.remedy}"
                ledger.record(result.utterance, reason)
        ledger.write(out_dir / "ledger.jsonl")
        ledger.check(totals.utterances, max_skipped_fraction=max_skipped_fraction)
    archives = archive_sizes(out_dir, {"lattices.ark": writer.entries})
    summary = {**totals.summary(), **settings, **archives}
    with atomic_output(out_dir / "rescore.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class LanguageModels:
    """The model that goes and the one that comes."""

    old: LmTrie
    new: LmTrie

    @classmethod
    def load(
        cls, grammar: str | Path, arpa: str | Path, word_ids: Mapping[str, int]
    ) -> LanguageModels:
        """Read both, and see whether the new one knows the words of the old one."""
        old = LmTrie.from_graph(Graph.load(grammar), word_ids, file=grammar)
        new = LmTrie.load(arpa, word_ids)
        words = np.flatnonzero(~old.lacks(np.arange(max(word_ids.values()) + 1)))
        try:
            new.labels(words)
        except UserError as error:
            raise error.at(file=arpa) from None
        unknown = words[new.lacks(words)]
        if len(unknown):
            log.warning(
                "%s lacks %d of the %d words of %s, which count as its unknown word: "
                "%s ...",
                arpa, len(unknown), len(words), grammar,
                ", ".join(str(new.names[word]) for word in unknown[:5].tolist()),
            )  # fmt: skip
        return cls(old, new)

    def exchange(
        self,
        lattice: Lattice,
        beam: float,
        acoustic_scale: float,
        note: Callable[[str], None] = log.warning,
    ) -> tuple[CompactLattice, CompactLattice]:
        """Return a lattice determinized, and with the costs of the new model.

        Args:
            lattice: raw, with the costs of the old one.
            beam: cost above that of the best path that a path may have, scaled.
            acoustic_scale: factor on acoustic costs.
            note: see `determinize`.

        Raises:
            UserError: the lattice has no path, or is too large.
        """
        small = determinize(
            lattice, beam=beam, acoustic_scale=acoustic_scale, note=note
        )
        changed = rescore(small, self.old, self.new)
        return small, prune(changed, beam, acoustic_scale=acoustic_scale)


@dataclass(frozen=True, eq=False)
class Rescored:
    """Result of rescoring one lattice.

    Attributes:
        lattice: with the new costs; None where there is an error.
        arcs: arcs over frames, before, determinized and after.
        seconds: processor time.
        notes: for the ledger.
    """

    utterance: str
    lattice: CompactLattice | None
    error: UserError | None
    frames: int
    arcs: tuple[int, int, int]
    seconds: float
    notes: Sequence[str] = ()


def _rescored(
    utterance: str, lattice: Lattice, models: LanguageModels, beam: float, scale: float
) -> Rescored:
    """Exchange the costs of one lattice."""
    started = time.thread_time()
    result, error = None, None
    notes: list[str] = []
    arcs = int(np.count_nonzero(lattice.transition_id)), 0, 0
    try:
        small, result = models.exchange(lattice, beam, scale, notes.append)
        arcs = arcs[0], arc_frames(small), arc_frames(result)
    except UserError as caught:
        error = caught
    seconds = time.thread_time() - started
    return Rescored(utterance, result, error, lattice.num_frames, arcs, seconds, notes)


def arc_frames(lattice: CompactLattice) -> int:
    """Return frames of all arcs together."""
    return len(lattice.string) + len(lattice.final_string)


class RescoreTotals:
    """Adds up sizes and times.

    Args:
        started: value of `time.perf_counter` when the stage began.
        model_seconds: processor time of reading the models.
    """

    def __init__(self, started: float, model_seconds: float) -> None:
        self._started = started
        self.utterances = 0
        self._skipped = 0
        self._frames = 0
        self._arcs = np.zeros(3, np.int64)
        self._seconds = {"models": model_seconds, "lattices": 0.0}

    def add(self, result: Rescored) -> None:
        """Take one utterance in; sizes of those that are skipped do not count."""
        self.utterances += 1
        self._seconds["lattices"] += result.seconds
        if result.lattice is None:
            self._skipped += 1
            return
        self._frames += result.frames
        self._arcs += result.arcs

    def summary(self) -> dict[str, Any]:
        """Return the totals, for `rescore.json`."""
        depth = (self._arcs / max(self._frames, 1)).tolist()
        return {
            "utterances": self.utterances,
            "skipped": self._skipped,
            "frames": self._frames,
            "depth_before": depth[0],
            "depth_determinized": depth[1],
            "depth_after": depth[2],
            "cpu_seconds": self._seconds,
            "wall_seconds": time.perf_counter() - self._started,
        }
