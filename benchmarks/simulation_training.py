"""Share of simulation in the time of training.

    python benchmarks/simulation_training.py RECIPE FRAMES [--systems clean noise rooms]
        [--corpora FOLDER] [--workers 2] [--parts 10] [--rounds 4]

Trains the network of each system of a recipe by cross-entropy on features on the fly
(FRAMES, `results/<experiment>/streams/<features>/frames/train`), with the system's own
`data` and made-up labels: batches from the trainer's source, forward, loss, backward,
optimizer. Three passes are read without training first: responses of rooms and noises
are made in them that are kept for the others. Then systems take turns, one part of a
pass each, all on the same utterances. Prints JSON: processor seconds of reading each
pass; seconds of each part by wall clock and of the processor; and the share of them
that comes on top of the first system's, the median over the rounds.

With `taskset -c 0` before it workers and training share a core: simulation then hides
behind nothing, and its share is the greatest there can be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from torch.nn import functional

from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.optimizers import make_optimizer
from latflow.training.options import CeSystemOptions
from latflow.training.readers import (
    estimate_normalizer,
    open_features,
    open_reader,
)
from latflow.workflow.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
CLASSES, READ = 900, 3


class System:
    """A network in training on the data of a system.

    Args:
        recipe: has the system.
        name: of the system.
        frames: its features.
        labels: folder of made-up ones.
        arguments: of the command line.
    """

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        frames: Path,
        labels: Path,
        arguments: argparse.Namespace,
    ) -> None:
        system = recipe.networks[name].options
        assert isinstance(system, CeSystemOptions)
        live = system.data.on_the_fly.replace(threads=arguments.workers)
        options = system.data.replace(on_the_fly=live, partition_epoch=arguments.parts)
        self.source: BatchSource = open_batches(
            frames,
            Targets({"pdf": LabelStore.load(labels)}),
            options,
            normalizer=estimate_normalizer(frames, options),
            seed=1,
        )
        description = NetworkDescription.load(ROOT / system.network)
        dim = self.source.reader.dim
        self.network = Network(description, dim, {"pdf": CLASSES}, seed=1).train()
        self.optimizer = make_optimizer(self.network, system.training.optimizer, 1e-3)

    def read(self, whole_pass: int) -> float:
        """Read a pass without training; return processor seconds."""
        begin, parts = time.process_time(), self.source.options.partition_epoch
        for part in range(whole_pass * parts, (whole_pass + 1) * parts):
            batches = self.source.epoch(part)
            for _ in batches:
                pass
            batches.close()
        return time.process_time() - begin

    def train(self, part: int) -> tuple[float, float]:
        """Train on a part of a pass; return wall-clock and processor seconds."""
        begin = time.perf_counter(), time.process_time()
        batches = self.source.epoch(part)
        for batch in batches:
            assert batch is not None
            logits = self.network(batch.features, batch.lengths)["output"].logits
            loss = functional.cross_entropy(
                logits.flatten(0, 1), batch.targets["pdf"].flatten(), ignore_index=-1
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.network.constrain()
        batches.close()
        return time.perf_counter() - begin[0], time.process_time() - begin[1]


def make_up_labels(frames: Path, options: DataOptions, folder: Path) -> None:
    """Write a label for each frame."""
    features = open_reader(open_features(frames, options), Normalizer())
    generator = np.random.default_rng(1)
    with LabelWriter(folder, CLASSES) as labels:
        for utt_id, length in zip(features.utt_ids, features.lengths, strict=True):
            labels.append(utt_id, generator.integers(CLASSES, size=length))


def shares(taken: dict[str, list[tuple[float, float]]]) -> dict[str, dict]:
    """Return seconds, and shares on top of the first system, of each system."""
    first = next(iter(taken.values()))
    result = {}
    for name, seconds in taken.items():
        rounded = [[round(s, 2) for s in pair] for pair in seconds]
        result[name] = {"seconds": rounded}
        for clock, number in (("wall", 0), ("processor", 1)):
            pairs = zip(first, seconds, strict=True)
            of = [1 - base[number] / own[number] for base, own in pairs]
            result[name][f"share_{clock}"] = round(statistics.median(of), 3)
    return result


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("frames", type=Path)
    parser.add_argument("--systems", nargs="+", default=["clean", "noise", "rooms"])
    parser.add_argument("--corpora", default="corpora")
    parser.add_argument("--workers", type=int, default=2, help="threads that read")
    parser.add_argument("--parts", type=int, default=10, help="of a pass")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = yaml.safe_load(arguments.recipe.read_text())
    recipe = Recipe.from_config({**config, "corpora": arguments.corpora})
    with tempfile.TemporaryDirectory() as folder:
        labels = Path(folder, "labels")
        data = recipe.networks[arguments.systems[0]].options.data
        assert isinstance(data, DataOptions)
        make_up_labels(arguments.frames, data, labels)
        systems = {
            name: System(recipe, name, arguments.frames, labels, arguments)
            for name in arguments.systems
        }
        read = {
            name: [round(system.read(whole_pass), 2) for whole_pass in range(READ)]
            for name, system in systems.items()
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        first = READ * arguments.parts
        for part in range(first, first + arguments.rounds):
            for name, system in systems.items():
                taken[name].append(system.train(part))
    print(json.dumps({"passes": read, **shares(taken)}, indent=1))


if __name__ == "__main__":
    main()
