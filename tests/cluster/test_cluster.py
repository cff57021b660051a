"""The whole pipeline on a real SLURM: two nodes, ranks on both, jobs that end badly.

The profile is the real one. What is changed is what this cluster (`daemons.py`) and
jobs of seconds need: few cores a job, a look at their states each second
(`impatient.py`). Other tests run beside these, which mostly wait: hence long limits.
"""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml
from cluster.daemons import Cluster, Job, jobs, pids_of, wait_until, why_not

HERE = Path(__file__).resolve().parent
MINUTES = 60.0
CORES = 3  # of a job: more than the machines of our tests have
WEIGHTS = "results/cluster/nnet/net/weights.safetensors"
CHECKPOINTS = "results/cluster/checkpoints/net"
PREEMPTIONS = 10
RANKS = {"tasks": 2, "nodes": 2, "mpi": "srun", "gpu": 2, "tasks_per_gpu": 0}

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Run:
    """A running Snakemake and what it has written.

    Attributes:
        folder: its working directory.
        process: Snakemake.
        first: the greatest job number that was there before.
    """

    def __init__(self, checkout: Path, folder: Path, *arguments: str, **resources):
        self.folder = folder
        self.first = max((int(job.id) for job in jobs()), default=0)
        self.log = folder / f"snakemake{len(list(folder.glob('snakemake*.log')))}.log"
        profile = checkout / "profiles/slurm"
        command = [
            sys.executable, HERE / "impatient.py",
            "--snakefile", checkout / "Snakefile",
            "--profile", profile,
            "--configfile", "experiment.yaml",
            "--max-threads", CORES,
            "--set-threads", "train_network=1",
            "--set-resources", *_set_resources(profile, resources),
            *arguments,
        ]  # fmt: skip
        own = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        kept = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env={**kept, **own},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def jobs(self, rule: str = "") -> list[Job]:
        """Its jobs, or those of a rule, in their order."""
        folder = f"{self.folder}"
        return [
            job
            for job in jobs()
            if int(job.id) > self.first
            and job["WorkDir"] == folder
            and rule in job["Comment"]
        ]

    def job(self, rule: str, number: int = 0) -> Job:
        """Wait until a rule's job, counted from 0, is running."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.told()
            found = self.jobs(rule)
            return len(found) > number and found[number].is_running

        wait_until(f"job {number} of {rule} runs", is_there, 6 * MINUTES)
        return self.jobs(rule)[number]

    def finish(self, minutes: float = 12):
        """Wait for its good end."""
        try:
            status = self.process.wait(minutes * MINUTES)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not finished\n{self.told()}") from None
        assert status == 0, self.told()

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]

    def course(self) -> list[dict]:
        """Lines of the training's log so far."""
        paths = [
            *(self.folder / CHECKPOINTS).glob("*/log.jsonl"),
            self.folder / "results/cluster/nnet/net/log.jsonl",
        ]
        lines = [p.read_text().splitlines() for p in paths if p.exists()]
        return [
            json.loads(line) for line in (lines[0] if lines else []) if line[-1:] == "}"
        ]

    def meet_training(self, epochs: int):
        """Wait until some epochs are done and the next one has begun."""

        def is_within() -> bool:
            assert self.process.poll() is None, self.told()
            kinds = [line["kind"] for line in self.course()]
            done = kinds.count("epoch")
            return done >= epochs and kinds[-1] == "step"

        wait_until(f"training is after {epochs} epochs", is_within, 6 * MINUTES)

    def meet_step(self, step: int) -> tuple[Job, list[int]]:
        """Wait until the training has made so many steps, and stop it there.

        SLURM lets stopped processes go on when it ends their job.

        Returns:
            The job, and the pids that were stopped.
        """

        def is_there() -> bool:
            assert self.process.poll() is None, self.told()
            course = self.course()
            return bool(course) and course[-1]["step"] >= step

        wait_until(f"training has made {step} steps", is_there, 6 * MINUTES)
        job = self.jobs("train_network")[-1]
        pids = pids_of(job)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return job, pids

    def within_epoch(self) -> list[Path]:
        """Checkpoints that lie within an epoch."""
        found = (self.folder / CHECKPOINTS).glob("*/e*-b*.pt")
        return [p for p in found if not p.stem.endswith("b00000000")]


def _set_resources(profile: Path, changes: dict[str, dict]) -> list[str]:
    """Those of the profile, which the command line would replace, with changes."""
    given = yaml.safe_load((profile / "profile.yaml").read_text())["set-resources"]
    for rule, resources in changes.items():
        given[rule] = {**given.get(rule, {}), **resources}
    return [f"{r}:{name}={v}" for r, of in given.items() for name, v in of.items()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The daemons."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def checkout(repository, tmp_path_factory):
    """A copy of the workflow that nobody edits while the tests run."""
    folder = tmp_path_factory.mktemp("checkout")
    # What is compiled comes along, but for what is just being written.
    ignored = shutil.ignore_patterns("*.egg-info", "*.tmp.*", "*.pyc.*")
    for name in ("workflow", "src", "config", "profiles", "envs"):
        shutil.copytree(repository / name, folder / name, ignore=ignored)
    shutil.copy(repository / "Snakefile", folder)
    return folder


@pytest.fixture(scope="module")
def start(cluster, checkout):
    """Starts Snakemake; what still runs in the end is killed."""
    started = []

    def begin(folder, *arguments, **resources) -> Run:
        started.append(Run(checkout, folder, *arguments, **resources))
        return started[-1]

    yield begin
    for run in started:
        if run.process.poll() is None:
            run.kill()


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    """The whole pipeline, with a training on both nodes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for path in ("experiment.yaml", "network.yaml", "../e2e/paced.py"):
        shutil.copy(HERE / path, folder)
    run = start(folder, train_network=RANKS)
    run.finish(20)
    return run


def copy_of(run: Run, folder: Path, *, without: Sequence[str]) -> Path:
    """A copy of a finished run without some of its results, times kept."""
    left = shutil.ignore_patterns("snakemake*.log", ".cache")
    shutil.copytree(run.folder, folder, ignore=left)
    for path in (folder / "results/cluster" / name for name in without):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.fixture(scope="module")
def stuck(start, undisturbed, tmp_path_factory):
    """A run whose first job hangs until its time limit; it goes on beside the tests."""
    folder = tmp_path_factory.mktemp("stuck") / "run"
    copy_of(undisturbed, folder, without=["graph"])
    run = start(folder, "--", "graphs", make_graph={"runtime": "attempt ** 5"})
    job = run.job("make_graph")
    # SLURM tells of a job before its Python runs: none, and nothing would be stopped.
    wait_until("Python runs in the job", lambda: pids_of(job))
    for pid in pids_of(job):
        os.kill(pid, signal.SIGSTOP)
    return run


def same_model(run: Run, other: Run) -> bool:
    return (run.folder / WEIGHTS).read_bytes() == (other.folder / WEIGHTS).read_bytes()


def test_the_pipeline_runs_on_the_cluster(undisturbed, cluster):
    table = pd.read_csv(undisturbed.folder / "results/cluster/wer.tsv", sep="\t")
    assert set(table.system) == {"mono", "net"}
    assert (undisturbed.folder / "results/cluster/report.html").is_file()
    found = undisturbed.jobs()
    assert {job["JobState"] for job in found} == {"COMPLETED"}
    # SLURM may start each again, and each has left its log.
    assert {job["Requeue"] for job in found} == {"1"}
    assert all(Path(job["StdOut"]).is_file() for job in found)
    # The machine of Snakemake has fewer cores than jobs may ask for.
    (training,) = undisturbed.jobs("train_mono")
    assert training["NumCPUs"] == f"{CORES}"
    # Short ones share a job: four rules of the language, normalization of three splits.
    comments = [job["Comment"] for job in found]
    assert sum("lang" in comment for comment in comments) == 1
    assert sum("compute_cmvn" in comment for comment in comments) == 1


def test_a_training_has_ranks_on_both_nodes(undisturbed, cluster):
    (job,) = undisturbed.jobs("train_network")
    assert job["NumNodes"] == "2"
    assert job["NumTasks"] == "2"
    assert "gpu:2" in job["TresPerJob"]
    for node in ("n1", "n2"):
        text = (cluster.run / f"slurmd.{node}.log").read_text()
        assert f"launch task StepId={job.id}.0 " in text
    meta = json.loads((undisturbed.folder / WEIGHTS).with_name("meta.json").read_text())
    assert meta["options"]["backend"] == "auto"
    log = undisturbed.folder / "results/cluster/logs/train_network/net.log"
    backend = "horovod" if importlib.util.find_spec("horovod") else "torch"
    assert f"2 ranks ({backend}) started by srun" in log.read_text()


def test_a_training_preempted_ten_times_with_two_retries_makes_the_same_model(
    undisturbed, stuck, start, tmp_path
):
    folder = copy_of(undisturbed, tmp_path / "run", without=["nnet", "checkpoints"])
    run = start(folder, "--retries", "2", "--", "nnet_net", train_network=RANKS)
    last = undisturbed.course()[-1]["step"]
    chance = random.Random(18)
    steps = sorted(chance.sample(range(1, last // 2), PREEMPTIONS))
    # As SLURM does with a job that gives way to another, or whose machine fails; and
    # with one that is ended for good, which Snakemake then tries again.
    ends = ["requeue", "cancel"] * (PREEMPTIONS // 2)
    chance.shuffle(ends)
    reached, within = 0, 0
    for step, end in zip(steps, ends, strict=True):
        # Further than the attempt before came, by one step at least.
        job, pids = run.meet_step(max(step, reached + 1))
        command = ["scontrol", "requeue"] if end == "requeue" else ["scancel"]
        subprocess.run([*command, job.id], check=True)
        # SLURM calls a job out while its ranks still write their checkpoint; and those
        # of the next attempt, which has the same number, may be there before they end.
        before = set(pids)
        wait_until(
            "its processes are gone",
            lambda job=job, before=before: before.isdisjoint(pids_of(job)),
        )
        reached = run.course()[-1]["step"]
        within += bool(run.within_epoch())
    # Not all: a step where an attempt ends may be an epoch's last.
    assert within > PREEMPTIONS // 2
    run.finish()
    found = run.jobs("train_network")
    assert [j["JobState"] for j in found[:-1]] == ["CANCELLED"] * ends.count("cancel")
    assert found[-1]["JobState"] == "COMPLETED"
    assert sum(int(j["Restarts"]) for j in found) == ends.count("requeue")
    # Each came further: none asked for more than the first.
    assert len({j.minutes for j in found}) == 1
    told = run.log.read_text(errors="replace")
    assert told.count("continues from a new checkpoint") == ends.count("cancel")
    assert same_model(run, undisturbed)


def test_snakemake_is_killed_and_resumed(undisturbed, stuck, start, tmp_path):
    # All that follows from the network: Snakemake does not miss files in between.
    lost = ["nnet", "checkpoints", "decode/net", "score/net", "wer.tsv"]
    folder = copy_of(undisturbed, tmp_path / "run", without=lost)
    run = start(folder, "--", "score", train_network=RANKS)
    job = run.job("train_network")
    run.meet_training(epochs=2)
    run.kill()
    # docs/cluster.md: first the jobs that it left, then the lock, then go on.
    subprocess.run(["scancel", f"--name={job['JobName']}"], check=True)
    wait_until("the job is out", lambda: not run.jobs("train_network")[0].is_left)
    assert run.within_epoch()
    start(folder, "--unlock").finish()
    again = start(folder, "--", "score", train_network=RANKS)
    again.finish()
    assert same_model(again, undisturbed)
    name = "results/cluster/wer.tsv"
    assert (folder / name).read_text() == (undisturbed.folder / name).read_text()


def test_a_job_that_exceeds_its_time_gets_more(stuck):
    stuck.finish()
    found = [(job["JobState"], job.minutes) for job in stuck.jobs("make_graph")]
    assert found == [("TIMEOUT", 1), ("COMPLETED", 32)], stuck.told()
