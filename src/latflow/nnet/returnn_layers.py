"""Layers of RETURNN, one by one, as options of ours (`returnn_network` uses them).

Source: https://github.com/rwth-i6/returnn, `returnn/tf/layers`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from latflow.nnet.returnn_config import code_in

Fate = Literal["taken", "renamed", "left out", "refused"]


class Row(NamedTuple):
    """What became of a key.

    Attributes:
        key: of RETURNN's configuration, with its layer: `fw_0.n_out`.
        fate: what was done with it.
        text: the key in its place, or the reason.
    """

    key: str
    fate: Fate
    text: str


_LSTM = {
    *("lstm", "lstmp", "nativelstm", "nativelstm2", "nativelstmlowmem", "lstmcell"),
    *("standardlstm", "lstmblock", "lstmblockfused", "lstmblockcell", "cudnnlstm"),
    *("basiclstm", "basiclstmcell", "lstmopt"),
}
_GRU = {"gru", "grucell", "grublock", "grublockcell", "cudnngru", "nativegru"}
_ACTIVATIONS = MappingProxyType(
    {
        None: "none", "none": "none", "identity": "none", "linear": "none",
        "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "gelu": "gelu",
        "swish": "silu", "silu": "silu", "leaky_relu": "leaky_relu",
        "log_softmax": "log_softmax",
    }
)  # fmt: skip
_FUNCTIONS = {"swish", "silu", "relu", "tanh", "sigmoid", "gelu"}
_START_STATES = (None, 0, "zeros")


class RefusedError(Exception):
    """A key of a layer that cannot be done: the key, and why."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key, self.why = key, why


def finite(key: str, value: Any) -> float:
    """Return a number that a layer gives; refuse anything else, by its key."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise RefusedError(key, f"{value!r} is not a number")
    return float(value)


class Keys:
    """Keys of a layer, of which none may be passed over.

    Attributes:
        given: the layer.
        used: fate and text of those that were asked for.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.used: dict[str, tuple[Fate, str]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.given

    def take(self, key: str, default: Any = ...) -> Any:
        """Return the value of a key; refuse a layer without it if it has no default."""
        if key not in self.given:
            if default is ...:
                raise RefusedError(key, "it is missing")
            return default
        if code := code_in(self.given[key]):
            raise RefusedError(key, f"code, which is not run: {code.text}")
        self.used[key] = ("taken", "")
        return self.given[key]

    def rename(self, key: str, text: str) -> None:
        """Note where the value of a key stands now."""
        if key in self.given:
            self.used[key] = ("renamed", text)

    def leave_out(self, key: str, reason: str) -> None:
        """Note why a key does not matter."""
        self.used[key] = ("left out", reason)

    def number(self, key: str, name: str, default: Any = ...) -> int:
        """Return a whole number, 1 or more, which has another name with us."""
        value = self.take(key, default)
        if isinstance(value, list | tuple) and len(value) == 1:
            (value,) = value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RefusedError(key, f"{value!r} is not a whole number above 0")
        self.rename(key, name)
        return value

    def real(self, key: str, default: float) -> float:
        """Return a finite number; that of `default` where there is none."""
        value = self.take(key, default)
        return finite(key, default if value is None else value)

    def activation(self, name: str = "activation", default: str | None = None) -> str:
        """Return the function of the result by our name."""
        value = self.take("activation", default)
        if value not in _ACTIVATIONS:
            raise RefusedError("activation", f"no function {value}")
        self.rename("activation", name)
        return _ACTIVATIONS[value]

    def check(self) -> None:
        """Refuse a key that nobody has asked for."""
        for key in self.given:
            if key not in self.used:
                raise RefusedError(key, f"nothing of ours is like {key}")


def _recurrent(keys: Keys) -> dict[str, Any]:
    """Convert `rec`."""
    if isinstance(keys.given.get("unit"), Mapping):
        return _loop(keys)
    kind = str(keys.take("unit", "lstm")).lower()
    if kind not in _LSTM | _GRU:
        raise RefusedError("unit", f"no cell {kind}")
    if keys.take("sampling", 1) != 1:
        raise RefusedError("sampling", "put a layer of class subsample before it")
    if keys.take("unit_opts", None):
        raise RefusedError("unit_opts", f"no {', '.join(keys.given['unit_opts'])} here")
    made = {"class": "rec", "size": keys.number("n_out", "size")}
    if kind in _GRU:
        made["unit"] = "gru"
    return made | {"direction": _direction(keys), **_initial_state(keys)}


def _initial_state(keys: Keys) -> dict[str, str]:
    """Return the layer whose last state a recurrent one begins with, if any."""
    value = keys.take("initial_state", None)
    if value in _START_STATES:
        return {}
    if not isinstance(value, str) or value in ("ones", "var", "keep_over_epoch"):
        raise RefusedError("initial_state", f"{value}: zeros or a layer here")
    return {"initial_state": value}


def _loop(keys: Keys) -> dict[str, Any]:
    """Convert a `rec` of layers; the caller converts what is inside."""
    inside = keys.given["unit"]
    for layer in inside.values():
        kind = layer.get("class") if isinstance(layer, Mapping) else None
        if kind == "choice":
            why = "layers in a loop that decodes (see class attention_decoder)"
            raise RefusedError("unit", why)
    keys.rename("unit", "class loop, layers")
    for key in ("max_seq_len", "optimize_move_layers_out", "include_eos"):
        if key in keys:
            keys.leave_out(key, "the input says how many frames there are")
    return {"class": "loop", "layers": inside, "direction": _direction(keys)}


def _associative(keys: Keys) -> dict[str, Any]:
    """Convert `associative_lstm`."""
    return {
        "class": "rec",
        "unit": "associative",
        "size": keys.number("n_out", "size"),
        "copies": keys.number("n_copies", "copies", 4),
        "direction": _direction(keys),
    }


def _direction(keys: Keys) -> str:
    """Return the way through time."""
    value = keys.take("direction", 1)
    if value not in (1, -1):
        raise RefusedError("direction", f"{value} is neither 1 nor -1")
    return "forward" if value == 1 else "backward"


def _softmax(keys: Keys) -> dict[str, Any]:
    """Convert `softmax`, whose size is that of its labels."""
    if "n_out" in keys:
        keys.leave_out("n_out", "the labels say how many there are")
    return {"class": "output"} | ({} if _with_bias(keys) else {"bias": False})


def _linear(keys: Keys) -> dict[str, Any]:
    """Convert `linear`, and `hidden` and `forward` of RETURNN's first versions."""
    if keys.given.get("activation") == "softmax":
        keys.rename("activation", "class output")
        return _softmax(keys)
    made = {"class": "linear", "size": keys.number("n_out", "size")}
    default = None if keys.given["class"] == "linear" else "sigmoid"
    made |= {"activation": keys.activation(default=default)}
    return made | ({} if _with_bias(keys) else {"bias": False})


def _with_bias(keys: Keys) -> bool:
    """Return whether a vector is added."""
    value = bool(keys.take("with_bias", default=True))
    keys.rename("with_bias", "bias")
    return value


def _convolution(keys: Keys) -> dict[str, Any]:
    """Convert `conv` over time."""
    if str(keys.take("padding")).lower() != "same":
        raise RefusedError("padding", "other than same")
    size = keys.take("filter_size")
    if isinstance(size, list | tuple) and len(size) != 1:
        raise RefusedError("filter_size", "over more than time (see class conv2d)")
    if not _with_bias(keys):
        raise RefusedError("with_bias", "convolutions have a bias here")
    return {
        "class": "conv1d",
        "size": keys.number("n_out", "size"),
        "kernel": keys.number("filter_size", "kernel"),
        "stride": keys.number("strides", "stride", 1),
        "dilation": keys.number("dilation_rate", "dilation", 1),
        "groups": keys.number("groups", "groups", 1),
        "activation": keys.activation(),
    }


def _function(keys: Keys) -> dict[str, Any]:
    """Convert `activation`."""
    made = {"class": "activation", "function": keys.activation(name="function")}
    if keys.take("batch_norm", default=False):
        raise RefusedError("batch_norm", "add a layer of class batch_norm")
    return made


def _expression(keys: Keys) -> dict[str, Any]:
    """Convert `eval` of sums, products and functions of inputs; nothing is run.

    Inputs in the result are their numbers, and parts are layers of the same form.
    """
    text = str(keys.take("eval"))
    try:
        found = _part(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict):
        text, hint = re.sub(r"\s", "", text), "SpecAugment is class specaugment"
        raise RefusedError("eval", f"code, which is not run: {text:.60} ({hint})")
    keys.rename("eval", "layers of class add, multiply and activation")
    return found


def _part(node: ast.expr) -> dict[str, Any] | int | None:
    """Return the layer of a part of an expression; the number of an input; or None."""
    match node:
        case ast.Call(ast.Name("source"), [ast.Constant(int(number))], []):
            return number
        case ast.Call(ast.Attribute(place, str(name)), [argument], []):
            is_known = ast.unparse(place) in ("tf", "tf.nn", "tf.math")
            inner = _part(argument)
            if not is_known or name not in _FUNCTIONS or inner is None:
                return None
            return {
                "class": "activation",
                "from": [inner],
                "function": _ACTIVATIONS[name],
            }
        case ast.BinOp(left, ast.Add() | ast.Mult() as how, right):
            parts = [_part(left), _part(right)]
            if None in parts:
                return None
            name = "add" if isinstance(how, ast.Add) else "multiply"
            return {"class": name, "from": parts}
    return None


def _dropout(keys: Keys) -> dict[str, Any]:
    rate = keys.real("dropout", 0.0)
    keys.rename("dropout", "rate")
    return {"class": "dropout", "rate": rate}


def _combine(keys: Keys) -> dict[str, Any]:
    """Convert `combine` that adds or multiplies."""
    kinds = {"add": "add", "mul": "multiply"}
    if (kind := keys.take("kind")) not in kinds:
        raise RefusedError("kind", f"{kind}; layers are added or multiplied here")
    keys.rename("kind", f"class {kinds[kind]}")
    if keys.activation() != "none":
        raise RefusedError("activation", "add a layer of class activation")
    return {"class": kinds[kind]}


def _batch_norm(keys: Keys) -> dict[str, Any]:
    made: dict[str, Any] = {"class": "batch_norm"}
    made["momentum"] = keys.real("momentum", 0.1)
    made["epsilon"] = keys.real("epsilon", 1e-3)
    return made


def _pool(keys: Keys) -> dict[str, Any]:
    """Convert `pool` over time, without frames in two windows or in none."""
    mode = str(keys.take("mode")).lower()
    if mode not in ("max", "avg"):
        raise RefusedError("mode", f"no {mode}")
    if str(keys.take("padding", "same")).lower() != "same":
        raise RefusedError("padding", "other than same")
    size = keys.number("pool_size", "kernel, around every stride-th frame")
    return {
        "class": "pool",
        "mode": "max" if mode == "max" else "mean",
        "kernel": size,
        "stride": keys.number("strides", "stride", size),
    }


def _window(keys: Keys) -> dict[str, Any]:
    return {"class": "window", "size": keys.number("window_size", "size")}


def _subnetwork(keys: Keys) -> dict[str, Any]:
    """Convert `subnetwork`; the caller converts what is inside."""
    inside = keys.take("subnetwork")
    if not isinstance(inside, Mapping):
        raise RefusedError("subnetwork", "no dictionary of layers")
    keys.rename("subnetwork", "layers")
    return {"class": "subnetwork", "layers": inside}


#: Makes the options of a layer, by RETURNN's class; None where there need be none.
CLASSES: Mapping[str, Callable[[Keys], dict[str, Any] | None]] = MappingProxyType(
    {
        "activation": _function,
        "associative_lstm": _associative,
        "batch_norm": _batch_norm,
        "combine": _combine,
        "conv": _convolution,
        "copy": lambda _: None,
        "dropout": _dropout,
        "eval": _expression,
        "forward": _linear,
        "hidden": _linear,
        "layer_norm": lambda _: {"class": "layer_norm"},
        "linear": _linear,
        "pool": _pool,
        "rec": _recurrent,
        "rnn_cell": _recurrent,
        "softmax": _softmax,
        "subnetwork": _subnetwork,
        "window": _window,
    }
)
