"""Kernels for GPUs, in Triton, where they can be compiled.

Public: `can_compile_kernels`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil


def can_compile_kernels() -> bool:
    """Return whether Triton is here, with the C compiler for what starts kernels."""
    compilers = os.environ.get("CC", "cc"), "gcc", "clang"
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and any(shutil.which(name) for name in compilers)
