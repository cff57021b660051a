"""What runs where the system has nothing that only Linux has, as on macOS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.serving_package import make_digits

from latflow.corpus.espeak import Utterance, speak_job
from latflow.corpus.grammar import lexicon_lines

pytestmark = pytest.mark.slow
WITHOUT = Path(__file__).parent.parent / "reference/without_linux"
# Of an accelerator, or built only where someone asks for it.
OPTIONAL = {"horovod", "triton", "triton_python_backend_utils"}
IMPORT_ALL = f"""
import importlib, pkgutil, latflow
found = 0
for module in pkgutil.walk_packages(latflow.__path__, "latflow."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        found += 1
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in {OPTIONAL}, (module.name, error)
print(found)
"""
HAS_GONE = """
import ctypes, os, socket
assert not hasattr(os, "posix_fadvise")
assert not hasattr(ctypes.CDLL(None), "prctl")
assert os.listdir("/proc")
from latflow.workflow.fork_server import num_threads
try:
    num_threads()
except FileNotFoundError:
    print("gone")
"""


def without_linux(*command, folder=None):
    """Run a program of Python on such a system; returns what it prints."""
    paths = [str(WITHOUT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def latflow(*arguments):
    return without_linux("-m", "latflow.cli.main", *arguments)


def test_what_the_tests_take_away_has_gone():
    assert without_linux("-c", HAS_GONE) == "gone\n"


def test_every_module_is_imported(repository):
    count = int(without_linux("-c", IMPORT_ALL))
    assert count > 0.9 * len([*(repository / "src/latflow").rglob("*.py")])


def test_whole_job_is_planned(repository):
    recipe = repository / "tests/e2e/tiny.yaml"
    out = without_linux(
        "-m", "snakemake", "--configfile", recipe, "--cores", "2", "-n",
        folder=repository,
    )  # fmt: skip
    assert "train_ranks" in out or "train_network" in out


def test_speech_is_transcribed(tmp_path):
    digits = make_digits(tmp_path)
    package = digits.package(tmp_path / "package")
    texts = tmp_path / "texts"
    latflow("transcribe", package, *digits.audio.values(), "--out", texts)
    words = [(texts / f"{name}.txt").read_text().split() for name in digits.audio]
    said = [digits.texts[name].split() for name in digits.audio]
    assert sum(map(len, words)) >= 0.8 * sum(map(len, said))
    assert sum(a == b for a, b in zip(words, said, strict=True)) > len(said) / 2


def test_recordings_are_aligned(tmp_path):
    (tmp_path / "lexicon.txt").write_text("".join(f"{x}\n" for x in lexicon_lines()))
    folder = tmp_path / "corpus/m1"
    folder.mkdir(parents=True)
    utterances = []
    for number in range(12):
        text = ("wash the red cup", "sing to the cat")[number % 2]
        path = folder / f"{number:02}.flac"
        path.with_suffix(".txt").write_text(text)
        utterances.append(
            Utterance(
                text=text, rate=150, pitch=50, lead_s=0.2, tail_s=0.2, peak_db=-3.0,
                snr_db=30.0, noise_key=[number], path=str(path),
            )
        )  # fmt: skip
    job = {"voice": "en-us+m1", "seed": 1, "sample_rate": 16000}
    speak_job({**job, "utterances": utterances})
    given = [tmp_path / name for name in ("corpus", "lexicon.txt", "out")]
    out = latflow("align", *given, "--cores", "2")
    assert "12 utterances of 12 recordings are aligned" in out
