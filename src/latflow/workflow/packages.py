"""Packages of an experiment: which systems can be packaged, and of which files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latflow.decode.options import SearchOptions
from latflow.errors import UserError
from latflow.features.options import GmmFeatures, LhotseExtractionOptions, Stream
from latflow.lang.options import NeuralLmOptions
from latflow.workflow.frames import (
    ExtractedFrames,
    Hdf5Frames,
    IvectorFrames,
    PastedFrames,
)
from latflow.workflow.networks import Network
from latflow.workflow.resolve import Systems
from latflow.workflow.sequence_networks import SequenceNetwork
from latflow.workflow.systems import AdaptedFrames, System

_BY_VOLUME = {"none", "global", "online"}  # CMVN that leaves (at first) how loud one is
_BY_SET = {"global", "none"}  # normalization that is the same for all utterances
#: What is wrong with a network that knows one volume, and what mends it.
ONE_VOLUME = (
    "its features follow the volume of speech, which is that of the recordings in all "
    "of its training: softer speech is misrecognized",
    "name a set of corpus.perturbed, which varies volumes, as training_set",
)


def check_packages(recipe: Systems) -> None:
    """Refuse packages of systems that there are not, or that cannot be packaged.

    Raises:
        UserError: names the key.
    """
    for name in recipe.options.package.systems:
        try:
            PackagePlan(recipe, name).check()
        except UserError as error:
            what = f"configuration package.systems: {error.what}"
            raise UserError(what, remedy=error.remedy) from None


def check_capacity(recipe: Systems) -> None:
    """Refuse measurements of packages that are not made, or by sets that are not there.

    Raises:
        UserError: names the key.
    """
    options, packaged = recipe.options.capacity, recipe.options.package.systems
    for name in options.systems:
        if name not in packaged:
            known = ", ".join(packaged) or "none yet"
            raise UserError(
                f"configuration capacity.systems: no package of {name!r}",
                remedy=f"choose from package.systems: {known}",
            )
        try:
            plan = PackagePlan(recipe, name, offline=False)
            plan.check_recognizes()
            plan.check()
        except UserError as error:
            raise UserError(
                f"configuration capacity.systems: {error.what}",
                remedy="leave it out, or package a system that can be streamed",
            ) from None
    if options.systems and recipe.capacity_set not in recipe.decoded_sets:
        raise UserError(
            f"configuration capacity.test_set: no set {options.test_set!r}",
            remedy=f"choose from: {', '.join(recipe.decoded_sets)}",
        )


@dataclass(frozen=True)
class PackagePlan:
    """A system of a recipe as a package.

    Attributes:
        recipe: the recipe.
        name: of the system.
        offline: whether it may be one that cannot be streamed; None as the recipe says.
    """

    recipe: Systems
    name: str
    offline: bool | None = None

    @property
    def system(self) -> System:
        """The system."""
        return self.recipe.systems[self.name]

    def check(self) -> None:
        """Refuse a system that cannot be packaged.

        Raises:
            UserError: there is no such system; its features cannot be computed of one
                channel; it cannot be streamed, though it is to be.
        """
        recipe, name = self.recipe, self.name
        if name not in recipe.systems:
            known = ", ".join(recipe.systems)
            raise UserError(f"no system {name!r}", remedy=f"choose from: {known}")
        if self.system.has_decoder:
            raise UserError(
                f"{name} is a decoder with attention, which servers and packages do "
                "not know",
                remedy="package a system that a graph decodes",
            )
        self._check_features("package a network on features of nnet.features")
        if self.only_aligns:
            return
        if (found := self._why_offline) is not None and not self._may_be_offline:
            why, remedy = found
            raise UserError(
                f"{name} cannot be streamed: {why}",
                remedy=f"{remedy}; or set package.offline (--offline), for recordings "
                "that are there as a whole",
            )
        self._check_rescoring()
        self._check_g2p()

    @property
    def only_aligns(self) -> bool:
        """Return whether the package aligns, but does not recognize.

        So do those of GMM systems that adapt to speakers, in two passes.
        """
        return self.system.is_adapted

    @property
    def knows_one_volume(self) -> bool:
        """Return whether a network learns speech as loud as it was recorded alone.

        Where neither CMVN takes the volume away nor training varies it, softer speech
        is misrecognized (docs/serving.md, "Volumes").
        """
        system, features = self.system, self._features
        if not isinstance(system, Network) or features.type == "waveform":
            return False
        data, perturbed = system.base.options.data, self.recipe.options.corpus.perturbed
        training_set = perturbed.get(system.base.training_set)
        varied = (training_set, data.perturbation)
        is_varied = any(one is not None and one.volume is not None for one in varied)
        is_left = features.cmvn.type in _BY_VOLUME and data.normalization in _BY_SET
        return is_left and not is_varied

    def check_recognizes(self) -> None:
        """Refuse a system whose package only aligns.

        Raises:
            UserError: it is one.
        """
        if self.only_aligns:
            raise UserError(
                f"{self.name} adapts to speakers in two passes over their speech: "
                "its package aligns, but does not recognize",
                remedy="name a network, or a GMM system without adaptation",
            )

    def _check_features(self, remedy: str) -> None:
        """Refuse a system whose features a package cannot compute."""
        name, frames = self.name, self.system.frames
        if isinstance(frames, PastedFrames):
            raise UserError(
                f"{name} reads features of several streams side by side "
                f"({frames.name}), which packages do not compute",
                remedy=remedy,
            )
        if isinstance(frames, Hdf5Frames):
            raise UserError(
                f"{name} reads features of HDF5 files, which nothing computes of audio",
                remedy=remedy,
            )
        if isinstance(frames, AdaptedFrames):
            raise UserError(
                f"{name} reads features of the GMM system {frames.name}", remedy=remedy
            )
        features = self._features
        if features.channels is not None:
            raise UserError(
                f"{name} listens with several microphones, and servers and "
                "transcription take one channel",
                remedy="package a system whose features have no `channels`",
            )
        if isinstance(features, LhotseExtractionOptions) and features.is_own:
            raise UserError(
                f"{name} reads features of {features.extractor}, and a package holds "
                "no custom code",
                remedy="package a system on features of another type, or of an "
                "extractor that Lhotse registers",
            )

    def _check_rescoring(self) -> None:
        """Refuse a second language model that a package cannot have."""
        recipe, lm = self.recipe, self.recipe.options.package.rescore
        if lm in recipe.rescorings and isinstance(
            recipe.rescorings[lm].lm, NeuralLmOptions
        ):
            raise UserError(
                f"{lm} is a neural language model, which packages and servers do not "
                "know",
                remedy="name an n-gram model of decode.rescore in package.rescore",
            )
        if self.decoding not in recipe.decodings:
            raise UserError(
                f"the lattices of {self.name} are not rescored with {lm}",
                remedy="name a language model of decode.rescore that has the system",
            )

    def _check_g2p(self) -> None:
        """Refuse a G2P model that a package has no use for."""
        recipe, fault = self.recipe, None
        package = recipe.options.package
        if not package.g2p:
            return
        if recipe.options.decode.composition != "lookahead":
            fault = "graphs are whole", "set decode.composition: lookahead"
        elif package.rescore is not None:
            fault = "it has a second language model", "leave package.rescore out"
        elif not self.system.is_network:
            fault = (
                "phones of a GMM system depend on those that follow",
                "package a network of LF-MMI",
            )
        elif package.g2p is True and recipe.imported_system is not None:
            fault = "the system is imported", "name a model: latflow g2p train makes it"
        if fault is not None:
            why, remedy = fault
            raise UserError(
                f"package.g2p: {self.name} can't pronounce words that sessions bring: "
                f"{why}",
                remedy=remedy,
            )

    @property
    def _g2p(self) -> str | None:
        """G2P model of the package, if it has one."""
        options = self.recipe.options
        named = options.package.g2p
        if self.only_aligns or not named:
            return None
        trained = f"{options.results}/g2p/model.bin"
        return (options.lang.g2p.model or trained) if named is True else named

    @property
    def decoding(self) -> str:
        """Name under which the package's scales are chosen on dev."""
        lm = self.recipe.options.package.rescore
        return self.name if lm is None else f"{self.name}.{lm}"

    @property
    def files(self) -> dict[str, str | list[str]]:
        """Files that a package is made of, by argument of `write_package`.

        Those of `<name>_dir` are named by a file in the folder; lists are empty where
        the system has no such file.
        """
        system, options = self.system, self.recipe.options.package
        frames, results, features = (
            system.frames,
            self.recipe.options.results,
            self._features,
        )
        ivectors = frames.extractor if isinstance(frames, IvectorFrames) else []
        has_statistics = features.cmvn.statistics == "set"
        is_lhotse = isinstance(features, LhotseExtractionOptions)
        has_rate = features.sample_rate is not None or is_lhotse
        recognizes = not self.only_aligns
        lm = options.rescore if recognizes else None
        return {
            "model": system.model,
            "graph": system.graph if recognizes else [],
            "lang": system.words,
            "scales": (
                f"{results}/tune/{self.decoding}/scales.json" if recognizes else []
            ),
            "recordings": [] if has_rate else f"{results}/corpus/train/cuts.jsonl.gz",
            "frames": frames.source.of("train") if has_statistics else [],
            "ivectors": ivectors,
            "grammar": [] if lm is None else f"{results}/lm/G.fst",
            "arpa": [] if lm is None else f"{results}/lm/{lm}.arpa",
            "g2p": self._g2p or [],
            "licence": options.licence or [],
            "parent_scales": (
                system.parent_scales if isinstance(system, SequenceNetwork) else []
            ),
            "scores": (
                f"{results}/score/{self.decoding}/dev/hyp.ctm" if recognizes else []
            ),
        }

    @property
    def package_options(self) -> dict[str, Any]:
        """Options of `write_package`, as plain values."""
        recipe, system, decode = self.recipe, self.system, self.recipe.options.decode
        lm = None if self.only_aligns else recipe.options.package.rescore
        rescoring = None
        if lm is not None:
            beam, scale = recipe.rescorings[lm].beam, decode.acoustic_scale
            rescoring = {"lm": lm, "beam": beam, "acoustic_scale": scale}
        return {
            "experiment": recipe.options.experiment,
            "name": self.name,
            "kind": system.kind if system.is_network else "gmm",
            "front_end": self._features.front_end.values(),
            "sample_rate": self._features.sample_rate,
            "cmvn": self._features.cmvn.values(),
            "search": decode.part(SearchOptions).values(),
            # A package may be written where there is no GPU.
            "scores": {**system.scores_options, "device": "cpu"},
            "decision": recipe.options.score.decision,
            "rescoring": rescoring,
            "endpoint": recipe.options.package.endpoint.values(),
            "offline": self._may_be_offline,
        }

    @property
    def _may_be_offline(self) -> bool:
        """Return whether the system may be one that cannot be streamed."""
        by_recipe = self.recipe.options.package.offline
        return by_recipe if self.offline is None else self.offline

    @property
    def _features(self) -> GmmFeatures | Stream:
        """Features of the system, without i-vectors."""
        source = self.system.frames.source
        assert isinstance(source, ExtractedFrames)
        return source.options

    @property
    def _why_offline(self) -> tuple[str, str] | None:
        """Return why the system cannot be streamed, and what mends it."""
        cmvn = self._features.cmvn
        if not cmvn.is_causal:
            why = f"cmvn of type {cmvn.type} normalizes features with frames to come"
            return why, "take features with cmvn: {type: online}, or none"
        if isinstance(self._features, LhotseExtractionOptions):
            why = f"the extractor {self._features.extractor} takes whole signals"
            return why, "take features of type mfcc or fbank"
        if isinstance(self.system, Network):
            kind = self.system.base.options.data.normalization
            if kind in {"mean", "mean_variance"}:
                why = f"its input is normalized by utterance (normalization: {kind})"
                return why, "train it with data: {normalization: global}"
        return None
