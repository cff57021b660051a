"""Throughput of training by CE or LF-MMI against a bare torch loop, the limit.

Ours is the trainer as the workflow runs it: frames and labels from the disk, cut into
chunks, normalized, shuffled; forward, loss, backward, clipping, optimizer, log. The
limit is the same network on chunks that lie on the device already:

* cross-entropy: random tensors of the same shapes; forward, loss, backward, clipping,
  the same optimizer, and nothing else;
* LF-MMI (networks `*_chain*`), on the chain system and frames of `--results`, or of
  random phones and frames (a biphone tree of 28 phones, a denominator as large as that
  of mini_librispeech): the chunks that ours trains on, with their supervision, and the
  same criterion; forward, criterion, backward, the same optimizer, and nothing else
  (ours clips the gradient, limits the change with natural gradient, and restores
  constraints besides).

Both take turns in one process. Prints JSON: frames of the features a second by wall
clock and by processor time (which says more where the machine is not idle), the inverse
real-time factor (frames of 10 ms), ours / limit, the shares of the time in the
trainer's log (`rest` is in none of its parts), and for cross-entropy what PyKaldi2's
paper reports for this network on a V100. (RETURNN is timed by `returnn_peer.py`.)

    python benchmarks/network_training.py [--network blstm_3x512] [--device cuda]
        [--batches 64 256] [--steps 60] [--rounds 5] [--precision bf16]
    python benchmarks/network_training.py --network cnn_tdnnf_chain_small --batches 16
        --optimizer natural_gradient --results results/speechocean --split train_sp
    python benchmarks/network_training.py --network cnn_tdnnf_chain --device cuda
        --batches 64 --optimizer natural_gradient --threads 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from latflow.align.options import SupervisionOptions
from latflow.align.supervision import PhoneLattice, SupervisionCompiler
from latflow.align.supervision_store import Supervisions
from latflow.criteria.losses import losses_of
from latflow.errors import Interrupted
from latflow.features.frames import FrameWriter
from latflow.graphs.chain import save_chain_system
from latflow.graphs.options import PhoneLmOptions
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.precision import dtype_of, passes_in
from latflow.options import read_options
from latflow.ragged import RaggedWriter
from latflow.training.batches import Targets, open_batches
from latflow.training.checkpoint import CheckpointStore
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.lfmmi import LfmmiJob, LfmmiTask
from latflow.training.optimizers import make_optimizer
from latflow.training.options import LfmmiRunOptions, TrainingOptions
from latflow.training.progress import PARTS
from latflow.training.readers import estimate_normalizer
from latflow.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
FRAME_SHIFT = 0.01
AHEAD = DataOptions().prefetch  # batches that are made beside the steps before
PYKALDI2 = {64: "190 (1 GPU)", 256: "520 (4 GPUs)"}  # iRTF, arXiv 1907.05955, table 2
SETTINGS = {  # features per frame, classes
    "blstm_3x512": (80, 5768),
    "blstm_small": (40, 1000),
    "tdnnf_small": (40, 1000),
    "tdnnf": (40, 2000),
}
LFMMI = (
    "tdnnf_chain_small",
    "cnn_tdnnf_chain_small",
    "cnn_tdnnf_chain_medium",
    "cnn_tdnnf_chain",
)
NUM_PHONES, FOLLOWING = 28, 26  # of the random language: phones, and those after each
OPTIMIZERS = {  # options of a training; the second as in speechocean's recipe
    "adam": {},
    "natural_gradient": {
        "optimizer": {"type": "natural_gradient", "weight_decay": 0.001, "period": 16},
        "max_change": 2.0,
    },
}
# Steps; natural gradient looks at inputs and derivatives in each of the first ten.
WARM_UP = {"adam": 4, "natural_gradient": 10}
CAPTURE = 50  # steps more on a GPU, whose passes are captured for each shape of LF-MMI


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
            length = CeContest.chunk * int(generator.integers(4, 28) if number else 4)
            values = generator.standard_normal((length, dim), np.float32)
            frames.append(f"utt{number:06d}", "speaker", "", 10 + 3 * values)
            labels.append(f"utt{number:06d}", generator.integers(classes, size=length))
            num_frames -= length
            number += 1


def write_chain(folder: Path, num_frames: int, dim: int = 40) -> None:
    """Write a chain system of random phones, utterances with frames, and supervision.

    Args:
        folder: gets `chain`, `frames` and `supervisions`.
        num_frames: of all utterances, at least.
        dim: features per frame.
    """
    rng = np.random.default_rng(0)
    phones = np.arange(1, NUM_PHONES + 1)
    follows = np.array([rng.permutation(phones)[:FOLLOWING] for _ in phones])

    def sequence(length: int) -> np.ndarray:
        found = [int(rng.integers(NUM_PHONES)) + 1]
        # a few of those that may follow come often
        picks = np.minimum(rng.geometric(0.06, size=length - 1), FOLLOWING) - 1
        for pick in picks.tolist():
            found.append(int(follows[found[-1] - 1, pick]))
        return np.array(found)

    topology = chain_topology(phones.tolist())
    classes = topology.pdf_class_counts()
    sets = [[phone] for phone in phones.tolist()]
    tree = ContextDependency.full_biphone(sets, classes, [])
    transitions = TransitionModel.from_tree(tree, topology)
    texts = [sequence(40) for _ in range(3000)]
    save_chain_system(folder / "chain", texts, PhoneLmOptions(), tree, transitions)
    compiler = SupervisionCompiler(tree, transitions, SupervisionOptions())
    meta = {"subsampling": 3, "num_pdfs": transitions.num_pdfs}
    with (
        FrameWriter(folder / "frames", dim=dim) as frames,
        RaggedWriter(folder / "supervisions", Supervisions, meta=meta) as supervisions,
    ):
        for number in itertools.count():
            text = texts[number % len(texts)]
            durations = rng.integers(4, 15, size=len(text))
            found = compiler.compile(PhoneLattice.linear(text, durations))
            assert not isinstance(found, str)
            name, length = f"utt{number:06d}", int(durations.sum())
            values = rng.standard_normal((length, dim), np.float32)
            frames.append(name, "speaker", "", 10 + 3 * values)
            supervisions.write(name, *found)
            num_frames -= length
            if num_frames <= 0:
                break
    for name in ("normalization.fst",):
        shutil.copyfile(folder / "chain" / name, folder / "supervisions" / name)


class Contest(ABC):
    """One network and one size of batch: ours and the limit, in turns.

    Args:
        arguments: of the command line.
        num_chunks: chunks in a batch.

    Attributes:
        chunk: frames of a chunk.
        limit_network: that of the bare loop.
        warm_up: steps of a turn that are not timed.
        steps: of a turn, with those.
        frames: of the features, in the steps that are timed.
        windows: lines of the trainer's log on such steps.
    """

    chunk: int
    limit_network: Network
    frames: int

    def __init__(self, arguments: argparse.Namespace, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.warm_up = WARM_UP[arguments.optimizer]
        if arguments.device == "cuda" and arguments.network in LFMMI:
            self.warm_up += CAPTURE
        # a larger batch needs fewer steps for the same time
        self.steps = max(2 * self.warm_up, arguments.steps * 64 // num_chunks)
        self.device = torch.device(arguments.device)
        self.network_file = ROOT / f"config/networks/{arguments.network}.yaml"
        values = {
            "epochs": 1,
            "precision": arguments.precision,
            "schedule": {"type": "constant"},
            "final": "last",
            "log_interval": self.warm_up,
            "tensorboard": False,
            **OPTIMIZERS[arguments.optimizer],
        }
        self.options = read_options(TrainingOptions, values)
        self.windows: list[dict[str, Any]] = []

    @abstractmethod
    def trainer(
        self, store: CheckpointStore, should_stop: Callable[[], bool]
    ) -> Trainer:
        """Return a trainer of a new network, with batches for `steps` and `AHEAD`."""

    @abstractmethod
    def step(self, number: int) -> None:
        """Make a step of the bare loop."""

    def ours(self) -> tuple[float, float]:
        """Frames a second of the trainer."""
        stamps, numbers = [], count()

        def is_over() -> bool:  # asked once a step
            number = next(numbers)
            if number in {self.warm_up, self.steps}:
                stamps.append(now())
            return number >= self.steps

        with tempfile.TemporaryDirectory() as folder:
            trainer = self.trainer(CheckpointStore(folder, {}, keep=1), is_over)
            with suppress(Interrupted), closing(trainer.criterion):
                trainer.run()
            lines = map(json.loads, trainer.log_file.read_text().splitlines())
            self.windows += list(lines)[1:]
        return rates(self.frames, *stamps)

    def limit(self) -> tuple[float, float]:
        """Frames a second of the bare loop."""
        self.optimizer = make_optimizer(
            self.limit_network,
            self.options.optimizer,
            self.options.learning_rate,
            dtype=dtype_of(self.options.precision, self.device),
        )
        begin = now()
        for number in range(self.steps):
            if number == self.warm_up:
                begin = now()
            self.step(number)
        return rates(self.frames, begin, now())

    def split(self) -> dict[str, float]:
        """Shares of the trainer's time; they add up to 1."""
        seconds = [line["frames"] / line["frames_per_second"] for line in self.windows]
        times = [[line["time"][part] for part in PARTS] for line in self.windows]
        means = np.average(times, axis=0, weights=seconds).tolist()
        shares: dict[str, float] = dict(zip(PARTS, means, strict=True))
        shares["rest"] = 1.0 - sum(shares.values())
        return {part: round(share, 3) for part, share in shares.items()}


class CeContest(Contest):
    """Training by cross-entropy; see `Contest`.

    Args:
        arguments: of the command line.
        num_chunks: chunks in a batch.
        folder: gets a corpus.
    """

    chunk = 80

    def __init__(
        self, arguments: argparse.Namespace, num_chunks: int, folder: Path
    ) -> None:
        super().__init__(arguments, num_chunks)
        self.folder = folder
        self.dim, self.classes = SETTINGS[arguments.network]
        per_batch = num_chunks * self.chunk
        self.frames = (self.steps - self.warm_up) * per_batch
        num_frames = (self.steps + 1 + AHEAD) * per_batch
        write_corpus(folder, self.dim, self.classes, num_frames)
        self.limit_network = self.network()
        shape = (num_chunks, self.chunk)
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

    def trainer(
        self, store: CheckpointStore, should_stop: Callable[[], bool]
    ) -> Trainer:
        """See `Contest.trainer`."""
        data = {
            "sequences": {"type": "chunks", "size": self.chunk},
            "max_sequences": self.num_chunks,
        }
        options = read_options(DataOptions, data)
        labels = LabelStore.load(self.folder / "labels")
        network = self.network()
        targets = {o.loss.target: labels for o in network.outputs.values()}
        frames = self.folder / "frames"
        normalizer = estimate_normalizer(frames, options)
        train = open_batches(frames, Targets(targets), options, normalizer=normalizer)
        assert self.steps + AHEAD < train.num_batches(0)
        criterion = losses_of(network)
        # the training stops before dev's turn
        batches = train, train
        return Trainer(
            network, criterion, *batches, self.options, store, should_stop=should_stop
        )

    def step(self, number: int) -> None:
        """See `Contest.step`."""
        lengths = torch.full((self.num_chunks,), self.chunk)
        (output,) = self.limit_network.outputs
        features, labels = self.tensors[number % len(self.tensors)]
        with passes_in(self.options.precision, self.device):
            logits = self.limit_network(features, lengths)[output].logits
        loss = functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), reduction="sum"
        )
        self.optimizer.zero_grad()
        (loss / labels.numel()).backward()
        assert self.options.clip_norm is not None
        torch.nn.utils.clip_grad_norm_(
            self.limit_network.parameters(), self.options.clip_norm
        )
        self.optimizer.step()


class LfmmiContest(Contest):
    """Training by LF-MMI; see `Contest`.

    Args:
        arguments: of the command line.
        num_chunks: chunks in a batch.
        folder: named in the job; gets a corpus where the arguments name no results.
    """

    chunk = 150

    def __init__(
        self, arguments: argparse.Namespace, num_chunks: int, folder: Path
    ) -> None:
        super().__init__(arguments, num_chunks)
        data = {
            "sequences": {"type": "chunks", "size": self.chunk},
            "max_sequences": num_chunks,
            "buckets": 4,  # as in recipes
        }
        if arguments.results is None:
            num_frames = (self.steps + 2 + AHEAD) * num_chunks * self.chunk * 6 // 5
            write_chain(folder, num_frames)
            chain, frames = folder / "chain", [folder / "frames"] * 2
            supervisions = [folder / "supervisions"] * 2
        else:
            chain, splits = arguments.results / "chain/chain", (arguments.split, "dev")
            frames = [arguments.results / arguments.frames / split for split in splits]
            supervisions = [chain / "supervisions" / split for split in splits]
        self.job = LfmmiJob(
            options=read_options(LfmmiRunOptions, {"data": data}),
            out_dir=folder,
            checkpoints=folder,
            frames_dir=frames[0],
            dev_frames_dir=frames[1],
            chain_dir=chain,
            threads=arguments.threads,
            supervisions_dir=supervisions[0],
            dev_supervisions_dir=supervisions[1],
            network=self.network_file,
        )
        task = LfmmiTask(self.job, self.device)
        self.limit_network, self.criterion = task.network, task.criterion
        train, _ = task.batches
        self.steps = min(self.steps, train.num_batches(0) - 1 - AHEAD)
        if self.steps <= self.warm_up:
            sys.exit(f"{arguments.results}: too little for batches of {num_chunks}")
        with closing(train.epoch(0)) as batches:
            made = [batch for batch in islice(batches, self.steps) if batch]
        self.batches = [batch.to(self.device) for batch in made]
        self.frames = sum(b.num_frames * b.subsampling for b in made[self.warm_up :])

    def trainer(
        self, store: CheckpointStore, should_stop: Callable[[], bool]
    ) -> Trainer:
        """See `Contest.trainer`."""
        task = LfmmiTask(self.job, self.device)
        return Trainer(
            task.network,
            task.criterion,
            *task.batches,
            self.options,
            store,
            dev_criterion=task.dev_criterion,
            should_stop=should_stop,
        )

    def step(self, number: int) -> None:
        """See `Contest.step`."""
        batch = self.batches[number]
        with passes_in(self.options.precision, self.device):
            outputs = self.limit_network(
                batch.features, batch.lengths, has_context=batch.has_context
            )
        loss = self.criterion.begin(outputs, batch)()
        self.optimizer.zero_grad()
        (loss.value / loss.num_frames).backward()
        self.optimizer.step()


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
    result["split"] = contest.split()
    result["dim"] = contest.limit_network.dim_in
    output, *_ = contest.limit_network.outputs.values()
    result["classes"] = output.num_classes
    return result


def data_rate(folder: Path, num_chunks: int) -> float:
    """Frames a second of the data path alone (reading, no network)."""
    values = {"max_sequences": num_chunks, "prefetch": 0}
    options = read_options(DataOptions, values)
    normalizer = estimate_normalizer(folder / "frames", options)
    labels = {"pdf": LabelStore.load(folder / "labels")}
    source = open_batches(
        folder / "frames", Targets(labels), options, normalizer=normalizer
    )
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
    parser.add_argument("--network", choices=[*SETTINGS, *LFMMI], default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=200 if is_cuda else 12)
    parser.add_argument("--rounds", type=int, default=5 if is_cuda else 3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    lfmmi = parser.add_argument_group("LF-MMI, of a recipe with a system `chain`")
    lfmmi.add_argument("--results", type=Path, help="without: random phones and frames")
    lfmmi.add_argument("--frames", default="streams/hires/frames")
    lfmmi.add_argument("--split", default="train", help="that it is trained on")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.basicConfig(level=logging.WARNING)
    kind = LfmmiContest if arguments.network in LFMMI else CeContest
    results: dict[str, Any] = {}
    for num_chunks in arguments.batches:
        with tempfile.TemporaryDirectory() as folder:
            contest = kind(arguments, num_chunks, Path(folder))
            result = compare(contest, arguments.rounds)
            if kind is CeContest:
                rate = data_rate(Path(folder), num_chunks)
                result["data_path_frames_per_cpu_s"] = rate
            if arguments.network == "blstm_3x512":
                result["irtf_pykaldi2_v100"] = PYKALDI2.get(num_chunks)
            results[f"{num_chunks} x {contest.chunk}"] = result
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    report = {
        "benchmark": "network_training",
        "network": arguments.network,
        "optimizer": arguments.optimizer,
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
