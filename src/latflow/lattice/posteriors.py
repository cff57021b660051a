"""Posteriors by frame: which transition-ids (or pdf-ids) hold a frame, and how much.

`FramePosteriors` is Kaldi's `Posterior`: for each frame a list of (id, weight). Weights
are occupancies in [0, 1] if they come from a lattice, and have a sign if they are the
derivative of a criterion. Ids of a frame ascend; an id comes once unless said
otherwise.

Public: `FramePosteriors`, `posteriors`, `alignment_posteriors`, `mmi_posteriors`,
`check_alignment`, `check_ids`; archives: `latflow.lattice.posterior_io`.

Source: Kaldi `hmm/posterior.{h,cc}`, `lat/lattice-functions.cc`
(`LatticeForwardBackward`, `LatticeForwardBackwardMmi`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.forward_backward import ForwardBackward, forward_backward
from latflow.lattice.lattice import Lattice


@dataclass(frozen=True, eq=False)
class FramePosteriors:
    """Weights of ids by frame; T frames, N entries.

    Attributes:
        frame_begin: int64[T + 1]; entries of frame t are frame_begin[t] ...
            frame_begin[t + 1] - 1.
        ids: int32[N], transition-ids, or pdf-ids after `to_pdfs`; ascending in a frame.
        weights: float64[N].
    """

    frame_begin: np.ndarray
    ids: np.ndarray
    weights: np.ndarray

    @property
    def num_frames(self) -> int:
        """T."""
        return len(self.frame_begin) - 1

    def frame(self, t: int) -> list[tuple[int, float]]:
        """The (id, weight) pairs of a frame."""
        part = slice(self.frame_begin[t], self.frame_begin[t + 1])
        ids, weights = self.ids[part].tolist(), self.weights[part].tolist()
        return list(zip(ids, weights, strict=True))

    def frame_of_entry(self) -> np.ndarray:
        """The frame that each entry belongs to, int32[N]."""
        frames = np.arange(self.num_frames, dtype=np.int32)
        return np.repeat(frames, np.diff(self.frame_begin))

    def frame_sums(self) -> np.ndarray:
        """Sum of the weights of each frame, float64[T]."""
        return np.bincount(self.frame_of_entry(), self.weights, self.num_frames)

    def sum(self) -> float:
        """Sum of all weights."""
        return float(self.weights.sum())

    def occupancy(self, num_ids: int) -> np.ndarray:
        """Sum of the weights of each id over the frames, float64[num_ids]."""
        return np.bincount(self.ids, self.weights, num_ids)

    def scaled(self, scale: float) -> FramePosteriors:
        """All weights times a factor; zeros are kept (Kaldi's `ScalePosterior`)."""
        return FramePosteriors(self.frame_begin, self.ids, self.weights * scale)

    def to_pdfs(self, model: TransitionModel) -> FramePosteriors:
        """Sum the weights of the transition-ids of each pdf, by frame.

        Entries that cancel to 0 are left out (Kaldi's `ConvertPosteriorToPdfs`).

        Args:
            model: what the ids are transition-ids of.

        Raises:
            UserError: an id is no transition-id of the model.
        """
        check_ids(self.ids, model, "posteriors")
        return _merged(self.frame_begin, model.pdf[self.ids], self.weights)

    def to_matrix(self, num_ids: int) -> np.ndarray:
        """The weights as a matrix, float32[T, num_ids].

        Args:
            num_ids: columns; with pdf-ids, the number of pdfs.

        Raises:
            UserError: an id is `num_ids` or higher.
        """
        if len(self.ids) and self.ids.max() >= num_ids:
            raise UserError(
                f"posteriors with id {self.ids.max()}, where only 0 to {num_ids - 1} "
                "are expected",
                remedy="use the model that the lattices were made with",
            )
        matrix = np.zeros((self.num_frames, num_ids), np.float32)
        _scatter(self.frame_begin, self.ids, self.weights, matrix)
        return matrix

    def joined_with(self, second: FramePosteriors, *, merge: bool) -> FramePosteriors:
        """Put the entries of two sets together (Kaldi's `MergePosteriors`).

        Args:
            second: of as many frames.
            merge: whether to sum weights of the same id and leave out those that cancel
                to 0; if not, an id can come twice in a frame.

        Raises:
            UserError: the numbers of frames differ.
        """
        if self.num_frames != second.num_frames:
            raise UserError(
                f"posteriors of {self.num_frames} and of {second.num_frames} frames",
                remedy="make both from the same features",
            )
        begin = self.frame_begin + second.frame_begin
        frames = self.frame_of_entry(), second.frame_of_entry()
        # An entry moves behind those of the other set that come before it.
        at = (
            np.arange(len(self.ids)) + second.frame_begin[frames[0]],
            np.arange(len(second.ids)) + self.frame_begin[frames[1] + 1],
        )
        ids, weights = np.empty(begin[-1], np.int32), np.empty(begin[-1])
        for places, part in zip(at, (self, second), strict=True):
            ids[places], weights[places] = part.ids, part.weights
        if merge:
            return _merged(begin, ids, weights)
        order = np.lexsort(
            (weights, ids, np.repeat(np.arange(self.num_frames), np.diff(begin)))
        )
        return FramePosteriors(begin, ids[order], weights[order])

    def without_frames(self, is_dropped: np.ndarray) -> FramePosteriors:
        """The same with nothing left in some frames.

        Args:
            is_dropped: bool[T].
        """
        counts = np.where(is_dropped, 0, np.diff(self.frame_begin))
        kept = ~is_dropped[self.frame_of_entry()]
        begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return FramePosteriors(begin, self.ids[kept], self.weights[kept])


def posteriors(lattice: Lattice, what: ForwardBackward | np.ndarray) -> FramePosteriors:
    """Sum posteriors of arcs by frame and transition-id.

    Args:
        lattice: a raw lattice; A arcs.
        what: the result of `forward_backward`, or any weights of arcs, float64[A].

    Returns:
        Transition-ids with a weight other than 0, ascending in each frame. Posteriors
        of a frame sum to 1.

    Source: Kaldi `util/stl-utils.h` (`MergePairVectorSumming`).
    """
    weights = what.arc_posterior if isinstance(what, ForwardBackward) else what
    return FramePosteriors(
        *_merge_arcs(
            lattice.arc_begin,
            lattice.frame,
            lattice.transition_id,
            np.asarray(weights, np.float64),
            lattice.num_frames,
        )
    )


def alignment_posteriors(alignment: np.ndarray) -> FramePosteriors:
    """Weight 1 for the transition-id of each frame (Kaldi's `AlignmentToPosterior`).

    Args:
        alignment: int32[T].
    """
    num_frames = len(alignment)
    begin = np.arange(num_frames + 1, dtype=np.int64)
    ids = np.asarray(alignment, np.int32)
    return FramePosteriors(begin, ids, np.ones(num_frames))


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
    """The alignment minus the lattice: derivative of the MMI criterion.

    The criterion is the score of the aligned path (numerator) minus the total of the
    lattice (denominator); the weights are its derivative to the log-likelihoods of each
    frame times acoustic_scale.

    Args:
        lattice: denominator, T frames.
        alignment: transition-ids of the words that were said, int32[T].
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
    check_ids(alignment, model, "an alignment")


def check_ids(
    ids: np.ndarray,
    model: TransitionModel,
    what: str,
    *,
    lowest: int = 1,
) -> None:
    """Raise UserError if an id is not one of the model's.

    Args:
        ids: transition-ids.
        model: the model.
        what: what error messages call the holder of the ids.
        lowest: lowest id allowed.
    """
    if len(ids) and not (lowest <= ids.min() and ids.max() <= model.num_transition_ids):
        raise UserError(
            f"{what} with transition-ids {ids.min()} to {ids.max()}, where the model "
            f"has 1 to {model.num_transition_ids}",
            remedy="use the model that the lattices and alignments were made with",
        )


def _merged(begin: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> FramePosteriors:
    """Sum entries of the same id in a frame, sort them, leave out zeros."""
    return FramePosteriors(*_merge(begin, ids, weights))


@njit(cache=True, nogil=True)
def _merge_arcs(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    weights: np.ndarray,
    num_frames: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum arcs by frame and transition-id; see `_merge`.

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A]; 0 where there is none.
        weights: float64[A].
        num_frames: T; dead ends can be longer.

    Returns:
        The fields of `FramePosteriors`.
    """
    first_state, states = _states_by_frame(frame, num_frames)
    begin = np.zeros(num_frames + 1, np.int64)
    ids, sums = np.empty(len(weights), np.int32), np.empty(len(weights))
    bins = np.zeros(_highest(transition_id) + 1)
    is_listed = np.zeros(len(bins), np.bool_)
    filled = 0
    for t in range(num_frames):
        for k in range(first_state[t], first_state[t + 1]):
            s = states[k]
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                id_ = transition_id[arc]
                if id_ != 0:
                    bins[id_] += weights[arc]
                    ids[filled] = id_
                    filled += not is_listed[id_]
                    is_listed[id_] = True
        filled = _empty_bins(bins, is_listed, ids, sums, begin[t], filled)
        begin[t + 1] = filled
    return begin, ids[:filled].copy(), sums[:filled].copy()


@njit(cache=True, nogil=True)
def _states_by_frame(
    frame: np.ndarray, num_frames: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort states by their frame (a counting sort); those beyond the last are left out.

    Args:
        frame: int32[S].
        num_frames: T.

    Returns:
        (int64[T + 1], where those of each frame begin; the states in order, int32).
    """
    begin = np.zeros(num_frames + 1, np.int64)
    for s in range(len(frame)):
        if frame[s] < num_frames:
            begin[frame[s] + 1] += 1
    for t in range(num_frames):
        begin[t + 1] += begin[t]
    states = np.empty(begin[-1], np.int32)
    free = begin.copy()
    for s in range(len(frame)):
        if frame[s] < num_frames:
            states[free[frame[s]]] = s
            free[frame[s]] += 1
    return begin, states


@njit(cache=True, nogil=True)
def _merge(
    begin: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum entries of the same id in a frame, sort them, leave out zeros.

    Args:
        begin: int64[T + 1].
        ids: int32[N], in any order within a frame.
        weights: float64[N].

    Returns:
        The same three for the entries that are left.
    """
    new_begin = np.zeros_like(begin)
    new_ids, sums = np.empty_like(ids), np.empty_like(weights)
    bins = np.zeros(_highest(ids) + 1)
    is_listed = np.zeros(len(bins), np.bool_)
    filled = 0
    for t in range(len(begin) - 1):
        for n in range(begin[t], begin[t + 1]):
            bins[ids[n]] += weights[n]
            new_ids[filled] = ids[n]
            filled += not is_listed[ids[n]]
            is_listed[ids[n]] = True
        filled = _empty_bins(bins, is_listed, new_ids, sums, new_begin[t], filled)
        new_begin[t + 1] = filled
    return new_begin, new_ids[:filled].copy(), sums[:filled].copy()


@njit(cache=True, nogil=True)
def _highest(ids: np.ndarray) -> int:
    """The highest of some ids, -1 if there is none."""
    highest = -1
    for n in range(len(ids)):
        highest = max(highest, ids[n])
    return highest


@njit(cache=True, nogil=True)
def _empty_bins(
    bins: np.ndarray,
    is_listed: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Sort the ids listed for a frame and take their sums, zeros left out.

    Args:
        bins: float64[highest id + 1]; left empty.
        is_listed: bool[highest id + 1]; left unset.
        ids: int32[N]; those from `first` to before `last` are sorted.
        weights: float64[N], filled in alongside.
        first: where the frame begins.
        last: where it ends.

    Returns:
        Where it ends without zeros.
    """
    ids[first:last].sort()
    filled = first
    for n in range(first, last):
        id_ = ids[n]
        if bins[id_] != 0.0:
            ids[filled], weights[filled] = id_, bins[id_]
            filled += 1
        bins[id_], is_listed[id_] = 0.0, False
    return filled


@njit(cache=True, nogil=True)
def _scatter(
    begin: np.ndarray, ids: np.ndarray, weights: np.ndarray, matrix: np.ndarray
) -> None:
    """Add entries to the columns of their ids in the rows of their frames.

    Args:
        begin: int64[T + 1].
        ids: int32[N].
        weights: float64[N].
        matrix: float32[T, columns], added to.
    """
    for t in range(len(begin) - 1):
        for n in range(begin[t], begin[t + 1]):
            matrix[t, ids[n]] += weights[n]
