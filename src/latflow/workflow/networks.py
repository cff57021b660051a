"""Networks of an experiment: what all of them are trained on, and what they score."""

from __future__ import annotations

import fnmatch
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.graphs.options import GraphOptions
from latflow.nnet.described import (
    OutputLoss,
    described_layers,
    described_outputs,
    described_parts,
    described_sample_rates,
    described_subsampling,
    fused_layer,
    write_description,
)
from latflow.options import check_choice
from latflow.training.options import (
    AttentionSystemOptions,
    CeSystemOptions,
    CtcSystemOptions,
    LfmmiSystemOptions,
)
from latflow.workflow.experiment import NetworkSystemOptions
from latflow.workflow.frames import ExtractedFrames, Hdf5Frames, PastedFrames
from latflow.workflow.sets import Sets, simulation_files
from latflow.workflow.settings import workflow_folder
from latflow.workflow.systems import AdaptedFrames, System, unless_set
from latflow.workflow.training_data import TrainingData
from latflow.yaml_files import read_yaml

# Options of `training` that other trainings do not read, and what they are there.
_CROSS_ENTROPY_ONLY = {
    **{"focal": 0.0, "label_smoothing": 0.0},
    **{"pretraining": 0, "priors": "posteriors"},
}
# Options of a network that become inputs of its training, or are of other stages.
_NOT_OF_TRAINING = {
    *("features", "alignments", "network", "parent", "decode", "training_set"),
    *("units", "tree", "supervision", "supervision_lattices", "graph"),
}


@dataclass(frozen=True, eq=False)
class Network(System):
    """A network of a recipe; the base of its kinds.

    Attributes:
        options: of the system, those that the recipe leaves open completed.
        sets: the sets of the experiment.
        parent: the network whose parameters its training starts from, if any.
    """

    options: NetworkSystemOptions
    sets: Sets
    parent: Network | None

    is_network = True

    @property
    def kind(self) -> str:
        """Type of the system (`ce`, `sequence`, ...)."""
        return self.options.type

    @property
    def key(self) -> str:
        """Key of the recipe that describes it, as messages name it."""
        return f"configuration nnet.systems.{self.name}"

    @property
    @abstractmethod
    def base(self) -> BaseNetwork:
        """The network whose description it has: itself, or that of its parents."""

    @property
    @abstractmethod
    def training_set(self) -> str:
        """Name of the set that it is trained on."""

    @property
    def has_full_scale(self) -> bool:
        """Return whether it is searched with an acoustic scale of 1.

        So are those that learnt whole sequences from the start: by LF-MMI or CTC.
        """
        return self.base.has_own_tree

    @property
    def weights(self) -> str:
        """File of its parameters."""
        return f"{self.results}/nnet/{self.name}/weights.safetensors"

    @property
    def checkpoints(self) -> str:
        """Folder in which its trainings keep what they continue from."""
        return f"{self.results}/checkpoints/{self.name}"

    @property
    def parent_weights(self) -> list[str]:
        """File of the parameters that its training starts from, if any."""
        return [] if self.parent is None else [self.parent.weights]

    @property
    def training_frames(self) -> str:
        """Frames that it is trained on."""
        return self.frames.of(self.training_set)

    @property
    def data(self) -> TrainingData:
        """Data of its training."""
        return TrainingData(
            key=self.key,
            kind=self.kind,
            options=self.options.data,
            frames=self.frames,
            source=self.experiment.corpus.train,
            subsampling=self.subsampling,
            sample_rates=self.sample_rates,
        )

    @property
    def simulated_targets(self) -> list[str]:
        """Names of what outputs may learn of simulated data."""
        simulation = self.options.data.simulation
        return [] if simulation is None else list(simulation.targets)

    @property
    def simulation_files(self) -> list[str]:
        """Noises and measured responses that its training data are put into."""
        data = self.options.data
        return simulation_files(data.simulation or data.mixing)

    # What its description says; nothing where that is not there to be read yet.

    @cached_property
    def description(self) -> Path | dict[str, Any] | None:
        """Its description: a file, or what the recipe says; None without the file."""
        given = self.base.options.network
        if isinstance(given, dict):
            return given
        places = (Path(given), workflow_folder() / given)
        return next((place for place in places if place.is_file()), None)

    @property
    def description_file(self) -> str:
        """File that describes it, there or not; of the recipe's own it is written."""
        given = self.base.options.network
        if not isinstance(given, dict):
            return str(self.description or given)
        path = f"{self.results}/networks/{self.base.name}.yaml"
        write_description(path, given)
        return path

    @property
    def description_values(self) -> Mapping[str, Any]:
        """What its description says, without comments and the form of the file."""
        found = self.description
        if found is None or isinstance(found, dict):
            return found or {}
        return read_yaml(found)

    @cached_property
    def subsampling(self) -> int:
        """Frames of the features for one of its scores; 1 without a description."""
        found = self.description
        return 1 if found is None else described_subsampling(found)

    @cached_property
    def outputs(self) -> dict[str, OutputLoss]:
        """Losses of its outputs by name, that which is decoded first."""
        found = self.description
        return {} if found is None else described_outputs(found)

    @property
    def layers(self) -> list[str]:
        """Names of its layers that share no other's parameters."""
        found, networks = self.description, self.base.options.training.ensemble
        if found is None:
            return []
        if networks == 1 or self.base is self:
            return described_layers(found)
        if not self.outputs:
            return []
        output, numbers = next(iter(self.outputs)), range(1, networks + 1)
        hidden = [x for x in described_layers(found, behind=output) if x != output]
        fused = [fused_layer(number, name) for number in numbers for name in hidden]
        return [*fused, output]

    @property
    def sample_rates(self) -> dict[str, int]:
        """Sample rates that its layers are for, Hz, by layer."""
        found = self.description
        return {} if found is None else described_sample_rates(found)

    @property
    def selected_features(self) -> dict[str, str]:
        """Features that layers take of those side by side, by layer."""
        found = self.description
        return {} if found is None else described_parts(found)

    # Options of the stages that it goes through.

    @property
    def split_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of its training, and those of them that make no training new."""
        bound, free = self.options.split()
        nnet = self.experiment.nnet
        free = {**free, "device": nnet.device, "backend": nnet.backend}
        return (
            {**_of_training(bound), "seed": self.experiment.seed},
            _of_training(free),
        )

    @property
    def training_options(self) -> dict[str, Any]:
        """Settings that its training depends on beside its inputs."""
        return self.split_options[0]

    @property
    def free_options(self) -> dict[str, Any]:
        """Settings that may change between two attempts of its training."""
        return self.split_options[1]

    @property
    def scores_options(self) -> dict[str, Any]:
        """How its scores are used, but for the device."""
        return self.options.decode.split()[0]

    @property
    def align_options(self) -> dict[str, Any]:
        """Options of alignment with it, but for the use of its scores."""
        options = self.experiment.nnet.align
        if self.has_full_scale:
            options = unless_set(options, acoustic_scale=1.0)
        return options.values()

    @property
    def graph_options(self) -> GraphOptions:
        """Scales of transitions in its graphs."""
        owner = self.tree_owner
        own = owner.options if isinstance(owner, Network) else None
        return getattr(own, "graph", self.experiment.graph)

    # Checks.

    def check(self) -> None:
        """Refuse what contradicts the description, the data, or itself.

        Raises:
            UserError: names the key.
        """
        for part in self.frames.parts:
            if isinstance(part, Hdf5Frames):
                for split in (self.training_set, *self.sets.decoded_sets):
                    part.files(split)
        self._check_layers()
        self._check_selected_features()
        self._check_own_files()
        self._check_simulated_targets()
        self.data.check()

    def check_description(self) -> None:
        """Refuse a description, or folders of encoders, that no network can be made of.

        Not part of `check`: it takes torch, which reading a recipe does without.

        Raises:
            UserError: names the file, the layer and the key.
        """
        from latflow.nnet.description import NetworkDescription
        from latflow.nnet.encoders import check_folder
        from latflow.nnet.pretraining import first_whole_epoch
        from latflow.nnet.score_fusion import linear_output

        training = self.options.training
        if self.description is None:
            raise UserError(
                f"{self.key}.network: no such file {self.base.options.network}",
                remedy="check the path, which is relative to the folder of the run",
            )
        try:
            description = NetworkDescription.load(self.description)
        except UserError as error:
            if isinstance(self.description, dict):
                what = f"{self.key}.network: {error.what}"
                raise UserError(what, remedy=error.remedy) from None
            raise
        for folder in description.encoder_folders():
            check_folder(folder)
        if training.ensemble > 1:
            linear_output(description)
        if training.pretraining:
            first_whole_epoch(description, training.pretraining, training.epochs)

    def _check_layers(self) -> None:
        """Refuse to freeze, or to train otherwise, layers that it lacks."""
        training, known = self.options.training, self.layers
        for layer in training.learning_rate_factors if known else ():
            key = f"{self.key}.training.learning_rate_factors"
            check_choice(key, layer, known)
        for pattern in training.freeze if known else ():
            if not fnmatch.filter(known, pattern):
                check_choice(f"{self.key}.training.freeze", pattern, known)

    def _check_selected_features(self) -> None:
        """Refuse to take features apart that do not stand side by side."""
        for layer, part in self.selected_features.items():
            key = f"{self.key}.network: features of layer {layer}"
            if not isinstance(self.frames, PastedFrames):
                raise UserError(
                    f"{key}: the network reads one stream alone",
                    remedy="name one of nnet.pasted in features of the system",
                )
            sides = [side.name for side in self.frames.parts]
            check_choice(key, part, sides)

    def _check_own_files(self) -> None:
        """Refuse functions of the user's own in files that are not there."""
        for key, own in (
            ("training.schedule", self.options.training.schedule),
            ("criterion", getattr(self.options, "criterion", None)),
        ):
            file, _, _ = getattr(own, "path", "").rpartition(":")
            if file.endswith(".py") and not Path(file).is_file():
                raise UserError(
                    f"{self.key}.{key}.path: no such file {file}",
                    remedy="name a file that is there, or a module",
                )

    def _check_simulated_targets(self) -> None:
        """Refuse targets of simulated data that no output learns."""
        key = f"{self.key}.data.simulation.targets"
        targets = self.simulated_targets
        if targets and self.kind not in {"attention", "ce", "ctc"}:
            raise UserError(
                f"{key}: outputs of a system of type {self.kind} learn no features",
                remedy="leave it out, or train a system of type ce, ctc or attention",
            )
        losses = self.outputs.values()
        learnt = {loss.target for loss in losses if loss.name == "mse"}
        for target in targets:
            if target in self.experiment.nnet.features:
                raise UserError(
                    f"{key}.{target}: features of nnet.features have this name",
                    remedy="give the target another",
                )
            if self.outputs and target not in learnt:
                raise UserError(
                    f"{key}.{target}: no output of the network learns it",
                    remedy=f"give an output `loss: mse, target: {target}`, or leave it "
                    "out",
                )

    def _check_unused(self, remedy: str) -> None:
        """Refuse options of training that only cross-entropy reads."""
        training = self.options.training
        for name, unused in _CROSS_ENTROPY_ONLY.items():
            if getattr(training, name) != unused:
                raise UserError(
                    f"{self.key}.training.{name}: is of cross-entropy training only",
                    remedy=remedy,
                )


@dataclass(frozen=True, eq=False)
class BaseNetwork(Network):
    """A network with its own description, which others may continue from."""

    options: (
        AttentionSystemOptions | CeSystemOptions | CtcSystemOptions | LfmmiSystemOptions
    )

    @property
    def base(self) -> BaseNetwork:
        """The network itself."""
        return self

    @property
    def training_set(self) -> str:
        """Name of the set that it is trained on."""
        return self.options.training_set

    @property
    def built_on(self) -> list[System]:
        """The systems that it names; features of GMM systems count among them."""
        parts = self.frames.parts
        adapted = [part.system for part in parts if isinstance(part, AdaptedFrames)]
        found = dict.fromkeys([self.aligner, *adapted, self.parent])
        return [each for each in found if each is not None]

    @property
    def labelled(self) -> Hdf5Frames | None:
        """The HDF5 files, read as features, that have labels too, if any."""
        hdf5 = [part for part in self.frames.parts if isinstance(part, Hdf5Frames)]
        return next((part for part in hdf5 if part.options.targets), None)

    @property
    def given_targets(self) -> tuple[str, ...]:
        """Targets whose labels lie in HDF5 files with the features."""
        return () if self.labelled is None else self.labelled.options.targets

    def given_labels(self, split: str) -> list[str]:
        """Return the labels that come with the features of a set, where some do."""
        return [] if self.labelled is None else [self.labelled.labels(split)]

    @property
    def mse_targets(self) -> list[str]:
        """Names of stored features that outputs learn, in their order."""
        losses = self.outputs.values()
        learnt = dict.fromkeys(o.target for o in losses if o.name == "mse")
        return [name for name in learnt if name not in self.simulated_targets]

    def target_frames(self, split: str) -> list[str]:
        """Return the features of a set that outputs learn, if any."""
        above = f"{self.results}/streams"
        return [f"{above}/{name}/frames/{split}/meta.json" for name in self.mse_targets]

    def check(self) -> None:
        """Refuse what contradicts the description, the data, or itself.

        Raises:
            UserError: names the key.
        """
        if self.parent is not None:
            self._check_start(self.parent)
        if self.aligner is not None:
            self._check_rates(self.aligner)
            self._check_shifts(self.aligner)
        self._check_kind()
        super().check()

    @abstractmethod
    def _check_kind(self) -> None:
        """Refuse what a training of its kind cannot do."""

    def _check_start(self, parent: Network) -> None:
        """Refuse a network to start from that cannot be learnt from."""
        if self.options.training.pretraining:
            raise UserError(
                f"{self.key}.training.pretraining: layers come one by one, and do not "
                f"start as those of the parent {parent.name}",
                remedy="leave out one of the two",
            )
        if parent.options.training.ensemble > 1:
            raise UserError(
                f"{self.key}.parent: {parent.name} is several networks side by side, "
                "whose layers have other names",
                remedy="name a network without training.ensemble",
            )

    def _check_rates(self, aligner: System) -> None:
        """Refuse alignments with fewer frames than it is to learn from."""
        theirs, ours = aligner.subsampling, self.subsampling
        is_lattice_free = self.kind == "lfmmi"
        if theirs == 1 or (theirs == ours and not is_lattice_free):
            return
        raise UserError(
            f"{self.key}.alignments: {aligner.name} aligns one frame in {theirs}, and "
            f"{self.name} needs a label for each frame of "
            f"{'the features' if is_lattice_free else 'its own output'}",
            remedy="take the alignments of a GMM system, or of a network that scores "
            "every frame",
        )

    def _check_shifts(self, aligner: System) -> None:
        """Refuse alignments whose labels are of other times than its frames.

        Frames of Lhotse's extractors, which take torch to be known, are left to the
        job.
        """
        losses = self.outputs.values()
        learnt = {loss.target for loss in losses if loss.name in {"ce", "lfmmi"}}
        if learnt <= {*self.given_targets}:
            return  # the alignments give the tree alone
        sources = (self.frames.source, aligner.frames.source)
        if any(isinstance(one, ExtractedFrames) and one.is_lhotse for one in sources):
            return
        ours, labels = self.frames.shift, aligner.label_shift
        fitting = [ours] if self.kind == "lfmmi" else [ours, self.label_shift]
        if not any(math.isclose(labels, shift, rel_tol=1e-3) for shift in fitting):
            raise UserError(
                f"{self.key}.alignments: {aligner.name} has a label each "
                f"{1000 * labels:g} ms, and the features of {self.name} a frame each "
                f"{1000 * ours:g} ms",
                remedy="give both features the same frame_shift_ms",
            )


def _of_training(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those that are of other stages."""
    return {key: o for key, o in options.items() if key not in _NOT_OF_TRAINING}
