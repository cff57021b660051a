"""The layer classes by the names that descriptions use."""

from __future__ import annotations

import importlib

from latflow.nnet.layer import Layer
from latflow.nnet.layers import attention, augment, convolution, recurrent, simple, tdnn
from latflow.nnet.options import Place, nearest

_CLASSES: dict[str, type[Layer]] = {
    "linear": simple.Linear,
    "output": simple.Linear,  # with the size of its target
    "activation": simple.Activation,
    "dropout": simple.Dropout,
    "layer_norm": simple.LayerNorm,
    "batch_norm": simple.BatchNorm,
    "concat": simple.Concat,
    "add": simple.Add,
    "rec": recurrent.Recurrent,
    "conv1d": convolution.Conv1d,
    "conv2d": convolution.Conv2d,
    "splice": convolution.Splice,
    "window": convolution.Window,
    "pool": convolution.Pool,
    "subsample": convolution.Subsample,
    "tdnn": tdnn.Tdnn,
    "tdnnf": tdnn.TdnnF,
    "self_attention": attention.SelfAttention,
    "positional_encoding": attention.PositionalEncoding,
    "transformer": attention.Transformer,
    "conformer": attention.Conformer,
    "specaugment": augment.SpecAugment,
}


def layer_classes() -> dict[str, type[Layer]]:
    """All built-in classes by name."""
    # a subnetwork is made of layers: it needs this table before it can join it
    from latflow.nnet.graph import Subnetwork

    return {**_CLASSES, "subnetwork": Subnetwork}


def layer_class(name: str, place: Place) -> type[Layer]:
    """The class of a name, built-in or `my.module.Layer`.

    Raises:
        UserError: no such class, or it is not a `Layer`.
    """
    if "." in name:
        return _imported(name, place)
    known = layer_classes()
    if name not in known:
        raise place.error(f"unknown class {name}", nearest(name, known))
    return known[name]


def _imported(path: str, place: Place) -> type[Layer]:
    """A user's own class."""
    module_name, _, class_name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise place.error(
            f"cannot import class {path}: {error}", "check the path and PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Layer)):
        raise place.error(f"{path} is not a subclass of latflow.nnet.layer.Layer")
    return found
