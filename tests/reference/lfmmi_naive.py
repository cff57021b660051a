"""LF-MMI the slow and obvious way: dense matrices, explicit paths; random graphs."""

import itertools
import math

import numpy as np
import torch

from latflow.fst.graph import Graph


def graph_of(start, arcs, final):
    """A graph of (source, target, label, cost) and {state: final cost}."""
    arcs = sorted(arcs, key=lambda arc: arc[0])
    num_states = 1 + max([start, *final, *(max(arc[:2]) for arc in arcs)])
    source, target, label, cost = (list(column) for column in zip(*arcs, strict=True))
    finals = np.full(num_states, np.inf, np.float32)
    for state, value in final.items():
        finals[state] = value
    begin = np.searchsorted(source, np.arange(num_states + 1))
    return Graph.from_arrays(start, begin, label, label, cost, target, finals)


def random_denominator(rng, num_states, num_arcs, num_pdfs):
    """A graph in which every state can be left and reached; initial probabilities."""
    ring = [(s, (s + 1) % num_states) for s in range(num_states)]
    more = rng.integers(num_states, size=(num_arcs - num_states, 2)).tolist()
    arcs = [
        (s, e, int(rng.integers(1, num_pdfs + 1)), float(rng.uniform(0, 3)))
        for s, e in [*ring, *more]
    ]
    initial = rng.dirichlet(np.ones(num_states))
    return graph_of(0, arcs, dict.fromkeys(range(num_states), 0.0)), initial


def random_supervision(rng, num_frames, num_pdfs, *, width=3):
    """A graph whose states belong to one frame each; each path has T arcs."""
    states = [[0]]
    for _ in range(num_frames):
        begin = states[-1][-1] + 1
        states.append(list(range(begin, begin + int(rng.integers(1, width + 1)))))
    arcs = []
    for before, after in itertools.pairwise(states):
        pairs = {(s, int(rng.choice(after))) for s in before}
        pairs |= {(int(rng.choice(before)), e) for e in after}
        for pair in sorted(pairs):
            pdf = int(rng.integers(1, num_pdfs + 1))
            arcs.append((*pair, pdf, float(rng.normal())))
    return graph_of(0, arcs, {s: float(rng.normal()) for s in states[-1]})


def dense(graph):
    """(source, target, pdf, probability) of the arcs, float64."""
    return (
        torch.from_numpy(graph.sources().astype(np.int64)),
        torch.from_numpy(graph.next_state.astype(np.int64)),
        torch.from_numpy(graph.ilabel.astype(np.int64)) - 1,
        torch.from_numpy(np.exp(-graph.weight.astype(np.float64))),
    )


def denominator_log_like(log_likes, graph, initial, leaky):
    """Log-likelihood of one sequence [T, P], with torch's derivative."""
    source, target, pdf, probability = dense(graph)
    start = torch.from_numpy(initial)
    state = start
    for scores in log_likes:
        state = state + leaky * state.sum() * start
        matrix = torch.zeros(len(start), len(start), dtype=torch.float64).index_put(
            (source, target), probability * scores[pdf].exp(), accumulate=True
        )
        state = state @ matrix
    return (state.sum() * (1.0 + leaky * start.sum())).log()


def numerator_log_like(log_likes, graph):
    """Log-likelihood of the paths of T arcs that end in a final state."""
    source, target, pdf, probability = dense(graph)
    state = torch.zeros(graph.num_states, dtype=torch.float64)
    state[graph.start] = 1.0
    for scores in log_likes:
        matrix = torch.zeros(len(state), len(state), dtype=torch.float64).index_put(
            (source, target), probability * scores[pdf].exp(), accumulate=True
        )
        state = state @ matrix
    return (
        (state * torch.from_numpy(np.exp(-graph.final.astype(np.float64)))).sum().log()
    )


def paths_of(graph, num_frames, starts):
    """All ways of T arcs from the states `starts`: (states, pdfs, cost)."""
    found = [((state,), (), 0.0) for state in starts]
    for _ in range(num_frames):
        found = [
            (
                (*states, int(graph.next_state[arc])),
                (*pdfs, int(graph.ilabel[arc]) - 1),
                cost + float(graph.weight[arc]),
            )
            for states, pdfs, cost in found
            for arc in range(
                graph.arc_begin[states[-1]], graph.arc_begin[states[-1] + 1]
            )
        ]
    return found


def denominator_by_paths(log_likes, graph, initial, leaky):
    """Sum over explicit ways through graph and leaks, and posteriors of pdfs [T, P].

    Each frame, and the end, can begin with a leak from the state to any other.
    """
    ways = [((state,), (), float(p)) for state, p in enumerate(initial)]
    for t in range(len(log_likes) + 1):
        ways += [
            ((*states[:-1], state), pdfs, weight * leaky * float(p))
            for states, pdfs, weight in ways
            for state, p in enumerate(initial)
        ]
        if t == len(log_likes):
            break
        ways = [
            (
                (*states, int(graph.next_state[arc])),
                (*pdfs, int(graph.ilabel[arc]) - 1),
                weight
                * math.exp(
                    log_likes[t, graph.ilabel[arc] - 1] - float(graph.weight[arc])
                ),
            )
            for states, pdfs, weight in ways
            for arc in range(
                graph.arc_begin[states[-1]], graph.arc_begin[states[-1] + 1]
            )
        ]
    total = math.fsum(weight for _, _, weight in ways)
    posteriors = np.zeros_like(log_likes)
    for _, pdfs, weight in ways:
        posteriors[range(len(pdfs)), list(pdfs)] += weight / total
    return math.log(total), posteriors


def numerator_by_paths(log_likes, graph):
    """Sum over explicit paths, and posteriors of pdfs [T, P]."""
    weighted = []
    for states, pdfs, cost in paths_of(graph, len(log_likes), [graph.start]):
        acoustic = sum(float(log_likes[t, pdf]) for t, pdf in enumerate(pdfs))
        weighted.append(
            (pdfs, math.exp(acoustic - cost - float(graph.final[states[-1]])))
        )
    total = math.fsum(weight for _, weight in weighted)
    posteriors = np.zeros_like(log_likes)
    for pdfs, weight in weighted:
        posteriors[range(len(pdfs)), list(pdfs)] += weight / total
    return math.log(total), posteriors
