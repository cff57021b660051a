"""What holds for all small graphs, whatever they are."""

import kaldifst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.graphs import canonical, paths
from reference.training_graph import compile_training_graph

from latflow.fst.determinize import LINK, by_source, determinize
from latflow.fst.graph import Graph
from latflow.fst.minimize import minimize_encoded
from latflow.fst.minimize_acyclic import minimize_acyclic
from latflow.fst.openfst import ARC
from latflow.fst.optimize import connect, push_special, remove_epsilons_locally
from latflow.graphs.hclg import load_model
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang

labels = st.integers(0, 3)
costs = st.floats(0, 8, width=16)


@st.composite
def acyclic_graphs(draw):
    """Connected acyclic graphs of up to seven states; the last state is final."""
    num_states = draw(st.integers(2, 7))
    rows = [
        (
            s,
            draw(labels),
            draw(labels),
            draw(costs),
            draw(st.integers(s + 1, num_states - 1)),
        )
        for s in range(num_states - 1)
        for _ in range(draw(st.integers(1, 3)))
    ]
    final = np.full(num_states, np.inf, np.float32)
    final[-1] = draw(costs)
    if draw(st.booleans()):
        final[draw(st.integers(0, num_states - 1))] = draw(costs)
    sources = np.array([row[0] for row in rows])
    arcs = np.array([row[1:] for row in rows], ARC)
    fst = Graph.from_arc_list(0, sources, arcs, final).to_fst()
    kaldifst.connect(fst)
    return Graph.from_fst(fst)


@given(graph=acyclic_graphs(), is_aligned=st.booleans())
def test_written_graphs_are_read_back(graph, is_aligned, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "g.fst"
    graph.save(path, is_aligned=is_aligned)
    again = Graph.load(path)
    assert again.start == graph.start
    np.testing.assert_array_equal(again.arcs, graph.arcs)
    np.testing.assert_array_equal(again.states, graph.states)
    bits = graph.properties.bits
    assert bits & ~graph.to_fst().properties((1 << 48) - 1, test=True) == 0


@given(graph=acyclic_graphs())
def test_epsilon_removal_keeps_all_paths_and_adds_nothing(graph):
    reduced = remove_epsilons_locally(graph)
    assert paths(reduced) == pytest.approx(paths(graph), abs=1e-3)
    assert reduced.num_arcs <= graph.num_arcs
    assert reduced.num_states <= graph.num_states


@given(graph=acyclic_graphs())
def test_pushing_keeps_all_paths(graph):
    pushed = push_special(graph)
    assert paths(pushed) == pytest.approx(paths(graph), abs=1e-3)
    sums = np.exp(-pushed.final.astype(float))
    np.add.at(sums, pushed.sources(), np.exp(-pushed.weight.astype(float)))
    assert np.log(sums.max() / sums.min()) < 2e-3


@st.composite
def deterministic_graphs(draw):
    """Graphs with cycles, few costs, no two arcs of a state alike; perhaps useless."""
    num_states = draw(st.integers(1, 8))
    triples = [(i, o, c) for i in (1, 2) for o in (0, 1) for c in (0.5, 0.5003, 2.0)]
    rows = [
        (s, *triple, draw(st.integers(0, num_states - 1)))
        for s in range(num_states)
        for triple in draw(st.lists(st.sampled_from(triples), unique=True, max_size=4))
    ]
    final = [draw(st.sampled_from([np.inf, 0.0, 1.0])) for _ in range(num_states)]
    sources = np.array([row[0] for row in rows], int)
    arcs = np.array([row[1:] for row in rows], ARC)
    return Graph.from_arc_list(0, sources, arcs, np.array(final, np.float32))


@given(graph=deterministic_graphs())
def test_connected_graphs_are_those_of_openfst(graph):
    fst = graph.to_fst()
    kaldifst.connect(fst)
    wanted, found = Graph.from_fst(fst), connect(graph)
    assert found.start == wanted.start
    np.testing.assert_array_equal(found.arcs, wanted.arcs)
    np.testing.assert_array_equal(found.states, wanted.states)


def coarsest_blocks(graph, rows_of):
    """Number of blocks of states that no sequence of labels tells apart (Moore)."""
    blocks = {s: float(graph.final[s]) for s in range(graph.num_states)}
    count = 0
    while count != len(set(blocks.values())):
        count = len(set(blocks.values()))
        keys = {
            s: (blocks[s], frozenset((*row[:3], blocks[row[3]]) for row in rows_of(s)))
            for s in blocks
        }
        numbers = {key: n for n, key in enumerate(dict.fromkeys(keys.values()))}
        blocks = {s: numbers[key] for s, key in keys.items()}
    return count


@given(graph=deterministic_graphs())
def test_minimized_graphs_are_the_smallest_of_their_paths(graph):
    graph = connect(graph)
    if not graph.num_states:
        return
    small = minimize_encoded(graph)
    rounded = np.floor(graph.weight * 1024 + 0.5) / 1024

    def rows_of(s):
        at = slice(graph.arc_begin[s], graph.arc_begin[s + 1])
        rows = zip(
            graph.ilabel[at],
            graph.olabel[at],
            rounded[at],
            graph.next_state[at],
            strict=True,
        )
        return [tuple(map(float, row)) for row in rows]

    is_deterministic = all(
        len({row[:3] for row in rows_of(s)}) == len(rows_of(s))
        for s in range(graph.num_states)
    )
    fst = graph.to_fst()
    kaldifst.minimize_encoded(fst)
    assert small.num_states >= coarsest_blocks(graph, rows_of)
    if is_deterministic:
        assert small.num_states == coarsest_blocks(graph, rows_of)
        assert canonical(small) == canonical(Graph.from_fst(fst))


def test_arcs_of_the_same_label_are_kept_apart_where_they_lead_apart():
    rows = [(1, 1, 0.0, 1), (1, 1, 0.0, 2), (2, 2, 0.0, 3), (3, 3, 0.0, 3)]
    final = np.array([np.inf, np.inf, np.inf, 0.0], np.float32)
    graph = Graph.from_arc_list(0, np.array([0, 0, 1, 2]), np.array(rows, ARC), final)
    assert paths(minimize_encoded(graph)) == paths(graph)


def test_a_repeated_arc_goes():
    rows = [(1, 1, 0.0, 1), (1, 1, 0.0, 2), (2, 2, 0.0, 3), (2, 2, 0.0, 3)]
    final = np.array([np.inf, np.inf, np.inf, 0.0], np.float32)
    graph = Graph.from_arc_list(0, np.array([0, 0, 1, 2]), np.array(rows, ARC), final)
    small = minimize_encoded(graph)
    assert (small.num_states, small.num_arcs) == (3, 2)


def total_costs(graph):
    """{strings: cost of all paths together, in the log semiring}."""
    found = {}

    def visit(state, ins, outs, cost):
        if graph.final[state] < np.inf:
            key = (ins, outs)
            total = cost + float(graph.final[state])
            found[key] = -np.logaddexp(-found.get(key, np.inf), -total)
        for a in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            i, o = int(graph.ilabel[a]), int(graph.olabel[a])
            following = (ins + ((i,) if i else ()), outs + ((o,) if o else ()))
            visit(int(graph.next_state[a]), *following, cost + float(graph.weight[a]))

    visit(graph.start, (), (), 0.0)
    return found


@st.composite
def positioned_machines(draw):
    """Acyclic machines whose states know how many words are out (nondecreasing)."""
    num_states = draw(st.integers(2, 7))
    steps = draw(
        st.lists(st.integers(0, 2), min_size=num_states - 1, max_size=num_states - 1)
    )
    position = np.concatenate([[0], np.cumsum(steps)])
    rows = [
        (s, draw(labels), draw(st.integers(s + 1, num_states - 1)), draw(costs))
        for s in range(num_states - 1)
        for _ in range(draw(st.integers(1, 3)))
    ]
    return position, np.array(rows, LINK), draw(costs)


@given(machine=positioned_machines())
def test_determinized_machines_have_the_same_totals(machine):
    position, links, cost = machine
    num_words = int(position[-1])
    words = np.arange(101, 101 + num_words)
    final = np.full(len(position), np.inf)
    final[-1] = cost
    begin, links = by_source(links, len(position))
    arcs, finals = determinize(begin, links, position, final, words)
    wanted = {}
    stack = [(0, (), 0.0)]
    while stack:
        state, ins, so_far = stack.pop()
        if final[state] < np.inf:
            total = so_far + final[state]
            wanted[ins] = -np.logaddexp(-wanted.get(ins, np.inf), -total)
        for link in links[begin[state] : begin[state + 1]]:
            label = int(link["label"])
            following = (*ins, label) if label else ins
            stack.append(
                (int(link["target"]), following, so_far + float(link["weight"]))
            )
    wanted = {(ins, tuple(words.tolist())): total for ins, total in wanted.items()}
    arc_begin, kept, costs_left = minimize_acyclic(arcs, finals)
    graph = Graph.from_arrays(
        0,
        arc_begin,
        kept["ilabel"],
        kept["olabel"],
        kept["weight"],
        kept["target"],
        costs_left,
    )
    # Costs are rounded to 1/1024, once an arc.
    assert total_costs(graph) == pytest.approx(wanted, abs=0.02)
    labelled = [
        (int(s), int(i))
        for s, i in zip(graph.sources(), graph.ilabel, strict=True)
        if i != 0
    ]
    assert len(labelled) == len(set(labelled))


@pytest.fixture(scope="module", params=["mono", "tri1"])
def compiled(request, golden):
    lang = Lang.load(golden / "lang")
    tree, model = load_model(golden / f"gmm/{request.param}")
    compiler = TrainingGraphCompiler(
        lang, tree, model, self_loop_scale=0.0, transition_scale=0.0
    )
    return lang, tree, model, compiler


@given(words=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_training_graphs_of_any_words_are_those_of_general_operations(compiled, words):
    lang, tree, model, compiler = compiled
    slow = compile_training_graph(lang, tree, model, words)
    assert canonical(compiler.compile(words), 3) == canonical(slow, 3)
