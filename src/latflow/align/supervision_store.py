"""Supervisions of a corpus: made once, kept on disk, cut into chunks when trained on.

Source: Kaldi `chainbin/nnet3-chain-get-egs.cc`, `steps/nnet3/chain/get_egs.sh`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from latflow.align.options import SupervisionOptions
from latflow.align.supervision import (
    FRAME_ARC,
    FrameGraph,
    PhoneLattice,
    SupervisionCompiler,
)
from latflow.align.supervision_weights import Normalization
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.hclg import load_model
from latflow.hmm.alignment import segments
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import read_int_vectors
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.ragged import RaggedStore, RaggedWriter, factor

log = logging.getLogger(__name__)

NORMALIZATION = "normalization.fst"


class Supervisions(RaggedStore):
    """The supervisions of utterances, and the normalization graph that weighs them."""

    FORMAT = "latflow-supervisions-1"
    KIND = "store of supervisions"
    FACTS: ClassVar = {"subsampling": factor, "num_pdfs": int}
    COLUMNS: ClassVar = {
        "arcs": (FRAME_ARC, 1),
        "first_arc": ("<i4", 1),
        "first_state": ("<i4", 1),
    }

    @cached_property
    def num_frames(self) -> np.ndarray:
        """Output frames of each utterance, int64[N]."""
        return np.diff(self["first_state"].begin) - 2

    @property
    def subsampling(self) -> int:
        """Input frames per output frame."""
        return int(self.meta["subsampling"])

    @property
    def num_pdfs(self) -> int:
        """Pdfs of the chain system."""
        return int(self.meta["num_pdfs"])

    @cached_property
    def normalization(self) -> Normalization:
        """The normalization graph."""
        return Normalization.load(self.folder / NORMALIZATION)

    @cached_property
    def _unweighted(self) -> Normalization:
        """A graph of one state that accepts all labels at no cost."""
        num_pdfs = self.num_pdfs
        arcs = np.zeros(num_pdfs, ARC)
        arcs["ilabel"] = arcs["olabel"] = np.arange(1, num_pdfs + 1)
        source, final = np.zeros(num_pdfs, np.int64), np.zeros(1, np.float32)
        return Normalization(Graph.from_arc_list(0, source, arcs, final))

    def supervision(self, index: int) -> FrameGraph:
        """Return the supervision of a whole utterance, without weights.

        Raises:
            UserError: it is damaged.
        """
        found = FrameGraph(*(self[column][index] for column in self.COLUMNS))
        if not found.is_whole(self.num_pdfs):
            raise UserError(
                "the supervision is damaged",
                file=self.folder,
                utterance=self.utt_ids[index],
                remedy=self.REMEDY,
            )
        return found

    def chunk(self, index: int, first: int, count: int) -> Graph:
        """Return the weighted supervision of some frames of an utterance.

        The phone language model is not smoothed: it knows the phone sequences that it
        was estimated on, and hardly those of a dev set. A chunk that it refuses has no
        weights, and with them its objective lacks the cost of its phones: it is higher
        by a constant. Kaldi leaves such chunks out.

        Safe to call from several threads.

        Args:
            index: of the utterance, see `position`.
            first: first frame of the output.
            count: number of frames.

        Returns:
            Acyclic, states in the order of time, every path has `count` arcs; labels
            are pdf-id + 1, the weights those of the normalization graph, if it accepts
            one of the paths.

        Raises:
            ValueError: the utterance has no such frames.
        """
        supervision = self.supervision(index)
        graph = self.normalization.compose(supervision, first, count)
        if graph.num_states:
            return graph
        return self._unweighted.compose(supervision, first, count)


@dataclass(frozen=True, kw_only=True)
class SupervisionSource:
    """Source of supervision: alignments, or lattices of pronunciations."""

    model_dir: Path
    """Folder of the system that aligned."""
    alignments: Path | None = None
    """`ali.ark`, transition-ids by utterance."""
    lattices: Path | None = None
    """In their place `lattices.ark`, of the pronunciations of each transcript."""

    def items(self) -> Iterable[tuple[str, np.ndarray | Lattice]]:
        """Read what there is of each utterance."""
        if self.lattices is not None:
            return read_lattices(self.lattices)
        if self.alignments is not None:
            return read_int_vectors(self.alignments)
        raise ValueError("neither alignments nor lattices")


def make_supervisions(
    source: SupervisionSource,
    chain_dir: Path,
    out_dir: Path,
    *,
    options: SupervisionOptions,
    subsampling: int = 3,
    max_skipped_fraction: float = 1.0,
    threads: int = 1,
) -> None:
    """Make the supervision of every aligned utterance (stage).

    Writes `ledger.jsonl` beside the supervisions: utterances that have none, since
    their alignment is not a row of phones or has too many phones for the frames there
    are. `meta.json` counts as `refused` those that the normalization graph refuses as a
    whole.

    Args:
        source: what it is made from.
        chain_dir: folder of the chain system: `tree`, `final.mdl`,
            `normalization.fst`.
        out_dir: the store, replaced as a whole.
        options: tolerances.
        subsampling: input frames per output frame.
        max_skipped_fraction: share of the utterances that may have none.
        threads: utterances at a time.

    Raises:
        UserError: a file is missing or garbled, more utterances than that are skipped,
            or the disk is full.
    """
    _, aligned = load_model(source.model_dir)
    tree, model = load_model(chain_dir)
    compiler = SupervisionCompiler(tree, model, options, subsampling=subsampling)
    maker = _Maker(aligned, compiler)
    normalization = Normalization.load(chain_dir / NORMALIZATION)
    meta = {"subsampling": subsampling, "num_pdfs": model.num_pdfs}
    meta.update(options.model_dump())
    ledger, count, refused = Ledger("make_supervisions"), 0, 0
    with (
        atomic_directory(out_dir) as folder,
        worker_pool(threads) as pool,
        RaggedWriter(folder, Supervisions, meta=meta) as writer,
    ):
        items = progress(source.items(), "supervisions")
        for utterance, found in in_order(pool, maker.make, items):
            count += 1
            if isinstance(found, str):
                ledger.record(utterance, found)
            else:
                writer.write(utterance, *found)
                refused += not normalization.compose(found).num_states
        writer.meta["refused"] = refused
        ledger.check(count, max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")
        shutil.copyfile(chain_dir / NORMALIZATION, folder / NORMALIZATION)
        if not writer.utt_ids:
            raise UserError(
                "no utterance has a supervision",
                file=source.lattices or source.alignments,
                remedy="see the ledger of the stage, and the alignments",
            )
    log.info(
        "supervisions of %d out of %d utterances, %d of them with phone sequences that "
        "the phone language model does not know",
        len(writer.utt_ids),
        count,
        refused,
    )


class _Maker:
    """Makes supervisions of alignments and lattices; safe to share."""

    def __init__(self, aligned: TransitionModel, compiler: SupervisionCompiler) -> None:
        self._aligned = aligned
        self._compiler = compiler

    def make(
        self, item: tuple[str, np.ndarray | Lattice]
    ) -> tuple[str, FrameGraph | str]:
        """Return an utterance, and its supervision or the reason why it has none."""
        utterance, aligned = item
        try:
            found = self._compiler.compile(self._phones(aligned))
        except UserError as error:
            return utterance, error.what
        return utterance, found

    def _phones(self, aligned: np.ndarray | Lattice) -> PhoneLattice:
        """Return the phones of an alignment or a lattice."""
        if isinstance(aligned, Lattice):
            return PhoneLattice.of_lattice(aligned, self._aligned)
        phones, _, durations = segments(aligned, self._aligned)
        return PhoneLattice.linear(phones, durations)
