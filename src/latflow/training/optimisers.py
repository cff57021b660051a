"""Optimisers by name, from torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import optim
from torch.nn import Parameter

from latflow.errors import UserError

OPTIMISERS: dict[str, Callable[..., optim.Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
}
_WITH_FUSED = {"adam", "adamw", "sgd"}


def make_optimiser(
    parameters: Iterable[Parameter], options: Mapping[str, Any], learning_rate: float
) -> optim.Optimizer:
    """Make an optimiser.

    Args:
        parameters: what it changes.
        options: `type` and the options of that type, all of them; see the key
            `optimiser` in `workflow/schemas/nnet_training.yaml`.
        learning_rate: of the first step.

    Raises:
        UserError: no such type, or Nesterov's momentum without momentum.
    """
    options = dict(options)
    kind = options.pop("type")
    if kind not in OPTIMISERS:
        known = ", ".join(OPTIMISERS)
        raise UserError(f"no optimiser {kind!r}", remedy=f"choose from: {known}")
    if options.get("nesterov") and not options["momentum"]:
        raise UserError(
            "optimiser.nesterov needs a momentum",
            remedy="set optimiser.momentum, for example to 0.9",
        )
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    params = list(parameters)
    if kind in _WITH_FUSED and params and params[0].is_cuda:
        options["fused"] = True
    return OPTIMISERS[kind](params, lr=learning_rate, **options)


def set_learning_rate(optimiser: optim.Optimizer, learning_rate: float) -> None:
    """Use a learning rate from the next step on."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate


@torch.no_grad()
def limit_norms(parameters: Iterable[Parameter], max_norm: float) -> None:
    """Shorten each unit's incoming weights to a length.

    A unit is a row of a weight matrix (of a convolution: a filter); vectors, such as
    biases, stay.

    Args:
        parameters: changed in place.
        max_norm: greatest Euclidean length, > 0.
    """
    for parameter in parameters:
        if parameter.ndim > 1:
            parameter.copy_(torch.renorm(parameter, 2.0, 0, max_norm))
