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
exponential an arc and no logarithm. The sum of a state can be huge (the number of ways
grows exponentially with time), hence it has an exponent beside it.
The *share* of an arc is its part in the sum of its target: the probability that a path
that comes to the target comes over this arc. Backwards, the posterior of a state is
handed out to the arcs into it by their shares, where nothing can overflow.

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

# The sum of a state is total * _BIG**exponent; a total above _BIG raises the exponent.
_BIG = 2.0**500
_SMALL = 1.0 / _BIG
_LOG_BIG = float(np.log(_BIG))
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

    The last entry of the arrays of states is an added end to which all final states
    lead.

    Attributes:
        share: float64[A], part of each arc in the sum of its target, in [0, 1].
        final_share: float64[S], part of each state in the sum of the end.
        total: float64[S + 1], summed weights of the ways to it, see the exponent.
        exponent: int32[S + 1]; the sum is total * 2**(500 * exponent).
        best: float64[S + 1], cost of the best way to each state; inf for none.
    """

    share: np.ndarray
    final_share: np.ndarray
    total: np.ndarray
    exponent: np.ndarray
    best: np.ndarray

    @cached_property
    def alpha(self) -> np.ndarray:
        """Log-sum over the ways to each state and to the end, float64[S + 1]."""
        with np.errstate(divide="ignore"):
            return np.log(self.total) + self.exponent * _LOG_BIG - self.best

    @property
    def log_like(self) -> float:
        """Log of the summed likelihood of all paths."""
        log_total = np.log(self.total[-1]) + self.exponent[-1] * _LOG_BIG
        return float(log_total - self.best[-1])


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
        lattice.arc_begin, lattice.next_state, sums.share, sums.final_share
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
    sums = _forward(lattice.arc_begin, lattice.next_state, *ways)
    return Forward(*sums, ways.best)


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
def _forward(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    arc_cost: np.ndarray,
    final_cost: np.ndarray,
    best: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sum over the ways from the start.

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        arc_cost: float64[A]; overwritten with the shares.
        final_cost: float64[S], likewise.
        best: float64[S + 1], cost of the best way to each state and to the end.

    Returns:
        The fields of `Forward` but the last.
    """
    end = len(final_cost)
    total, exponent = np.zeros(end + 1), np.zeros(end + 1, np.int32)
    total[0] = 1.0
    share, final_share = arc_cost, final_cost  # on the way the weights stand there
    for s in range(end):
        if total[s] > _BIG:
            total[s] *= _SMALL
            exponent[s] += 1
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target = next_state[arc]
            share[arc] = _weight(best[s] + arc_cost[arc] - best[target])
            if exponent[s] == 0 and exponent[target] == 0 and share[arc] >= 0.0:
                total[target] += total[s] * share[arc]
            else:
                _add(s, target, share[arc], total, exponent)
        if final_cost[s] == np.inf:
            final_share[s] = 0.0
        else:
            final_share[s] = _weight(best[s] + final_cost[s] - best[end])
            _add(s, end, final_share[s], total, exponent)
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            share[arc] = _share(s, next_state[arc], share[arc], total, exponent)
        if final_share[s] != 0.0:
            final_share[s] = _share(s, end, final_share[s], total, exponent)
    return share, final_share, total, exponent


@njit(cache=True, nogil=True)
def _weight(excess: float) -> float:
    """exp(-excess) for what a way costs more than the best; 0 if it is impossible.

    Tiny ones come as the negative number -excess, see `_mantissa`. Without any way to
    either end of an arc the excess is inf - inf, not a number.
    """
    if excess < _LOG_BIG:
        return np.exp(-excess) if excess > 0.0 else 1.0
    return -excess if excess < np.inf else 0.0


@njit(cache=True, nogil=True)
def _mantissa(weight: float) -> tuple[float, int]:
    """Take a weight apart into mantissa * _BIG**exponent; the exponent is 0 or less."""
    if weight >= 0.0:
        return weight, 0
    exponent = int(weight / _LOG_BIG)
    return np.exp(weight - exponent * _LOG_BIG), exponent


@njit(cache=True, nogil=True)
def _add(
    source: int, target: int, weight: float, total: np.ndarray, exponent: np.ndarray
) -> None:
    """Add the ways over an arc to the sum of its target, whatever their sizes."""
    mantissa, level = _mantissa(weight)
    way, level = total[source] * mantissa, level + exponent[source]
    while level > exponent[target] and 0.0 < way < 1.0:
        way *= _BIG
        level -= 1
    if level > exponent[target] and way > 0.0:  # the sum so far is the smaller number
        total[target] *= _SMALL ** (level - exponent[target])
        exponent[target] = level
    total[target] += way * _SMALL ** (exponent[target] - level)


@njit(cache=True, nogil=True)
def _share(
    source: int, target: int, weight: float, total: np.ndarray, exponent: np.ndarray
) -> float:
    """Part that an arc has in the sum of its target."""
    if weight == 0.0:
        return 0.0
    mantissa, level = _mantissa(weight)
    level += exponent[source] - exponent[target]
    share = total[source] * mantissa / total[target]
    return share if level == 0 else share * _BIG**level


@njit(cache=True, nogil=True)
def arc_posteriors(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    share: np.ndarray,
    final_share: np.ndarray,
) -> np.ndarray:
    """Posteriors of arcs, handed back from the end by shares, float64[A].

    Args:
        arc_begin: int64[S + 1]; states are in topological order.
        next_state: int32[A].
        share: float64[A], of `Forward`.
        final_share: float64[S], likewise.
    """
    posterior = np.empty(len(share))
    of_state = final_share.copy()
    for s in range(len(final_share) - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            posterior[arc] = of_state[next_state[arc]] * share[arc]
            of_state[s] += posterior[arc]
    return posterior


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
        top = beta[s]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            top = max(top, beta[next_state[arc]] - arc_cost[arc])
        if top == -np.inf:
            continue
        total = np.exp(beta[s] - top)
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            total += np.exp(beta[next_state[arc]] - arc_cost[arc] - top)
        beta[s] = top + np.log(total)
    return beta
