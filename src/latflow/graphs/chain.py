"""Graphs of lattice-free MMI: the denominator, and what normalizes numerators.

The denominator holds all phone sequences of a phone language model as sequences of
pdfs, a frame an arc:

    phone LM -> C o LM -> H o C o LM with self-loops -> pdfs -> no epsilons -> minimized

Labels are pdf-id + 1 on both sides. A network sees chunks that begin anywhere in an
utterance, so that the denominator may begin in any state: its initial probabilities are
the share of the first frames that are spent in each. The *normalization graph* is the
denominator with these and with all states final; supervisions are composed with it, so
that the numerator's score never exceeds the denominator's.

Source: Kaldi `chain/chain-den-graph.{h,cc}` (`CreateDenominatorFst`,
`DenominatorGraph::SetInitialProbs`, `DenominatorGraph::GetNormalizationFst`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.fst.determinize import DELTA
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.fst.optimize import push_special, remove_epsilons_locally
from latflow.graphs.options import PhoneLmOptions
from latflow.graphs.phone_lm import estimate_phone_lm
from latflow.hmm.transducer import HmmCache, add_self_loops, compose_hmms
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.ledger import Ledger

log = logging.getLogger(__name__)

PHONE_LM = "phone_lm.fst"
DENOMINATOR = "den.fst"
NORMALIZATION = "normalization.fst"

_SCALE = 1.0  # of transition probabilities, in decoding graphs of the network too
_PUSH_DELTA = 0.01 * DELTA
_MERGE_DELTA = 10.0 * DELTA  # costs are rounded to this before states are merged
_NUM_PASSES = 3  # of minimization, backwards and forwards
_NUM_FRAMES = 100  # over which initial probabilities are averaged


@dataclass(frozen=True, eq=False)
class ChainGraphs:
    """The graphs of a tree and a phone language model.

    Attributes:
        denominator: acceptor of pdf-id + 1, without epsilons, S states.
        initial_probs: float64[S], positive, sum 1.
        normalization: the denominator that begins with these in any state and ends in
            any.
    """

    denominator: Graph
    initial_probs: np.ndarray
    normalization: Graph

    @classmethod
    def of(cls, denominator: Graph) -> ChainGraphs:
        """Return a denominator with what follows from it."""
        initial = initial_probabilities(denominator)
        return cls(denominator, initial, _normalization(denominator, initial))

    @classmethod
    def read(cls, folder: str | Path) -> ChainGraphs:
        """Read `den.fst` and `normalization.fst`.

        Raises:
            UserError: one is missing or garbled.
        """
        denominator = Graph.load(Path(folder) / DENOMINATOR)
        normalization = Graph.load(Path(folder) / NORMALIZATION)
        return cls(denominator, initial_probabilities(denominator), normalization)

    def write(self, folder: str | Path) -> None:
        """Write what `read` reads."""
        self.denominator.save(Path(folder) / DENOMINATOR)
        self.normalization.save(Path(folder) / NORMALIZATION)


def save_chain_system(
    out_dir: Path,
    sequences: Iterable[Sequence[int] | np.ndarray],
    options: PhoneLmOptions,
    tree: ContextDependency,
    transitions: TransitionModel,
) -> dict[str, int]:
    """Write tree, transition model, phone language model and graphs; return sizes.

    Args:
        out_dir: gets `tree`, `final.mdl`, `phone_lm.fst`, `den.fst` and
            `normalization.fst`.
        sequences: phones of the training data.
        options: of the phone language model.
        tree: of the network.
        transitions: its transition model.

    Raises:
        UserError: there are no phones, or one that tree or topology lack.
    """
    phone_lm = estimate_phone_lm(sequences, options)
    graphs = make_chain_graphs(phone_lm, tree, transitions)
    out_dir.mkdir(parents=True, exist_ok=True)
    tree.save(out_dir / "tree")
    transitions.save(out_dir / "final.mdl")
    phone_lm.save(out_dir / PHONE_LM)
    graphs.write(out_dir)
    denominator = graphs.denominator
    return {
        "num_pdfs": tree.num_pdfs,
        "pdfs_in_denominator": len(np.unique(denominator.ilabel)),
        "phone_lm_states": phone_lm.num_states,
        "phone_lm_arcs": phone_lm.num_arcs,
        "denominator_states": denominator.num_states,
        "denominator_arcs": denominator.num_arcs,
        "normalization_states": graphs.normalization.num_states,
        "normalization_arcs": graphs.normalization.num_arcs,
    }


def note_missing_pdfs(ledger: Ledger, network: str, sizes: Mapping[str, int]) -> None:
    """Note in a ledger that the denominator lacks pdfs, if it does.

    Args:
        ledger: of the stage.
        network: its name stands for that of an utterance: it is of no single one.
        sizes: as of `save_chain_system`.
    """
    missing = sizes["num_pdfs"] - sizes["pdfs_in_denominator"]
    if missing:
        ledger.record(
            network,
            f"{missing} of {sizes['num_pdfs']} pdfs are not in the denominator: no "
            "phone sequence of the data has them",
            action="noted",
        )


def make_chain_graphs(
    phone_lm: Graph, tree: ContextDependency, transitions: TransitionModel
) -> ChainGraphs:
    """Make the graphs of lattice-free MMI.

    Args:
        phone_lm: acceptor of phones, see `latflow.graphs.phone_lm`.
        tree: the tree of the network's pdfs.
        transitions: the transition model of the same tree; its topology may have
            separate pdfs for self-loops.

    Raises:
        UserError: the language model has no phones, or has one that tree or topology
            lack.
    """
    if not phone_lm.num_arcs:
        raise UserError(
            "the phone language model has no phones",
            remedy="look at the ledger of the alignments",
        )
    graph = _without_epsilons(_expand(phone_lm, tree, transitions))
    graph = _by_degree(_minimize(graph))
    missing = np.setdiff1d(np.arange(1, transitions.num_pdfs + 1), graph.ilabel)
    if len(missing):
        log.warning(
            "%d of %d pdfs are not in the denominator, such as %d: no phone sequence "
            "of the data has them",
            len(missing),
            transitions.num_pdfs,
            missing[0] - 1,
        )
    log.info("denominator: %d states, %d arcs", graph.num_states, graph.num_arcs)
    return ChainGraphs.of(graph)


def _expand(
    phone_lm: Graph, tree: ContextDependency, transitions: TransitionModel
) -> Graph:
    """Return the graph of pdf-id + 1, with epsilons, that accepts the LM's phones."""
    context, windows = kaldifst.compose_context(
        [], tree.context_width, tree.central_position, phone_lm.to_fst()
    )
    cache = HmmCache(tree, transitions, _SCALE)
    composed, _ = compose_hmms(Graph.from_fst(context), windows, cache)
    graph = add_self_loops(composed, transitions, self_loop_scale=_SCALE)
    labels = np.where(graph.ilabel > 0, transitions.pdf[graph.ilabel] + 1, 0)
    arcs = np.array(graph.arcs)
    arcs["ilabel"] = arcs["olabel"] = labels
    return Graph.from_arc_list(graph.start, graph.sources(), arcs, graph.final)


def _without_epsilons(graph: Graph) -> Graph:
    """Remove epsilons, first where that adds no arc."""
    fst = remove_epsilons_locally(graph).to_fst()
    kaldifst.rmepsilon(fst)
    return Graph.from_fst(fst)


def _minimize(graph: Graph) -> Graph:
    """Merge states that are followed, or preceded, by the same.

    Source: Kaldi `DenGraphMinimizeWrapper`.
    """
    fst = graph.to_fst()
    for _ in range(_NUM_PASSES):
        fst = kaldifst.reverse(_merged(kaldifst.reverse(fst)))
        fst = _merged(fst)
    kaldifst.rmepsilon(fst)
    return push_special(Graph.from_fst(fst), delta=_PUSH_DELTA)


def _merged(fst: kaldifst.StdVectorFst) -> kaldifst.StdVectorFst:
    """Push weights, round them, and merge states that are followed by the same."""
    pushed = push_special(Graph.from_fst(fst), delta=_PUSH_DELTA).to_fst()
    kaldifst.minimize_encoded(pushed, _MERGE_DELTA)
    return pushed


def _by_degree(graph: Graph) -> Graph:
    """Renumber states: those with the most arcs, out and in, come first.

    Source: Kaldi `SortOnTransitionCount`.
    """
    entering = np.bincount(graph.next_state, minlength=graph.num_states)
    degree = np.diff(graph.arc_begin) + entering
    order = np.argsort(-degree, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    arcs = np.array(graph.arcs)
    arcs["next_state"] = rank[graph.next_state]
    return Graph.from_arc_list(
        int(rank[graph.start]), rank[graph.sources()], arcs, graph.final[order]
    )


def initial_probabilities(denominator: Graph) -> np.ndarray:
    """Return the share of the first 100 frames that is spent in each state.

    All arcs of a state count by their weights alone, as if pdfs were equally likely; of
    paths that end, the share goes to the others.

    Args:
        denominator: acceptor without epsilons, S states.

    Returns:
        float64[S], sum 1.

    Raises:
        UserError: no arcs leave the start, or a state that it reaches.
    """
    sources, num_states = denominator.sources(), denominator.num_states
    probability = np.exp(-denominator.weight.astype(np.float64))
    totals = np.bincount(sources, probability, num_states)
    totals += np.exp(-denominator.final.astype(np.float64))
    step = probability / totals[sources]
    present = np.zeros(num_states)
    present[denominator.start] = 1.0
    average = np.zeros(num_states)
    for _ in range(_NUM_FRAMES):
        average += present / _NUM_FRAMES
        moved = np.bincount(denominator.next_state, present[sources] * step, num_states)
        mass = moved.sum()
        if not mass > 0.0:
            raise UserError(
                "the denominator graph has no path of "
                f"{_NUM_FRAMES} frames, so that nothing can be trained with it",
                remedy="look at the phone sequences it was made from",
            )
        present = moved / mass
    return average


def _normalization(denominator: Graph, initial: np.ndarray) -> Graph:
    """Return the graph that begins in any state and may end in any.

    Source: Kaldi `DenominatorGraph::GetNormalizationFst`.
    """
    num_states = denominator.num_states
    with np.errstate(divide="ignore"):
        costs = -np.log(initial.astype(np.float32))
    entered = np.flatnonzero(np.isfinite(costs))
    arcs = np.zeros(denominator.num_arcs + len(entered), ARC)
    arcs[: denominator.num_arcs] = denominator.arcs
    begins = arcs[denominator.num_arcs :]
    begins["next_state"], begins["weight"] = entered, costs[entered]
    sources = np.concatenate([denominator.sources(), np.full(len(entered), num_states)])
    final = np.zeros(num_states + 1, np.float32)
    final[num_states] = np.inf
    fst = Graph.from_arc_list(num_states, sources, arcs, final).to_fst()
    kaldifst.rmepsilon(fst)
    kaldifst.arcsort(fst, "ilabel")
    return Graph.from_fst(cast("kaldifst.StdVectorFst", fst))
