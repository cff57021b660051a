"""Stage `train_network`: outputs with their own losses, against given targets.

Cross-entropy against the labels of alignments, CTC and decoders with attention against
transcripts, squared error against features.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from pydantic import Field

from latflow.align.ctc import CtcGraphs
from latflow.align.units import UnitGraphs
from latflow.criteria.losses import losses_of
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames
from latflow.graphs.hclg import load_model as load_transitions
from latflow.ledger import Ledger
from latflow.nnet.described import OutputLoss
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.nnet.pretraining import Pretraining, first_whole_epoch
from latflow.simulation.options import Target
from latflow.training.batches import Targets
from latflow.training.distributed import Backend
from latflow.training.evaluation import priors_of_labels, priors_of_posteriors
from latflow.training.frame_targets import (
    FrameTargets,
    SimulatedTargets,
    StoredTargets,
)
from latflow.training.job import Job, digest_of_file
from latflow.training.labels import LabelStore, load_targets, write_targets
from latflow.training.options import (
    AttentionRunOptions,
    CeRunOptions,
    CtcRunOptions,
    TrainingOptions,
)
from latflow.training.readers import estimate_normalizer, open_features
from latflow.training.task import Task, load_matching, read_network, run_training

NetworkRunOptions: TypeAlias = Annotated[
    AttentionRunOptions | CeRunOptions | CtcRunOptions, Field(discriminator="type")
]


@dataclass(frozen=True, kw_only=True)
class NetworkJob(Job):
    """Files and options of a training on alignments or transcripts; see `Job`."""

    options: NetworkRunOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    network: Path
    """Description of the network; see docs/networks.md."""
    source_dir: Path
    """Folder of the tree that the decoded output works with."""
    alignments: Path | None = None
    """`ali.ark` of the training split, transition-ids; None where no output learns from
    labels."""
    dev_alignments: Path | None = None
    """`ali.ark` of the dev split."""
    aligner_dir: Path | None = None
    """Folder of the system that made the alignments; None for `source_dir`."""
    labels: Path | None = None
    """Label stores of the training split, by the names of their targets, that outputs
    learn instead of those of alignments."""
    dev_labels: Path | None = None
    """Those of the dev split."""
    graphs_dir: Path | None = None
    """Graphs of the transcripts of the training split, for CTC, or their units
    (`latflow.align.units`), for a decoder; None where no output learns from them."""
    dev_graphs_dir: Path | None = None
    """Those of the dev split."""
    targets_dir: tuple[Path, ...] = ()
    """Stored features of the training split that outputs with a squared error learn,
    one folder for each target in the order of the outputs."""
    dev_targets_dir: tuple[Path, ...] = ()
    """Those of the dev split."""
    parent_dir: Path | None = None

    @property
    def tree_dir(self) -> Path:
        """The folder whose `final.mdl` and `tree` go with the model."""
        return self.source_dir

    @property
    def learnt_labels(self) -> Path:
        """Folder with a folder `train` and `dev` of `write_targets`."""
        return self.checkpoints / "labels"

    def load_labels(self) -> dict[str, dict[str, LabelStore]]:
        """Open what `write_targets` has written there, by split and target."""
        return {s: load_targets(self.learnt_labels / s) for s in ("train", "dev")}

    @property
    def graphs(self) -> dict[str, Path]:
        """Graphs or units of the transcripts, by split; empty without."""
        found = {"train": self.graphs_dir, "dev": self.dev_graphs_dir}
        return {split: path for split, path in found.items() if path is not None}

    @property
    def losses(self) -> list[OutputLoss]:
        """What the network's outputs learn."""
        return [*NetworkDescription.load(self.network).outputs.values()]

    @property
    def targets(self) -> dict[str, tuple[Path, Path]]:
        """Features as targets, of `train` and `dev`, by the target's name.

        Raises:
            UserError: outputs learn more of them than are given, or fewer.
        """
        learnt = dict.fromkeys(x.target for x in self.losses if x.name == "mse")
        simulated = _targets_of(self.options)
        streams = [name for name in learnt if name not in simulated]
        if not len(streams) == len(self.targets_dir) == len(self.dev_targets_dir):
            raise UserError(
                f"outputs learn the features {', '.join(streams) or 'of none'}, and "
                f"{len(self.targets_dir)} are given",
                file=self.network,
                remedy="name features of nnet.features, or of data.simulation.targets",
            )
        pairs = zip(self.targets_dir, self.dev_targets_dir, strict=True)
        return dict(zip(streams, pairs, strict=True))

    def identify(self) -> dict[str, Any]:
        """Return what the training depends on; see `Job.identify`."""
        description = NetworkDescription.load(self.network)
        identity = self.identity_with(description, self.load_labels())
        if graphs := self.graphs:
            identity["graphs"] = {
                split: digest_of_file(path / "arcs.npy")
                for split, path in graphs.items()
            }
        if targets := self.targets:
            identity["targets"] = {
                name: dict(FrameStore.load(train).meta)
                for name, (train, _) in targets.items()
            }
        return identity


class NetworkTask(Task):
    """Training against labels and transcripts; see `Task`."""

    JOB = NetworkJob
    FAILURE = "CTC had no path: fewer frames of the output than its labels need"

    def __init__(self, job: NetworkJob, device: torch.device) -> None:
        self._options = options = job.options
        self.ledger = Ledger("train_network")
        normalizer = estimate_normalizer(job.frames_dir, options.data)
        labels = job.load_labels()
        self._labels = labels["train"]
        graphs = _transcripts(job)
        spelled = dict.fromkeys(("label", "unit"), graphs["train"]) if graphs else {}
        stores = {**self._labels, **spelled}
        targets = {**_stored_targets(job), **_simulated_targets(job, normalizer)}
        features = open_features(job.frames_dir, options.data)
        description = read_network(job.network, features)
        sizes = {name: store.num_classes for name, store in stores.items()}
        for name, loss in description.outputs.items():
            if loss.name == "mse" and loss.target in targets:
                sizes[name] = targets[loss.target]["train"].dim
        network = Network(
            description,
            features.dim,
            sizes,
            seed=options.seed,
        )
        _check_decoded(network, options.type, job.network)
        if job.parent_dir is not None:
            load_matching(network, job.parent_dir)
        self.network = network.to(device)
        self.pretraining = pretraining_of(network, options.training, options.seed)
        smoothing, focal = options.training.label_smoothing, options.training.focal
        self.criterion = losses_of(
            network,
            label_smoothing=smoothing,
            focal=focal,
            threads=job.rank_threads,
        )
        self.dev_criterion = losses_of(
            network, is_training=False, threads=job.rank_threads
        )
        learnt = {
            split: Targets(
                labels[split],
                graphs.get(split),
                {name: both[split] for name, both in targets.items()},
            )
            for split in ("train", "dev")
        }
        self.batches = job.batches(learnt, normalizer, network.subsampling, self.ledger)
        self.scales = {
            **{f"loss of {name}": o.loss.scale for name, o in network.outputs.items()},
            "label_smoothing": smoothing,
            "focal": focal,
        }
        self.meta = {
            "criterion": options.type,
            **({} if options.type == "ce" else {"scores": options.type}),
            **_units_meta(graphs),
            "normalization": normalizer.to_meta(),
            "targets": {
                name: both["train"].normalizer.to_meta()
                for name, both in targets.items()
            },
        }

    def priors(self, network: Network, backend: Backend) -> np.ndarray | None:
        """Return shares of the training labels, or the network's mean posteriors."""
        if self._options.type == "attention":
            return None
        if self._options.training.priors == "alignments":
            target = next(iter(network.outputs.values())).loss.target
            return priors_of_labels(self._labels[target], self._label_weights(target))
        batches, _ = self.batches
        num_parts = batches.options.partition_epoch
        # of the first pass over all that training has seen
        first = num_parts * batches.options.first_whole_pass
        with ExitStack() as opened:
            shares = chain.from_iterable(
                opened.enter_context(
                    closing(batches.epoch(epoch, rank=backend.rank, size=backend.size))
                )
                for epoch in range(first, first + num_parts)
            )
            return priors_of_posteriors(
                network, shares, self._options.training, backend
            )

    def _label_weights(self, target: str) -> np.ndarray | None:
        """Return how often the labels of each utterance count for priors.

        Where passes take some utterances more often than others: as the last ones do;
        else None.
        """
        batches, _ = self.batches
        if batches.weights is None:
            return None
        used = [batches.reader.utt_ids[i] for i in batches.labelled.utterance]
        weights = dict(zip(used, batches.weights.final().tolist(), strict=True))
        ids = self._labels[target].utt_ids
        return np.array([weights.get(utt_id, 0.0) for utt_id in ids])


def train_network(job: NetworkJob) -> None:
    """Train a network on the labels of alignments, or on transcripts, or both.

    By cross-entropy outputs may be trained to predict pdfs or phones; see
    `latflow.training.labels`.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    _write_labels(job)
    run_training(NetworkTask, job)
    shutil.rmtree(job.learnt_labels)


def _write_labels(job: NetworkJob) -> None:
    """Write the labels that outputs learn beside the checkpoints.

    Raises:
        UserError: an output has none, or those of dev do not fit.
    """
    given, names = job.labels, [x.target for x in job.losses if x.name == "ce"]
    lacks = [name for name in names if given is None or not (given / name).is_dir()]
    if lacks and (job.alignments is None or job.dev_alignments is None):
        raise UserError(
            "an output has the loss ce, and there are no alignments",
            file=job.network,
            remedy="name a system in alignments",
        )
    _, transitions = load_transitions(job.aligner_dir or job.source_dir)
    # A training that was killed, or had other outputs, may have left others.
    shutil.rmtree(job.learnt_labels, ignore_errors=True)
    stores: dict[str, dict[str, LabelStore]] = {}
    for split, source, given in (
        ("train", job.alignments, job.labels),
        ("dev", job.dev_alignments, job.dev_labels),
    ):
        folder = job.learnt_labels / split
        folder.mkdir(parents=True)
        stores[split] = write_targets(source or "", transitions, folder, names, given)
    _check_classes(stores["train"], stores["dev"], job.dev_labels)


def _check_classes(
    train: Mapping[str, LabelStore], dev: Mapping[str, LabelStore], given: Path | None
) -> None:
    """Refuse labels of dev that are of other classes than those of train."""
    for name, store in dev.items():
        if len(store) and store.num_classes != train[name].num_classes:
            raise UserError(
                f"target {name} has {store.num_classes} classes, and "
                f"{train[name].num_classes} in training",
                file=given,
                remedy="give labels of the same classes",
            )


def _targets_of(options: NetworkRunOptions) -> dict[str, Target]:
    """Return what simulation gives to be learnt, by name."""
    simulation = options.data.simulation
    return {} if simulation is None else simulation.targets


def _transcripts(job: NetworkJob) -> dict[str, CtcGraphs] | dict[str, UnitGraphs]:
    """Open the transcripts of the splits, as what the training learns."""
    if job.options.type == "attention":
        return {split: UnitGraphs.load(path) for split, path in job.graphs.items()}
    return {split: CtcGraphs.load(path) for split, path in job.graphs.items()}


def _units_meta(graphs: Mapping[str, CtcGraphs | UnitGraphs]) -> dict[str, Any]:
    """Return what decoding must know of a decoder's units; nothing of CTC.

    Raises:
        UserError: train and dev have different units.
    """
    found = [g for g in graphs.values() if isinstance(g, UnitGraphs)]
    if not found:
        return {}
    for other in found[1:]:
        if other.names != found[0].names:
            raise UserError(
                "has other units than the training split",
                file=other.folder,
                remedy="make both of one language directory",
            )
    return {"units": {"kind": found[0].kind, "names": found[0].names}}


def _stored_targets(job: NetworkJob) -> dict[str, dict[str, FrameTargets]]:
    """Open stored features as targets, by name and split."""
    return {name: StoredTargets.open(*dirs) for name, dirs in job.targets.items()}


def _simulated_targets(
    job: NetworkJob, normalizer: Normalizer
) -> dict[str, dict[str, FrameTargets]]:
    """Return what outputs learn of simulation, by name and split.

    Args:
        job: the training.
        normalizer: of its features.
    """
    data = job.options.data
    learnt = {loss.target for loss in job.losses if loss.name == "mse"}
    used = {name: t for name, t in _targets_of(job.options).items() if name in learnt}
    if not used:
        return {}
    clean = open_features(job.frames_dir, data)
    if not isinstance(clean, LiveFrames):
        raise UserError(
            "stored features cannot be simulated again",
            file=job.frames_dir,
            remedy="compute features on the fly (`stored: false`)",
        )
    made = {n: SimulatedTargets(t, clean, normalizer) for n, t in used.items()}
    return {name: {"train": one, "dev": one} for name, one in made.items()}


def _check_decoded(network: Network, kind: str, file: Path) -> None:
    """Refuse a network whose decoded output is not what the training is for."""
    name, output = next(iter(network.outputs.items()))
    if output.loss.name != kind or not output.loss.is_decodable:
        wanted = "loss: ce, target: pdf" if kind == "ce" else f"loss: {kind}"
        raise UserError(
            f"its decoded output {name} has loss {output.loss.name}, target "
            f"{output.loss.target}",
            file=file,
            remedy=f"give one `{wanted}`, and name it in `decode`",
        )


def pretraining_of(
    network: Network, options: TrainingOptions, seed: int
) -> Pretraining | None:
    """Return the layer-wise pretraining of a network, if the options want it.

    Raises:
        UserError: there would be no epoch of the whole network.
    """
    if not options.pretraining:
        return None
    first_whole_epoch(network.description, options.pretraining, options.epochs)
    return Pretraining(network, options.pretraining, seed)
