"""Forward-backward over a lattice: how likely each arc is, and all paths together.

Each path has the likelihood exp(-cost) with

    cost = lm_scale * graph cost + acoustic_scale * acoustic cost.

The total is the sum over all paths; the posterior of an arc is the share of the paths
that take it. alpha and beta are the logs of the sums over the ways from the start to a
state and from it to an end, so that

    log posterior(arc) = alpha[source] - cost(arc) + beta[target] - log_like.

How it is computed: the cost of the best way to a state is its potential. Measured
against potentials an arc weighs exp(-(what the best way over this arc costs more)), at
most 1, and 1 on the best way: sums of such weights are plain additions, with one
exponential an arc and no logarithm. The sum of a state is at least 1 and can outgrow a
float (the number of ways grows exponentially with time). Where it does, alpha, had by
log-additions, becomes the potential instead of the best way, and all sums are 1.
Backwards, the posterior of a state is handed out to the arcs into it in the proportions
of their part in its sum, where nothing can overflow.

Public: `forward_backward`, `ForwardBackward`, `forward`, `Forward`, `arc_posteriors`,
`best_ways`, `BestWays`.

Source: Rabiner 1989, "A tutorial on hidden Markov models", section III (alpha, beta);
the same numbers as Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackward`,
`ComputeLatticeAlphasAndBetas`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice

_BIG = 2.0**500  # sums beyond it are begun anew with better potentials
_ALL_IS_WELL = -1  # in place of the number of a bad cost


class BestWays(NamedTuple):
    """Scaled costs, and what the best ways cost; S states, A arcs.

    Attributes:
        arc_cost: float64[A]; inf where an arc is impossible.
        final_cost: float64[S]; inf where a state is not final.
        best: float64[S + 1], cost of the best way to each state, and to the end in the
            last entry; inf for none.
    """

    arc_cost: np.ndarray
    final_cost: np.ndarray
    best: np.ndarray


@dataclass(frozen=True, eq=False)
class Forward:
    """Sums over the ways from the start; S states, A arcs.

    The last entry of `total` and `potential` is for an added end to which all final
    states lead.

    Attributes:
        weight: float64[A], weight of each arc against the potentials, in [0, 1].
        final_weight: float64[S], likewise of the arcs to the end.
        total: float64[S + 1], summed weights of the ways to each state; the part of an
            arc in it is total[source] * weight / total[target].
        potential: float64[S + 1], a cost: alpha = log(total) - potential.
    """

    weight: np.ndarray
    final_weight: np.ndarray
    total: np.ndarray
    potential: np.ndarray

    @cached_property
    def alpha(self) -> np.ndarray:
        """Log-sum over the ways to each state and to the end, float64[S + 1]."""
        with np.errstate(divide="ignore"):
            return np.log(self.total) - self.potential

    @property
    def log_like(self) -> float:
        """Log of the summed likelihood of all paths."""
        return float(np.log(self.total[-1]) - self.potential[-1])


@dataclass(frozen=True, eq=False)
class ForwardBackward:
    """What is known of the paths of a lattice; S states, A arcs.

    Attributes:
        arc_posterior: float64[A], share of the paths that take each arc, in [0, 1].
        log_like: log of the summed likelihood of all paths.
        lattice: the lattice.
        scales: the factors on graph and on acoustic costs.
        forward: the sums over the ways from the start.
    """

    arc_posterior: np.ndarray
    log_like: float
    lattice: Lattice | CompactLattice
    scales: tuple[float, float]
    forward: Forward

    @property
    def alpha(self) -> np.ndarray:
        """Log-sum over the ways from the start to each state, float64[S]."""
        return self.forward.alpha[:-1]

    @cached_property
    def beta(self) -> np.ndarray:
        """Log-sum over the ways from each state to an end, float64[S].

        Final costs are part of it; -inf where no way leads to a final state.
        """
        lm_scale, acoustic_scale = self.scales
        ways = best_ways(self.lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
        return _log_sums_to_end(
            self.lattice.arc_begin,
            self.lattice.next_state,
            ways.arc_cost,
            ways.final_cost,
        )


def forward_backward(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> ForwardBackward:
    """Sum over all paths of a lattice, forwards and backwards.

    Args:
        lattice: a lattice, raw or compact, with a path to a final state. A cost of inf
            (a score of -inf) makes an arc impossible, at a scale of 0 too.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        Posteriors of arcs, the total, and (computed when asked for) alpha and beta.

    Raises:
        UserError: no path leads to a final state, or a cost is NaN or -inf; the message
            names the frame (and the caller, who knows it, adds the utterance).

    Numerics: float64; no sum overflows, and none is cut off. The posterior is the
        derivative of log_like to the arc's scaled score, so that
        d log_like / d acoustic cost = -acoustic_scale * posterior.
    """
    scales = float(lm_scale), float(acoustic_scale)
    sums = forward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    posterior = arc_posteriors(
        lattice.arc_begin,
        lattice.next_state,
        sums.weight,
        sums.final_weight,
        sums.total,
    )
    return ForwardBackward(posterior, sums.log_like, lattice, scales, sums)


def forward(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> Forward:
    """Sum over the ways from the start; see `forward_backward`.

    Args:
        lattice: as there, and so on.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Raises:
        UserError: as there.
    """
    ways = best_ways(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    sums = _sums(lattice, ways, ways.best)
    if not sums.total.max() < _BIG:
        alpha = _log_sums(
            lattice.arc_begin, lattice.next_state, ways.arc_cost, ways.final_cost
        )
        sums = _sums(lattice, ways, -alpha)
    return sums


def _sums(
    lattice: Lattice | CompactLattice, ways: BestWays, potential: np.ndarray
) -> Forward:
    """Sum the weights of the ways from the start against these potentials."""
    weight, final_weight = _log_weights(
        lattice.arc_begin,
        lattice.next_state,
        ways.arc_cost,
        ways.final_cost,
        potential,
    )
    # numpy takes several exponentials at once, which a loop over arcs does not.
    np.exp(weight, out=weight)
    np.exp(final_weight, out=final_weight)
    total = _totals(lattice.arc_begin, lattice.next_state, weight, final_weight)
    return Forward(weight, final_weight, total, potential)


def best_ways(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> BestWays:
    """Scale the costs and find the best way to each state.

    Args:
        lattice: as for `forward_backward`, and so on.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Raises:
        UserError: as there.
    """
    *ways, bad = _best_ways(
        lattice.arc_begin,
        lattice.next_state,
        (lattice.graph_cost, lattice.acoustic_cost),
        (lattice.final_graph_cost, lattice.final_acoustic_cost),
        (float(lm_scale), float(acoustic_scale)),
    )
    if bad != _ALL_IS_WELL:
        _fail_on(lattice, bad)
    if lattice.num_states == 0 or not ways[2][-1] < np.inf:
        raise UserError(
            "a lattice without a possible path to a final state",
            remedy="decode the utterance again with a wider beam",
        )
    return BestWays(*ways)


def _fail_on(lattice: Lattice | CompactLattice, bad: int) -> NoReturn:
    """Say which cost is no number; the states' costs are numbered behind the arcs'."""
    if bad < lattice.num_arcs:
        state = int(lattice.source()[bad])
        costs = lattice.graph_cost[bad], lattice.acoustic_cost[bad]
        what = f"an arc at frame {lattice.frame[state]}"
    else:
        state = bad - lattice.num_arcs
        costs = lattice.final_graph_cost[state], lattice.final_acoustic_cost[state]
        what = "a final state"
    raise UserError(
        f"{what} (state {state}) has a graph cost of {costs[0]} and an acoustic cost "
        f"of {costs[1]}",
        remedy="look for NaN in the features and in the log-likelihoods",
    )


@njit(cache=True, nogil=True)
def _scaled_cost(
    graph: float, acoustic: float, scales: tuple[float, float]
) -> tuple[float, bool]:
    """Cost of an arc, inf if it is impossible; and whether the costs are numbers."""
    if graph < np.inf and acoustic < np.inf:
        cost = scales[0] * graph + scales[1] * acoustic
        return cost, cost > -np.inf
    return np.inf, not (np.isnan(graph) or np.isnan(acoustic))


@njit(cache=True, nogil=True)
def _best_ways(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    costs: tuple[np.ndarray, np.ndarray],
    final_costs: tuple[np.ndarray, np.ndarray],
    scales: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Scale the costs and find the best way to each state.

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        costs: graph and acoustic costs of arcs, float32[A].
        final_costs: graph and acoustic costs of states, float32[S].
        scales: factors on graph and acoustic costs.

    Returns:
        The fields of `BestWays`, and the number of a cost that is NaN or -inf.
    """
    end = len(arc_begin) - 1
    arc_cost, final_cost = np.empty(len(next_state)), np.empty(end)
    best = np.full(end + 1, np.inf)
    best[0] = 0.0
    bad = _ALL_IS_WELL
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            cost, is_number = _scaled_cost(costs[0][arc], costs[1][arc], scales)
            if not is_number:
                bad = arc
            arc_cost[arc] = cost
            target = next_state[arc]
            best[target] = min(best[target], best[s] + cost)
        cost, is_number = _scaled_cost(final_costs[0][s], final_costs[1][s], scales)
        if not is_number:
            bad = len(arc_cost) + s
        final_cost[s] = cost
        best[end] = min(best[end], best[s] + cost)
    return arc_cost, final_cost, best, bad


@njit(cache=True, nogil=True)
def _log_weights(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    arc_cost: np.ndarray,
    final_cost: np.ndarray,
    potential: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Measure costs against potentials.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].
        arc_cost: float64[A].
        final_cost: float64[S].
        potential: float64[S + 1].

    Returns:
        Logs of the weights of arcs, float64[A], and of final states, float64[S].
    """
    end = len(final_cost)
    log_weight, final_log_weight = np.empty(len(arc_cost)), np.empty(end)
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            excess = potential[s] + arc_cost[arc] - potential[next_state[arc]]
            # Between states without a way to them it is inf - inf, not a number.
            log_weight[arc] = -excess if excess < np.inf else -np.inf
        final_log_weight[s] = potential[end] - potential[s] - final_cost[s]
    return log_weight, final_log_weight


@njit(cache=True, nogil=True)
def _totals(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
    final_weight: np.ndarray,
) -> np.ndarray:
    """Sum the weights of the ways to each state and to the end, float64[S + 1].

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        weight: float64[A].
        final_weight: float64[S].
    """
    end = len(final_weight)
    total = np.zeros(end + 1)
    total[0] = 1.0
    for s in range(end):
        ways = total[s]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            total[next_state[arc]] += ways * weight[arc]
        total[end] += ways * final_weight[s]
    return total


@njit(cache=True, nogil=True)
def arc_posteriors(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
    final_weight: np.ndarray,
    total: np.ndarray,
) -> np.ndarray:
    """Posteriors of arcs, handed back from the end, float64[A].

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        weight: float64[A], of `Forward`, and so on.
        final_weight: float64[S].
        total: float64[S + 1].
    """
    end = len(final_weight)
    posterior = np.empty(len(weight))
    per_way = np.zeros(end)  # posterior of a state over its sum
    for s in range(end - 1, -1, -1):
        ways = total[s]
        of_state = ways * final_weight[s] / total[end]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            posterior[arc] = ways * weight[arc] * per_way[next_state[arc]]
            of_state += posterior[arc]
        if ways > 0.0:
            per_way[s] = of_state / ways
    return posterior


@njit(cache=True, nogil=True)
def _log_sums(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    arc_cost: np.ndarray,
    final_cost: np.ndarray,
) -> np.ndarray:
    """Log-sum over the ways to each state and to the end, float64[S + 1].

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        arc_cost: float64[A].
        final_cost: float64[S].
    """
    end = len(final_cost)
    alpha = np.full(end + 1, -np.inf)
    alpha[0] = 0.0
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target = next_state[arc]
            alpha[target] = np.logaddexp(alpha[target], alpha[s] - arc_cost[arc])
        alpha[end] = np.logaddexp(alpha[end], alpha[s] - final_cost[s])
    return alpha


@njit(cache=True, nogil=True)
def _log_sums_to_end(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    arc_cost: np.ndarray,
    final_cost: np.ndarray,
) -> np.ndarray:
    """Log-sum over the ways from each state to a final one, float64[S].

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        arc_cost: float64[A].
        final_cost: float64[S].
    """
    beta = -final_cost
    for s in range(len(beta) - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            rest = beta[next_state[arc]] - arc_cost[arc]
            beta[s] = np.logaddexp(beta[s], rest)
    return beta
