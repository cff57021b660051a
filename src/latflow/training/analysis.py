"""A trained network on a set: its figures, its confusions, what its layers give.

Networks whose outputs learnt by cross-entropy are measured against alignments of their
own system; layers and mean posteriors can be had of any network.

Sources: RETURNN's tasks `eval`, `analyze` and `compute_priors`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.losses import losses_of
from latflow.errors import UserError
from latflow.features.source import open_frames
from latflow.graphs.hclg import load_model as load_transitions
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.nnet.model_dir import choose_device, load_model
from latflow.nnet.network import Network
from latflow.training.batches import Targets, open_batches
from latflow.training.data_options import BatchOptions, UtteranceOptions
from latflow.training.distributed import Backend
from latflow.training.evaluation import evaluate
from latflow.training.forward import Forward, check_features
from latflow.training.labels import LabelStore, write_targets
from latflow.training.options import TrainingOptions


def evaluate_model(
    frames_dir: str | Path,
    model_dir: str | Path,
    alignments: str | Path,
    *,
    max_frames: int = 8000,
    device: str = "auto",
) -> dict[str, float]:
    """Return what training says of dev, of any set: means per frame.

    Args:
        frames_dir: the network's features.
        model_dir: its folder.
        alignments: `ali.ark` of the network's own system, transition-ids.
        max_frames: frames that go through the network at once, padding counted.
        device: `cpu`, `cuda` or `auto`.

    Returns:
        `frames` (a sum), `loss`, `frame_errors` of the first output, and what else
        training logs; `skipped`, utterances without labels of their length.

    Raises:
        UserError: an output that learns from no alignment, or no frame with a label.
    """
    model = load_model(model_dir, choose_device(device))
    check_features(model.network, open_frames(frames_dir))
    targets = _targets(model.network, model_dir)
    _, transitions = load_transitions(Path(model_dir))
    options = BatchOptions(sequences=UtteranceOptions(), max_frames=max_frames)
    ledger = Ledger("evaluate")
    with tempfile.TemporaryDirectory(prefix="latflow-labels-") as folder:
        batches = open_batches(
            frames_dir,
            Targets(write_targets(alignments, transitions, folder, targets)),
            options,
            normalizer=model.normalizer,
            subsampling=model.network.subsampling,
            ledger=ledger,
            is_training=False,
        )
        found = evaluate(
            model.network,
            losses_of(model.network, is_training=False),
            batches,
            TrainingOptions(),
            Backend(),
        )
    return {**found, "skipped": ledger.num_skipped()}


def _targets(network: Network, model_dir: str | Path) -> list[str]:
    """Return the targets of a network that learnt by cross-entropy alone."""
    for name, output in network.outputs.items():
        if output.loss.name != "ce":
            raise UserError(
                f"its output {name} has the loss {output.loss.name}, of which "
                "alignments say nothing",
                file=model_dir,
                remedy="decode the set (`latflow run`), or name a network of type ce",
            )
    return [output.loss.target for output in network.outputs.values()]


def mean_posteriors(
    frames_dir: str | Path,
    model_dir: str | Path,
    *,
    max_frames: int = 8000,
    device: str = "auto",
) -> np.ndarray:
    """Return the mean posteriors of the decoded output over all frames, float64 [K].

    Training's own priors are of the frames that have a label.

    Args:
        frames_dir: the network's features.
        model_dir: its folder.
        max_frames: frames that go through the network at once, padding counted.
        device: `cpu`, `cuda` or `auto`.

    Raises:
        UserError: the output has no posteriors (LF-MMI), or there are no frames.
    """
    store = open_frames(frames_dir)
    scores = Forward.load(
        store, model_dir, device=device, prior_scale=0.0, max_frames=max_frames
    )
    if scores.model.gives_log_likelihoods:
        raise UserError(
            "its outputs are log-likelihoods: it has no posteriors", file=model_dir
        )
    sums, frames = np.zeros(scores.dim, np.float64), 0
    for _, log_posteriors in progress(scores, "priors", len(store)):
        sums += np.exp(log_posteriors).sum(0, dtype=np.float64)
        frames += len(log_posteriors)
    if not frames:
        raise UserError("no frames", file=frames_dir)
    return sums / frames


@dataclass
class _Units:
    """Sums over frames of what a layer gives.

    Attributes:
        frames: counted.
        total, squares: float64 [D].
        least, most: float32 [D].
    """

    frames: int = 0
    total: Any = 0.0
    squares: Any = 0.0
    least: Tensor | None = None
    most: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add frames [n, D]."""
        self.frames += len(values)
        self.total = self.total + values.sum(0, dtype=torch.float64)
        self.squares = self.squares + values.double().square().sum(0)
        least, most = values.amin(0), values.amax(0)
        self.least = least if self.least is None else self.least.minimum(least)
        self.most = most if self.most is None else self.most.maximum(most)

    def summary(self) -> dict[str, Any]:
        """Return size, mean and deviation (root mean square over units), dead units."""
        assert self.least is not None
        assert self.most is not None
        mean = self.total / self.frames
        variance = (self.squares / self.frames - mean.square()).clamp(min=0.0)
        dead = (self.most == self.least).nonzero().flatten().tolist()
        return {
            "units": len(mean),
            "mean": float(mean.mean()),
            "deviation": float(variance.mean().sqrt()),
            "least": float(self.least.min()),
            "greatest": float(self.most.max()),
            "dead_units": dead,
        }


@dataclass
class _Confusion:
    """Counts of frames by (class of the label, class of the network).

    Attributes:
        labels: of the decoded output.
        counts: frames.
    """

    labels: LabelStore
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._places = {name: i for i, name in enumerate(self.labels.utt_ids)}

    def add(
        self, utterance: str, best: np.ndarray, num_frames: int, subsampling: int
    ) -> bool:
        """Count the frames of an utterance; false if it has no labels of its length.

        Args:
            utterance: its id.
            best: classes by output frame, [T'].
            num_frames: of its features.
            subsampling: output frame t has the label of frame `subsampling` x t, where
                labels are of the features' frames; else of its own.
        """
        place = self._places.get(utterance)
        if place is None:
            return False
        labels = self.labels.labels(place)
        if len(labels) == num_frames:
            labels = labels[::subsampling]
        if len(labels) != len(best):
            return False
        pairs = np.stack([labels, best])[:, labels >= 0]
        pairs, counts = np.unique(pairs, axis=1, return_counts=True)
        for (label, given), count in zip(
            pairs.T.tolist(), counts.tolist(), strict=True
        ):
            self.counts[label, given] += count
        return True

    def summary(self, most: int) -> dict[str, Any]:
        """Return accuracy, that of each class, and the commonest confusions."""
        frames = sum(self.counts.values())
        right: Counter[int] = Counter()
        of_class: Counter[int] = Counter()
        for (label, best), count in self.counts.items():
            of_class[label] += count
            right[label] += count * (label == best)
        wrong = [(pair, n) for pair, n in self.counts.items() if pair[0] != pair[1]]
        wrong.sort(key=lambda item: (-item[1], item[0]))
        return {
            "frames": frames,
            "frame_accuracy": sum(right.values()) / frames,
            "classes": {
                label: {"frames": count, "accuracy": right[label] / count}
                for label, count in sorted(of_class.items())
            },
            "confusions": [
                {"class": label, "best": best, "frames": count}
                for (label, best), count in wrong[:most]
            ],
        }


@torch.no_grad()
def analyze(
    frames_dir: str | Path,
    model_dir: str | Path,
    *,
    alignments: str | Path | None = None,
    most: int = 20,
    max_frames: int = 8000,
    device: str = "auto",
) -> dict[str, Any]:
    """Return what the layers of a network give on a set, and what it confuses.

    Args:
        frames_dir: the network's features.
        model_dir: its folder.
        alignments: `ali.ark` of its own system; None leaves the confusions out.
        most: confusions that are listed, the commonest.
        max_frames: frames that go through the network at once, padding counted.
        device: `cpu`, `cuda` or `auto`.

    Returns:
        `layers`: by name, `units`, `mean`, `deviation`, `least`, `greatest`, and
        `dead_units`, numbers of those that never change. With alignments `classes` of
        the decoded output, `frame_accuracy` and `confusions`, and `skipped`, utterances
        without labels of their length.

    Raises:
        UserError: see `evaluate_model`; there are no frames, or none with a label.
    """
    store = open_frames(frames_dir)
    forward = Forward.load(
        store, model_dir, device=device, prior_scale=0.0, max_frames=max_frames
    )
    network = forward.model.network
    names = list(network.body.plan.names)
    units = {name: _Units() for name in names}
    first = next(iter(network.outputs))
    with tempfile.TemporaryDirectory(prefix="latflow-labels-") as folder:
        confusion = None
        if alignments is not None:
            target = _targets(network, model_dir)[0]
            _, transitions = load_transitions(Path(model_dir))
            stores = write_targets(alignments, transitions, folder, [target])
            confusion = _Confusion(stores[target])
        skipped = 0
        for numbers in progress(forward.batches(), "analyze", None):
            features, lengths = forward.padded(numbers)
            found = network(features, lengths, layers=names)
            for name, (values, ends) in found.items():
                times = torch.arange(values.shape[1])
                is_counted = (times < ends[:, None]).to(values.device)
                units[name].add(values[is_counted].float())
            if confusion is None:
                continue
            values, ends = found[first]
            best = values.argmax(-1).cpu().numpy()
            for row, i in enumerate(numbers):
                classes = best[row, : int(ends[row])]
                utterance, length = store.utt_ids[i], int(lengths[row])
                skipped += not confusion.add(
                    utterance, classes, length, network.subsampling
                )
    if not all(one.frames for one in units.values()):
        raise UserError("no frames", file=frames_dir)
    result: dict[str, Any] = {
        "layers": {name: one.summary() for name, one in units.items()}
    }
    if confusion is not None:
        if not confusion.counts:
            raise UserError(
                "no utterance has labels of its length",
                file=alignments,
                remedy="take the alignments of this set",
            )
        result |= {**confusion.summary(most), "skipped": skipped}
    return result
