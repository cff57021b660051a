"""Pruned lattices hold the paths within the beam, and arcs that such paths take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths, lattices_with_a_path

from latflow.errors import UserError
from latflow.lattice.best_path import best_path
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.prune import depth_per_frame, prune

small_lattices = lattices_with_a_path(impossible=0.1)
beams = st.sampled_from([0.01, 1.0, 4.0, 20.0, np.inf])
SCALES = {"lm_scale": 2.0, "acoustic_scale": 0.5}


@given(lattice=small_lattices, beam=beams)
def test_arcs_stay_if_a_path_within_the_beam_takes_them(lattice, beam):
    paths = [path for path in enumerate_paths(lattice) if path.cost() < np.inf]
    cutoff = min(path.cost(**SCALES) for path in paths) + beam
    good = [path for path in paths if path.cost(**SCALES) <= cutoff]
    found = prune(lattice, beam, **SCALES)
    assert found.num_arcs == len({arc for path in good for arc in path.arcs})
    assert np.isfinite(found.final_graph_cost).sum() == len({p.end for p in good})
    left = [path[:4] for path in enumerate_paths(found)]
    for path in good:  # in the same bits
        assert path[:4] in left
    assert {path[:4] for path in paths} >= set(left)
    assert found.num_frames == lattice.num_frames
    check_consistency(found)


def check_consistency(lattice):
    """What `from_arcs` makes of the arcs is the lattice itself."""
    arcs = np.stack(
        [
            lattice.source(),
            lattice.next_state,
            lattice.transition_id,
            lattice.word,
        ],
        axis=1,
    )
    again = Lattice.from_arcs(
        arcs.astype(np.int32),
        np.stack([lattice.graph_cost, lattice.acoustic_cost], axis=1),
        np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], axis=1),
    )
    for name, value in vars(lattice).items():
        np.testing.assert_array_equal(value, getattr(again, name), err_msg=name)
        if name != "num_frames":
            assert value.dtype == getattr(again, name).dtype, name


@given(lattice=small_lattices, beam=beams)
def test_compact_lattices_lose_the_same_paths(lattice, beam):
    compact = lattice.to_compact()
    pruned = prune(compact, beam, **SCALES)
    found = {path[2:4] for path in enumerate_paths(pruned.to_lattice())}
    expected = {path[2:4] for path in enumerate_paths(prune(lattice, beam, **SCALES))}
    # Chains of arcs are arcs now, with costs added up in float32: beams that end
    # between two paths that differ in the last digits would part them.
    assert found == expected
    assert pruned.string_begin[-1] == len(pruned.string)
    assert len(pruned.string_begin) == pruned.num_arcs + 1


@given(lattice=small_lattices)
def test_strings_of_final_states_go_with_them(lattice):
    """The last arc of each path becomes a string of its state."""
    num_ends = 3
    compact = lattice.to_compact()
    extra = np.arange(1, num_ends + 1, dtype=np.int32)
    filled = CompactLattice(
        **{
            **vars(compact),
            "final_string_begin": np.concatenate(
                [[0], np.cumsum(np.where(compact.is_final, num_ends, 0))]
            ).astype(np.int64),
            "final_string": np.tile(extra, int(compact.is_final.sum())),
            "num_frames": compact.num_frames + num_ends,
        }
    )
    pruned = prune(filled, 2.0)
    expected = prune(compact, 2.0)
    np.testing.assert_array_equal(pruned.is_final, expected.is_final)
    for state in range(pruned.num_states):
        string = extra if pruned.is_final[state] else []
        np.testing.assert_array_equal(pruned.state_string(state), string)
    np.testing.assert_array_equal(
        depth_per_frame(pruned)[-num_ends:], pruned.is_final.sum()
    )
    assert depth_per_frame(pruned).mean() == pytest.approx(pruned.depth)


@given(lattice=small_lattices)
def test_the_best_path_stays_under_any_beam(lattice):
    before = best_path(lattice, **SCALES)
    after = best_path(prune(lattice, 1e-9, **SCALES), **SCALES)
    np.testing.assert_array_equal(before.transition_ids, after.transition_ids)
    assert (before.graph_cost, before.acoustic_cost) == (
        after.graph_cost,
        after.acoustic_cost,
    )


@given(lattice=small_lattices)
def test_depth_counts_the_arcs_over_each_frame(lattice):
    expected = np.zeros(lattice.num_frames, int)
    for arc, state in enumerate(lattice.source()):
        if lattice.transition_id[arc]:
            expected[lattice.frame[state]] += 1
    found = depth_per_frame(lattice)
    np.testing.assert_array_equal(found, expected)
    assert found.mean() == pytest.approx(lattice.depth)
    compact = lattice.to_compact()
    np.testing.assert_array_equal(depth_per_frame(compact), expected)


@pytest.mark.parametrize("beam", [0.0, -1.0, np.nan])
def test_a_beam_must_be_above_zero(beam):
    lattice = Lattice.from_arcs(
        np.array([[0, 1, 1, 0]], np.int32),
        np.zeros((1, 2), np.float32),
        np.array([[np.inf, np.inf], [0.0, 0.0]], np.float32),
    )
    with pytest.raises(UserError, match="a beam of"):
        prune(lattice, beam)
    assert prune(lattice, 1.0).num_arcs == 1
    with pytest.raises(UserError, match="without a path to a final state"):
        prune(
            Lattice(**{**vars(lattice), "acoustic_cost": np.full(1, np.inf)}),
            1.0,
        )
