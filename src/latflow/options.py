"""Typed options: the base of all models that a recipe is read into.

A package's options are frozen pydantic models in its `options.py`; a docstring under a
field is its description. From them come validation, defaults, the JSON schema,
`config/README.md` and the types that stage functions take.

`Free[...]` marks an option that results do not follow from, but for rounding: how often
a log is written, what memory may be used. `Options.split` separates such options from
the others; a change to them makes no job and no checkpoint old.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from latflow.errors import UserError

__all__ = [
    "SWITCH",
    "Fraction",
    "Free",
    "Name",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Options",
    "PositiveFloat",
    "PositiveInt",
    "ProperFraction",
    "Text",
    "Unique",
    "key_error",
    "read_options",
]

README = "see config/README.md for the keys and their ranges"
_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")  # text in YAML 1.1, as 2e-5


def _without_repetition(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values; refuse one that stands there twice."""
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{value!r} stands there twice")
    return values


PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ProperFraction = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Unique = AfterValidator(_without_repetition)

_FREE = object()
_Value = TypeVar("_Value")
Free = Annotated[_Value, _FREE]


def _read_word(value: Any) -> Any:
    """Return `on` or `off` for a boolean, which YAML takes these words for."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


#: Marks an option that may be the word `on` or `off`: `Annotated[..., SWITCH]`.
SWITCH = BeforeValidator(_read_word)

Base = TypeVar("Base", bound="Options")


class Options(BaseModel):
    """Options that a recipe may set; unknown keys are refused, values are frozen.

    Attributes:
        is_meant_without_type: whether, of a union whose first member this is, values
            without `type` are of it.
    """

    is_meant_without_type: ClassVar[bool] = False

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,  # most jobs read a few of the models that they import
        populate_by_name=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the docstrings under the fields, of base classes too, by field.

        They are read from the source when they are asked for: pydantic would read them
        whenever the class is made, which takes jobs a fifth of their start.
        """
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Options):
                found |= _field_docstrings(base)
        return {name: found[name] for name in cls.model_fields if name in found}

    @classmethod
    def described_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of the class, with the descriptions of all fields."""
        schema = cls.model_json_schema(by_alias=True)
        schemas = {cls.__name__: schema, **schema.get("$defs", {})}
        for model in (cls, *_all_below(Options)):
            keys = {f.alias or name: name for name, f in model.model_fields.items()}
            properties = schemas.get(model.__name__, {}).get("properties", {})
            if properties.keys() != keys.keys():
                continue  # a class of the same name, elsewhere
            descriptions = model.descriptions()
            for key, name in keys.items():
                if name in descriptions:
                    properties[key]["description"] = descriptions[name]
        return schema

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some options, checked."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**given, **changes})

    def part(self, base: type[Base]) -> Base:
        """Return the options that a base class has, as that class."""
        return base.model_construct(
            **{name: getattr(self, name) for name in base.model_fields}
        )

    def values(self) -> dict[str, Any]:
        """Return all options as plain values, as YAML and JSON have them."""
        return self.model_dump(mode="json", by_alias=True)

    def split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return plain values of the options that results follow from, and of the rest.

        The rest are those that are marked `Free`, in this model or below. Sections that
        hold some of both stand in both.
        """
        values = self.values()
        free = _take_free(self, values)
        return values, free


def _take_free(held: Any, values: Any) -> dict[str, Any]:
    """Take free options out of plain values, and return them, nested alike.

    Args:
        held: options, or a mapping that may hold some; of others nothing is taken.
        values: the plain values of `held`.
    """
    below: dict[str, tuple[Any, bool]] = {}
    if isinstance(held, Options):
        for name, field in type(held).model_fields.items():
            below[field.alias or name] = getattr(held, name), _FREE in field.metadata
    elif isinstance(held, Mapping):
        below = {str(key): (value, False) for key, value in held.items()}
    free: dict[str, Any] = {}
    for key, (value, is_free) in below.items():
        if is_free:
            free[key] = values.pop(key)
        elif found := _take_free(value, values[key]):
            free[key] = found
    return free


def _all_below(model: type[Options]) -> Iterator[type[Options]]:
    """Yield all classes that are derived from one."""
    for below in model.__subclasses__():
        yield below
        yield from _all_below(below)


@cache
def _field_docstrings(model: type[Options]) -> dict[str, str]:
    """Return the docstrings under the fields that a class itself declares."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    found = {}
    for field, below in pairwise(cast("ast.ClassDef", body).body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


Model = TypeVar("Model")


@cache
def adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator of a type."""
    return TypeAdapter(annotation)


def read_options(annotation: type[Model], values: Any, key: str = "") -> Model:
    """Make options of plain values, as YAML has them.

    Args:
        annotation: a model, or a union of models.
        values: nested mappings, lists, strings, numbers, booleans and nulls. Numbers
            and strings are not taken for each other.
        key: path of the values in the recipe, for messages.

    Raises:
        UserError: a key is unknown (the nearest known one is proposed), missing, or has
            a value out of range; the message names the key's path.
    """
    try:
        values = _completed(annotation, values)
        text = json.dumps(values, default=_plain)
        return adapter(annotation).validate_json(text, strict=True)
    except ValidationError as error:
        # A misspelt key is reported first: it is why another one is missing. A sequence
        # that is too short is reported last: its items may be at fault.
        order = {"extra_forbidden": 0, "too_short": 2}
        first = min(
            error.errors(), key=lambda e: (order.get(e["type"], 1), len(e["loc"]))
        )
        raise _explain(first, annotation, values, key) from None


def _plain(value: Any) -> int | float | str:
    """Return what JSON has of a value that is not its own: numbers of numpy as such."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else str(value)


def _completed(annotation: Any, values: Any) -> Any:
    """Return nested values without nulls that stand for defaults, and with types.

    A `type` is added where a member of a union is meant without it.
    """
    annotation = _chosen(annotation, values)
    if isinstance(values, list | tuple):
        item = _below(annotation, 0)
        return [_completed(item, value) for value in values]
    if not isinstance(values, Mapping):
        return values
    fields = _fields(annotation)
    found = {
        key: _completed(_below(annotation, key), value)
        for key, value in values.items()
        if value is not None
        or key not in fields
        or fields[key].is_required()
        or _admits_null(fields[key].annotation)
    }
    if getattr(annotation, "is_meant_without_type", False):
        found.setdefault("type", fields["type"].default)
    return found


def _admits_null(annotation: Any) -> bool:
    """Return whether null is a valid value, not only the default."""
    if get_origin(annotation) is Annotated:
        return _admits_null(get_args(annotation)[0])
    return type(None) in get_args(annotation)


def key_error(unknown: str, known: Iterable[str], key: str) -> UserError:
    """Return the error of an unknown key, with the nearest known one.

    Args:
        unknown: the key.
        known: those that may stand there.
        key: path of what holds the key; empty at the top level.
    """
    known = list(known)
    near = difflib.get_close_matches(unknown, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    if "." in unknown and unknown.partition(".")[0] in known:
        hint = f"keys within sections are set by -o {unknown}=..."
    path = f"{key}.{unknown}" if key else unknown
    return UserError(f"unknown configuration key {path}", remedy=f"{hint} {README}")


def check_choice(key: str, chosen: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones.

    Args:
        key: where it is, for the message.
        chosen: the name.
        known: those that may stand there.

    Raises:
        UserError: it is not among them.
    """
    if chosen not in known:
        raise UserError(
            f"{key}: no {chosen!r}", remedy=f"choose from: {', '.join(known) or 'none'}"
        )


def _explain(error: ErrorDetails, annotation: Any, values: Any, key: str) -> UserError:
    """Return pydantic's error as one line that names the key's path."""
    steps = [key] if key else []
    parent: Any = annotation
    was_tag = False
    for step in error["loc"]:
        chosen = _chosen(annotation, values)
        is_tag = isinstance(values, Mapping) and step not in values
        is_tag = is_tag and not was_tag and values.get("type") == step
        was_tag = is_tag
        if step == "[key]" or is_tag:
            continue  # where pydantic looked, not a key of the recipe
        steps.append(str(step))
        parent, annotation = chosen, _below(chosen, step)
        values = _value(values, step)
    where = ".".join(steps) or "the configuration"
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return key_error(steps[-1], _fields(parent), ".".join(steps[:-1]))
    if kind == "missing":
        return UserError(f"configuration {where} is missing", remedy=README)
    if kind == "union_tag_not_found":
        misspelt = difflib.get_close_matches("type", map(str, error["input"]), n=1)
        if misspelt:
            return key_error(misspelt[0], ["type"], where)
        return UserError(f"configuration {where}.type is missing", remedy=README)
    if kind == "union_tag_invalid":
        what = f"{context['tag']!r} is not one of {context['expected_tags']}"
        return UserError(f"configuration {where}.type: {what}", remedy=README)
    what = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if not isinstance(error["input"], Mapping):
        what += f", not {json.dumps(error['input'], default=str)}"
    return UserError(f"configuration {where}: {what}", remedy=_remedy(error))


def _remedy(error: ErrorDetails) -> str:
    """Return what can be done about a value that YAML reads as something else."""
    kind, given = error["type"], error["input"]
    if kind.startswith("float") and _EXPONENT.fullmatch(str(given)):
        return f"YAML reads it as text: write {float(given):.1e}"
    if kind == "string_type" and not isinstance(given, Mapping | list):
        return "quote it ('2024_01', 'no'): YAML reads it as something else"
    return README


def _chosen(annotation: Any, value: Any) -> Any:
    """Return the type of a value: of a union, the member that `type` chooses."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _chosen(get_args(annotation)[0], value)
    if origin not in {Union, types.UnionType}:
        return annotation
    members = [_chosen(member, value) for member in get_args(annotation)]
    for member in members:
        tag = _fields(member).get("type")
        if tag is None or not isinstance(value, Mapping):
            continue
        if value.get("type", tag.default) in get_args(tag.annotation):
            return member
    return next((m for m in members if m is not type(None)), annotation)


def _below(annotation: Any, step: str | int) -> Any:
    """Return the type of a field, or of an item, of a type."""
    fields = _fields(annotation)
    if step in fields:
        return fields[str(step)].annotation
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if arguments else Any


def _value(values: Any, step: str | int) -> Any:
    """Return the value below a value; None without one."""
    try:
        return values[step]
    except (KeyError, IndexError, TypeError):
        return None


def _fields(annotation: Any) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys of a recipe; none of other types."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return {}
    fields = annotation.model_fields.items()
    return {field.alias or name: field for name, field in fields}
