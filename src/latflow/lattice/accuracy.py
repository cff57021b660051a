"""The accuracy that a lattice lets expect, and its derivative: sMBR and MPFE.

A path is compared with the alignment of what was said, frame by frame: a frame is right
if it has the same pdf (sMBR) or the same phone (MPFE). The expected accuracy is

    sum over paths of posterior(path) * number of right frames,

and its derivative to the scaled score of an arc is

    posterior(arc) * (mean accuracy of the paths over this arc - expected accuracy).

Silence, which is easy to get right and worth little, is treated in one of two ways:

* `one_silence_class`: all silence phones are the same; silence for silence is right.
* else (the older way): a frame in a silence phone is never right.

The means are had from the sums of forward-backward: the mean accuracy of the ways to a
state is the mean over its incoming arcs, weighted by their parts in the state's sum.
There are no further exponentials.

Public: `expected_accuracy`, `arc_accuracies`, `expected_arc_score`, `Criterion`.

Source: Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackwardMpeVariants`); Povey
2003, "Discriminative training for large vocabulary speech recognition", chapter 6
(MPE); Gibson, Hain 2006, "Hypothesis spaces for minimum Bayes risk training" (sMBR).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.forward_backward import forward
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import FramePosteriors, check_alignment, posteriors

Criterion = Literal["smbr", "mpfe"]


def expected_accuracy(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    *,
    criterion: Criterion,
    silence_phones: Sequence[int] | np.ndarray,
    one_silence_class: bool = True,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> tuple[float, FramePosteriors]:
    """Expected number of right frames, and its derivative.

    Args:
        lattice: of T frames, with a path to a final state.
        alignment: transition-ids of what was said, int32[T].
        model: what they are ids of.
        criterion: "smbr" compares pdfs, "mpfe" phones.
        silence_phones: phone ids.
        one_silence_class: how silence counts, see the module's description.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        (expected accuracy in frames, 0 to T; its derivative to the scaled scores by
        frame and transition-id, so that the derivative to a log-likelihood is
        acoustic_scale times as much). The weights of a frame sum to 0.

    Raises:
        UserError: no path leads to a final state, a cost is NaN or -inf, the alignment
            has another number of frames than the lattice, or an id is not the model's.
    """
    check_alignment(lattice, alignment, model)
    sums = forward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    scores = arc_accuracies(
        lattice,
        alignment,
        model,
        criterion=criterion,
        silence_phones=silence_phones,
        one_silence_class=one_silence_class,
    )
    expected, weights = expected_arc_score(
        lattice.arc_begin,
        lattice.next_state,
        sums.weight,
        sums.final_weight,
        sums.total,
        scores,
    )
    return expected, posteriors(lattice, weights)


def arc_accuracies(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    *,
    criterion: Criterion,
    silence_phones: Sequence[int] | np.ndarray,
    one_silence_class: bool = True,
) -> np.ndarray:
    """Tell which arcs are right, float64[A]: 1 or 0; 0 where no frame is consumed.

    Args:
        lattice: as for `expected_accuracy`, and so on; ids are not checked.
        alignment: of what was said.
        model: what ids are of.
        criterion: what is compared.
        silence_phones: phone ids.
        one_silence_class: how silence counts.
    """
    if criterion not in ("smbr", "mpfe"):
        raise UserError(
            f"an unknown criterion '{criterion}'", remedy="choose smbr or mpfe"
        )
    return _arc_accuracies(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        np.asarray(alignment, np.int32),
        model.pdf if criterion == "smbr" else model.phone,
        is_silent_id(model, silence_phones),
        one_silence_class,
    )


def is_silent_id(
    model: TransitionModel, silence_phones: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Whether each transition-id belongs to a silence phone, bool[ids + 1]."""
    is_silence = np.zeros(int(model.phone.max()) + 1, np.bool_)
    phones = np.asarray(silence_phones, np.int64)
    is_silence[phones[phones < len(is_silence)]] = True
    return is_silence[model.phone]


@njit(cache=True, nogil=True)
def _arc_accuracies(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    alignment: np.ndarray,
    label: np.ndarray,
    is_silent: np.ndarray,
    one_silence_class: bool,  # noqa: FBT001 - a kernel has no keywords
) -> np.ndarray:
    """Tell which arcs are right.

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A].
        alignment: int32[T].
        label: int32[ids + 1], the pdf or phone of each transition-id.
        is_silent: bool[ids + 1].
        one_silence_class: how silence counts.
    """
    accuracy = np.zeros(len(transition_id))
    for s in range(len(frame)):
        if frame[s] >= len(alignment):
            continue  # the last state, or a dead end that is longer than the utterance
        said = alignment[frame[s]]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            heard = transition_id[arc]
            if heard == 0:
                continue
            is_right = label[heard] == label[said]
            if one_silence_class:
                is_right = is_right or (is_silent[heard] and is_silent[said])
            else:
                is_right = is_right and not is_silent[heard]
            accuracy[arc] = 1.0 if is_right else 0.0
    return accuracy


@njit(cache=True, nogil=True)
def expected_arc_score(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
    final_weight: np.ndarray,
    total: np.ndarray,
    score: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Expectation of the summed score of the arcs of a path, and its derivative.

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        weight: float64[A], of `latflow.lattice.forward_backward.Forward`, and so on.
        final_weight: float64[S].
        total: float64[S + 1].
        score: float64[A].

    Returns:
        (expectation; its derivative to -cost of each arc, float64[A]).
    """
    end = len(final_weight)
    before = np.zeros(end + 1)  # mean score of the ways to a state; first their sum
    for s in range(end):
        ways = total[s]
        if ways > 0.0:
            before[s] /= ways
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            way = ways * weight[arc]
            before[next_state[arc]] += way * (before[s] + score[arc])
        before[end] += ways * final_weight[s] * before[s]
    expected = before[end] / total[end]
    derivative = np.empty(len(weight))
    per_way = np.zeros(end)  # posterior of a state over its sum
    after = np.zeros(end)  # mean score of the ways from a state to the end
    for s in range(end - 1, -1, -1):
        ways = total[s]
        of_state = ways * final_weight[s] / total[end]
        rest_sum = 0.0
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target = next_state[arc]
            posterior = ways * weight[arc] * per_way[target]
            rest = score[arc] + after[target]
            derivative[arc] = posterior * (before[s] + rest - expected)
            of_state += posterior
            rest_sum += posterior * rest
        if of_state > 0.0:
            per_way[s] = of_state / ways
            after[s] = rest_sum / of_state
    return expected, derivative
