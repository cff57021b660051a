"""Lattice generation against Kaldi's own decoder, same graph and log-likelihoods.

The peer is Kaldi's `LatticeFasterDecoder` from the wheel kaldi-hmm-gmm (see
`kaldi_lattice_decoder.py`), in its own process; both make raw lattices, in one thread,
and are timed in processor time, the least of `--repeats` passes an utterance.

    python benchmarks/lattice_generation.py            # all that is there of:
        digits       tri1 of Kaldi's golden data
        speechocean  tri1 of results/speechocean, 40 utterances of its test set

Prints JSON for each: real-time factors, their ratio, lattice depth, how far the costs
of the best paths differ, arcs that only one of the two lattices has; the gain of a
second thread (wall time: not to be trusted on a busy machine); and the time of a first
call in a fresh process, with Numba's cache cold and warm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timing import GOLDEN, HERE, Stopwatch

FRAMES_PER_SECOND = 100.0
SPEECHOCEAN = HERE.parent / "results" / "speechocean"
NUM_UTTERANCES = 40  # of speechocean, evenly over the set


@dataclass
class Task:
    """The task: what is decoded, and with which model."""

    graph: Path
    model: Path
    acoustic_scale: float
    lattice_beam: float

    def log_likes(self) -> dict[str, np.ndarray]:
        """Log-likelihoods of all utterances, float32[T, P] each."""
        from latflow.kaldi.io import read_matrices

        return dict(read_matrices(GOLDEN / "align" / "loglikes_tri1.ark"))


class SpeechoceanTask(Task):
    """Frames of the store, scored by the model."""

    def log_likes(self) -> dict[str, np.ndarray]:
        """As for digits."""
        from latflow.features.frames import FrameStore
        from latflow.features.transform import FeatureTransform
        from latflow.gmm.model import AcousticModel

        store = FrameStore.load(SPEECHOCEAN / "frames" / "test")
        model = AcousticModel.load(self.model)
        transform = FeatureTransform.from_config({"type": "deltas", "order": 2})
        chosen = np.linspace(0, len(store) - 1, NUM_UTTERANCES).astype(int)
        return {
            store.utt_ids[i]: model.gmms.log_likelihoods(transform(store.frames(i)))
            for i in chosen
        }


TASKS = {
    "digits": Task(
        GOLDEN / "graph/HCLG_tri1.fst", GOLDEN / "gmm/tri1/final.mdl", 0.1, 7.0
    ),
    "speechocean": SpeechoceanTask(
        SPEECHOCEAN / "graph/tri1/HCLG.fst",
        SPEECHOCEAN / "gmm/tri1/final.mdl",
        0.083333,
        6.0,
    ),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--beam", type=float, default=13.0)
    parser.add_argument("--max-active", type=int, default=7000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_decoder(task: Task, arguments: argparse.Namespace) -> Any:
    """Our decoder of a task."""
    from latflow.decode.decoder import LatticeDecoder
    from latflow.fst.graph import Graph
    from latflow.gmm.model import AcousticModel

    return LatticeDecoder(
        Graph.load(task.graph),
        AcousticModel.load(task.model).transitions.pdf,
        beam=arguments.beam,
        lattice_beam=task.lattice_beam,
        max_active=arguments.max_active,
    )


def time_ours(
    decoder: Any, log_likes: dict[str, np.ndarray], scale: float, repeats: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Lattices and least processor times."""
    found, seconds = {}, dict.fromkeys(log_likes, np.inf)
    for _ in range(repeats + 1):  # the first compiles
        for utterance, matrix in log_likes.items():
            with Stopwatch() as spent:
                found[utterance] = decoder.decode(matrix, acoustic_scale=scale)
            seconds[utterance] = min(seconds[utterance], spent.thread)
    return found, seconds


def run_peer(
    task: Task,
    log_likes: dict[str, np.ndarray],
    arguments: argparse.Namespace,
    folder: Path,
) -> tuple[dict[str, Any], list[list[float]]]:
    """Kaldi's lattices and times: (search, search and lattice)."""
    from latflow.fst.graph import Graph
    from latflow.gmm.model import AcousticModel
    from latflow.lattice.io.archives import read_lattices

    pdf = AcousticModel.load(task.model).transitions.pdf
    Graph.load(task.graph).to_fst().write(str(folder / "graph.fst"))
    for number, matrix in enumerate(log_likes.values()):
        by_id = np.float32(task.acoustic_scale) * matrix[:, pdf[1:]]
        np.save(folder / f"{number:06d}.npy", by_id)
    limits = (
        arguments.beam, task.lattice_beam, arguments.max_active, arguments.repeats,
    )  # fmt: skip
    program = str(HERE / "kaldi_lattice_decoder.py")
    command = [sys.executable, program, str(folder), *map(str, limits)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lattices = {}
    for number, utterance in enumerate(log_likes):
        archive = folder / "one.ark"
        content = (folder / f"{number:06d}.lat").read_bytes()
        archive.write_bytes(f"{utterance} ".encode() + content)
        lattices.update(read_lattices(archive))
    return lattices, list(json.loads(answer.stdout).values())


def arcs_of(lattice: Any) -> Counter[tuple[int, ...]]:
    """Count how often each label comes at each frame."""
    emitting = lattice.transition_id != 0
    frame = lattice.frame[lattice.source()]
    columns = (frame, lattice.transition_id, lattice.word)
    return Counter(zip(*(c[emitting].tolist() for c in columns), strict=True))


def agreement(
    ours: dict[str, Any], theirs: dict[str, Any], scale: float
) -> dict[str, float]:
    """Compare the lattices; the peer's acoustic costs are scaled already."""
    from latflow.lattice.best_path import best_path

    worst, missing, extra, total = 0.0, 0, 0, 0
    for utterance, kaldis in theirs.items():
        lattice = ours[utterance].lattice
        mine = best_path(lattice, acoustic_scale=scale)
        best = best_path(kaldis)
        cost = best.graph_cost + best.acoustic_cost
        difference = mine.graph_cost + scale * mine.acoustic_cost - cost
        worst = max(worst, abs(difference / cost))
        arcs, kaldis_arcs = arcs_of(lattice), arcs_of(kaldis)
        missing += (kaldis_arcs - arcs).total()
        extra += (arcs - kaldis_arcs).total()
        total += kaldis_arcs.total()
    return {
        "largest_relative_cost_difference": worst,
        "peer_arcs": total,
        "arcs_only_in_peer": missing,
        "arcs_only_in_ours": extra,
    }


def scaling(decoder: Any, log_likes: dict[str, np.ndarray], scale: float) -> float:
    """Return how many times as fast two threads are as one, by the clock."""
    from latflow.decode.decoder import decode_batch

    least = [np.inf, np.inf]
    batch = list(log_likes.values()) * max(1, 40 // len(log_likes))
    for _ in range(3):
        for threads in (1, 2):
            with Stopwatch() as spent:
                decode_batch(decoder, batch, acoustic_scale=scale, threads=threads)
            least[threads - 1] = min(least[threads - 1], spent.wall)
    return float(least[0] / least[1])


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the report of one task."""
    task = TASKS[name]
    if not task.graph.exists():
        return {"skipped": f"{task.graph} is not there; run its recipe"}
    scale, log_likes = task.acoustic_scale, task.log_likes()
    decoder = make_decoder(task, arguments)
    found, seconds = time_ours(decoder, log_likes, scale, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        theirs, peer = run_peer(task, log_likes, arguments, Path(folder))
    frames = np.array([len(matrix) for matrix in log_likes.values()])
    audio = float(frames.sum() / FRAMES_PER_SECOND)
    peer_search, peer_all = np.sum(peer, axis=0)

    def per_frame(values: list[float]) -> float:
        return float(np.average(values, weights=frames))

    return {
        "utterances": len(log_likes),
        "audio_seconds": audio,
        "beam": arguments.beam,
        "lattice_beam": task.lattice_beam,
        "max_active": arguments.max_active,
        "mean_active_tokens": per_frame([d.mean_active for d in found.values()]),
        "mean_lattice_depth": per_frame([d.lattice.depth for d in found.values()]),
        "real_time_factor": sum(seconds.values()) / audio,
        "peer_real_time_factor": peer_all / audio,
        "peer_real_time_factor_of_search": peer_search / audio,
        "times_faster": peer_all / sum(seconds.values()),
        **agreement(found, theirs, scale),
        "two_threads_times_faster": scaling(decoder, log_likes, scale),
        "load_average": os.getloadavg()[0],
    }


def first_call(arguments: argparse.Namespace) -> None:
    """Print how long a first utterance takes beyond a second one, in seconds."""
    task = TASKS["digits"]
    _, matrix = next(iter(task.log_likes().items()))
    with Stopwatch() as first:
        decoder = make_decoder(task, arguments)
        decoder.decode(matrix, acoustic_scale=task.acoustic_scale)
    with Stopwatch() as second:
        decoder.decode(matrix, acoustic_scale=task.acoustic_scale)
    print(first.wall - second.wall)


def load_times() -> dict[str, float]:
    """Seconds that a first call costs: compiling, or reading what was compiled."""
    command = [sys.executable, __file__, "--first-call"]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        for cache in ("cold", "warm"):
            answer = subprocess.check_output(command, env=environment, text=True)
            seconds[cache] = float(answer)
    return seconds


def main() -> None:
    arguments = parse_arguments()
    if arguments.first_call:
        first_call(arguments)
        return
    report = {name: measure(name, arguments) for name in arguments.tasks or TASKS}
    report["first_call_seconds"] = load_times()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
