"""Slow views of a graph: canonical form, and all its paths."""

import numpy as np


def canonical(graph, digits=4):
    """(arcs, final costs) with states numbered breadth first, arcs sorted.

    Two deterministic graphs are the same up to numbering if these are equal.
    """
    number = {graph.start: 0}
    queue, arcs, final = [graph.start], [], []
    for state in queue:
        final.append(round(float(graph.final[state]), digits))
        rows = sorted(
            (
                int(graph.ilabel[a]),
                int(graph.olabel[a]),
                round(float(graph.weight[a]), digits) + 0.0,
                int(graph.next_state[a]),
            )
            for a in range(graph.arc_begin[state], graph.arc_begin[state + 1])
        )
        for ilabel, olabel, weight, target in rows:
            if target not in number:
                number[target] = len(number)
                queue.append(target)
            arcs.append((number[state], ilabel, olabel, weight, number[target]))
    return arcs, final


def paths(graph):
    """{(input string, output string): least cost} of an acyclic graph."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def visit(state, ins, outs, cost):
        if graph.final[state] < np.inf:
            key = (ins, outs)
            total = cost + float(graph.final[state])
            found[key] = min(found.get(key, np.inf), total)
        for a in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            i, o = int(graph.ilabel[a]), int(graph.olabel[a])
            visit(
                int(graph.next_state[a]),
                ins + ((i,) if i else ()),
                outs + ((o,) if o else ()),
                cost + float(graph.weight[a]),
            )

    if graph.num_states:
        visit(graph.start, (), (), 0.0)
    return found
