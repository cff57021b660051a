"""Join features and labels: which utterances can be trained on, and why not the others.

An utterance without labels, or whose number of labels is not that of its frames, is
left out and goes into the ledger. Labels may also come at the rate of the network's
output (one for `subsampling` frames), as alignments made with such a network do.

Public: `Labelled`, `Targets`, `join`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.ledger import Ledger
from latflow.training.labels import LabelStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LengthBounds:
    """Which utterances are trained on, by their lengths.

    Attributes:
        shortest: frames, at least.
        longest: frames, at most; None = no bound.
        tolerance: frames by which labels and features may differ in number.
    """

    shortest: int = 1
    longest: int | None = None
    tolerance: int = 0


@dataclass(frozen=True)
class Targets:
    """Where the labels of the n utterances that are used lie in a store.

    Attributes:
        flat: int32, all labels of the store, read only.
        begin: int64 [n], first label of each utterance.
        count: int64 [n], its labels.
        step: int64 [n], frames of the features for one label: 1 or the subsampling.
    """

    flat: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    step: np.ndarray

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        counted: np.ndarray,
        subsampling: int,
        out: np.ndarray,
    ) -> None:
        """Write the targets of pieces.

        Args:
            utterance: int64 [B], positions among the n utterances.
            first: int64 [B], first frame of each piece.
            counted: int64 [B, 2], counted frames: the first, and that after the last.
            subsampling: frames of the features for one of the output.
            out: int64 [B, T'], written as a whole.
        """
        begin, count = self.begin[utterance], self.count[utterance]
        places = np.stack((begin, count, self.step[utterance], first), axis=1)
        _gather(self.flat, places, counted, subsampling, out)


@dataclass(frozen=True)
class Labelled:
    """The utterances that are used.

    Attributes:
        utterance: int64 [n], their numbers in the features' store, ascending.
        targets: their labels, by the name of the target.
        num_classes: classes of each target.
        num_outside: utterances outside of the bounds of length.
    """

    utterance: np.ndarray
    targets: Mapping[str, Targets]
    num_classes: Mapping[str, int]
    num_outside: int


def join(
    utt_ids: list[str],
    lengths: np.ndarray,
    labels: Mapping[str, LabelStore],
    bounds: LengthBounds,
    *,
    subsampling: int = 1,
    ledger: Ledger | None = None,
) -> Labelled:
    """Find the utterances that have all labels and lengths within the bounds.

    Those outside of the bounds are left out on purpose: counted and logged in one line,
    not in the ledger.

    Args:
        utt_ids: ids of the N utterances.
        lengths: int64 [N], frames.
        labels: label stores by the name of the target; none = features alone.
        bounds: of the lengths.
        subsampling: frames of the features for one of the output.
        ledger: where utterances that cannot be used are recorded.

    Raises:
        UserError: no utterance is left.
    """
    ledger = ledger or Ledger("join")
    is_within = lengths >= bounds.shortest
    if bounds.longest is not None:
        is_within &= lengths <= bounds.longest
    found = {
        name: _Found.of(utt_ids, lengths, store, bounds.tolerance, subsampling)
        for name, store in labels.items()
    }
    is_used = is_within.copy()
    for name, one in found.items():
        for i in np.flatnonzero(is_within & (one.step == 0)):
            ledger.record(utt_ids[i], one.reason(name, int(i), int(lengths[i])))
        is_used &= one.step > 0
    utterance = np.flatnonzero(is_used)
    num_outside = int((~is_within).sum())
    if num_outside:
        log.info("%d utterances are too short or too long to be used", num_outside)
    if not len(utterance):
        raise UserError(
            f"none of {len(utt_ids)} utterances can be used: {num_outside} are outside "
            "of the bounds of length, the others have no fitting labels",
            remedy="check that features and alignments are of the same split",
        )
    targets = {
        name: one.targets(labels[name], utterance) for name, one in found.items()
    }
    num_classes = {name: store.num_classes for name, store in labels.items()}
    return Labelled(utterance, targets, num_classes, num_outside)


@dataclass(frozen=True)
class _Found:
    """Labels of all N utterances of the features.

    Attributes:
        place: int64 [N], number of the utterance in the label store, -1 = not there.
        count: int64 [N], its labels.
        step: int64 [N], frames for one label; 0 = labels do not fit.
    """

    place: np.ndarray
    count: np.ndarray
    step: np.ndarray

    @staticmethod
    def of(
        utt_ids: list[str],
        lengths: np.ndarray,
        store: LabelStore,
        tolerance: int,
        subsampling: int,
    ) -> _Found:
        """Look the utterances up."""
        places = {utt_id: i for i, utt_id in enumerate(store.utt_ids)}
        place = np.array([places.get(u, -1) for u in utt_ids], np.int64)
        count = np.append(np.diff(store.begin), 0)[place]
        step = np.zeros(len(place), np.int64)
        step[np.abs(count - -(-lengths // subsampling)) <= tolerance] = subsampling
        step[np.abs(count - lengths) <= tolerance] = 1
        step[place < 0] = 0
        return _Found(place, count, step)

    def reason(self, name: str, i: int, length: int) -> str:
        """Why utterance i cannot be used."""
        if self.place[i] < 0:
            return f"has no labels ({name})"
        return f"has {self.count[i]} labels ({name}), but {length} frames"

    def targets(self, store: LabelStore, utterance: np.ndarray) -> Targets:
        """Those of the utterances that are used."""
        begin = store.begin[self.place[utterance]]
        flat = store.flat.view()
        flat.flags.writeable = False
        return Targets(flat, begin, self.count[utterance], self.step[utterance])


@njit(cache=True, nogil=True)
def _gather(
    flat: np.ndarray,
    places: np.ndarray,
    counted: np.ndarray,
    subsampling: int,
    out: np.ndarray,
) -> None:
    """out[b, j] = label of frame first[b] + j x subsampling if it is counted, else -1.

    Args:
        flat: int32, all labels.
        places: int64 [B, 4]: first label of the utterance, its labels, frames for one
            label, first frame of the piece.
        counted: int64 [B, 2].
        subsampling: frames for one of the output.
        out: int64 [B, T'].
    """
    out[:] = -1
    for b in range(out.shape[0]):
        begin, count, step, first = places[b]
        for j in range(out.shape[1]):
            t = first + j * subsampling
            if counted[b, 0] <= t < counted[b, 1] and t // step < count:
                out[b, j] = flat[begin + t // step]
