"""An epoch of BLSTM training: latflow against RETURNN's PyTorch backend.

Both train on the same frames with the same network (as many parameters; checked), Adam,
the same clipping, chunks 80:80 and 64 of them a batch, cross-entropy on the pdf-ids of
an alignment. The data are a part of a `FrameStore`; RETURNN reads them from HDF5 as
`latflow hdf5 export` writes them. Each epoch is a process of its own, the two take
turns. RETURNN's network is `torch.nn.LSTM`, in two ways:

* `returnn`: over packed sequences, as is usual and correct: the backward direction
  starts at the last frame of each chunk. On CPUs torch then leaves oneDNN for a slower
  loop, which latflow's layer avoids without a change of result, so that the ratio is of
  the layer and of the framework around it;
* `returnn_unpacked`: over the padding, too, by oneDNN, which is wrong for the last
  chunks of utterances, but has latflow's kernels: this ratio is of the framework.

Timed are the steps behind the first few, from the start of one to the start of the
last, with all that happens between: reading, chunking, padding, forward, loss,
backward, clipping, update, log. RETURNN loads data in its main process (its default),
latflow in a thread; processor time has both.

RETURNN is installed, at a fixed version, into a virtual environment in the folder named
by `--cache` (made on the first run), which sees the packages of the present one.

    python benchmarks/returnn_peer.py --cache /tmp/returnn [--network blstm_3x512]
        [--max-frames 60000] [--rounds 3] [--threads 1]

Prints JSON: frames a second of either by wall clock and by processor time, and
latflow / RETURNN (above 1: latflow is faster).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.criteria.batch import Batch
from latflow.criteria.losses import losses_of
from latflow.features.frames import FrameStore, FrameWriter
from latflow.files import atomic_directory
from latflow.graphs.hclg import load_model
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.options import read_options
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.checkpoint import CheckpointStore
from latflow.training.data_options import DataOptions
from latflow.training.hdf5 import export_hdf
from latflow.training.labels import LabelStore, LabelWriter, write_labels
from latflow.training.options import TrainingOptions
from latflow.training.readers import estimate_normalizer
from latflow.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "speechocean"
PACKAGES = ("returnn==1.20261022.211313", "dm-tree==0.1.10")  # without dependencies
ANSWER = "stamps.json"  # left by either side where it runs
CHUNK, BATCH, WARM_UP, RATE, CLIP = 80, 64, 2, 1e-3, 5.0
# layers, cells a direction, dropout between layers, dropout before the output
NETWORKS = {
    "blstm_small": (2, 160, 0.2, 0.2),
    "blstm_3x512": (3, 512, 0.2, 0.0),
}

# The config is code of RETURNN's; the line of constants is put before it.
CONFIG = """
import atexit, json, time
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from returnn.tensor import Dim, batch_dim
import returnn.frontend as rf

task, backend, device, behavior_version = "train", "torch", "cpu", 21
# Without a cache: RETURNN fills it in a thread, and on a busy machine reads labels from
# it before they are there (-1).
train = {"class": "HDFDataset", "files": [HDF], "use_cache_manager": False,
         "cache_byte_size": 0, "partition_epoch": 1, "seq_ordering": "random"}
dev = None
num_epochs, save_interval, cleanup_old_models = 1, 1, False
time_dim = Dim(None, name="time")
extern_data = {
    "data": {"dims": [batch_dim, time_dim, Dim(DIM, name="input")], "dtype": "float32"},
    "pdf": {"dims": [batch_dim, time_dim], "dtype": "int32",
            "sparse_dim": Dim(CLASSES, name="pdf")},
}
chunking = ({"data": CHUNK, "pdf": CHUNK}, {"data": CHUNK, "pdf": CHUNK})
batch_size, max_seqs = CHUNK * BATCH, BATCH
optimizer = {"class": "adam", "epsilon": 1e-8, "weight_decay": 0.0}
learning_rate, gradient_clip_global_norm = RATE, CLIP
torch_dataloader_opts = {"num_workers": 0}
log_verbosity = 3
model = "models/model"  # in the folder it runs in


class Blstm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(DIM, CELLS, LAYERS, batch_first=True,
                                  bidirectional=True, dropout=DROPOUT)
        self.dropout = torch.nn.Dropout(DROPOUT_OUT)
        self.output = torch.nn.Linear(2 * CELLS, CLASSES)

    def forward(self, x, lengths):
        if not IS_PACKED:
            return self.output(self.dropout(self.lstm(x)[0]))
        packed = pack_padded_sequence(x, lengths, batch_first=True,
                                      enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True,
                                   total_length=x.shape[1])
        return self.output(self.dropout(y))


stamps, facts = [], {}


def get_model(*, epoch, step, **_kwargs):
    network = Blstm()
    facts["parameters"] = sum(p.numel() for p in network.parameters())
    return network


def train_step(*, model, extern_data, **_kwargs):
    x, labels = extern_data["data"], extern_data["pdf"]
    lengths = x.dims[1].dyn_size_ext.raw_tensor
    stamps.append([time.perf_counter(), time.process_time(), int(lengths.sum())])
    logits = model(x.raw_tensor, lengths)
    is_padding = torch.arange(logits.shape[1])[None] >= lengths[:, None]
    labels = labels.raw_tensor.long().masked_fill(is_padding, -100)  # not counted
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum")
    rf.get_run_ctx().mark_as_loss(losses / int(lengths.sum()), "ce")


atexit.register(lambda: open(ANSWER, "w").write(
    json.dumps({"stamps": stamps, **facts})))
"""


class StampedSource(BatchSource):
    """Notes when each batch of an epoch is asked for, as RETURNN's config does."""

    def epoch(
        self, epoch: int, *, first_batch: int = 0, rank: int = 0, size: int = 1
    ) -> Iterator[Batch | None]:
        """See `BatchSource.epoch`."""
        self.stamps: list[tuple[float, float, int]] = []
        batches = super().epoch(epoch, first_batch=first_batch, rank=rank, size=size)
        for batch in batches:
            frames = 0 if batch is None else batch.num_frames
            self.stamps.append((time.perf_counter(), time.process_time(), frames))
            yield batch


def install(cache: Path) -> Path:
    """Make the peer's environment where it is not there; its Python."""
    python = cache / "venv" / "bin" / "python"
    is_there = [str(python), "-c", "import returnn.torch.engine"]
    if python.exists():
        found = subprocess.run(is_there, check=False, capture_output=True)
        if not found.returncode:
            return python
    venv.create(cache / "venv", with_pip=False, clear=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = cache / "venv" / "lib" / version / "site-packages"
    (site / "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", *PACKAGES], check=True, stdout=sys.stderr)
    subprocess.run(is_there, check=True)
    return python


def prepare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the first utterances as stores and as HDF5; sizes."""
    _, transitions = load_model(arguments.model)
    every = write_labels(arguments.alignments, transitions, folder / "all_labels")
    places = {utt_id: i for i, utt_id in enumerate(every.utt_ids)}
    store = FrameStore.load(arguments.frames)
    num_frames = num_utterances = 0
    with (
        atomic_directory(folder / "frames") as frames_dir,
        atomic_directory(folder / "labels") as labels_dir,
        FrameWriter(frames_dir, dim=store.dim) as frames,
        LabelWriter(labels_dir, every.num_classes) as labels,
    ):
        for i, utt_id in enumerate(store.utt_ids):
            place, rows = places.get(utt_id), store.frames(i)
            if place is None or len(rows) != len(every.labels(place)):
                continue
            if num_frames + len(rows) > arguments.max_frames:
                break
            frames.append(utt_id, store.speakers[i], "", np.asarray(rows))
            labels.append(utt_id, every.labels(place))
            num_frames += len(rows)
            num_utterances += 1
    export_hdf(folder / "frames", {"pdf": folder / "labels"}, folder / "data.hdf")
    return {
        "utterances": num_utterances,
        "frames": num_frames,
        "dim": store.dim,
        "classes": every.num_classes,
    }


def train_ours(folder: Path, network_name: str, threads: int) -> None:
    """Train for one epoch; leave the stamps."""
    torch.set_num_threads(threads)
    logging.basicConfig(level=logging.WARNING)
    labels = LabelStore.load(folder / "labels")
    store = FrameStore.load(folder / "frames")
    description = NetworkDescription.load(ROOT / f"config/networks/{network_name}.yaml")
    sizes = dict.fromkeys(description.outputs, labels.num_classes)
    network = Network(description, store.dim, sizes, seed=0)
    data = {
        "sequences": {"type": "chunks", "size": CHUNK},
        "max_sequences": BATCH,
        "normalization": "none",
    }
    options = read_options(DataOptions, data)
    targets = {o.loss.target: labels for o in network.outputs.values()}
    dev = open_batches(
        folder / "frames",
        Targets(targets),
        options,
        normalizer=estimate_normalizer(folder / "frames", options),
        is_training=False,
    )
    train = StampedSource(dev.reader, Targets(targets), options)
    values = {
        "epochs": 1,
        "learning_rate": RATE,
        "clip_norm": CLIP,
        "schedule": {"type": "constant"},
        "final": "last",
        "tensorboard": False,
    }
    settings = read_options(TrainingOptions, values)
    checkpoints = CheckpointStore(Path("checkpoints"), {}, keep=1)
    Trainer(network, losses_of(network), train, dev, settings, checkpoints).run()
    answer = {
        "stamps": train.stamps,
        "parameters": sum(p.numel() for p in network.parameters()),
    }
    Path(ANSWER).write_text(json.dumps(answer))


def write_config(
    folder: Path, facts: dict[str, Any], network_name: str, *, is_packed: bool
) -> Path:
    """Write RETURNN's config."""
    layers, cells, dropout, dropout_out = NETWORKS[network_name]
    constants = {
        "HDF": str(folder / "data.hdf"),
        "ANSWER": ANSWER,
        "DIM": facts["dim"],
        "CLASSES": facts["classes"],
        "LAYERS": layers,
        "CELLS": cells,
        "DROPOUT": dropout,
        "DROPOUT_OUT": dropout_out,
        "CHUNK": CHUNK,
        "BATCH": BATCH,
        "RATE": RATE,
        "CLIP": CLIP,
        "IS_PACKED": is_packed,
    }
    lines = [f"{name} = {value!r}" for name, value in constants.items()]
    path = folder / f"returnn{int(is_packed)}.config.py"
    path.write_text("#!returnn\n" + "\n".join(lines) + CONFIG)
    return path


def run(command: list[str], threads: int) -> dict[str, Any]:
    """Run one side in a folder of its own; frames a second of its steps, its size."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            command,
            check=False,  # what it said is shown below
            cwd=name,
            env=environment,
            capture_output=True,
            text=True,
        )
        answer = Path(name, ANSWER)
        if done.returncode or not answer.exists():
            said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise SystemExit(f"{' '.join(command)} failed\n{said}")
        result = json.loads(answer.read_text())
    stamps = result["stamps"]
    if len(stamps) < WARM_UP + 2:
        raise SystemExit(f"{len(stamps)} batches are too few: raise --max-frames")
    frames = sum(stamp[2] for stamp in stamps[WARM_UP:-1])
    (wall, processor, _), (wall_end, processor_end, _) = stamps[WARM_UP], stamps[-1]
    return {
        "wall": frames / (wall_end - wall),
        "processor": frames / (processor_end - processor),
        "steps": len(stamps),
        "frames": sum(stamp[2] for stamp in stamps),
        "parameters": result["parameters"],
    }


def middle(rates: list[float]) -> int:
    """Return the median, in whole frames a second."""
    return round(statistics.median(rates))


def contest(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both in turns; what they did, medians, and the ratio of each round."""
    python = install(arguments.cache.resolve())
    facts = prepare(arguments, folder)
    ours = [sys.executable, str(Path(__file__).resolve()), "--ours", str(folder)]
    ours += ["--network", arguments.network, "--threads", str(arguments.threads)]
    commands = {"latflow": ours}
    for name, is_packed in (("returnn", True), ("returnn_unpacked", False)):
        config = write_config(folder, facts, arguments.network, is_packed=is_packed)
        commands[name] = [str(python), "-m", "returnn", str(config)]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            runs[name].append(run(command, arguments.threads))
    work = {
        name: {key: made[0][key] for key in ("steps", "frames", "parameters")}
        for name, made in runs.items()
    }
    if any(of_one != work["latflow"] for of_one in work.values()):
        raise SystemExit(f"the work differs: {work}")
    result: dict[str, Any] = {"data": facts, "work_of_each": work["latflow"]}
    for clock in ("wall", "processor"):
        rates = {name: [one[clock] for one in made] for name, made in runs.items()}
        result[clock] = {f"{n}_frames_per_s": middle(r) for n, r in rates.items()}
        for name in ("returnn", "returnn_unpacked"):
            pairs = zip(rates["latflow"], rates[name], strict=True)
            ratios = [round(ours / theirs, 3) for ours, theirs in pairs]
            result[clock][f"latflow_over_{name}_median"] = statistics.median(ratios)
            result[clock][f"latflow_over_{name}"] = ratios
    return result


def parse_arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path("/tmp/latflow_returnn"))
    parser.add_argument("--network", choices=sorted(NETWORKS), default="blstm_small")
    frames = RESULTS / "streams" / "fbank" / "frames" / "train"
    parser.add_argument("--frames", type=Path, default=frames)
    alignments = RESULTS / "align" / "tri1" / "train" / "ali.ark"
    parser.add_argument("--alignments", type=Path, default=alignments)
    model = RESULTS / "gmm" / "tri1"
    parser.add_argument("--model", type=Path, default=model, help="of the alignments")
    parser.add_argument("--max-frames", type=int, default=60000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Train with both, in turns, and print what they took."""
    arguments = parse_arguments()
    if arguments.ours:
        train_ours(arguments.ours, arguments.network, arguments.threads)
        return
    with tempfile.TemporaryDirectory() as name:
        result = contest(arguments, Path(name))
    report = {
        "benchmark": "returnn_peer",
        "network": arguments.network,
        "batch": f"{BATCH} x {CHUNK}",
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "torch": torch.__version__,
        "returnn": PACKAGES[0].partition("==")[2],
        **result,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
