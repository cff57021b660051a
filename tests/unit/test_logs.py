"""User errors are one line and status 1, bugs are tracebacks in the log."""

import pickle
import subprocess
import sys

from latflow.errors import UserError


def run(code, tmp_path):
    log = tmp_path / "job.log"
    program = f"from latflow.logs import log_to; log_to({str(log)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done, log.read_text()


def test_user_error_is_one_line_in_log_and_terminal(tmp_path):
    code = (
        "from latflow.errors import UserError\n"
        "raise UserError('no audio', file='wav.scp', utterance='u1', remedy='add it')"
    )
    done, log = run(code, tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: wav.scp: u1: no audio - add it\n"
    assert "Traceback" not in log
    assert "wav.scp: u1: no audio - add it" in log


def test_error_is_told_more_of_further_up():
    inner = UserError("no audio", utterance="u1", remedy="add it")
    outer = inner.at(file="wav.scp")
    assert str(outer) == "wav.scp: u1: no audio - add it"
    assert str(outer.at(utterance="u2")) == "wav.scp: u2: no audio - add it"
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)
    assert str(inner) == "u1: no audio - add it"


def test_bug_leaves_its_traceback_in_the_log(tmp_path):
    done, log = run("1 / 0", tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in log
    assert "Traceback" in log


def test_an_interruption_says_how_to_go_on(tmp_path):
    raised = "from latflow.errors import Interrupted\nraise Interrupted"
    for code in (raised, "raise KeyboardInterrupt"):
        done, log = run(code, tmp_path)
        assert done.returncode != 0
        assert "interrupted" in done.stderr
        assert "same command again" in done.stderr
        assert "Traceback" not in log + done.stderr


def test_bars_and_libraries_speak_in_the_log_of_a_job(tmp_path):
    code = (
        "import os, sys, time\n"
        "from latflow.logs import library_output, progress\n"
        "with library_output(): os.write(2, b'[I] Reading\\n')\n"
        "assert list(progress([1, 2], 'count')) == [1, 2]\n"
        "print('after', file=sys.stderr)"
    )
    done, log = run(code, tmp_path)
    assert done.stderr == "after\n"
    assert log == "[I] Reading\n"


STOPPED = """
import sys
from latflow.logs import progress
for shown in ({}, {"delay": 60.0}):
    try:
        for _ in progress([1, 2], "count", **shown):
            raise ValueError
    except ValueError:
        print("error", file=sys.stderr)
"""


def test_an_error_begins_its_line_behind_a_bar(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, check=True
    )
    # None behind a bar that was not shown.
    assert done.stderr.endswith("it/s]\nerror\nerror\n")
    done, log = run(STOPPED, tmp_path)
    assert (done.stderr, log) == ("error\nerror\n", "")
