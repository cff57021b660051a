"""Closed tables of options: what a layer class accepts, checked with clear words.

Each layer class declares `OPTIONS`, a table of name -> `Option`. A wrong key or value
in a description is refused with the layer's and the key's name, and the nearest key.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from latflow.errors import UserError


class _Required:
    """The default of an option that has none."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "ints": "a list of whole numbers",
    "layers": "a mapping of layers",
}


@dataclass(frozen=True)
class Option:
    """One option of a layer class.

    Attributes:
        kind: a key of `KINDS`.
        description: what it means, with its unit.
        default: its value where the description has none; `REQUIRED` for no default.
        minimum: least value (of each number of a list), included.
        maximum: greatest value, included.
        choices: the allowed values; empty for all.
        nullable: whether null is a value too.
    """

    kind: str
    description: str
    default: Any = REQUIRED
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False


OptionTable = Mapping[str, Option]


@dataclass(frozen=True)
class Place:
    """Where in a description we are, for messages.

    Attributes:
        file: the YAML file, if it came from one.
        layer: dotted name of the layer (`block.conv` inside the subnetwork `block`).
    """

    file: Path | None = None
    layer: str = ""

    def error(self, what: str, remedy: str | None = None) -> UserError:
        """A mistake of the user at this place."""
        where = f"layer {self.layer}: " if self.layer else "network: "
        return UserError(where + what, file=self.file, remedy=remedy)

    def inside(self, name: str) -> Place:
        """The place of the layer `name` within this one."""
        return Place(self.file, f"{self.layer}.{name}" if self.layer else name)


def fill_options(
    table: OptionTable, given: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """Check the options of a layer and fill in the defaults.

    Args:
        table: the options of the layer's class.
        given: the options that the description gives.
        place: the layer, for messages.

    Returns:
        All options of the table; numbers of kind `float` are float, lists are tuples.

    Raises:
        UserError: an unknown key, a missing one, or a value out of range.
    """
    check_keys(given, table, place)
    filled = {}
    for name, option in table.items():
        value = given.get(name, option.default)
        if value is REQUIRED:
            raise place.error(f"key {name} is missing", f"it is {option.description}")
        filled[name] = check_value(name, option, value, place)
    return filled


def check_keys(
    given: Mapping[Any, Any], known: Mapping[str, Any], place: Place
) -> None:
    """Refuse a key that is not known, and propose the nearest that is.

    Raises:
        UserError: an unknown key.
    """
    for key in given:
        if key not in known:
            hint = nearest(str(key), known)
            raise place.error(f"unknown key {key}", hint)


def nearest(word: str, known: Mapping[str, Any]) -> str:
    """Propose the known word that resembles a wrong one, or list what is known."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"


def check_value(name: str, option: Option, value: Any, place: Place) -> Any:
    """Check one value against its option.

    Returns:
        The value in the option's type.

    Raises:
        UserError: wrong type, out of range, or not one of the choices.
    """
    if value is None and option.nullable:
        return None
    if value is None or not _is_kind(option.kind, value):
        what = f"{name} must be {KINDS[option.kind]}, not {value!r}"
        raise place.error(what, _written_out(option, value))
    if option.choices and value not in option.choices:
        hint = nearest(str(value), dict.fromkeys(option.choices))
        raise place.error(f"{name} cannot be {value!r}", hint)
    for number in value if option.kind == "ints" else (value,):
        if option.minimum is not None and number < option.minimum:
            raise place.error(f"{name} is {number}, below {option.minimum:g}")
        if option.maximum is not None and number > option.maximum:
            raise place.error(f"{name} is {number}, above {option.maximum:g}")
    if option.kind == "float":
        return float(value)
    return tuple(value) if option.kind == "ints" else value


def _written_out(option: Option, value: object) -> str | None:
    """Propose 0.001 where 1e-3 was given, which YAML takes for a string."""
    if option.kind != "float" or not re.fullmatch(r"\d+e-?\d+", str(value)):
        return None
    return f"write {Decimal(str(value)):f}"


def _is_kind(kind: str, value: object) -> bool:
    """Whether a value read from YAML is of a kind (true is no number)."""
    if isinstance(value, bool):
        return kind == "bool"
    if isinstance(value, int):
        return kind in {"int", "float"}
    if isinstance(value, float):
        return kind == "float" and math.isfinite(value)
    if isinstance(value, str):
        return kind == "str"
    if isinstance(value, list | tuple) and value:
        return kind == "ints" and all(_is_kind("int", item) for item in value)
    return kind == "layers" and isinstance(value, Mapping) and len(value) > 0
