"""Signals to Snakemake: its lock, and its jobs."""

import signal
import subprocess
import sys
import threading

import pytest
from snakemake.scheduling.job_scheduler import JobScheduler

from latflow.workflow import signals
from latflow.workflow.signals import handle_signals


def test_the_handler_does_not_wait_for_the_lock_that_it_interrupts(monkeypatch):
    # put back at the end
    monkeypatch.setattr(JobScheduler, "exit_gracefully", JobScheduler.exit_gracefully)
    monkeypatch.setattr(signals, "_end_all", lambda: None)  # not those of the tests
    before = signal.getsignal(signal.SIGINT)
    handle_signals()
    signal.signal(signal.SIGINT, before)
    scheduler = JobScheduler.__new__(JobScheduler)
    scheduler._lock = threading.Lock()
    scheduler._open_jobs = threading.Semaphore(0)
    scheduler._user_kill = None
    is_back = threading.Event()

    def interrupted():
        with scheduler._lock:
            scheduler.exit_gracefully(15, None)
            is_back.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert is_back.wait(60)
    assert scheduler._open_jobs.acquire(timeout=60)  # the scheduler wakes up
    assert scheduler._user_kill == "graceful"


RUN = """
import os, signal, subprocess, sys, threading, time
from latflow.workflow.signals import handle_signals
from snakemake.scheduling.job_scheduler import JobScheduler

# As in a terminal: what a shell runs in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
handle_signals()
scheduler = JobScheduler.__new__(JobScheduler)
scheduler._lock = threading.Lock()
scheduler._open_jobs = threading.Semaphore(0)
signal.signal(signal.SIGTERM, scheduler.exit_gracefully)
job = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); "
job += "print('begun', flush=True); time.sleep(600)"
command = f"cd . && {sys.executable} -c \\"{job}\\"; echo $?"
shell = subprocess.Popen(command, shell=True)
server = subprocess.Popen(["sleep", "600"], start_new_session=True)
try:
    print(server.pid, flush=True)
    shell.wait()
    print("ended", scheduler._user_kill, server.poll(), flush=True)
except KeyboardInterrupt:
    shell.wait()
    print("interrupted", server.poll(), flush=True)
server.kill()
server.wait()
"""


@pytest.mark.parametrize(
    ("number", "last"),
    [(signal.SIGTERM, "ended graceful None"), (signal.SIGINT, "interrupted None")],
)
def test_jobs_end_when_their_run_alone_is_told(number, last):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True
    )
    with process:
        lines = {process.stdout.readline().strip() for _ in range(2)}
        assert "begun" in lines
        process.send_signal(number)
        assert process.stdout.read().splitlines() == ["7", last]
    assert process.returncode == 0


ALIGN = """
import signal, subprocess, sys
from latflow.logs import log_to_terminal
from latflow.workflow.aligning import _ending_with_us

# As in a terminal: what a shell runs in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
log_to_terminal()
run = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit('ended')); "
run += "print('begun', flush=True); time.sleep(600)"
command = [sys.executable, "-c", run]
pipe = subprocess.PIPE
with (
    subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as run,
    _ending_with_us(run, sys.stdout),
):
    for line in run.stdout:
        print(line, end="", flush=True)
print("not told")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_alignment_ends_with_its_run(number):
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ALIGN], stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        told = "ended\nRun the command again: what is done is kept.\n"
        assert process.stdout.read() == told
        error = process.stderr.read()
    assert process.returncode == -number
    assert error.endswith("latflow: interrupted\n") == (number == signal.SIGINT)
