"""A job in a fork of the run's server is to everybody as if it were its own process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fixtures.waiting import wait_until

from latflow.workflow import fork_server
from latflow.workflow.settings import search_path

# Stages, and the object `snakemake` of their scripts; the server imports them too.
MODULE = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from latflow.errors import UserError

IMPORTED_BY = os.getpid()

class Named(list):
    def __init__(self, **named):
        super().__init__(named.values())
        self.named = named
    def items(self):
        return self.named.items()
    def __getitem__(self, name):
        return self.named[name]

def task(stage, threads):
    return SimpleNamespace(
        rule="try", log=["results/toy/logs/try/one.log"], input=Named(),
        output=Named(told="results/toy/told/one.txt"), params=Named(stage=stage),
        wildcards=Named(), config={}, threads=threads, resources={},
    )

def tell(out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    facts = [IMPORTED_BY, os.getppid(), os.getpid(), os.environ["MINE"], sys.argv[0]]
    (out_dir / "one.txt").write_text(" ".join(map(str, facts)))
    print("said", sys.stdin.read())

def fail(out_dir: Path) -> None:
    raise UserError("no good", remedy="try again")

def leave(out_dir: Path) -> None:
    sys.exit(7)

def die(out_dir: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

def wait(out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "one.txt").write_text(str(os.getpid()))
    time.sleep(600)

def listen(out_dir: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    wait(out_dir)
"""
SCRIPT = """
import sys, stages
from latflow.workflow.fork_server import run
run(stages.task(f"{sys.argv[1]} 0123456789abcdef", int(sys.argv[2])))
"""


@pytest.fixture
def server(tmp_path):
    """Environment of the jobs of a run, which has a server, and the run itself."""
    (tmp_path / "stages.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    program = (
        "import os, time; from latflow.workflow import fork_server as f; f.start();"
        "print(os.environ[f._ADDRESS], flush=True); time.sleep(3600)"
    )
    paths = f"{tmp_path}{os.pathsep}{search_path()}"
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    environment.pop("LATFLOW_FORK_SERVER", None)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        address = process.stdout.readline().strip()
        yield {**environment, "LATFLOW_FORK_SERVER": address, "MINE": "yes"}, process
        process.kill()


def started(environment, folder, stage, threads=1, **options):
    """Start the process of a job."""
    return subprocess.Popen(
        [sys.executable, "script.py", f"stages.{stage}", str(threads)],
        env=environment, cwd=folder, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def told(folder):
    """What the job has written, when it has."""
    path = folder / "results/toy/told/one.txt"
    wait_until(lambda: path.exists() and path.read_text())
    return path.read_text()


def has_ended(pid):
    """Whether a process has ended; nobody may have asked how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_job_has_what_its_process_has(server, tmp_path):
    environment, process = server
    job = started(environment, tmp_path, "tell")
    out, err = job.communicate("hello")
    assert (job.returncode, out.strip()) == (0, "said hello"), err
    imported_by, parent, pid, mine, script = told(tmp_path).split()
    (child,) = psutil.Process(process.pid).children()
    assert {imported_by, parent} == {str(child.pid)}  # a fork of the server
    assert pid not in {imported_by, str(job.pid)}
    assert (mine, script) == ("yes", "script.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "status", "said"),
    [("fail", 1, "no good - try again"), ("leave", 7, ""), ("die", 1, "was killed")],
)
def test_a_job_ends_as_it_would_without_a_server(server, tmp_path, stage, status, said):
    job = started(server[0], tmp_path, stage)
    _, err = job.communicate()
    assert job.returncode == status
    if said:
        assert said in err
        assert "Traceback" not in err
    if stage != "die":
        alone = started({**server[0], "LATFLOW_FORK_SERVER": "off"}, tmp_path, stage)
        assert alone.communicate()[1].splitlines()[-1:] == err.splitlines()[-1:]
        assert alone.returncode == status


def passes_signals_on(pid):
    """Whether a process has a handler of SIGTERM (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = dict(line.split(":", 1) for line in lines)["SigCgt"]
    return int(caught, 16) >> signal.SIGTERM - 1 & 1


@pytest.mark.parametrize(("stage", "status"), [("listen", 3), ("wait", -15)])
def test_signals_reach_the_job(server, tmp_path, stage, status):
    job = started(server[0], tmp_path, stage)
    pid = int(told(tmp_path))
    wait_until(lambda: passes_signals_on(job.pid))
    job.send_signal(signal.SIGTERM)
    job.communicate()
    assert job.returncode == status
    wait_until(lambda: has_ended(pid))


def test_a_job_ends_with_the_process_that_waits_for_it(server, tmp_path):
    job = started(server[0], tmp_path, "wait")
    pid = int(told(tmp_path))
    assert pid != job.pid
    job.kill()
    job.communicate()
    wait_until(lambda: has_ended(pid))


@pytest.mark.slow
def test_a_job_that_nobody_waits_for_is_not_begun(tmp_path):
    ours, theirs = socket.socketpair()
    theirs.close()
    job = fork_server._Job(None, sys.executable, {}, str(tmp_path), [], [])
    with ours:
        assert fork_server._work(ours, job) == 1
    assert Path.cwd() != tmp_path


def test_jobs_with_threads_and_without_a_server_are_done_by_their_process(
    server, tmp_path
):
    environment, process = server
    (child,) = psutil.Process(process.pid).children()
    for threads, address in [(2, None), (1, "off"), (1, "/nowhere/jobs")]:
        mine = dict(environment)
        if address is not None:
            mine["LATFLOW_FORK_SERVER"] = address
        job = started(mine, tmp_path, "tell", threads)
        job.communicate("")
        assert told(tmp_path).split()[0] == str(job.pid)
    process.kill()
    wait_until(lambda: has_ended(child.pid))  # the server ends with the run
    assert not os.path.exists(environment["LATFLOW_FORK_SERVER"])


STAGES = (
    "latflow.corpus.prepare.prepare_corpus",
    "latflow.features.extract.extract_features",
    "latflow.lang.prepare.make_lang",
    "latflow.gmm.train.train_mono",
    "latflow.decode.lattices.decode_lattices",
    "latflow.scoring.score.score",
    "latflow.training.train.train_network",
    "latflow.report.build.make_report",
)
IMPORTS = """
import sys, threading
from types import SimpleNamespace
from latflow.workflow import fork_server

for stage in sys.argv[1:]:
    task = SimpleNamespace(params={"stage": stage})
    for _ in range(fork_server._MANY):
        fork_server._import(SimpleNamespace(task=task))
    print(fork_server.num_threads())
thread = threading.Thread(target=sys.stdin.read, daemon=True)
thread.start()
print(fork_server.num_threads())
"""


def test_stages_with_workers_are_forked_with_several_threads(server, tmp_path):
    environment, _ = server
    (tmp_path / "script.py").write_text(
        "import stages, sys\nfrom latflow.workflow import fork_server as f\n"
        "f.run(stages.task(sys.argv[1] + ' 0123456789abcdef workers', 2))\n"
    )
    job = started(environment, tmp_path, "tell")
    job.communicate("")
    imported_by, parent, *_ = told(tmp_path).split()
    assert imported_by == parent != str(job.pid)


def test_the_server_has_no_thread_but_its_own_when_it_forks():
    environment = {**os.environ, **fork_server._ONE_THREAD}
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS, *STAGES],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        # In the end it has a thread, which waits for us.
        counts = [process.stdout.readline().strip() for _ in (*STAGES, "")]
        process.communicate("")
    assert counts == ["1"] * len(STAGES) + ["2"]
