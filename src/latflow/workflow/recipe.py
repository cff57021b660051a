"""One experiment: what its configuration means for the rules of the workflow.

`Recipe` answers the questions that `workflow/rules/common.smk` asks: which splits,
systems and decodings there are, and on which settings each of them depends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latflow.align.options import AlignSplitOptions, ExportOptions, SuspectOptions
from latflow.corpus.options import Hdf5Source, SyntheticSource
from latflow.decode.options import NetworkScoreOptions, RescoreOptions, SearchOptions
from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.features.options import LhotseExtractionOptions, Stream
from latflow.files import read_yaml
from latflow.gmm.options import SharedOptions
from latflow.graphs.options import DenominatorOptions, GraphOptions
from latflow.lang.options import (
    ArpaLm,
    LmTrainingOptions,
    NeuralLmOptions,
    RescoringLmOptions,
    TextLm,
    TranscriptsLm,
    UniformLm,
)
from latflow.lang.silence import SILENCE_FILE
from latflow.scoring.options import ComparisonOptions
from latflow.simulation.options import SimulationOptions
from latflow.simulation.records import list_audio
from latflow.training.data_options import MixingDraws
from latflow.training.options import LfmmiSystemOptions
from latflow.workflow.experiment import load
from latflow.workflow.recipe_checks import check
from latflow.workflow.sets import Sets
from latflow.workflow.systems import Systems, unless_set

# What alignments of a package go by among those of systems.
PACKAGED = "package"


@dataclass(frozen=True)
class Recipe(Sets, Systems):
    """One experiment: its options and what follows from them; see the base classes."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Recipe:
        """Check a configuration and make the recipe of it."""
        gmm = config.get("gmm") or {}
        if isinstance(gmm, Mapping) and gmm.get("import") and "systems" not in gmm:
            config = {**config, "gmm": {**gmm, "systems": {}}}
        recipe = cls(load(config))
        check(recipe)
        return recipe

    @property
    def experiment(self) -> str:
        """Name of the experiment, and of its folder below `results/`."""
        return self.options.experiment

    @property
    def max_skipped_fraction(self) -> float:
        """Share of utterances that a stage may skip."""
        return self.options.ledger.max_skipped_fraction

    @property
    def rescorings(self) -> dict[str, RescoreOptions]:
        """Second language models by name."""
        return self.options.decode.rescore

    @property
    def feature_streams(self) -> dict[str, Stream]:
        """Features that networks read beside those of the GMM systems, by name."""
        return self.options.nnet.features

    def hdf5_files(self, name: str, split: str) -> list[str]:
        """Return the HDF5 files that hold a split.

        Raises:
            UserError: none is named.
        """
        files = self.options.nnet.hdf5[name].files
        if split not in files:
            raise UserError(
                f"configuration nnet.hdf5.{name}.files: no files of {split} are named, "
                "and they are needed",
                remedy=f"name them as {split}: [...]",
            )
        return list(files[split])

    def streams_of(self, *, stored: bool) -> list[str]:
        """Return the names of stored ones, or of those computed when read."""
        streams = self.feature_streams.items()
        return [name for name, stream in streams if stream.stored is stored]

    @property
    def decodings(self) -> list[str]:
        """Names of what is scored: systems, and `<system>.<lm>` where rescored."""
        names = self.decoded_systems
        for lm, rescoring in self.rescorings.items():
            systems = rescoring.systems or [self.decoded_systems[-1]]
            names += [f"{system}.{lm}" for system in systems]
        return names

    @staticmethod
    def system_of(decoding: str) -> str:
        """Return the system that made the lattices of a decoding."""
        return decoding.partition(".")[0]

    def system_options(self, system: str) -> dict[str, Any]:
        """Return the options of a GMM system, but for the lexicon."""
        return _without(self.options.gmm.systems[system].values(), "lexicon")

    def shared_options(self) -> dict[str, Any]:
        """Return the settings that all GMM systems are trained with."""
        return SharedOptions(
            transform=self.options.features.transform,
            graph=self.options.graph,
            seed=self.options.seed,
            device=self.options.gmm.device,
        ).values()

    def align_options(self, network: str | None = None) -> dict[str, Any]:
        """Return the options of alignment with a GMM system, or with a network.

        Those of adaptation and of the use of a network's scores are not among them.
        """
        if network is None:
            return self.options.gmm.align.part(AlignSplitOptions).values()
        align = self.options.nnet.align
        if self.has_full_scale(network):
            align = unless_set(align, acoustic_scale=1.0)
        return align.values()

    def align_network_options(self, network: str) -> dict[str, Any]:
        """Return the options of alignment with a network."""
        return {**self.align_options(network), "scores": self.scores_options(network)}

    def graph_options(self, system: str) -> GraphOptions:
        """Return the scales of transitions in the graphs of a system."""
        owner = self.networks.get(self.tree_owner(system))
        return getattr(owner, "graph", self.options.graph)

    def denominator_options(self, system: str) -> DenominatorOptions:
        """Return the options of the denominator of a system's tree."""
        options = self.options.nnet.denominator
        if not self.has_own_tree(self.tree_owner(system)):
            return options
        return unless_set(options, **self.graph_options(system).values())

    def search_options(self) -> dict[str, Any]:
        """Return the options of the search that makes lattices."""
        return self.options.decode.part(SearchOptions).values()

    def comparison_options(self) -> dict[str, Any]:
        """Return how recognized words are compared with the references."""
        return self.options.score.part(ComparisonOptions).values()

    def scores_options(self, system: str) -> dict[str, Any]:
        """Return how a system's scores are used: of a network, else the defaults."""
        if not self.is_network(system) or self.has_decoder(system):
            return NetworkScoreOptions().values()
        own = self.networks[system].decode.values()
        return {**own, "device": self.options.nnet.device}

    def network_options(self, system: str) -> dict[str, Any]:
        """Return everything that training a network depends on beside its inputs."""
        options, _ = self._training_options(system)
        return {**options, "seed": self.options.seed}

    def free_network_options(self, system: str) -> dict[str, Any]:
        """Return the options of a training that may change between two attempts."""
        nnet = self.options.nnet
        _, free = self._training_options(system)
        return {**free, "device": nnet.device, "backend": nnet.backend}

    def _training_options(self, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of a training, without its inputs; see `Options.split`."""
        inputs = (
            "features",
            "alignments",
            "network",
            "parent",
            "decode",
            "training_set",
            "units",
            "tree",
            "supervision",
            "supervision_lattices",
            "graph",
        )
        options = self.networks[system]
        if isinstance(options, LfmmiSystemOptions):
            options = self.chain_system(system)
        bound, free = options.split()
        return _without(bound, *inputs), _without(free, *inputs)

    def network_config(self, system: str) -> Mapping[str, Any]:
        """Return what the description of a network says; {} where there is none yet.

        Comments and the form of the file are not part of it.
        """
        file = self.description_of(system)
        return {} if file is None else read_yaml(file)

    def sequence_options(self, system: str) -> dict[str, Any]:
        """Return everything that sequence training depends on beside its inputs."""
        options = self.sequence_system(system)
        return {
            **self.network_options(system),
            "criterion": options.criterion.values(),
            "sequence": options.sequence.values(),
            "score": self.comparison_options(),
            "graph": self.denominator_options(system).part(GraphOptions).values(),
        }

    def tune_options(self, decoding: str) -> dict[str, Any]:
        """Return the settings that are tried for a decoding on dev."""
        has_decoder = self.has_decoder(self.system_of(decoding))
        return self.options.decode.tune.of_system(has_decoder=has_decoder).values()

    def suspect_options(self) -> dict[str, Any]:
        """Return the bounds beyond which utterances are suspected."""
        return self.options.suspects.part(SuspectOptions).values()

    def biased_decode_options(self) -> dict[str, Any]:
        """Return how sets are decoded against their transcripts; {} if they are not."""
        options = self.options.suspects.biased_decoding
        return {} if options is None else options.values()

    @property
    def suspect_system(self) -> str:
        """The GMM system whose alignments tell which utterances look wrong."""
        return self.options.suspects.system or list(self.systems)[-1]

    @property
    def exported_systems(self) -> list[str]:
        """Systems whose alignments are exported; the packaged one is called so."""
        export = self.options.export_alignments
        packaged = [] if export.package is None else [PACKAGED]
        return [*export.systems, *packaged]

    def export_options(self) -> dict[str, Any]:
        """Return the forms of exported alignments."""
        return self.options.export_alignments.part(ExportOptions).values()

    def first_middle(self, system: str) -> float | None:
        """Return the middle of the first frame's window of a system, seconds.

        None for the packaged one, whose package knows.
        """
        if system == PACKAGED:
            return None
        nnet, stream = self.options.nnet, self.timed_as(system) or ""
        if stream in nnet.hdf5:
            return nnet.hdf5[stream].first_middle_ms / 1000
        features = nnet.features.get(stream, self.options.features)
        return FrameTimes.of(features, features.sample_rate).first_middle

    def extracts_by_lhotse(self, system: str) -> bool:
        """Return whether an extractor of Lhotse's gives the features of a system."""
        nnet, stream = self.options.nnet, self.timed_as(system) or ""
        features = nnet.features.get(stream, self.options.features)
        return stream not in nnet.hdf5 and isinstance(features, LhotseExtractionOptions)

    def feature_shift(self, system: str) -> float:
        """Return the seconds from frame to frame of the features of a system.

        Raises:
            UserError: they are of an extractor of Lhotse's that cannot be made.
        """
        nnet, stream = self.options.nnet, self.timed_as(system) or ""
        if stream in nnet.hdf5:
            return nnet.hdf5[stream].frame_shift_ms / 1000
        features = nnet.features.get(stream, self.options.features)
        return FrameTimes.of(features, features.sample_rate).shift_ms / 1000

    def extraction_options(self, stream: str | None = None) -> dict[str, Any]:
        """Return options of stored features: those of GMM systems, or of a stream."""
        nnet, features = self.options.nnet, self.options.features
        options = features if stream is None else nnet.features[stream]
        return options.extraction.values()

    def extractor_files(self, stream: str | None = None) -> list[str]:
        """Return the file of the user's own extractor, of GMM systems or a stream."""
        features = self.options.features
        options = features if stream is None else self.feature_streams[stream]
        is_lhotse = isinstance(options, LhotseExtractionOptions)
        return [str(path) for path in options.files] if is_lhotse else []

    @property
    def language_models(self) -> list[str]:
        """Names of all language models; `lm` is the one of the decoding graphs."""
        return ["lm", *self.rescorings]

    @property
    def neural_lms(self) -> list[str]:
        """Names of the neural ones."""
        of = self.rescorings.items()
        return [name for name, one in of if isinstance(one.lm, NeuralLmOptions)]

    @property
    def ngram_lms(self) -> list[str]:
        """Names of the others."""
        return [name for name in self.language_models if name not in self.neural_lms]

    def neural_lm(self, lm: str) -> NeuralLmOptions:
        """Return the options of a neural language model."""
        options = self.rescorings[lm].lm
        assert isinstance(options, NeuralLmOptions)
        return options

    def lm_run_options(self, lm: str) -> dict[str, Any]:
        """Return all that training a neural model depends on beside its inputs."""
        own, _ = self.neural_lm(lm).part(LmTrainingOptions).split()
        return {**own, "seed": self.options.seed}

    def free_lm_options(self, lm: str) -> dict[str, Any]:
        """Return the options of that training that may change between two attempts."""
        _, free = self.neural_lm(lm).part(LmTrainingOptions).split()
        return {**free, "device": self.options.nnet.device}

    def lm_options(self, lm: str, language_folder: str) -> RescoringLmOptions:
        """Return the options of a language model, its text named.

        The text of a neural one is by default that of the first model.

        Raises:
            UserError: the text is not named and the corpus brings none.
        """
        is_first = lm == "lm"
        options = self.options.lm if is_first else self.rescorings[lm].lm
        if isinstance(options, NeuralLmOptions) and options.path is None:
            first = self.lm_options("lm", language_folder)
            path = first.path if isinstance(first, TextLm) else None
            return options.replace(path=path)
        if isinstance(options, TextLm) and options.path is None:
            if not self.is_synthetic:
                key = "lm" if is_first else f"decode.rescore.{lm}.lm"
                raise UserError(
                    f"configuration {key}.path is not set",
                    remedy="name a text with one sentence a line",
                )
            return options.replace(path=f"{language_folder}/lm_text.txt")
        return options

    def lm_inputs(self, lm: str, results: str, language_folder: str) -> list[str]:
        """Return the files that a language model is made from."""
        options = self.lm_options(lm, language_folder)
        if isinstance(options, UniformLm):
            return []
        if isinstance(options, TranscriptsLm) or options.path is None:
            return [f"{results}/corpus/train/cuts.jsonl.gz"]
        return [options.path]

    def simulation_files(
        self, options: SimulationOptions | MixingDraws | None
    ) -> list[str]:
        """Return the recordings that a simulation takes: noises, measured responses.

        Where a folder or pattern has none, what it should have is missed when the
        workflow is planned.
        """
        found: list[str] = []
        for files in [] if options is None else options.files:
            try:
                found += list_audio(files)
            except UserError:
                found.append(f"{files}/*" if Path(files).is_dir() else files)
        return sorted(set(found))

    @staticmethod
    def download_name(path: str) -> str:
        """Return a rule name for a downloaded file."""
        return re.sub(r"\W+", "_", Path(path).name)

    def lexicon(self, language_folder: str) -> str:
        """Return path of the lexicon: the configured one, or the synthetic corpus' own.

        Raises:
            UserError: none is configured and the corpus brings none.
        """
        configured = self.options.lang.lexicon
        if configured is not None:
            return configured
        if self.is_synthetic:
            return f"{language_folder}/lexicon.txt"
        raise UserError(
            "configuration lang.lexicon is not set",
            remedy="name the pronunciation lexicon (WORD PHONE PHONE ... lines)",
        )

    @property
    def silence_probabilities(self) -> list[str]:
        """Return Kaldi's `silprob.txt`, if one lies beside the configured lexicon."""
        if self.options.lang.lexicon is None:
            return []
        path = Path(self.options.lang.lexicon).with_name(SILENCE_FILE)
        return [str(path)] if path.is_file() else []

    def vocabulary(self, split: str, language_folder: str) -> list[str]:
        """Return the file whose spelling the transcripts of a split take on, if any."""
        if isinstance(self.sources[split], SyntheticSource | Hdf5Source):
            return []
        if self.imported_system is not None:
            return [f"{self.options.gmm.lang}/words.txt"]
        return [self.lexicon(language_folder)]

    @property
    def generates_pronunciations(self) -> bool:
        """Return whether words that the lexicon lacks get pronunciations."""
        return self.options.lang.g2p.num_pronunciations > 0

    def complete_lexicon(self, results: str, language_folder: str) -> str:
        """Return path of the lexicon with generated pronunciations, if there are."""
        if not self.generates_pronunciations:
            return self.lexicon(language_folder)
        return f"{results}/g2p/lexicon.txt"

    def lm_of_g2p(self, kind: str, language_folder: str) -> list[str]:
        """Return the file of the first language model that words are taken from.

        Args:
            kind: `text` or `arpa`.
            language_folder: of the synthetic corpus.
        """
        if "lm" not in self.options.lang.g2p.sources:
            return []
        options = self.lm_options("lm", language_folder)
        if options.type != kind or not isinstance(options, ArpaLm | TextLm):
            return []
        return [str(options.path)]


def _without(options: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a copy of options without some keys."""
    return {key: value for key, value in options.items() if key not in keys}
