import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latflow.scoring.bootstrap import bootstrap_interval, paired_bootstrap

counts = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 9)),
    min_size=1,
    max_size=30,
).map(np.array)
SETTINGS = {"samples": 200, "confidence": 0.9, "seed": 3}


@given(counts=counts)
def test_interval_lies_between_the_best_and_the_worst_utterance(counts):
    errors, _, words = counts.T
    rates = 100 * errors / words
    found = bootstrap_interval(errors, words, **SETTINGS)
    assert rates.min() - 1e-9 <= found.low <= found.high <= rates.max() + 1e-9


@given(counts=counts)
def test_swapping_the_systems_mirrors_the_comparison(counts):
    old, new, words = counts.T
    there = paired_bootstrap(old, new, words, **SETTINGS)
    back = paired_bootstrap(new, old, words, **SETTINGS)
    assert there.difference == -back.difference
    np.testing.assert_allclose([there.low, there.high], [-back.high, -back.low])
    assert there.p_value == back.p_value
    np.testing.assert_allclose(
        there.probability_of_improvement, 1 - back.probability_of_improvement
    )


@given(counts=counts)
def test_a_system_does_not_differ_from_itself(counts):
    old, _, words = counts.T
    same = paired_bootstrap(old, old, words, **SETTINGS)
    assert (same.difference, same.low, same.high) == (0, 0, 0)
    assert same.p_value == 1
    assert same.probability_of_improvement == 0.5


@given(counts=counts)
def test_each_utterance_as_its_own_block_changes_nothing(counts):
    errors, _, words = counts.T
    names = [f"{i:03d}" for i in range(len(words))]
    assert bootstrap_interval(errors, words, **SETTINGS) == bootstrap_interval(
        errors, words, blocks=names, **SETTINGS
    )
