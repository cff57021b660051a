"""FrameStore: what was written is read, whatever it is."""

import pickle
import tempfile
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.ragged import pack, windows

names = st.text(
    st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1
)


@given(
    st.dictionaries(names, st.tuples(names, names, st.integers(0, 7)), max_size=8),
    st.integers(1, 5),
)
def test_read_of_write_is_identity(utterances, dim):
    rng = np.random.default_rng(1)
    items = [
        (utt_id, speaker, text, rng.normal(size=(T, dim)).astype(np.float32))
        for utt_id, (speaker, text, T) in sorted(utterances.items())
    ]
    with tempfile.TemporaryDirectory() as folder:
        with FrameWriter(folder, dim=dim, frame_shift=0.005) as writer:
            for item in items:
                writer.append(*item)
        store = FrameStore.load(folder)
        for copy in (store, pickle.loads(pickle.dumps(store))):
            assert len(copy) == len(items)
            assert copy.dim == dim
            assert copy.frame_shift == 0.005
            assert copy.utt_ids == [item[0] for item in items]
            assert copy.speakers == [item[1] for item in items]
            assert copy.texts == [item[2] for item in items]
            for i, item in enumerate(items):
                np.testing.assert_array_equal(copy.frames(i), item[3])
                assert copy.position(item[0]) == i
        if items:
            np.testing.assert_array_equal(
                store.block(0, len(items)), np.concatenate([item[3] for item in items])
            )


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(1, 30))
def test_windows_cover_all_utterances_in_order(lengths, max_frames):
    with tempfile.TemporaryDirectory() as folder:
        with FrameWriter(folder, dim=1) as writer:
            for i, T in enumerate(lengths):
                writer.append(f"{i:03d}", "s", "", np.zeros((T, 1)))
        store = FrameStore.load(folder)
        edges = list(windows(store.begin, max_frames))
    covered = [i for first, last in edges for i in range(first, last)]
    assert covered == list(range(len(lengths)))
    for first, last in edges:
        assert last == first + 1 or sum(lengths[first:last]) <= max_frames


def test_order_shape_and_line_breaks_are_checked(tmp_path):
    with FrameWriter(tmp_path, dim=2) as writer:
        writer.append("b", "s", "", np.zeros((1, 2)))
        for bad in (
            ("a", "s", "", np.zeros((1, 2))),
            ("b", "s", "", np.zeros((1, 2))),
            ("c", "s", "x\ny", np.zeros((1, 2))),
            ("c", "s", "", np.zeros((1, 3))),
        ):
            with pytest.raises(ValueError):  # noqa: PT011 - four messages
                writer.append(*bad)
    assert FrameStore.load(tmp_path).utt_ids == ["b"]


def test_unfinished_or_damaged_store_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a readable frame store"):
        FrameStore.load(tmp_path / "nothing")
    with pytest.raises(KeyError), FrameWriter(tmp_path / "half", dim=1) as writer:
        writer.append("a", "s", "", np.zeros((3, 1)))
        raise KeyError
    with pytest.raises(UserError, match="half"):
        FrameStore.load(tmp_path / "half")
    for name, frames in (("one", 3), ("two", 4)):
        with FrameWriter(tmp_path / name, dim=1) as writer:
            writer.append("a", "s", "", np.zeros((frames, 1)))
    (tmp_path / "one" / "index.npz").replace(tmp_path / "two" / "index.npz")
    with pytest.raises(UserError, match="frames and index differ"):
        FrameStore.load(tmp_path / "two")


def test_ids_that_are_not_in_order_are_refused(tmp_path):
    with FrameWriter(tmp_path, dim=1) as writer:
        for name in "ab":
            writer.append(name, "s", "", np.zeros((3, 1)))
    with np.load(tmp_path / "index.npz") as index:
        arrays = {**index, "utt_ids": pack(["b", "a"])}
    np.savez(tmp_path / "index.npz", **arrays)
    with pytest.raises(UserError, match="utt_ids of the index are not in order"):
        FrameStore.load(tmp_path).utt_ids  # noqa: B018


def test_opening_does_not_parse_utterances(tmp_path):
    count = 100_000
    row = np.zeros((1, 1), np.float32)
    with FrameWriter(tmp_path, dim=1) as writer:
        for i in range(count):
            writer.append(f"speaker-{i:07d}", f"{i // 100}", "some words here", row)
    started = time.process_time()
    store = FrameStore.load(tmp_path)
    assert time.process_time() - started < 0.5  # takes some milliseconds
    assert store.utt_ids[-1] == "speaker-0099999"
