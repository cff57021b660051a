"""Throughput of cross-entropy training against a bare torch loop, the limit.

Ours is the trainer as the workflow runs it: frames and labels from the disk, cut into
chunks, normalized, shuffled; forward, loss, backward, clipping, optimizer, log. The
limit is the same network on random tensors of the same shapes that lie on the device
already: forward, loss, backward, clipping, the same optimizer, and nothing else.

Both take turns in one process. Prints JSON: frames a second by wall clock and by
processor time (which says more where the machine is not idle), the inverse real-time
factor (frames of 10 ms), ours / limit, and beside it what PyKaldi2's paper reports for
this network on a V100. (RETURNN is timed by `returnn_peer.py`.)

    python benchmarks/ce_training.py [--network blstm_3x512] [--device cuda]
        [--batches 64 256] [--steps 60] [--rounds 5] [--precision bf16]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from latflow.features.frames import FrameWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.options import read_options
from latflow.training.batches import (
    Batch,
    BatchSource,
    open_batches,
)
from latflow.training.checkpoint import CheckpointStore
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.losses import losses_of
from latflow.training.optimizers import make_optimizer
from latflow.training.options import TrainingOptions
from latflow.training.readers import estimate_normalizer
from latflow.training.steps import autocast
from latflow.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
CHUNK, FRAME_SHIFT, WARM_UP = 80, 0.01, 4
PYKALDI2 = {64: "190 (1 GPU)", 256: "520 (4 GPUs)"}  # iRTF, arXiv 1907.05955, table 2
SETTINGS = {  # features a frame, classes
    "blstm_3x512": (80, 5768),
    "blstm_small": (40, 1000),
    "tdnnf_small": (40, 1000),
    "tdnnf": (40, 2000),
}


class TimedSource(BatchSource):
    """Notes when the batches of an epoch are asked for, after the warm-up."""

    def epoch(
        self, epoch: int, *, first_batch: int = 0, rank: int = 0, size: int = 1
    ) -> Iterator[Batch | None]:
        """See `BatchSource.epoch`."""
        self.stamps: list[tuple[float, float]] = []
        self.frames = 0
        last = self.num_batches(epoch) - 1
        batches = super().epoch(epoch, first_batch=first_batch, rank=rank, size=size)
        for number, batch in enumerate(batches):
            if number in {WARM_UP, last}:
                self.stamps.append(now())
            if WARM_UP <= number < last and batch is not None:
                self.frames += batch.num_frames
            yield batch

    def rates(self) -> tuple[float, float]:
        """Frames a second, by wall clock and by processor time."""
        return rates(self.frames, *self.stamps)


def now() -> tuple[float, float]:
    """Wall clock and processor time when all that was begun is done, seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def rates(
    frames: int, begin: tuple[float, float], end: tuple[float, float]
) -> tuple[float, float]:
    """Frames a second, by wall clock and by processor time."""
    return frames / (end[0] - begin[0]), frames / (end[1] - begin[1])


def write_corpus(folder: Path, dim: int, classes: int, num_frames: int) -> None:
    """Write utterances of whole chunks with random frames and labels."""
    generator = np.random.default_rng(0)
    with (
        FrameWriter(folder / "frames", dim=dim) as frames,
        LabelWriter(folder / "labels", classes) as labels,
    ):
        number = 0
        while num_frames > 0:
            length = CHUNK * int(generator.integers(4, 28) if number else 4)
            values = generator.standard_normal((length, dim), np.float32)
            frames.append(f"utt{number:06d}", "speaker", "", 10 + 3 * values)
            labels.append(f"utt{number:06d}", generator.integers(classes, size=length))
            num_frames -= length
            number += 1


class Contest:
    """One network and one size of batch: ours and the limit, in turns.

    Args:
        folder: the corpus.
        arguments: of the command line.
        num_chunks: chunks in a batch.
        steps: batches of an epoch.
    """

    def __init__(
        self, folder: Path, arguments: argparse.Namespace, num_chunks: int, steps: int
    ) -> None:
        self.folder, self.num_chunks, self.steps = folder, num_chunks, steps
        self.device = torch.device(arguments.device)
        self.dim, self.classes = SETTINGS[arguments.network]
        self.network_file = ROOT / f"config/networks/{arguments.network}.yaml"
        values = {
            "epochs": 1,
            "precision": arguments.precision,
            "schedule": {"type": "constant"},
            "final": "last",
            "tensorboard": False,
        }
        self.options = read_options(TrainingOptions, values)
        self.limit_network = self.network()
        self.optimizer = make_optimizer(
            self.limit_network, self.options.optimizer, self.options.learning_rate
        )
        shape = (num_chunks, CHUNK)
        self.tensors = [
            (
                torch.randn(*shape, self.dim, device=self.device),
                torch.randint(self.classes, shape, device=self.device),
            )
            for _ in range(4)
        ]

    def network(self) -> Network:
        """Return a new network."""
        description = NetworkDescription.load(self.network_file)
        sizes = dict.fromkeys(description.outputs, self.classes)
        return Network(description, self.dim, sizes, seed=0).to(self.device)

    def ours(self) -> tuple[float, float]:
        """Frames a second of an epoch of the trainer."""
        data = {
            "sequences": {"type": "chunks", "size": CHUNK},
            "max_sequences": self.num_chunks,
        }
        options = read_options(DataOptions, data)
        labels = LabelStore.load(self.folder / "labels")
        network = self.network()
        targets = {o.loss.target: labels for o in network.outputs.values()}
        frames = self.folder / "frames"
        normalizer = estimate_normalizer(frames, options)
        dev = open_batches(
            frames,
            targets,
            options.replace(max_length=4 * CHUNK),
            normalizer=normalizer,
            is_training=False,
        )
        train = TimedSource(
            dev.reader,
            targets,
            options,
            pin=self.device.type == "cuda",
        )
        assert self.steps <= train.num_batches(0)
        with tempfile.TemporaryDirectory() as folder:
            store = CheckpointStore(Path(folder), {}, keep=1)
            criterion = losses_of(network)
            Trainer(network, criterion, train, dev, self.options, store).run()
        return train.rates()

    def limit(self) -> tuple[float, float]:
        """Frames a second of the bare loop."""
        lengths = torch.full((self.num_chunks,), CHUNK)
        (output,) = self.limit_network.outputs
        parameters = list(self.limit_network.parameters())
        num_frames = self.num_chunks * CHUNK
        begin = now()
        for step in range(self.steps):
            if step == WARM_UP:
                begin = now()
            features, labels = self.tensors[step % len(self.tensors)]
            with autocast(self.options, self.device):
                logits = self.limit_network(features, lengths)[output].logits
            loss = functional.cross_entropy(
                logits.float().flatten(0, 1), labels.flatten(), reduction="sum"
            )
            self.optimizer.zero_grad()
            (loss / num_frames).backward()
            torch.nn.utils.clip_grad_norm_(parameters, self.options.clip_norm)
            self.optimizer.step()
        return rates((self.steps - WARM_UP) * num_frames, begin, now())


def compare(contest: Contest, rounds: int) -> dict[str, Any]:
    """Both in turns: medians, and the ratio of each round."""
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], "limit": []}
    for _ in range(rounds):
        taken["limit"].append(contest.limit())
        taken["ours"].append(contest.ours())
    result: dict[str, Any] = {}
    for clock, number in (("wall", 0), ("processor", 1)):
        of = {name: [pair[number] for pair in pairs] for name, pairs in taken.items()}
        ratios = [a / b for a, b in zip(of["ours"], of["limit"], strict=True)]
        result[clock] = {
            "ours_frames_per_s": round(statistics.median(of["ours"])),
            "limit_frames_per_s": round(statistics.median(of["limit"])),
            "ours_over_limit_median": round(statistics.median(ratios), 3),
            "ours_over_limit": [round(ratio, 3) for ratio in ratios],
        }
    result["irtf_ours"] = round(result["wall"]["ours_frames_per_s"] * FRAME_SHIFT, 1)
    result["irtf_limit"] = round(result["wall"]["limit_frames_per_s"] * FRAME_SHIFT, 1)
    return result


def data_rate(folder: Path, num_chunks: int) -> float:
    """Frames a second of the data path alone (reading, no network)."""
    values = {"max_sequences": num_chunks, "prefetch": 0}
    options = read_options(DataOptions, values)
    normalizer = estimate_normalizer(folder / "frames", options)
    labels = {"pdf": LabelStore.load(folder / "labels")}
    source = open_batches(folder / "frames", labels, options, normalizer=normalizer)
    best = 0.0
    for epoch in range(3):
        begin, frames = time.process_time(), 0
        for batch in source.epoch(epoch):
            frames += 0 if batch is None else batch.num_frames
        best = max(best, frames / (time.process_time() - begin))
    return round(best)


def main() -> None:
    """Run the contests and print what they gave."""
    is_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if is_cuda else "cpu")
    default = "blstm_3x512" if is_cuda else "blstm_small"
    parser.add_argument("--network", choices=sorted(SETTINGS), default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=200 if is_cuda else 12)
    parser.add_argument("--rounds", type=int, default=5 if is_cuda else 3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.basicConfig(level=logging.WARNING)
    dim, classes = SETTINGS[arguments.network]
    results = {}
    for num_chunks in arguments.batches:
        # a larger batch needs fewer steps for the same time
        steps = max(2 * WARM_UP, arguments.steps * 64 // num_chunks)
        with tempfile.TemporaryDirectory() as folder:
            num_frames = (steps + 1) * num_chunks * CHUNK
            write_corpus(Path(folder), dim, classes, num_frames)
            contest = Contest(Path(folder), arguments, num_chunks, steps)
            result = compare(contest, arguments.rounds)
            result["data_path_frames_per_cpu_s"] = data_rate(Path(folder), num_chunks)
            if arguments.network == "blstm_3x512":
                result["irtf_pykaldi2_v100"] = PYKALDI2.get(num_chunks)
            results[f"{num_chunks} x {CHUNK}"] = result
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    report = {
        "benchmark": "ce_training",
        "network": arguments.network,
        "dim": dim,
        "classes": classes,
        "device": device,
        "precision": arguments.precision,
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "torch": torch.__version__,
        "batches": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
