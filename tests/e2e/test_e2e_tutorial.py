"""The commands of the tutorial, and a new user's, do what they say."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys

import pytest

from latflow.cli.main import _parser
from latflow.provenance import PACKAGE_ROOT

# Of those that take long, go on until they are stopped, or have tests of their own, the
# arguments are looked at.
LONG = ("transcribe", "align", "serve", "plan", "explain")


def commands(repository):
    page = (repository / "docs/tutorial.md").read_text()
    blocks = re.findall("```sh\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_all_commands_exist(repository):
    parser = _parser()
    found = [line for line in commands(repository) if line.startswith("latflow ")]
    assert len(found) == 12
    for line in found:
        parser.parse_args(shlex.split(line)[1:])


@pytest.mark.slow
def test_commands_up_to_the_run(repository, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT.parent)}
    here, said = tmp_path, ""
    for line in commands(repository):
        if line.startswith("cd "):
            here = here / line.removeprefix("cd ")
            continue
        _, command, *rest = shlex.split(line)
        if command in LONG or rest == ["--cores", "2"]:  # the training
            continue
        if command == "run" and "corpus" in rest:
            rest += [
                "-o",
                "corpus.train.utterances=16",
                "-o",
                "corpus.dev.utterances=4",
            ]
            rest += ["-o", "corpus.test.test.utterances=4", "--quiet", "rules"]
        done = subprocess.run(
            [sys.executable, "-m", "latflow.cli.main", command, *rest],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        said += done.stdout
    assert "train: 16 utterances" in said
    assert "0 errors, " in said  # doctor
    assert "train_lfmmi" in said  # run -n


@pytest.mark.slow
def test_a_new_user_goes_from_recordings_to_a_served_model(repository, tmp_path):
    """By five commands and no edit; of fewer recordings than make sense."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, repository / "benchmarks/new_user.py"),
        *("--folder", tmp_path / "user", "--recordings", "24", "--port", str(port)),
        *("--set", "nnet.systems.chain.training.epochs=1"),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout[done.stdout.index('{\n "recordings"') :]
    result, _ = json.JSONDecoder().raw_decode(printed)
    assert result["commands"] == 5
    assert result["recordings"] == 24
    assert result["textgrids"] == 6
    assert isinstance(result["vosk"], str)
    assert result["openai"].split() == result["transcribe"].split()
