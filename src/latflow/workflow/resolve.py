"""Resolution of a recipe: its frames and systems as objects that know each other.

Names are looked up here and nowhere else: a name that stands for nothing, or for two
things, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

from latflow.criteria.options import TeacherOptions
from latflow.decode.options import RescoreOptions
from latflow.errors import UserError
from latflow.options import check_choice
from latflow.training.options import LfmmiSystemOptions, SequenceSystemOptions
from latflow.workflow.experiment import Experiment
from latflow.workflow.frame_networks import FrameNetwork
from latflow.workflow.frames import (
    OF_GMMS,
    ExtractedFrames,
    Frames,
    Hdf5Frames,
    IvectorFrames,
    PastedFrames,
)
from latflow.workflow.lfmmi_networks import LfmmiNetwork, flat_start_options
from latflow.workflow.networks import Network
from latflow.workflow.sequence_networks import SequenceNetwork, full_scale_options
from latflow.workflow.sets import Sets
from latflow.workflow.systems import AdaptedFrames, GmmSystem, System, resolve_gmms

_System = TypeVar("_System", bound=System)


@dataclass(frozen=True)
class Systems(Sets):
    """The sets, features and systems of an experiment.

    Attributes:
        gmm_frames: the frames that GMM systems read.
        streams: other features that networks may read, by name.
        gmms: GMM systems by name, in the order of the recipe; first an imported one.
        networks: networks by name, in the order of the recipe.
    """

    gmm_frames: ExtractedFrames
    streams: dict[str, Frames]
    gmms: dict[str, GmmSystem]
    networks: dict[str, Network]

    @classmethod
    def resolve(cls, options: Experiment) -> Self:
        """Return the sets, features and systems of an experiment.

        Raises:
            UserError: names the key, and what may stand there.
        """
        sets = Sets(options)
        gmm_frames = ExtractedFrames(options.results, OF_GMMS, options.features)
        gmms = resolve_gmms(options, gmm_frames)
        if gmm_frames.is_lhotse and options.gmm.import_ is not None:
            raise UserError(
                "configuration features.type: the system of gmm.import was trained on "
                "Kaldi's features, not those of an extractor of Lhotse's",
                remedy="set it to mfcc or fbank",
            )
        streams = _resolve_streams(options, sets, gmms)
        networks: dict[str, Network] = {}
        for name in options.nnet.systems:
            resolver = _Resolver(name, options, sets, gmms, networks)
            networks[name] = resolver.resolve(gmm_frames, streams)
        return cls(options, gmm_frames, streams, gmms, networks)

    def check(self) -> None:
        """Refuse features and networks that contradict themselves or each other.

        Raises:
            UserError: names the key.
        """
        for frames in self.extracted.values():
            frames.check()
        for network in self.networks.values():
            network.check()

    @cached_property
    def systems(self) -> dict[str, System]:
        """All systems that decode by name: GMMs first, then networks."""
        return {**self.gmms, **self.networks}

    def gmms_of(self, *kinds: str) -> list[str]:
        """Return names of the GMM systems of some types (`mono`, `deltas`, ...)."""
        return [name for name, system in self.gmms.items() if system.kind in kinds]

    def networks_of(self, *kinds: str) -> list[str]:
        """Return names of the networks of types (`ce`, `ctc`, ...)."""
        return [name for name, n in self.networks.items() if n.kind in kinds]

    def lfmmi_networks(self, *, flat_start: bool) -> list[str]:
        """Return names of networks of LF-MMI that nothing aligns for, or the others."""
        return [
            name
            for name, network in self.networks.items()
            if isinstance(network, LfmmiNetwork) and network.is_flat_start is flat_start
        ]

    @property
    def imported_system(self) -> str | None:
        """Name of the system that comes from a directory of Kaldi's, if one does."""
        return next((name for name, s in self.gmms.items() if s.options is None), None)

    def imported_files(self, *patterns: str) -> list[str]:
        """Return files of the imported system's folder; none if none is imported."""
        folder = self.options.gmm.import_
        found = [p for name in patterns for p in Path(folder or "").glob(name)]
        return sorted(map(str, found)) if folder else []

    @property
    def adapted_systems(self) -> list[str]:
        """Names of the systems that adapt to speakers."""
        return [name for name, system in self.gmms.items() if system.is_adapted]

    @property
    def plain_systems(self) -> list[str]:
        """Names of the GMM systems that treat all speakers alike."""
        return [name for name, system in self.gmms.items() if not system.is_adapted]

    @property
    def graph_owners(self) -> list[str]:
        """Names of the systems that have a decoding graph: GMMs, then networks."""
        return [
            name
            for name, system in self.systems.items()
            if system.has_own_tree and not system.has_decoder
        ]

    @property
    def swept_systems(self) -> list[str]:
        """Systems that decode dev at several beams: the last with a graph, or none."""
        last = [name for name, s in self.systems.items() if not s.has_decoder][-1:]
        return last if self.options.decode.beam_sweep else []

    @property
    def served_systems(self) -> list[str]:
        """Packaged systems that recognize: all but adapted GMMs, which only align."""
        packaged = self.options.package.systems
        return [name for name in packaged if not self.systems[name].is_adapted]

    @cached_property
    def extracted(self) -> dict[str, ExtractedFrames]:
        """Features that are computed of audio by name, first those of GMM systems."""
        every = [self.gmm_frames, *self.streams.values()]
        return {f.name: f for f in every if isinstance(f, ExtractedFrames)}

    def extracted_streams(self, *, stored: bool) -> list[str]:
        """Return names of features of audio that are stored, or computed when read."""
        return [n for n, frames in self.extracted.items() if frames.is_stored is stored]

    @property
    def rescorings(self) -> dict[str, RescoreOptions]:
        """Second language models by name."""
        return self.options.decode.rescore

    @property
    def decodings(self) -> list[str]:
        """Names of what is scored: systems, and `<system>.<lm>` where rescored."""
        names = list(self.systems)
        for lm, rescoring in self.rescorings.items():
            systems = rescoring.systems or [list(self.systems)[-1]]
            names += [f"{system}.{lm}" for system in systems]
        return names

    def system_of(self, decoding: str) -> System:
        """Return the system that made the lattices of a decoding."""
        return self.systems[decoding.partition(".")[0]]


@dataclass(frozen=True)
class _Resolver:
    """Resolution of one network among the systems before it."""

    name: str
    experiment: Experiment
    sets: Sets
    gmms: Mapping[str, GmmSystem]
    networks: Mapping[str, Network]

    def resolve(self, gmm_frames: Frames, streams: Mapping[str, Frames]) -> Network:
        """Return the network; what it names is looked up."""
        options, key = self.experiment.nnet.systems[self.name], self._key
        if self.name in self.gmms:
            raise UserError(
                f"{key}: a GMM system has this name",
                remedy="give the network another",
            )
        if options.training_set is not None:
            known = self.sets.training_sets
            check_choice(f"{key}.training_set", options.training_set, known)
        if isinstance(options, SequenceSystemOptions):
            return self._sequence_network(options)
        parent = self._earlier("parent", options.parent, self.networks)
        aligner = self._earlier("alignments", options.alignments, self._aligners)
        if aligner is not None:
            aligner.check_scores_frames(f"{key}.alignments")
        frames = gmm_frames
        if options.features is not None:
            check_choice(f"{key}.features", options.features, [*streams, *self.gmms])
            frames = {**_adapted(self.gmms), **streams}[options.features]
        common = (self.name, self.experiment, frames, aligner)
        if isinstance(options, LfmmiSystemOptions):
            whole = options if aligner else flat_start_options(options)
            return LfmmiNetwork(*common, whole, self.sets, parent)
        return FrameNetwork(*common, options, self.sets, parent)

    @property
    def _key(self) -> str:
        return f"configuration nnet.systems.{self.name}"

    @property
    def _aligners(self) -> dict[str, System]:
        return {**self.gmms, **self.networks}

    def _sequence_network(self, options: SequenceSystemOptions) -> SequenceNetwork:
        """Return a network that continues from another on lattices."""
        parent = self._earlier("parent", options.parent, self.networks)
        assert parent is not None
        base, teacher = parent.base, None
        if isinstance(options.criterion, TeacherOptions):
            named = options.criterion.teacher
            teacher = self._earlier("criterion.teacher", named, self.networks)
        # A base with its own tree makes the alignments itself: those that it was
        # trained on are of another tree.
        aligner = base if base.has_own_tree else base.aligner
        if parent.has_full_scale:
            options = full_scale_options(options)
        return SequenceNetwork(
            self.name,
            self.experiment,
            base.frames,
            aligner,
            options,
            self.sets,
            parent,
            teacher,
        )

    def _earlier(
        self, key: str, chosen: str | None, known: Mapping[str, _System]
    ) -> _System | None:
        """Return a system before this one.

        Args:
            key: of the network's section, which names it.
            chosen: the name; None for no system.
            known: those that may be named.
        """
        if chosen is None:
            return None
        place = f"{self._key}.{key}"
        if chosen in self.experiment.nnet.systems and chosen not in known:
            raise UserError(
                f"{place}: {chosen!r} does not come before it",
                remedy=f"move it up, or choose from: {', '.join(known) or 'none'}",
            )
        check_choice(place, chosen, list(known))
        return known[chosen]


def _adapted(gmms: Mapping[str, GmmSystem]) -> dict[str, Frames]:
    """Return the features of GMM systems by name."""
    return {name: AdaptedFrames.of_system(system) for name, system in gmms.items()}


def _resolve_streams(
    options: Experiment, sets: Sets, gmms: Mapping[str, GmmSystem]
) -> dict[str, Frames]:
    """Return the features that networks may read beside those of GMM systems."""
    nnet, results = options.nnet, options.results
    found: dict[str, Frames] = {}
    if OF_GMMS in gmms:
        _check_new_name(f"gmm.systems.{OF_GMMS}", OF_GMMS, set())
    for name, stream in nnet.features.items():
        _check_new_name(f"nnet.features.{name}", name, {*gmms})
        found[name] = ExtractedFrames(results, name, stream)
    for name, ivectors in nnet.ivectors.items():
        _check_new_name(f"nnet.ivectors.{name}", name, {*gmms, *found})
        below = _below_ivectors(f"nnet.ivectors.{name}", ivectors.features, found)
        found[name] = IvectorFrames(results, name, ivectors, below)
    for name, hdf5 in nnet.hdf5.items():
        _check_new_name(f"nnet.hdf5.{name}", name, {*gmms, *found})
        known = [*sets.splits, *sets.training_sets[1:]]
        for split in hdf5.files:
            check_choice(f"configuration nnet.hdf5.{name}.files", split, known)
        found[name] = Hdf5Frames(results, name, hdf5)
    sides = {**found, **_adapted(gmms)}
    for name, pasted in nnet.pasted.items():
        _check_new_name(f"nnet.pasted.{name}", name, {*sides})
        key = f"configuration nnet.pasted.{name}.features"
        for chosen in pasted.features:
            _check_side(key, chosen, sides, set(nnet.pasted))
        side_by_side = tuple(sides[chosen] for chosen in pasted.features)
        found[name] = PastedFrames(results, name, side_by_side)
    return found


def _below_ivectors(
    key: str, chosen: str, streams: Mapping[str, Frames]
) -> ExtractedFrames:
    """Return the stored features that i-vectors are made of."""
    stored = {
        name: frames
        for name, frames in streams.items()
        if isinstance(frames, ExtractedFrames) and frames.is_stored
    }
    check_choice(f"configuration {key}.features", chosen, list(stored))
    if stored[chosen].options.type == "waveform":
        raise UserError(
            f"configuration {key}.features: {chosen} are samples",
            remedy="take features of type mfcc or fbank",
        )
    return stored[chosen]


def _check_side(
    key: str, chosen: str, sides: Mapping[str, Frames], pasted: set[str]
) -> None:
    """Refuse features that cannot stand beside others."""
    if chosen in sides and not sides[chosen].is_stored:
        raise UserError(
            f"{key}: {chosen} are computed when they are read",
            remedy=f"set stored: true in nnet.features.{chosen}",
        )
    if chosen in pasted:
        raise UserError(
            f"{key}: {chosen} stand side by side already",
            remedy="name each of their features here",
        )
    stored = [name for name, frames in sides.items() if frames.is_stored]
    check_choice(key, chosen, stored)


def _check_new_name(key: str, name: str, taken: set[str]) -> None:
    """Refuse features with the name of others."""
    if name == OF_GMMS:
        raise UserError(
            f"configuration {key}: the features of all GMM systems have this name",
            remedy="give these another",
        )
    if name in taken:
        raise UserError(
            f"configuration {key}: a GMM system or other features have this name",
            remedy="give these another",
        )
