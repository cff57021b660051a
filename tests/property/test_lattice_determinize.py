"""Random lattices: determinizing keeps the best path of each word sequence."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reference.determinize_naive import (
    compact_paths,
    dense_lattice,
    determinized,
    raw_paths,
    tangled_lattice,
)

from latflow.errors import UserError
from latflow.lattice.determinize.pruned import Limits, TooLargeError, determinize

lattices = st.builds(
    lambda seed, frames: tangled_lattice(np.random.default_rng(seed), frames),
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 6),
)
MANY = 20000


def listed(lattice):
    """All paths of a lattice, if these are some but not too many."""
    paths = raw_paths(lattice)
    assume(0 < len(paths) < MANY)
    return paths


def by_words(result):
    """The paths of a determinized lattice; no two may have the same words."""
    paths = compact_paths(result)
    found = {path.words: path for path in paths}
    assert len(found) == len(paths)
    return found


def assert_deterministic(result):
    assert (result.word != 0).all()
    edges = list(zip(result.source().tolist(), result.word.tolist(), strict=True))
    assert len(set(edges)) == len(edges)


@given(lattice=lattices)
def test_without_a_beam_each_word_sequence_keeps_its_best_path(lattice):
    paths = listed(lattice)
    result = determinize(lattice, beam=np.inf)
    assert_deterministic(result)
    assert by_words(result) == determinized(paths)
    assert result.num_frames == lattice.num_frames


@given(lattice=lattices, beam=st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_all_within_the_beam_is_kept_and_nothing_is_made_up(lattice, beam):
    wanted = determinized(listed(lattice))
    result = determinize(lattice, beam=beam)
    assert_deterministic(result)
    found = by_words(result)
    least = min(path.order(1, 1)[0] for path in wanted.values())
    for words, path in found.items():
        assert wanted[words].order(1, 1)[:1] <= path.order(1, 1)[:1]
    for words, path in wanted.items():
        if path.order(1, 1)[0] <= least + beam - 1e-6:
            assert found[words] == path


@given(
    lattice=lattices,
    seed=st.integers(0, 99),
    lm_scale=st.sampled_from([0.5, 1.0, 3.0]),
    acoustic_scale=st.sampled_from([0.05, 0.1, 1.0]),
)
def test_costs_are_those_of_the_lattice_at_any_scales(
    lattice, seed, lm_scale, acoustic_scale
):
    generator = np.random.default_rng(seed)
    lattice.graph_cost[:] += generator.normal(0, 1, lattice.num_arcs)
    lattice.acoustic_cost[:] += generator.normal(0, 50, lattice.num_arcs)
    paths = listed(lattice)
    wanted = determinized(paths, lm_scale, acoustic_scale)
    scales = {"lm_scale": lm_scale, "acoustic_scale": acoustic_scale}
    found = by_words(determinize(lattice, beam=np.inf, **scales))
    assert found.keys() == wanted.keys()
    raw = {(path.words, path.transition_ids) for path in paths}
    for words, path in found.items():
        assert (words, path.transition_ids) in raw
        cost = path.order(lm_scale, acoustic_scale)[0]
        # merging states whose costs differ by less than delta may cost that much
        best = wanted[words].order(lm_scale, acoustic_scale)[0]
        assert cost == pytest.approx(best, abs=len(words) / 256 + 1e-3)


@given(
    lattice=lattices,
    max_arcs=st.integers(0, 9),
    beam=st.sampled_from([1.0, 2.0, np.inf]),
)
def test_a_limit_keeps_the_best_part(lattice, max_arcs, beam):
    wanted = determinized(listed(lattice))
    least = min(path.order(1, 1)[0] for path in wanted.values())
    best = [path for path in wanted.values() if path.order(1, 1)[0] == least]
    try:
        result = determinize(lattice, beam=beam, limits=Limits(arcs=max_arcs))
    except UserError as error:
        assert "within the limits" in str(error)  # noqa: PT017
        assert max_arcs <= sum(len(path.words) + 1 for path in best)
        return
    assert_deterministic(result)
    found = by_words(result)
    assert found.items() <= wanted.items()
    assert min(path.order(1, 1)[0] for path in found.values()) == least


@given(lattice=lattices)
def test_determinizing_again_changes_no_path(lattice):
    listed(lattice)
    once = determinize(lattice, beam=np.inf)
    again = determinize(once, beam=np.inf)
    assert by_words(again) == by_words(once)
    assert again.num_states <= once.num_states


@given(lattice=lattices)
def test_chains_become_arcs_and_arcs_become_chains(lattice):
    paths = sorted(listed(lattice))
    compact = lattice.to_compact()
    assert sorted(compact_paths(compact)) == paths
    assert sorted(raw_paths(compact.to_lattice())) == paths
    once = determinize(lattice, beam=np.inf)
    spread = once.to_lattice()
    assert sorted(raw_paths(spread)) == sorted(compact_paths(once))
    assert (np.diff(spread.arc_begin) >= 0).all()
    assert (spread.next_state > spread.source()).all()
    consumed = spread.transition_id != 0
    steps = spread.frame[spread.next_state] - spread.frame[spread.source()]
    np.testing.assert_array_equal(steps, consumed)


few_labels = st.builds(
    lambda seed, frames, words, noise: dense_lattice(
        np.random.default_rng(seed), frames, words, noise=noise
    ),
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 8),
    words=st.integers(1, 3),
    noise=st.sampled_from([0.0, 0.3, 3.0]),
)


@given(lattice=few_labels)
def test_results_larger_than_the_lattice_are_whole(lattice):
    paths = raw_paths(lattice)
    assume(len(paths) < MANY)
    result = determinize(lattice, beam=np.inf)
    assert_deterministic(result)
    found, wanted = by_words(result), determinized(paths)
    assert found.keys() == wanted.keys()
    for words, path in found.items():
        best = wanted[words].order(1, 1)[0]
        assert path.order(1, 1)[0] == pytest.approx(best, abs=len(words) / 256 + 1e-3)


@given(lattice=few_labels, work=st.integers(0, 3000))
def test_a_bound_on_work_keeps_the_best_path_or_says_that_it_can_not(lattice, work):
    notes, limits = [], Limits(work=work)
    least = (
        min(path.order(1, 1)[0] for path in raw_paths(lattice))
        if (lattice.num_arcs < 40)
        else None
    )
    try:
        result = determinize(lattice, beam=9.0, limits=limits, note=notes.append)
    except TooLargeError as error:
        assert f"{lattice.num_arcs} arcs" in str(error)  # noqa: PT017
        return
    again = determinize(lattice, beam=9.0, limits=limits, note=notes.append)
    np.testing.assert_array_equal(again.word, result.word)
    assert len(notes) in (0, 2)
    assert_deterministic(result)
    if least is not None:
        found = min(path.order(1, 1)[0] for path in compact_paths(result))
        assert found == pytest.approx(least, abs=0.11)


def test_a_hopeless_lattice_ends_with_a_narrower_beam():
    generator = np.random.default_rng(7)
    lattice = dense_lattice(generator, 120, 2, noise=0.1)
    notes = []
    options = {"limits": Limits(work=2_000_000), "note": notes.append}
    result = determinize(lattice, beam=50.0, **options)
    assert_deterministic(result)
    assert "not 50" in notes[0]
    assert f"{lattice.num_arcs} arcs" in notes[0]


def test_a_lattice_of_ties_is_left_with_its_size():
    lattice = dense_lattice(np.random.default_rng(7), 120, 2, noise=0.0)
    with pytest.raises(TooLargeError, match="353 states, 1050 arcs"):
        determinize(lattice, beam=50.0, limits=Limits(work=200_000))
