"""MMI training with lattices made on the fly: real-time factor, and where time goes.

The real thing: batches of the real data path, the trainer's own steps, the weak
denominator of the training transcripts. For each batch size and number of threads:

* `irtf`: seconds of speech trained on in a second of wall time; `over_first_threads`:
  that, over the same with the first of `--threads`;
* `split`: shares of wall time of the thread that trains: data, forward, wait (for
  lattices), criterion (the loss's own work besides), backward, update, rest. They add
  up to 1;
* `beside`: processor time of the lattice threads for alignment, lattices and criterion,
  in seconds a second of wall time, while the above goes on (up to the threads' number);
* `cpu`: processor time of the same and of the whole process, in seconds a second of
  speech; `cores_busy` is that of the process in a second of wall time. With one thread
  it can be up to 2: one lattice thread works beside the one that trains;
* `with_kaldi`: the same with Kaldi's `LatticeFasterDecoder` in place of our search
  (from the wheel kaldi-hmm-gmm, run on the scores of the same utterances in a process
  of its own, see `kaldi_lattice_decoder.py`): processor time of a step is ours less all
  our lattice generation plus Kaldi's search and raw lattice. `lattice_ratio` is Kaldi's
  over ours, `step_ratio` the same of the whole step (above 1: ours is faster).

All runs train on the same utterances, from the same network; they take turns for
`--rounds` rounds, of which the one with the least processor time is reported.

The network is seeded by a short training on cross-entropy, so that lattices are those
of a network that knows something; `--model` takes a trained one.

    python benchmarks/sequence_training.py             # results/speechocean, tri1
    python benchmarks/sequence_training.py --quick     # does it work? (no figures)

Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.align.graphs import compile_transcripts
from latflow.criteria.batch import Batch
from latflow.criteria.losses import losses_of
from latflow.criteria.mmi import Mmi
from latflow.criteria.options import MmiOptions
from latflow.criteria.protocol import Criterion
from latflow.criteria.sequence.criterion import SequenceCriterion
from latflow.criteria.sequence.generation import SequenceFiles, load_generator
from latflow.criteria.sequence.options import (
    AlignmentOptions,
    LatticeSearchOptions,
    SequenceOptions,
)
from latflow.features.frames import FrameStore
from latflow.fst.graph import Graph
from latflow.graphs.denominator import make_denominator
from latflow.graphs.hclg import load_model as load_transitions
from latflow.graphs.options import DenominatorOptions, GraphOptions
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.options import read_options
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.distributed import Backend
from latflow.training.evaluation import priors_of_labels
from latflow.training.labels import LabelStore, write_labels
from latflow.training.optimizer_options import AdamOptions
from latflow.training.optimizers import make_optimizer
from latflow.training.options import TrainingOptions
from latflow.training.progress import Clock
from latflow.training.steps import Stepper

HERE = Path(__file__).parent
SECONDS = ("seconds_align", "seconds_lattice", "seconds_criterion")
# iRTF of MMI training of blstm_3x512, arXiv 1907.05955
PYKALDI2 = {"1 V100, batch 4": 16.7, "4 V100": 50.4, "16 V100": 176}
QUICK = {"ce_steps": 4, "batches": [1, 4], "threads": [1], "utterances": 4, "rounds": 1}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "--results", type=Path, default=HERE.parent / "results/speechocean"
    )
    parser.add_argument("--system", default="tri1", help="whose alignments and tree")
    parser.add_argument(
        "--frames",
        default="frames",
        help="folder in the results with the frames of the splits",
    )
    parser.add_argument(
        "--network", default=HERE.parent / "config/networks/blstm_small.yaml"
    )
    parser.add_argument(
        "--model", type=Path, help="a trained network, instead of a seed"
    )
    parser.add_argument("--ce-steps", type=int, default=150, help="to seed the network")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--utterances", type=int, default=32, help="a measurement")
    parser.add_argument(
        "--alignments", choices=["static", "on_the_fly"], default="static"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-kaldi", action="store_true", help="no peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="least of everything")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    if any(arguments.utterances % size for size in arguments.batches):
        parser.error("--utterances must be a multiple of every batch size")
    return arguments


@dataclass
class Task:
    """Data, denominator and network."""

    files: SequenceFiles
    frames: Path
    labels: LabelStore
    network: Network
    log_priors: np.ndarray
    normalizer: Normalizer

    def batches(self, size: int, sequences: str) -> BatchSource:
        """Batches of a size."""
        options = {"sequences": {"type": sequences}, "max_sequences": size}
        return open_batches(
            self.frames,
            Targets({"pdf": self.labels}),
            read_options(DataOptions, options),
            normalizer=self.normalizer,
        )


def prepare(arguments: argparse.Namespace, folder: Path) -> tuple[Task, dict[str, Any]]:
    """Make labels, graphs and a seeded network."""
    results, system = arguments.results, arguments.system
    model_dir, frames = results / "gmm" / system, results / arguments.frames / "train"
    alignments = results / "align" / system / "train" / "ali.ark"
    _, transitions = load_transitions(model_dir)
    labels = write_labels(alignments, transitions, folder / "labels")
    graph = folder / "HCLG.fst"
    make_denominator(
        results / "lang",
        results / "corpus/train/cuts.jsonl.gz",
        model_dir,
        graph,
        options=DenominatorOptions(),
    )
    compile_transcripts(
        frames,
        results / "lang",
        model_dir,
        folder / "graphs",
        threads=2,
    )
    files = SequenceFiles(
        frames, results / "lang", model_dir, graph, alignments, folder / "graphs"
    )
    if arguments.model:
        seed = load_model(arguments.model)
        network, priors = seed.network, np.load(arguments.model / "priors.npy")
        normalizer = Normalizer.from_meta(seed.meta["normalization"])
    else:
        network = Network(
            NetworkDescription.load(arguments.network),
            FrameStore.load(frames).dim,
            {"pdf": labels.num_classes},
            seed=1,
        )
        priors, normalizer = priors_of_labels(labels), Normalizer("none")
    priors = np.maximum(priors / priors.sum(), 1e-8)
    network.to(arguments.device).train()
    task = Task(files, frames, labels, network, np.log(priors), normalizer)
    facts = json.loads(graph.with_suffix(".json").read_text())
    if not arguments.model:
        facts["ce_frame_errors"] = seed_network(task, arguments.ce_steps)
    return task, facts


def stepper_of(task: Task, criterion: Criterion, rate: float, micro: int) -> Stepper:
    """Return the trainer's steps."""
    options = read_options(TrainingOptions, {"micro_sequences": micro})
    optimizer = make_optimizer(task.network, AdamOptions(), rate)
    return Stepper(
        task.network, criterion, optimizer, options, seed=1, backend=Backend()
    )


def seed_network(task: Task, steps: int) -> float:
    """Train on cross-entropy for a while; frame errors of the last steps, in shares."""
    stepper = stepper_of(task, losses_of(task.network), 2e-3, 64)
    errors = []
    for step, batch in zip(
        range(1, steps + 1), endless(task.batches(64, "chunks")), strict=False
    ):
        numbers = stepper.make([batch], step, 2e-3, Clock(), requests={}).read()
        errors.append(numbers["frame_errors"] / numbers["frames"])
    return round(float(np.mean(errors[-10:])), 4)


def endless(source: BatchSource) -> Iterator[Batch | None]:
    """Batches of one epoch after the other."""
    epoch = 0
    while True:
        yield from source.epoch(epoch)
        epoch += 1


def measure(
    task: Task, arguments: argparse.Namespace, size: int, threads: int
) -> tuple[dict[str, Any], list[str]]:
    """Train on some utterances; figures, and which they were."""
    options = SequenceOptions(alignments=AlignmentOptions(source=arguments.alignments))
    torch.set_num_threads(threads)
    mmi = Mmi(MmiOptions(), load_transitions(task.files.model_dir)[1])
    criterion = SequenceCriterion(
        load_generator(task.files, mmi, options, GraphOptions()),
        torch.from_numpy(task.log_priors).float(),
        options,
        ce_weight=0.1,
        threads=threads,
    )
    state = {name: value.clone() for name, value in task.network.state_dict().items()}
    # a GPU takes many sequences in the time of one
    parts = 2 if arguments.device == "cuda" else 4
    stepper = stepper_of(task, criterion, 1e-6, max(1, size // parts))
    count = arguments.utterances // size
    full = (b for b in endless(task.batches(size, "utterances")) if b is not None)
    made = list(islice(full, count))
    stepper.make([made[0]], 1, 1e-6, Clock(), requests={}).read()  # compiles
    task.network.load_state_dict(state)
    clock, sums, names = Clock(), {}, []
    began, processor = time.perf_counter(), time.process_time()
    for step, batch in enumerate(made, start=2):
        measured = stepper.make([batch], step, 1e-6, clock, requests={}).read()
        for name, value in measured.items():
            sums[name] = sums.get(name, 0.0) + value
        names += batch.utterances
    wall, processor = time.perf_counter() - began, time.process_time() - processor
    criterion.close()
    task.network.load_state_dict(state)
    shift = FrameStore.load(task.frames).frame_shift
    speech = sums["frames"] * shift
    return {
        "batch": size,
        "threads": threads,
        "irtf": round(speech / wall, 2),
        "split": shares(clock, sums["seconds_wait"], wall),
        "beside": {name[8:]: round(sums[name] / wall, 3) for name in SECONDS},
        "cores_busy": round(processor / wall, 2),
        "cpu": {
            **{name[8:]: round(sums[name] / speech, 5) for name in SECONDS},
            "all": round(processor / speech, 4),
        },
        "depth": round(sums["depth"] / sums["frames"], 1),
        "oracle_wer": round(
            100 * sums["oracle_errors"] / max(1, sums["oracle_words"]), 2
        ),
        "skipped": int(sums["skipped"]),
        "objective": round(sums["objective"] / sums["frames"], 4),
        "speech_s": round(speech, 1),
    }, names


def shares(clock: Clock, wait: float, wall: float) -> dict[str, float]:
    """Shares of the training thread's wall time; they add up to 1."""
    seconds = {name: value for name, value in clock.seconds.items() if value}
    seconds["criterion"] -= wait  # it is waited for within
    seconds["wait"] = wait
    seconds["rest"] = wall - sum(seconds.values())
    return {name: round(value / wall, 3) for name, value in seconds.items()}


def kaldi_seconds(task: Task, utterances: list[str], folder: Path) -> float:
    """Processor time of Kaldi's search, per second of speech."""
    _, transitions = load_transitions(task.files.model_dir)
    store, lattices = FrameStore.load(task.frames), LatticeSearchOptions()
    Graph.load(task.files.graph).to_fst().write(str(folder / "graph.fst"))
    task.network.eval()
    num_frames = 0
    for number, utterance in enumerate(utterances):
        frames = task.normalizer(store.frames(store.position(utterance)))
        with torch.no_grad():
            x = torch.from_numpy(np.array(frames))[None]
            device = next(task.network.parameters()).device
            outputs = task.network(x.to(device), torch.tensor([len(frames)]))
        scores = next(iter(outputs.values())).logits[0].log_softmax(-1).cpu().numpy()
        scores = lattices.acoustic_scale * (scores - task.log_priors)
        by_id = scores[:, transitions.pdf[1:]].astype(np.float32)
        np.save(folder / f"{number:06d}.npy", by_id)
        num_frames += len(frames)
    task.network.train()
    limits = (lattices.beam, lattices.lattice_beam, lattices.max_active, 1)
    program = str(HERE / "kaldi_lattice_decoder.py")
    command = [sys.executable, program, str(folder), *map(str, limits)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds = sum(both for _, both in json.loads(answer.stdout).values())
    return seconds / (num_frames * store.frame_shift)


def best_runs(
    task: Task, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the best round of each size and number of threads, and the utterances."""
    best: dict[tuple[int, int], dict[str, Any]] = {}
    utterances: list[str] = []
    for _ in range(arguments.rounds):
        for case in product(arguments.batches, arguments.threads):
            run, names = measure(task, arguments, *case)
            if utterances and sorted(names) != sorted(utterances):
                raise RuntimeError("runs saw different utterances")
            utterances = names
            if case not in best or run["cpu"]["all"] < best[case]["cpu"]["all"]:
                best[case] = run
    for (size, _), run in best.items():
        first = best[size, arguments.threads[0]]
        run["over_first_threads"] = round(run["irtf"] / first["irtf"], 3)
    return list(best.values()), utterances


def with_kaldi(cpu: dict[str, float], kaldi: float) -> dict[str, float]:
    """Return the processor time of a run with Kaldi's search in place of ours."""
    step = cpu["all"] - cpu["lattice"] + kaldi
    return {
        "lattice": round(kaldi, 5),
        "all": round(step, 4),
        "lattice_ratio": round(kaldi / cpu["lattice"], 2),
        "step_ratio": round(step / cpu["all"], 3),
    }


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        task, facts = prepare(arguments, Path(name))
        runs, utterances = best_runs(task, arguments)
        if not arguments.without_kaldi:
            kaldi = kaldi_seconds(task, utterances, Path(name))
            for run in runs:
                run["with_kaldi"] = with_kaldi(run["cpu"], kaldi)
    report = {
        "benchmark": "sequence_training",
        "network": str(arguments.model or arguments.network),
        "device": arguments.device,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "irtf_pykaldi2_blstm_3x512": PYKALDI2,
        "denominator": facts,
        "runs": runs,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
