"""Denominator of LF-MMI, forward and backward, against torch's operations on arcs.

The shape is that of the published benchmark of MarkovModels.jl (WSJ: 3,033 states,
51,022 arcs, 84 pdfs, 128 sequences of 700 frames; PyChain took 41.7 s there on a core
of 2013). Graphs are random:

* `chain`: each state loops with one pdf, and all other arcs into it have another, as in
  Kaldi's denominators; states are entered by few or many arcs, as a power law has it;
* `any`: each arc has any pdf, the worst case.

The peer, timed in the same process, is what one writes with torch: a gather, products
and `index_add_` over all arcs of a frame for all sequences (the code path of devices
other than CPUs), on `--peer-frames` frames, since its time is linear in them.

    python benchmarks/lfmmi_denominator.py --threads 2
    python benchmarks/lfmmi_denominator.py --device cuda

With `--device` the same computation is timed there, over all frames, as the package
does it, with the CPU's kernels on `--peer-frames` frames as reference.

Prints JSON: seconds of wall time and of processor time of all threads, the least of
`--repeats`; nanoseconds of wall time for an arc, frame and sequence; how many times
faster ours is; the largest differences.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
import torch
from timing import Stopwatch

from latflow.criteria.denominator import Denominator, DenominatorSums
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.parallel import worker_pool


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=3033)
    parser.add_argument("--arcs", type=int, default=51022)
    parser.add_argument("--pdfs", type=int, default=84)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--frames", type=int, default=700)
    parser.add_argument("--peer-frames", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def random_denominator(
    arguments: argparse.Namespace, rng: np.random.Generator, case: str
) -> Denominator:
    """Make a graph in which each state loops, and probabilities leave it."""
    num_states, num_pdfs = arguments.states, arguments.pdfs
    popularity = 1.0 / np.arange(1.0, num_states + 1.0) ** 0.5
    popularity = rng.permutation(popularity / popularity.sum())
    free = arguments.arcs - num_states
    loops = np.arange(num_states)
    source = np.concatenate([loops, rng.integers(num_states, size=free)])
    target = np.concatenate([loops, rng.choice(num_states, free, p=popularity)])
    arcs = np.zeros(len(source), ARC)
    pdf = rng.integers(num_pdfs, size=num_states)[target]
    pdf[:num_states] = rng.integers(num_pdfs, size=num_states)
    if case == "any":
        pdf = rng.integers(num_pdfs, size=len(source))
    share = rng.exponential(size=len(source))
    share /= np.bincount(source, share)[source]
    arcs["ilabel"] = arcs["olabel"] = pdf + 1
    arcs["next_state"], arcs["weight"] = target, -np.log(share)
    graph = Graph.from_arc_list(0, source, arcs, np.zeros(num_states, np.float32))
    return Denominator(graph, rng.dirichlet(np.ones(num_states)), num_pdfs)


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Wall time and processor time, each the least."""
    work()  # compile, touch the memory
    wall, processor = [], []
    for _ in range(repeats):
        with Stopwatch() as spent:
            work()
        wall.append(spent.wall)
        processor.append(spent.processor)
    return min(wall), min(processor)


def ours(denominator: Denominator, outputs: torch.Tensor, pool: Executor | None):
    lengths = [outputs.shape[1]] * len(outputs)
    return denominator.forward_backward(outputs, lengths, leaky=0.1, pool=pool)


def peer(denominator: Denominator, outputs: torch.Tensor) -> DenominatorSums:
    lengths = [outputs.shape[1]] * len(outputs)
    totals = torch.empty(len(outputs), dtype=torch.float64)
    posteriors = torch.zeros_like(outputs)
    denominator._run_operations(outputs, lengths, 0.1, totals, posteriors)
    return DenominatorSums(totals, posteriors)


def measure_device(arguments: argparse.Namespace, case: str) -> dict[str, object]:
    rng = np.random.default_rng(0)
    denominator = random_denominator(arguments, rng, case)
    shape = arguments.sequences, arguments.frames, arguments.pdfs
    outputs = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    there = outputs.to(arguments.device)

    def work() -> None:
        ours(denominator, there, None)
        if there.is_cuda:
            torch.cuda.synchronize()

    wall, _ = seconds(work, arguments.repeats)
    few = outputs[:, : arguments.peer_frames].contiguous()
    with worker_pool(arguments.threads) as pool:
        expected = ours(denominator, few, pool)
    found = ours(denominator, few.to(arguments.device), None)
    relative = found.log_likes.cpu() / expected.log_likes - 1.0
    difference = found.posteriors.cpu() - expected.posteriors
    visits = arguments.sequences * arguments.arcs * arguments.frames
    return {
        "seconds": wall,
        "ns_per_arc_frame_sequence": wall / visits * 1e9,
        "largest_relative_difference_of_log_likes": relative.abs().max().item(),
        "largest_difference_of_posteriors": difference.abs().max().item(),
    }


def measure(arguments: argparse.Namespace, case: str) -> dict[str, object]:
    rng = np.random.default_rng(0)
    denominator = random_denominator(arguments, rng, case)
    shape = arguments.sequences, arguments.frames, arguments.pdfs
    outputs = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    few = outputs[:, : arguments.peer_frames].contiguous()
    with worker_pool(arguments.threads) as pool:
        time_ours, processor = seconds(
            lambda: ours(denominator, outputs, pool), arguments.repeats
        )
        found = ours(denominator, few, pool)
    torch.set_num_threads(arguments.threads)
    time_peer, _ = seconds(lambda: peer(denominator, few), arguments.repeats)
    expected = peer(denominator, few)
    visits = arguments.sequences * arguments.arcs
    relative = (found.log_likes - expected.log_likes) / expected.log_likes
    return {
        "seconds": time_ours,
        "processor_seconds": processor,
        "ns_per_arc_frame_sequence": time_ours / visits / arguments.frames * 1e9,
        "peer_frames": arguments.peer_frames,
        "peer_ns_per_arc_frame_sequence": time_peer / visits / few.shape[1] * 1e9,
        "times_faster": time_peer / few.shape[1] * arguments.frames / time_ours,
        "largest_relative_difference_of_log_likes": relative.abs().max().item(),
        "largest_difference_of_posteriors": (found.posteriors - expected.posteriors)
        .abs()
        .max()
        .item(),
    }


def main() -> None:
    arguments = parse_arguments()
    work = measure if arguments.device == "cpu" else measure_device
    report = vars(arguments) | {
        case: work(arguments, case) for case in ("chain", "any")
    }
    report["load_average"] = os.getloadavg()[0]
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
