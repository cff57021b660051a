"""Time of building a decision tree on made-up statistics; prints JSON.

The default has the size of speechocean: 39 phones in 4 word positions, 39 dimensions,
35,000 triphones of 3 states, 1200 leaves. `--triphones 1000000 --leaves 5000` is of the
size of LibriSpeech.

    python benchmarks/tree_building.py [--triphones N] [--leaves N] [--dim D]
"""

import argparse
import json
import os
import time

import numpy as np

from latflow.hmm.topology import Topology
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import StatisticsArrays, cluster_phones

NUM_SETS, NUM_POSITIONS = 39, 4


def made_up_statistics(num_triphones: int, dim: int, seed: int) -> StatisticsArrays:
    """Gaussians whose means depend on the phone and, less, on its neighbours."""
    random = np.random.default_rng(seed)
    num_phones = NUM_SETS * NUM_POSITIONS
    share = random.dirichlet(np.full(num_phones, 2.0))
    drawn = random.choice(num_phones, (2 * num_triphones, 3), p=share)
    triphones = random.permutation(np.unique(drawn, axis=0))[:num_triphones]
    phone_means = random.normal(0.0, 2.0, (NUM_SETS, 3, dim))
    effects = random.normal(0.0, 1.0, (2, NUM_SETS, dim))
    events, moments = [], []
    for state in range(3):
        left, centre, right = triphones.T // NUM_POSITIONS
        mean = phone_means[centre, state] + effects[0, left] * (2 - state) / 2
        mean += effects[1, right] * state / 2
        count = np.ceil(random.exponential(20.0, len(triphones)))[:, None]
        mean += random.normal(0.0, 1.0, mean.shape) / np.sqrt(count)
        moments.append(np.hstack([count, count * mean, count * (mean**2 + 1.0)]))
        events.append(np.hstack([np.full((len(triphones), 1), state), triphones + 1]))
    return StatisticsArrays(
        np.concatenate(events).astype(np.int32), np.concatenate(moments), 1, 0.01
    )


def run(num_triphones: int, num_leaves: int, dim: int) -> dict[str, float]:
    """Time one build, compiled functions being ready."""
    num_phones = NUM_SETS * NUM_POSITIONS
    sets = [
        list(range(1 + n * NUM_POSITIONS, 1 + (n + 1) * NUM_POSITIONS))
        for n in range(NUM_SETS)
    ]
    positions = [list(range(1 + p, num_phones + 1, NUM_POSITIONS)) for p in range(4)]
    topology = Topology.standard(range(1, num_phones + 1), [])
    statistics = made_up_statistics(num_triphones, dim, seed=1)
    roots = [(True, True, phones) for phones in sets]
    start = time.perf_counter()
    questions = cluster_phones(statistics, sets, topology, extra_questions=positions)
    clustered = time.perf_counter()
    tree = build_tree(statistics, questions, roots, topology, max_leaves=num_leaves)
    built = time.perf_counter()
    leaf_statistics(statistics, tree)
    return {
        "events": len(statistics.events),
        "dim": dim,
        "questions": len(questions.phones),
        "leaves": tree.num_pdfs,
        "cluster_phones_s": round(clustered - start, 3),
        "build_tree_s": round(built - clustered, 3),
        "leaf_statistics_s": round(time.perf_counter() - built, 3),
    }


def main() -> None:
    """Parse the arguments, warm up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--triphones", type=int, default=35_000)
    parser.add_argument("--leaves", type=int, default=1200)
    parser.add_argument("--dim", type=int, default=39)
    arguments = parser.parse_args()
    run(300, 100, arguments.dim)
    result = run(arguments.triphones, arguments.leaves, arguments.dim)
    result["load_average"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
