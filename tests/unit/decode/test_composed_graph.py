"""Graphs in two parts: their file, their memory, their threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from latflow.decode.composed_graph import (
    ComposedGraph,
    GraphParts,
    _phrases,
    let_words_back_off,
)
from latflow.decode.composition import ARCS, PAIRS
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.parts import BACK_OFF, NOTHING
from latflow.decode.potentials import leads_nowhere, potential_of
from latflow.decode.reachable import depth_first_words, next_labels, spans
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.lang.lm_arrays import walk
from latflow.lattice.best_path import best_path

NUM_WORDS, NUM_PDFS = 40, 6
BACK = NUM_WORDS + 1  # the number of #0
TID_TO_PDF = np.array([0, *range(NUM_PDFS)], np.int32)


def graph_of(start, arcs, final):
    source = np.array([arc[0] for arc in arcs], np.int64)
    records = np.array([arc[1:] for arc in arcs], ARC)
    return Graph.from_arc_list(start, source, records, np.array(final, np.float32))


def lexicon():
    """HCL: a tree of two phones a word, whose second one has the word."""
    arcs = [(0, 0, BACK, 0.0, 0)]
    num_states = 1
    for first in range(1, NUM_PDFS + 1):
        node, num_states = num_states, num_states + 1
        arcs += [(0, first, 0, 0.1, node), (node, first, 0, 0.2, node)]
        for word in range(first, NUM_WORDS + 1, NUM_PDFS):
            arcs.append((node, 1 + (word // NUM_PDFS) % NUM_PDFS, word, 0.3, 0))
    return graph_of(0, arcs, [0.0] + [np.inf] * (num_states - 1))


def grammar(seed=0):
    """G: bigrams that back off to unigrams."""
    rng = np.random.default_rng(seed)
    size = NUM_WORDS + 1
    arcs = [(0, w, w, float(rng.uniform(2, 5)), w) for w in range(1, size)]
    for history in range(1, size):
        words = rng.choice(np.arange(1, size), 5, replace=False)
        arcs += [(history, w, w, float(rng.uniform(0, 2)), w) for w in sorted(words)]
        arcs.append((history, BACK, 0, 0.7, 0))
    return graph_of(0, arcs, [3.0] + [1.0] * NUM_WORDS)


def scores(seed, frames=12):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(frames, NUM_PDFS)).astype(np.float32)


def parts():
    return GraphParts.of(lexicon(), grammar(), "HCLG.fst")


def test_the_parts_are_one_behind_the_other_in_a_file(tmp_path):
    path = tmp_path / "HCLG.fst"
    with path.open("wb") as stream:
        lexicon().write(stream, is_aligned=True)
        grammar().write(stream, is_aligned=True)
    hcl, g = Graph.load_all(path)
    assert hcl.arcs.tobytes() == lexicon().arcs.tobytes()
    assert g.arcs.tobytes() == grammar().arcs.tobytes()
    assert GraphParts.of(hcl, g, path).back_off == BACK
    with pytest.raises(UserError, match="in two parts"):
        Graph.load(path)


def test_a_grammar_without_marks_backs_off_behind_words():
    plain = graph_of(0, [(0, 1, 1, 0.0, 0)], [0.0])
    assert GraphParts.of(plain, grammar(), None).back_off == 0
    marked, number = let_words_back_off(plain)
    assert (marked.olabel == number).sum() == 1
    assert marked.num_states == 2


def test_phones_that_back_off_are_composed_once_not_for_every_history():
    """Determinized HCL backs off by the arcs of the first phones."""
    apart = lexicon()
    both = zip(apart.sources(), apart.arcs.tolist(), strict=True)
    arcs = [(source, *arc) for source, arc in both]
    merged = graph_of(
        0,
        [a for a in arcs if a[2] != BACK]
        + [(0, a[1], BACK, *a[3:]) for a in arcs if a[0] == 0 and a[1] > 0],
        apart.final,
    )
    found = []
    for hcl in (apart, merged):
        graph = GraphParts.of(hcl, grammar(), "HCLG.fst")
        decoder = LatticeDecoder(graph, TID_TO_PDF, beam=30.0, max_active=100_000)
        paths = [
            best_path(decoder.decode(scores(seed), acoustic_scale=1.0).lattice)
            for seed in range(10)
        ]
        composed = decoder._engine.graph.current().packed.composition
        made = composed.transition_id[: composed.counts[ARCS]]
        found.append((paths, np.count_nonzero(made)))
    (paths, emitting), (others, others_emitting) = found
    for path, other in zip(paths, others, strict=True):
        assert path.words.tolist() == other.words.tolist()
        assert path.graph_cost == pytest.approx(other.graph_cost, abs=1e-4)
    assert others_emitting == emitting, found


def test_parts_without_a_word_in_common_are_refused():
    other = graph_of(0, [(0, 99, 99, 1.0, 0)], [np.inf])
    with pytest.raises(UserError, match="no word in common"):
        ComposedGraph(GraphParts(lexicon(), other, BACK, "HCLG.fst"), TID_TO_PDF)


def test_a_look_tells_pairs_that_lead_nowhere():
    made = ComposedGraph(parts(), TID_TO_PDF)._parts
    pairs = [
        (part, state)
        for part in range(len(made.hcl.final))
        for state in range(len(made.any_word))
    ]
    seen = np.array([leads_nowhere(made, *pair) for pair in pairs])
    is_dead = np.array([potential_of(made, *pair) == np.inf for pair in pairs])
    assert seen.tolist() == is_dead.tolist()  # what comes next is one range here
    assert 0.1 < seen.mean() < 0.9


def test_where_a_word_stands_is_known_if_it_is_listed_behind_others():
    g = grammar()
    frequent, rare, alone, missing = 1, 2, 3, NUM_WORDS + 7
    is_root = g.sources() == 0
    arcs = [(int(s), *arc) for s, arc in zip(g.sources(), g.arcs.tolist(), strict=True)]
    costs = {frequent: 1.0, rare: 9.0, alone: 1.0}
    arcs = [
        (*arc[:3], costs.get(arc[2], arc[3]) if at_root else arc[3], arc[4])
        for arc, at_root in zip(arcs, is_root, strict=True)
        if at_root or arc[2] != alone
    ]
    own = graph_of(0, arcs, g.final)
    graph = ComposedGraph(GraphParts.of(lexicon(), own, None), TID_TO_PDF)
    found = [graph.expects(word) for word in (frequent, rare, alone, missing)]
    assert found == [True, False, False, False]
    listed = [graph.has(word) for word in (frequent, rare, alone, missing)]
    assert listed == [True, True, True, False]


def test_threads_share_what_is_composed():
    decoder = LatticeDecoder(parts(), TID_TO_PDF, beam=20.0, lattice_beam=6.0)

    def search(seed):
        decoded = decoder.decode(scores(seed), acoustic_scale=1.0)
        return decoded.lattice.word.tolist(), decoded.lattice.graph_cost.tolist()

    seeds = list(range(200))
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(search, seeds))
    alone = LatticeDecoder(parts(), TID_TO_PDF, beam=20.0, lattice_beam=6.0)
    for seed, (words, costs) in zip(seeds[::10], together[::10], strict=True):
        lattice = alone.decode(scores(seed), acoustic_scale=1.0).lattice
        # arcs come in the order in which they were composed first
        assert sorted(words) == sorted(lattice.word.tolist())
        np.testing.assert_allclose(
            np.sort(costs), np.sort(lattice.graph_cost), rtol=1e-5, atol=1e-5
        )


def test_a_graph_that_fills_up_begins_anew_for_the_next_search():
    composed = ComposedGraph(parts(), TID_TO_PDF, most_pairs=400, most_arcs=1000)
    before = composed.current()
    before.packed.composition.counts[ARCS] = 251
    after = composed.current()
    assert after is not before
    assert after.packed.composition.counts.tolist() == [1, 0]
    assert composed.current() is after


@pytest.mark.parametrize("most", [{"most_pairs": 30}, {"most_arcs": 30}])
def test_a_search_that_finds_no_space_fails(most):
    sizes = {"most_pairs": 10_000, "most_arcs": 10_000} | most
    decoder = LatticeDecoder(parts(), TID_TO_PDF, beam=50.0)
    decoder._engine = type(decoder._engine)(
        ComposedGraph(parts(), TID_TO_PDF, **sizes),
        decoder.num_pdfs,
        decoder._engine.limits,
        lattice_beam=6.0,
        prune_interval=100,
    )
    for _ in range(3):  # the lock is open again
        with pytest.raises(MemoryError, match="space for composed arcs"):
            decoder.decode(scores(1), acoustic_scale=1.0)


def test_pairs_that_lead_nowhere_are_left_out():
    # G knows the words 1 and 7 alone, both behind the first phone.
    g = graph_of(0, [(0, 1, 1, 0.5, 0), (0, 7, 7, 0.5, 0)], [0.0])
    composed = ComposedGraph(GraphParts(lexicon(), g, BACK), TID_TO_PDF)
    decoder = LatticeDecoder(GraphParts(lexicon(), g, BACK), TID_TO_PDF)
    lattice = decoder.decode(scores(0), acoustic_scale=1.0).lattice
    assert set(lattice.word.tolist()) <= {0, 1, 7}
    packed = decoder._engine.current_graph().packed
    first = packed.arcs["code"][: packed.states[1]["begin"]]
    assert len(first) == 1
    assert composed.current().packed.composition.counts[PAIRS] == 1


def slow_next_labels(hcl, labels, end):
    """Follow all paths until they have a label."""
    found = []
    for state in range(hcl.num_states):
        seen, queue, next_ = {state}, [state], set()
        for at in queue:
            if np.isfinite(hcl.final[at]):
                next_.add(end)
            for a in range(hcl.arc_begin[at], hcl.arc_begin[at + 1]):
                if labels[a] != NOTHING:
                    next_.add(int(labels[a]))
                elif hcl.next_state[a] not in seen:
                    seen.add(int(hcl.next_state[a]))
                    queue.append(int(hcl.next_state[a]))
        found.append(next_)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_next_labels_are_those_that_paths_come_to(seed):
    rng = np.random.default_rng(seed)
    num_states, num_arcs = int(rng.integers(1, 12)), int(rng.integers(1, 40))
    arcs = [
        (
            int(rng.integers(num_states)),
            1,
            int(rng.choice([0, 0, rng.integers(1, 20), BACK])),
            0.0,
            int(rng.integers(num_states)),
        )
        for _ in range(num_arcs)
    ]
    final = np.where(rng.random(num_states) < 0.3, 0.0, np.inf)
    hcl = graph_of(0, arcs, final)
    words = np.where(hcl.olabel == BACK, 0, hcl.olabel).astype(np.int32)
    order = depth_first_words(0, hcl.arc_begin, np.asarray(hcl.next_state), words)
    assert len(set(order.tolist())) == len(order)
    label_of = np.full(64, 50, np.int32)  # of words that the walk doesn't meet
    label_of[order] = np.arange(len(order))
    labels = np.where(words > 0, label_of[words], NOTHING).astype(np.int32)
    labels[hcl.olabel == BACK] = BACK_OFF
    reach = next_labels(
        hcl.arc_begin, np.asarray(hcl.next_state), labels, np.isfinite(hcl.final), 60
    )
    for state, expected in enumerate(slow_next_labels(hcl, labels, 60)):
        number = reach.set_of[state]
        rows = reach.ranges[reach.begin[number] : reach.begin[number + 1]]
        inside = {label for low, high in rows for label in range(low, high + 1)}
        assert inside == expected - {BACK_OFF}
        assert reach.can_back_off[number] == (BACK_OFF in expected)
        assert (rows[1:, 0] > rows[:-1, 1] + 1).all()
        first, last = spans(reach)[state].tolist()
        if BACK_OFF in expected:
            assert first == -1
        elif expected:
            assert (first, last) == (min(expected), max(expected))
        else:
            assert first > last


def test_what_phrases_give_back_is_what_the_model_backs_off_by():
    random = np.random.default_rng(1)
    phrases = {
        tuple(random.integers(1, 4, random.integers(1, 6)).tolist()): float(boost)
        for boost in random.uniform(0.0, 5.0, 30)
    }
    found = _phrases(phrases, np.arange(5, dtype=np.int32))
    other = int(found.label_of[4])
    expected = [walk(found.lm, n, other)[0] for n in range(len(found.refund))]
    np.testing.assert_allclose(found.refund, expected, atol=1e-5)


def test_a_long_phrase_takes_time_as_it_has_words():
    seconds = []
    for number in (2_000, 64_000):
        began = time.process_time()
        found = _phrases({(1,) * number: 4.0}, np.arange(3, dtype=np.int32))
        seconds.append(time.process_time() - began)
        assert len(found.refund) == number + 1
    assert seconds[1] < 200 * seconds[0]  # 1024 times if by pairs of words, else 32
