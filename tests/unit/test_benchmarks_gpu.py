"""The way to the benchmarks on a GPU: what their programs print, limits."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks/gpu.py"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ('[INFO] warm-up {x}\n{\n "a": {\n  "b": 2\n }\n}\n', {"a": {"b": 2}}),
        ("{not this}\n[3, 4]\n", [3, 4]),
    ],
)
def test_json_at_the_end_is_found_behind_other_words(gpu, text, expected):
    assert gpu.last_json(text) == expected


@pytest.mark.parametrize("text", ["", "no figures", "[1, 2] and then words", "{"])
def test_a_text_without_json_is_refused(gpu, text):
    with pytest.raises(ValueError, match="no JSON"):
        gpu.last_json(text)


def test_a_part_without_json_fails_and_ends_nothing(gpu, tmp_path, capsys):
    part = gpu.Part("x", ["-c", "print('[chatter')"], 30.0, lambda report: report)
    found = gpu.run(part, part.limit, tmp_path)
    assert found["status"].startswith("failed")
    assert found["said"] == ["[chatter"]
    gpu.show("x", part, found)
    assert "[chatter" in capsys.readouterr().out


def test_a_part_with_json_is_reported(gpu, tmp_path):
    part = gpu.Part("x", ["-c", "print('[a]'); print('{\"b\": 1}')"], 30.0, lambda r: r)
    found = gpu.run(part, part.limit, tmp_path)
    assert (found["status"], found["report"]) == ("done", {"b": 1})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_limits_of_all_parts_fit_the_whole(gpu, tmp_path, device):
    limits = [part.limit for part in gpu.parts(device, tmp_path, 1)]
    assert sum(limits) <= 60 * gpu.MINUTES - gpu.RESERVE
