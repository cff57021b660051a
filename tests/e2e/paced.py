"""A constant learning rate that takes its time, and tells who made which step."""

import os
import time
from pathlib import Path


def constant(moment, history, *, pause=0.0):
    """Note process, epoch and step, and wait some seconds; the factor is 1."""
    with Path("course").open("a") as stream:
        stream.write(f"{os.getpid()} {moment.epoch} {moment.step}\n")
    time.sleep(float(os.environ.get("PAUSE", pause)))
    return 1.0
