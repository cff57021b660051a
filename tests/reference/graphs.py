"""Views of graphs, slow and obvious; graphs as Kaldi stores them."""

import gzip

import numpy as np

from latflow.fst.graph import Graph


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


def read_graphs(path):
    """(key, graph) of an archive of FSTs as Kaldi writes it (`.gz` too)."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as stream:
        raw = stream.read()
    at = 0
    while at < len(raw):
        space = raw.index(b" ", at)
        key = raw[at:space].decode()
        graph, at = Graph._parse(memoryview(raw), space + 1, path)
        graph.check(name=path)
        yield key, graph


def add_transition_probs(graph, model, *, transition_scale=1.0, self_loop_scale=0.1):
    """Add the costs of transitions to a graph made without (Kaldi's function)."""
    arcs = np.array(graph.arcs)
    scaled = model.scaled_log_prob(transition_scale, self_loop_scale)
    arcs["weight"] -= scaled[graph.ilabel]
    return Graph(graph.start, graph.states, arcs)
