"""What is seen of a run: ended stages, share done, time left; errors in full."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from latflow.report.expected_costs import expected_costs
from latflow.workflow.settings import read_config
from snakemake_logger_plugin_latflow.run_progress import (
    Progress,
    clock,
    share_of_training,
)

SNAKEFILE = """
rule all:
    input: expand("out/{i}", i=range(3)), "out/last"

rule make_graph:
    output: "out/{i}"
    log: "logs/make_graph/{i}.log"
    message: "Compose graph {wildcards.i}"
    shell: "touch {output}"

rule train_mono:
    input: expand("out/{i}", i=range(3))
    output: "out/last"
    log: "logs/train_mono/last.log"
    message: "Train mono"
    shell: "echo a long story > {log}; test ! -e fail; touch {output}"
"""


# Of two trainings of a network; a line is being written to the second.
LOGS = {
    "old": '{"kind": "step", "progress": 0.75}\n',
    "new": '{"kind": "step", "progress": 0.25}\n{"kind": "dev"}\n{"kind": "st',
}


RATES = {
    **{"system": "mono", "set": "dev", "wer": "5.00", "ins": 1, "del": 2, "sub": 2},
    **{"words": 100, "sentences": 10, "sentence_errors": 3, "lmwt": 9, "wip": "0.0"},
    **{"ci_low": "1.00", "ci_high": "9.00"},
}


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def progress():
    clock = Clock()
    costs = {"train": 100.0, "score": 10.0, "all": 0.0}
    found = Progress(clock)
    found.expect(costs)
    found.clock = clock
    found.plan({"train": 1, "score": 10, "all": 1, "total": 12})
    return found


def test_share_and_time_left_weigh_jobs_by_what_they_are_expected_to_take(progress):
    progress.start(1, "train", "Train mono")
    progress.clock.time = 50.0
    assert progress.share == 0.25  # 50 of 200 expected seconds
    said = progress.state()
    assert said == "25% done, about 2 min left  | Train mono (50 s)"
    progress.clock.time = 400.0  # four times as slow as expected
    assert progress.share == pytest.approx(0.45)
    assert progress.end(1) == " 50%  Train mono (7 min)"
    assert "about 7 min left" in progress.state()


def test_a_training_counts_by_its_share_of_epochs(progress):
    told = {"share": 0.4}  # an earlier run has made so much
    progress.start(1, "train", "Train net", lambda: told["share"])
    progress.clock.time = 600.0  # six times its expected time
    told["share"] = 0.8
    assert progress.share == pytest.approx(0.4)  # 80 of 200 expected seconds
    # 40 of them took 600 s, 120 are left.
    said = progress.state()
    assert said == "40% done, about 30 min left  | Train net (10 min, 80%)"
    progress.end(1)
    assert progress.share == 0.5


def test_the_share_never_goes_back(progress):
    told = {"share": None}
    progress.start(1, "train", "Train net", lambda: told["share"])
    progress.clock.time = 80.0
    assert progress.share == pytest.approx(0.4)
    told["share"] = 0.1  # slower than expected, as the training tells by now
    assert progress.share == pytest.approx(0.4)
    progress.start(1, "train", "Train net")  # again, after a failure
    assert progress.share == pytest.approx(0.4)
    progress.end(1)
    assert progress.share == 0.5


def test_time_left_is_of_jobs_as_they_were_measured():
    """Little speech: decoding takes seconds, not minutes; one training takes it all."""
    clock = Clock()
    found = Progress(clock)
    found.expect(
        {"train_mono": 10, "train_deltas": 12, "align_frames": 8, "train_lfmmi": 480}
        | {"decode_lattices": 8, "sweep_beams": 8}
    )
    stages = {"train_mono": 5, "train_deltas": 6, "align_frames": 4}
    waiting = {"train_lfmmi": 1, "decode_lattices": 4, "sweep_beams": 1}
    found.plan(dict.fromkeys(stages, 1) | waiting)
    for job, (rule, seconds) in enumerate(stages.items()):
        found.start(job, rule, rule)
        clock.time += seconds
        found.end(job)
    told = {"share": 0.0}
    found.start(9, "train_lfmmi", "Train net", lambda: told["share"])
    clock.time += 120
    told["share"] = 0.5
    said = found.state()  # 120 s of it are left, and some 20 of five short jobs
    assert "about 2 min left" in said
    clock.time += 120
    found.end(9)
    assert "about 2" in (said := found.state())
    assert " s left" in said
    assert found.share > 0.75


def test_share_of_a_training_is_read_from_its_newest_log(tmp_path):
    log = tmp_path / "results/x/logs/train_network/net.log"
    assert share_of_training(log) is None
    assert share_of_training("log") is None
    folder = tmp_path / "results/x/checkpoints/net"
    for number, (digest, lines) in enumerate(LOGS.items()):
        (folder / digest).mkdir(parents=True)
        path = folder / digest / "log.jsonl"
        path.write_text(lines)
        os.utime(path, (number, number))
    assert share_of_training(log) == 0.25
    assert share_of_training(tmp_path / "results/x/logs/sweep_beams/net.log") is None
    (folder / "new/log.jsonl").write_text("")
    assert share_of_training(log) is None


def test_a_stage_of_many_jobs_is_told_once_and_a_long_job_by_itself(progress):
    lines = []
    for job in range(10):
        progress.start(job, "score", f"Score {job}")
        progress.clock.time += 40.0 if job == 3 else 2.0
        lines.append(progress.end(job))
    assert [line for line in lines if line] == [
        " 20%  Score 3 (40 s)",
        " 50%  score: 10 jobs (58 s)",
    ]


def test_targets_are_told_only_at_the_end(progress):
    for job in range(10):
        progress.start(job, "score", "Score")
        progress.end(job)
    progress.start(10, "train", "Train")
    progress.end(10)
    progress.start(11, "all", "")
    assert "|" not in progress.state()
    assert progress.end(11) == "100%  done"
    assert progress.end(99) is None  # a job of which nothing was heard


def test_times_are_said_as_people_say_them():
    assert [clock(s) for s in (3.2, 150, 7200)] == ["3 s", "2 min", "2.0 h"]


def test_there_is_no_share_before_jobs_are_estimated():
    found = Progress(Clock())
    found.plan({"train": 1, "score": 3, "total": 4})
    found.start(1, "score", "Score")
    assert found.state() == "0 of 4 jobs done  | Score (0 s)"
    found.end(1)
    found.expect({})  # no estimate could be made
    assert found.state().startswith("25% done")


def test_what_a_run_is_expected_to_take_is_what_the_plan_says(
    repository, tmp_path, monkeypatch
):
    config = read_config(repository / "config/config.yaml")
    monkeypatch.chdir(tmp_path)
    job = {
        **{"number": 0, "rule": "make_lang", "name": "lang", "wildcards": {}},
        **{"inputs": [], "outputs": ["results/demo/lang/L.fst"], "params": {}},
        **{"threads": 1, "gpu": 0, "needs": []},
    }
    run = {"jobs": [job], "config": config, "cores": 2}
    told = expected_costs(run)
    assert 0 < told["seconds"]["make_lang"] < 600
    assert told["disk"] > 0
    assert not told["warning"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    assert "10 B are free" in expected_costs(run)["warning"]


@pytest.mark.slow
def test_a_run_shows_stages_and_errors_with_their_logs(tmp_path, monkeypatch):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "fail").touch()
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--logger", "latflow"]
    command += ["--show-failed-logs"]

    def run():
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    failed = run()
    assert failed.returncode == 1
    assert "make_graph: 3 jobs" in failed.stdout
    assert "make_graph: 3 jobs" not in failed.stderr
    assert "Error" not in failed.stdout
    assert "Error in rule train_mono" in failed.stderr
    assert "log: logs/train_mono/last.log" in failed.stderr
    assert "a long story" in failed.stderr
    (tmp_path / "fail").unlink()
    done = run()
    assert done.returncode == 0, done.stderr
    assert "Train mono (" in done.stdout
    assert "100%  done" in done.stdout
    rows = ("\t".join(map(str, row)) for row in (RATES, RATES.values()))
    (tmp_path / "wer.tsv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("LATFLOW_RESULTS", str(tmp_path))
    again = run()
    assert "Nothing to be done" in again.stderr
    assert "mono    dev" in again.stdout
    assert "Select jobs" not in failed.stderr + done.stderr
    shutil.rmtree(tmp_path / "out")
    closed = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=_closed_pipe(),
        check=False,
    )
    assert closed.returncode == 0  # nobody reads on, and the run goes on
    assert (tmp_path / "out/last").is_file()


def _closed_pipe():
    """Return the end of a pipe whose reader is gone, as `head` is."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_costs_are_expected_without_what_draws():
    code = (
        "import sys, latflow.report.expected_costs; print('matplotlib' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True) == "False\n"
