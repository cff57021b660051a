"""Rescoring changes each path by what the two models say of its words, no more."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices_with_a_path
from reference.lm_rescore_naive import (
    WORD_IDS,
    WORDS,
    assert_same_paths,
    in_files,
    listed_paths,
    random_lm,
    rescored_paths,
)

from latflow.lang.lm_trie import LmTrie
from latflow.lattice.rescore import rescore

SEEDS = st.integers(0, 2**32 - 1)
LATTICES = lattices_with_a_path(num_words=len(WORDS) + 1)


def models(seed, old_order, new_order, **options):
    """Two random models, as dictionaries; the old one's grammar, the new one's trie."""
    generator = np.random.default_rng(seed)
    old = random_lm(generator, old_order)
    new = random_lm(generator, new_order, **options)
    grammar = in_files(old)[1]
    return old, new, grammar, LmTrie.from_model(in_files(new)[0], WORD_IDS)


@given(LATTICES, SEEDS, st.integers(1, 3), st.integers(1, 5), st.sampled_from([1, 0.5]))
def test_all_paths_cost_what_enumeration_says(lattice, seed, orders, more, lm_scale):
    old, new, grammar, trie = models(seed, orders, more)
    expected = rescored_paths(lattice, old, new, lm_scale)
    found = rescore(lattice, grammar, trie, lm_scale=lm_scale)
    assert_same_paths(listed_paths(found), expected)
    compact = lattice.to_compact()  # it adds costs up in float32
    expected = rescored_paths(compact.to_lattice(), old, new, lm_scale)
    found = rescore(compact, grammar, trie, lm_scale=lm_scale).to_lattice()
    assert_same_paths(listed_paths(found), expected)


@given(LATTICES, SEEDS)
def test_words_unknown_to_the_new_model_take_the_cost_of_unk(lattice, seed):
    old, new, grammar, trie = models(seed, 2, 3, words=WORDS[:2], has_unknown=True)
    expected = rescored_paths(lattice, old, new)
    assert_same_paths(listed_paths(rescore(lattice, grammar, trie)), expected)


@given(LATTICES, SEEDS, st.integers(1, 4))
def test_the_same_model_changes_no_path(lattice, seed, order):
    naive = random_lm(np.random.default_rng(seed), order)
    model, grammar = in_files(naive)
    trie = LmTrie.from_model(model, WORD_IDS)
    for old in (grammar, trie):
        found = rescore(lattice, old, trie)
        assert_same_paths(listed_paths(found), listed_paths(lattice))


@given(LATTICES, SEEDS)
def test_rescoring_is_undone_by_the_scale_minus_one(lattice, seed):
    _, _, grammar, trie = models(seed, 2, 3)
    there = rescore(lattice, grammar, trie)
    back = rescore(there, grammar, trie, lm_scale=-1.0)
    assert_same_paths(listed_paths(back), listed_paths(lattice), tolerance=1e-3)


@given(LATTICES, SEEDS)
def test_states_are_in_order_and_lie_on_paths(lattice, seed):
    _, _, grammar, trie = models(seed, 2, 3)
    found = rescore(lattice, grammar, trie)
    source = found.source()
    assert (found.next_state > source).all()
    consumed = (found.transition_id != 0).astype(int)
    assert (found.frame[found.next_state] == found.frame[source] + consumed).all()
    on_paths = {arc for path in enumerate_paths(found) for arc in path.arcs}
    assert on_paths == set(range(found.num_arcs))
