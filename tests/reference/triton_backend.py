"""Stand-in for the module that Triton's Python backend gives to models.

Messages are requests as the sequence batcher hands them over; they collect their
answers.
"""

import threading
import types

import numpy as np

FINAL = 1


class Tensor:
    def __init__(self, name, values):
        self._name, self._values = name, values

    def name(self):
        return self._name

    def as_numpy(self):
        return self._values


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.outputs = {t.name(): t.as_numpy() for t in output_tensors}
        self.error = error


class TritonError(Exception):
    pass


class MetricFamily:
    GAUGE, COUNTER = "gauge", "counter"
    values = {}  # noqa: RUF012 - of all models of a test

    def __init__(self, name, description, kind):
        self.name, self.kind = name, kind

    def Metric(self, labels):  # as Triton spells it
        return Metric(self.name, self.kind)


class Metric:
    def __init__(self, name, kind):
        self.name, self.kind = name, kind

    def set(self, value):
        assert self.kind == "gauge"
        MetricFamily.values[self.name] = value

    def increment(self, value):
        assert value >= 0
        before = MetricFamily.values.get(self.name, 0.0)
        MetricFamily.values[self.name] = before + value


class Message:
    """A request; is its own sender of answers."""

    def __init__(
        self, number, samples, *, start=False, end=False, chunk=2000, size=None,
        outputs=("TEXT", "CTM", "RAW_LATTICE"),
    ):  # fmt: skip
        filled = np.zeros((1, chunk), np.float32)
        filled[0, : len(samples)] = samples
        size = len(samples) if size is None else size
        self.inputs = {
            "WAV_DATA": filled,
            "WAV_DATA_DIM": np.array([[size]], np.int32),
            "START": np.array([[start]], np.int32),
            "END": np.array([[end]], np.int32),
            "READY": np.array([[1]], np.int32),
            "CORRID": np.array([[number]], np.uint64),
        }
        self.outputs = outputs
        self.answers = []
        self._is_done = threading.Event()

    def requested_output_names(self):
        return list(self.outputs)

    def get_response_sender(self):
        return self

    def send(self, response=None, flags=0):
        assert not self._is_done.is_set(), "an answer after the last"
        if response is not None:
            self.answers.append(response)
        if flags & FINAL:
            self._is_done.set()

    def wait(self):
        """The answers, when there will be no more."""
        assert self._is_done.wait(60)
        return self.answers


def module():
    """The module that models import."""
    found = types.ModuleType("triton_python_backend_utils")
    found.Tensor = Tensor
    found.InferenceResponse = InferenceResponse
    found.TritonError = TritonError
    found.MetricFamily = MetricFamily
    found.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    found.get_input_tensor_by_name = lambda request, name: Tensor(
        name, request.inputs[name]
    )
    return found
