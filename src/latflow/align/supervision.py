"""Supervision of LF-MMI: the pdf sequences that an alignment allows, with tolerance.

A phone sequence with times, or a lattice of them, is expanded to all HMM state
sequences of its phones in context; a path may take a phone at an output frame if the
alignment has that phone there or within the tolerance of it. Labels are pdf-id + 1 and
each arc takes one output frame, so that all paths have as many arcs as there are
frames. There are no weights: those of the normalization graph are added to each chunk
when it is trained on (`latflow.align.supervision_weights`).

Source: Kaldi `chain/chain-supervision.cc` (`AlignmentToProtoSupervision`,
`PhoneLatticeToProtoSupervision`, `ProtoSupervisionToSupervision`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from latflow.align.options import SupervisionOptions
from latflow.errors import UserError
from latflow.fst.determinize import LINK, enlarged
from latflow.graphs.training import PhoneExpansion
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.jit import njit
from latflow.lattice.lattice import Lattice
from latflow.lattice.phone_arcs import expand

#: An arc of a `FrameGraph`; `label` is pdf-id + 1.
FRAME_ARC = np.dtype([("label", "<i4"), ("next_state", "<i4")])
_NO_WORDS = np.zeros(0, np.int64)


class FrameGraph(NamedTuple):
    """An acceptor without weights whose arcs take one frame each; T frames.

    States lie time after time: those before frame t, in order of t, 0 ... T. There is
    one start, state 0; all states behind the last frame are final.

    Attributes:
        arcs: FRAME_ARC[A], by source.
        first_arc: int32[S + 1].
        first_state: int32[T + 2], of each time; the last entry is S.
    """

    arcs: np.ndarray
    first_arc: np.ndarray
    first_state: np.ndarray

    @property
    def num_frames(self) -> int:
        """T."""
        return len(self.first_state) - 2

    def is_whole(self, num_pdfs: int) -> bool:
        """Return whether kernels stay inside the arrays, and labels are of the pdfs."""
        states = self.first_arc.astype(np.int64)
        times = self.first_state.astype(np.int64)
        for begin, end in ((times, len(states) - 1), (states, len(self.arcs))):
            is_row = len(begin) > 1 and begin[0] == 0 and begin[-1] == end
            if not is_row or (np.diff(begin) < 0).any():
                return False
        count = np.diff(states[times])  # arcs of the states of each time
        target, label = self.arcs["next_state"], self.arcs["label"]
        low, high = times[1:-1].repeat(count[:-1]), times[2:].repeat(count[:-1])
        is_next = len(low) == len(target) and ((low <= target) & (target < high)).all()
        return bool(is_next and ((label > 0) & (label <= num_pdfs)).all())


@dataclass(frozen=True, eq=False)
class PhoneLattice:
    """Phone sequences with times, as an acyclic graph; N states, M arcs.

    Attributes:
        source, target: int64[M], states; 0 is the start.
        phone: int64[M], 0 for none.
        begin, end: int64[M], frames, one past the last; not subsampled.
        is_final: bool[N].
        num_frames: of the utterance, not subsampled; every path ends there.
    """

    source: np.ndarray
    target: np.ndarray
    phone: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    is_final: np.ndarray
    num_frames: int

    @classmethod
    def linear(cls, phones: np.ndarray, durations: np.ndarray) -> PhoneLattice:
        """Return the lattice of one alignment.

        Args:
            phones: int[N].
            durations: int[N], in frames that are not subsampled, all positive.
        """
        ends = np.cumsum(durations, dtype=np.int64)
        states = np.arange(len(ends) + 1)
        return cls(
            source=states[:-1],
            target=states[1:],
            phone=np.asarray(phones, np.int64),
            begin=ends - durations,
            end=ends,
            is_final=states == len(ends),
            num_frames=int(ends[-1]) if len(ends) else 0,
        )

    @classmethod
    def of_lattice(cls, lattice: Lattice, model: TransitionModel) -> PhoneLattice:
        """Return the phones of a state-level lattice, such as of alternative words.

        Args:
            lattice: raw; of a graph with reordered transitions (Kaldi's default).
            model: what its transition-ids mean.

        Raises:
            UserError: the model has no such transition-ids.
        """
        ids = lattice.transition_id
        if ids.min(initial=0) < 0 or ids.max(initial=0) > model.num_transition_ids:
            raise UserError(
                f"a lattice with transition-ids up to {ids.max()}, where the model has "
                f"1 to {model.num_transition_ids}",
                remedy="name the system that made the lattices",
            )
        arcs = expand(lattice, model)
        num_states = len(arcs.arc_begin) - 1
        return cls(
            source=np.repeat(np.arange(num_states), np.diff(arcs.arc_begin)),
            target=arcs.next_state.astype(np.int64),
            phone=arcs.phone.astype(np.int64),
            begin=arcs.first.astype(np.int64),
            end=arcs.last.astype(np.int64),
            is_final=np.arange(num_states) == num_states - 1,
            num_frames=lattice.num_frames,
        )


class SupervisionCompiler:
    """Compiles alignments and lattices of phones to frame graphs; safe to share.

    Args:
        tree: of the chain system; gives the context.
        model: its transition model.
        options: tolerances.
        subsampling: input frames per output frame.

    Raises:
        UserError: the tolerances together are below the subsampling, so that a phone
            might be allowed nowhere.
    """

    def __init__(
        self,
        tree: ContextDependency,
        model: TransitionModel,
        options: SupervisionOptions,
        *,
        subsampling: int = 3,
    ) -> None:
        if options.left_tolerance + options.right_tolerance < subsampling:
            raise UserError(
                f"tolerances {options.left_tolerance} and {options.right_tolerance} "
                f"are together less than the frame subsampling, {subsampling}",
                remedy="raise supervision.left_tolerance or right_tolerance",
            )
        self.options = options
        self.subsampling = subsampling
        self._num_phones = max(model.topology.phones) + 1
        disambig = np.zeros(self._num_phones, np.int64)
        self._expansion = PhoneExpansion(tree, model, disambig)
        self._phone = np.ascontiguousarray(model.phone, np.int32)
        self._pdf = np.ascontiguousarray(model.pdf, np.int32)

    def compile(self, lattice: PhoneLattice) -> FrameGraph | str:
        """Return the supervision of an utterance, or the reason why it has none.

        Args:
            lattice: its phones.

        Raises:
            UserError: tree or topology do not know one of the phones.

        Source: Kaldi `ProtoSupervisionToSupervision`.
        """
        if not lattice.num_frames:
            return "the alignment is empty"
        links = np.zeros(len(lattice.phone), LINK)
        links["source"], links["target"] = lattice.source, lattice.target
        links["label"] = lattice.phone
        if lattice.phone.max() >= self._num_phones:
            raise UserError(
                f"the alignment has phone {lattice.phone.max()}, the chain system "
                f"knows phones up to {self._num_phones - 1}",
                remedy="make the tree with the language directory of the alignments",
            )
        final = np.where(lattice.is_final, 0.0, np.inf)
        position = np.zeros(len(final), np.int64)
        graph = self._expansion.expand(links, position, final, _NO_WORDS)
        if not graph.num_states:
            return "no path through the lattice of phones"
        plain = _without_epsilons(
            graph.arc_begin, graph.ilabel, graph.next_state, graph.final
        )
        found = _unroll(plain, (self._phone, self._pdf), self._allowed(lattice))
        if not len(found[0]):
            return "too many phones for too few frames"
        return FrameGraph(*found)

    def _allowed(self, lattice: PhoneLattice) -> np.ndarray:
        """Return which phones each output frame may have, bool[T, P].

        As in Kaldi what counts is the phone, not its place in the sequence: where it
        comes twice in a row of short phones, one of them may take the other's frames.

        Source: Kaldi `AlignmentToProtoSupervision`.
        """
        factor = self.subsampling
        first = np.maximum(lattice.begin - self.options.left_tolerance, 0)
        last = np.minimum(
            lattice.end + self.options.right_tolerance, lattice.num_frames
        )
        num_frames = -(-lattice.num_frames // factor)
        allowed = np.zeros((num_frames, self._num_phones), np.bool_)
        _allow(allowed, lattice.phone, -(-first // factor), -(-last // factor))
        return allowed


@njit(cache=True, nogil=True)
def _allow(
    allowed: np.ndarray, phone: np.ndarray, first: np.ndarray, last: np.ndarray
) -> None:
    """Set the frames first ... last - 1 of each phone."""
    for n in range(len(phone)):
        if phone[n] > 0:
            for t in range(first[n], last[n]):
                allowed[t, phone[n]] = True


@njit(cache=True, nogil=True)
def _without_epsilons(
    arc_begin: np.ndarray, label: np.ndarray, next_state: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Replace epsilon arcs (the bridges of `add_self_loops`) by what is behind them.

    Returns:
        (first arc, int64[S + 1]; label, int64[A]; target, int64[A]; is final, bool[S]).
    """
    num_states = len(arc_begin) - 1
    first = np.zeros(num_states + 1, np.int64)
    target, labels = np.empty(len(label), np.int64), np.empty(len(label), np.int64)
    is_final = np.zeros(num_states, np.bool_)
    used = 0
    for state in range(num_states):
        stack = [np.int64(state)]
        while len(stack) > 0:
            at = stack.pop()
            is_final[state] |= np.isfinite(final[at])
            for arc in range(arc_begin[at], arc_begin[at + 1]):
                if label[arc] == 0:
                    stack.append(np.int64(next_state[arc]))
                    continue
                target = enlarged(target, used + 1)
                labels = enlarged(labels, used + 1)
                target[used] = next_state[arc]
                labels[used] = label[arc]
                used += 1
        first[state + 1] = used
    return first, labels[:used], target[:used], is_final


@njit(cache=True, nogil=True)
def _unroll(
    graph: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    labels: tuple[np.ndarray, np.ndarray],
    allowed: np.ndarray,
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Lay the paths of a graph out over the frames, and keep those that end.

    Args:
        graph: first arc, transition-id, target, is final; state 0 is the start.
        labels: of transition-ids: phone, pdf.
        allowed: bool[T, P], phones of each frame.

    Returns:
        The arrays of a `FrameGraph`; empty if no path is left.

    Source: Kaldi `chain/chain-supervision.cc` (`TimeEnforcerFst`).
    """
    first_arc, transition_id, target, is_final = graph
    phone, pdf = labels
    num_frames = len(allowed)
    times = np.zeros(num_frames + 2, np.int32)
    times[1] = 1
    state_of = np.zeros(4 * num_frames + 16, np.int64)
    begin = np.zeros(4 * num_frames + 17, np.int32)
    arcs = np.empty(8 * num_frames + 16, FRAME_ARC)
    slot = np.full(len(is_final), -1, np.int64)  # of a graph's state, among the newest
    count, used = 1, 0
    for t in range(num_frames):
        low = times[t + 1]
        for node in range(times[t], low):
            state = state_of[node]
            for arc in range(first_arc[state], first_arc[state + 1]):
                label = transition_id[arc]
                if not allowed[t, phone[label]]:
                    continue
                other = target[arc]
                if slot[other] < low:
                    slot[other] = count
                    state_of = enlarged(state_of, count + 1)
                    begin = enlarged(begin, count + 2)
                    state_of[count] = other
                    count += 1
                arcs = enlarged(arcs, used + 1)
                arcs[used]["label"] = pdf[label] + 1
                arcs[used]["next_state"] = slot[other]
                used += 1
            begin[node + 1] = used
        times[t + 2] = count
    is_live = np.zeros(count, np.bool_)
    for node in range(times[num_frames], count):
        is_live[node] = is_final[state_of[node]]
        begin[node + 1] = used
    return _trim(arcs, begin, times, is_live)


@njit(cache=True, nogil=True)
def _trim(
    arcs: Any, begin: np.ndarray, times: np.ndarray, is_live: np.ndarray
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Keep what leads to the live states of the last time; numbers stay in order."""
    num_states = len(is_live)
    for node in range(num_states - 1, -1, -1):
        for arc in range(begin[node], begin[node + 1]):
            is_live[node] |= is_live[arcs[arc]["next_state"]]
    number = np.empty(num_states, np.int32)
    num_live, used = 0, 0
    for node in range(num_states):
        number[node] = num_live
        num_live += is_live[node]
    first_arc = np.zeros(num_live + 1, np.int32)
    kept = np.empty(begin[num_states], FRAME_ARC)
    for node in range(num_states):
        for arc in range(begin[node], begin[node + 1]):
            other = arcs[arc]["next_state"]
            if is_live[other]:
                kept[used]["label"] = arcs[arc]["label"]
                kept[used]["next_state"] = number[other]
                used += 1
        if is_live[node]:
            first_arc[number[node] + 1] = used
    first_state = np.empty(len(times), np.int32)
    for t in range(len(times)):
        first_state[t] = num_live if times[t] == num_states else number[times[t]]
    return kept[:used], first_arc, first_state
