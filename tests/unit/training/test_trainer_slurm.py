"""Ranks under srun: how they are started, where they stand, how they meet.

The real srun is in tests/cluster; here a script does what srun does for us.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from fixtures.training_task import make_trainer, write_task
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.training.launch import launch, write_job
from latflow.training.slurm import horovod_place, srun

NEEDS_HOROVOD = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="Horovod is not installed (envs/install_horovod.sh)",
)
SETTINGS = {
    "data": {"max_sequences": 5},
    "training": {
        "epochs": 2,
        "learning_rate": 0.02,
        "optimizer": {"type": "sgd", "momentum": 0.9},
    },
}
SQUEUE = """#!/bin/sh
[ "$*" = "--noheader --format=%D --jobs=17" ] && echo 2
"""
# Two machines with a rank each.
SRUN = """#!/bin/sh
wanted="--overlap --kill-on-bad-exit=1 --nodes=2 --ntasks=2 --cpus-per-task=2"
[ "$1 $2 $3 $4 $5 $6" = "$wanted --distribution=block" ] || exit 9
shift 6
export SLURM_NTASKS=2 SLURM_LOCALID=0 "SLURM_STEP_TASKS_PER_NODE=1(x2)"
SLURM_PROCID=0 SLURM_NODEID=0 SLURMD_NODENAME=n1 "$@" & first=$!
SLURM_PROCID=1 SLURM_NODEID=1 SLURMD_NODENAME=n2 "$@" || exit 8
wait $first
"""


@pytest.fixture
def in_slurm(tmp_path, monkeypatch):
    """The programs of SLURM, and a job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("squeue", SQUEUE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    tests = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tests))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("horovod", marks=NEEDS_HOROVOD)]
)
@pytest.mark.usefixtures("in_slurm")
def test_ranks_that_srun_starts_make_the_model_of_one_process(tmp_path, backend):
    task = tmp_path / "task"
    write_task(task)
    arguments = {
        "task": str(task),
        "folder": str(tmp_path),
        "settings": {"two": SETTINGS},
        "device": "cpu",
    }
    function = "fixtures.training_task:train_as_rank"
    job = write_job(tmp_path / "job.json", function, arguments)
    launch(job, ranks=2, backend=backend, threads=2, hosts="srun")
    alone = make_trainer(task, tmp_path / "alone", **SETTINGS)
    alone.run()
    found = torch.load(tmp_path / "two" / "final.pt", weights_only=True)
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("in_slurm")
def test_elastic_training_is_refused_under_srun(tmp_path):
    job = write_job(tmp_path / "job.json", "a:b", {"device": "cpu"}, elastic=True)
    with pytest.raises(UserError, match="elastic training cannot be started by srun"):
        launch(job, ranks=2, backend="horovod", hosts="srun", elastic=True)


def test_srun_needs_a_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match="not a job of SLURM"):
        srun(2, 1)


@pytest.mark.usefixtures("in_slurm")
def test_srun_needs_a_job_that_squeue_knows(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    with pytest.raises(UserError, match="machines of job 18"):
        srun(2, 1)


def short_form(counts: list[int]) -> str:
    """SLURM's way to write counts: equal neighbours together."""
    groups: list[list[int]] = []
    for count in counts:
        if groups and groups[-1][0] == count:
            groups[-1].append(count)
        else:
            groups.append([count])
    texts = (f"{g[0]}(x{len(g)})" if len(g) > 1 else str(g[0]) for g in groups)
    return ",".join(texts)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_places_are_those_of_a_table_of_ranks(counts):
    table = [(m, local) for m, count in enumerate(counts) for local in range(count)]
    for rank, (machine, local) in enumerate(table):
        place = horovod_place(
            {
                "SLURM_PROCID": str(rank),
                "SLURM_NODEID": str(machine),
                "SLURM_LOCALID": str(local),
                "SLURM_STEP_TASKS_PER_NODE": short_form(counts),
                "SLURMD_NODENAME": f"n{machine}",
            }
        )
        column = [m for m, other in table if other == local]
        assert place == {
            "HOROVOD_HOSTNAME": f"n{machine}",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(len(table)),
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(counts[machine]),
            "HOROVOD_CROSS_RANK": str(column.index(machine)),
            "HOROVOD_CROSS_SIZE": str(len(column)),
        }
