"""One experiment, resolved: what the rules of the workflow are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from latflow.align.options import ExportOptions, SuspectOptions
from latflow.corpus.options import Hdf5Source, SyntheticSource
from latflow.decode.options import SearchOptions
from latflow.gmm.options import SharedOptions
from latflow.scoring.options import ComparisonOptions
from latflow.workflow.experiment import load
from latflow.workflow.language import Language
from latflow.workflow.products import check_products
from latflow.workflow.resolve import Systems
from latflow.workflow.systems import GmmSystem

# What alignments of a package go by among those of systems.
PACKAGED = "package"


@dataclass(frozen=True)
class Recipe(Systems):
    """One experiment: its options and what follows from them; see the base classes."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Recipe:
        """Check a configuration and make the recipe of it.

        Raises:
            UserError: names the key, and what may stand there.
        """
        gmm = config.get("gmm") or {}
        if isinstance(gmm, Mapping) and gmm.get("import") and "systems" not in gmm:
            config = {**config, "gmm": {**gmm, "systems": {}}}
        recipe = cls.resolve(load(config))
        recipe.check()
        check_products(recipe, recipe.language)
        return recipe

    @property
    def experiment(self) -> str:
        """Name of the experiment, and of its folder below `results/`."""
        return self.options.experiment

    @property
    def results(self) -> str:
        """Folder of the experiment."""
        return self.options.results

    @cached_property
    def language(self) -> Language:
        """Lexicon and language models."""
        return Language(self.options, self.is_synthetic)

    @property
    def adds_words(self) -> bool:
        """Return whether searches may get words, for which graphs are composed."""
        return self.options.decode.composition == "lookahead"

    @property
    def max_skipped_fraction(self) -> float:
        """Share of utterances that a stage may skip."""
        return self.options.ledger.max_skipped_fraction

    def vocabulary(self, split: str) -> list[str]:
        """Return the file whose spelling the transcripts of a split take on, if any."""
        if isinstance(self.sources[split], SyntheticSource | Hdf5Source):
            return []
        if self.imported_system is not None:
            return [f"{self.options.gmm.lang}/words.txt"]
        return [self.language.lexicon]

    def scored_features(self, split: str) -> list[str]:
        """Return the features whose utterances are scored, of a set with audio."""
        return [self.gmm_frames.stored(split)] if self.has_audio(split) else []

    def check_definitions(self) -> None:
        """Refuse networks and extractors that cannot be made as the recipe says.

        Not part of `from_config`: it takes Lhotse and torch, which reading a recipe
        does without, and which may be in the environments of the jobs alone.

        Raises:
            UserError: names the file, or the key.
        """
        if find_spec("torch") is None or find_spec("lhotse") is None:
            return
        for frames in self.extracted.values():
            frames.check_extractor()
        for network in self.networks.values():
            network.data.check_extractor()
            network.check_description()

    @property
    def shared_options(self) -> dict[str, Any]:
        """Settings that all GMM systems are trained with."""
        return SharedOptions(
            transform=self.options.features.transform,
            graph=self.options.graph,
            seed=self.options.seed,
            device=self.options.gmm.device,
        ).values()

    @property
    def search_options(self) -> dict[str, Any]:
        """Options of the search that makes lattices."""
        return self.options.decode.part(SearchOptions).values()

    @property
    def comparison_options(self) -> dict[str, Any]:
        """How recognized words are compared with the references."""
        return self.options.score.part(ComparisonOptions).values()

    def tune_options(self, decoding: str) -> dict[str, Any]:
        """Return the settings that are tried for a decoding on dev."""
        has_decoder = self.system_of(decoding).has_decoder
        return self.options.decode.tune.of_system(has_decoder=has_decoder).values()

    @property
    def suspect_options(self) -> dict[str, Any]:
        """Bounds beyond which utterances are suspected."""
        return self.options.suspects.part(SuspectOptions).values()

    @property
    def biased_decode_options(self) -> dict[str, Any]:
        """How sets are decoded against their transcripts; {} if they are not."""
        options = self.options.suspects.biased_decoding
        return {} if options is None else options.values()

    @property
    def suspect_system(self) -> GmmSystem:
        """The GMM system whose alignments show which utterances look wrong."""
        return self.gmms[self.options.suspects.system or list(self.gmms)[-1]]

    @property
    def exported_systems(self) -> list[str]:
        """Systems whose alignments are exported; the packaged one is called so."""
        export = self.options.export_alignments
        packaged = [] if export.package is None else [PACKAGED]
        return [*export.systems, *packaged]

    @property
    def export_options(self) -> dict[str, Any]:
        """Forms of exported alignments."""
        return self.options.export_alignments.part(ExportOptions).values()

    def first_middle(self, system: str) -> float | None:
        """Return the middle of the first frame's window of a system, seconds.

        None for the packaged one, whose package knows.
        """
        is_packaged = system == PACKAGED
        return None if is_packaged else self.systems[system].frames.first_middle
