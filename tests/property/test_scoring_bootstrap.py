import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

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
    low, high = rates.min(), rates.max()
    if errors.sum() < min(30, words.sum()):  # few: at least the exact binomial interval
        trials, tail = words.sum(), 0.1 if errors.sum() == 0 else 0.05
        high = max(
            high, 100 * beta.ppf(1 - tail, errors.sum() + 1, trials - errors.sum())
        )
        if errors.sum():
            low = min(
                low, 100 * beta.ppf(tail, errors.sum(), trials - errors.sum() + 1)
            )
    assert low - 1e-6 <= found.low <= found.high <= high + 1e-6


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
