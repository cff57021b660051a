"""Sums over the paths of a lattice: the one module that walks over all of them.

Both kinds of lattice become `ScaledArcs`, topologically sorted arcs with one cost each,

    cost = lm_scale * graph cost + acoustic_scale * acoustic cost.

In the tropical semiring (least cost) there are `best_costs` from the start and
`costs_to_end`; in the log semiring, where a path has the likelihood exp(-cost),
`forward` sums from the start and `forward_backward` gives the posterior of each arc,
the share of the paths that take it. alpha and beta are the logs of the sums over the
paths from the start to a state and from it to an end, so that

    log posterior(arc) = alpha[source] - cost(arc) + beta[target] - log_like.

Log sums are computed with potentials, the costs of the best paths to states.
Measured against potentials an arc weighs exp(-(what the best path over this arc costs
more)), at most 1, and 1 on the best path: sums of such weights are plain additions,
with one exponential an arc and no logarithm. The sum of a state is at least 1 and can
outgrow a float (the number of paths grows exponentially with time). Where it does,
alpha, had by log-additions, becomes the potential instead, and all sums are 1.
Backwards, the posterior of a state is handed out to the arcs into it in the proportions
of their part in its sum, where nothing can overflow.

Paths themselves: `latflow.lattice.best_path`.

Source: Rabiner 1989, "A tutorial on hidden Markov models", section III (alpha, beta);
the same numbers as Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackward`,
`ComputeLatticeAlphasAndBetas`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit
from latflow.lattice.lattice import CompactLattice, Lattice

_BIG = 2.0**500  # sums beyond it are begun again with better potentials
_NONE_IS_BAD = -1  # in place of the number of a bad cost


class ScaledArcs(NamedTuple):
    """The arcs of a lattice with scaled costs; S states, A arcs.

    Attributes:
        arc_begin: int64[S + 1]; states are in topological order, 0 is the start.
        next_state: int32[A].
        cost: float64[A]; inf where an arc is impossible.
        final_cost: float64[S]; inf where a state is not final.
    """

    arc_begin: np.ndarray
    next_state: np.ndarray
    cost: np.ndarray
    final_cost: np.ndarray


def scaled_arcs(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> ScaledArcs:
    """Scale the costs of a lattice.

    Args:
        lattice: raw or compact. A cost of inf (a score of -inf) makes an arc
            impossible, at a scale of 0 too.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Raises:
        UserError: a cost is NaN or -inf; the message names the frame (and the caller,
            who knows it, adds the utterance).
    """
    scales = float(lm_scale), float(acoustic_scale)
    cost, final_cost, bad, bad_final = _scaled(
        (lattice.graph_cost, lattice.acoustic_cost),
        (lattice.final_graph_cost, lattice.final_acoustic_cost),
        scales,
    )
    if bad != _NONE_IS_BAD:
        state = int(np.searchsorted(lattice.arc_begin, bad, "right")) - 1
        costs = lattice.graph_cost[bad], lattice.acoustic_cost[bad]
        _fail(f"an arc at frame {lattice.frame[state]} (state {state})", costs)
    if bad_final != _NONE_IS_BAD:
        costs = (
            lattice.final_graph_cost[bad_final],
            lattice.final_acoustic_cost[bad_final],
        )
        _fail(f"a final state (state {bad_final})", costs)
    return ScaledArcs(lattice.arc_begin, lattice.next_state, cost, final_cost)


def _fail(what: str, costs: tuple[float, float]) -> NoReturn:
    """Raise a UserError that says which cost is NaN."""
    raise UserError(
        f"{what} has a graph cost of {costs[0]} and an acoustic cost of {costs[1]}",
        remedy="look for NaN in the features and in the log-likelihoods",
    )


def best_costs(arcs: ScaledArcs) -> np.ndarray:
    """Return the cost of the best path from the start to each state.

    Returns:
        float64[S + 1]; inf without one; that to the end in the last entry.

    Raises:
        UserError: no path leads to a final state.
    """
    best = _best_costs(arcs)
    _check_path(best)
    return best


def _check_path(best: np.ndarray) -> None:
    """Raise UserError unless the best path to the end, of `best_costs`, is one."""
    if len(best) == 1 or not best[-1] < np.inf:
        raise UserError(
            "a lattice without a path to a final state",
            remedy="decode the utterance again with a wider beam",
        )


@dataclass(frozen=True, eq=False)
class Forward:
    """Sums over the paths from the start; S states, A arcs.

    The last entry of `total` and `potential` is for an added end to which all final
    states lead.

    Attributes:
        arcs: the arcs.
        weight: float64[A], weight of each arc against the potentials, in [0, 1].
        final_weight: float64[S], likewise of the arcs to the end.
        total: float64[S + 1], summed weights of the paths to each state; the part of an
            arc in it is total[source] * weight / total[target].
        potential: float64[S + 1], a cost: alpha = log(total) - potential.
    """

    arcs: ScaledArcs
    weight: np.ndarray
    final_weight: np.ndarray
    total: np.ndarray
    potential: np.ndarray

    @cached_property
    def alpha(self) -> np.ndarray:
        """Log-sum over the paths to each state and to the end, float64[S + 1]."""
        with np.errstate(divide="ignore"):
            return np.log(self.total) - self.potential

    @property
    def log_like(self) -> float:
        """Log of the summed likelihood of all paths."""
        return float(np.log(self.total[-1]) - self.potential[-1])


@dataclass(frozen=True, eq=False)
class ForwardBackward:
    """Sums over all paths of a lattice; S states, A arcs.

    Attributes:
        arc_posterior: float64[A], share of the paths that take each arc, in [0, 1].
        log_like: log of the summed likelihood of all paths.
        forward: the sums over the paths from the start.
    """

    arc_posterior: np.ndarray
    log_like: float
    forward: Forward

    @property
    def final_posterior(self) -> np.ndarray:
        """Share of the paths that end in each state, float64[S]."""
        sums = self.forward
        with np.errstate(divide="ignore", invalid="ignore"):
            return sums.total[:-1] * sums.final_weight / sums.total[-1]

    @property
    def alpha(self) -> np.ndarray:
        """Log-sum over the paths from the start to each state, float64[S]."""
        return self.forward.alpha[:-1]

    @cached_property
    def beta(self) -> np.ndarray:
        """Log-sum over the paths from each state to an end, float64[S].

        Final costs are part of it; -inf where no path leads to a final state.
        """
        return _log_sums_to_end(self.forward.arcs)


def forward_backward(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> ForwardBackward:
    """Sum over all paths of a lattice, forwards and backwards.

    Args:
        lattice: raw or compact, with a path to a final state; see `scaled_arcs`.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        Posteriors of arcs, the total, and (computed when asked for) alpha and beta.

    Raises:
        UserError: no path leads to a final state, or a cost is NaN or -inf.

    Numerics: float64; no sum overflows, and none is cut off. The posterior is the
        derivative of log_like to the arc's scaled score, so that
        d log_like / d acoustic cost = -acoustic_scale * posterior.
    """
    sums = forward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    posterior = _arc_posteriors(
        *sums.arcs[:2], sums.weight, sums.final_weight, sums.total
    )
    return ForwardBackward(posterior, sums.log_like, sums)


def forward(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> Forward:
    """Sum over the paths from the start; arguments and errors of `forward_backward`."""
    return forward_sums(
        scaled_arcs(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    )


def forward_sums(arcs: ScaledArcs) -> Forward:
    """Sum over the paths from the start; raise UserError if none leads to an end."""
    potential, weights = _best_weights(*arcs)
    _check_path(potential)
    # numpy takes several exponentials at once, which a loop over arcs does not.
    np.exp(weights, out=weights)
    total, is_finite = _totals(*arcs[:2], weights)
    if not is_finite:
        potential = -_log_sums(arcs)
        weights = np.exp(_log_weights(arcs, potential))
        total, _ = _totals(*arcs[:2], weights)
    num_arcs = len(arcs.cost)
    return Forward(arcs, weights[:num_arcs], weights[num_arcs:], total, potential)


def expected_arc_score(sums: Forward, score: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute the mean of the summed scores of a path's arcs, and its derivative.

    Args:
        sums: of the lattice.
        score: float64[A].

    Returns:
        (expectation; its derivative to -cost of each arc, float64[A]: the posterior of
        the arc times what the mean over its paths is above the expectation).
    """
    return _expected_arc_score(
        sums.arcs, sums.weight, sums.final_weight, sums.total, score
    )


@njit(cache=True, nogil=True)
def _scaled(
    costs: tuple[np.ndarray, np.ndarray],
    final_costs: tuple[np.ndarray, np.ndarray],
    scales: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Scale graph and acoustic costs of arcs and of final states.

    Returns:
        float64[A], float64[S], and of each the number of a cost that is NaN or -inf.
    """
    cost, final_cost = np.empty(len(costs[0])), np.empty(len(final_costs[0]))
    bad = _scale(costs[0], costs[1], scales, cost)
    bad_final = _scale(final_costs[0], final_costs[1], scales, final_cost)
    return cost, final_cost, bad, bad_final


@njit(cache=True, nogil=True)
def _scale(
    graph: np.ndarray,
    acoustic: np.ndarray,
    scales: tuple[float, float],
    cost: np.ndarray,
) -> int:
    """Fill `cost` with scaled sums; return the number of one that is NaN."""
    num_infinite = 0
    for n in range(len(graph)):  # without a branch, so that several go at once
        cost[n] = scales[0] * graph[n] + scales[1] * acoustic[n]
        num_infinite += not abs(cost[n]) < np.inf
    bad = _NONE_IS_BAD
    if num_infinite == 0:
        return bad
    for n in range(len(graph)):
        if abs(cost[n]) < np.inf:
            continue
        if graph[n] < np.inf and acoustic[n] < np.inf:
            bad = n  # -inf
        elif np.isnan(graph[n]) or np.isnan(acoustic[n]):
            bad = n
        cost[n] = np.inf
    return bad


@njit(cache=True, nogil=True)
def _best_costs(arcs: ScaledArcs) -> np.ndarray:
    """Compute what `best_costs` returns."""
    arc_begin, next_state, cost, final_cost = arcs
    end = len(final_cost)
    best = np.full(end + 1, np.inf)
    best[0] = 0.0
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target = next_state[arc]
            best[target] = min(best[target], best[s] + cost[arc])
        best[end] = min(best[end], best[s] + final_cost[s])
    return best


@njit(cache=True, nogil=True)
def costs_to_end(arcs: ScaledArcs) -> np.ndarray:
    """Return the cost of the best path from each state to the end, float64[S].

    Final costs are part of it; inf where no path leads to a final state.
    """
    arc_begin, next_state, cost, final_cost = arcs
    best = final_cost.copy()
    for s in range(len(best) - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            best[s] = min(best[s], cost[arc] + best[next_state[arc]])
    return best


@njit(cache=True, nogil=True)
def _best_weights(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    cost: np.ndarray,
    final_cost: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs of the best paths, and log weights against them."""
    # Arrays one by one: to look at a named tuple's type takes a call longer.
    arcs = ScaledArcs(arc_begin, next_state, cost, final_cost)
    best = _best_costs(arcs)
    return best, _log_weights(arcs, best)


@njit(cache=True, nogil=True)
def _log_weights(arcs: ScaledArcs, potential: np.ndarray) -> np.ndarray:
    """Return logs of the weights of arcs, then of final states, float64[A + S].

    Args:
        arcs: the arcs.
        potential: float64[S + 1].
    """
    arc_begin, next_state, cost, final_cost = arcs
    end = len(final_cost)
    log_weight = np.empty(len(cost) + end)
    for s in range(end):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            excess = potential[s] + cost[arc] - potential[next_state[arc]]
            # Between states that no path reaches it is inf - inf, not a number.
            log_weight[arc] = -excess if excess < np.inf else -np.inf
        log_weight[len(cost) + s] = potential[end] - potential[s] - final_cost[s]
    return log_weight


@njit(cache=True, nogil=True)
def _totals(
    arc_begin: np.ndarray, next_state: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Sum the weights of the paths to each state and to the end, float64[S + 1].

    Returns:
        (sums; True if all are far from overflow).
    """
    end, num_arcs = len(arc_begin) - 1, len(next_state)
    total = np.zeros(end + 1)
    total[0] = 1.0
    for s in range(end):
        so_far = total[s]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            total[next_state[arc]] += so_far * weights[arc]
        total[end] += so_far * weights[num_arcs + s]
    num_large = 0
    for s in range(end + 1):  # without a branch
        num_large += not total[s] < _BIG
    return total, num_large == 0


@njit(cache=True, nogil=True)
def _arc_posteriors(
    arc_begin: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
    final_weight: np.ndarray,
    total: np.ndarray,
) -> np.ndarray:
    """Hand posteriors back from the end, float64[A]; arguments as in `Forward`."""
    end = len(final_weight)
    posterior = np.empty(len(weight))
    per_unit = np.zeros(end)  # posterior of a state over its sum
    for s in range(end - 1, -1, -1):
        so_far = total[s]
        of_state = so_far * final_weight[s] / total[end]
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            posterior[arc] = so_far * weight[arc] * per_unit[next_state[arc]]
            of_state += posterior[arc]
        if so_far > 0.0:
            per_unit[s] = of_state / so_far
    return posterior


@njit(cache=True, nogil=True)
def _log_sums(arcs: ScaledArcs) -> np.ndarray:
    """Log-sum the paths to each state and to the end, float64[S + 1]."""
    end = len(arcs.final_cost)
    alpha = np.full(end + 1, -np.inf)
    alpha[0] = 0.0
    for s in range(end):
        for arc in range(arcs.arc_begin[s], arcs.arc_begin[s + 1]):
            target = arcs.next_state[arc]
            alpha[target] = np.logaddexp(alpha[target], alpha[s] - arcs.cost[arc])
        alpha[end] = np.logaddexp(alpha[end], alpha[s] - arcs.final_cost[s])
    return alpha


@njit(cache=True, nogil=True)
def _log_sums_to_end(arcs: ScaledArcs) -> np.ndarray:
    """Log-sum the paths from each state to a final one, float64[S]."""
    beta = -arcs.final_cost
    for s in range(len(beta) - 1, -1, -1):
        for arc in range(arcs.arc_begin[s], arcs.arc_begin[s + 1]):
            rest = beta[arcs.next_state[arc]] - arcs.cost[arc]
            beta[s] = np.logaddexp(beta[s], rest)
    return beta


@njit(cache=True, nogil=True)
def _expected_arc_score(
    arcs: ScaledArcs,
    weight: np.ndarray,
    final_weight: np.ndarray,
    total: np.ndarray,
    score: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Compute what `expected_arc_score` returns; without further exponentials.

    The mean score of the paths to a state is the mean over its incoming arcs, weighted
    by their parts in the state's sum.
    """
    arc_begin, next_state = arcs.arc_begin, arcs.next_state
    end = len(final_weight)
    before = np.zeros(end + 1)  # mean score of the paths to a state; first their sum
    for s in range(end):
        so_far = total[s]
        if so_far > 0.0:
            before[s] /= so_far
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            part = so_far * weight[arc]
            before[next_state[arc]] += part * (before[s] + score[arc])
        before[end] += so_far * final_weight[s] * before[s]
    expected = before[end] / total[end]
    derivative = np.empty(len(weight))
    per_unit = np.zeros(end)  # posterior of a state over its sum
    after = np.zeros(end)  # mean score of the paths from a state to the end
    for s in range(end - 1, -1, -1):
        so_far = total[s]
        of_state = so_far * final_weight[s] / total[end]
        rest_sum = 0.0
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target = next_state[arc]
            posterior = so_far * weight[arc] * per_unit[target]
            rest = score[arc] + after[target]
            derivative[arc] = posterior * (before[s] + rest - expected)
            of_state += posterior
            rest_sum += posterior * rest
        if of_state > 0.0:
            per_unit[s] = of_state / so_far
            after[s] = rest_sum / of_state
    return expected, derivative
