"""Supervision of LF-MMI from transcripts alone, for a network that nothing precedes.

The graph of an utterance has all its pronunciations with optional silences, and no
times: states have self-loops, and a path of any length may be taken. It is composed
with the normalization graph, as the supervision of an alignment is.

Source: Hadian et al. 2018, "End-to-end speech recognition using lattice-free MMI";
Kaldi `chain/chain-supervision.cc` (`TrainingGraphToSupervisionE2e`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import kaldifst
import numpy as np

from latflow.align.supervision_store import NORMALIZATION
from latflow.align.transcript_graphs import (
    Compilation,
    TranscriptGraphs,
    fewest_frames,
    write_transcript_graphs,
)
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.hclg import load_model
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.ledger import Ledger

log = logging.getLogger(__name__)


class FlatStartCompiler:
    """Compiles transcripts to graphs of pdfs with the normalization graph's weights.

    Each label sequence has the weights of all its paths through the normalization
    graph, as in the denominator, so that the numerator's score never exceeds the
    denominator's. Two things differ from Kaldi, which keeps the lexicon's costs (here
    the phone language model alone weighs pronunciations and silences) and the best of
    those paths only (whose choice need not end where there are cycles).

    Args:
        lang: a lang directory, or its path; `L.fst` is used.
        tree: of the chain system.
        model: its transition model.
        normalization: its normalization graph.

    Raises:
        UserError: a file is missing or garbled.
    """

    def __init__(
        self,
        lang: Lang | str | Path,
        tree: ContextDependency,
        model: TransitionModel,
        normalization: Graph,
    ) -> None:
        self._graphs = TrainingGraphCompiler(lang, tree, model)
        self._pdf = np.where(np.arange(model.num_transition_ids + 1), model.pdf + 1, 0)
        self._normalization = normalization.to_fst()
        kaldifst.arcsort(self._normalization, "ilabel")

    def compile(
        self, word_ids: Sequence[int] | np.ndarray, num_frames: int
    ) -> tuple[Graph | str, bool]:
        """Compile a transcript.

        Args:
            word_ids: ids of `words.txt`.
            num_frames: of the network's output.

        Returns:
            The supervision, cyclic, without epsilons, labels pdf-id + 1, or the reason
            why there is none; whether it has weights, which it lacks where the
            normalization graph accepts none of its paths of that length.
        """
        try:
            graph = self._graphs.compile(word_ids)
        except UserError as error:
            return error.what, False
        pdfs = self._as_pdfs(graph).to_fst()
        kaldifst.rmepsilon(pdfs)
        pdfs = kaldifst.determinize(pdfs)
        kaldifst.minimize(pdfs)
        weighted = Graph.from_fst(kaldifst.compose(pdfs, self._normalization))
        has_weights = fewest_frames(weighted) <= num_frames
        found = weighted if has_weights else Graph.from_fst(pdfs)
        shortest = fewest_frames(found)
        if shortest > num_frames:
            return f"has {num_frames} frames, its phones need {shortest:.0f}", False
        return found, has_weights

    def _as_pdfs(self, graph: Graph) -> Graph:
        """Return an acceptor of pdf-id + 1, without weights."""
        arcs = np.zeros(graph.num_arcs, ARC)
        arcs["ilabel"] = arcs["olabel"] = self._pdf[graph.ilabel]
        arcs["next_state"] = graph.next_state
        source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
        final = np.where(np.isfinite(graph.final), 0.0, np.inf).astype(np.float32)
        return Graph.from_arc_list(graph.start, source, arcs, final)


class FlatStartSupervisions(TranscriptGraphs):
    """The supervision of whole utterances, from transcripts, with all its weights."""

    FORMAT = "latflow-flat-start-1"
    KIND = "store of supervisions"

    def chunk(self, index: int, first: int, count: int) -> Graph:
        """Return the supervision of an utterance, safe to call from several threads.

        Args:
            index: of the utterance, see `position`.
            first: 0, and
            count: all its frames: there are no times to cut at.

        Returns:
            Cyclic; labels are pdf-id + 1.

        Raises:
            ValueError: a part of the utterance is asked for.
        """
        if first or count != self.num_frames[index]:
            raise ValueError("supervision without times cannot be cut into chunks")
        return self.graph(index)


def supervise_flat_start(
    frames_dir: Path,
    lang_dir: Path,
    chain_dir: Path,
    out_dir: Path,
    *,
    subsampling: int = 3,
    max_skipped_fraction: float = 1.0,
    threads: int = 1,
) -> None:
    """Make the supervision of every transcribed utterance (stage).

    Writes `ledger.jsonl` beside the supervisions: utterances that have none, since a
    word has no pronunciation or there are more phones than frames. Where the
    normalization graph accepts no path, which happens to a dev set, the supervision has
    no weights; `meta.json` counts those as `refused`.

    Args:
        frames_dir: the features of a split.
        lang_dir: the lang directory.
        chain_dir: folder of the chain system: `tree`, `final.mdl`,
            `normalization.fst`.
        out_dir: the store, replaced as a whole.
        subsampling: input frames per output frame.
        max_skipped_fraction: share of the utterances that may have none.
        threads: utterances at a time.

    Raises:
        UserError: a file is missing or garbled, more utterances than that are skipped,
            or the disk is full.
    """
    lang = Lang.load(lang_dir)
    tree, model = load_model(chain_dir)
    normalization = Graph.load(chain_dir / NORMALIZATION)
    compiler = FlatStartCompiler(lang, tree, model, normalization)
    refused: list[str] = []

    def make(text: str, num_frames: int) -> Graph | str:
        found, has_weights = compiler.compile(lang.words_to_ids(text), num_frames)
        if not isinstance(found, str) and not has_weights:
            refused.append(text)
        return found

    write_transcript_graphs(
        Compilation(
            kind=FlatStartSupervisions,
            make=make,
            meta={"subsampling": subsampling, "num_pdfs": model.num_pdfs},
            ledger=Ledger("supervise_flat_start"),
            more_meta=lambda: {"refused": len(refused)},
        ),
        frames_dir=frames_dir,
        out_dir=out_dir,
        max_skipped_fraction=max_skipped_fraction,
        threads=threads,
    )
    log.info(
        "%d of them with phone sequences that the phone language model does not know",
        len(refused),
    )
