"""Searches that compose HCL and G as they go, beside the graph composed before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.sentences import let_sentences_follow

NUM_PDFS = 3
TID_TO_PDF = np.array([0, 0, 1, 2, 0, 1, 2], np.int32)
BACK_OFF, SENTENCE_END = 6, 7
NO_BEAM = {"beam": 1e9, "lattice_beam": 1e9, "max_active": 10**9, "min_active": 0}


def graph_of(start, arcs, final):
    """Make a graph of (source, ilabel, olabel, weight, target)."""
    records = np.array([arc[1:] for arc in arcs], ARC)
    source = np.array([arc[0] for arc in arcs], np.int64)
    return Graph.from_arc_list(start, source, records, np.array(final, np.float32))


@st.composite
def grammars(draw, num_words=5):
    """G: a unigram state, histories that back off to it, some to one another."""
    num_states = draw(st.integers(1, 4))
    cost = st.floats(0, 3, width=16)
    arcs, final = [], []
    for state in range(num_states):
        is_shortest = state == num_states - 1
        words = draw(st.sets(st.integers(1, num_words), min_size=int(is_shortest)))
        for word in sorted(words):
            to = draw(st.integers(0, num_states - 1))
            arcs.append((state, word, word, draw(cost), to))
        if not is_shortest and draw(st.booleans()):
            to = draw(st.integers(state + 1, num_states - 1))
            arcs.append((state, BACK_OFF, 0, draw(cost), to))
        final.append(draw(cost) if draw(st.booleans()) else np.inf)
    return graph_of(0, arcs, final)


@st.composite
def lexicons(draw, num_words=5, *, is_marked=True):
    """HCL: states in a tree and back to its root, words at any of its arcs."""
    num_states = draw(st.integers(1, 6))
    cost = st.floats(0, 2, width=16)
    arcs = []
    for state in range(num_states):
        if draw(st.booleans()):  # of the HMM
            arcs.append((state, draw(st.integers(1, 6)), 0, draw(cost), state))
        for _ in range(draw(st.integers(1, 3))):
            to = draw(st.integers(0, num_states - 1))
            word = draw(st.integers(0, num_words))
            tid = draw(st.integers(0 if to > state else 1, 6))
            arcs.append((state, tid, word, draw(cost), to))
    if is_marked and draw(st.booleans()):
        at = draw(st.integers(0, num_states - 1))
        arcs.append((at, 0, BACK_OFF, 0.0, at))
    final = [
        draw(cost) if s == 0 or draw(st.booleans()) else np.inf
        for s in range(num_states)
    ]
    return graph_of(0, arcs, final)


def composed_before(hcl, grammar, *, anywhere=False):
    """Compose by definition: all pairs, costs where the arcs have them.

    G backs off where HCL has #0, or anywhere.
    """
    by_word = [{} for _ in range(grammar.num_states)]
    for source, arc in zip(grammar.sources(), grammar.arcs, strict=True):
        by_word[source][int(arc["olabel"])] = arc
    size = grammar.num_states
    arcs = []
    for source, arc in zip(hcl.sources(), hcl.arcs, strict=True):
        for history in range(size):
            word = int(arc["olabel"])
            to, cost, said = history, 0.0, 0
            if word:
                found = by_word[history].get(0 if word == BACK_OFF else word)
                if found is None:
                    continue
                to, cost = int(found["next_state"]), float(found["weight"])
                said = 0 if word == BACK_OFF else word
            arcs.append(
                (
                    source * size + history,
                    int(arc["ilabel"]),
                    said,
                    float(arc["weight"]) + cost,
                    int(arc["next_state"]) * size + to,
                )
            )
    for history, words in enumerate(by_word):
        if anywhere and 0 in words:
            cost, to = float(words[0]["weight"]), int(words[0]["next_state"])
            arcs += [
                (state * size + history, 0, 0, cost, state * size + to)
                for state in range(hcl.num_states)
            ]
    final = (hcl.final[:, None] + grammar.final[None]).ravel()
    return graph_of(hcl.start * size + grammar.start, arcs, final)


def costs_by_words(lattice):
    """Return the least cost of each word sequence of a lattice, by (words, ids)."""
    costs = {}

    def follow(state, words, ids, cost):
        end = float(lattice.final_graph_cost[state])
        if np.isfinite(end):
            key = words, ids
            costs[key] = min(costs.get(key, np.inf), cost + end)
        for a in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            word, tid = int(lattice.word[a]), int(lattice.transition_id[a])
            follow(
                int(lattice.next_state[a]),
                (*words, word) if word else words,
                (*ids, tid) if tid else ids,
                cost + float(lattice.graph_cost[a]) + float(lattice.acoustic_cost[a]),
            )

    follow(0, (), (), 0.0)
    return costs


def attempt(graph, log_likes, **limits):
    """Decode; None where nothing survives or no final state is reached."""
    try:
        decoder = LatticeDecoder(graph, TID_TO_PDF, **(NO_BEAM | limits))
        decoder.num_pdfs = NUM_PDFS
        decoded = decoder.decode(log_likes, acoustic_scale=1.0)
    except UserError:
        return None
    return decoded.lattice if decoded.reached_final else None


def check(expected, found):
    """Compare two lattices path by path."""
    if expected is None:
        assert found is None
        return
    assert found is not None
    wanted, costs = costs_by_words(expected), costs_by_words(found)
    assert costs.keys() == wanted.keys()
    for key, cost in wanted.items():
        assert abs(costs[key] - cost) < 1e-4


def random_scores(frames, seed):
    scores = np.random.default_rng(seed).normal(size=(frames, NUM_PDFS))
    return scores.astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(lexicons(), grammars(), st.integers(1, 4), st.integers(0, 2**31))
def test_lattices_are_those_of_the_graph_composed_before(hcl, grammar, frames, seed):
    scores = random_scores(frames, seed)
    check(
        attempt(composed_before(hcl, grammar), scores),
        attempt(GraphParts(hcl, grammar, BACK_OFF), scores),
    )


@settings(max_examples=150, deadline=None)
@given(lexicons(), grammars(), st.integers(1, 5), st.integers(0, 2**31))
def test_sentences_follow_as_in_the_graph_composed_before(hcl, grammar, frames, seed):
    scores = random_scores(frames, seed)
    several = let_sentences_follow(hcl, SENTENCE_END)
    parts = GraphParts(several, grammar, BACK_OFF, sentence_end=SENTENCE_END)
    check(
        attempt(let_sentences_follow(composed_before(hcl, grammar)), scores),
        attempt(parts, scores),
    )


@settings(max_examples=150, deadline=None)
@given(lexicons(is_marked=False), grammars(), st.integers(1, 4), st.integers(0, 2**31))
def test_where_nothing_says_where_the_grammar_backs_off_behind_words(
    hcl, grammar, frames, seed
):
    scores = random_scores(frames, seed)
    check(
        attempt(composed_before(hcl, grammar, anywhere=True), scores),
        attempt(GraphParts.of(hcl, grammar, None), scores),
    )
