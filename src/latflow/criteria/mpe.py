"""Minimum Bayes risk over the paths of a lattice: sMBR, MPFE and MPE.

    F = sum over paths of posterior(path) * accuracy(path),

with posteriors at the scaled scores of the paths. Its gradient to the scaled
log-likelihood of an arc is the arc's posterior times what the paths over it are more
accurate than the mean.

*sMBR* and *MPFE* count the frames of a path with the right pdf, or phone. PyKaldi2 and
Kaldi's nnet1 tools call MPFE `mpe`; that name is understood too. With
`one_silence_class` silence for silence is right; without, a frame in silence is never
right.

*MPE* of Povey's thesis (`phone_mpe`) sums over the phones q of a path

    A(q) = max over phones z of the alignment that overlap q of
               -1 + 2 e(q, z)   where q and z are the same phone,
               -1 +   e(q, z)   where they differ,

    e(q, z) = frames that q and z share / frames of z,

and -1 where none overlaps (an insertion). A(q) is 1 for a right phone at the right
place: F approximates the number of right phones less the inserted ones, without an edit
distance. With `ignore_silence` silences of the lattice count 0, and those of the
alignment are overlooked, so that a phone where silence was is an insertion. Without it
silence is a phone like any other.

Source: Gibson, Hain 2006, "Hypothesis spaces for minimum Bayes risk training in large
vocabulary speech recognition"; Zheng, Stolcke 2005, "Improved discriminative training
using phone lattices" (MPFE); Kaldi `lat/lattice-functions.cc`
(`LatticeForwardBackwardMpeVariants`); Povey, Woodland 2002, "Minimum phone error and
I-smoothing for improved discriminative training"; Povey 2003, "Discriminative training
for large vocabulary speech recognition", chapter 4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import numpy as np

from latflow.criteria.arc_scores import add_arcs
from latflow.criteria.criterion import Evaluation, PathCriterion, Utterance
from latflow.criteria.options import MbrOptions, PhoneMpeOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit
from latflow.lattice.discriminative import arc_accuracies
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import expected_arc_score, forward
from latflow.lattice.phone_arcs import (
    PhoneArcs,
    TooManyArcsError,
    expand,
    phones_of_alignment,
)
from latflow.lattice.prune import costs_through


class _ExpectedAccuracy(PathCriterion):
    """Expected accuracy of a path; words are not used; see `LatticeCriterion`."""

    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return the expected accuracy; see `LatticeCriterion.evaluate`."""
        arcs = self.arcs(utterance)
        expected, weights, values = self._expectation(utterance, arcs)
        add_arcs(arcs, weights, self.model, self.options.acoustic_scale, gradient)
        return self.evaluation(expected, arcs.num_frames, *values)

    @abstractmethod
    def _expectation(
        self, utterance: Utterance, arcs: Lattice
    ) -> tuple[float, np.ndarray, tuple[float, ...]]:
        """Return the expected accuracy, its derivative by arc, and statistics.

        Args:
            utterance: its lattice has A arcs.
            arcs: the same with scaled costs.
        """


class Mbr(_ExpectedAccuracy):
    """Expected right frames, 0 to T."""

    options: MbrOptions

    def __init__(
        self,
        options: MbrOptions,
        model: TransitionModel,
        silence_phones: Sequence[int] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(options, model, silence_phones, seed=seed)
        self._compared: Literal["smbr", "mpfe"]
        self._compared = self.name = "smbr" if options.type == "smbr" else "mpfe"

    def _expectation(
        self, utterance: Utterance, arcs: Lattice
    ) -> tuple[float, np.ndarray, tuple[float, ...]]:
        right = arc_accuracies(
            arcs,
            utterance.alignment,
            self.model,
            criterion=self._compared,
            silence_phones=self.silence_phones,
            one_silence_class=self.options.one_silence_class,
        )
        return *expected_arc_score(forward(arcs), right), ()


class PhoneMpe(_ExpectedAccuracy):
    """Expected raw phone accuracy.

    The lattice is to be of a graph with reordered transitions (Kaldi's default).
    Statistics: phones of the alignment that count, arcs of the lattice once its phones
    are distinguished, and 1 where it was pruned before (`max_arcs`).
    """

    name = "phone_mpe"
    statistics = ("reference_phones", "expanded_arcs", "pruned_utterances")
    options: PhoneMpeOptions

    def _expectation(
        self, utterance: Utterance, arcs: Lattice
    ) -> tuple[float, np.ndarray, tuple[float, ...]]:
        ignored = self.silence_phones if self.options.ignore_silence else ()
        phones, is_pruned = self._expanded(utterance.raw, arcs, ignored)
        accuracy, num_phones = _phone_accuracies(
            phones, utterance.alignment, self.model, ignored
        )
        cost = np.concatenate([arcs.graph_cost, arcs.final_graph_cost])[phones.arc]
        num_states = len(phones.arc_begin) - 1
        final = np.full(num_states, np.inf)
        final[-1] = 0.0
        paths = replace(
            utterance.raw,
            arc_begin=phones.arc_begin,
            next_state=phones.next_state,
            graph_cost=cost,
            acoustic_cost=np.zeros(len(cost)),
            final_graph_cost=final,
            final_acoustic_cost=np.zeros(num_states),
        )
        expected, weights = expected_arc_score(forward(paths), accuracy)
        by_arc = np.bincount(phones.arc, weights, arcs.num_arcs + arcs.num_states)
        statistics = float(num_phones), float(len(cost)), float(is_pruned)
        return expected, by_arc[: arcs.num_arcs], statistics

    def _expanded(
        self, raw: Lattice, arcs: Lattice, ignored: Sequence[int]
    ) -> tuple[PhoneArcs, bool]:
        """Expand a lattice, pruned as far as it must be; return whether it was.

        Each attempt keeps half of the arcs of the one before, those on better paths.

        Args:
            raw: the lattice, of A arcs.
            arcs: the same with scaled costs.
            ignored: phones whose beginning does not matter.
        """
        limit = self.options.max_arcs
        with suppress(TooManyArcsError):
            return expand(raw, self.model, untimed=ignored, max_arcs=limit), False
        by_arc, by_end, best = costs_through(arcs)
        ordered = np.sort(by_arc)
        num_kept = len(ordered)
        while True:
            num_kept //= 2
            # A millionth for rounding: the best path is always kept.
            cutoff = max(ordered[num_kept], best + 1e-6 * max(1.0, abs(best)))
            smaller, *part = raw.connected_part(by_arc <= cutoff, by_end <= cutoff)
            most = limit if num_kept else None  # the best path alone has to do
            with suppress(TooManyArcsError):
                expanded = expand(smaller, self.model, untimed=ignored, max_arcs=most)
                return _of_whole(expanded, len(by_arc), *part), True


def _of_whole(
    phones: PhoneArcs, num_arcs: int, states: np.ndarray, arcs: np.ndarray
) -> PhoneArcs:
    """Return expanded arcs of a part of a lattice, numbered as those of the whole one.

    Args:
        phones: of the part.
        num_arcs: arcs of the whole one.
        states: of the part, in the whole one.
        arcs: likewise.
    """
    whole = np.concatenate([arcs, num_arcs + states])
    return replace(phones, arc=whole[phones.arc].astype(np.int32))


def _phone_accuracies(
    phones: PhoneArcs,
    alignment: np.ndarray,
    model: TransitionModel,
    ignored: Sequence[int],
) -> tuple[np.ndarray, int]:
    """Compute A(q) of the phone that each arc completes, and count the reference.

    Args:
        phones: M arcs.
        alignment: transition-ids of the reference, int32[T].
        model: what they mean.
        ignored: phones that do not count.

    Returns:
        (float64 [M], 0 where no phone is completed; phones of the reference).
    """
    reference, first, last = phones_of_alignment(alignment, model)
    counts = ~np.isin(reference, ignored)
    is_counted = (phones.phone > 0) & ~np.isin(phones.phone, ignored)
    accuracy = _accuracies(
        np.where(is_counted, phones.phone, np.int32(0)),
        phones.first,
        phones.last,
        (reference[counts], first[counts], last[counts]),
    )
    return accuracy, int(np.count_nonzero(counts))


@njit(cache=True, nogil=True)
def _accuracies(
    phone: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    reference: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """Compute A(q) of each phone of the lattice, float64[M].

    Args:
        phone: int32[M]; 0 for none, which counts 0.
        first: int32[M], first frame.
        last: int32[M], one past the last.
        reference: the same of the reference's phones, int32[N] each, in order of time.
    """
    accuracy = np.zeros(len(phone))
    for m in range(len(phone)):
        if phone[m] == 0:
            continue
        best = -1.0
        z = np.searchsorted(reference[2], first[m] + 1)  # the first that ends behind it
        while z < len(reference[0]) and reference[1][z] < last[m]:
            shared = min(last[m], reference[2][z]) - max(first[m], reference[1][z])
            e = shared / (reference[2][z] - reference[1][z])
            is_same = reference[0][z] == phone[m]
            best = max(best, -1.0 + (2.0 * e if is_same else e))
            z += 1
        accuracy[m] = best
    return accuracy
