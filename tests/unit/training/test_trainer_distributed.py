"""Several ranks make the steps of one process; failures end all of them."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fixtures import training_task
from fixtures.training_task import make_trainer, write_task

from latflow.errors import UserError
from latflow.training import launch as launching
from latflow.training.distributed import Backend, Rank, open_backend, resolve_backend
from latflow.training.launch import RESUME_STATUS, launch, threads_of_rank, write_job

NEEDS_HOROVOD = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="Horovod is not installed (envs/install_horovod.sh)",
)
LIMIT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
BACKENDS = ["torch", pytest.param("horovod", marks=NEEDS_HOROVOD)]
TRAINING = {
    "epochs": 2,
    "learning_rate": 0.02,
    "clip_norm": 0.3,
    "gradient_noise": 1e-4,
    "optimizer": {"type": "sgd", "momentum": 0.9},
}


PLAIN = {"type": "sgd"}
AVERAGING = {
    **TRAINING,
    "epochs": 1,
    "gradient_noise": 0.0,
    "clip_norm": None,
    "optimizer": PLAIN,
    "schedule": {"type": "constant"},
    "final": "last",
}
WHOLE = {"max_sequences": 100, "sequences": {"type": "utterances"}}
SETTINGS = {
    # 5 sequences a batch do not divide by 2, and leave a smaller batch at the end
    "uneven": {"data": {"max_sequences": 5}, "training": TRAINING},
    # one sequence a batch: in every step one of two ranks has nothing
    "empty": {"data": {"max_sequences": 1}, "training": {**TRAINING, "epochs": 1}},
    # of which the one that has seen something makes the running statistics
    "normalized": {
        "data": {"max_sequences": 1},
        "training": {**TRAINING, "epochs": 1, "dev_interval": 2},
        "layers": {
            "hidden": {"class": "linear", "size": 12, "activation": "tanh"},
            "norm": {"class": "batch_norm"},
            "output": {"class": "output"},
        },
    },
    "accumulated": {
        "data": {"max_sequences": 4},
        "training": {
            **TRAINING,
            "optimizer": {"type": "scaled_adam", "clip_history": 4},
            "accumulate": 2,
            "micro_sequences": 3,
        },
    },
    # whose masks do not depend on the rank that draws them
    "masked": {
        "data": {"max_sequences": 5},
        "training": TRAINING,
        "layers": {
            "mask": {"class": "specaugment", "from": "data", "time_share": 0.3},
            "hidden": {"class": "linear", "size": 12, "activation": "tanh"},
            "output": {"class": "output"},
        },
    },
    "averaging": {"data": WHOLE, "training": {**AVERAGING, "parameter_averaging": 1}},
    "averaging_often": {
        "training": {
            **TRAINING,
            "learning_rate": 0.1,
            "epochs": 6,
            "parameter_averaging": 2,
            "dev_interval": 3,
            "final": "last",
        }
    },
}


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def test_modules():
    """Ranks are processes that must find the job's function."""
    tests = str(Path(__file__).resolve().parents[2])
    with pytest.MonkeyPatch.context() as patch:
        path = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", f"{tests}{os.pathsep}{path}")
        yield


@pytest.fixture(scope="module", params=BACKENDS)
def by_two_ranks(request, task, tmp_path_factory):
    """Folder with the parameters that two ranks end with, by the settings' name."""
    folder = tmp_path_factory.mktemp(request.param)
    run(task, folder, request.param, SETTINGS)
    return folder


def run(
    task: Path,
    folder: Path,
    backend: str,
    settings,
    *,
    fault=None,
    elastic=False,
) -> None:
    arguments = {
        "task": str(task),
        "folder": str(folder),
        "settings": settings,
        "device": "cpu",
        "fault": fault and {**fault, "mark": str(folder / "failed")},
    }
    function = "fixtures.training_task:train_as_rank"
    job = write_job(folder / "job.json", function, arguments, elastic=elastic)
    launch(job, ranks=2, backend=backend, threads=2, elastic=elastic)


def test_ranks_write_to_the_log_of_the_job_and_the_first_has_bars(
    tmp_path, monkeypatch
):
    log = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(logging.getLogger(), "handlers", [log])
    function = "fixtures.rank_operations:work_as_rank"
    job = write_job(tmp_path / "job.json", function, {"device": "cpu"})
    launch(job, ranks=2, backend="none", threads=2)
    log.close()
    assert (tmp_path / "log").read_text().count("some work:   0%") == 1


def parameters(folder: Path, name: str):
    return torch.load(folder / name / "final.pt", weights_only=True)


def assert_close(one, other) -> None:
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["uneven", "empty", "normalized", "accumulated", "masked"]
)
def test_two_ranks_make_the_model_of_one_process(task, tmp_path, by_two_ranks, name):
    trainer = make_trainer(task, tmp_path, **SETTINGS[name])
    trainer.run()
    assert_close(trainer.network.state_dict(), parameters(by_two_ranks, name))


def test_averaged_parameters_are_the_mean_of_ranks_that_train_alone(
    task, tmp_path, by_two_ranks
):
    found = []
    for rank in (0, 1):
        settings = {"data": WHOLE, "training": AVERAGING}
        trainer = make_trainer(task, tmp_path / str(rank), **settings)
        trainer.batches = Share(trainer.batches, rank)
        trainer.run()
        found.append(trainer.network.state_dict())
    mean = {name: (value + found[1][name]) / 2 for name, value in found[0].items()}
    assert_close(mean, parameters(by_two_ranks, "averaging"))


class Share:
    """What one of two ranks sees of a batch source, as if it were all."""

    def __init__(self, whole, rank: int) -> None:
        self.num_batches = whole.num_batches
        self._whole, self._rank = whole, rank

    def epoch(self, epoch, *, first_batch=0, rank=0, size=1):
        assert (rank, size) == (0, 1)
        return self._whole.epoch(
            epoch, first_batch=first_batch, rank=self._rank, size=2
        )

    def pop_statistics(self):
        return {}


def test_parameter_averaging_every_few_steps_learns(task, tmp_path, by_two_ranks):
    trainer = make_trainer(task, tmp_path)
    before = trainer.evaluate()["loss"]
    trainer.network.load_state_dict(parameters(by_two_ranks, "averaging_often"))
    assert trainer.evaluate()["loss"] < 0.9 * before


def test_torch_starts_no_ranks_on_other_hosts(tmp_path):
    job = write_job(tmp_path / "job.json", "fixtures.training_task:train_as_rank", {})
    with pytest.raises(UserError, match="hosts a:4,b:4 - install Horovod"):
        launch(job, ranks=8, backend="torch", hosts="a:4,b:4")


@pytest.mark.parametrize(
    ("hosts", "expected"), [(None, 2), ("a:4,b:4", 4), ("a,b", 16), ("srun", 16)]
)
def test_ranks_share_the_threads_of_their_machine(hosts, expected):
    assert threads_of_rank(16, 8, hosts) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ["torch", pytest.param("horovod", marks=[NEEDS_HOROVOD, pytest.mark.slow])],
)
def test_a_rank_that_fails_ends_the_others_and_is_told(task, tmp_path, backend):
    fault = {"rank": 1, "step": 3, "error": "exception"}
    with pytest.raises(UserError, match="rank 1 failed: u0.*the disk is gone"):
        run(task, tmp_path, backend, {"uneven": SETTINGS["uneven"]}, fault=fault)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_is_killed_ends_the_others(task, tmp_path, backend):
    fault = {"rank": 1, "step": 3, "error": "kill"}
    # horovodrun does not say who was killed; the other rank says what it noticed, if
    # it is quick enough
    told = {"torch": "rank 1 was killed by signal 9"}
    told = told.get(backend, "rank 0 failed|no word why")
    with pytest.raises(UserError, match=told):
        run(task, tmp_path, backend, {"uneven": SETTINGS["uneven"]}, fault=fault)


@pytest.mark.parametrize(
    ("given", "elastic", "limit"),
    [({}, False, "1800"), ({}, True, None), ({LIMIT: "60"}, False, "60")],
)
@NEEDS_HOROVOD
def test_horovod_waits_for_late_ranks(tmp_path, monkeypatch, given, elastic, limit):
    """On a busy machine they may take longer to begin than its 30 s."""
    environments = []

    def start(_, environment):
        environments.append(environment)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(launching, "_start", start)
    monkeypatch.delenv(LIMIT, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    job = write_job(tmp_path / "job.json", "none:none", {}, elastic=elastic)
    launch(job, ranks=2, backend="horovod", elastic=elastic)
    assert [one.get(LIMIT) for one in environments] == [limit]


LAUNCHER = """
import signal, sys
# tests may run in the background, where a shell has Ctrl-C ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from latflow.errors import Interrupted
from latflow.training.launch import RESUME_STATUS, launch
try:
    launch(sys.argv[1], ranks=2, backend="none")
except Interrupted:
    sys.exit(RESUME_STATUS)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("asked", "status"), [(signal.SIGTERM, RESUME_STATUS), (signal.SIGINT, 130)]
)
def test_ranks_that_are_asked_to_stop_while_they_start_have_not_failed(
    tmp_path, asked, status
):
    arguments = {"device": "cpu", "folder": str(tmp_path)}
    function = "fixtures.training_task:wait_to_be_asked"
    job = write_job(tmp_path / "job.json", function, arguments)
    paths = [str(Path(training_task.__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", LAUNCHER, str(job)]
    process = subprocess.Popen(command, env=environment)
    while process.poll() is None and len(list(tmp_path.glob("ready*"))) < 2:
        time.sleep(0.01)
    process.send_signal(asked)
    assert process.wait() == status


@pytest.mark.slow
@NEEDS_HOROVOD
def test_an_elastic_training_outlives_a_rank(task, tmp_path):
    settings = {"training": {**TRAINING, "checkpoint_minutes": 1e-4, "epochs": 4}}
    fault = {"rank": 1, "step": 7, "error": "kill"}
    run(task, tmp_path, "horovod", {"one": settings}, fault=fault, elastic=True)
    assert (tmp_path / "failed").exists()
    trainer = make_trainer(task, tmp_path / "alone", **settings)
    trainer.run()
    assert_close(trainer.network.state_dict(), parameters(tmp_path, "one"))


def test_one_process_needs_no_back_end(task, tmp_path):
    backend = open_backend("none", torch.device("cpu"))
    assert isinstance(backend, Backend)
    assert backend.is_main
    assert backend.gather("a") == ["a"]
    assert backend.broadcast_object("a") == "a"
    assert not backend.any(flag=False)
    assert backend.any(flag=True)
    assert resolve_backend("horovod", 1) == "none"
    assert resolve_backend("torch", 2) == "torch"
    with pytest.raises(UserError, match="2 ranks need a back end"):
        resolve_backend("none", 2)
    with pytest.raises(UserError, match="no back end 'mpi'"):
        open_backend("mpi", torch.device("cpu"))


def test_ranks_are_those_of_our_launcher_or_of_slurm():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    assert Rank.of(slurm) == Rank(3, 4, 1)
    own = {"LATFLOW_RANK": "0", "LATFLOW_SIZE": "2", "LATFLOW_LOCAL_RANK": "0"}
    assert Rank.of({**slurm, **own}) == Rank(0, 2, 0)
    with pytest.raises(UserError, match="does not know its rank"):
        Rank.of({})
