"""The best path through a training graph, state by state, without a beam."""

import numpy as np


def best_cost(graph, pdf_of_id, log_likes, scale):
    """Cost of the best path that emits all frames and ends; inf if there is none."""
    num_states = graph.num_states
    arcs = [
        (s, int(graph.ilabel[a]), float(graph.weight[a]), int(graph.next_state[a]))
        for s in range(num_states)
        for a in range(int(graph.arc_begin[s]), int(graph.arc_begin[s + 1]))
    ]
    cost = np.full(num_states, np.inf)
    cost[graph.start] = 0.0
    cost = _without_frames(arcs, cost)
    for frame in log_likes:
        after = np.full(num_states, np.inf)
        for source, label, weight, target in arcs:
            if label:
                new = cost[source] + weight - scale * frame[pdf_of_id[label]]
                after[target] = min(after[target], new)
        cost = _without_frames(arcs, after)
    return float((cost + graph.final).min())


def path_cost(graph, pdf_of_id, transition_ids, log_likes, scale):
    """Cost of the best path with the given transition-ids."""
    masked = np.full((len(log_likes), int(max(pdf_of_id)) + 1), -np.inf)
    rows = np.arange(len(log_likes))
    pdfs = np.asarray(pdf_of_id)[transition_ids]
    masked[rows, pdfs] = log_likes[rows, pdfs]
    return best_cost(graph, pdf_of_id, masked, scale)


def _without_frames(arcs, cost):
    """Extend by arcs that emit nothing, until nothing changes."""
    cost, changed = cost.copy(), True
    while changed:
        changed = False
        for source, label, weight, target in arcs:
            if not label and cost[source] + weight < cost[target] - 1e-12:
                cost[target], changed = cost[source] + weight, True
    return cost
