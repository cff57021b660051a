"""Boosted lattices: each path gains b for each of its errors."""

import numpy as np
import pytest
from fixtures.small_model import SILENCE, small_model
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices

from latflow.lattice.discriminative import boost

MODEL = small_model()


@given(
    lattice=lattices(impossible=0.1, num_ids=MODEL.num_transition_ids),
    seed=st.integers(0, 2**32 - 1),
    b=st.sampled_from([0.0, 0.1, 2.0]),
    silence_error=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_each_path_gains_by_its_errors(lattice, seed, b, silence_error):
    alignment = np.random.default_rng(seed).integers(
        1, MODEL.num_transition_ids + 1, lattice.num_frames
    )
    before = enumerate_paths(lattice)
    boosted = boost(
        lattice,
        alignment.astype(np.int32),
        MODEL,
        b=b,
        silence_phones=SILENCE,
        max_silence_error=silence_error,
    )
    after = enumerate_paths(boosted)
    assert boosted.graph_cost.dtype == np.float32
    for old, new in zip(before, after, strict=True):
        errors = 0.0
        for heard, said in zip(old.transition_ids, alignment, strict=True):
            if MODEL.phone[heard] != MODEL.phone[said]:
                errors += silence_error if MODEL.phone[heard] in SILENCE else 1.0
        assert new.graph_cost == pytest.approx(old.graph_cost - b * errors, abs=1e-5)
        assert new[1:] == old[1:]
