"""Random lattices: files give back what was written, best paths are the best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.decode_paths import lattice_paths, random_lattice

from latflow.lattice.best_path import Scales, best_path, best_paths
from latflow.lattice.io.archives import read_lattices, write_lattices

lattices = st.builds(
    lambda seed, frames: random_lattice(np.random.default_rng(seed), frames),
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 5),
)
scales = st.builds(
    Scales,
    lm_scale=st.sampled_from([0.0, 1.0, 3.0]),
    acoustic_scale=st.sampled_from([0.0, 0.1, 1.0]),
    word_insertion_penalty=st.sampled_from([-1.0, 0.0, 0.5]),
)


@given(items=st.lists(lattices, max_size=3), packed=st.booleans(), binary=st.booleans())
def test_write_then_read_is_the_identity(tmp_path_factory, items, packed, binary):
    path = tmp_path_factory.mktemp("lattices") / ("a.gz" if packed else "a")
    named = [(f"utt-{i}", lattice) for i, lattice in enumerate(items)]
    write_lattices(path, named, binary=binary)
    found = list(read_lattices(path))
    assert [utterance for utterance, _ in found] == [name for name, _ in named]
    for (_, before), (_, after) in zip(named, found, strict=True):
        for name, value in vars(before).items():
            np.testing.assert_array_equal(value, getattr(after, name), err_msg=name)


@given(lattice=lattices, settings=st.lists(scales, min_size=1, max_size=4))
def test_best_path_is_the_best_of_all(lattice, settings):
    many = best_paths(lattice, settings)
    for setting, found in zip(settings, many, strict=True):
        lm_scale, acoustic_scale, penalty = setting
        paths = lattice_paths(lattice, lm_scale, acoustic_scale, penalty)
        least = min(paths, key=lambda path: path.cost)
        cost = (
            lm_scale * found.graph_cost
            + acoustic_scale * found.acoustic_cost
            + penalty * len(found.words)
        )
        assert cost == pytest.approx(least.cost, abs=1e-3)
        assert len(found.transition_ids) == lattice.num_frames
        assert (found.word_begin <= found.word_end).all()
        assert (found.word_end <= lattice.num_frames).all()
        alone = best_path(
            lattice,
            lm_scale=lm_scale,
            acoustic_scale=acoustic_scale,
            word_insertion_penalty=penalty,
        )
        np.testing.assert_array_equal(alone.words, found.words)
        np.testing.assert_array_equal(alone.transition_ids, found.transition_ids)
