"""Random lattices: n-best lists are the sorted list of all word sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import (
    enumerate_paths,
    lattices_with_a_path,
    path_posteriors,
)

from latflow.lattice.best_path import best_path
from latflow.lattice.n_best import n_best, random_paths

lattices = lattices_with_a_path(4, num_words=4, impossible=0.1)
scales = st.fixed_dictionaries(
    {
        "lm_scale": st.sampled_from([0.0, 1.0, 2.0]),
        "acoustic_scale": st.sampled_from([0.1, 1.0]),
        "word_insertion_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
    }
)


def cost_of(path, setting):
    return (
        setting["lm_scale"] * path.graph_cost
        + setting["acoustic_scale"] * path.acoustic_cost
        + setting["word_insertion_penalty"] * len(path.words)
    )


@given(
    lattice=lattices,
    n=st.sampled_from([1, 2, 5, 100]),
    setting=scales,
    is_compact=st.booleans(),
)
def test_n_best_is_the_sorted_list_of_word_sequences(lattice, n, setting, is_compact):
    given_lattice = lattice.to_compact() if is_compact else lattice
    found = n_best(given_lattice, n, **setting)
    least, ids = {}, {}
    for path in enumerate_paths(lattice):
        if path.cost() < np.inf:
            cost = cost_of(path, setting)
            least[path.words] = min(cost, least.get(path.words, np.inf))
            ids.setdefault(path.words, set()).add(path.transition_ids)
    expected = sorted(least.values())[:n]
    assert [cost_of(path, setting) for path in found] == pytest.approx(
        expected, abs=1e-3
    )
    words = [tuple(path.words.tolist()) for path in found]
    assert len(set(words)) == len(words)
    for path, key in zip(found, words, strict=True):
        assert cost_of(path, setting) == pytest.approx(least[key], abs=1e-3)
        assert tuple(path.transition_ids.tolist()) in ids[key]
        assert (path.word_begin <= path.word_end).all()
    best = best_path(lattice, **setting)
    assert cost_of(found[0], setting) == pytest.approx(cost_of(best, setting), abs=1e-3)


@given(lattice=lattices, n=st.integers(1, 20))
def test_fewer_are_the_beginning_of_more(lattice, n):
    some, more = n_best(lattice, n), n_best(lattice, n + 3)
    for a, b in zip(some, more, strict=False):
        assert a.words.tolist() == b.words.tolist()
    assert len(some) == min(n, len(more))


@given(lattice=lattices_with_a_path(3, spread=0.5), seed=st.integers(0, 99))
def test_random_paths_come_as_often_as_they_are_probable(lattice, seed):
    drawn = random_paths(lattice, 400, np.random.default_rng(seed))
    paths = enumerate_paths(lattice)
    _, posteriors = path_posteriors(paths)
    share = {}
    for path, posterior in zip(paths, posteriors, strict=True):
        key = (path.words, path.transition_ids)
        share[key] = share.get(key, 0.0) + posterior
    counts = dict.fromkeys(share, 0)
    for path in drawn:
        counts[tuple(path.words.tolist()), tuple(path.transition_ids.tolist())] += 1
    for key, posterior in share.items():
        # five standard deviations of a binomial count, and some for rare paths
        slack = 5 * np.sqrt(400 * max(posterior * (1 - posterior), 0.0)) + 6
        assert abs(counts[key] - 400 * posterior) <= slack


def test_the_same_seed_draws_the_same_paths():
    from reference.decode_paths import random_lattice

    lattice = random_lattice(np.random.default_rng(3), 5)
    drawn = [
        [path.words.tolist() for path in random_paths(lattice, 20, generator)]
        for generator in (np.random.default_rng(1), np.random.default_rng(1))
    ]
    assert drawn[0] == drawn[1]
