"""Posteriors by frame: which transition-ids (or pdf-ids) hold a frame, and how much.

`FramePosteriors` is Kaldi's `Posterior`: for each frame a list of (id, weight). Weights
are occupancies in [0, 1] if they come from a lattice, and have a sign if they are the
derivative of a criterion. Ids of a frame ascend; an id comes once unless stated
otherwise.

In Kaldi's text archives an utterance is a line with `[ id weight id weight ... ] ` for
each frame. Binary is the number of frames, then for each frame the number of its pairs
and the pairs, each number behind a byte with its width; weights are float32.

Source: Kaldi `hmm/posterior.{h,cc}`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.hmm.alignment import check_ids
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.kaldi.io import BINARY_MARK, KaldiReader, read_archive
from latflow.lattice.io.archives import opened
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import ForwardBackward

_PAIR = np.dtype(
    [("id_width", "i1"), ("id", "<i4"), ("weight_width", "i1"), ("weight", "<f4")]
)
_WIDTH = 4  # bytes of an int32 and of a float32
_WIDTH_AND_SIZE = struct.Struct("<bi")


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
        """Return the (id, weight) pairs of a frame."""
        part = slice(self.frame_begin[t], self.frame_begin[t + 1])
        ids, weights = self.ids[part].tolist(), self.weights[part].tolist()
        return list(zip(ids, weights, strict=True))

    def frame_of_entry(self) -> np.ndarray:
        """Return the frame that each entry belongs to, int32[N]."""
        frames = np.arange(self.num_frames, dtype=np.int32)
        return np.repeat(frames, np.diff(self.frame_begin))

    def sum(self) -> float:
        """Sum all weights."""
        return float(self.weights.sum())

    def occupancy(self, num_ids: int) -> np.ndarray:
        """Sum the weights of each id over the frames, float64[num_ids]."""
        return np.bincount(self.ids, self.weights, num_ids)

    def scaled(self, scale: float) -> FramePosteriors:
        """Multiply all weights; zeros are kept (Kaldi's `ScalePosterior`)."""
        return FramePosteriors(self.frame_begin, self.ids, self.weights * scale)

    def to_pdfs(self, model: TransitionModel) -> FramePosteriors:
        """Sum the weights of the transition-ids of each pdf, by frame.

        Entries that cancel to 0 are left out (Kaldi's `ConvertPosteriorToPdfs`).

        Args:
            model: what the ids are transition-ids of.

        Raises:
            UserError: an id is not a transition-id of the model.
        """
        check_ids(self.ids, model, "posteriors")
        return _merged(self.frame_begin, model.pdf[self.ids], self.weights)

    def to_matrix(self, num_ids: int) -> np.ndarray:
        """Return the weights as a matrix, float32[T, num_ids].

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
        for rows, part in zip(at, (self, second), strict=True):
            ids[rows], weights[rows] = part.ids, part.weights
        if merge:
            return _merged(begin, ids, weights)
        order = np.lexsort(
            (weights, ids, np.repeat(np.arange(self.num_frames), np.diff(begin)))
        )
        return FramePosteriors(begin, ids[order], weights[order])

    def without_frames(self, is_dropped: np.ndarray) -> FramePosteriors:
        """Return the posteriors with nothing left in some frames.

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
    sorted_arcs = _arcs_by_frame(
        lattice.arc_begin,
        lattice.frame,
        lattice.transition_id,
        np.asarray(weights, np.float64),
        lattice.num_frames,
    )
    return _merged(*sorted_arcs)


def alignment_posteriors(alignment: np.ndarray) -> FramePosteriors:
    """Give weight 1 to the transition-id of each frame (`AlignmentToPosterior`).

    Args:
        alignment: int32[T].
    """
    num_frames = len(alignment)
    begin = np.arange(num_frames + 1, dtype=np.int64)
    ids = np.asarray(alignment, np.int32)
    return FramePosteriors(begin, ids, np.ones(num_frames))


def _merged(begin: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> FramePosteriors:
    """Sum entries of the same id in a frame, sort them, leave out zeros."""
    return FramePosteriors(*_merge(begin, ids, weights))


@njit(cache=True, nogil=True)
def _arcs_by_frame(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    weights: np.ndarray,
    num_frames: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort arcs with a transition-id by their frame (a counting sort).

    Args:
        arc_begin: int64[S + 1].
        frame: int32[S].
        transition_id: int32[A]; 0 without one.
        weights: float64[A].
        num_frames: T; dead ends can be longer, and are left out.

    Returns:
        int64[T + 1], int32[N], float64[N]: the arguments of `_merge`.
    """
    begin = np.zeros(num_frames + 1, np.int64)
    for s in range(len(frame)):
        if frame[s] < num_frames:
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                begin[frame[s] + 1] += transition_id[arc] != 0
    for t in range(num_frames):
        begin[t + 1] += begin[t]
    ids, sorted_weights = np.empty(begin[-1], np.int32), np.empty(begin[-1])
    free = begin.copy()
    for s in range(len(frame)):
        if frame[s] < num_frames:
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                if transition_id[arc] != 0:
                    ids[free[frame[s]]] = transition_id[arc]
                    sorted_weights[free[frame[s]]] = weights[arc]
                    free[frame[s]] += 1
    return begin, ids, sorted_weights


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
    bins = np.zeros(ids.max() + 1 if len(ids) else 0)
    is_listed = np.zeros(len(bins), np.bool_)
    filled = 0
    for t in range(len(begin) - 1):
        last = filled
        for n in range(begin[t], begin[t + 1]):
            bins[ids[n]] += weights[n]
            new_ids[last] = ids[n]
            last += not is_listed[ids[n]]
            is_listed[ids[n]] = True
        new_ids[filled:last].sort()
        for n in range(filled, last):
            id_ = new_ids[n]
            if bins[id_] != 0.0:
                new_ids[filled], sums[filled] = id_, bins[id_]
                filled += 1
            bins[id_], is_listed[id_] = 0.0, False
        new_begin[t + 1] = filled
    return new_begin, new_ids[:filled].copy(), sums[:filled].copy()


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


def read_posteriors(path: str | Path) -> Iterator[tuple[str, FramePosteriors]]:
    """Yield (utterance, posteriors) of an archive, binary or text, `.gz` or not.

    Raises:
        UserError: the file is missing, truncated or garbled.
    """
    return read_archive(path, _read_item)


def write_posteriors(
    path: str | Path,
    items: Iterable[tuple[str, FramePosteriors]],
    *,
    binary: bool = True,
) -> None:
    """Write a Kaldi archive of posteriors atomically; weights as float32.

    Args:
        path: the archive; gzipped if its name ends in `.gz`.
        items: (utterance, posteriors).
        binary: Kaldi's binary form, or its text form.
    """
    as_item = _as_bytes if binary else _as_text
    with atomic_output(path) as temporary, opened(temporary, "wb") as stream:
        for utterance, item in items:
            stream.write(as_item(utterance, item))


def _read_item(reader: KaldiReader) -> FramePosteriors:
    """Read the posteriors of an utterance whose key has been read."""
    return _read_binary(reader) if reader.binary else _read_text(reader)


def _read_binary(reader: KaldiReader) -> FramePosteriors:
    """Read frames of pairs, each number with its width."""
    num_frames = reader.int32()
    if num_frames < 0:
        reader.fail(f"a negative number of frames: {num_frames}")
    frames = []
    for _ in range(num_frames):
        count = reader.int32()
        if count < 0:
            reader.fail(f"a negative number of posteriors: {count}")
        frames.append(np.frombuffer(reader.take(count * _PAIR.itemsize), _PAIR))
    pairs = np.concatenate([np.empty(0, _PAIR), *frames])
    widths = pairs["id_width"], pairs["weight_width"]
    if any((width != _WIDTH).any() for width in widths):
        reader.fail("posteriors whose numbers have not four bytes")
    begin = np.cumsum([0, *(len(frame) for frame in frames)]).astype(np.int64)
    return FramePosteriors(
        begin, pairs["id"].astype(np.int32), pairs["weight"].astype(np.float64)
    )


def _read_text(reader: KaldiReader) -> FramePosteriors:
    """Read one line of frames in brackets."""
    words = np.array(reader.take_line().split(), np.bytes_)
    opens, closes = np.flatnonzero(words == b"["), np.flatnonzero(words == b"]")
    is_number = np.ones(len(words), np.bool_)
    is_number[opens] = is_number[closes] = False
    # Each bracket closes before the next opens, and nothing stands between the two.
    if len(opens) != len(closes) or not (
        (opens < closes).all()
        and (opens[1:] == closes[:-1] + 1).all()
        and is_number.sum() == (closes - opens - 1).sum()
    ):
        reader.fail("posteriors that are not frames in brackets '[ id weight ... ]'")
    counts = closes - opens - 1
    numbers = words[is_number]
    if (counts % 2).any():
        reader.fail("a frame of posteriors that is not a row of pairs")
    try:
        ids, weights = numbers[0::2].astype(np.int32), numbers[1::2].astype(np.float64)
    except (OverflowError, ValueError) as error:
        reader.fail(f"posteriors with a word that is not a number: {error}")
    begin = np.concatenate([[0], np.cumsum(counts // 2)]).astype(np.int64)
    return FramePosteriors(begin, ids, weights)


def _as_bytes(utterance: str, item: FramePosteriors) -> bytes:
    """Return an item of a binary archive: key, mark, frames."""
    pairs = np.empty(len(item.ids), _PAIR)
    pairs["id_width"] = pairs["weight_width"] = _WIDTH
    pairs["id"], pairs["weight"] = item.ids, item.weights
    raw, begin = pairs.tobytes(), item.frame_begin.tolist()
    parts = [
        f"{utterance} ".encode(),
        BINARY_MARK,
        _WIDTH_AND_SIZE.pack(_WIDTH, len(begin) - 1),
    ]
    for first, last in pairwise(begin):
        parts.append(_WIDTH_AND_SIZE.pack(_WIDTH, last - first))
        parts.append(raw[first * _PAIR.itemsize : last * _PAIR.itemsize])
    return b"".join(parts)


def _as_text(utterance: str, item: FramePosteriors) -> bytes:
    """Return a line of a text archive; weights with seven digits, as Kaldi's."""
    weights = item.weights.astype(np.float32).tolist()
    pairs = [
        f"{id_} {weight:.7g} "
        for id_, weight in zip(item.ids.tolist(), weights, strict=True)
    ]
    begin = item.frame_begin.tolist()
    frames = [f"[ {''.join(pairs[first:last])}] " for first, last in pairwise(begin)]
    return f"{utterance} {''.join(frames)}\n".encode()
