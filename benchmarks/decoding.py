"""Decoding to lattices against Kaldi's own search, same graph and log-likelihoods.

The peer is Kaldi's `FasterDecoder` from the wheel kaldi-decoder, fed from a matrix: the
same search, but it keeps the best path only and makes no lattice (the wheels'
`LatticeFasterDecoder` does not accept the FSTs of the present kaldifst). Both are timed
in processor time of one thread, the least of `--repeats` passes.

    python benchmarks/decoding.py                    # Kaldi's golden digits
    python benchmarks/decoding.py --graph HCLG.fst --model final.mdl --log-likes ll.ark

Prints JSON: real-time factors (100 frames a second), their ratio, and how far the costs
of the best paths differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FRAMES_PER_SECOND = 100.0
GOLDEN = Path(
    os.environ.get("LATFLOW_SHARED", Path(__file__).parents[2] / "shared"), "golden"
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graph", type=Path, default=GOLDEN / "graph/HCLG_tri1.fst")
    parser.add_argument("--model", type=Path, default=GOLDEN / "gmm/tri1/final.mdl")
    parser.add_argument(
        "--log-likes", type=Path, default=GOLDEN / "align/loglikes_tri1.ark"
    )
    parser.add_argument("--beam", type=float, default=13.0)
    parser.add_argument("--lattice-beam", type=float, default=6.0)
    parser.add_argument("--max-active", type=int, default=7000)
    parser.add_argument("--acoustic-scale", type=float, default=0.083333)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def least_time(work: Callable[[], float], repeats: int) -> tuple[float, float]:
    """What the work returns, and its least processor time in seconds."""
    seconds, cost = np.inf, 0.0
    for _ in range(repeats):
        begun = time.thread_time()
        cost = work()
        seconds = min(seconds, time.thread_time() - begun)
    return cost, seconds


def run_ours(arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Decode with latflow; leave the peer's matrices in `folder`."""
    from latflow.decode.search import LatticeDecoder
    from latflow.fst.graph import Graph
    from latflow.gmm.model import AcousticModel
    from latflow.kaldi_io import read_matrices
    from latflow.lattice.best_path import best_path

    model = AcousticModel.load(arguments.model)
    graph = Graph.load(arguments.graph)
    graph.save(folder / "HCLG.fst")
    decoder = LatticeDecoder(
        graph,
        model.transitions.pdf,
        beam=arguments.beam,
        lattice_beam=arguments.lattice_beam,
        max_active=arguments.max_active,
    )
    scale = arguments.acoustic_scale
    result: dict[str, list[float]] = {
        key: [] for key in ("frames", "costs", "seconds", "active", "depth")
    }
    for number, (_, log_likes) in enumerate(read_matrices(arguments.log_likes)):
        decoder.decode(log_likes, acoustic_scale=scale)  # compile, warm up

        def work(log_likes: np.ndarray = log_likes) -> float:
            decoded = decoder.decode(log_likes, acoustic_scale=scale)
            path = best_path(decoded.lattice, acoustic_scale=scale)
            return path.graph_cost + scale * path.acoustic_cost

        cost, seconds = least_time(work, arguments.repeats)
        decoded = decoder.decode(log_likes, acoustic_scale=scale)
        result["frames"].append(len(log_likes))
        result["costs"].append(cost)
        result["seconds"].append(seconds)
        result["active"].append(decoded.mean_active)
        result["depth"].append(decoded.lattice.depth)
        by_id = np.float32(scale) * log_likes[:, model.transitions.pdf[1:]]
        np.save(folder / f"{number:06d}.npy", by_id)
    return result


def run_peer(arguments: argparse.Namespace) -> None:
    """Decode the matrices in `--peer` with Kaldi's decoder; print times and costs."""
    import kaldi_decoder
    import kaldifst

    fst = kaldifst.StdConstFst.read(str(arguments.peer / "HCLG.fst"))
    options = kaldi_decoder.FasterDecoderOptions(
        beam=arguments.beam, max_active=arguments.max_active, min_active=200
    )
    decoder = kaldi_decoder.FasterDecoder(fst, options)
    result: dict[str, list[float]] = {"costs": [], "seconds": []}
    for path in sorted(arguments.peer.glob("*.npy")):
        log_likes = np.load(path)

        def work(log_likes: np.ndarray = log_likes) -> float:
            # DecodableCtc: the log-likelihood of label i is column i - 1.
            decoder.decode(kaldi_decoder.DecodableCtc(log_likes))
            _, best = decoder.get_best_path()
            *_, weight = kaldifst.get_linear_symbol_sequence(best)
            return weight.value1 + weight.value2

        cost, seconds = least_time(work, arguments.repeats)
        result["costs"].append(cost)
        result["seconds"].append(seconds)
    print(json.dumps(result))


def main() -> None:
    arguments = parse_arguments()
    if arguments.peer:
        run_peer(arguments)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = run_ours(arguments, folder)
        command = [sys.executable, __file__, *sys.argv[1:], "--peer", name]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    theirs = json.loads(answer.stdout.splitlines()[-1])
    audio = sum(ours["frames"]) / FRAMES_PER_SECOND
    costs, peer_costs = np.array(ours["costs"]), np.array(theirs["costs"])
    frames = np.array(ours["frames"])
    report = {
        "graph": str(arguments.graph),
        "utterances": len(frames),
        "audio_seconds": audio,
        "beam": arguments.beam,
        "lattice_beam": arguments.lattice_beam,
        "max_active": arguments.max_active,
        "acoustic_scale": arguments.acoustic_scale,
        "mean_active_tokens": float(np.average(ours["active"], weights=frames)),
        "mean_lattice_depth": float(np.average(ours["depth"], weights=frames)),
        "real_time_factor": sum(ours["seconds"]) / audio,
        "peer_real_time_factor": sum(theirs["seconds"]) / audio,
        "times_faster": sum(theirs["seconds"]) / sum(ours["seconds"]),
        "largest_relative_cost_difference": float(
            np.abs(costs / peer_costs - 1.0).max()
        ),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
