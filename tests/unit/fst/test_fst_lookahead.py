"""FSTs of the types `olabel_lookahead` and `ngram`, and their composition.

`reference/openfst_files.py` has files of OpenFst's.
"""

from collections import defaultdict

import numpy as np
import pytest
from reference.openfst_files import WORDS, write_files

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.lookahead import load_lookahead
from latflow.fst.lookahead_composition import compose_lookahead
from latflow.fst.openfst import read_header, read_symbols


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path)


def arcs_of(graph):
    """Return the arcs as (state, input, output, next state, cost rounded)."""
    return sorted(
        (int(state), int(a["ilabel"]), int(a["olabel"]), int(a["next_state"]),
         round(float(a["weight"]), 3))
        for state, a in zip(graph.sources(), graph.arcs, strict=True)
    )  # fmt: skip


def sequences(graph, length):
    """Return the least cost of each (input, output) with so many inputs at most."""
    best = defaultdict(lambda: np.inf)
    todo = [(graph.start, (), (), 0.0)]
    while todo:
        state, inputs, outputs, cost = todo.pop()
        if np.isfinite(graph.final[state]):
            key = inputs, outputs
            best[key] = min(best[key], cost + float(graph.final[state]))
        for arc in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            label, word = int(graph.ilabel[arc]), int(graph.olabel[arc])
            longer = inputs + (label,) * bool(label)
            if len(longer) <= length:
                more = outputs + (word,) * bool(word)
                to, weight = int(graph.next_state[arc]), float(graph.weight[arc])
                todo.append((to, longer, more, cost + weight))
    return dict(best)


def test_an_ngram_file_has_the_arcs_of_the_model_it_was_made_of(files):
    graph = Graph.load(files / "G.fst")
    model = Graph.load(files / "A.fst")
    assert (graph.num_states, graph.start) == (9, 1)
    # states are in another order: contexts by their words, the empty one first
    words = {
        int(graph.next_state[a]): int(graph.ilabel[a])
        for a in range(graph.arc_begin[1])
    }
    other = {
        int(model.next_state[a]): int(model.ilabel[a])
        for a in range(model.arc_begin[1], model.arc_begin[2])
    }
    by_word = {word: state for state, word in words.items()}
    same = {1: 0, 0: 1, **{state: by_word[word] for state, word in other.items()}}
    moved = [
        (same[state], label, label, same[to], cost)
        for state, label, _, to, cost in arcs_of(model)
    ]
    assert arcs_of(graph) == sorted(moved)
    finals = [model.final[state] for state in sorted(same, key=same.get)]
    np.testing.assert_array_equal(graph.final, np.array(finals, np.float32))
    assert graph.properties.is_ilabel_sorted
    np.testing.assert_array_equal(
        graph.num_input_epsilons, [0] + [1] * (graph.num_states - 1)
    )


def test_the_symbols_are_read(files):
    raw = memoryview((files / "G.fst").read_bytes())
    found, at = read_symbols(raw, read_header(raw).symbols)
    assert {word: found[word] for word in WORDS} == WORDS
    assert read_symbols(raw, at) == (found, read_header(raw).body)


def test_the_words_that_can_come_next_are_those_on_the_paths(files):
    graph, reach = load_lookahead(files / "HCL.fst")
    for state in range(graph.num_states):
        seen, todo, wanted = set(), [state], set()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            wanted |= {reach.final_label} if np.isfinite(graph.final[at]) else set()
            for arc in range(graph.arc_begin[at], graph.arc_begin[at + 1]):
                word = int(graph.olabel[arc])
                wanted |= {word} if word else set()
                todo += [] if word else [int(graph.next_state[arc])]
        rows = reach.intervals[reach.begin[state] : reach.begin[state + 1]]
        assert {x for low, high in rows for x in range(low, high)} == wanted


@pytest.mark.parametrize("grammar", ["G", "A"])
def test_the_composition_has_the_paths_and_costs_of_openfst(files, grammar):
    hcl, reach = load_lookahead(files / "HCL.fst")
    ours = compose_lookahead(
        hcl, reach, Graph.load(files / f"{grammar}.fst"), most_arcs=1000
    )
    theirs = Graph.load(files / "HCLG.fst")
    found, wanted = sequences(ours, 5), sequences(theirs, 5)
    if grammar == "A":  # it gives the numbers from before the words were numbered anew
        new = {number: WORDS[f"w{number}"] for number in range(1, 8)}
        found = {
            (inputs, tuple(new[word] for word in words)): cost
            for (inputs, words), cost in found.items()
        }
    assert len(wanted) > 20
    assert found.keys() == wanted.keys()
    for key, cost in wanted.items():  # theirs has been rounded on one side
        assert found[key] == pytest.approx(cost, abs=0.005)
    assert ours.num_states <= theirs.num_states


def test_costs_of_words_are_charged_where_they_are_known(files):
    """Behind back-off to no context, an arc has the summed cost of what it leads to."""
    hcl, reach = load_lookahead(files / "HCL.fst")
    grammar = Graph.load(files / "G.fst")
    graph = compose_lookahead(hcl, reach, grammar, most_arcs=1000)
    begin, end = grammar.arc_begin[:2]
    known = dict(
        zip(grammar.ilabel[begin:end].tolist(), grammar.weight[begin:end], strict=True)
    )
    checked, first = 0, graph.next_state[0]
    assert (graph.ilabel[0], graph.olabel[0]) == (0, 0)
    for arc in range(graph.arc_begin[first], graph.arc_begin[first + 1]):
        label = graph.ilabel[arc]
        if not label or graph.olabel[arc]:
            continue
        (source,) = np.flatnonzero((hcl.ilabel == label) & (hcl.sources() == hcl.start))
        target = hcl.next_state[source]
        rows = reach.intervals[reach.begin[target] : reach.begin[target + 1]]
        costs = [known[x] for low, high in rows for x in range(low, high) if x in known]
        summed = -np.log(np.exp(-np.array(costs)).sum())
        expected = float(hcl.weight[source]) + summed
        assert graph.weight[arc] == pytest.approx(expected, abs=0.001)
        checked += 1
    assert checked


def test_a_composition_that_grows_too_large_is_refused(files):
    hcl, reach = load_lookahead(files / "HCL.fst")
    with pytest.raises(UserError, match="more than 20 arcs"):
        compose_lookahead(hcl, reach, Graph.load(files / "G.fst"), most_arcs=20)


@pytest.mark.parametrize("name", ["HCL", "G"])
def test_a_cut_file_is_refused_in_one_line(files, name):
    path = files / f"{name}.fst"
    raw = path.read_bytes()
    load = load_lookahead if name == "HCL" else Graph.load
    for length in range(0, len(raw) - 8, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(UserError, match="FST|file is empty"):
            load(path)


def test_a_file_of_another_type_has_no_words_to_come(files):
    with pytest.raises(UserError, match="type ngram, not olabel_lookahead"):
        load_lookahead(files / "G.fst")
