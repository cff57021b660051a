"""Scores of a network for decoding: in batches of like length, and one by one.

Utterances of random lengths, 2 to 15 s, lie in a frame store; the network's numbers are
random, its size is real. What is timed is all from the store to scores in the
processor's memory, in the store's order: features, normalization, the network, copies.

* `one_by_one`: `score_frames` of each utterance, as a searching thread calls it;
* `batches`: `UtteranceBatches.scored`, as decoding and alignment use it on a device;
* `largest_difference`: between both, over the largest log-likelihood.

    python benchmarks/network_scores.py --device cuda
    python benchmarks/network_scores.py --network config/networks/cnn_tdnnf_chain.yaml
    python benchmarks/network_scores.py --utterances 8    # does it work? (no figures)

Prints JSON; `x_real_time` is seconds of speech in a second of wall time, of the best of
`--rounds` rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Stopwatch

from latflow.decode.network_scorer import score_frames
from latflow.features.frames import FrameStore, FrameWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork, choose_device
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer

ROOT = Path(__file__).resolve().parents[1]
SHIFT, DIM = 0.01, 40
SECONDS = (2.0, 15.0)  # of an utterance
WINDOW = 1 << 29  # bytes of scores, as in decoding

Scores = Callable[[], Iterator[np.ndarray]]


def write_store(folder: Path, number: int) -> FrameStore:
    """Write utterances of random lengths and frames."""
    rng = np.random.default_rng(0)
    with FrameWriter(folder, dim=DIM, frame_shift=SHIFT) as writer:
        for i in range(number):
            length = round(rng.uniform(*SECONDS) / SHIFT)
            frames = rng.standard_normal((length, DIM), np.float32)
            writer.append(f"utt{i:06d}", "speaker", "", 10 + 3 * frames)
    return FrameStore.load(folder)


def make_model(description: Path, pdfs: int, device: torch.device) -> AcousticNetwork:
    """Make the network."""
    described = NetworkDescription.load(description)
    network = Network(described, DIM, {"pdf": pdfs}, seed=1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in network.parameters():
            if not weights.any():  # as the output's before training
                weights.normal_(std=weights.shape[-1] ** -0.5, generator=generator)
    meta = {"scores": "log_likelihoods"}
    return AcousticNetwork(network.to(device).eval(), None, meta)


def ways(
    store: FrameStore, model: AcousticNetwork, normalizer: Normalizer, max_frames: int
) -> dict[str, Scores]:
    """Return the ways to score a store; of an older source, only the first."""
    device = next(model.network.parameters()).device

    def one_by_one() -> Iterator[np.ndarray]:
        for i in range(len(store)):
            yield score_frames(model, normalizer(store.frames(i)), 0.0, device)

    try:
        from latflow.nnet.precision import passes_in
        from latflow.nnet.utterances import UtteranceBatches
    except ImportError:
        return {"one_by_one": one_by_one}
    batches = UtteranceBatches(store, normalizer, device, max_frames)
    pdfs = next(iter(model.network.outputs.values())).num_classes
    window = model.network.subsampling * WINDOW // (4 * pdfs)

    def in_batches(precision: Any = "float32") -> Iterator[np.ndarray]:
        def score(features: torch.Tensor, lengths: torch.Tensor) -> Any:
            with passes_in(precision, device):
                return model.log_likelihoods(features, lengths)

        for found in batches.scored(score, range(len(store)), window):
            yield found.wait()

    found: dict[str, Scores] = {"one_by_one": one_by_one, "batches": in_batches}
    if device.type == "cuda":
        found["batches_bf16"] = partial(in_batches, "bf16")
    return found


def seconds_of(scores: Scores) -> float:
    """Time a pass over the store."""
    with Stopwatch() as spent:
        for _ in scores():
            pass
    return spent.wall


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time both ways, in turns."""
    device = choose_device(arguments.device)
    store = write_store(folder, arguments.utterances)
    model = make_model(arguments.network, arguments.pdfs, device)
    speech = store.num_frames * store.frame_shift
    normalizer = Normalizer("mean_variance")
    tried = ways(store, model, normalizer, arguments.max_frames)
    found: dict[str, Any] = {
        "device": str(device),
        "network": arguments.network.stem,
        "pdfs": arguments.pdfs,
        "utterances": len(store),
        "speech_s": round(speech, 1),
        "max_frames": arguments.max_frames,
    }
    if len(tried) > 1:
        some = write_store(folder / "some", min(16, arguments.utterances))
        first, *others = ways(some, model, normalizer, arguments.max_frames).items()
        found["largest_difference"] = {
            name: max(
                float(np.abs(one - other).max() / np.abs(one).max())
                for one, other in zip(first[1](), way(), strict=True)
            )
            for name, way in others
        }
    seconds: dict[str, list[float]] = {name: [] for name in tried}
    for _ in range(arguments.rounds):
        for name, way in tried.items():
            seconds[name].append(seconds_of(way))
    for name, times in seconds.items():
        best = min(times)
        found[name] = {
            "seconds": round(best, 4),
            "x_real_time": round(speech / best, 1),
        }
    return found


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--network", type=Path, default=ROOT / "config/networks/tdnnf.yaml"
    )
    parser.add_argument("--pdfs", type=int, default=2000)
    parser.add_argument("--utterances", type=int, default=400)
    parser.add_argument("--max-frames", type=int, default=16000, help="of a batch")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(arguments, Path(folder) / "frames"), indent=1))


if __name__ == "__main__":
    main()
