"""Scores of a lattice's arcs from log-likelihoods, and derivatives by frame and pdf.

The acoustic costs that a lattice was written with do not matter to criteria: they look
up log-likelihoods, [T, P], for each arc, so that value and gradient are of the same
function. The score of an arc that consumes frame t with a transition-id of pdf p is

    acoustic_scale * log_likes[t, p] - lm_scale * graph cost + extra,

that of an arc that consumes none is -lm_scale * graph cost + extra. Final states cost
lm_scale * their graph cost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latflow.errors import UserError
from latflow.hmm.alignment import check_ids
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.lattice.lattice import CompactLattice, Lattice


def _check_scores(
    log_likes: np.ndarray, lattice: Lattice, model: TransitionModel
) -> None:
    """Raise UserError unless scores, lattice and model belong together."""
    if log_likes.shape != (lattice.num_frames, model.num_pdfs):
        raise UserError(
            f"log-likelihoods of {' x '.join(map(str, log_likes.shape))}, where the "
            f"lattice has {lattice.num_frames} frames and the model {model.num_pdfs} "
            "pdfs",
            remedy="make lattice and log-likelihoods from the same features and model",
        )
    check_ids(lattice.transition_id, model, "a lattice", lowest=0)


def scored(
    lattice: Lattice | CompactLattice,
    log_likes: np.ndarray,
    model: TransitionModel,
    *,
    acoustic_scale: float,
    lm_scale: float,
    extra: np.ndarray | None = None,
) -> Lattice:
    """Return the lattice with the scores of the log-likelihoods.

    Args:
        lattice: T frames.
        log_likes: float32 or float64 [T, P].
        model: what transition-ids mean.
        acoustic_scale: factor on log-likelihoods.
        lm_scale: factor on graph costs; a cost of inf stays inf at 0.
        extra: float64 [A], added to the (scaled) scores of arcs.

    Returns:
        A lattice whose graph costs are the whole, scaled cost, float64; its acoustic
        costs are 0. To be used with all scales 1.

    Raises:
        UserError: shapes do not match, or an id is not the model's.
    """
    lattice = lattice.to_lattice()
    _check_scores(log_likes, lattice, model)
    cost = _arc_costs(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        lattice.graph_cost,
        model.pdf,
        log_likes,
        (float(acoustic_scale), float(lm_scale)),
    )
    if extra is not None:
        cost -= extra
    final = np.full(lattice.num_states, np.inf)
    ends = (lattice.final_graph_cost < np.inf) & (lattice.final_acoustic_cost < np.inf)
    final[ends] = lm_scale * lattice.final_graph_cost[ends].astype(np.float64)
    return replace(
        lattice,
        graph_cost=cost,
        acoustic_cost=np.zeros(lattice.num_arcs),
        final_graph_cost=final,
        final_acoustic_cost=np.zeros(lattice.num_states),
    )


def add_arcs(
    lattice: Lattice,
    weights: np.ndarray,
    model: TransitionModel,
    scale: float,
    gradient: np.ndarray,
) -> None:
    """Add the derivatives to arcs' scores to those to log-likelihoods.

    Args:
        lattice: T frames, A arcs.
        weights: float64 [A].
        model: what transition-ids mean.
        scale: factor.
        gradient: float32 or float64 [T, P], added to. Weights of the arcs of a frame
            and pdf are summed in float64 first.
    """
    _add_arcs(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        weights,
        model.pdf,
        float(scale),
        gradient,
    )


def alignment_score(
    log_likes: np.ndarray, alignment: np.ndarray, model: TransitionModel
) -> float:
    """Return the summed log-likelihood of an alignment's pdfs, unscaled.

    Args:
        log_likes: [T, P].
        alignment: transition-ids, int32[T].
        model: what they mean.
    """
    pdfs = model.pdf[alignment]
    return float(log_likes[np.arange(len(pdfs)), pdfs].sum(dtype=np.float64))


def frames_in_lattice(
    lattice: Lattice,
    labels: np.ndarray,
    alignment: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Find the frames at which some path has the label of the alignment, bool[T].

    Args:
        lattice: T frames, A arcs.
        labels: int32 [ids + 1], e.g. the pdf of each transition-id.
        alignment: transition-ids, int32[T].
        weights: float64 [A]; arcs whose weight is 0 do not count. None counts all.
    """
    return _frames_in_lattice(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        np.ones(lattice.num_arcs) if weights is None else weights,
        labels,
        np.asarray(alignment, np.int32),
    )


@njit(cache=True, nogil=True)
def _frames_in_lattice(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    weights: np.ndarray,
    labels: np.ndarray,
    alignment: np.ndarray,
) -> np.ndarray:
    """Find frames with an arc of the aligned label; as `frames_in_lattice`."""
    held = np.zeros(len(alignment), np.bool_)
    for s in range(len(frame)):
        t = frame[s]
        if t < len(alignment) and not held[t]:
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                id_ = transition_id[arc]
                if (
                    id_ != 0
                    and weights[arc] > 0.0
                    and labels[id_] == labels[alignment[t]]
                ):
                    held[t] = True
    return held


@njit(cache=True, nogil=True)
def _arc_costs(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    graph_cost: np.ndarray,
    pdf: np.ndarray,
    log_likes: np.ndarray,
    scales: tuple[float, float],
) -> np.ndarray:
    """Return the scaled costs of arcs, float64[A]; scales: acoustic, graph."""
    cost = np.empty(len(transition_id))
    for s in range(len(frame)):
        t = frame[s]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            of_graph, id_ = graph_cost[arc], transition_id[arc]
            # Scale 0 times inf would be NaN.
            total = scales[1] * of_graph if of_graph < np.inf else np.float64(of_graph)
            if id_ != 0:
                if t < len(log_likes):
                    total -= scales[0] * log_likes[t, pdf[id_]]
                else:
                    total = np.inf  # a dead end that is longer than the utterance
            cost[arc] = total
    return cost


@njit(cache=True, nogil=True)
def _add_arcs(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    weights: np.ndarray,
    pdf: np.ndarray,
    scale: float,
    gradient: np.ndarray,
) -> None:
    """Sum the weights of arcs by frame and pdf; arguments as for `add_arcs`."""
    num_frames, num_pdfs = gradient.shape
    # A counting sort of the states by frame: their order is only topological.
    begin = np.zeros(num_frames + 2, np.int64)
    for s in range(len(frame)):
        begin[min(frame[s], num_frames) + 1] += 1
    for t in range(num_frames + 1):
        begin[t + 1] += begin[t]
    free, states = begin.copy(), np.empty(len(frame), np.int64)
    for s in range(len(frame)):
        t = min(frame[s], num_frames)
        states[free[t]] = s
        free[t] += 1
    bins, touched = np.zeros(num_pdfs), np.empty(num_pdfs, np.int64)
    is_touched = np.zeros(num_pdfs, np.bool_)
    for t in range(num_frames):
        count = 0
        for k in range(begin[t], begin[t + 1]):
            for arc in range(arc_begin[states[k]], arc_begin[states[k] + 1]):
                if transition_id[arc] != 0:
                    p = pdf[transition_id[arc]]
                    bins[p] += weights[arc]
                    if not is_touched[p]:
                        is_touched[p] = True
                        touched[count] = p
                        count += 1
        for n in range(count):
            p = touched[n]
            gradient[t, p] += scale * bins[p]
            bins[p], is_touched[p] = 0.0, False
