"""The configuration of an experiment: from YAML to checked values and targets.

The closed JSON schemas in `workflow/schemas/<section>.yaml` hold every key's meaning,
unit, range and default, and nothing else does. `resolve` refuses unknown keys by their
path, proposes the nearest known one, and fills in defaults, so that stage functions get
complete `options`. `Recipe` answers the questions that the workflow's rules ask.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from latflow.errors import UserError

Schema = Mapping[str, Any]
SECTIONS = (
    "downloads",
    "corpus",
    "lang",
    "lm",
    "features",
    "gmm",
    "graph",
    "decode",
    "score",
    "report",
    "ledger",
)
README = "see config/README.md for the keys and their ranges"


def load_schema(folder: str | Path, section: str) -> dict[str, Any]:
    """Read the schema of one section of the configuration."""
    path = Path(folder) / f"{section}.yaml"
    with path.open(encoding="utf-8") as stream:
        return yaml.safe_load(stream)


def resolve(folder: str | Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Check a whole configuration and fill in every default.

    Args:
        folder: the folder of the schemas.
        config: what the user's YAML files and `--config` settings say.

    Returns:
        The complete configuration; `{corpora}` in strings is replaced by its value.

    Raises:
        UserError: a key is unknown, missing, or has a value out of range; the message
            names the key's path.
    """
    common = {k: v for k, v in config.items() if k not in SECTIONS}
    full = dict(resolve_section(folder, "experiment", common, prefix=""))
    corpora = str(full["corpora"])
    for section in SECTIONS:
        values = _expand(config.get(section, {}), corpora)
        full[section] = resolve_section(folder, section, values)
    return full


def resolve_section(
    folder: str | Path, section: str, values: object, *, prefix: str | None = None
) -> Any:
    """Check the values of one section against its schema and fill in defaults.

    Args:
        folder: the folder of the schemas.
        section: name of the section, which is its schema's file name too.
        values: the section's part of the configuration.
        prefix: what error messages put before a key's path; the section by default.

    Raises:
        UserError: a key is unknown, missing, or has a value out of range; the message
            names the key's path.
    """
    schema = load_schema(folder, section)
    prefix = section if prefix is None else prefix
    filled = _fill(schema, copy.deepcopy(values))
    specialised = _specialise(schema, filled)
    validator = jsonschema.Draft202012Validator(specialised)
    errors = sorted(validator.iter_errors(filled), key=lambda e: len(e.absolute_path))
    if errors:
        raise _explain(errors[0], prefix)
    return filled


def _explain(error: jsonschema.ValidationError, prefix: str) -> UserError:
    """Say which key is wrong, and what was probably meant."""
    steps = [prefix] if prefix else []
    steps += [str(step) for step in error.absolute_path]
    known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        unknown = sorted(set(map(str, error.instance)) - set(known))[0]
        known = [*known, *(SECTIONS if not steps else ())]
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        key = ".".join([*steps, unknown])
        return UserError(f"unknown configuration key {key}", remedy=f"{hint} {README}")
    where = ".".join(steps) or "the configuration"
    return UserError(f"configuration {where}: {error.message}", remedy=README)


def _expand(value: Any, corpora: str) -> Any:
    """Replace `{corpora}` in every string of a nested value."""
    if isinstance(value, str):
        return value.replace("{corpora}", corpora)
    if isinstance(value, Mapping):
        return {_expand(k, corpora): _expand(v, corpora) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(item, corpora) for item in value]
    return value


def _fill(schema: Schema, value: Any) -> Any:
    """Return the value with the schema's defaults filled in, recursively."""
    if value is None and "default" in schema:
        value = copy.deepcopy(schema["default"])
    schema = _branch(schema, value)
    if isinstance(value, dict):
        return _fill_object(schema, value)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_fill(schema["items"], item) for item in value]
    return value


def _fill_object(schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    """Fill in the properties of an object."""
    properties = schema.get("properties", {})
    for name, child in properties.items():
        if name in value:
            value[name] = _fill(child, value[name])
        elif "default" in child:
            value[name] = _fill(child, None)
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        for name in value.keys() - properties.keys():
            value[name] = _fill(others, value[name])
    return value


def _branch(schema: Schema, value: object) -> Schema:
    """Pick the `oneOf` branch whose constant `type` key is the value's."""
    for branch in schema.get("oneOf", ()):
        wanted = branch.get("properties", {}).get("type", {}).get("const")
        if (
            isinstance(value, dict)
            and wanted is not None
            and wanted == value.get("type")
        ):
            return branch
    return schema


def _specialise(schema: Schema, value: object) -> dict[str, Any]:
    """Replace each `oneOf` by the branch that the value chose, for precise messages."""
    chosen = dict(_branch(schema, value))
    if "oneOf" in chosen and isinstance(value, dict):
        kinds = [
            branch["properties"]["type"]["const"]
            for branch in chosen["oneOf"]
            if "const" in branch.get("properties", {}).get("type", {})
        ]
        if kinds and len(kinds) == len([b for b in chosen["oneOf"] if _is_object(b)]):
            return {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": kinds}},
            }
    if isinstance(value, dict):
        properties = dict(chosen.get("properties", {}))
        for name, child in properties.items():
            if name in value:
                properties[name] = _specialise(child, value[name])
        others = chosen.get("additionalProperties")
        if isinstance(others, Mapping):
            for name in value.keys() - properties.keys():
                if isinstance(value[name], dict):
                    properties[name] = _specialise(others, value[name])
        if properties:
            chosen["properties"] = properties
    return chosen


def _is_object(schema: Schema) -> bool:
    """Whether a branch describes an object."""
    return schema.get("type") == "object"


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
        recipe = cls(resolve(schemas, config))
        recipe._check_systems()
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
        """GMM systems, in the order of the configuration."""
        return self.config["gmm"]["systems"]

    def systems_of(self, kind: str) -> list[str]:
        """Names of the systems of one type (`mono`, `deltas`)."""
        return [name for name, s in self.systems.items() if s["type"] == kind]

    @property
    def final_system(self) -> str:
        """The last system: the one whose alignments later stages use."""
        return list(self.systems)[-1]

    def system_options(self, system: str) -> dict[str, Any]:
        """Everything that training a system depends on (and nothing else)."""
        shared = {"seed": self.config["seed"], "device": self.config["gmm"]["device"]}
        return {**self.systems[system], **self._acoustics(), **shared}

    def align_options(self) -> dict[str, Any]:
        """Everything that aligning with a trained system depends on."""
        return {**self.config["gmm"]["align"], **self._acoustics()}

    def decode_options(self) -> dict[str, Any]:
        """Everything that decoding depends on."""
        options = _without(self.config["decode"], "tune")
        return {**options, "transform": self.config["features"]["transform"]}

    def tune_options(self) -> dict[str, Any]:
        """Everything that the choice of scales depends on."""
        score = _without(self.config["score"], "bootstrap", "max_confusions")
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

    def lm_options(self, language_folder: str) -> dict[str, Any]:
        """Everything that the language model depends on beside its texts.

        Raises:
            UserError: the text is not named and the corpus brings none.
        """
        options = dict(self.config["lm"])
        if options["type"] == "text" and options["path"] is None:
            if not self.is_synthetic:
                raise UserError(
                    "configuration lm.path is not set",
                    remedy="name a text with one sentence a line",
                )
            options["path"] = f"{language_folder}/lm_text.txt"
        return options

    def lm_inputs(self, results: str, language_folder: str) -> list[str]:
        """Files that the language model is made from."""
        options = self.lm_options(language_folder)
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

    def _check_systems(self) -> None:
        """Refuse a system that aligns with a later, an unknown, or its own system."""
        earlier: list[str] = []
        for name, system in self.systems.items():
            source = system.get("alignments")
            if source is not None and source not in earlier:
                raise UserError(
                    f"configuration gmm.systems.{name}.alignments: no system "
                    f"{source!r} before it",
                    remedy=f"choose one of: {', '.join(earlier) or 'none yet'}",
                )
            earlier.append(name)


def _without(options: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of options without some keys."""
    return {key: value for key, value in options.items() if key not in keys}


def document(folder: str | Path) -> str:
    """Describe all keys as Markdown: the text of `config/README.md`."""
    lines = [
        "# Configuration",
        "",
        "Generated from `workflow/schemas/` by `latflow config-readme`; do not edit.",
        "A key that is not listed here is refused. `{corpora}` in a path stands for",
        "the value of the key `corpora`.",
    ]
    for section in ("experiment", *SECTIONS):
        schema = load_schema(folder, section)
        title = "top level" if section == "experiment" else section
        lines += ["", f"## {title}", "", schema.get("description", "").strip(), ""]
        lines += ["| key | meaning | type and range | default |", "|---|---|---|---|"]
        lines += _rows(schema, "" if section == "experiment" else f"{section}.", {})
    return "\n".join(lines) + "\n"


def _rows(schema: Schema, prefix: str, told: dict[str, str]) -> list[str]:
    """Table rows of all keys below a schema; a variant that was told is referred to."""
    rows: list[str] = []
    for branch in schema.get("oneOf", ()):
        kind = branch.get("properties", {}).get("type", {}).get("const")
        label = f"{prefix.rstrip('.')} (type: {kind})" if kind else prefix.rstrip(".")
        text = _one_line(branch.get("description", ""))
        if text in told:
            rows.append(f"| **`{label}`** | as `{told[text]}` | | |")
            continue
        told[text] = label
        rows.append(f"| **`{label}`** | {text} | | |")
        rows += _rows(branch, prefix, told)
    for name, child in schema.get("properties", {}).items():
        if "const" in child:
            continue
        nested = "properties" in child or "oneOf" in child
        open_object = isinstance(child.get("additionalProperties"), Mapping)
        default = child.get("default")
        shown = "" if "default" not in child or nested else f"`{_yaml(default)}`"
        required = " (required)" if name in schema.get("required", ()) else ""
        rows.append(
            f"| `{prefix}{name}` | {_one_line(child.get('description', ''))} "
            f"| {_range(child)}{required} | {shown} |"
        )
        if nested or open_object:
            rows += _rows(child, f"{prefix}{name}.", told)
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        rows += _rows(others, f"{prefix}<name>.", told)
    return rows


def _one_line(text: str) -> str:
    """Fold a description into one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _yaml(value: object) -> str:
    """A value as it would stand in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.replace("...", "").strip().replace("|", "\\|")


def _range(schema: Schema) -> str:
    """Type and bounds of a key in words."""
    if "enum" in schema:
        return ", ".join(f"`{_yaml(v)}`" for v in schema["enum"])
    kinds = schema.get("type", "")
    words = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    if "pattern" in schema:
        bounds.append(f"`{schema['pattern']}`".replace("|", "\\|"))
    return " ".join([words, *bounds]).strip()
