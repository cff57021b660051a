"""Model repositories of Triton, and their models without its server."""

import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fixtures import triton_backend
from fixtures.triton_backend import Message, MetricFamily

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.cmvn_options import UtteranceCmvn
from latflow.lattice.io.binary import LatticeStream
from latflow.serving.options import SessionOptions, TritonOptions
from latflow.serving.session import Session
from latflow.serving.triton import model_config, write_repository

OPTIONS = TritonOptions(
    chunk=2000, max_batch=8, max_sequences=20, threads=1, idle=120.0
)


@pytest.fixture(scope="module")
def repository(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton") / "models"
    write_repository({"digits": package, "again": package}, folder, options=OPTIONS)
    return folder


def read_config(text):
    """A protobuf's text form: fields by name, each a list of all its values."""
    tokens = iter(re.findall(r'"(?:[^"\\]|\\.)*"|[{}:]|[^\s{}:]+', text))

    def fields():
        found = {}
        for name in tokens:
            if name == "}":
                break
            if next(tokens) == "{":
                value = fields()
            else:
                value = next(tokens)
                value = json.loads(value) if value[0] in '"-0123456789' else value
            found.setdefault(name, []).append(value)
        return found

    return fields()


def test_the_configuration_has_nvidias_tensors_and_controls(repository):
    config = read_config((repository / "digits" / "config.pbtxt").read_text())
    assert config["name"] == ["digits"]
    assert config["backend"] == ["python"]
    assert config["max_batch_size"] == [8]
    assert config["model_transaction_policy"] == [{"decoupled": ["true"]}]
    tensors = {
        tensor["name"][0]: (tensor["data_type"][0], tensor["dims"])
        for tensor in [*config["input"], *config["output"]]
    }
    assert tensors == {
        "WAV_DATA": ("TYPE_FP32", [2000]),
        "WAV_DATA_DIM": ("TYPE_INT32", [1]),
        "RAW_LATTICE": ("TYPE_STRING", [1]),
        "TEXT": ("TYPE_STRING", [1]),
        "CTM": ("TYPE_STRING", [1]),
    }
    (batching,) = config["sequence_batching"]
    assert batching["max_sequence_idle_microseconds"] == [120_000_000]
    kinds = {
        control["name"][0]: control["control"][0]["kind"][0]
        for control in batching["control_input"]
    }
    assert kinds == {
        "START": "CONTROL_SEQUENCE_START",
        "READY": "CONTROL_SEQUENCE_READY",
        "END": "CONTROL_SEQUENCE_END",
        "CORRID": "CONTROL_SEQUENCE_CORRID",
    }
    assert batching["oldest"][0]["max_candidate_sequences"] == [20]
    assert config["instance_group"] == [{"count": [1], "kind": ["KIND_CPU"]}]
    parameters = {p["key"][0]: p["value"][0] for p in config["parameters"]}
    told = json.loads(parameters["options"]["string_value"][0])
    assert TritonOptions.model_validate(told) == OPTIONS
    assert parameters["sample_rate"]["string_value"] == ["8000"]


def test_instances_on_several_gpus(model):
    options = OPTIONS.replace(gpus=(0, 1), instances=2)
    config = read_config(model_config("a", model.info, options))
    assert config["instance_group"] == [
        {"count": [2], "kind": ["KIND_GPU"], "gpus": [0, 1]}
    ]


def test_the_command_writes_several_models(package, tmp_path, capsys):
    out = tmp_path / "models"
    arguments = ["triton-repository", out, package, f"other={package}"]
    arguments += ["--set", "chunk=1600", "partials=false"]
    assert main([str(argument) for argument in arguments]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["other", "tdnnf"]
    config = read_config((out / "other" / "config.pbtxt").read_text())
    assert config["input"][0]["dims"] == [1600]


def test_faulty_names_and_options_are_refused(package, tmp_path, capsys):
    with pytest.raises(UserError, match="not a name of a model"):
        write_repository({"a/b": package}, tmp_path / "a", options=OPTIONS)
    assert not (tmp_path / "a").exists()
    arguments = ["triton-repository", str(tmp_path / "b"), str(package)]
    assert main([*arguments, "--set", "chunks=1"]) == 1
    assert "did you mean chunk?" in capsys.readouterr().err


@pytest.fixture
def start(repository, monkeypatch):
    """Starts a model of the repository as the backend does; ends it after the test."""
    monkeypatch.setitem(
        sys.modules, "triton_python_backend_utils", triton_backend.module()
    )
    monkeypatch.delitem(sys.modules, "latflow.serving.triton_model", raising=False)
    started = []

    def run(models=repository, **changes):
        version = models / "digits" / "1"
        names = {"__file__": str(version / "model.py"), "__name__": "model"}
        exec((version / "model.py").read_text(), names)
        model = names["TritonPythonModel"]()
        options = json.dumps(OPTIONS.replace(**changes).values())
        parameters = {"options": {"string_value": options}}
        model.initialize(
            {
                "model_config": json.dumps({"parameters": parameters}),
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
                "model_instance_name": "digits_0",
            }
        )
        started.append(model)
        return model

    yield run
    for model in started:
        model.finalize()
    sys.modules.pop("latflow.serving.triton_model", None)


def pcm(digits, utterance):
    return np.rint(digits.samples(utterance) * 32768).clip(-32768, 32767)


def messages(number, samples, chunk=2000, **keywords):
    """All messages of a sequence."""
    begins = range(0, len(samples), chunk)
    return [
        Message(
            number,
            samples[begin : begin + chunk],
            start=begin == 0,
            end=begin == begins[-1],
            **keywords,
        )
        for begin in begins
    ]


def text_of(answer):
    assert answer.error is None
    (text,) = answer.outputs["TEXT"].reshape(-1)
    return text.decode()


def recognized(model, samples):
    """What a session of its own finds."""
    with Session(model, SessionOptions(endpoint="off")) as session:
        events = session.accept(samples.astype(np.int16)) + session.finish()
    return events[-1].segment


def test_sequences_have_the_words_of_sessions(start, digits, model):
    triton = start()
    said = {n: pcm(digits, u) for n, u in enumerate(digits.audio, start=2**40)}
    sequences = [messages(n, samples) for n, samples in said.items()]
    # As the batcher does it: one message of each sequence at a time.
    for step in range(max(map(len, sequences))):
        triton.execute([s[step] for s in sequences if step < len(s)])
    for (number, samples), sequence in zip(said.items(), sequences, strict=True):
        expected = recognized(model, samples).best
        (final,) = sequence[-1].wait()
        assert text_of(final) == expected.text
        assert expected.text
        (ctm,) = final.outputs["CTM"].reshape(-1)
        rows = [line.split() for line in ctm.decode().splitlines()]
        assert [row[4] for row in rows] == expected.text.split()
        assert {row[0] for row in rows} == {str(number)}
        starts = [word.start for word in expected.words]
        assert [float(row[2]) for row in rows] == pytest.approx(starts, abs=1e-3)


def test_what_cannot_be_streamed_is_recognized_at_the_end(
    start, digits, tmp_path, caplog
):
    whole = digits.package(tmp_path / "p", cmvn=UtteranceCmvn(), offline=True)
    write_repository({"digits": whole}, tmp_path / "models", options=OPTIONS)
    assert "digits cannot be streamed (cmvn of type utterance" in caplog.text
    triton = start(tmp_path / "models")
    samples = pcm(digits, next(iter(digits.audio)))
    found = []
    for chunk in (2000, 900):
        sequence = messages(7, samples, chunk)
        for message in sequence:
            triton.execute([message])
        *early, (final,) = [message.wait() for message in sequence]
        assert not any(answer.outputs for answers in early for answer in answers)
        found.append({k: v.item() for k, v in final.outputs.items()})
    assert found[0] == found[1]
    assert len(found[0]["RAW_LATTICE"]) > 100  # costs and states of all frames


def test_partials_tell_of_words_as_they_come(start, digits):
    triton = start()
    sequence = messages(7, pcm(digits, next(iter(digits.audio))))
    for message in sequence:
        triton.execute([message])
        message.wait()
    partials = [text_of(m.answers[0]) for m in sequence[:-1] if m.answers]
    assert partials
    assert all(a != b for a, b in pairwise(partials))
    quiet = start(partials=False)
    sequence = messages(7, pcm(digits, next(iter(digits.audio))))
    quiet.execute(sequence[:1])
    for message in sequence[1:]:
        quiet.execute([message])
    assert [len(message.wait()) for message in sequence] == [
        *([0] * (len(sequence) - 1)),
        1,
    ]


def test_lattices_are_kaldis(start, digits, model):
    triton = start()
    sequence = messages(7, pcm(digits, next(iter(digits.audio))))
    for message in sequence:
        triton.execute([message])
    (final,) = sequence[-1].wait()
    (raw,) = final.outputs["RAW_LATTICE"].reshape(-1)
    stream = LatticeStream(io.BytesIO(raw), Path("answer"))
    lattice = stream.lattice()()
    assert stream.at_end()
    assert lattice.num_states > 1
    words = {model.lang.word_ids[word] for word in text_of(final).split()}
    assert words <= set(lattice.word.tolist())


def test_only_outputs_that_are_asked_for_are_made(start, digits):
    triton = start()
    samples = pcm(digits, next(iter(digits.audio)))
    sequence = messages(7, samples, outputs=["TEXT"])
    for message in sequence:
        triton.execute([message])
    (final,) = sequence[-1].wait()
    assert list(final.outputs) == ["TEXT"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(3, np.zeros(10)), "has not begun"),
        (Message(3, np.zeros(10), start=True, size=2001), "WAV_DATA_DIM 2001"),
        (Message(3, np.full(10, np.nan), start=True), "NaN or infinite"),
    ],
)
def test_faulty_messages_are_told(start, message, error):
    triton = start()
    other = Message(5, np.zeros(100), start=True, end=True)
    triton.execute([message, other])
    (answer,) = message.wait()
    assert error in str(answer.error)
    (answer,) = other.wait()
    assert answer.error is None


def test_no_sequence_is_left_behind(start):
    triton = start(idle=0.01)
    ended = Message(1, np.zeros(100), start=True, end=True)
    triton.execute([ended, Message(2, np.zeros(100), start=True)])
    ended.wait()
    before = MetricFamily.values["latflow_audio_seconds"]
    # One that begins again, as after a client has vanished, replaces the other.
    again = [Message(2, np.zeros(100), start=True) for _ in range(3)]
    for message in again:
        triton.execute([message])
        message.wait()
    spent = MetricFamily.values["latflow_audio_seconds"] - before
    assert spent == pytest.approx(3 * 100 / 8000)
    while triton._scheduler.sessions:
        triton.execute([])
    assert MetricFamily.values["latflow_sessions"] == 0
