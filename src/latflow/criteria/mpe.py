"""Minimum phone error (MPE) as in Povey's thesis: expected raw phone accuracy.

    F = sum over paths of posterior(path) * sum over its phones q of A(q),

    A(q) = max over phones z of the alignment that overlap q of
               -1 + 2 e(q, z)   where q and z are the same phone,
               -1 +   e(q, z)   where they differ,

    e(q, z) = frames that q and z share / frames of z,

and -1 where none overlaps (an insertion). A(q) is 1 for a right phone at the right
place: F approximates the number of right phones less the inserted ones, without an edit
distance. MPFE, which PyKaldi2 calls `mpe`, counts right frames
(`latflow.criteria.mbr`).

Silence: with `ignore_silence` silences of the lattice count 0, and those of the
alignment are overlooked, so that a phone heard where silence was is an insertion.
Without it silence is a phone like any other.

Public: `MpeOptions`, `evaluate_mpe`, `mpe`, `phone_accuracies`.

Source: Povey, Woodland 2002, "Minimum phone error and I-smoothing for improved
discriminative training"; Povey 2003, "Discriminative training for large vocabulary
speech recognition", chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from torch import Tensor

from latflow.criteria.evaluation import Evaluation, add_arcs, raw_lattice, scored
from latflow.criteria.function import CriterionResult, differentiable
from latflow.criteria.phone_arcs import PhoneArcs, expand, phones_of_alignment
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.accuracy import expected_arc_score
from latflow.lattice.compact import CompactLattice
from latflow.lattice.forward_backward import forward
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import check_alignment

STATISTICS = ("reference_phones", "expanded_arcs")


@dataclass(frozen=True)
class MpeOptions:
    """How expected phone accuracies are computed.

    Attributes:
        silence_phones: phone ids.
        ignore_silence: how silence counts, see above.
        acoustic_scale: factor on log-likelihoods.
        lm_scale: factor on graph costs.
    """

    silence_phones: Sequence[int]
    ignore_silence: bool = True
    acoustic_scale: float = 0.1
    lm_scale: float = 1.0


def mpe(
    log_likes: Tensor,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MpeOptions,
) -> CriterionResult:
    """Phone-level MPE of one utterance, differentiable; see `evaluate_mpe`.

    Args:
        log_likes: [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: see there.
    """
    return differentiable(
        lambda scores: evaluate_mpe(scores, lattice, alignment, model, options),
        log_likes,
    )


def evaluate_mpe(
    log_likes: np.ndarray,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MpeOptions,
    *,
    gradient: np.ndarray | None = None,
) -> Evaluation:
    """Value and gradient of phone-level MPE.

    Args:
        log_likes: float32 or float64 [T, P].
        lattice: of T frames, of a graph with reordered transitions (Kaldi's default);
            its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: scales and so on.
        gradient: [T, P] zeros of the type of `log_likes`, to be filled; made if None.

    Returns:
        The expected accuracy, in phones (at most those of the alignment), its gradient,
        and as statistics the phones of the alignment that count, and arcs of the
        lattice once its phones are told apart.

    Raises:
        UserError: the lattice has no path, scores are NaN, or sizes differ.
    """
    lattice = raw_lattice(lattice)
    check_alignment(lattice, alignment, model)
    arcs = scored(
        lattice,
        log_likes,
        model,
        acoustic_scale=options.acoustic_scale,
        lm_scale=options.lm_scale,
    )
    ignored = options.silence_phones if options.ignore_silence else ()
    phones = expand(lattice, model, untimed=ignored)
    accuracy, num_phones = phone_accuracies(phones, alignment, model, options)
    cost = np.concatenate([arcs.graph_cost, arcs.final_graph_cost])[phones.arc]
    num_states = len(phones.arc_begin) - 1
    final = np.full(num_states, np.inf)
    final[-1] = 0.0
    paths = replace(
        lattice,
        arc_begin=phones.arc_begin,
        next_state=phones.next_state,
        graph_cost=cost,
        acoustic_cost=np.zeros(len(cost)),
        final_graph_cost=final,
        final_acoustic_cost=np.zeros(num_states),
    )
    sums = forward(paths)
    expected, weights = expected_arc_score(
        phones.arc_begin,
        phones.next_state,
        sums.weight,
        sums.final_weight,
        sums.total,
        accuracy,
    )
    by_arc = np.bincount(phones.arc, weights, arcs.num_arcs + arcs.num_states)
    gradient = np.zeros_like(log_likes) if gradient is None else gradient
    add_arcs(arcs, by_arc[: arcs.num_arcs], model, options.acoustic_scale, gradient)
    statistics: dict[str, float] = dict(
        zip(STATISTICS, (float(num_phones), float(len(cost))), strict=True)
    )
    return Evaluation(expected, gradient, arcs.num_frames, statistics)


def phone_accuracies(
    phones: PhoneArcs,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MpeOptions,
) -> tuple[np.ndarray, int]:
    """A(q) of the phone that each arc completes.

    Args:
        phones: M arcs.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: how silence counts.

    Returns:
        (float64 [M], 0 where no phone is completed; number of phones said).
    """
    said, first, last = phones_of_alignment(alignment, model)
    silence = list(options.silence_phones) if options.ignore_silence else []
    counts = ~np.isin(said, silence)
    is_heard = (phones.phone > 0) & ~np.isin(phones.phone, silence)
    accuracy = _accuracies(
        np.where(is_heard, phones.phone, np.int32(0)),
        phones.first,
        phones.last,
        (said[counts], first[counts], last[counts]),
    )
    return accuracy, int(np.count_nonzero(counts))


@njit(cache=True, nogil=True)
def _accuracies(
    phone: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    said: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """A(q) of each phone heard, float64[M].

    Args:
        phone: int32[M]; 0 for none, which counts 0.
        first: int32[M], first frame.
        last: int32[M], one past the last.
        said: the same of the phones said, int32[N] each, in order of time.
    """
    accuracy = np.zeros(len(phone))
    for m in range(len(phone)):
        if phone[m] == 0:
            continue
        best = -1.0
        z = np.searchsorted(said[2], first[m] + 1)  # the first that ends behind it
        while z < len(said[0]) and said[1][z] < last[m]:
            shared = min(last[m], said[2][z]) - max(first[m], said[1][z])
            e = shared / (said[2][z] - said[1][z])
            is_same = said[0][z] == phone[m]
            best = max(best, -1.0 + (2.0 * e if is_same else e))
            z += 1
        accuracy[m] = best
    return accuracy
