"""Kernels for GPUs, in Triton, where they can be compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

from torch import Tensor


def runs_kernels(values: Tensor) -> bool:
    """Return whether Triton's kernels compute on tensors that are where these are."""
    return values.is_cuda and _can_compile()


@cache
def _can_compile() -> bool:
    """Return whether Triton is here, with the C compiler for what starts kernels."""
    compilers = os.environ.get("CC", "cc"), "gcc", "clang"
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and any(shutil.which(name) for name in compilers)
