"""Checkpoints: whole or absent, kept or removed, refused where they do not belong."""

import struct

import pytest
import torch

from latflow.errors import UserError
from latflow.nnet.model_dir import average_states
from latflow.training.checkpoint import CheckpointStore, Position, digest_of

IDENTITY = {"training": {"epochs": 3, "learning_rate": 0.1}, "seed": 1}


def test_the_newest_comes_back(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY)
    assert store.latest() is None
    store.save(Position(1, 7), {"a": torch.arange(3), "b": [1.5]}, ())
    position, state = CheckpointStore(tmp_path, IDENTITY).latest()
    assert position == Position(1, 7)
    assert state["a"].tolist() == [0, 1, 2]
    assert state["b"] == [1.5]


def test_old_ones_go_and_wanted_ones_stay(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY, keep=2)
    for epoch in range(1, 6):
        for batch in (10, 20):
            store.save(Position(epoch, batch), {}, [1])
        store.save(Position(epoch + 1), {}, [1])
    # the end of epoch 1 is wanted; the last two ends are kept
    assert store.positions() == [Position(2), Position(5), Position(6)]
    store.save(Position(6, 10), {}, [1])
    expected = [Position(2), Position(5), Position(6), Position(6, 10)]
    assert store.positions() == expected


def test_another_training_is_refused_with_what_differs(tmp_path):
    CheckpointStore(tmp_path, IDENTITY).save(Position(2), {}, ())
    other = {"training": {"epochs": 3, "learning_rate": 0.2}, "seed": 1}
    told = r"another training; different: training.learning_rate \(0.1 and 0.2\)"
    with pytest.raises(UserError, match=told):
        CheckpointStore(tmp_path, other).latest()
    assert digest_of(IDENTITY) != digest_of(other)
    assert digest_of(IDENTITY) == digest_of({"seed": 1, **IDENTITY})


def test_a_changed_number_is_told(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY)
    path = store.save(Position(2), {"weights": torch.full((50,), 7.0)}, ())
    raw = bytearray(path.read_bytes())
    raw[raw.index(struct.pack("<f", 7.0) * 50)] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="is damaged"):
        store.latest()


def test_half_a_file_is_passed_over(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY, keep=5)
    for epoch in (2, 3):
        path = store.save(Position(epoch), {"epoch": epoch}, ())
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    position, state = store.latest()
    assert (position, state["epoch"]) == (Position(2), 2)
    (tmp_path / Position(2).file_name).write_bytes(b"")
    with pytest.raises(UserError, match="not a readable checkpoint"):
        store.latest()


@pytest.mark.parametrize("raw", [b"PK\3\4 cut", b"some text\n", bytes(500), b"\x80\2."])
def test_what_is_no_checkpoint_is_passed_over(tmp_path, raw):
    store = CheckpointStore(tmp_path, IDENTITY, keep=5)
    store.save(Position(2), {"epoch": 2}, ())
    (tmp_path / Position(3).file_name).write_bytes(raw)
    assert store.latest()[0] == Position(2)


def test_a_failed_write_leaves_the_one_before(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(Position(1, 1), {"a": 1}, ())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left"):
        store.save(Position(1, 2), {"a": 2}, ())
    assert store.latest() == (Position(1, 1), {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == [Position(1, 1).file_name]


def test_the_mean_of_networks():
    one = {"w": torch.tensor([1.0, 4.0]), "n": torch.tensor(3)}
    two = {"w": torch.tensor([2.0, 0.0]), "n": torch.tensor(5)}
    mean = average_states([one, two])
    assert mean["w"].tolist() == [1.5, 2.0]
    assert int(mean["n"]) == 5
    with pytest.raises(ValueError, match="different layers"):
        average_states([one, {"w": torch.zeros(3), "n": torch.tensor(0)}])
    with pytest.raises(ValueError, match="no networks"):
        average_states([])
