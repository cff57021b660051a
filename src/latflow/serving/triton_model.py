"""A packaged model in the Python backend of the Triton Inference Server.

Tensors as NVIDIA's Kaldi backend has them: WAV_DATA, samples as float32 in the range of
16-bit integers, of which WAV_DATA_DIM are valid; TEXT, CTM and RAW_LATTICE. A sequence
is a session: each of its requests may be answered by a partial TEXT, the last one is by
all outputs. Sessions are worked on by `latflow.serving.scheduler`, as in the other
server; `execute` only hands requests over, so that sequences never wait for each other.

RAW_LATTICE is a compact lattice in Kaldi's binary form, without its key; those of
further segments follow it.

Runs in the server's process for Python models, which brings the module
`triton_python_backend_utils` along.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports]

from latflow.corpus.ctm import ctm_line
from latflow.errors import UserError
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.binary import as_bytes
from latflow.options import read_options
from latflow.serving.options import SessionOptions, TritonOptions
from latflow.serving.package import Model
from latflow.serving.results import Event, Final, Segment
from latflow.serving.scheduler import LiveSession, Scheduler

_WAITING = 4  # requests of each sequence that may wait; then Triton keeps them


@dataclass(eq=False)
class _Sequence:
    """State of a sequence.

    Attributes:
        session: recognizes it.
        segments: that have ended.
        partial: words of the segment that continues.
        sent: text that the client has.
        waiting: requests that are not answered yet.
        used: when the last request was answered.
    """

    session: LiveSession
    segments: list[Segment] = field(default_factory=list)
    partial: str = ""
    sent: str = ""
    waiting: int = 0
    used: float = field(default_factory=time.monotonic)

    def take(self, events: Sequence[Event]) -> None:
        """Take what was recognized."""
        for event in events:
            if isinstance(event, Final):
                self.segments.append(event.segment)
                self.partial = ""
            else:
                self.partial = event.text

    @property
    def text(self) -> str:
        """All words so far."""
        texts = [*(segment.best.text for segment in self.segments), self.partial]
        return " ".join(filter(None, texts))


class PackageModel:
    """Model as Triton calls it; see its Python backend.

    Attributes:
        package: folder of the model package.
    """

    package: ClassVar[Path]

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load the package."""
        if arguments["model_instance_kind"] == "GPU":
            # Each instance is a process; this one is to see one GPU.
            os.environ["CUDA_VISIBLE_DEVICES"] = arguments["model_instance_device_id"]
            device = "cuda"
        else:
            device = "cpu"
        config = json.loads(arguments["model_config"])
        values = json.loads(config["parameters"]["options"]["string_value"])
        self._options = read_options(TritonOptions, values)
        self._stack = ExitStack()
        self._scheduler = self._stack.enter_context(
            Scheduler(
                Model.load(
                    self.package, device=device, trust_code=self._options.trust_code
                ),
                threads=self._options.threads,
                max_batch=self._options.max_batch,
                # Those that Triton has given up go when they have been idle for long.
                max_sessions=2 * self._options.max_sequences,
            )
        )
        self._sequences: dict[int, _Sequence] = {}
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(_WAITING * self._options.max_sequences)
        self._metrics = _Metrics(arguments["model_instance_name"])
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile kernels before the first client waits for them."""
        rate = self._scheduler.model.sample_rate
        noise = np.random.default_rng(0).normal(0, 300, rate).astype(np.int16)
        self._begin(0)
        sequence = self._sequences[0]
        sequence.session.accept(noise)
        sequence.take(sequence.session.finish().result())
        for name in ("CTM", "RAW_LATTICE"):
            self._output(name, sequence)
        self._end(0, sequence)

    def finalize(self) -> None:
        """Close all sessions."""
        self._stack.close()

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand messages of several sequences over; answers are sent when they are made.

        Waits while too many messages wait.
        """
        self._forget_idle()
        for request in requests:
            answers = request.get_response_sender()
            try:
                self._take(request, answers)
            except Exception as error:  # noqa: BLE001 - sent to the client
                _fail(answers, error)

    def _take(self, request: Any, answers: Any) -> None:
        """Hand a message over."""
        number, is_first, is_last = (
            int(_input(request, name)[0]) for name in ("CORRID", "START", "END")
        )
        if is_first:
            self._begin(number)
        sequence = self._sequences.get(number)
        if sequence is None:
            raise UserError(f"sequence {number} has not begun", remedy="set its start")
        samples = _samples(request)
        self._metrics.audio.increment(len(samples) / self._scheduler.model.sample_rate)
        outputs = request.requested_output_names()
        self._room.acquire()
        with self._lock:
            sequence.waiting += 1
        accepted = sequence.session.accept(samples)

        def answer(future: Future[list[Event]]) -> None:
            try:
                self._answer(sequence, future, answers, outputs if is_last else None)
            finally:
                self._room.release()
                with self._lock:
                    sequence.waiting -= 1
                    sequence.used = time.monotonic()
                if is_last or future.cancelled() or future.exception() is not None:
                    self._end(number, sequence)

        if is_last:
            accepted.add_done_callback(lambda future: _note(sequence, future))
            sequence.session.finish().add_done_callback(answer)
        else:
            accepted.add_done_callback(answer)

    def _begin(self, number: int) -> None:
        """Begin a sequence; one of the same number is given up."""
        if number in self._sequences:
            self._end(number, self._sequences[number])
        options = SessionOptions(
            partials=self._options.partials,
            endpoint=self._options.endpoint,
            lattices=True,
        )
        session = self._scheduler.open(options, str(number))
        with self._lock:
            self._sequences[number] = _Sequence(session)
            self._metrics.sessions.set(len(self._sequences))

    def _end(self, number: int, sequence: _Sequence) -> None:
        """Forget a sequence."""
        with self._lock:
            if self._sequences.get(number) is sequence:
                del self._sequences[number]
                self._metrics.sessions.set(len(self._sequences))
        sequence.session.close()

    def _forget_idle(self) -> None:
        """Forget the sequences that Triton has given up, without a word."""
        oldest = time.monotonic() - 2 * self._options.idle
        for number, sequence in tuple(self._sequences.items()):
            if not sequence.waiting and sequence.used < oldest:
                self._end(number, sequence)

    def _answer(
        self,
        sequence: _Sequence,
        future: Future[list[Event]],
        answers: Any,
        outputs: Sequence[str] | None,
    ) -> None:
        """Answer a request.

        Args:
            sequence: of the request.
            future: what was recognized.
            answers: takes the answer.
            outputs: those that the client wants; None: the sequence continues.
        """
        try:
            sequence.take(future.result())
            if outputs is not None:
                values = {name: self._output(name, sequence) for name in outputs}
            elif self._options.partials and sequence.text != sequence.sent:
                values = {"TEXT": sequence.text.encode()}
            else:
                values = {}
        except Exception as error:  # noqa: BLE001 - sent to the client
            _fail(answers, error)
            return
        sequence.sent = sequence.text
        if not values:
            answers.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        tensors = [
            triton.Tensor(name, np.array([[value]], np.object_))
            for name, value in values.items()
        ]
        answers.send(
            triton.InferenceResponse(tensors),
            flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def _output(self, name: str, sequence: _Sequence) -> bytes:
        """Return an output of a sequence that has ended."""
        if name == "CTM":
            words = [w for segment in sequence.segments for w in segment.best.words]
            return "".join(map(ctm_line, words)).encode()
        if name == "RAW_LATTICE":
            lattices = [segment.lattice for segment in sequence.segments]
            return b"".join(self._compact(one) for one in lattices if one is not None)
        return sequence.text.encode()

    def _compact(self, lattice: Any) -> bytes:
        """Return a lattice as Kaldi's programs read it."""
        model = self._scheduler.model
        scale = model.acoustic_scale
        beam = model.info.search.lattice_beam
        compact = determinize(lattice, beam=beam, lm_scale=1.0, acoustic_scale=scale)
        return as_bytes(compact)


class _Metrics:
    """Measurements in addition to Triton's own, on its port for them."""

    def __init__(self, instance: str) -> None:
        labels = {"instance": instance}
        # The families must live as long as what is measured.
        self._families = [
            triton.MetricFamily(
                name="latflow_sessions",
                description="Sequences that are being recognized",
                kind=triton.MetricFamily.GAUGE,
            ),
            triton.MetricFamily(
                name="latflow_audio_seconds",
                description="Audio that was received",
                kind=triton.MetricFamily.COUNTER,
            ),
        ]
        self.sessions, self.audio = (
            family.Metric(labels=labels) for family in self._families
        )


def _note(sequence: _Sequence, future: Future[list[Event]]) -> None:
    """Take what was recognized of samples; errors are sent when the request ends."""
    if not future.cancelled() and future.exception() is None:
        sequence.take(future.result())


def _input(request: Any, name: str) -> np.ndarray:
    """Return an input of one row."""
    return triton.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)


def _samples(request: Any) -> np.ndarray:
    """Return the valid samples, int16."""
    data, size = _input(request, "WAV_DATA"), int(_input(request, "WAV_DATA_DIM")[0])
    if not 0 <= size <= len(data):
        raise UserError(f"WAV_DATA_DIM {size}: WAV_DATA has {len(data)} samples")
    valid = data[:size]
    if not np.isfinite(valid).all():
        raise UserError("WAV_DATA has samples that are NaN or infinite")
    return np.rint(valid).clip(-32768, 32767).astype(np.int16)


def _fail(answers: Any, error: BaseException) -> None:
    """Tell a client of an error."""
    answers.send(
        triton.InferenceResponse(error=triton.TritonError(str(error) or repr(error))),
        flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    )
