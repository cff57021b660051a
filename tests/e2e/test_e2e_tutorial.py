"""A new user's way, as in the tutorial, whose own commands test_e2e_demo.py runs."""

import json
import os
import socket
import subprocess
import sys

import pytest

from latflow.provenance import PACKAGE_ROOT


@pytest.mark.slow
def test_a_new_user_goes_from_recordings_to_a_served_model(repository, tmp_path):
    """By five commands and no edit; of fewer recordings than make sense."""
    command = [
        *(sys.executable, repository / "benchmarks/new_user.py"),
        *("--folder", tmp_path / "user", "--recordings", "24"),
        *("--set", "nnet.systems.chain.training.epochs=1"),
    ]
    with socket.socket() as kept:
        # Minutes pass before the server takes the port: nobody else gets it meanwhile.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        done = subprocess.run(
            [*command, "--port", str(kept.getsockname()[1])],
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
