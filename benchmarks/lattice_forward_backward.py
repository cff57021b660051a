"""Forward-backward over lattices against the recursion of Kaldi and against OpenFst.

No wheel on the machine offers forward-backward over lattices (kaldi-hmm-gmm,
kaldi-decoder and kaldifst 1.8 have neither the log semiring nor `ShortestDistance`), so
that the peers, timed alternately in the same process, are

* `kaldi_recursion`: Kaldi's recursion (`LatticeForwardBackward` and
  `LatticeForwardBackwardMpeVariants`: one log-add an arc and pass, further exponentials
  for posteriors and accuracies), arc by arc, compiled by Numba;
* `kaldifst_shortest_path`: OpenFst's best path (C++), a single tropical pass, less work
  than forward-backward; its FST is built before the clock starts;
* `python`: Kaldi's recursion in plain Python, on the first `--python-lattices`.

    python benchmarks/lattice_forward_backward.py            # Kaldi's golden digits
    python benchmarks/lattice_forward_backward.py --lattices lattices.ark \
        --model final.mdl --count 50 --threads 2

Prints JSON: nanoseconds an arc in processor time, least of `--repeats` passes; how many
times faster ours is; how far results differ; and with `--threads` above 1 the gain in
wall time from a pool of threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import kaldifst
import numpy as np
from numba import njit
from timing import GOLDEN, least_seconds

from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel
from latflow.lattice.best_path import best_path
from latflow.lattice.discriminative import arc_accuracies, expected_accuracy
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import (
    best_costs,
    expected_arc_score,
    forward,
    forward_backward,
    scaled_arcs,
)
from latflow.lattice.posteriors import posteriors
from latflow.parallel import in_order, worker_pool


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--lattices", type=Path, default=GOLDEN / "lattice/raw_beam13.lats"
    )
    parser.add_argument("--model", type=Path, default=GOLDEN / "gmm/tri1/final.mdl")
    parser.add_argument(
        "--silence-phones", type=int, nargs="*", default=list(range(1, 11))
    )
    parser.add_argument("--count", type=int, default=100, help="lattices, at most")
    parser.add_argument("--python-lattices", type=int, default=3)
    parser.add_argument("--acoustic-scale", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class Item(NamedTuple):
    """A lattice, its best path for an alignment, and what the peers take."""

    lattice: Lattice
    alignment: np.ndarray
    accuracy: np.ndarray
    best_cost: float
    fst: kaldifst.StdVectorFst
    scale: float

    @property
    def arrays(self) -> tuple:
        """The arguments of Kaldi's recursion."""
        lattice = self.lattice
        return (
            lattice.arc_begin,
            lattice.next_state,
            (lattice.graph_cost, lattice.acoustic_cost),
            (lattice.final_graph_cost, lattice.final_acoustic_cost),
            self.scale,
        )


def prepare(lattice: Lattice, arguments: argparse.Namespace, model) -> Item:
    scale = arguments.acoustic_scale
    alignment = best_path(lattice, acoustic_scale=scale).transition_ids
    arcs = scaled_arcs(lattice, acoustic_scale=scale)
    accuracy = arc_accuracies(
        lattice,
        alignment,
        model,
        criterion="smbr",
        silence_phones=arguments.silence_phones,
    )
    graph = Graph.from_arrays(
        0,
        lattice.arc_begin,
        lattice.transition_id,
        lattice.word,
        arcs.cost.astype(np.float32),
        lattice.next_state,
        arcs.final_cost.astype(np.float32),
    )
    cost = float(best_costs(arcs)[-1])
    return Item(lattice, alignment, accuracy, cost, graph.to_fst(), scale)


def log_add(a: float, b: float) -> float:
    """Logarithm of a sum, as Kaldi's `LogAdd`."""
    if a < b:
        a, b = b, a
    if b == -math.inf:
        return a
    return a + math.log1p(math.exp(b - a))


def forward_sums(log_add):
    """Kaldi's first passes with a `log_add` that is compiled or not."""

    def run(arc_begin, next_state, costs, final_costs, scale):
        graph, acoustic = costs
        final_graph, final_acoustic = final_costs
        num_states = len(final_graph)
        alpha = np.full(num_states, -np.inf)
        beta = np.full(num_states, -np.inf)
        alpha[0] = 0.0
        total = -np.inf
        for s in range(num_states):
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                target = next_state[arc]
                way = alpha[s] - (graph[arc] + scale * acoustic[arc])
                alpha[target] = log_add(alpha[target], way)
            if final_graph[s] < np.inf:
                ending = final_graph[s] + scale * final_acoustic[s]
                total = log_add(total, alpha[s] - ending)
                beta[s] = -ending
        posterior = np.empty(len(next_state))
        for s in range(num_states - 1, -1, -1):
            for arc in range(arc_begin[s], arc_begin[s + 1]):
                cost = graph[arc] + scale * acoustic[arc]
                rest = beta[next_state[arc]] - cost
                beta[s] = log_add(beta[s], rest)
                posterior[arc] = math.exp(alpha[s] + rest - total)
        return total, posterior, alpha, beta

    return run


python_recursion = forward_sums(log_add)
kaldi_recursion = njit(nogil=True)(forward_sums(njit(nogil=True)(log_add)))


@njit(nogil=True)
def kaldi_accuracy(arc_begin, next_state, costs, final_costs, scale, accuracy):
    """Kaldi's second passes: expected accuracy and signed posteriors of arcs."""
    graph, acoustic = costs
    final_graph, final_acoustic = final_costs
    total, posterior, alpha, beta = kaldi_recursion(
        arc_begin, next_state, costs, final_costs, scale
    )
    before, after = np.zeros(len(alpha)), np.zeros(len(alpha))
    expected = 0.0
    for s in range(len(alpha)):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target, cost = next_state[arc], graph[arc] + scale * acoustic[arc]
            share = math.exp(alpha[s] - cost - alpha[target])
            before[target] += share * (before[s] + accuracy[arc])
        if final_graph[s] < np.inf:
            ending = final_graph[s] + scale * final_acoustic[s]
            expected += math.exp(alpha[s] - ending - total) * before[s]
    signed = np.empty(len(next_state))
    for s in range(len(alpha) - 1, -1, -1):
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            target, cost = next_state[arc], graph[arc] + scale * acoustic[arc]
            share = math.exp(beta[target] - cost - beta[s])
            rest = after[target] + accuracy[arc]
            after[s] += share * rest
            posterior = math.exp(alpha[s] + beta[target] - cost - total)
            signed[arc] = posterior * (before[s] + rest - expected)
    return expected, signed


def contenders(
    arguments: argparse.Namespace, model
) -> dict[str, Callable[[Item], object]]:
    scale = arguments.acoustic_scale

    def accuracy(item: Item):
        return expected_accuracy(
            item.lattice,
            item.alignment,
            model,
            criterion="smbr",
            silence_phones=arguments.silence_phones,
            acoustic_scale=scale,
        )

    def accuracy_of_arcs(item: Item):
        lattice = item.lattice
        sums = forward(lattice, acoustic_scale=scale)
        return expected_arc_score(sums, item.accuracy)

    def by_frame(item: Item):
        result = forward_backward(item.lattice, acoustic_scale=scale)
        return posteriors(item.lattice, result)

    return {
        "forward_backward": lambda item: forward_backward(
            item.lattice, acoustic_scale=scale
        ),
        "kaldi_recursion": lambda item: kaldi_recursion(*item.arrays),
        "expected_accuracy": accuracy_of_arcs,
        "kaldi_accuracy_recursion": lambda item: kaldi_accuracy(
            *item.arrays, item.accuracy
        ),
        "posteriors_by_frame": by_frame,
        "expected_accuracy_by_frame": accuracy,
        "kaldifst_shortest_path": lambda item: kaldifst.shortest_path(item.fst),
    }


def per_arc(seconds: dict[str, float], items: list[Item]) -> dict[str, float]:
    """Nanoseconds an arc of what was timed over items."""
    arcs = sum(item.lattice.num_arcs for item in items)
    return {name: spent / arcs * 1e9 for name, spent in seconds.items()}


def agreement(
    items: list[Item], arguments: argparse.Namespace, model
) -> dict[str, float]:
    """Largest differences between ours and the peers."""
    works = contenders(arguments, model)
    keys = "log_like_relative", "posterior", "accuracy_frames", "best_cost_relative"
    worst = dict.fromkeys(keys, 0.0)
    for item in items:
        ours = works["forward_backward"](item)
        total, posterior, *_ = kaldi_recursion(*item.arrays)
        expected, _ = kaldi_accuracy(*item.arrays, item.accuracy)
        found, _ = works["expected_accuracy_by_frame"](item)
        *_, weight = kaldifst.get_linear_symbol_sequence(works[
            "kaldifst_shortest_path"](item))  # fmt: skip
        new = {
            "log_like_relative": abs(ours.log_like / total - 1.0),
            "posterior": float(np.abs(ours.arc_posterior - posterior).max(initial=0)),
            "accuracy_frames": abs(found - expected),
            "best_cost_relative": abs(weight.value / item.best_cost - 1.0),
        }
        worst = {key: max(worst[key], new[key]) for key in keys}
    return worst


def thread_gain(
    work: Callable[[Item], object], items: list[Item], arguments: argparse.Namespace
) -> float:
    """Wall time of one thread over that of `--threads`."""

    def seconds(threads: int) -> float:
        with worker_pool(threads) as pool:
            begun = time.perf_counter()
            for _ in in_order(pool, work, items):
                pass
            return time.perf_counter() - begun

    ones, many = [], []
    for _ in range(arguments.repeats):
        ones.append(seconds(1))
        many.append(seconds(arguments.threads))
    return min(ones) / min(many)


def main() -> None:
    arguments = parse_arguments()
    model = AcousticModel.load(arguments.model).transitions
    pairs = itertools.islice(read_lattices(arguments.lattices), arguments.count)
    items = [prepare(lattice, arguments, model) for _, lattice in pairs]
    works = contenders(arguments, model)
    times = per_arc(least_seconds(works, items, arguments.repeats), items)
    few = items[: arguments.python_lattices]
    slow = {"python": lambda item: python_recursion(*item.arrays)}
    times |= per_arc(least_seconds(slow, few, 1), few)
    ours = times["forward_backward"]
    frames = sum(item.lattice.num_frames for item in items)
    arcs = sum(item.lattice.num_arcs for item in items)
    report = {
        "lattices": str(arguments.lattices),
        "utterances": len(items),
        "frames": frames,
        "arcs": arcs,
        "states": sum(item.lattice.num_states for item in items),
        "acoustic_scale": arguments.acoustic_scale,
        "nanoseconds_per_arc": times,
        "microseconds_per_frame": ours * arcs / frames / 1e3,
        "times_faster": {
            "than_kaldi_recursion": times["kaldi_recursion"] / ours,
            "than_kaldi_accuracy_recursion": times["kaldi_accuracy_recursion"]
            / times["expected_accuracy"],
            "than_kaldifst_shortest_path": times["kaldifst_shortest_path"] / ours,
            "than_python": times["python"] / ours,
        },
        "largest_difference": agreement(items, arguments, model),
        "load_average": os.getloadavg()[0],
    }
    if arguments.threads > 1:
        report["threads"] = arguments.threads
        report["thread_gain"] = thread_gain(
            works["expected_accuracy_by_frame"], items, arguments
        )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
