"""Features of several streams side by side in each frame."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.options import PasteOptions
from latflow.features.pasting import paste_features
from latflow.ledger import read_ledger

NAMES = ("hires", "tri3", "bottleneck")


def write(folder, lengths, dim, frame_shift=0.01):
    rng = np.random.default_rng(dim)
    with FrameWriter(folder, dim=dim, frame_shift=frame_shift) as writer:
        for name, length in sorted(lengths.items()):
            frames = rng.normal(size=(length, dim)).astype(np.float32)
            writer.append(name, f"s-{name[0]}", f"TEXT {name}", frames)
    return FrameStore.load(folder)


def paste(stores, out, tolerance=2, max_skipped_fraction=0.5):
    options = PasteOptions(features=NAMES[: len(stores)], length_tolerance=tolerance)
    paste_features(
        [store.folder for store in stores],
        out,
        options=options,
        max_skipped_fraction=max_skipped_fraction,
    )
    return FrameStore.load(out)


@given(
    st.dictionaries(
        st.text("abz\u00e9\U0001f600", min_size=1, max_size=4),
        st.tuples(st.integers(3, 9), st.lists(st.integers(0, 2), min_size=3)),
        max_size=6,
    ),
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
)
def test_frames_stand_side_by_side(utterances, dims):
    """However many streams, and whichever has a frame or two more at the end."""
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            write(
                Path(folder, str(k)),
                {name: n + more[k] for name, (n, more) in utterances.items()},
                dim,
                0.0125,
            )
            for k, dim in enumerate(dims)
        ]
        pasted = paste(stores, Path(folder, "out"))
        first = stores[0]
        assert pasted.utt_ids == first.utt_ids
        assert pasted.speakers == first.speakers
        assert pasted.texts == first.texts
        assert pasted.frame_shift == 0.0125
        assert dict(pasted.meta["parts"]) == dict(zip(NAMES, dims, strict=False))
        for i in range(len(pasted)):
            found = [store.frames(i) for store in stores]
            shortest = min(map(len, found))
            expected = np.hstack([frames[:shortest] for frames in found])
            np.testing.assert_array_equal(pasted.frames(i), expected)


def test_utterances_that_a_stream_lacks_are_in_the_ledger(tmp_path):
    hires = write(tmp_path / "hires", {"a": 4, "b": 5, "c": 6}, 2)
    tri3 = write(tmp_path / "tri3", {"b": 5, "c": 6, "d": 7}, 3)
    pasted = paste([hires, tri3], tmp_path / "out")
    assert pasted.utt_ids == ["b", "c"]
    expected = np.hstack([hires.frames(1), tri3.frames(0)])
    np.testing.assert_array_equal(pasted.frames(0), expected)
    entries = read_ledger(tmp_path / "out/ledger.jsonl")
    assert [(e.utterance, e.reason) for e in entries] == [
        ("a", "has no features tri3"),
        ("d", "has no features hires"),
    ]
    with pytest.raises(UserError, match="skipped 2 of 4 utterances") as caught:
        paste([hires, tri3], tmp_path / "few", max_skipped_fraction=0.05)
    assert caught.value.utterance == "a"
    assert not (tmp_path / "few").exists()


def test_lengths_that_differ_by_more_are_refused(tmp_path):
    hires = write(tmp_path / "hires", {"a": 4, "b": 9}, 2)
    tri3 = write(tmp_path / "tri3", {"a": 4, "b": 6}, 3)
    with pytest.raises(UserError, match="9 frames of hires, 6 frames of tri3") as told:
        paste([hires, tri3], tmp_path / "out")
    assert told.value.utterance == "b"
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()
    assert len(paste([hires, tri3], tmp_path / "out", tolerance=3).frames(1)) == 6


def test_streams_have_one_frame_shift(tmp_path):
    hires = write(tmp_path / "hires", {"a": 4}, 2)
    slow = write(tmp_path / "slow", {"a": 4}, 2, frame_shift=0.02)
    with pytest.raises(UserError, match="tri3 has a frame each 20 ms, hires each 10"):
        paste([hires, slow], tmp_path / "out")


def test_the_order_is_kept_in_the_file(tmp_path):
    """Keys of its mappings are sorted, those of parts may not be."""
    stores = [write(tmp_path / str(n), {"a": 3}, n) for n in (3, 1)]
    paste(stores, tmp_path / "out")
    meta = json.loads((tmp_path / "out/meta.json").read_text())
    assert meta["parts"] == [["hires", 3], ["tri3", 1]]
