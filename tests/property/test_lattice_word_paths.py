"""Random lattices: the paths with given words are those that a list of all has."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices_with_a_path

from latflow.lattice.word_paths import word_paths

lattices = lattices_with_a_path(4, num_words=3, impossible=0.1)
few_words = st.lists(st.integers(1, 3), max_size=3)


def listed(lattice):
    """All possible paths, with costs."""
    found = [
        (path.transition_ids, path.words, path.graph_cost, path.acoustic_cost)
        for path in enumerate_paths(lattice)
        if path.cost() < np.inf
    ]
    return sorted(found)


@given(lattice=lattices, other=few_words, pick=st.integers(0, 10**6))
def test_paths_with_given_words(lattice, other, pick):
    every = listed(lattice)
    for words in (tuple(other), every[pick % len(every)][1]):
        expected = [path for path in every if path[1] == words]
        wanted = np.array(words, np.int32)
        found = word_paths(lattice, wanted)
        assert listed(found) == expected if found else not expected
        compact = word_paths(lattice.to_compact(), wanted)
        raw = compact and compact.to_lattice()
        assert len(listed(raw)) == len(expected) if raw else not expected
