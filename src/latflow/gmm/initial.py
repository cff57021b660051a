"""Models and alignments to begin training with.

Source: Kaldi `gmmbin/gmm-init-mono.cc`, `gmmbin/gmm-init-model.cc` (`InitAmGmm`),
`fstext/fstext-utils-inl.h` (`EqualAlign`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency

log = logging.getLogger(__name__)

VARIANCE_FLOOR = 0.01  # of Gaussians made of tree statistics
_NUM_WALKS = 10  # attempts to find a path that is short enough


def flat_start(
    tree: ContextDependency, topology: Topology, frames: Iterable[np.ndarray]
) -> AcousticModel:
    """Give every pdf one Gaussian, that of all frames.

    Args:
        tree: the monophone tree.
        topology: the HMMs.
        frames: float32[T, D] of some utterances.

    Raises:
        UserError: there are no frames, or a dimension does not vary.
    """
    count, first, second = 0, np.zeros(0), np.zeros(0)
    for block in frames:
        exact = block.astype(np.float64)
        count += len(exact)
        first = exact.sum(axis=0) + (first if first.size else 0.0)
        second = np.square(exact).sum(axis=0) + (second if second.size else 0.0)
    if not count:
        raise UserError(
            "no frames to start the monophone model with",
            remedy="look at the ledgers of features and corpus",
        )
    mean = first / count
    variance = second / count - mean * mean
    if not (np.isfinite(variance) & (variance > 0)).all():
        bad = int(np.argmin(np.isfinite(variance) & (variance > 0)))
        raise UserError(
            f"feature {bad} does not vary over the first utterances",
            remedy="look for silent recordings or a fault in the features",
        )
    shape = (tree.num_pdfs, len(mean))
    gmms = DiagGmms.from_moments(
        np.arange(tree.num_pdfs + 1),
        np.ones(tree.num_pdfs),
        np.broadcast_to(mean, shape),
        np.broadcast_to(variance, shape),
    )
    return AcousticModel(TransitionModel.from_tree(tree, topology), gmms)


def from_leaf_statistics(
    counts: np.ndarray, sums: np.ndarray, squares: np.ndarray
) -> DiagGmms:
    """Give every leaf of a tree the Gaussian of its statistics.

    A leaf without data gets the Gaussian of all data.

    Args:
        counts: float64[P], frames of each leaf.
        sums: float64[P, D].
        squares: float64[P, D], sums of squares.
    """
    empty = counts <= 0
    if empty.any():
        log.warning("%d leaves of the tree have no data", int(empty.sum()))
    counts = np.where(empty, counts.sum(), counts)[:, None]
    means = np.where(empty[:, None], sums.sum(axis=0), sums) / counts
    variances = np.where(empty[:, None], squares.sum(axis=0), squares) / counts
    variances = np.maximum(variances - means * means, VARIANCE_FLOOR)
    begin = np.arange(len(counts) + 1)
    return DiagGmms.from_moments(begin, np.ones(len(counts)), means, variances)


def equal_alignment(
    graph: Graph, num_frames: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Walk through a graph at random, and stay equally long in all its states.

    Args:
        graph: a training graph with self-loops.
        num_frames: T.
        rng: draws the walk.

    Returns:
        Transition-ids int32[T], or None if no path was found that has T frames.
    """
    if not graph.num_states:
        return None
    for _ in range(_NUM_WALKS):
        states, arcs = _walk(graph, rng)
        ids = graph.ilabel[arcs]
        if np.count_nonzero(ids) <= num_frames:
            return _stretched(ids, _self_loops(graph, states), num_frames)
    return None


def _walk(graph: Graph, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """States and arcs of a random path from the start to the end; no self-loops."""
    begin, next_state = graph.arc_begin, graph.next_state
    states, arcs = [graph.start], []
    while True:
        state = states[-1]
        first, last = int(begin[state]), int(begin[state + 1])
        choices = [a for a in range(first, last) if next_state[a] != state]
        is_final = bool(np.isfinite(graph.final[state]))
        drawn = int(rng.integers(len(choices) + is_final))
        if drawn == len(choices):
            return states, arcs
        arcs.append(choices[drawn])
        states.append(int(next_state[choices[drawn]]))


def _self_loops(graph: Graph, states: list[int]) -> np.ndarray:
    """Transition-id of the self-loop of each state of a path, 0 for none, int32[N]."""
    loops = np.zeros(len(states), np.int32)
    for n, state in enumerate(states):
        for arc in range(int(graph.arc_begin[state]), int(graph.arc_begin[state + 1])):
            if graph.next_state[arc] == state and graph.ilabel[arc] > 0:
                loops[n] = graph.ilabel[arc]
                break
    return loops


def _stretched(
    ids: np.ndarray, loops: np.ndarray, num_frames: int
) -> np.ndarray | None:
    """Fill a path up to T frames with self-loops, shared out equally.

    Args:
        ids: int32[N - 1], labels between the states of the path.
        loops: int32[N], self-loop of each state, 0 for none.
        num_frames: T.
    """
    missing = num_frames - np.count_nonzero(ids)
    can_stay = np.flatnonzero(loops)
    if missing and not len(can_stay):
        return None
    repeats = np.zeros(len(loops), np.int64)
    if missing:
        each, more = divmod(missing, len(can_stay))
        repeats[can_stay] = each
        repeats[can_stay[:more]] += 1
    labels = np.zeros(2 * len(loops) - 1, np.int32)
    labels[::2], labels[1::2] = loops, ids
    counts = np.ones(len(labels), np.int64)
    counts[::2] = repeats
    counts[1::2] = ids > 0
    return np.repeat(labels, counts)
