"""The configuration of an experiment: from YAML to checked, complete values.

The closed JSON schemas in `workflow/schemas/<section>.yaml` hold every key's meaning,
unit, range and default, and nothing else does. `resolve` refuses unknown keys by their
path, proposes the nearest known one, and fills in defaults, so that stage functions get
complete `options`.

Public: `resolve`, `resolve_section`, `load_schema`, `document`, `SECTIONS`.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
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
    "nnet",
    "decode",
    "score",
    "report",
    "ledger",
)
README = "see config/README.md for the keys and their ranges"


def load_schema(folder: str | Path, section: str) -> dict[str, Any]:
    """Read the schema of one section.

    `$ref: <other>.yaml` stands for the schema in that file; what is beside it is added:
    properties to the others', the rest in place of the others'.
    """
    path = Path(folder) / f"{section}.yaml"
    with path.open(encoding="utf-8") as stream:
        return _inlined(yaml.safe_load(stream), folder)


def _inlined(schema: Any, folder: str | Path) -> Any:
    """Put the sections that a schema refers to in their places."""
    if isinstance(schema, list):
        return [_inlined(item, folder) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {k: _inlined(value, folder) for k, value in schema.items() if k != "$ref"}
    if "$ref" not in schema:
        return own
    other = load_schema(folder, Path(schema["$ref"]).stem)
    if "properties" in own:
        own["properties"] = {**other.get("properties", {}), **own["properties"]}
    return {**other, **own}


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
