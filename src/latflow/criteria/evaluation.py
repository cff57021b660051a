"""What lattice criteria share: scores of arcs, and derivatives by frame and pdf.

A criterion is a function of the log-likelihoods of an utterance, [T, P]. It looks them
up for each arc of the lattice, so that the acoustic costs that the lattice was written
with do not matter: its value and its gradient are of the same function. The score of an
arc that consumes frame t with a transition-id of pdf p is

    acoustic_scale * log_likes[t, p] - lm_scale * graph cost + extra,

that of an arc that consumes none is -lm_scale * graph cost + extra. Final states cost
lm_scale * their graph cost.

Public: `Evaluation`, `scored`, `add_arcs`, `alignment_score`, `held_frames`,
`raw_lattice`, `check_scores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import check_ids


@dataclass(frozen=True)
class Evaluation:
    """Value and gradient of a criterion for one utterance of T frames.

    Attributes:
        objective: to be maximised; a sum over frames (phones, words), not a mean.
        gradient: of the type of the log-likelihoods, [T, P]: derivative of `objective`.
        num_frames: T.
        statistics: further sums.
    """

    objective: float
    gradient: np.ndarray
    num_frames: int
    statistics: Mapping[str, float]


def raw_lattice(lattice: Lattice | CompactLattice) -> Lattice:
    """The state-level form: an arc consumes at most one frame."""
    return lattice if isinstance(lattice, Lattice) else lattice.to_lattice()


def check_scores(
    log_likes: np.ndarray, lattice: Lattice, model: TransitionModel
) -> None:
    """Raise UserError unless scores, lattice and model belong together.

    Args:
        log_likes: [T, P].
        lattice: T frames.
        model: of P pdfs.
    """
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
    """Give the arcs the scores of the log-likelihoods.

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
    lattice = raw_lattice(lattice)
    check_scores(log_likes, lattice, model)
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
        gradient: float32 or float64 [T, P], added to. What the arcs of a frame and pdf
            have is summed in float64 first.
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
    """Summed log-likelihood of an alignment's pdfs, unscaled.

    Args:
        log_likes: [T, P].
        alignment: transition-ids, int32[T].
        model: what they mean.
    """
    pdfs = model.pdf[alignment]
    return float(log_likes[np.arange(len(pdfs)), pdfs].sum(dtype=np.float64))


def held_frames(
    lattice: Lattice, weights: np.ndarray, labels: np.ndarray, said: np.ndarray
) -> np.ndarray:
    """Frames at which some possible path has the label of the alignment, bool[T].

    Args:
        lattice: T frames, A arcs.
        weights: float64 [A]; arcs whose weight is 0 do not count.
        labels: int32 [ids + 1], e.g. the pdf of each transition-id.
        said: int32 [T], transition-ids.
    """
    return _held_frames(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        weights,
        labels,
        np.asarray(said, np.int32),
    )


@njit(cache=True, nogil=True)
def _held_frames(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    weights: np.ndarray,
    labels: np.ndarray,
    said: np.ndarray,
) -> np.ndarray:
    """Frames with an arc of the label that was said, bool[T].

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A].
        weights: float64[A].
        labels: int32[ids + 1].
        said: int32[T].
    """
    held = np.zeros(len(said), np.bool_)
    for s in range(len(frame)):
        t = frame[s]
        if t < len(said) and not held[t]:
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                id_ = transition_id[arc]
                if id_ != 0 and weights[arc] > 0.0 and labels[id_] == labels[said[t]]:
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
    """Scaled costs of arcs, float64[A].

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A].
        graph_cost: float32[A].
        pdf: int32[ids + 1].
        log_likes: [T, P].
        scales: factors on acoustic and graph scores.
    """
    cost = np.empty(len(transition_id))
    for s in range(len(frame)):
        t = frame[s]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            of_graph, id_ = graph_cost[arc], transition_id[arc]
            # Scale 0 times inf would be no number.
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
    """Sum the weights of arcs by frame and pdf.

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A].
        weights: float64[A].
        pdf: int32[ids + 1].
        scale: factor.
        gradient: [T, P], added to.
    """
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
