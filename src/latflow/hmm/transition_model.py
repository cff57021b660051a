"""The transition model: transition-ids and the probabilities behind them.

A *transition-state* is (phone, HMM state, pdf of the arcs that leave it, pdf of its
self-loop); a *transition-id* is one arc of a transition-state. Both are numbered from
1: transition-states in the sorted order of their four numbers, transition-ids in the
order of transition-states and, within one, of the topology's arcs. All that decoding
and training need to know of an alignment follows from its transition-ids.

Source: Kaldi `hmm/transition-model.{h,cc}`, `hmm/hmm-utils.cc`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.hmm.topology import NO_PDF, Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, KaldiWriter

_MOST_PDFS = 10_000_000  # arrays are as long as the highest one
_LEAST_FORWARD_PROB = 1e-10  # of a state whose self-loop has probability 1


class TransitionModel:
    """Transition-ids of a system, what they stand for, and their log-probabilities.

    Arrays over transition-ids have `num_transition_ids + 1` entries and arrays over
    transition-states `num_states + 1`; entry 0 is unused (-1, False or 0).

    Args:
        topology: the HMMs.
        tuples: int32[S, 4], sorted rows: phone, HMM state, pdf of the arcs that leave
            the state, pdf of its self-loop.
        log_prob: float32[I + 1], natural log; None takes the topology's probabilities.

    Attributes:
        topology: the HMMs.
        tuples: the same as the argument.
        num_states: S, number of transition-states.
        num_transition_ids: I.
        num_pdfs: one more than the highest pdf.
        first_id: int32[S + 2]; ids of state s are first_id[s] ... first_id[s + 1] - 1.
        state: int32[I + 1], transition-state of each id.
        arc: int32[I + 1], index of the arc in the topology's state.
        phone, hmm_state, pdf, pdf_class, next_state: int32[I + 1].
        is_self_loop, is_final: bool[I + 1]; final: the arc ends the phone.
        self_loop: int32[S + 1], id of the self-loop of each state, 0 if it has none.
        log_prob: float32[I + 1], natural log.
        non_self_loop_log_prob: float32[S + 1], log of 1 - the self-loop's probability.

    Raises:
        UserError: the tuples do not fit the topology, or a log-probability is above 0.
    """

    def __init__(
        self,
        topology: Topology,
        tuples: np.ndarray,
        log_prob: np.ndarray | None = None,
    ) -> None:
        self.topology = topology
        self.tuples = np.asarray(tuples, np.int32).reshape(-1, 4)
        self.num_states = len(self.tuples)
        if not self.num_states:
            raise UserError("a transition model without states")
        pdfs = self.tuples[:, 2:]
        if pdfs.min() < 0 or pdfs.max() >= _MOST_PDFS:
            raise UserError(
                f"the transition model has pdfs {pdfs.min()} to {pdfs.max()}",
                remedy="train the model again",
            )
        self.num_pdfs = int(pdfs.max()) + 1
        self._enumerate()
        self._state_of = {
            tuple(row): state for state, row in enumerate(self.tuples.tolist(), start=1)
        }
        if log_prob is None:
            log_prob = np.log(self._initial).astype(np.float32)
        self.log_prob = np.ascontiguousarray(log_prob, np.float32)
        self._check()
        self._derive()

    def _enumerate(self) -> None:
        """Number the arcs of all transition-states, and note what each one is."""
        none = (0, -1, -1, -1, -1, -1, -1, False, False)
        rows, initial = [none], [1.0]
        first_id = [1, 1]
        for state, entry in enumerate(self.tuples.tolist(), start=1):
            arcs = self._arcs(state, entry)
            rows += [row for row, _ in arcs]
            initial += [probability for _, probability in arcs]
            first_id.append(len(rows))
        columns = np.array(rows, np.int32).T.copy()
        self.num_transition_ids = len(rows) - 1
        self.first_id = np.array(first_id, np.int32)
        self.state, self.arc, self.phone, self.hmm_state = columns[:4]
        self.pdf, self.pdf_class, self.next_state = columns[4:7]
        self.is_self_loop = columns[7].astype(bool)
        self.is_final = columns[8].astype(bool)
        self.self_loop = np.zeros(self.num_states + 1, np.int32)
        loops = np.flatnonzero(self.is_self_loop)
        self.self_loop[self.state[loops]] = loops
        self._initial = np.array(initial)

    def _arcs(
        self, state: int, entry: list[int]
    ) -> list[tuple[tuple[int | bool, ...], float]]:
        """Return what each arc of a state is, and its initial probability."""
        phone, hmm_state, pdf, loop_pdf = entry
        states = self.topology.states(phone)
        if not 0 <= hmm_state < len(states) - 1:
            raise UserError(f"phone {phone} has no emitting state {hmm_state}")
        here = states[hmm_state]
        arcs = []
        for arc, (target, probability) in enumerate(here.transitions):
            loops, ends = target == hmm_state, target == len(states) - 1
            emits = (loop_pdf, here.loop_pdf_class) if loops else (pdf, here.pdf_class)
            row = (state, arc, phone, hmm_state, *emits, target, loops, ends)
            arcs.append((row, probability))
        return arcs

    def _check(self) -> None:
        """Refuse invalid probabilities, and unsorted states."""
        fault = None
        if self.log_prob.shape != (self.num_transition_ids + 1,):
            fault = (
                f"{len(self.log_prob) - 1} probabilities for "
                f"{self.num_transition_ids} transition-ids"
            )
        elif not (np.isfinite(self.log_prob) & (self.log_prob <= 0.0)).all():
            fault = "a log-probability that is not finite or above 0"
        elif sorted(self._state_of) != list(self._state_of):
            fault = "transition-states that are not sorted"
        elif len(self._state_of) < self.num_states:
            fault = "a transition-state that is there twice"
        if fault:
            raise UserError(
                f"the transition model has {fault}", remedy="train the model again"
            )

    def _derive(self) -> None:
        """Compute `non_self_loop_log_prob` (Kaldi's `ComputeDerivedOfProbs`)."""
        loop_log_prob = self.log_prob[self.self_loop].astype(np.float64)
        loop_prob = np.exp(loop_log_prob).astype(np.float32)
        leaves = (1.0 - loop_prob.astype(np.float64)).astype(np.float32)
        leaves[leaves <= 0.0] = _LEAST_FORWARD_PROB
        leaves[self.self_loop == 0] = 1.0
        logs = np.log(leaves.astype(np.float64))
        self.non_self_loop_log_prob = logs.astype(np.float32)

    # -- making ---------------------------------------------------------------------

    @classmethod
    def from_tree(cls, tree: ContextDependency, topology: Topology) -> TransitionModel:
        """Make the model of a tree and a topology, with initial probabilities.

        Raises:
            UserError: the tree has no pdf for a class of a phone.

        Source: Kaldi `hmm/transition-model.cc` (`ComputeTuples`).
        """
        phones = topology.phones
        pairs_of: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        tuples = []
        for phone in phones:
            for number, state in enumerate(topology.states(phone)):
                if state.pdf_class == NO_PDF:
                    continue
                classes = (state.pdf_class, state.loop_pdf_class)
                key = (phone, *classes)
                if key not in pairs_of:
                    pairs_of[key] = tree.possible_pairs(phone, classes, phones)
                if not pairs_of[key]:
                    raise UserError(
                        f"the tree has no pdf for phone {phone}, pdf-class "
                        f"{classes[0]}",
                        remedy="use the tree and topology of one system",
                    )
                tuples += [(phone, number, *pair) for pair in pairs_of[key]]
        return cls(topology, np.array(sorted(tuples), np.int32))

    # -- asking ---------------------------------------------------------------------

    def state_of(
        self, phone: int, hmm_state: int, pdf: int, self_loop_pdf: int | None = None
    ) -> int:
        """Return the transition-state of a phone's HMM state with these pdfs.

        Args:
            phone: the phone.
            hmm_state: the state of its HMM.
            pdf: the pdf of the arcs that leave the state.
            self_loop_pdf: the pdf of the self-loop; None for the same.

        Raises:
            UserError: none was found.
        """
        loop = pdf if self_loop_pdf is None else self_loop_pdf
        state = self._state_of.get((phone, hmm_state, pdf, loop))
        if state is None:
            raise UserError(
                f"the transition model has no state of phone {phone}, HMM state "
                f"{hmm_state}, pdf {pdf}",
                remedy="use the tree and the model of one system",
            )
        return state

    def log_prob_ignoring_self_loops(self) -> np.ndarray:
        """Return log-probability given that the state is left, float32[I + 1].

        Of no use for self-loops.

        Source: Kaldi `GetTransitionLogProbIgnoringSelfLoops`.
        """
        return self.log_prob - self.non_self_loop_log_prob[self.state]

    def scaled_log_prob(
        self, transition_scale: float, self_loop_scale: float
    ) -> np.ndarray:
        """Return log-probabilities as they enter a graph, float32[I + 1]; entry 0 is 0.

        The self-loop scale weighs staying against leaving, the transition scale the
        choice between arcs that leave.

        Source: Kaldi `hmm/hmm-utils.cc` (`GetScaledTransitionLogProb`).
        """
        choosing, keeping = np.float32(transition_scale), np.float32(self_loop_scale)
        if choosing == keeping:
            scaled = self.log_prob * choosing
        else:
            leaving = (
                keeping * self.non_self_loop_log_prob[self.state]
                + choosing * self.log_prob_ignoring_self_loops()
            )
            staying = keeping * self.log_prob
            scaled = np.where(self.is_self_loop, staying, leaving)
        scaled[0] = 0.0
        return scaled

    def pdfs_of_phones(self, phones: list[int]) -> tuple[np.ndarray, bool]:
        """Return pdfs of some phones, sorted, and whether no other phone uses them.

        Source: Kaldi `hmm/transition-model.cc` (`GetPdfsForPhones`).
        """
        is_mine = np.isin(self.tuples[:, 0], phones)
        pdfs = np.unique(self.tuples[is_mine, 2:])
        return pdfs, not np.isin(self.tuples[~is_mine, 2:], pdfs).any()

    # -- training -------------------------------------------------------------------

    def update(
        self, occupancy: np.ndarray, *, floor: float = 0.01, min_count: float = 5.0
    ) -> tuple[float, float]:
        """Set the probabilities to their maximum-likelihood estimates, floored.

        p = count of the arc / count of its state, then three times: floored, where the
        last flooring is not normalized again (so that a state's sum may exceed 1 by a
        few parts in 10^5). States seen less than `min_count` times, and states with one
        arc, keep what they have.

        Args:
            occupancy: counts, float64[I + 1]; entry 0 is not used.
            floor: least probability of an arc.
            min_count: least count of a state, in frames.

        Returns:
            (gain in log-likelihood, summed over frames; frames of states with more
            than one arc).

        Source: Kaldi `hmm/transition-model.cc` (`MleUpdate`, not shared).
        """
        counts = np.asarray(occupancy, np.float64)
        arcs_of = np.diff(self.first_id)
        is_choice = arcs_of[self.state] > 1
        is_choice[0] = False
        totals = self._sum_by_state(counts)
        is_updated = is_choice & (totals[self.state] >= min_count)
        ids = np.flatnonzero(is_updated)
        states = self.state[ids]
        new = (counts[ids] / totals[states]).astype(np.float32)
        for _ in range(3):
            sums = np.bincount(states, new, self.num_states + 1)
            new = (new / sums[states]).astype(np.float32)
            new = np.maximum(new, np.float32(floor))
        logs = np.log(new.astype(np.float64))
        gain = float(counts[ids] @ (logs - self.log_prob[ids]))
        self.log_prob = self.log_prob.copy()
        self.log_prob[ids] = logs.astype(np.float32)
        self._derive()
        return gain, float(counts[is_choice].sum())

    def _sum_by_state(self, values: np.ndarray) -> np.ndarray:
        """Sum values over the ids of each transition-state, float64[S + 1]."""
        return np.bincount(self.state[1:], values[1:], self.num_states + 1)

    # -- files ----------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> TransitionModel:
        """Read a file that is a transition model, or a model that begins with one.

        Raises:
            UserError: it is missing, truncated, garbled or inconsistent.
        """
        with KaldiReader.open(path) as reader:
            return cls.read(reader)

    @classmethod
    def read(cls, reader: KaldiReader) -> TransitionModel:
        """Read the head of a model file; the reader then stands behind it.

        Raises:
            UserError: it is truncated, garbled or inconsistent.
        """
        reader.expect("<TransitionModel>")
        topology = Topology.read(reader)
        kind = reader.expect("<Triples>", "<Tuples>")
        width = 3 if kind == "<Triples>" else 4
        count = reader.int32()
        if count < 0:
            reader.fail(f"{count} transition-states")
        tuples = np.array(
            [[reader.int32() for _ in range(width)] for _ in range(count)], np.int32
        ).reshape(count, width)
        if width == 3:
            tuples = tuples[:, [0, 1, 2, 2]]
        reader.expect(kind.replace("<", "</"))
        reader.expect("<LogProbs>")
        log_prob = reader.float_vector()
        reader.expect("</LogProbs>")
        reader.expect("</TransitionModel>")
        return cls(topology, tuples, log_prob)

    def save(self, path: str | Path) -> None:
        """Atomically write a binary file of the transition model alone.

        Kaldi's scripts call it `0.trans_mdl`.
        """
        with KaldiWriter.open(path) as writer:
            self.write(writer)

    def write(self, writer: KaldiWriter) -> None:
        """Write the head of a model file as Kaldi does, text or binary."""
        writer.write_token("<TransitionModel>")
        writer.end_line()
        self.topology.write(writer)
        name, width = ("Triples", 3) if self.topology.is_hmm else ("Tuples", 4)
        writer.write_token(f"<{name}>")
        writer.write_int32(self.num_states)
        writer.end_line()
        for row in self.tuples[:, :width].tolist():
            for value in row:
                writer.write_int32(value)
            writer.end_line()
        writer.write_token(f"</{name}>")
        writer.end_line()
        writer.write_token("<LogProbs>")
        writer.end_line()
        writer.write_float_vector(self.log_prob)
        writer.write_token("</LogProbs>")
        writer.end_line()
        writer.write_token("</TransitionModel>")
        writer.end_line()
