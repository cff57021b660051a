"""Results hold whatever happens: other cores, killed jobs, a full or read-only disk."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time

import psutil
import pytest
from e2e.paced import is_far_enough, steps_of

from latflow.cli.main import main
from latflow.workflow.jobs import find_record

pytestmark = pytest.mark.slow

RECIPE = ("--configfile", "tests/e2e/small.yaml")
KILLS = 4
WER = "results/small/wer.tsv"
NETWORK_SCORE = "results/small/score/mmi/test/wer.json"
# Everything that a result is: tables, models, networks, what was recognized.
RESULTS = (
    "wer.tsv", "gmm/*/final.mdl", "gmm/*/tree", "nnet/*/weights.safetensors",
    "nnet/*/priors.npy", "graph/*/HCLG.fst", "decode/*/*/lattices.ark",
    "tune/*/scales.json", "score/*/*/hyp.txt", "score/*/*/wer.json",
)  # fmt: skip
# What the other runs start from: speech, its features, and language.
KEPT = frozenset({"corpus", "streams", "lang", "lm"})


@pytest.fixture(scope="module")
def undisturbed(make_checkout):
    """The experiment run once, in peace, on two cores."""
    checkout = make_checkout()
    done = checkout.run(*RECIPE)
    assert done.returncode == 0, done.stderr[-6000:]
    return checkout


@pytest.fixture
def prepared(undisturbed, make_checkout):
    """A checkout in which corpus and features exist already, and nothing after them."""
    return continued(undisturbed, make_checkout())


def continued(undisturbed, checkout, kept=KEPT):
    """Copy the first stages of a finished checkout into another."""
    for name in ("results", ".snakemake", "workflow", "src", "tests"):
        target = checkout.folder / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(undisturbed.folder / name, target, symlinks=True)
    # Else all would be taken from there.
    shutil.rmtree(checkout.folder / "results/.cache")
    for path in checkout.results_of("small").iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return checkout


def contents(checkout):
    """Bytes of all results, by name."""
    folder = checkout.results_of("small")
    paths = sorted(path for pattern in RESULTS for path in folder.glob(pattern))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def assert_same(found, expected):
    assert [name for name in expected if found.get(name) != expected[name]] == []


def losses(checkout, network):
    """Loss of each epoch on the training data."""
    path = checkout.results_of("small") / f"nnet/{network}/log.jsonl"
    rows = map(json.loads, path.read_text().splitlines())
    return [row["train"]["loss"] for row in rows if row["kind"] == "epoch"]


def test_other_run_on_one_core_gives_the_same_bytes(undisturbed, prepared):
    done = prepared.run(*RECIPE, "--", NETWORK_SCORE, cores=1)
    assert done.returncode == 0, done.stderr[-6000:]
    found = contents(prepared)
    assert {"gmm/tri1/final.mdl", "nnet/ce/priors.npy"} < found.keys()
    assert {"score/mmi/test/wer.json", "tune/mmi/scales.json"} < found.keys()
    expected = contents(undisturbed)
    # How many threads torch has may change the rounding of its sums, on some
    # processors: lattices of a network that is so trained are others.
    assert losses(prepared, "mmi") == pytest.approx(losses(undisturbed, "mmi"), 1e-3)
    assert_same(found, {name: expected[name] for name in found if "/mmi/" not in name})


def test_killed_jobs_change_no_result(undisturbed, prepared):
    chance = random.Random(7)
    kills = 0
    while kills < KILLS:
        process = subprocess.Popen(
            prepared.command(*RECIPE, "--", WER),
            cwd=prepared.folder,
            env=prepared.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Every second time the machine fails: Snakemake itself and all of its jobs.
        fails = kills % 2 == 1
        is_killed = kill_a_job(process, chance, everything=fails)
        if process.wait() == 0:
            break  # all was done before: a quick machine, or a slow test
        assert is_killed, "the run has failed by itself"
        kills += 1
        if fails:
            prepared.run(*RECIPE, "--unlock")
    assert kills >= KILLS / 2
    done = prepared.run(*RECIPE, "--", WER)
    assert done.returncode == 0, done.stderr[-6000:]
    expected = contents(undisturbed)
    assert len(expected) > 25
    assert_same(contents(prepared), expected)
    assert list(prepared.results_of("small").rglob(".*tmp.*")) == []


def test_a_training_may_be_killed_more_often_than_it_has_retries(
    undisturbed, make_checkout
):
    checkout = continued(undisturbed, make_checkout(), kept=KEPT | {"align", "gmm"})
    weights = checkout.results_of("small") / "nnet/ce/weights.safetensors"
    target = weights.relative_to(checkout.folder)
    # By turns as a batch system asks to end, and as a machine fails.
    signals = ["SIGTERM", "SIGKILL"] * 2 + ["SIGTERM"]
    course, ended = checkout.folder / "course", checkout.folder / "ended"
    ended.touch()
    chance = random.Random(3)
    with (checkout.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            checkout.command(*RECIPE, "--retries", "1", "--", target),
            cwd=checkout.folder,
            env={**checkout.environment, "PAUSE": "0.1", "ENDS": " ".join(signals)},
            stdout=log,
            stderr=log,
        )
        for attempt, name in enumerate(signals):
            pid = met_training(process, course, attempt, name, chance.randint(2, 4))
            os.kill(pid, getattr(signal, name))
            with ended.open("a") as stream:
                stream.write(f"{pid}\n")
        status = process.wait()
    assert status == 0, (checkout.folder / "log").read_text()[-6000:]
    assert len(steps_of(course)) == len(signals) + 1
    expected = undisturbed.results_of("small") / "nnet/ce/weights.safetensors"
    assert weights.read_bytes() == expected.read_bytes()


def met_training(process, course, attempt, name, number):
    """Wait until an attempt has made more steps; return its process."""
    while True:
        assert process.poll() is None, "Snakemake ended before the kill"
        made = [*steps_of(course).items()] if course.exists() else []
        if len(made) > attempt and is_far_enough(made[attempt][1], name, number):
            return made[attempt][0]
        time.sleep(0.05)


def kill_a_job(process, chance, *, everything):
    """Wait for one of the next jobs, and kill it at a random moment of its life.

    Returns:
        Whether there was one before the run ended.
    """
    wanted, seen = chance.randint(1, 3), set()
    while process.poll() is None:
        jobs = jobs_of(process)
        seen |= {job.pid for job in jobs}
        if jobs and len(seen) >= wanted:
            time.sleep(chance.uniform(0, 3))
            if jobs := jobs_of(process):
                victims = [chance.choice(jobs)]
                if everything:
                    victims = children_of(process)
                    process.kill()
                for victim in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.send_signal(signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


def children_of(process):
    """Processes that Snakemake has started, and theirs; none where it has ended."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def jobs_of(process):
    """Processes of scripts of the workflow that run now."""
    found = []
    for child in children_of(process):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = child.cmdline()
            if line and "python" in line[0] and ".snakemake/scripts/" in line[-1]:
                found.append(child)
    return found


def test_every_result_tells_what_made_it(undisturbed, capsys):
    folder = undisturbed.results_of("small")
    for name in contents(undisturbed):
        found = find_record(folder / name)
        assert (found.is_declared, found.state) == (True, "unchanged")
        for key in ("code_digest", "params_digest", "config_digest", "commit"):
            assert found.record[key]
        assert found.record["versions"]["numpy"]
    weights = folder / "nnet/mmi/weights.safetensors"
    assert find_record(weights).record["seeds"]["options.seed"] == 1
    assert main(["provenance", str(weights)]) == 0
    assert "rule: train_sequence" in capsys.readouterr().out


def test_costs_of_all_jobs_are_in_one_table(undisturbed):
    lines = (undisturbed.results_of("small") / "cost.tsv").read_text().splitlines()
    head, *rows = [line.split("\t") for line in lines]
    jobs = {(row[0], row[1]): dict(zip(head, row, strict=True)) for row in rows}
    training = jobs["train_network", "ce"]
    assert float(training["cpu_seconds"]) > 0
    assert float(training["audio_hours_per_hour"]) > 0
    assert jobs["make_graph", "mono"]["audio_hours"] == ""
    assert ("decode_network", "mmi.test") in jobs


@contextlib.contextmanager
def mounted(folder, options):
    """A small file system in memory, where we may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if (
        os.geteuid()
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a file system takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [("size=200k", "no space left on the disk"), ("ro", "may not be written")],
    ids=["full", "read-only"],
)
def test_refusing_disk_ends_in_one_line(make_checkout, options, told):
    checkout = make_checkout()
    with mounted(checkout.folder / "results", options):
        done = checkout.run(*RECIPE, "--", "corpus")
    said = done.stderr + done.stdout
    assert done.returncode != 0
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if told in line and "results" in line]
