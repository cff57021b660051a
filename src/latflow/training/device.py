"""Which device a network runs on."""

from __future__ import annotations

import torch

from latflow.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device that a name stands for.

    Args:
        name: `cpu`, `cuda`, or `auto`: a GPU where there is one.

    Raises:
        UserError: `cuda` without a GPU.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "device cuda: torch finds no GPU",
            remedy="set the device to cpu or auto, or check the driver (nvidia-smi)",
        )
    return torch.device("cuda")
