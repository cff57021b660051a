"""The layer classes by the names that descriptions use, and their reference."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.nnet.graph import Subnetwork
from latflow.nnet.layer import Layer
from latflow.nnet.layers import (
    attention,
    augment,
    beamforming,
    conformer,
    convolution,
    decoder,
    embedding,
    multidimensional,
    pretrained,
    recurrent,
    simple,
    spectral,
    time_delay,
    zipformer,
)
from latflow.nnet.loops import Loop
from latflow.nnet.options import KINDS, Location, OptionFacts, facts_of, nearest
from latflow.user_code import load_object

LAYER_CLASSES: dict[str, type[Layer]] = {
    "linear": simple.Linear,
    "output": simple.Linear,  # with the size of its target
    "activation": simple.Activation,
    "dropout": simple.Dropout,
    "layer_norm": simple.LayerNorm,
    "bias_norm": simple.BiasNorm,
    "batch_norm": simple.BatchNorm,
    "concat": simple.Concat,
    "add": simple.Add,
    "multiply": simple.Multiply,
    "slice": simple.Slice,
    "embedding": embedding.Embedding,
    "rec": recurrent.Recurrent,
    "mdlstm": multidimensional.MdLstm,
    "conv1d": convolution.Conv1d,
    "conv2d": convolution.Conv2d,
    "splice": convolution.Splice,
    "window": convolution.Window,
    "pool": convolution.Pool,
    "subsample": convolution.Subsample,
    "tdnn": time_delay.Tdnn,
    "tdnnf": time_delay.TdnnF,
    "self_attention": attention.SelfAttention,
    "positional_encoding": attention.PositionalEncoding,
    "transformer": attention.Transformer,
    "conformer": conformer.Conformer,
    "zipformer": zipformer.Zipformer,
    "attention_decoder": decoder.AttentionDecoder,
    "specaugment": augment.SpecAugment,
    "stft": spectral.Stft,
    "mel": spectral.Mel,
    "pcen": spectral.Pcen,
    "mask_estimator": beamforming.MaskEstimator,
    "mvdr": beamforming.Mvdr,
    "pretrained": pretrained.Pretrained,
    "loop": Loop,
    "subnetwork": Subnetwork,
}


def layer_class(name: str, location: Location) -> type[Layer]:
    """Return the class of a name, built-in or `my.module.Layer`.

    Raises:
        UserError: no such class, it is not a `Layer`, or its code is not trusted.
    """
    if "." in name:
        return _imported(name, location)
    if name not in LAYER_CLASSES:
        raise location.error(f"unknown class {name}", nearest(name, LAYER_CLASSES))
    return LAYER_CLASSES[name]


def _imported(path: str, location: Location) -> type[Layer]:
    """Return a user's own class."""
    module_name, _, class_name = path.rpartition(".")
    try:
        found = load_object(f"{module_name}:{class_name}")
    except UserError:
        raise
    except Exception as error:  # of the user's own code it may be any
        raise location.error(
            f"cannot import class {path}: {error}", "check the path and PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Layer)):
        raise location.error(f"{path} is not a subclass of latflow.nnet.layer.Layer")
    return found


def layer_reference() -> str:
    """Return every layer class with its options, as Markdown."""
    names: dict[type[Layer], list[str]] = {}
    for name, layer in LAYER_CLASSES.items():
        names.setdefault(layer, []).append(f"`{name}`")
    parts = [_section(layer, aliases) for layer, aliases in names.items()]
    return "\n\n".join(parts) + "\n"


def in_document(document: Path) -> str:
    """Return a document with its list of layers made again.

    Args:
        document: Markdown with the comments `layers` and `end of layers`.
    """
    before, _, rest = document.read_text(encoding="utf-8").partition(
        "<!-- layers -->\n"
    )
    _, _, after = rest.partition("<!-- end of layers -->")
    head, end = "<!-- layers -->\n\n", "\n<!-- end of layers -->"
    return f"{before}{head}{layer_reference()}{end}{after}"


def _section(layer: type[Layer], names: list[str]) -> str:
    """Return one class: its names, documentation and options."""
    heading = "### " + ", ".join(names)
    text = inspect.cleandoc(layer.__doc__ or "")
    rows = [_row(name, option) for name, option in facts_of(layer.OPTIONS).items()]
    if not rows:
        return f"{heading}\n\n{text}\n\nNo options."
    table = ["| option | value | default | meaning |", "|---|---|---|---|", *rows]
    return f"{heading}\n\n{text}\n\n" + "\n".join(table)


def _row(name: str, option: OptionFacts) -> str:
    """Return one option as a row of the table."""
    default = "" if option.is_required else f"`{_value_text(option.default)}`"
    return f"| `{name}` | {_values(option)} | {default} | {option.description} |"


def _value_text(value: Any) -> str:
    """Return a default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _values(option: OptionFacts) -> str:
    """Return the values that an option takes."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    kind = KINDS[option.kind]
    low, high = option.minimum, option.maximum
    if low is not None and high is not None:
        kind += f", {low:g} to {high:g}"
    elif low is not None:
        kind += f", {low:g} or more"
    return f"{kind}, or null" if option.nullable else kind
