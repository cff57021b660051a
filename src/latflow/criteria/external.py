"""A criterion that another program computes: log-likelihoods out, gradient in.

The program is spoken to over its standard input and output, message by message; what it
prints on standard error goes to the log. A message is

    "LFC1", length of the header (uint32), header (JSON), bytes of the arrays,

all little-endian; the header names its `message` and lists the `arrays` that follow, in
order: [name, type, shape]. `docs/criteria.md` describes the messages.

Each thread that evaluates has its own process, started when it is first needed.

Source: the exchange is that of RASR's sequence training with RETURNN
(`SprintErrorSignals`): log-likelihoods there, loss and error signal back.
"""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import numpy as np

from latflow.criteria.criterion import Evaluation, LatticeCriterion, Utterance
from latflow.criteria.options import ExternalOptions
from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import KaldiWriter

PROTOCOL = 1
#: Arrays of a lattice, by the names of `latflow.lattice.lattice.Lattice`.
ARRAYS = (
    "arc_begin",
    "next_state",
    "transition_id",
    "word",
    "graph_cost",
    "acoustic_cost",
    "final_graph_cost",
    "final_acoustic_cost",
    "frame",
)
_MAGIC = b"LFC1"
_TYPES = ("|u1", "<i4", "<i8", "<f4", "<f8")
_MAX_HEADER, _MAX_ARRAY = 1 << 20, 1 << 34  # bytes; more is not a message
_PATIENCE = 10.0  # seconds to end in

Message = tuple[dict[str, Any], dict[str, np.ndarray]]


class MessageError(Exception):
    """Bytes that are not a message, or none where one was due."""


class External(LatticeCriterion):
    """A criterion that processes of one command compute.

    Args:
        options: the command.
        model: what transition-ids mean.
        silence_phones: phone ids.
        seed: of whatever is drawn.

    Raises:
        UserError: the program cannot be started, or does not answer as it should.
    """

    options: ExternalOptions

    def __init__(
        self,
        options: ExternalOptions,
        model: TransitionModel,
        silence_phones: Sequence[int] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(options, model, silence_phones, seed=seed)
        self._lock = threading.Lock()
        first, header = self._start()
        self._idle = [first]
        self.name = str(header.get("name", "external"))
        self.statistics = tuple(map(str, header.get("statistics", ())))

    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return what a process gives; see `LatticeCriterion.evaluate`.

        Raises:
            UserError: the process reports an error, ends, takes too long, or writes
                something else than is due.
        """
        log_likes, teacher = utterance.log_likes, utterance.teacher
        arrays = {
            "log_likes": log_likes,
            "alignment": np.asarray(utterance.alignment, np.int32),
            "words": np.asarray(utterance.words, np.int32),
            **{name: getattr(utterance.raw, name) for name in ARRAYS},
            **({} if teacher is None else {"teacher": teacher}),
        }
        process = self._idle_process()
        try:
            _, answer = process.request("evaluate", {}, arrays, "value")
            due = {
                "objective": ((1,), "<f8"),
                "statistics": ((len(self.statistics),), "<f8"),
                "gradient": (log_likes.shape, log_likes.dtype.str),
            }
            given = {name: (a.shape, a.dtype.str) for name, a in answer.items()}
            if given != due:
                raise process.failure(f"it gave {given}, where {due} is due")
        except BaseException:
            process.kill()
            raise
        with self._lock:
            self._idle.append(process)
        gradient[...] = answer["gradient"]
        objective = float(answer["objective"][0])
        return self.evaluation(
            objective, len(log_likes), *answer["statistics"].tolist()
        )

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            processes, self._idle = self._idle, []
        for process in processes:
            process.end()

    def _idle_process(self) -> _Process:
        """Return a process that nobody uses."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._start()[0]

    def _start(self) -> tuple[_Process, dict[str, Any]]:
        """Start a process; returns it and the header of its first answer."""
        process = _Process(self.options)
        stream = io.BytesIO()
        self.model.write(KaldiWriter(stream))
        arrays = {
            "transition_model": np.frombuffer(stream.getvalue(), np.uint8),
            "pdf": self.model.pdf,
            "phone": self.model.phone,
        }
        header = {
            "protocol": PROTOCOL,
            "silence_phones": list(self.silence_phones),
            "seed": self.seed,
        }
        try:
            answer, _ = process.request("hello", header, arrays, "ready")
            if answer.get("protocol") != PROTOCOL:
                spoken = answer.get("protocol")
                raise process.failure(
                    f"it speaks protocol {spoken}, latflow {PROTOCOL}"
                )
        except BaseException:
            process.kill()
            raise
        return process, answer


class _Process:
    """A process of the command, asked one thing at a time."""

    def __init__(self, options: ExternalOptions) -> None:
        self._command, self._timeout = options.command, options.timeout
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # signals are for the training, which ends it
            )
        except OSError as error:
            raise self.failure(f"it does not start: {error.strerror}") from error

    def failure(self, what: str) -> UserError:
        """Return the error of a process at fault."""
        return UserError(
            f"external criterion {self._command[0]}: {what}",
            remedy="see its messages in the log, and docs/criteria.md",
        )

    def request(
        self,
        message: str,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        due: str,
    ) -> Message:
        """Send a message and return the answer, which is to be of a kind."""
        late = threading.Event()
        timer = threading.Timer(self._timeout, self._time_out, [late])
        timer.start()
        try:
            with suppress(BrokenPipeError):  # it has ended: its output says how
                write_message(_pipe(self._process.stdin), message, header, arrays)
            answer = read_message(_pipe(self._process.stdout))
        except (OSError, MessageError) as error:
            self._process.kill()
            status = self._process.wait()
            what = f"no answer within {self._timeout} s" if late.is_set() else error
            raise self.failure(f"{what} (exit status {status})") from error
        finally:
            timer.cancel()
        kind = answer[0]["message"]
        if kind == "error":
            raise self.failure(str(answer[0].get("text", "an error without text")))
        if kind != due:
            raise self.failure(f"it answered {kind!r}, where {due!r} is due")
        return answer

    def _time_out(self, late: threading.Event) -> None:
        """End a process that takes too long."""
        late.set()
        self._process.kill()

    def end(self) -> None:
        """Close its input, at which it is to end."""
        try:
            _pipe(self._process.stdin).close()
            self._process.wait(_PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                _pipe(pipe).close()
            except OSError:
                continue  # what was not written yet has no reader


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a stream of a process, which was opened with pipes."""
    assert stream is not None
    return stream


def write_message(
    stream: IO[bytes],
    message: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write a message.

    Args:
        stream: where to.
        message: its kind.
        header: what else the header holds, for JSON.
        arrays: name -> array of uint8, int32, int64, float32 or float64.
    """
    ordered = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    listed = [[name, a.dtype.str, list(a.shape)] for name, a in ordered.items()]
    text = json.dumps({"message": message, **header, "arrays": listed}).encode()
    stream.write(_MAGIC + struct.pack("<I", len(text)) + text)
    for array in ordered.values():
        stream.write(array.data.cast("B") if array.size else b"")
    stream.flush()


def read_message(stream: IO[bytes]) -> Message:
    """Read a message; return its header and arrays.

    Args:
        stream: where from.

    Raises:
        MessageError: the bytes are not a message, or end within it.
    """
    start = stream.read(len(_MAGIC) + 4)
    if not start:
        raise MessageError("it ended without an answer")
    if len(start) < len(_MAGIC) + 4 or not start.startswith(_MAGIC):
        raise MessageError(f"{start!r} on its output is not a message")
    (length,) = struct.unpack("<I", start[len(_MAGIC) :])
    if length > _MAX_HEADER:
        raise MessageError(f"a header of {length} bytes")
    try:
        header = json.loads(_exactly(stream, length))
        listed = [(str(n), str(t), tuple(map(int, s))) for n, t, s in header["arrays"]]
        str(header["message"])
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise MessageError(f"a header that cannot be read: {error!r}") from error
    arrays = {}
    for name, kind, shape in listed:
        if kind not in _TYPES or any(size < 0 for size in shape):
            raise MessageError(f"array {name} of type {kind}, shape {shape}")
        size = math.prod(shape) * np.dtype(kind).itemsize
        if size > _MAX_ARRAY:
            raise MessageError(f"array {name} of {size} bytes")
        array = np.frombuffer(_exactly(stream, size), kind)
        arrays[name] = array.reshape(shape)
    return header, arrays


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read this many bytes."""
    data = stream.read(size)
    if len(data) < size:
        raise MessageError(f"it ended {size - len(data)} bytes before the answer did")
    return data
