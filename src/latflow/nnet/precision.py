"""Numbers of a network's passes: float32, or bf16 by torch's autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from latflow.nnet.options import Precision


def dtype_of(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the numbers that passes have on a device."""
    is_bf16 = precision == "bf16"
    if precision == "auto":
        is_bf16 = multiplies_bf16(device)
    return torch.bfloat16 if is_bf16 else torch.float32


def passes_in(
    precision: Precision, device: torch.device
) -> AbstractContextManager[Any]:
    """Return the context of a forward pass."""
    dtype = dtype_of(precision, device)
    is_given = dtype == torch.float32
    return nullcontext() if is_given else torch.autocast(device.type, dtype)


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for products of bf16 numbers."""
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(
            including_emulation=False
        )
    known = torch.cpu.get_capabilities()
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
