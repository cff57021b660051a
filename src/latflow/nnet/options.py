"""Options of layers: typed models, checked with the layer's and the key's name.

Each layer class has a frozen model of its options. A wrong key or value in a
description is refused with the place in it, and the nearest key is proposed; the list
of layer classes in docs/networks.md is made of the same models.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, ValidationError

from latflow.errors import UserError
from latflow.options import (
    Fraction,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
)

#: Numbers of a network's passes; `auto`: bf16 where the device multiplies such numbers,
#: else float32.
Precision: TypeAlias = Literal["float32", "bf16", "auto"]

Chosen = TypeVar("Chosen", bound=Options)
KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "array": "a list of whole numbers",
    "names": "a list of names",
    "object": "a mapping",
}
_MOST = 1 << 20  # of any number: more would need memory without bound
Size = Annotated[int, Field(ge=1, description="numbers a frame that the layer gives")]
Dropout = Annotated[
    float,
    Field(ge=0, le=0.99, description="share of numbers set to zero in training"),
]
# Far more than anybody trains: a package of a stranger may not build for ever.
MOST_LAYERS = 1000
NumLayers = Annotated[
    int, Field(ge=1, le=MOST_LAYERS, description="layers in the stack")
]
Function = Literal[
    "none",
    "relu",
    "leaky_relu",
    "tanh",
    "sigmoid",
    "gelu",
    "silu",
    "swoosh_l",
    "swoosh_r",
    "log_softmax",
]
Activation = Annotated[Function, Field(description="function of the result")]


class PoolOptions(Options):
    """Options of `Pool`."""

    mode: Literal["max", "mean"] = "max"
    """what is taken"""
    kernel: PositiveInt = 2
    """frames taken together"""
    stride: PositiveInt = 2
    """input frames an output frame"""


class SubsampleOptions(Options):
    """Options of `Subsample`."""

    factor: PositiveInt = 3
    """input frames an output frame"""


class PretrainedOptions(Options):
    """Options of `Pretrained`."""

    folder: str | None = None
    """folder with `config.json` and `model.safetensors`, or with a file of
    torchaudio's, absolute or from the folder of the run; trained models have `config`
    in its place"""
    config: dict[str, Any] | None = None
    """contents of `config.json`, which training writes; parameters come with the model
    """
    licence: str = ""
    """text of the encoder's licence, which training takes from `folder`"""
    sample_rate: Annotated[int, Field(ge=1000, le=192000)]
    """sample rate of the features, Hz; the encoder's"""
    shift: PositiveInt = 160
    """samples from one window of the features to the next"""
    stride: PositiveInt = 2
    """input frames an output frame: of 10 ms, 2 for 50 frames a second, 3 for 33.3, 4
    for 25; what lies between two of the encoder's frames is interpolated"""
    block: Annotated[int, Field(ge=-1)] = -1
    """block whose result is taken, 0 for what the first one reads; -1: the last one's
    """
    weighted: bool = False
    """learn weights of all blocks' results and take their sum; `block` is -1"""
    freeze: tuple[str, ...] = ("feature_extractor.*",)
    """parameters of the encoder that stay, by name; `*` for any part of one"""
    top_blocks: Annotated[int, Field(ge=-1)] = -1
    """blocks that learn, the last ones; all before them stays. -1: all blocks"""
    freeze_steps: NonNegativeInt = 0
    """steps of the training in which the whole encoder stays"""
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """learning rate of a block over that of the next; what is before the blocks has
    that of the first one, times this"""
    checkpointing: bool = False
    """keep no results inside blocks in training, but compute them again: less memory
    for some 40 % more time"""
    lora_rank: NonNegativeInt = 0
    """rank of the changes to linear maps that are learnt instead of the encoder's
    parameters (LoRA), which stay; 0: none"""
    lora_alpha: PositiveFloat = 16.0
    """the changes are multiplied by this over the rank"""
    lora_in: Literal["attention", "all"] = "attention"
    """linear maps of the blocks that change: those of attention, or all"""
    mask_share: Fraction = 0.05
    """share of the encoder's frames that is masked in training"""
    mask_width: PositiveInt = 10
    """greatest length of a mask, frames of the encoder"""
    longest: Annotated[int, Field(ge=100)] = 2800
    """frames that go through the encoder at once; more go in windows"""
    overlap: NonNegativeInt = 200
    """frames of a window at each side that only are context"""


@dataclass(frozen=True)
class Location:
    """A place in a description, for messages.

    Attributes:
        file: the YAML file, if it came from one.
        layer: dotted name of the layer (`block.conv` inside the subnetwork `block`).
    """

    file: Path | None = None
    layer: str = ""

    def error(self, what: str, remedy: str | None = None) -> UserError:
        """Return the error of a mistake at this place."""
        where = f"layer {self.layer}: " if self.layer else "network: "
        return UserError(where + what, file=self.file, remedy=remedy)

    def inside(self, name: str) -> Location:
        """Return the place of the layer `name` within this one."""
        return Location(self.file, f"{self.layer}.{name}" if self.layer else name)


@dataclass(frozen=True)
class OptionFacts:
    """An option, for messages and the reference.

    Attributes:
        kind: a key of `KINDS`.
        description: its meaning, with its unit.
        is_required: whether it has no default.
        default: its value where a description has none.
        minimum: least value, included; None = no bound.
        maximum: greatest value, included; None = no bound.
        choices: the allowed values; empty for all.
        nullable: whether null is a value too.
    """

    kind: str
    description: str
    is_required: bool
    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    nullable: bool


@cache
def facts_of(model: type[Options]) -> dict[str, OptionFacts]:
    """Return the options of a model by name."""
    schema = model.described_schema()
    found = {}
    for name, field in schema["properties"].items():
        values = next((v for v in field.get("anyOf", ()) if v["type"] != "null"), field)
        choices = values.get("enum", (values["const"],) if "const" in values else ())
        has_names = values.get("items", {}).get("type") == "string"
        found[name] = OptionFacts(
            "names" if has_names else values["type"],
            field.get("description", ""),
            name in schema.get("required", ()),
            field.get("default"),
            values.get("minimum"),
            values.get("maximum"),
            tuple(choices),
            "anyOf" in field,
        )
    return found


def read_layer_options(
    model: type[Chosen], given: Mapping[str, Any], location: Location
) -> Chosen:
    """Return the options that a description gives, checked, with the defaults.

    Args:
        model: the options of the layer's class.
        given: those that the description gives, all of them known to the model.
        location: the layer, for messages.

    Raises:
        UserError: an option is missing, or a value out of range.
    """
    try:
        text = json.dumps(dict(given), default=str)
        options = model.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
    else:
        for name, value in given.items():
            if (number := _largest(value)) > _MOST:
                raise location.error(f"{name} has a number {number}, above {_MOST}")
        return options
    if not first["loc"]:  # of the text, mostly an invalid character
        raise location.error(f"its options cannot be read: {first['msg']}")
    name, bounds = str(first["loc"][0]), first.get("ctx", {})
    facts, kind = facts_of(model)[name], first["type"]
    if kind == "missing":
        raise location.error(f"key {name} is missing", f"it is {facts.description}")
    if kind == "greater_than_equal":
        raise location.error(f"{name} is {first['input']}, below {bounds['ge']:g}")
    if kind == "less_than_equal":
        raise location.error(f"{name} is {first['input']}, above {bounds['le']:g}")
    value = given[name]
    if kind == "literal_error" and isinstance(value, str):
        hint = nearest(value, facts.choices)
        raise location.error(f"{name} cannot be {value!r}", hint)
    what = f"{name} must be {KINDS[facts.kind]}, not {value!r}"
    raise location.error(what, _written_out(facts, value))


def _largest(value: Any) -> float:
    """Return the largest magnitude of the numbers that an option is made of."""
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return abs(value) if isinstance(value, int | float) else 0


def check_keys(given: Iterable[Any], known: Iterable[str], location: Location) -> None:
    """Refuse a key that is not known, and propose the nearest that is.

    Raises:
        UserError: an unknown key.
    """
    known = list(known)
    for key in given:
        if key not in known:
            raise location.error(f"unknown key {key}", nearest(str(key), known))


def nearest(word: str, known: Iterable[str]) -> str:
    """Propose the known word that resembles a wrong one, or list those known."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"


def _written_out(facts: OptionFacts, value: object) -> str | None:
    """Propose 0.001 where 1e-3 was given, which YAML takes for a string."""
    if facts.kind != "number" or not re.fullmatch(r"\d+e-?\d+", str(value)):
        return None
    return f"write {Decimal(str(value)):f}"
