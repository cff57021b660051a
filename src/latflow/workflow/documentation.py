"""What the keys of a recipe mean: a page of all of them, and one by itself."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from latflow.errors import UserError
from latflow.workflow.experiment import json_schema

_WIDTH = 88
_ANY = "<name>"  # instead of a name that the recipe gives


def document() -> str:
    """Return a description of all keys as Markdown, the text of `config/README.md`."""
    schema = json_schema()
    definitions = schema["$defs"]
    sections = {k for k, v in schema["properties"].items() if _is_section(v)}
    lines = [
        "# Configuration",
        "",
        "Generated from the typed options by `latflow config-readme`; do not edit.",
        "A key that is not listed here is refused. `{corpora}` in a path stands for",
        "the value of the key `corpora`.",
        "",
        "## top level",
        "",
        *_TABLE,
    ]
    lines += _rows(schema, "", definitions, {}, leave_out=sections)
    for name in (k for k in schema["properties"] if k in sections):
        child = _resolved(schema["properties"][name], definitions)
        lines += ["", f"## {name}", "", _one_line(child["description"]), "", *_TABLE]
        lines += _rows(child, f"{name}.", definitions, {})
    return "\n".join(lines) + "\n"


_TABLE = ["| key | meaning | type and range | default |", "|---|---|---|---|"]


def _is_section(schema: Mapping[str, Any]) -> bool:
    """Return whether a property of the recipe is a section."""
    return bool({"$ref", "oneOf", "patternProperties"} & schema.keys())


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return a schema with a reference followed; what stands beside it stays."""
    if schema.get("$ref") is None:
        return schema
    return {**definitions[schema["$ref"].rpartition("/")[2]], **schema, "$ref": None}


def _rows(
    schema: Mapping[str, Any],
    prefix: str,
    definitions: Mapping[str, Any],
    described: dict[str, str],
    *,
    leave_out: Container[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return table rows of all keys below a schema; variants are described once.

    Args:
        defaults: of the keys, where they are others than the schema's own.
    """
    rows: list[str] = []
    for branch in schema.get("oneOf", ()):
        model = _resolved(branch, definitions)
        tag = model["properties"]["type"]
        kind = " or ".join(tag.get("enum") or [tag["const"]])
        label = f"{prefix.rstrip('.')} (type: {kind})"
        if model["title"] in described:
            rows.append(f"| **`{label}`** | as `{described[model['title']]}` | | |")
            continue
        described[model["title"]] = label
        rows.append(f"| **`{label}`** | {_one_line(model['description'])} | | |")
        rows += _rows(model, prefix, definitions, described)
    for name, given in schema.get("properties", {}).items():
        child = _resolved(given, definitions)
        if "const" in child or name in leave_out:
            continue
        description = child.get("description", "")
        child, same = _without_null(child, definitions, described, f"{prefix}{name}")
        if defaults is not None and name in defaults and "default" in child:
            child = {**child, "default": defaults[name]}
        nested = "properties" in child or "oneOf" in child
        is_open = "patternProperties" in child
        is_shown = "default" in child and not nested and not is_open
        shown = _yaml(child["default"]) if is_shown else ""
        required = " (required)" if name in schema.get("required", ()) else ""
        kind = _range(_resolved(given, definitions))
        rows.append(
            f"| `{prefix}{name}` | {_one_line(description + same)} "
            f"| {kind}{required} | {shown and f'`{shown}`'} |"
        )
        if nested or is_open:
            owned = child.get("default") if "properties" in child else None
            rows += _rows(
                child, f"{prefix}{name}.", definitions, described, defaults=owned
            )
    for others in schema.get("patternProperties", {}).values():
        below = _resolved(others, definitions)
        rows += _rows(below, f"{prefix}<name>.", definitions, described)
    return rows


def _without_null(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    described: dict[str, str],
    key: str,
) -> tuple[Any, str]:
    """Return the schema of an object that may be null, and where it is described.

    Args:
        schema: of a key.
        definitions: of the models.
        described: keys by the titles of models that have been described.
        key: the key.
    """
    members = [m for m in schema.get("anyOf", ()) if m.get("type") != "null"]
    if len(members) != 1 or len(schema["anyOf"]) != 2:
        return schema, ""
    model = _resolved(members[0], definitions)
    if not {"properties", "oneOf"} & model.keys():
        return schema, ""
    title = model.get("title") or str(model.get("oneOf"))
    if title in described:
        return schema, f" Its keys are those of `{described[title]}`."
    described[title] = key
    return {**model, "default": None}, ""


def _one_line(text: str) -> str:
    """Return a description folded into one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _yaml(value: object) -> str:
    """Return a value as it would stand in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.replace("...", "").strip().replace("|", "\\|")


def _range(schema: Mapping[str, Any]) -> str:
    """Return type and bounds of a key in words."""
    if "enum" in schema:
        return ", ".join(f"`{_yaml(v)}`" for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_range(member) for member in schema["anyOf"])
    bounds = [
        f"{sign} {_yaml(schema[key])}"
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
    return " ".join([schema.get("type", "object"), *bounds])


@dataclass(frozen=True)
class _Key:
    """A key of a recipe, in one of the kinds of its section.

    Attributes:
        path: with `<name>` for names of the recipe's own.
        schema: of its value.
        kind: `type` of the section that has it; "" where there is but one.
        is_required: whether a recipe must have it.
    """

    path: str
    schema: Mapping[str, Any]
    kind: str = ""
    is_required: bool = False

    @property
    def name(self) -> str:
        """The last step of the path."""
        return self.path.rpartition(".")[2]


def explain(key: str) -> str:
    """Return what a key of a recipe means: type, default, values, and keys below it.

    Args:
        key: such as `corpus.train.path`; names of systems or sets may be any, or
            `<name>`; a `type` narrows what follows (`corpus.train.table`). Empty for
            the sections.

    Raises:
        UserError: there is no such key; names those like it.
    """
    schema = json_schema()
    definitions = schema["$defs"]
    found = [_Key("", schema)]
    for step in filter(None, key.split(".")):
        below = [b for one in found for b in _below(one, definitions)]
        kinds = [kind for one in found for kind in _kinds_of(one, definitions)]
        found = (
            [one for one in below if one.name == step]
            or [kind for kind in kinds if step in kind.kind.split(" or ")]
            or [one for one in below if one.name == _ANY]
        )
        if not found:
            raise _unknown(key, step, [*below, *kinds])
    described: dict[str, list[str]] = {}  # kinds by their description
    for one in found:
        described.setdefault(_described(one, definitions), []).append(one.kind)
    parts = []
    for text, kinds in described.items():
        label = f" (type: {', '.join(filter(None, kinds))})" if any(kinds) else ""
        title = key or "a recipe"
        parts.append(f"{title}{label}\n{text}")
    return "\n".join(parts)


def _below(key: _Key, definitions: Mapping[str, Any]) -> Iterator[_Key]:
    """Yield the keys below one, of each kind of its section."""
    prefix = f"{key.path}." if key.path else ""
    for model, kind in _kinds(key.schema, definitions):
        required = model.get("required", ())
        for name, schema in model.get("properties", {}).items():
            yield _Key(f"{prefix}{name}", schema, kind or key.kind, name in required)
        for schema in model.get("patternProperties", {}).values():
            yield _Key(f"{prefix}{_ANY}", schema, key.kind)


def _kinds_of(key: _Key, definitions: Mapping[str, Any]) -> Iterator[_Key]:
    """Yield a section of each `type` that it may have."""
    for model, kind in _kinds(key.schema, definitions):
        if kind:
            yield _Key(key.path, model, kind)


def _kinds(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the objects that a value may be, and their `type` where they have one."""
    resolved = _resolved(schema, definitions)
    members = [*resolved.get("oneOf", ()), *resolved.get("anyOf", ())]
    if not members:
        tag = resolved.get("properties", {}).get("type", {})
        kind = tag.get("const") or " or ".join(map(str, tag.get("enum", ())))
        yield resolved, str(kind) if resolved.get("properties") else ""
    for member in members:
        yield from _kinds(member, definitions)


def _described(key: _Key, definitions: Mapping[str, Any]) -> str:
    """Return what a key means, and the keys below it, one a line."""
    schema = _resolved(key.schema, definitions)
    lines = [_indented(schema.get("description", ""))] if key.path else []
    kinds = list(_kinds(key.schema, definitions))
    is_object = any({"properties", "patternProperties"} & m.keys() for m, _ in kinds)
    if not is_object:
        lines.append(f"  type: {_range(schema)}".replace("`", "").replace("\\|", "|"))
    if key.is_required:
        lines.append("  required")
    elif "default" in schema and not is_object:
        lines.append(f"  default: {_yaml(schema['default'])}".replace("\\|", "|"))
    for model, kind in kinds if len(kinds) > 1 else ():
        if kind:
            lines.append(f"  type: {kind} - {_first(model.get('description', ''))}")
    if sum(bool(kind) for _, kind in kinds) > 1:
        lines.append(f"  keys of a type: latflow explain {key.path}.{kinds[0][1]}")
        return "\n".join(filter(None, lines)) + "\n"
    lines += [
        f"    {one.name}{_default(one, definitions)}: {_summary(one, definitions)}"
        for one in _below(key, definitions)
        if "const" not in one.schema
    ]
    return "\n".join(filter(None, lines)) + "\n"


def _default(key: _Key, definitions: Mapping[str, Any]) -> str:
    """Return the default of a value in brackets; "" for a section, or without one."""
    schema = _resolved(key.schema, definitions)
    if isinstance(schema.get("default", {}), dict):
        return ""
    return f" ({_yaml(schema['default'])})"


def _summary(key: _Key, definitions: Mapping[str, Any]) -> str:
    """Return what a key is in a line: its description, or the types it may have."""
    text = _resolved(key.schema, definitions).get("description", "")
    kinds = (one.kind for one in _kinds_of(key, definitions))
    return _first(text) if text else f"type: {', '.join(kinds)}"


def _indented(text: str) -> str:
    """Return a description folded into lines."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, initial_indent="  ", subsequent_indent="  "
    )


def _first(text: str) -> str:
    """Return the first sentence of a description."""
    return textwrap.shorten(" ".join(text.split()).partition(". ")[0], _WIDTH)


def _unknown(key: str, step: str, below: list[_Key]) -> UserError:
    """Return the error for a key that there is not."""
    names = sorted({one.name for one in below} | {one.kind for one in below} - {""})
    near = difflib.get_close_matches(step, names, 3, 0.6) or names
    return UserError(
        f"there is no key {key}: {step} is unknown",
        remedy=f"choose from: {', '.join(near)}" if names else "leave it out",
    )
