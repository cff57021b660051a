"""FSTs of the types `olabel_lookahead` and `ngram`, and their composition.

`fixtures/openfst_files.py` has files of OpenFst's.
"""

from collections import defaultdict

import numpy as np
import pytest
from fixtures.openfst_files import WORDS, write_files

from latflow.decode.composed_graph import ComposedGraph, GraphParts
from latflow.decode.composition import ARCS, PAIRS, make_arcs
from latflow.decode.parts import STATE_BITS
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, read_header, read_symbols
from latflow.serving.vosk_folder import VoskGraph, in_one_numbering


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


def expanded(parts):
    """Compose all that can be reached."""
    composed = ComposedGraph(parts, np.arange(300), most_pairs=500, most_arcs=5000)
    made = composed.current().packed.composition
    pair = 0
    while pair < made.counts[PAIRS]:
        make_arcs(made, 2 * pair)
        pair += 1
    begin = made.states["begin"][: 2 * pair].reshape(-1, 2)
    source = np.repeat(np.arange(pair), begin[:, 1] - begin[:, 0])
    size = made.counts[ARCS]
    arcs = np.empty(size, ARC)
    arcs["ilabel"], arcs["olabel"] = made.transition_id[:size], made.word[:size]
    arcs["weight"] = made.arcs["weight"][:size]
    arcs["next_state"] = (made.arcs["code"][:size] & STATE_BITS) // 2
    return Graph.from_arc_list(0, source, arcs, made.final[: 2 * pair : 2])


@pytest.mark.parametrize("grammar", ["G", "A"])
def test_the_composition_has_the_paths_and_costs_of_openfst(files, grammar):
    # the acceptor gives the numbers from before the words were numbered anew
    old = {f"w{number}": number for number in range(1, 8)}
    hcl, lm = in_one_numbering(
        VoskGraph(
            Graph.load(files / "HCL.fst"),
            Graph.load(files / f"{grammar}.fst"),
            WORDS if grammar == "G" else old,
        )
    )
    ours = expanded(GraphParts.of(hcl, lm, None))
    found, wanted = sequences(ours, 5), sequences(Graph.load(files / "HCLG.fst"), 5)
    if grammar == "A":
        new = {number: WORDS[f"w{number}"] for number in range(1, 8)}
        found = {
            (inputs, tuple(new[word] for word in words)): cost
            for (inputs, words), cost in found.items()
        }
    assert len(wanted) > 20
    assert found.keys() == wanted.keys()
    for key, cost in wanted.items():  # theirs has been rounded
        assert found[key] == pytest.approx(cost, abs=0.005)


@pytest.mark.parametrize("name", ["HCL", "G"])
def test_a_cut_file_is_refused_in_one_line(files, name):
    path = files / f"{name}.fst"
    raw = path.read_bytes()
    # behind the arcs HCL tells what can come next, which is found out anew
    whole = len(raw) - 8 if name == "G" else len(raw) // 2
    for length in range(0, whole, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(UserError, match="FST|file is empty"):
            Graph.load(path)
