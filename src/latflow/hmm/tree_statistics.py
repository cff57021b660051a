"""Statistics and questions for decision trees.

Statistics are a Gaussian for every phone in context and pdf-class. An *event* is a row
of numbers: the pdf-class, then the phones of the context window from left to right, 0
beyond the ends of the utterance. The neighbours of a context-independent phone are left
out (-1), so that no tree can ask about them. For every event seen the count, sum and
sum of squares of its frames are kept in float64; statistics of parts of the data add
up.

Questions are sets of phones, and of pdf-classes. Those on phones are found by
clustering: phones (or sets of phones that count as one, such as the word-position
variants of a phone) are split top down by the likelihood of their middle states; every
cluster met on the way, and every set itself, is a question. The language directory adds
questions about word position and silence. Pdf-classes are asked for in order: in the
first, among the first two, and so on.

Source: Kaldi `hmm/tree-accu.cc` (`AccumulateTreeStats`), `bin/acc-tree-stats.cc`,
`bin/sum-tree-stats.cc`, `bin/cluster-phones.cc`, `tree/build-tree.cc`
(`AutomaticallyObtainQuestions`), `bin/compile-questions.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.hmm.alignment import segments
from latflow.hmm.clustering import cluster_top_down, sum_groups
from latflow.hmm.event_map import PDF_CLASS
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import check_window
from latflow.jit import njit

log = logging.getLogger(__name__)

Sets = tuple[tuple[int, ...], ...]

_KEY_BITS = 57  # of an event's code that hold phones; the pdf-class has the rest
_LEFT_OUT = -1


@dataclass(frozen=True)
class StatisticsArrays:
    """The statistics of N events, sorted by event.

    Attributes:
        events: int32[N, 1 + W], pdf-class and phones of the window; -1: left out.
        moments: float64[N, 1 + 2 D], count, sums and sums of squares of the frames.
        central_position: index of the phone itself in the window.
        variance_floor: least variance of a Gaussian.
    """

    events: np.ndarray
    moments: np.ndarray
    central_position: int
    variance_floor: float

    @property
    def dim(self) -> int:
        """D, dimension of the frames."""
        return (self.moments.shape[1] - 1) // 2

    @property
    def phones(self) -> np.ndarray:
        """The phone of each event, int32[N]."""
        return self.events[:, 1 + self.central_position]

    @property
    def columns(self) -> dict[int, np.ndarray]:
        """Values of each key of an event map, int32[N] each."""
        return {PDF_CLASS + n: self.events[:, n] for n in range(self.events.shape[1])}


class TreeStatistics:
    """Accumulate Gaussian statistics of phones in context.

    Args:
        context_width: W, phones in the window, 3 for triphones.
        central_position: index of the phone itself in the window.
        variance_floor: least variance of a Gaussian when likelihoods are computed.
    """

    def __init__(
        self,
        *,
        context_width: int = 3,
        central_position: int = 1,
        variance_floor: float = 0.01,
    ) -> None:
        check_window(context_width, central_position)
        self.context_width = context_width
        self.central_position = central_position
        self.variance_floor = variance_floor
        self._bits = _KEY_BITS // context_width
        self._row_of: dict[int, int] = {}
        self._moments = np.zeros((0, 0))

    def __len__(self) -> int:
        """Return the number of events seen."""
        return len(self._row_of)

    def accumulate(
        self,
        features: np.ndarray,
        alignment: np.ndarray,
        model: TransitionModel,
        ci_phones: Collection[int],
    ) -> None:
        """Add the frames of one utterance.

        Args:
            features: float32[T, D].
            alignment: transition-ids of `model`, int32[T].
            model: the model of the alignment.
            ci_phones: context-independent phones, whose neighbours do not matter.

        Raises:
            UserError: frames and alignment differ in length, or the alignment is not
                one of whole phones; nothing has been added then.
        """
        ids = np.asarray(alignment, np.int32)
        if len(features) != len(ids):
            raise UserError(
                f"{len(features)} frames, but an alignment of {len(ids)}",
                remedy="align the utterance again with these features",
            )
        if not len(ids):
            return
        phones, _, lengths = segments(ids, model)
        codes = np.repeat(self._window_codes(phones, ci_phones), lengths)
        codes += model.pdf_class[ids].astype(np.int64) << (
            self._bits * self.context_width
        )
        distinct, event = np.unique(codes, return_inverse=True)
        rows = self._rows(distinct, features.shape[1])
        frames = np.ascontiguousarray(features, np.float32)
        _add_frames(frames, rows[event], self._moments)

    def _window_codes(
        self, phones: np.ndarray, ci_phones: Collection[int]
    ) -> np.ndarray:
        """Return one integer for the context window of each phone, int64[N]."""
        if phones.max() >= (1 << self._bits) - 1:
            raise UserError(
                f"phone {phones.max()} is too high for windows of "
                f"{self.context_width} phones",
                remedy="use a narrower context",
            )
        left = self.central_position
        right = self.context_width - 1 - left
        padded = np.pad(phones.astype(np.int64), (left, right))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.context_width)
        is_ci = np.isin(phones, list(ci_phones))
        codes = np.zeros(len(phones), np.int64)
        for position in range(self.context_width):
            values = windows[:, position]
            if position != left:
                values = np.where(is_ci, _LEFT_OUT, values)
            codes = (codes << self._bits) + values + 1
        return codes

    def _rows(self, codes: np.ndarray, dim: int) -> np.ndarray:
        """Return the rows of events in the moments, made for new events; int64[N]."""
        columns = 1 + 2 * dim
        if not len(self._moments):
            self._moments = np.zeros((64, columns))
        if self._moments.shape[1] != columns:
            raise UserError(
                f"features of {dim} dimensions among such of "
                f"{(self._moments.shape[1] - 1) // 2}",
                remedy="compute all features with one configuration",
            )
        rows = np.array(
            [self._row_of.setdefault(c, len(self._row_of)) for c in codes.tolist()],
            np.int64,
        )
        if len(self._row_of) > len(self._moments):
            grown = np.zeros((2 * len(self._row_of), columns))
            grown[: len(self._moments)] = self._moments
            self._moments = grown
        return rows

    def merge(self, other: TreeStatistics) -> None:
        """Add the statistics of another part of the data.

        Raises:
            UserError: the two have different contexts or dimensions.
        """
        mine = (self.context_width, self.central_position, self.variance_floor)
        if mine != (other.context_width, other.central_position, other.variance_floor):
            raise UserError("tree statistics of different context windows or floors")
        if not len(other):
            return
        codes = np.fromiter(other._row_of, np.int64, len(other))
        rows = self._rows(codes, (other._moments.shape[1] - 1) // 2)
        self._moments[rows] += other._moments[: len(other)]

    def arrays(self) -> StatisticsArrays:
        """Return the statistics sorted by event, whatever the order of arrival.

        Raises:
            UserError: none were found.
        """
        if not len(self):
            raise UserError(
                "no statistics for a decision tree: no utterance was aligned",
                remedy="look at the ledger of the alignment",
            )
        codes = np.fromiter(self._row_of, np.int64, len(self))
        order = np.argsort(codes)
        codes = codes[order]
        mask = (1 << self._bits) - 1
        events = np.empty((len(codes), 1 + self.context_width), np.int32)
        for position in reversed(range(self.context_width)):
            events[:, 1 + position] = (codes & mask) - 1
            codes = codes >> self._bits
        events[:, 0] = codes
        return StatisticsArrays(
            events, self._moments[order], self.central_position, self.variance_floor
        )


@njit(cache=True, nogil=True)
def _add_frames(frames: np.ndarray, rows: np.ndarray, moments: np.ndarray) -> None:
    """Add count, value and square of each frame [T, D] to its row [., 1 + 2 D]."""
    num_frames, dim = frames.shape
    for t in range(num_frames):
        row = moments[rows[t]]
        row[0] += 1.0
        for d in range(dim):
            value = np.float64(frames[t, d])
            row[1 + d] += value
            row[1 + dim + d] += value * value


@dataclass(frozen=True)
class Questions:
    """Questions for each key of an event, in the order of asking.

    Attributes:
        phones: sets of phones, for every position of the context window.
        pdf_classes: sets of pdf-classes.
    """

    phones: Sets
    pdf_classes: Sets

    def of_key(self, key: int) -> Sets:
        """Return the questions about a key of an event."""
        return self.pdf_classes if key == PDF_CLASS else self.phones

    @classmethod
    def compile(
        cls, phone_sets: Iterable[Iterable[int]], topology: Topology
    ) -> Questions:
        """Put questions in order, without repetition, and add those on pdf-classes.

        Args:
            phone_sets: questions on phones.
            topology: determines the phones and their pdf-classes.

        Raises:
            UserError: a question names a phone that the topology does not have.

        Source: Kaldi `bin/compile-questions.cc`.
        """
        phones = sorted({tuple(sorted(set(phones))) for phones in phone_sets} - {()})
        asked = {phone for question in phones for phone in question}
        unknown = asked - set(topology.phones)
        if unknown:
            raise UserError(
                f"a tree question names phone {min(unknown)}, which is not in the "
                "topology",
                remedy="make the language directory again",
            )
        unasked = set(topology.phones) - asked
        if unasked:
            log.warning("no tree question names phones %s", sorted(unasked))
        most = max(topology.pdf_class_counts().values())
        return cls(tuple(phones), tuple(tuple(range(n)) for n in range(1, most)))


def cluster_phones(
    statistics: StatisticsArrays,
    phone_sets: Sequence[Sequence[int]],
    topology: Topology,
    *,
    extra_questions: Iterable[Iterable[int]] = (),
    pdf_classes: Sequence[int] = (1,),
) -> Questions:
    """Return the questions for a tree, by clustering and of the language directory.

    Args:
        statistics: of phones in context.
        phone_sets: phones that are never distinguished (`phones/sets.int`).
        topology: the HMMs.
        extra_questions: further sets of phones (`phones/extra_questions.int`).
        pdf_classes: classes by whose frames phones are compared; 1 is the middle state
            of a three-state HMM.

    Raises:
        UserError: a phone is in two sets, or a question names an unknown phone.
    """
    clusters = phone_clusters(statistics, phone_sets, pdf_classes=pdf_classes)
    return Questions.compile([*clusters, *extra_questions], topology)


def phone_clusters(
    statistics: StatisticsArrays,
    phone_sets: Sequence[Sequence[int]],
    *,
    pdf_classes: Sequence[int] = (1,),
) -> list[tuple[int, ...]]:
    """Find sets of phones that sound alike, by clustering top down.

    Args:
        statistics: of phones in context.
        phone_sets: phones that are never distinguished.
        pdf_classes: classes whose frames count.

    Returns:
        Sorted sets: every cluster but that of all phones, and `phone_sets` themselves.

    Raises:
        UserError: a phone is in two sets.

    Source: Kaldi `tree/build-tree.cc` (`AutomaticallyObtainQuestions`).
    """
    sets = [tuple(sorted(phones)) for phones in phone_sets]
    listed = [phone for phones in sets for phone in phones]
    if len(set(listed)) < len(listed) or not all(sets):
        raise UserError(
            "the sets of phones to cluster overlap, or one is empty",
            remedy="fix phones/sets.int of the language directory",
        )
    set_of = np.full(max([*listed, int(statistics.phones.max())]) + 1, -1, np.int64)
    for number, phones in enumerate(sets):
        set_of[list(phones)] = number
    group = set_of[statistics.phones]
    is_counted = np.isin(statistics.events[:, 0], pdf_classes)
    points = sum_groups(statistics.moments, np.where(is_counted, group, -1), len(sets))
    for number in np.flatnonzero(points[:, 0] == 0.0):
        log.warning("no statistics of phones %s for tree questions", sets[number])
    found = cluster_top_down(points, statistics.variance_floor)
    clusters = [
        tuple(sorted(phone for number in members for phone in sets[number]))
        for members in found
    ]
    return sorted({*clusters, *sets})
