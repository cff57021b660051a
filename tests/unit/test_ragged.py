"""Ragged stores of several columns, structured rows and further index arrays."""

import json
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.ragged import RaggedStore, RaggedWriter, factor

ARC = np.dtype([("target", "<i4"), ("weight", "<f4")])


class GraphStore(RaggedStore):
    """Two columns of different lengths."""

    FORMAT = "test-1"
    KIND = "test store"
    COLUMNS: ClassVar = {"arcs": (ARC, 1), "states": ("<f8", 2)}


def write(folder: Path, lengths: list[tuple[int, int]]) -> GraphStore:
    writer = RaggedWriter(
        folder, GraphStore, row_shapes={"states": (2,)}, meta={"who": "me"}
    )
    with writer:
        for i, (arcs, states) in enumerate(lengths):
            rows = np.zeros(arcs, ARC)
            rows["target"] = i
            writer.write(f"u{i}", rows, np.full((states, 2), i))
        writer.index["start"] = [i * i for i in range(len(lengths))]
    return GraphStore.load(folder)


@pytest.mark.parametrize("lengths", [[], [(0, 0)], [(3, 1), (0, 2), (2, 0)]])
def test_columns_have_their_own_lengths(
    tmp_path: Path, lengths: list[tuple[int, int]]
) -> None:
    store = write(tmp_path / "store", lengths)
    for again in (store, pickle.loads(pickle.dumps(store))):
        assert again.utt_ids == [f"u{i}" for i in range(len(lengths))]
        assert again.index("start").tolist() == [i * i for i in range(len(lengths))]
        assert again.meta["who"] == "me"
        for i, (arcs, states) in enumerate(lengths):
            assert again["arcs"][i].dtype == ARC
            assert again["arcs"][i]["target"].tolist() == [i] * arcs
            assert again["states"][i].tolist() == [[i, i]] * states
            assert not again["states"][i].flags.writeable
    assert len(store) == len(store["states"]) == len(lengths)
    assert ("u0" in store, "other" in store) == (bool(lengths), False)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = np.zeros(1, ARC)
    with RaggedWriter(tmp_path, GraphStore, row_shapes={"states": (2,)}) as writer:
        for bad in (np.zeros(2), np.zeros((2, 3)), np.float64(1)):
            with pytest.raises(ValueError, match="shape"):
                writer.write("u", rows, bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="line break"):
            writer.write("u\n", rows, np.zeros((1, 2)))
    assert GraphStore.load(tmp_path).utt_ids == []
    with (
        pytest.raises(UserError, match="u: has arcs twice"),
        RaggedWriter(tmp_path, GraphStore, row_shapes={"states": (2,)}) as writer,
    ):
        for _ in range(2):
            writer.write("u", rows, np.zeros((1, 2)))


@pytest.mark.parametrize("shift", [0, -0.01, None, "x", False, 1e999])
def test_frames_have_a_shift(tmp_path: Path, shift: object) -> None:
    with FrameWriter(tmp_path, dim=2) as writer:
        writer.append("u", "s", "ONE", np.zeros((3, 2), np.float32))
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"frame_shift": shift}))
    with pytest.raises(UserError, match="not a readable frame store.*again"):
        FrameStore.load(tmp_path)


@pytest.mark.parametrize("value", [0, -3, float("nan"), "x"])
def test_a_factor_is_a_number_above_0(value: object) -> None:
    assert factor(3) == 3
    with pytest.raises(ValueError, match="number|int|NaN"):
        factor(value)


@pytest.mark.parametrize("name", ["arcs.npy", "index.npz", "meta.json"])
def test_a_truncated_store_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store", [(3, 1)])
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="not a readable test store"):
        GraphStore.load(tmp_path / "store")
