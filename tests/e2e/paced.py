"""A constant learning rate that takes its time, and tells who made which step."""

import os
import time
from pathlib import Path

COURSE, ENDED = Path("course"), Path("ended")


def constant(moment, history, *, pause=0.0):
    """Note process, epoch and step, and wait some seconds; the factor is 1."""
    with COURSE.open("a") as stream:
        stream.write(f"{os.getpid()} {moment.epoch} {moment.step}\n")
    time.sleep(float(os.environ.get("PAUSE", pause)))
    while _is_far_enough() and f"{os.getpid()}" not in ENDED.read_text().split():
        time.sleep(0.05)  # for the test that is about to end this process
    return 1.0


def _is_far_enough():
    """Whether a test ends this process here: by the next of the signals in ENDS."""
    if not (signals := os.environ.get("ENDS", "").split()):
        return False
    steps = steps_of(COURSE)
    place = [*steps].index(os.getpid())
    return place < len(signals) and is_far_enough(steps[os.getpid()], signals[place])


def steps_of(course):
    """The steps (epoch, number) that each process has made, in their order."""
    found = {}
    for line in course.read_text().splitlines():
        process, epoch, step = map(int, line.split())
        found.setdefault(process, set()).add((epoch, step))
    return found


def is_far_enough(steps, signal, number=4):
    """Whether a process has made more steps, and will have left a new checkpoint.

    Asked to end (SIGTERM) it writes one within its epoch; else it has that of an
    epoch's end.
    """
    has_checkpoint = signal == "SIGTERM" or len({epoch for epoch, _ in steps}) > 1
    return has_checkpoint and len(steps) > number
