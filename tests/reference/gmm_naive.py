"""Slow, obvious versions of the GMM kernels, in float64 and plain loops."""

import math

import numpy as np


def log_gauss(x, mean, variance):
    """log N(x; mean, diag(variance))."""
    return -0.5 * sum(
        math.log(2 * math.pi * v) + (a - m) ** 2 / v
        for a, m, v in zip(x, mean, variance, strict=True)
    )


def log_sum_exp(values):
    """log of a sum of exponentials."""
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def scores(gmms, x, pdf):
    """log(weight * density) of each Gaussian of a pdf."""
    return [
        math.log(gmms.weights[g]) + log_gauss(x, gmms.means[g], gmms.variances[g])
        for g in range(gmms.begin[pdf], gmms.begin[pdf + 1])
    ]


def accumulate(gmms, frames, pdfs):
    """(moments float64[G, 1 + 2 D], total log-likelihood) of aligned frames."""
    moments = np.zeros((gmms.num_gaussians, 1 + 2 * gmms.dim))
    total = 0.0
    for x, pdf in zip(frames.astype(np.float64), pdfs, strict=True):
        if pdf < 0:
            continue
        log_likes = scores(gmms, x, pdf)
        total += log_sum_exp(log_likes)
        for k, value in enumerate(log_likes):
            posterior = math.exp(value - log_sum_exp(log_likes))
            moments[gmms.begin[pdf] + k] += posterior * np.r_[1.0, x, x * x]
    return moments, total


def cheapest_path(graph, acoustic_costs, column):
    """Least cost over every path that emits each frame once, by enumeration.

    Paths may hold at most as many silent arcs in a row as there are states (costs of
    silent cycles are not negative in these graphs).
    """
    num_frames = len(acoustic_costs)
    best = math.inf

    def go(state, t, silent, cost):
        nonlocal best
        if t == num_frames and np.isfinite(graph.final[state]):
            best = min(best, cost + float(graph.final[state]))
        for arc in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            target, weight = int(graph.next_state[arc]), float(graph.weight[arc])
            if column[arc] < 0:
                if silent < graph.num_states:
                    go(target, t, silent + 1, cost + weight)
            elif t < num_frames:
                emitted = float(acoustic_costs[t, column[arc]])
                go(target, t + 1, 0, cost + weight + emitted)

    go(graph.start, 0, 0, 0.0)
    return best


def cheapest_path_by_recursion(graph, acoustic_costs):
    """The same for long utterances, cost by state; label l emits column l - 1."""
    source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
    cost = np.full(graph.num_states, math.inf)
    cost[graph.start] = 0.0

    def follow_silent_arcs():
        for _ in range(graph.num_states):
            for arc in np.flatnonzero(graph.ilabel == 0):
                reached = cost[source[arc]] + float(graph.weight[arc])
                target = graph.next_state[arc]
                cost[target] = min(cost[target], reached)

    follow_silent_arcs()
    for frame in acoustic_costs:
        before, cost[:] = cost.copy(), math.inf
        for arc in np.flatnonzero(graph.ilabel > 0):
            emitted = float(graph.weight[arc]) + float(frame[graph.ilabel[arc] - 1])
            target = graph.next_state[arc]
            cost[target] = min(cost[target], before[source[arc]] + emitted)
        follow_silent_arcs()
    return float((cost + graph.final).min())


def is_path(graph, arcs, column):
    """Whether emitting arcs can follow each other from the start to a final state."""

    def silent_closure(states):
        states = set(states)
        for _ in range(graph.num_states):
            states |= {
                int(graph.next_state[a])
                for s in states
                for a in range(graph.arc_begin[s], graph.arc_begin[s + 1])
                if column[a] < 0
            }
        return states

    source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
    here = silent_closure({graph.start})
    for arc in arcs:
        if source[arc] not in here:
            return False
        here = silent_closure({int(graph.next_state[arc])})
    return any(np.isfinite(graph.final[s]) for s in here)


def map_mean(old, frames, posteriors, tau):
    """Mean that maximizes sum_t gamma_t log N(x_t; m, v) + tau log N(m; old, v).

    The variance v does not matter; a maximum is where the gradient is zero.
    """
    total = tau * np.asarray(old, np.float64)
    count = tau
    for x, posterior in zip(frames, posteriors, strict=True):
        total = total + posterior * x
        count += posterior
    return total / count
