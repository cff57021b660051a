"""Graphs of several sentences against all divisions of a string into single ones."""

from itertools import product

import numpy as np
import pytest

from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.sentences import let_sentences_follow


def graph_of(arcs, final, num_states, start=0):
    """arcs: (source, input, output, cost, target); final: {state: cost}."""
    records = np.array([(i, o, w, t) for _, i, o, w, t in arcs], ARC)
    costs = np.full(num_states, np.inf, np.float32)
    for state, cost in final.items():
        costs[state] = cost
    source = np.array([s for s, *_ in arcs], np.int64)
    return Graph.from_arc_list(start, source, records, costs)


def best_costs(graph, length):
    """{input string: least cost of an accepting path} up to a length.

    Fails where arcs without input come back to where they began.
    """

    def closed(costs):
        for _ in range(graph.num_states + 1):
            after = dict(costs)
            for state, cost in costs.items():
                for label, weight, target in arcs_of(graph, state):
                    known = after.get(target, np.inf)
                    if not label:
                        after[target] = min(known, cost + weight)
            if after == costs:
                return costs
            costs = after
        raise AssertionError("no end")

    def arcs_of(graph, state):
        arcs = slice(*graph.arc_begin[state : state + 2])
        columns = (graph.ilabel[arcs], graph.weight[arcs], graph.next_state[arcs])
        return zip(*(c.tolist() for c in columns), strict=True)

    labels = sorted(set(graph.ilabel.tolist()) - {0})
    found = {}
    for size in range(length + 1):
        for string in product(labels, repeat=size):
            costs = closed({graph.start: 0.0})
            for label in string:
                after = {}
                for state, cost in costs.items():
                    for own, weight, target in arcs_of(graph, state):
                        if own == label:
                            known = after.get(target, np.inf)
                            after[target] = min(known, cost + weight)
                costs = closed(after)
            ends = [cost + float(graph.final[state]) for state, cost in costs.items()]
            found[string] = min(ends, default=np.inf)
    return found


def divided(single):
    """The same of several sentences, none of them empty if there are two."""
    best = dict(single)
    for string in sorted(single, key=len):
        for at in range(1, len(string)):
            total = best[string[:at]] + single[string[at:]]
            best[string] = min(best[string], total)
    return best


# Back-off: the start 0 backs off to 1, where words have no history and sentences may
# end, also without a word; 2 and 3 are histories. Label 1 is dear after 2.
BACKOFF = [
    (0, 1, 1, 0.5, 2),
    (0, 0, 0, 1.0, 1),
    (1, 1, 1, 3.0, 2),
    (1, 2, 2, 4.0, 3),
    (2, 2, 2, 0.25, 3),
    (2, 0, 0, 2.0, 1),
    (3, 0, 0, 0.5, 1),
]


def test_each_sentence_begins_as_an_utterance_does():
    graph = graph_of(BACKOFF, {1: 5.0, 3: 0.125}, 4)
    single, found = best_costs(graph, 4), best_costs(let_sentences_follow(graph), 4)
    assert found == pytest.approx(divided(single))
    assert found[1, 2] == 0.5 + 0.25 + 0.125  # as it was
    assert found[1, 2, 1, 2] == 2 * found[1, 2]
    assert single[1, 2, 1, 2] == 0.5 + 0.25 + 0.5 + 3.0 + 0.25 + 0.125
    assert found[()] == single[()] == 6.0


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_have_the_best_division(seed):
    rng = np.random.default_rng(seed)
    num_states = 5
    arcs = [
        (s, int(rng.integers(1, 3)), 0, float(rng.uniform(0, 4)), int(t))
        for s, t in rng.integers(0, num_states, (9, 2))
    ]
    for s, t in np.sort(rng.integers(0, num_states, (4, 2))):  # of no cycle
        if s < t:
            arcs.append((int(s), 0, 0, float(rng.uniform(0, 4)), int(t)))
    ends = rng.integers(0, num_states, 2)
    final = {int(state): float(rng.uniform(0, 4)) for state in ends}
    graph = graph_of(arcs, final, num_states)
    single, found = best_costs(graph, 4), best_costs(let_sentences_follow(graph), 4)
    assert found == pytest.approx(divided(single), abs=1e-4)


def test_a_final_start_has_no_way_back_without_a_frame():
    graph = graph_of([(0, 1, 1, 1.0, 0)], {0: 0.5}, 1)
    found = let_sentences_follow(graph)
    assert best_costs(found, 2) == pytest.approx({(): 0.5, (1,): 1.5, (1, 1): 2.5})
    assert (found.num_states, found.num_final_states) == (2, 1)
