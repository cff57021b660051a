"""A job logs, records what it made, and tells a refusing disk in one line."""

import errno
import gzip
import itertools
import json
import logging
import os
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.waiting import wait_until

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.gpu_load import GpuLoad, utilization
from latflow.ledger import Ledger
from latflow.logs import STALL_MINUTES, log_to, progress, watched
from latflow.options import Options
from latflow.workflow.jobs import above_limit, check_writable, find_record, job, run
from latflow.workflow.machine import capacity


class Named(list):
    """What Snakemake gives scripts: a list with names."""

    def __init__(self, **named):
        lists = [v if isinstance(v, list) else [v] for v in named.values()]
        super().__init__(item for one in lists for item in one)
        self.items = named.items


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr("logging.raiseExceptions", True)
    results = tmp_path / "results" / "toy"
    return SimpleNamespace(
        rule="train_toy",
        log=[str(results / "logs/train_toy/mono.log")],
        input=Named(
            frames=str(results / "frames/train/meta.json"),
            other="lexicon.txt",
        ),
        output=Named(model=str(results / "gmm/mono/final.mdl")),
        params=Named(options={"seed": 3, "beam": 7.0}, stage="latflow.toy.train c0de"),
        wildcards=Named(system="mono"),
        config={"experiment": "toy"},
        threads=2,
        resources={},
    )


def write(task, content=b"model"):
    os.makedirs(os.path.dirname(task.output[0]), exist_ok=True)
    with open(task.output[0], "wb") as stream:
        stream.write(content)


def test_record_tells_what_made_a_file(task, capsys):
    with job(task):
        write(task)
    found = find_record(task.output[0])
    record = found.record
    assert (found.state, found.is_declared) == ("unchanged", True)
    assert record["rule"] == "train_toy"
    assert record["wildcards"] == {"system": "mono"}
    assert record["inputs"] == ["frames/train/meta.json", "lexicon.txt"]
    assert record["code_digest"] == "c0de"
    assert record["seeds"] == {"options.seed": 3}
    assert record["params"] == {"options": {"seed": 3, "beam": 7.0}}
    assert record["outputs"]["gmm/mono/final.mdl"]["bytes"] == 5
    assert "gpu_share" not in record
    assert main(["provenance", task.output[0]]) == 0
    assert "rule: train_toy" in capsys.readouterr().out


class Toy(Options):
    seed: int
    beam: float = 10.0


class Nested(Options):
    toy: Toy
    kept: int
    free: int


def test_stage_gets_what_its_rule_gives_by_name(task):
    found = {}

    def stage(
        frames_dir: Path,
        other: Path,
        teacher: Path | None,
        graphs: Sequence[Path],
        out_dir: Path,
        *,
        options: Toy,
        threads: int,
        retries: int = 3,
    ) -> None:
        found.update(locals())
        write(task)

    files = dict(task.input.items())
    task.input = Named(**files, teacher=[], graphs=["a.graphs", "b.graphs"])
    run(stage, task)
    results = Path(task.log[0]).parents[2]
    assert found["frames_dir"] == results / "frames/train"
    assert found["other"] == Path("lexicon.txt")
    assert found["teacher"] is None
    assert found["graphs"] == [Path("a.graphs"), Path("b.graphs")]
    assert found["out_dir"] == results / "gmm/mono"
    assert found["options"] == Toy(seed=3, beam=7.0)
    assert (found["threads"], found["retries"]) == (2, 3)


@dataclass(frozen=True)
class Data:
    frames_dir: Path
    threads: int
    retries: int = 3


def test_a_dataclass_is_made_of_what_the_rule_gives_for_its_fields(task):
    found = {}

    def stage(data: Data, *, options: Toy, more: Data | None = None) -> None:
        found.update(locals())
        write(task)

    run(stage, task)
    frames = Path(task.input[0]).parent
    assert found["data"] == Data(frames, threads=2)
    assert found["options"] == Toy(seed=3, beam=7.0)

    def lacks(data: Data, job: Lacking) -> None:
        write(task)

    with pytest.raises(TypeError, match="rule train_toy gives no alignments to Lack"):
        run(lacks, task)


@dataclass(frozen=True)
class Lacking:
    alignments: Path


def test_free_params_complete_the_options_of_their_name(task):
    found = {}

    def stage(options: Nested) -> None:
        found.update(locals())
        write(task)

    task.params = Named(
        options={"toy": {"seed": 3}, "kept": 1},
        free_options={"toy": {"beam": 7.0}, "free": 2},
        stage="latflow.toy.train c0de",
    )
    run(stage, task)
    assert found["options"] == Nested(toy=Toy(seed=3, beam=7.0), kept=1, free=2)


def test_stage_that_wants_what_its_rule_lacks_is_refused(task):
    def stage(alignments: Path) -> None:
        write(task)

    with pytest.raises(TypeError, match="rule train_toy gives no alignments to stage"):
        run(stage, task)


def test_digest_of_settings_follows_their_values_only(task):
    def digest(**params):
        task.params = Named(**params)
        with job(task):
            write(task)
        return find_record(task.output[0]).record["params_digest"]

    first = digest(a=1, b={"c": 2, "d": 3}, stage="a.b x")
    assert digest(b={"d": 3, "c": 2}, a=1, stage="a.b y") == first
    assert digest(a=1, b={"c": 2, "d": 4}, stage="a.b x") != first


@pytest.mark.parametrize("content", [b"other", b"longer than before"])
def test_changed_file_is_noticed(task, content, capsys):
    with job(task):
        write(task)
    write(task, content)
    assert find_record(task.output[0]).state == "changed"
    assert main(["provenance", task.output[0]]) == 1
    os.unlink(task.output[0])
    assert find_record(task.output[0]).state == "gone"
    capsys.readouterr()


def test_results_may_be_moved(task, tmp_path):
    with job(task):
        write(task)
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere/toy/gmm/mono/final.mdl"
    assert find_record(moved).state == "unchanged"


def test_file_beside_outputs_is_told_from_its_folder(task):
    with job(task):
        write(task)
    beside = os.path.join(os.path.dirname(task.output[0]), "notes.txt")
    with pytest.raises(UserError, match="no record"):
        find_record(beside)
    with open(beside, "w") as stream:
        stream.write("kept by the stage")
    found = find_record(beside)
    assert (found.record["rule"], found.is_declared) == ("train_toy", False)


def test_failed_job_leaves_no_record(task):
    with job(task):
        write(task)
    with pytest.raises(ZeroDivisionError), job(task):
        raise ZeroDivisionError
    with pytest.raises(UserError, match="no record of the job"):
        find_record(task.output[0])


def test_file_outside_results_has_no_record(tmp_path, capsys):
    (tmp_path / "notes").write_text("")
    assert main(["provenance", str(tmp_path / "notes")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.ENOSPC, "No space", "/disk/a.ark"),
            "/disk/a.ark: no space left",
        ),
        (OSError("400 requested and 12 written"), "gmm/mono: no space left"),
        (RuntimeError("I/O error: No space left on device"), "no space left"),
        (OSError(errno.EROFS, "Read-only", "/disk/b"), "/disk/b: refused: read-only"),
        (PermissionError(errno.EACCES, "No", "/disk/c"), "/disk/c: refused"),
    ],
)
def test_refusing_disk_is_one_line(task, error, told):
    with pytest.raises(UserError, match=told), job(task):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "gone"), ValueError("no")])
def test_other_errors_stay_what_they_are(task, error):
    with pytest.raises(type(error)) as caught, job(task):
        raise error
    assert caught.value is error


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_numpy_on_a_full_disk(task):
    with pytest.raises(UserError, match="no space left"), job(task):
        np.zeros(100_000).tofile("/dev/full")


def test_folder_must_be_writable(tmp_path, monkeypatch):
    check_writable(tmp_path / "results/not/yet/there")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UserError, match="may not be written"):
        check_writable(tmp_path)


def test_gpu_share_is_the_mean_of_the_visible_devices(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 80\necho 20\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert utilization() == pytest.approx(0.5)
    with GpuLoad(is_asked_for=True, seconds=0.01) as load:
        wait_until(lambda: load.samples)
    assert load.share == pytest.approx(0.5)
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert utilization() is None


def test_machine_has_memory_and_the_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert capacity()["gpu"] == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert capacity()["gpu"] == 0
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    assert 0.8 * total < capacity()["mem_mb"] < total


def test_record_is_whole_json(task):
    with job(task):
        write(task)
    folder = os.path.join(task.log[0].split("/logs/")[0], "provenance/train_toy")
    assert os.listdir(folder) == ["mono.json"]
    with open(os.path.join(folder, "mono.json")) as stream:
        assert json.load(stream)["threads"] == 2


def test_a_job_writes_its_stacks_when_asked(task):
    with job(task):
        os.kill(os.getpid(), signal.SIGUSR1)
        write(task)
    said = Path(task.log[0]).read_text()
    assert f"process {os.getpid()} on " in said
    assert "test_a_job_writes_its_stacks_when_asked" in said
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_job_that_stands_still_writes_its_stacks(task):
    task.resources = {"stall_minutes": 0.005}
    log = Path(task.log[0])
    with job(task):
        wait_until(lambda: "Timeout (0:00:00.300000)!" in log.read_text())
        write(task)
    said = log.read_text()
    assert "test_a_job_that_stands_still_writes_its_stacks" in said


@pytest.fixture
def waits(monkeypatch):
    """Seconds of each wait for a standstill; a clock gains a second at each look."""
    clock, begun = itertools.count(100.0), []
    monkeypatch.setattr("latflow.logs.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(
        "latflow.logs.faulthandler.dump_traceback_later",
        lambda seconds, **_: begun.append(seconds),
    )
    return begun


def test_lines_of_the_log_and_items_of_progress_are_movement(tmp_path, waits):
    stream = log_to(tmp_path / "log")
    with watched(stream, 2.0):
        assert waits == [120.0]
        logging.getLogger("latflow.toy").info("a line")
        assert len(waits) == 2
        list(progress(range(3), "items"))
        assert len(waits) == 5
        assert os.environ[STALL_MINUTES] == "2.0"
    logging.getLogger("latflow.toy").info("after the end")
    assert len(waits) == 5
    assert STALL_MINUTES not in os.environ


def test_nothing_is_waited_for_by_default(task, waits):
    with job(task):
        list(progress(range(3), "items"))
        write(task)
    assert waits == []


def test_finished_steps_above_a_lowered_limit_are_told(task, tmp_path):
    """Of ten utterances two were skipped, which 0.2 allows and 0.1 does not."""
    results = tmp_path / "results" / "toy"
    folder = results / "align/mono/train"
    folder.mkdir(parents=True)
    ledger = Ledger("align_mono")
    for name in ("u1", "u2"):
        ledger.record(name, "too short")
    ledger.record("u3", "wider beam", action="retried")
    ledger.write(folder / "ledger.jsonl")
    cuts = results / "corpus/train/cuts.jsonl.gz"
    cuts.parent.mkdir(parents=True)
    cuts.write_bytes(gzip.compress(b"{}\n" * 10))
    task.output = Named(ledger=str(folder / "ledger.jsonl"))
    task.params = Named(max_skipped_fraction=0.3, stage="latflow.toy.train c0de")
    with job(task):
        pass
    assert list(above_limit(results, 0.3)) == []
    assert list(above_limit(results, 0.2)) == []
    (line,) = above_limit(results, 0.1)
    assert "align/mono/train/ledger.jsonl has 2 of about 10 utterances" in line
    assert "(0.1)" in line
