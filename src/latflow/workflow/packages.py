"""Model packages of an experiment: which systems can be packaged, and of which files.

Public: `PackagePlan`, `check_packages`, `check_capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latflow.errors import UserError
from latflow.features.options import LhotseExtractionOptions

if TYPE_CHECKING:
    from latflow.features.options import GmmFeatures, Stream
    from latflow.workflow.recipe import Recipe

_BY_WHOLE = {"speaker", "utterance"}  # CMVN that knows all frames beforehand
_BY_TRAINING_SET = {"global", "online"}  # CMVN of packages with statistics of training


def check_packages(recipe: Recipe) -> None:
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


def check_capacity(recipe: Recipe) -> None:
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
        system: name of the system.
        offline: whether it may be one that cannot be streamed; None as the recipe says.
    """

    recipe: Recipe
    system: str
    offline: bool | None = None

    def check(self) -> None:
        """Refuse a system that cannot be packaged.

        Raises:
            UserError: there is no such system; its features cannot be computed of one
                channel; it cannot be streamed, though it is to be.
        """
        recipe, name = self.recipe, self.system
        plain = "package a network on features of nnet.features"
        if name not in recipe.decoded_systems:
            known = ", ".join(recipe.decoded_systems)
            raise UserError(f"no system {name!r}", remedy=f"choose from: {known}")
        if recipe.has_decoder(name):
            raise UserError(
                f"{name} is a decoder with attention, which servers and packages do "
                "not know",
                remedy="package a system that a graph decodes",
            )
        self._check_features(plain)
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

    @property
    def only_aligns(self) -> bool:
        """Tell whether the package aligns, but does not recognize.

        So do those of GMM systems that adapt to speakers, in two passes.
        """
        recipe, name = self.recipe, self.system
        return not recipe.is_network(name) and recipe.is_adapted(name)

    def check_recognizes(self) -> None:
        """Refuse a system whose package only aligns.

        Raises:
            UserError: it is one.
        """
        if self.only_aligns:
            raise UserError(
                f"{self.system} adapts to speakers in two passes over their speech: "
                "its package aligns, but does not recognize",
                remedy="name a network, or a GMM system without adaptation",
            )

    def _check_features(self, remedy: str) -> None:
        """Refuse a system whose features a package cannot compute."""
        recipe, name = self.recipe, self.system
        stream, nnet = recipe.stream_of(name), recipe.options.nnet
        if stream in nnet.pasted:
            raise UserError(
                f"{name} reads features of several streams side by side ({stream}), "
                "which packages do not compute",
                remedy=remedy,
            )
        if stream in nnet.hdf5:
            raise UserError(
                f"{name} reads features of HDF5 files, which nothing computes of audio",
                remedy=remedy,
            )
        if stream in recipe.systems:
            raise UserError(
                f"{name} reads features of the GMM system {stream}", remedy=remedy
            )
        if self._features.channels is not None:
            raise UserError(
                f"{name} listens with several microphones, and servers and "
                "transcription take one channel",
                remedy="package a system whose features have no `channels`",
            )
        features = self._features
        if isinstance(features, LhotseExtractionOptions) and features.is_own:
            raise UserError(
                f"{name} reads features of {features.extractor}, and a package holds "
                "no code of your own",
                remedy="package a system on features of another type, or of an "
                "extractor that Lhotse registers",
            )

    def _check_rescoring(self) -> None:
        """Refuse a second language model that a package cannot have."""
        recipe, name = self.recipe, self.system
        if (lm := recipe.options.package.rescore) in recipe.neural_lms:
            raise UserError(
                f"{lm} is a neural language model, which packages and servers do not "
                "know",
                remedy="name an n-gram model of decode.rescore in package.rescore",
            )
        if self.decoding not in recipe.decodings:
            raise UserError(
                f"the lattices of {name} are not rescored with "
                f"{recipe.options.package.rescore}",
                remedy="name a language model of decode.rescore that has the system",
            )

    @property
    def decoding(self) -> str:
        """Name under which the package's scales are chosen on dev."""
        lm = self.recipe.options.package.rescore
        return self.system if lm is None else f"{self.system}.{lm}"

    def files(self, results: str) -> dict[str, str | list[str]]:
        """Return the files that a package is made of, by argument of `write_package`.

        Those of `<name>_dir` are named by a file in the folder; lists are empty where
        the system has no such file.

        Args:
            results: folder of the experiment.
        """
        recipe, name, options = self.recipe, self.system, self.recipe.options.package
        folder = "nnet" if recipe.is_network(name) else "gmm"
        stream = recipe.stream_of(name)
        ivectors = recipe.options.nnet.ivectors.get(stream or "")
        base = stream if ivectors is None else ivectors.features
        above = results if base is None else f"{results}/streams/{base}"
        has_statistics = self._features.cmvn.type in _BY_TRAINING_SET
        has_rate = self._features.sample_rate is not None or isinstance(
            self._features, LhotseExtractionOptions
        )
        recognizes = not self.only_aligns
        lm = options.rescore if recognizes else None
        graph = f"{results}/graph/{recipe.tree_owner(name)}/HCLG.fst"
        scales = f"{results}/tune/{self.decoding}/scales.json"
        scored = f"{results}/score/{self.decoding}/dev/hyp.ctm"
        return {
            "model": f"{results}/{folder}/{name}/final.mdl",
            "graph": graph if recognizes else [],
            "lang": f"{results}/{recipe.lang_folder(name)}/words.txt",
            "scales": scales if recognizes else [],
            "recordings": [] if has_rate else f"{results}/corpus/train/cuts.jsonl.gz",
            "frames": f"{above}/frames/train/meta.json" if has_statistics else [],
            "ivectors": (
                [] if ivectors is None else f"{results}/ivectors/{stream}/extractor.npz"
            ),
            "grammar": [] if lm is None else f"{results}/lm/G.fst",
            "arpa": [] if lm is None else f"{results}/lm/{lm}.arpa",
            "licence": options.licence or [],
            "scores": scored if recognizes else [],
        }

    def options(self) -> dict[str, Any]:
        """Return the options of `write_package`, as plain values."""
        recipe, name = self.recipe, self.system
        is_network = recipe.is_network(name)
        lm = None if self.only_aligns else recipe.options.package.rescore
        rescoring = None
        if lm is not None:
            scale = recipe.options.decode.acoustic_scale
            beam = recipe.rescorings[lm].beam
            rescoring = {"lm": lm, "beam": beam, "acoustic_scale": scale}
        return {
            "experiment": recipe.experiment,
            "name": name,
            "kind": recipe.networks[name].type if is_network else "gmm",
            "front_end": self._features.front_end.values(),
            "sample_rate": self._features.sample_rate,
            "cmvn": self._features.cmvn.values(),
            "search": recipe.search_options(),
            # A package may be written where there is no GPU.
            "scores": {**recipe.scores_options(name), "device": "cpu"},
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
        nnet, stream = self.recipe.options.nnet, self.recipe.stream_of(self.system)
        if stream in nnet.ivectors:
            stream = nnet.ivectors[stream].features
        return self.recipe.options.features if stream is None else nnet.features[stream]

    @property
    def _why_offline(self) -> tuple[str, str] | None:
        """Return why the system cannot be streamed, and what mends it."""
        recipe, cmvn = self.recipe, self._features.cmvn
        if cmvn.type in _BY_WHOLE or getattr(cmvn, "center", False):
            why = f"cmvn of type {cmvn.type} normalizes features with frames to come"
            return why, "take features with cmvn: {type: online}, or none"
        if isinstance(self._features, LhotseExtractionOptions):
            why = f"the extractor {self._features.extractor} takes whole signals"
            return why, "take features of type mfcc or fbank"
        if recipe.is_network(self.system):
            kind = recipe.networks[recipe.seed_of(self.system)].data.normalization
            if kind in {"mean", "mean_variance"}:
                why = f"its input is normalized by utterance (normalization: {kind})"
                return why, "train it with data: {normalization: global}"
        return None
