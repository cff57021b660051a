"""Measure what this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess

from latflow.gpu_load import ask_gpus

# The rest is for the system, Snakemake itself, and the person at the screen.
SHARE_FOR_JOBS = 0.9


def capacity() -> dict[str, int]:
    """Return amounts that jobs which run at the same time may use together.

    Returns:
        `mem_mb`: MiB of memory; `gpu`: number of GPUs, 0 without NVIDIA's driver.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"mem_mb": int(SHARE_FOR_JOBS * memory) >> 20, "gpu": gpus()}


def gpus() -> int:
    """Return number of visible GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    if not shutil.which("nvidia-smi"):
        return 0
    done = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)


def device_memory(*, on_gpu: bool) -> int:
    """Return the bytes of memory of this machine, or of its smallest visible GPU."""
    if not on_gpu:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = ask_gpus("memory.total")
    return int(min(sizes, default=0)) << 20
