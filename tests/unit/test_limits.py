"""Tests that hang or leave files open fail, and say where."""

import shutil
import subprocess
import sys

import pytest

HANGS = """
import threading, time
def waits_for_ever(): time.sleep(600)
def test_that_hangs():
    threading.Thread(target=waits_for_ever, daemon=True).start()
    time.sleep(600)
"""
LEAVES_A_FILE_OPEN = """
def test_that_leaves_a_file_open(tmp_path):
    cycle = [(tmp_path / "file").open("w")]
    cycle.append(cycle)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("test", "limit", "said"),
    [
        (HANGS, 8, ["in waits_for_ever", "in test_that_hangs"]),
        (LEAVES_A_FILE_OPEN, 600, ["ERROR", "Exception ignored in", "/file'"]),
    ],
)
def test_what_is_wrong_is_seen(repository, tmp_path, test, limit, said, workers):
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(repository / name, tmp_path)
    (tmp_path / "test_wrong.py").write_text(test)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-n", str(workers)]
    done = subprocess.run(
        [sys.executable, *command, "-o", f"timeout={limit}", "test_wrong.py"],
        check=False,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode != 0
    for words in said:
        assert words in done.stdout, done.stdout
