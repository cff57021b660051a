"""Random lattices: the oracle path is the least wrong of all paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices_with_a_path
from reference.oracle_naive import least_errors

from latflow.lattice.oracle import oracle

references = st.lists(st.integers(1, 4), max_size=4)
lattices = lattices_with_a_path(4, num_words=4, impossible=0.1)


@given(lattice=lattices, reference=references, ignore=st.sets(st.integers(1, 3)))
def test_no_path_has_fewer_errors(lattice, reference, ignore):
    found = oracle(lattice, np.array(reference, np.int32), ignore=ignore)
    errors, cost = least_errors(lattice, reference, ignore)
    assert found.counts.errors == errors
    total = found.path.graph_cost + found.path.acoustic_cost
    assert total == pytest.approx(cost, abs=1e-4)
    assert found.counts.words == sum(word not in ignore for word in reference)
    assert not set(found.words.tolist()) & ignore
    # It is a path of the lattice.
    ids, words = found.path.transition_ids.tolist(), found.path.words.tolist()
    assert (tuple(ids), tuple(words)) in {
        (path.transition_ids, path.words) for path in enumerate_paths(lattice)
    }


@given(lattice=lattices, reference=references)
def test_compact_and_raw_lattices_have_the_same_oracle(lattice, reference):
    wanted = np.array(reference, np.int32)
    raw = oracle(lattice, wanted)
    compact = oracle(lattice.to_compact(), wanted)
    assert compact.counts.errors == raw.counts.errors
    assert compact.path.graph_cost + compact.path.acoustic_cost == pytest.approx(
        raw.path.graph_cost + raw.path.acoustic_cost, abs=1e-4
    )
    assert len(compact.path.transition_ids) == lattice.num_frames


@given(lattice=lattices)
def test_each_path_is_the_oracle_of_its_own_words(lattice):
    for path in enumerate_paths(lattice)[:5]:
        if path.cost() < np.inf:
            found = oracle(lattice, np.array(path.words, np.int32))
            assert found.counts.errors == 0
            assert tuple(found.words) == path.words
