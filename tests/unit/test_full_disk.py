"""A disk that is full: one line, nothing half-written; a graph is packed in memory."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from fixtures.training_task import make_trainer, write_task
from reference.decode_paths import endless_graph
from safetensors import SafetensorError
from safetensors.torch import save_file

from latflow.decode import search_graph
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.search_graph import GraphFile, mapped_search_graph
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.files import atomic_directory, atomic_output, is_full_disk, write_text
from latflow.fst.graph import Graph
from latflow.kaldi.io import write_matrices
from latflow.training.checkpoint import CheckpointStore, Position

TID_TO_PDF = np.array([0, 0, 1, 2, 1], np.int32)
LARGE = 1 << 19  # floats: 2 MiB


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB; skips where nobody may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount")
    if done.returncode:
        pytest.skip("a disk may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def write_frames(folder):
    with atomic_directory(folder / "f") as there, FrameWriter(there, dim=1) as writer:
        writer.append("u", "s", "", np.zeros((LARGE, 1), np.float32))


def write_tensors(folder):
    with atomic_directory(folder / "m") as there:
        save_file({"w": torch.zeros(LARGE)}, there / "weights.safetensors")


def write_wave(folder):
    with atomic_output(folder / "a.wav") as temporary:
        soundfile.write(temporary, np.zeros(LARGE, np.float32), 8000, subtype="FLOAT")


WRITERS = {
    "text": lambda folder: write_text(folder / "a", "x" * 4 * LARGE),
    "archive": lambda folder: write_matrices(folder / "a", [("u", np.eye(800))]),
    "frames": write_frames,
    "tensors": write_tensors,
    "arrays": lambda folder: write_arrays(folder),
    "graph": lambda folder: write_graph(folder),
}


def write_arrays(folder):
    with atomic_output(folder / "a.npz") as temporary:
        np.savez(temporary, a=np.zeros(LARGE))


def write_graph(folder):
    endless_graph(np.random.default_rng(5), 30_000).save(folder / "HCLG.fst")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_is_one_line_and_nothing_is_left(small_disk, kind):
    with pytest.raises(UserError, match="no space left on the disk"):
        WRITERS[kind](small_disk)
    assert list(small_disk.rglob("*")) == []


def test_a_checkpoint_that_does_not_fit(small_disk):
    store = CheckpointStore(small_disk, {"seed": 1})
    store.save(Position(1), {"w": torch.zeros(100)}, ())
    with pytest.raises(UserError, match=r"may not be written \(No space left"):
        store.save(Position(2), {"w": torch.zeros(LARGE)}, ())
    assert store.positions() == [Position(1)]
    assert store.latest() is not None
    assert list(small_disk.rglob(".tmp*")) == []


def test_a_checkpoint_beyond_the_largest_size_of_a_file(tmp_path):
    """As on FAT, or under `ulimit -f`: another number than that of a full disk."""
    code = (
        "import resource, sys, torch\n"
        "from latflow.training.checkpoint import CheckpointStore, Position\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "store = CheckpointStore(sys.argv[1], {})\n"
        f"store.save(Position(2), {{'w': torch.zeros({LARGE})}}, ())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/e0002-b00000000.pt: may not be written (File too large)" in last
    assert "the unfinished file was removed" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size_kib", [12, 40, 64])
def test_a_disk_that_fills_during_a_training(small_disk, tmp_path, size_kib):
    """At the first checkpoint, a later one, or the log; the same command goes on."""
    remount = ["mount", "-o", f"remount,size={size_kib}k", str(small_disk)]
    subprocess.run(remount, check=True)
    write_task(tmp_path / "task", utterances=20)

    def train():
        hidden = {"class": "linear", "from": "data", "size": 60, "activation": "tanh"}
        options = {"epochs": 3, "log_interval": 1, "checkpoint_minutes": 1e-4}
        return make_trainer(
            tmp_path / "task",
            small_disk / "checkpoints",
            layers={"hidden": hidden, "output": {"class": "output"}},
            training={**options, "tensorboard": True},
        ).run()

    with pytest.raises(UserError, match=r"No space left on device|no space left"):
        train()
    assert list(small_disk.rglob(".tmp*")) == []
    subprocess.run([*remount[:2], "remount,size=1m", str(small_disk)], check=True)
    assert train().epochs == 3


def test_what_a_killed_job_was_writing_is_removed(tmp_path):
    store = CheckpointStore(tmp_path, {"seed": 1})
    store.save(Position(2), {"epoch": 2}, ())
    (tmp_path / ".tmp.e0003-b00000000.pt").write_bytes(bytes(500))
    assert store.latest()[0] == Position(2)
    assert [path.name for path in tmp_path.iterdir()] == [Position(2).file_name]


def test_what_libraries_say_of_a_full_disk():
    told = SafetensorError("Error: I/O error: No space left on device (os error 28)")
    assert is_full_disk(told)
    assert is_full_disk(OSError("400 requested and 12 written"))
    outer = RuntimeError("unexpected pos 64 vs 0")
    outer.__context__ = OSError(28, "No space left on device")
    assert is_full_disk(outer)
    assert not is_full_disk(RuntimeError("unexpected pos 64 vs 0"))
    assert not is_full_disk(OSError(5, "Input/output error"))


def decoded(graph):
    scores = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    found = LatticeDecoder(graph, TID_TO_PDF).decode(scores, acoustic_scale=1.0)
    return found.lattice.transition_id.tolist()


def test_a_graph_that_cannot_be_packed_beside_itself(tmp_path, monkeypatch, caplog):
    path = tmp_path / "HCLG.fst"
    endless_graph(np.random.default_rng(5), 60).save(path)
    graph = Graph.load(path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(search_graph, "_write", refuse)
    with caplog.at_level(logging.WARNING):
        assert decoded(GraphFile(graph, path)) == decoded(graph)
    assert "packed in memory" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == ["HCLG.fst"]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("arcs", "code", 10**6), ("arcs", "pdf", 2**31), ("origin", None, 10**6),
     ("states", "begin", 10**6), ("states", "middle", 10**6)],
)  # fmt: skip
def test_a_packed_graph_that_would_lead_out_of_its_arrays(
    tmp_path, monkeypatch, name, field, value
):
    """As a package of a stranger may have it, with the right key and checksum."""
    path = tmp_path / "HCLG.fst"
    endless_graph(np.random.default_rng(5), 60).save(path)
    graph = Graph.load(path)
    write = search_graph._write

    def forge(path, key, packed):
        array = getattr(packed, name).copy()
        (array if field is None else array[field])[3] = value
        write(path, key, packed._replace(**{name: array}))

    with monkeypatch.context() as patch:
        patch.setattr(search_graph, "_write", forge)
        mapped_search_graph(graph, TID_TO_PDF, path)
    assert path.with_name("HCLG.fst.packed").is_file()
    assert decoded(GraphFile(graph, path)) == decoded(graph)
