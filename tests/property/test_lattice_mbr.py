"""Random lattices: sausages and risks against the plain recursion and against paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices_with_a_path
from reference.mbr_naive import (
    DELTA,
    expected_errors,
    plain_sausage,
    word_posteriors,
)

from latflow.lattice.lattice import Lattice
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.lattice.word_graph import WordGraph

lattices = lattices_with_a_path(4, num_words=4, spread=1.0, impossible=0.05)
starts = st.one_of(st.none(), st.lists(st.integers(1, 5), max_size=3))


def places_of(words):
    places = [0]
    for word in words:
        places += [int(word), 0]
    return places


def tree_of(lattice):
    """The same word sequences and costs, each path with arcs of its own."""
    arcs, costs, finals = [], [], [(np.inf, np.inf)]
    for path in enumerate_paths(lattice):
        state = 0
        for arc in path.arcs:
            arcs.append((state, len(finals), *_labels(lattice, arc)))
            costs.append((lattice.graph_cost[arc], lattice.acoustic_cost[arc]))
            state = len(finals)
            finals.append((np.inf, np.inf))
        finals[state] = (
            lattice.final_graph_cost[path.end],
            lattice.final_acoustic_cost[path.end],
        )
    return Lattice.from_arcs(
        np.array(arcs, np.int32),
        np.array(costs, np.float32),
        np.array(finals, np.float32),
    )


def _labels(lattice, arc):
    return lattice.transition_id[arc], lattice.word[arc]


@given(lattice=lattices, words=starts)
def test_sausage_is_that_of_the_plain_recursion(lattice, words):
    found = minimum_bayes_risk(lattice, decode_mbr=False, words=words)
    places = places_of(found.words)
    risk, entries = plain_sausage(WordGraph.of(lattice), places)
    assert found.risk == pytest.approx(risk, abs=1e-6)
    sausage = found.sausage
    assert sausage.num_bins == len(places)
    seen = {}
    for q in range(sausage.num_bins):
        for e in range(sausage.begin[q], sausage.begin[q + 1]):
            seen[q, int(sausage.word[e])] = (
                sausage.posterior[e],
                sausage.start[e],
                sausage.end[e],
            )
    likely = {key for key, value in entries.items() if value[0] > 1e-9}
    assert likely <= seen.keys() <= entries.keys()
    for key in likely:
        assert seen[key] == pytest.approx(entries[key], abs=1e-5)


@given(lattice=lattices, words=starts)
def test_bins_are_distributions_in_order_of_posterior(lattice, words):
    sausage = minimum_bayes_risk(lattice, words=words).sausage
    sums = np.add.reduceat(sausage.posterior, sausage.begin[:-1])
    np.testing.assert_allclose(sums, 1.0, atol=1e-9)
    for q in range(sausage.num_bins):
        posteriors = [posterior for _, posterior in sausage.bin(q)]
        assert posteriors == sorted(posteriors, reverse=True)
    assert (sausage.start <= sausage.end + 1e-9).all()
    assert (sausage.bin_end[:-1] <= sausage.bin_start[1:] + 1e-9).all()


@given(lattice=lattices, words=starts)
def test_risk_never_rises_and_bounds_the_expected_errors(lattice, words):
    found = minimum_bayes_risk(lattice, words=words)
    # Insertions cost DELTA more, and places move between iterations.
    slack = DELTA * (lattice.num_arcs + 1)
    assert (np.diff(found.risks) <= slack).all()
    exact = expected_errors(word_posteriors(lattice), found.words.tolist())
    assert exact <= found.risk + 1e-6
    kept = minimum_bayes_risk(lattice, words=words, decode_mbr=False)
    assert len(kept.risks) == 1
    assert found.risk <= kept.risk + slack


@given(lattice=lattices_with_a_path(3, num_words=3, spread=1.0))
def test_risk_is_exact_where_paths_do_not_rejoin(lattice):
    tree = tree_of(lattice)
    found = minimum_bayes_risk(tree, decode_mbr=False)
    exact = expected_errors(word_posteriors(lattice), found.words.tolist())
    assert found.risk == pytest.approx(exact, abs=DELTA * 20)


@given(lattice=lattices)
def test_words_have_confidences_and_do_not_overlap(lattice):
    compact = lattice.to_compact()
    for print_silence in (False, True):
        found = minimum_bayes_risk(compact, print_silence=print_silence)
        assert ((found.confidence > 0.0) & (found.confidence <= 1.0)).all()
        assert (found.begin <= found.end + 1e-9).all()
        assert (found.end[:-1] <= found.begin[1:] + 1e-9).all()
        if not print_silence:
            assert (found.words != 0).all()
            spoken = found.words
    assert found.words[found.words != 0].tolist() == spoken.tolist()
    assert len(found.words) == found.sausage.num_bins


@given(lattice=lattices, shift=st.floats(-50.0, 50.0))
def test_a_cost_on_all_paths_changes_nothing(lattice, shift):
    from dataclasses import replace

    moved = replace(
        lattice, final_graph_cost=lattice.final_graph_cost + np.float32(shift)
    )
    before, after = minimum_bayes_risk(lattice), minimum_bayes_risk(moved)
    # (rounding may turn a tie of words, hence the risk is compared)
    assert after.risk == pytest.approx(before.risk, abs=1e-3)
