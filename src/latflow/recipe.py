"""One experiment: what its configuration means for the rules of the workflow.

`Recipe` answers the questions that `workflow/rules/common.smk` asks: which splits,
systems and decodings there are, and on which settings each of them depends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latflow.configuration import resolve
from latflow.errors import UserError
from latflow.recipe_checks import check


@dataclass(frozen=True)
class Recipe:
    """One experiment: its resolved configuration and what follows from it.

    Attributes:
        config: the complete configuration, see `resolve`.
    """

    config: Mapping[str, Any]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], schemas: str | Path) -> Recipe:
        """Check a configuration and make the recipe of it."""
        gmm = config.get("gmm") or {}
        if isinstance(gmm, Mapping) and gmm.get("import") and "systems" not in gmm:
            config = {**config, "gmm": {**gmm, "systems": {}}}
        recipe = cls(resolve(schemas, config))
        check(recipe)
        return recipe

    @property
    def experiment(self) -> str:
        """Name of the experiment, and of its folder below `results/`."""
        return self.config["experiment"]

    @property
    def max_skipped_fraction(self) -> float:
        """Share of utterances that a stage may skip."""
        return self.config["ledger"]["max_skipped_fraction"]

    @property
    def sources(self) -> dict[str, Mapping[str, Any]]:
        """Splits that are prepared from outside, with their source descriptions.

        Where the dev set is held out of train, the outside split is called `full`.
        """
        corpus = self.config["corpus"]
        if self.holds_out_dev:
            return {"full": corpus["train"], **corpus["test"]}
        return {"train": corpus["train"], "dev": corpus["dev"], **corpus["test"]}

    @property
    def holds_out_dev(self) -> bool:
        """Whether the dev set is taken out of train."""
        return self.config["corpus"]["dev"]["type"] == "hold_out"

    @property
    def is_synthetic(self) -> bool:
        """Whether the training speech is made by the workflow itself."""
        return self.config["corpus"]["train"]["type"] == "synthetic"

    @property
    def test_sets(self) -> list[str]:
        """Names of the test sets, in the order of the configuration."""
        return list(self.config["corpus"]["test"])

    @property
    def evaluation_sets(self) -> list[str]:
        """Splits that are decoded: dev, which chooses the scales, and the test sets."""
        return ["dev", *self.test_sets]

    @property
    def splits(self) -> list[str]:
        """All splits that are used."""
        return ["train", *self.evaluation_sets]

    @property
    def systems(self) -> dict[str, Mapping[str, Any]]:
        """GMM systems, in the order of the configuration; an imported one is first."""
        imported = self.imported_system
        first = {} if imported is None else {imported: {"type": "import"}}
        return {**first, **self.config["gmm"]["systems"]}

    @property
    def imported_system(self) -> str | None:
        """Name of the system that comes from a directory of Kaldi's, if one does."""
        folder = self.config["gmm"]["import"]
        return None if folder is None else name_of_import(folder)

    @property
    def is_import_adapted(self) -> bool:
        """Whether the imported system adapts to speakers."""
        folder = self.config["gmm"]["import"]
        return folder is not None and Path(folder, "final.alimdl").is_file()

    def imported_files(self, *patterns: str) -> list[str]:
        """Files of the imported system's folder; none if no system is imported."""
        folder = self.config["gmm"]["import"]
        found = [p for name in patterns for p in Path(folder or "").glob(name)]
        return sorted(map(str, found)) if folder else []

    def systems_of(self, *kinds: str) -> list[str]:
        """Names of the systems of some types (`mono`, `deltas`, ...)."""
        return [name for name, s in self.systems.items() if s["type"] in kinds]

    def is_adapted(self, system: str) -> bool:
        """Whether a system works on features that are adapted to each speaker."""
        if system == self.imported_system:
            return self.is_import_adapted
        return self.systems[system]["type"] == "sat"

    @property
    def adapted_systems(self) -> list[str]:
        """Names of the systems that adapt to speakers."""
        return [system for system in self.systems if self.is_adapted(system)]

    @property
    def plain_systems(self) -> list[str]:
        """Names of the systems that treat all speakers alike."""
        return [system for system in self.systems if not self.is_adapted(system)]

    @property
    def rescorings(self) -> dict[str, Mapping[str, Any]]:
        """Second language models: what is done with each, by name."""
        return self.config["decode"]["rescore"]

    @property
    def networks(self) -> dict[str, Mapping[str, Any]]:
        """Systems with a network, in the order of the configuration."""
        return self.config["nnet"]["systems"]

    @property
    def feature_streams(self) -> dict[str, Mapping[str, Any]]:
        """Features that networks read beside those of the GMM systems, by name."""
        return self.config["nnet"]["features"]

    def streams_of(self, *, stored: bool) -> list[str]:
        """Names of those that are stored, or of those computed when they are read."""
        streams = self.feature_streams.items()
        return [name for name, stream in streams if stream["stored"] is stored]

    def is_network(self, system: str) -> bool:
        """Whether a system is a network's."""
        return system in self.networks

    def gmm_behind(self, system: str) -> str:
        """The GMM system whose tree, alignments and graphs a system works with."""
        seed = self.seed_of(system)
        return self.networks[seed]["alignments"] if self.is_network(seed) else system

    def seed_of(self, system: str) -> str:
        """The network that a sequence-trained one goes back to; else the system."""
        parent = self.networks.get(system, {}).get("parent")
        return system if parent is None else self.seed_of(parent)

    def teacher_of(self, system: str) -> str | None:
        """The network that a sequence-trained one learns from, where there is one."""
        criterion = self.networks[system]["criterion"]
        return criterion["teacher"] if criterion["type"] == "teacher" else None

    def stream_of(self, system: str) -> str | None:
        """The features that a network reads: a stream's name, or a GMM system's.

        None stands for the frames that GMM systems start from.
        """
        network = self.networks.get(self.seed_of(system))
        return None if network is None else network["features"]

    def networks_of(self, kind: str) -> list[str]:
        """Names of the networks of a type (`ce`, `sequence`)."""
        return [name for name, n in self.networks.items() if n["type"] == kind]

    @property
    def decoded_systems(self) -> list[str]:
        """All systems that decode: GMMs first, then networks."""
        return [*self.systems, *self.networks]

    @property
    def decodings(self) -> list[str]:
        """What is scored: each system, and `<system>.<lm>` where it is rescored."""
        names = self.decoded_systems
        for lm, rescoring in self.rescorings.items():
            systems = rescoring["systems"] or [self.decoded_systems[-1]]
            names += [f"{system}.{lm}" for system in systems]
        return names

    @staticmethod
    def system_of(decoding: str) -> str:
        """The system that made the lattices of a decoding."""
        return decoding.partition(".")[0]

    def lang_folder(self, system: str) -> str:
        """Name of the language directory that a system is trained and used with."""
        source = self.systems[self.gmm_behind(system)].get("lexicon")
        return "lang" if source is None else f"lang_{source}"

    @property
    def final_system(self) -> str:
        """The last GMM system: the one whose alignments later stages use."""
        return list(self.systems)[-1]

    def system_options(self, system: str) -> dict[str, Any]:
        """Everything that training a system depends on (and nothing else)."""
        shared = {"seed": self.config["seed"], "device": self.config["gmm"]["device"]}
        own = _without(self.systems[system], "lexicon")
        return {**own, **self._acoustics(), **shared}

    def align_options(self) -> dict[str, Any]:
        """Everything that aligning without adaptation depends on."""
        return _without(self.align_adapted_options(), "fmllr")

    def align_adapted_options(self) -> dict[str, Any]:
        """Everything that aligning with speaker transforms depends on."""
        return {**self.config["gmm"]["align"], "graph": dict(self.config["graph"])}

    def decode_options(self) -> dict[str, Any]:
        """Everything that decoding without adaptation depends on."""
        return _without(self.decode_adapted_options(), "adapt")

    def decode_adapted_options(self) -> dict[str, Any]:
        """Everything that decoding with speaker transforms depends on."""
        return _without(self.config["decode"], "tune", "rescore", "beam_sweep")

    def decode_network_options(self, system: str) -> dict[str, Any]:
        """Everything that decoding with a network depends on."""
        own = self.networks[system]["decode"]
        return {**self.decode_options(), **own, "device": self.config["nnet"]["device"]}

    def network_options(self, system: str) -> dict[str, Any]:
        """Everything that training a network depends on beside its inputs."""
        inputs = ("features", "alignments", "network", "parent", "decode")
        own = _without(self.networks[system], *inputs)
        shared = {key: self.config["nnet"][key] for key in ("device", "backend")}
        return {**own, **shared, "seed": self.config["seed"]}

    def sequence_options(self, system: str) -> dict[str, Any]:
        """Everything that sequence training depends on beside its inputs."""
        compared = ("alignment", "ignore_words", "fold_case")
        score = {key: self.config["score"][key] for key in compared}
        return {**self.network_options(system), "score": score}

    def denominator_options(self) -> dict[str, Any]:
        """Everything that denominator graphs depend on beside their inputs."""
        return dict(self.config["nnet"]["denominator"])

    def aligns_on_the_fly(self, system: str) -> bool:
        """Whether a sequence-trained network aligns its training data anew."""
        return self.networks[system]["sequence"]["alignments"]["source"] != "static"

    def stream_extraction_options(self, stream: str) -> dict[str, Any]:
        """Everything that the stored features of a stream depend on."""
        return _without(self.feature_streams[stream], "cmvn", "stored")

    def live_stream_options(self, stream: str) -> dict[str, Any]:
        """Everything that features depend on which are computed when they are read."""
        return _without(self.feature_streams[stream], "storage", "stored")

    def stream_normalisation_options(self, stream: str) -> dict[str, Any]:
        """Everything that the normalised frames of a stream depend on."""
        return {"cmvn": self.feature_streams[stream]["cmvn"]}

    def rescoring_options(self, lm: str) -> dict[str, Any]:
        """Everything that rescoring depends on beside lattices and models."""
        scale = self.config["decode"]["acoustic_scale"]
        return {"beam": self.rescorings[lm]["beam"], "acoustic_scale": scale}

    @property
    def swept_systems(self) -> list[str]:
        """Systems that decode dev with several beams: the last, or none."""
        last = self.decoded_systems[-1:]
        return last if self.config["decode"]["beam_sweep"] else []

    def beam_sweep_options(self, system: str) -> dict[str, Any]:
        """Everything that decoding with several beams depends on."""
        is_network = self.is_network(system)
        own = self.decode_network_options(system) if is_network else {}
        beams = {"beams": self.config["decode"]["beam_sweep"]}
        return {**self.tune_options(), **self.decode_options(), **own, **beams}

    def tune_options(self) -> dict[str, Any]:
        """Everything that the choice of scales depends on."""
        score = _without(
            self.config["score"], "bootstrap", "max_confusions", "decision"
        )
        return {**self.config["decode"]["tune"], **score}

    def score_options(self) -> dict[str, Any]:
        """Everything that scoring depends on."""
        return {**self.config["score"], "seed": self.config["seed"]}

    def extraction_options(self) -> dict[str, Any]:
        """Everything that the stored features depend on."""
        return _without(self.config["features"], "cmvn", "transform")

    def normalisation_options(self) -> dict[str, Any]:
        """Everything that the normalised frames depend on."""
        return {"cmvn": self.config["features"]["cmvn"]}

    def lang_options(self) -> dict[str, Any]:
        """Everything that the lang directory depends on beside the lexicon."""
        return _without(self.config["lang"], "lexicon")

    @property
    def language_models(self) -> list[str]:
        """Names of all language models; `lm` is the one of the decoding graphs."""
        return ["lm", *self.rescorings]

    def lm_options(self, lm: str, language_folder: str) -> dict[str, Any]:
        """Everything that a language model depends on beside its texts.

        Raises:
            UserError: the text is not named and the corpus brings none.
        """
        is_first = lm == "lm"
        options = dict(self.config["lm"] if is_first else self.rescorings[lm]["lm"])
        if options["type"] == "text" and options["path"] is None:
            if not self.is_synthetic:
                key = "lm" if is_first else f"decode.rescore.{lm}.lm"
                raise UserError(
                    f"configuration {key}.path is not set",
                    remedy="name a text with one sentence a line",
                )
            options["path"] = f"{language_folder}/lm_text.txt"
        return options

    def lm_inputs(self, lm: str, results: str, language_folder: str) -> list[str]:
        """Files that a language model is made from."""
        options = self.lm_options(lm, language_folder)
        if options["type"] == "transcripts":
            return [f"{results}/corpus/train/cuts.jsonl.gz"]
        return [options["path"]] if "path" in options else []

    def source_files(self, split: str) -> list[str]:
        """Files outside the experiment whose change makes a split new."""
        source = self.sources[split]
        if source["type"] == "kaldi":
            folder = Path(source["path"])
            tables = ("wav.scp", "text", "segments", "utt2*", "spk2*")
            return sorted(str(p) for name in tables for p in folder.glob(name))
        if source["type"] == "manifests":
            return [source["recordings"], source["supervisions"]]
        return []

    @staticmethod
    def download_name(path: str) -> str:
        """A rule name for a downloaded file."""
        return re.sub(r"\W+", "_", Path(path).name)

    def _acoustics(self) -> dict[str, Any]:
        """What training and alignment share: feature transform and graph scales."""
        return {
            "transform": self.config["features"]["transform"],
            "graph": dict(self.config["graph"]),
        }

    def lexicon(self, language_folder: str) -> str:
        """Path of the lexicon: the configured one, or the synthetic corpus' own.

        Raises:
            UserError: none is configured and the corpus brings none.
        """
        configured = self.config["lang"]["lexicon"]
        if configured is not None:
            return configured
        if self.is_synthetic:
            return f"{language_folder}/lexicon.txt"
        raise UserError(
            "configuration lang.lexicon is not set",
            remedy="name the pronunciation lexicon (WORD PHONE PHONE ... lines)",
        )


def name_of_import(folder: str | Path) -> str:
    """A system's name from its folder's: lower case, other characters become `_`."""
    name = Path(os.path.abspath(folder)).name.lower()
    return re.sub(r"[^a-z0-9_]", "_", name).lstrip("_") or "imported"


def _without(options: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of options without some keys."""
    return {key: value for key, value in options.items() if key not in keys}
