"""Posteriors by frame on random lattices, and their files."""

import numpy as np
import pytest
from fixtures.small_model import small_model
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import (
    enumerate_paths,
    frame_sums,
    lattices_with_a_path,
    path_posteriors,
)

from latflow.lattice.discriminative import mmi_posteriors
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import (
    FramePosteriors,
    posteriors,
    read_posteriors,
    write_posteriors,
)

MODEL = small_model()
small_lattices = lattices_with_a_path(impossible=0.1, num_ids=MODEL.num_transition_ids)


@st.composite
def frame_posteriors(draw):
    """Any entries, also frames without one and ids that come twice."""
    pair = st.tuples(st.integers(0, 9), st.floats(-2.0, 2.0, width=32))
    frames = draw(st.lists(st.lists(pair, max_size=4), max_size=5))
    pairs = [entry for frame in frames for entry in frame]
    return FramePosteriors(
        np.cumsum([0, *map(len, frames)]).astype(np.int64),
        np.array([id_ for id_, _ in pairs], np.int32),
        np.array([weight for _, weight in pairs], np.float64),
    )


def draw_alignment(lattice, seed):
    """Half the time the ids of a path, else any."""
    generator = np.random.default_rng(seed)
    if seed % 2:
        paths = enumerate_paths(lattice)
        return np.array(paths[seed % len(paths)].transition_ids, np.int32)
    ids = generator.integers(1, MODEL.num_transition_ids + 1, lattice.num_frames)
    return ids.astype(np.int32)


def sums_by_frame(lattice, scale):
    """[T, ids + 1]: posterior of each transition-id, path by path."""
    paths = enumerate_paths(lattice)
    _, shares = path_posteriors(paths, 1.0, scale)
    table = np.zeros((lattice.num_frames, MODEL.num_transition_ids + 1))
    for path, share in zip(paths, shares, strict=True):
        for t, tid in enumerate(path.transition_ids):
            table[t, tid] += share
    return table


@given(lattice=small_lattices)
def test_posteriors_sum_the_paths_by_frame_and_id(lattice):
    found = posteriors(lattice, forward_backward(lattice, acoustic_scale=0.5))
    expected = sums_by_frame(lattice, 0.5)
    np.testing.assert_allclose(found.to_matrix(expected.shape[1]), expected, atol=1e-6)
    np.testing.assert_allclose(frame_sums(found), 1.0, atol=1e-12)
    assert found.sum() == pytest.approx(lattice.num_frames)
    assert (found.weights != 0.0).all()
    for t in range(found.num_frames):
        ids = [id_ for id_, _ in found.frame(t)]
        assert ids == sorted(set(ids))


@given(lattice=small_lattices)
def test_pdfs_gather_their_transition_ids(lattice):
    found = posteriors(lattice, forward_backward(lattice)).to_pdfs(MODEL)
    by_id = sums_by_frame(lattice, 1.0)
    expected = np.zeros((lattice.num_frames, MODEL.num_pdfs))
    for tid in range(1, MODEL.num_transition_ids + 1):
        expected[:, MODEL.pdf[tid]] += by_id[:, tid]
    np.testing.assert_allclose(found.to_matrix(MODEL.num_pdfs), expected, atol=1e-6)
    np.testing.assert_allclose(
        found.occupancy(MODEL.num_pdfs), expected.sum(axis=0), atol=1e-12
    )


@given(
    lattice=small_lattices,
    seed=st.integers(0, 2**32 - 1),
    drop=st.booleans(),
    to_pdfs=st.booleans(),
    cancel=st.booleans(),
)
def test_mmi_is_alignment_minus_lattice(lattice, seed, drop, to_pdfs, cancel):
    alignment = draw_alignment(lattice, seed)
    total, found = mmi_posteriors(
        lattice,
        alignment,
        MODEL,
        drop_frames=drop,
        convert_to_pdf_ids=to_pdfs,
        cancel=cancel,
        acoustic_scale=0.5,
    )
    result = forward_backward(lattice, acoustic_scale=0.5)
    denominator = posteriors(lattice, result)
    size = MODEL.num_transition_ids + 1
    if to_pdfs:
        denominator, alignment = denominator.to_pdfs(MODEL), MODEL.pdf[alignment]
    expected = -denominator.to_matrix(size)
    is_held = expected[np.arange(len(alignment)), alignment] != 0.0
    expected[np.arange(len(alignment)), alignment] += 1.0
    if drop:
        expected[~is_held] = 0.0
    assert total == result.log_like
    np.testing.assert_allclose(found.to_matrix(size), expected, atol=1e-6)
    if not cancel:
        kept = is_held | (not drop)
        counts = np.diff(denominator.frame_begin) + 1
        np.testing.assert_array_equal(
            np.diff(found.frame_begin), np.where(kept, counts, 0)
        )
        assert (found.weights == 1.0).sum() >= kept.sum()
    for t in range(found.num_frames):
        assert found.frame(t) == sorted(found.frame(t))


@given(first=frame_posteriors(), second=frame_posteriors(), merge=st.booleans())
def test_joining_keeps_all_weights(first, second, merge):
    num_frames = min(first.num_frames, second.num_frames)
    keep = [
        part.without_frames(np.arange(part.num_frames) >= num_frames)
        for part in (first, second)
    ]
    a, b = (
        FramePosteriors(part.frame_begin[: num_frames + 1], part.ids, part.weights)
        for part in keep
    )
    joined = a.joined_with(b, merge=merge)
    np.testing.assert_allclose(
        joined.to_matrix(10), a.to_matrix(10) + b.to_matrix(10), atol=1e-5
    )
    if not merge:
        assert len(joined.ids) == len(a.ids) + len(b.ids)
    for t in range(num_frames):
        assert joined.frame(t) == sorted(joined.frame(t))


@given(
    items=st.lists(frame_posteriors(), max_size=3),
    packed=st.booleans(),
    binary=st.booleans(),
)
def test_files_give_back_what_was_written(tmp_path_factory, items, packed, binary):
    path = tmp_path_factory.mktemp("posteriors") / ("a.gz" if packed else "a")
    named = [(f"utt-{number}", item) for number, item in enumerate(items)]
    write_posteriors(path, named, binary=binary)
    found = list(read_posteriors(path))
    assert [utterance for utterance, _ in found] == [name for name, _ in named]
    for (_, before), (_, after) in zip(named, found, strict=True):
        np.testing.assert_array_equal(before.frame_begin, after.frame_begin)
        np.testing.assert_array_equal(before.ids, after.ids)
        np.testing.assert_allclose(before.weights, after.weights, rtol=1e-6)
        assert after.ids.dtype == np.int32
        assert after.frame_begin.dtype == np.int64
