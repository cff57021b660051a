"""Systems of an experiment: what they are built on, and the files that they make."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from latflow.align.options import AlignSplitOptions
from latflow.decode.options import NetworkScoreOptions
from latflow.errors import UserError
from latflow.gmm.options import SatOptions, SystemOptions
from latflow.graphs.options import DenominatorOptions, GraphOptions
from latflow.options import Options
from latflow.workflow.experiment import Experiment
from latflow.workflow.frames import Frames

Settings = TypeVar("Settings", bound=Options)


@dataclass(frozen=True, eq=False)
class System(ABC):
    """A system of a recipe; the base of its kinds.

    Attributes:
        name: its name.
        experiment: options of the whole experiment.
        frames: the frames that it reads.
        aligner: the system whose alignments it is trained on; None for what needs none.
    """

    name: str
    experiment: Experiment
    frames: Frames
    aligner: System | None

    #: Whether it is a network's.
    is_network = False
    #: Whether it is a decoder with attention, which has no graph and scores no frames.
    has_decoder = False
    #: Whether it has its own tree.
    has_own_tree = True
    #: Whether it is searched with an acoustic scale of 1.
    has_full_scale = False

    @cached_property
    def is_adapted(self) -> bool:
        """Return whether it works on features adapted to each speaker."""
        return False

    @property
    def results(self) -> str:
        """Folder of the experiment."""
        return self.experiment.results

    @property
    @abstractmethod
    def kind(self) -> str:
        """Type of the system (`mono`, `ce`, ...)."""

    @property
    def model(self) -> str:
        """File of its model, or of the transition model of a network."""
        folder = "nnet" if self.is_network else "gmm"
        return f"{self.results}/{folder}/{self.name}/final.mdl"

    @property
    def gmm_ancestor(self) -> GmmSystem | None:
        """The GMM system that it goes back to; None where it started without one."""
        return None if self.aligner is None else self.aligner.gmm_ancestor

    @property
    def tree_owner(self) -> System:
        """The system whose tree and graphs it works with."""
        if self.has_own_tree:
            return self
        assert self.aligner is not None, f"{self.name} has no tree"
        return self.aligner.tree_owner

    @property
    def tree_model(self) -> str:
        """Transition model of its tree, which lies beside it."""
        owner = self.tree_owner
        folder = "chain" if owner.is_network else "gmm"
        return f"{self.results}/{folder}/{owner.name}/final.mdl"

    @property
    def graph(self) -> str:
        """File of its decoding graph."""
        return f"{self.results}/graph/{self.tree_owner.name}/HCLG.fst"

    @property
    def lang_folder(self) -> str:
        """Language directory that it is trained and used with."""
        ancestor = self.gmm_ancestor
        source = None if ancestor is None else ancestor.lexicon_source
        return f"{self.results}/lang{'' if source is None else f'_{source.name}'}"

    @property
    def lexicon(self) -> str:
        """Lexicon transducer for training and alignment."""
        return f"{self.lang_folder}/L.fst"

    @property
    def words(self) -> str:
        """File of the words that it knows."""
        return f"{self.lang_folder}/words.txt"

    def alignments(self, split: str) -> str:
        """Return the file of its alignments of a set."""
        return f"{self.results}/align/{self.name}/{split}/ali.ark"

    def aligned_transforms(self, split: str) -> list[str]:
        """Return the speaker transforms of its alignments of a set, if it adapts."""
        folder = f"{self.results}/align/{self.name}/{split}"
        return [f"{folder}/trans.ark"] if self.is_adapted else []

    @cached_property
    def subsampling(self) -> int:
        """Frames of the features for one of its scores."""
        return 1

    @property
    def label_shift(self) -> float:
        """Time from one of its labels to the next, seconds."""
        return self.frames.shift * self.subsampling

    @property
    def built_on(self) -> list[System]:
        """The systems that it names, each once."""
        return [] if self.aligner is None else [self.aligner]

    @property
    def lineage(self) -> list[str]:
        """Names of the system and of all that it is built on, each once."""
        found: list[System] = [self]
        for system in found:  # grows meanwhile
            found += [each for each in system.built_on if each not in found]
        return list(dict.fromkeys(system.name for system in found))

    @property
    def graph_options(self) -> GraphOptions:
        """Scales of transitions in its graphs."""
        return self.experiment.graph

    @property
    def denominator_options(self) -> DenominatorOptions:
        """Options of the denominator of its tree, for training on lattices."""
        options, owner = self.experiment.nnet.denominator, self.tree_owner
        if not owner.is_network:
            return options
        return unless_set(options, **owner.graph_options.values())

    @property
    def align_options(self) -> dict[str, Any]:
        """Options of alignment with it, but for adaptation and a network's scores."""
        return self.experiment.gmm.align.part(AlignSplitOptions).values()

    @property
    def scores_options(self) -> dict[str, Any]:
        """How a network's scores are used; the defaults for others.

        The device is not among them: it is no reason to score again.
        """
        return NetworkScoreOptions().split()[0]

    def check_scores_frames(self, key: str) -> None:
        """Refuse a decoder with attention where scores of frames are needed.

        Args:
            key: of the recipe, which names the system.
        """
        if self.has_decoder:
            raise UserError(
                f"{key}: {self.name} is a decoder with attention, which scores no "
                "frames",
                remedy="take a system of another type",
            )


@dataclass(frozen=True, eq=False)
class GmmSystem(System):
    """A GMM system, trained here or imported from Kaldi.

    Attributes:
        options: of its training; None for an imported one.
        lexicon_source: the system whose alignments its lexicon was estimated from.
    """

    aligner: GmmSystem | None
    options: SystemOptions | None
    lexicon_source: GmmSystem | None

    @property
    def kind(self) -> str:
        """Type of the system; `import` for Kaldi's."""
        return "import" if self.options is None else self.options.type

    @cached_property
    def is_adapted(self) -> bool:
        """Return whether it works on features adapted to each speaker."""
        if self.options is not None:
            return isinstance(self.options, SatOptions)
        folder = self.experiment.gmm.import_
        return folder is not None and Path(folder, "final.alimdl").is_file()

    @property
    def gmm_ancestor(self) -> GmmSystem:
        """The system itself."""
        return self

    @property
    def built_on(self) -> list[System]:
        """The systems that it names."""
        return [each for each in (self.aligner, self.lexicon_source) if each]

    @property
    def training_options(self) -> dict[str, Any]:
        """Settings that its training depends on beside its inputs."""
        assert self.options is not None
        values = self.options.values()
        return {key: value for key, value in values.items() if key != "lexicon"}

    def speaker_transforms(self, split: str, *, is_trained_on: bool) -> list[str]:
        """Return its speaker transforms of a set, if it adapts.

        Args:
            split: the set.
            is_trained_on: whether alignment makes them; decoding does of other sets.
        """
        folder = f"{self.results}/decode/{self.name}/{split}"
        decoded = [f"{folder}/trans.ark"] if self.is_adapted else []
        return self.aligned_transforms(split) if is_trained_on else decoded


@dataclass(frozen=True)
class AdaptedFrames(Frames):
    """Features of a GMM system: transformed, and adapted to speakers.

    Attributes:
        system: the system.
    """

    system: GmmSystem

    @classmethod
    def of_system(cls, system: GmmSystem) -> AdaptedFrames:
        """Return the features of a system."""
        return cls(system.results, system.name, system)

    @property
    def source(self) -> Frames:
        """The frames that they are computed of, whose times they have."""
        return self.system.frames


def resolve_gmms(experiment: Experiment, frames: Frames) -> dict[str, GmmSystem]:
    """Return the GMM systems of a recipe by name, in its order; first an imported one.

    Args:
        experiment: options of the experiment.
        frames: those that all GMM systems read.

    Raises:
        UserError: a system builds on a later, an unknown, or its own one; an imported
            one comes without its language, or has the name of another.
    """
    gmm = experiment.gmm
    if (gmm.import_ is None) != (gmm.lang is None):
        raise UserError(
            "configuration gmm: `import` and `lang` go together",
            remedy="name the folders of both the system and its language",
        )
    found: dict[str, GmmSystem] = {}
    if gmm.import_ is not None:
        name = name_of_import(gmm.import_)
        if name in gmm.systems:
            raise UserError(
                f"configuration gmm.systems.{name}: the imported system has this name",
                remedy="give your own system another name",
            )
        found[name] = GmmSystem(name, experiment, frames, None, None, None)
    for name, options in gmm.systems.items():
        used = []
        for key in ("alignments", "lexicon"):  # monophones have neither
            source = getattr(options, key, None)
            used.append(found.get(source or ""))
            if source is not None and source not in found:
                raise UserError(
                    f"configuration gmm.systems.{name}.{key}: no system "
                    f"{source!r} before it",
                    remedy=f"choose one of: {', '.join(found) or 'none yet'}",
                )
        aligner, lexicon_source = used
        found[name] = GmmSystem(
            name, experiment, frames, aligner, options, lexicon_source
        )
    return found


def unless_set(options: Settings, **defaults: Any) -> Settings:
    """Return options with other values for those that the recipe does not set."""
    given = options.model_fields_set
    return options.replace(**{k: v for k, v in defaults.items() if k not in given})


def name_of_import(folder: str | Path) -> str:
    """Return a system's name from its folder's: lower case, others become `_`."""
    name = Path(os.path.abspath(folder)).name.lower()
    return re.sub(r"[^a-z0-9_]", "_", name).lstrip("_") or "imported"
