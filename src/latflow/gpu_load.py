"""Measure how busy the GPU is while a job runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from threading import Event, Thread

SECONDS_BETWEEN_SAMPLES = 5.0


class GpuLoad:
    """Samples `nvidia-smi` beside a job or a training.

    The driver's number is the share of time in which any kernel ran on the device, of
    whichever process: beside other jobs on the same GPU it says too much. Several
    visible GPUs are averaged; GPUs of other machines are not seen.

    Args:
        is_asked_for: the job has asked for a GPU; its processes may use it, not itself.
        seconds: time between samples.

    Attributes:
        share: mean utilization, 0 to 1, set when the block ends; None without a GPU, or
            if the job used none.
        samples: utilization, 0 to 1, since the last `take`.
    """

    def __init__(
        self, *, is_asked_for: bool = False, seconds: float = SECONDS_BETWEEN_SAMPLES
    ) -> None:
        self.share: float | None = None
        self._is_asked_for = is_asked_for
        self._seconds = seconds
        self.samples: list[float] = []
        self._end = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> GpuLoad:
        if shutil.which("nvidia-smi"):
            self._thread = Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        if self.samples and (self._is_asked_for or _uses_gpu()):
            self.share = sum(self.samples) / len(self.samples)

    def take(self) -> float | None:
        """Return the mean since the last call; None where no sample was taken."""
        taken, self.samples = self.samples, []
        return sum(taken) / len(taken) if taken else None

    def _watch(self) -> None:
        """Take samples until the job ends; the first after one interval."""
        while not self._end.wait(self._seconds):
            sample = utilization()
            if sample is None:
                return
            self.samples.append(sample)


def utilization() -> float | None:
    """Return the utilization of the visible GPUs, 0 to 1; None if unknown."""
    values = ask_gpus("utilization.gpu")
    return sum(values) / len(values) / 100 if values else None


def ask_gpus(what: str) -> list[float]:
    """Return a number of each visible GPU; empty if they cannot be queried.

    Args:
        what: a property that `nvidia-smi --query-gpu` knows.
    """
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        command += ["-i", visible]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
        )
        return [float(line) for line in done.stdout.split("\n") if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _uses_gpu() -> bool:
    """Return whether this process has worked on a GPU; starts none."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
