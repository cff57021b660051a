"""Derivatives of discriminative criteria on a lattice: MMI, sMBR, MPFE; boosting.

MMI compares the alignment of the reference (numerator) with all paths of the lattice
(denominator). sMBR and MPFE compare each path with that alignment, frame by frame: a
frame is right if it has the same pdf (sMBR) or the same phone (MPFE). The expected
accuracy is

    sum over paths of posterior(path) * number of right frames,

and its derivative to the scaled score of an arc is

    posterior(arc) * (mean accuracy of the paths over this arc - expected accuracy).

Silence, which is easy to get right and worth little, counts by one of two rules:

* `one_silence_class`: all silence phones are the same; silence for silence is right.
* else (the older rule): a frame in a silence phone is never right.

Source: Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackwardMmi`,
`LatticeForwardBackwardMpeVariants`, `LatticeBoost`); Povey 2003, "Discriminative
training for large vocabulary speech recognition", chapter 6 (MPE); Gibson, Hain 2006,
"Hypothesis spaces for minimum Bayes risk training" (sMBR).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from latflow.errors import UserError
from latflow.hmm.alignment import check_ids
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import expected_arc_score, forward, forward_backward
from latflow.lattice.posteriors import (
    FramePosteriors,
    alignment_posteriors,
    posteriors,
)

Criterion = Literal["smbr", "mpfe"]


def mmi_posteriors(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    *,
    drop_frames: bool = False,
    convert_to_pdf_ids: bool = True,
    cancel: bool = True,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> tuple[float, FramePosteriors]:
    """Compute the derivative of the MMI criterion: the alignment minus the lattice.

    The criterion is the score of the aligned path (numerator) minus the total of the
    lattice (denominator); the weights are its derivative to the log-likelihoods of each
    frame times acoustic_scale.

    Args:
        lattice: denominator, T frames.
        alignment: transition-ids of the reference words, int32[T].
        model: what they are ids of.
        drop_frames: whether to empty frames where the lattice does not hold the
            aligned id (the pdf if converted); Kaldi's "frame rejection".
        convert_to_pdf_ids: whether to sum by pdf instead of by transition-id.
        cancel: whether to add up an id's numerator and denominator; if not, both are
            listed.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        (total log-likelihood of the lattice, signed weights).

    Raises:
        UserError: as `forward_backward`; or the alignment has another number of frames
            than the lattice, or an id that the model lacks.

    Source: Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackwardMmi`),
    `hmm/posterior.cc` (`MergePosteriors`); Vesely et al. 2013, "Sequence-discriminative
    training of deep neural networks" (frame rejection).
    """
    check_alignment(lattice, alignment, model)
    result = forward_backward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    numerator = alignment_posteriors(alignment)
    denominator = posteriors(lattice, result).scaled(-1.0)
    if convert_to_pdf_ids:
        numerator, denominator = numerator.to_pdfs(model), denominator.to_pdfs(model)
    difference = numerator.joined_with(denominator, merge=cancel)
    if drop_frames:
        aligned = np.repeat(numerator.ids, np.diff(denominator.frame_begin))
        is_held = np.zeros(lattice.num_frames, np.bool_)
        is_held[denominator.frame_of_entry()[denominator.ids == aligned]] = True
        difference = difference.without_frames(~is_held)
    return result.log_like, difference


def check_alignment(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
) -> None:
    """Raise UserError unless alignment, lattice and model belong together.

    Args:
        lattice: T frames.
        alignment: transition-ids, int32[T].
        model: what they are ids of.
    """
    if len(alignment) != lattice.num_frames:
        raise UserError(
            f"an alignment of {len(alignment)} frames and a lattice of "
            f"{lattice.num_frames} frames",
            remedy="make both from the same features",
        )
    check_ids(lattice.transition_id, model, "a lattice", lowest=0)
    check_ids(alignment, model)


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
    """Compute the expected number of right frames, and its derivative.

    Args:
        lattice: of T frames, with a path to a final state.
        alignment: transition-ids of the reference, int32[T].
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
    expected, weights = expected_arc_score(sums, scores)
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
    """Return 1 for right arcs, 0 for others, float64[A]; 0 where none is consumed.

    Args:
        lattice: as for `expected_accuracy`, and so on; ids are not checked.
        alignment: of the reference.
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
        _is_silent_id(model, silence_phones),
        one_silence_class,
    )


def _is_silent_id(
    model: TransitionModel, silence_phones: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Find the transition-ids that belong to a silence phone, bool[ids + 1]."""
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
    """Return which arcs are right.

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
        reference = alignment[frame[s]]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            here = transition_id[arc]
            if here == 0:
                continue
            is_right = label[here] == label[reference]
            if one_silence_class:
                is_right = is_right or (is_silent[here] and is_silent[reference])
            else:
                is_right = is_right and not is_silent[here]
            accuracy[arc] = 1.0 if is_right else 0.0
    return accuracy


def boost(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    *,
    b: float,
    silence_phones: Sequence[int] | np.ndarray,
    max_silence_error: float = 0.0,
) -> Lattice:
    """Add b to the log score of each frame in a wrong phone (off its graph cost).

    Training against the boosted lattice asks for a margin that grows with the number of
    errors (boosted MMI).

    Args:
        lattice: of T frames.
        alignment: transition-ids of the reference, int32[T].
        model: what they are ids of.
        b: nats for a wrong frame; 0.05 to 0.1 is usual, at an acoustic scale of 0.1.
        silence_phones: phone ids.
        max_silence_error: share of b for frames that are silence in the lattice, and
            wrong; 0 to 1.

    Raises:
        UserError: the alignment has another number of frames than the lattice, an id is
            not the model's, or `max_silence_error` is out of range.

    Numerics: float32, the same bits as Kaldi's.

    Source: Kaldi `lat/lattice-functions.cc` (`LatticeBoost`),
        `latbin/lattice-boost-ali.cc`; Povey et al. 2008, "Boosted MMI for model and
        feature-space discriminative training".
    """
    if not 0.0 <= max_silence_error <= 1.0:
        raise UserError(
            f"max_silence_error is {max_silence_error}", remedy="set it to 0 ... 1"
        )
    check_alignment(lattice, alignment, model)
    ids, emits = lattice.transition_id, lattice.transition_id != 0
    # States behind the last frame (and dead ends beyond it) have no reference id: 0.
    frame = np.minimum(lattice.frame, lattice.num_frames)
    reference = np.append(np.asarray(alignment, np.int32), np.int32(0))[frame]
    is_wrong = emits & (model.phone[ids] != model.phone[reference][lattice.source()])
    error = np.where(_is_silent_id(model, silence_phones)[ids], max_silence_error, 1.0)
    error = np.where(is_wrong, error, 0.0).astype(np.float32)
    return replace(lattice, graph_cost=lattice.graph_cost + np.float32(-b) * error)
