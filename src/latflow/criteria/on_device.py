"""Criteria on a GPU: whether kernels can be compiled, and numbers that are sent there.

Public: `runs_kernels`, `on_device`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def runs_kernels(values: Tensor) -> bool:
    """Tell whether Triton's kernels compute on tensors that are where these are."""
    return values.is_cuda and _compiles()


@cache
def _compiles() -> bool:
    """Tell whether Triton can compile kernels; it needs a C compiler to start them."""
    compilers = os.environ.get("CC", "cc"), "gcc", "clang"
    return importlib.util.find_spec("triton") is not None and any(
        shutil.which(name) for name in compilers
    )


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return integers on a device, int64 [B]; nobody waits for the copy."""
    here = torch.tensor(numbers, dtype=torch.int64, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)
