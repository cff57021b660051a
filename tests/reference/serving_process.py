"""`latflow serve` in a process of its own, and words as its clients have them."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
from reference.serving_server import PATIENCE

from latflow.serving.options import SessionOptions
from latflow.serving.results import Final
from latflow.serving.session import Session


def pcm(samples):
    """Samples as a websocket takes them."""
    return (samples * 32767).astype("<i2")


def words_alone(model, samples, **options):
    """(word, start, end) as a session alone recognizes them, by segment."""
    with Session(model, SessionOptions(**options)) as session:
        events = session.accept(samples.astype(np.int16)) + session.finish()
    return [
        [(w.word, round(w.start, 3), round(w.end, 3)) for w in e.segment.best.words]
        for e in events
        if isinstance(e, Final)
    ]


def words_told(replies):
    """(word, start, end) of the final answers, by answer."""
    return [
        [
            (w["word"], round(w["start"], 3), round(w["end"], 3))
            for w in reply.get("result", ())
        ]
        for reply in replies
        if "text" in reply
    ]


def workers_of(process):
    """Process ids of a server's workers, oldest first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    workers = []
    for pid in children.split():
        with contextlib.suppress(OSError):  # it ended just now
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                workers.append(int(pid))
    return workers


class serving:
    """`latflow serve` in a process of its own, on a port that is free."""

    def __init__(self, package, *options):
        self._command = [
            *(sys.executable, "-m", "latflow.cli.main", "serve", str(package)),
            *("--port", "0", *options),
        ]

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), self._process.stderr.read()
        return self._process, line.split()[-1]

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.terminate()
        self.log = self._process.communicate(timeout=PATIENCE)[1]
