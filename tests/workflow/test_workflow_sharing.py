"""Two experiments of one folder: what the second takes from the first, and what not."""

import re

import pytest
from fixtures import dry_runs

# As the workflow's rules: outputs of which one has a companion that no rule names.
SNAKEFILE = """
from latflow.workflow.experiment import CacheOptions
from latflow.workflow.sharing import share_results

RESULTS = f"results/{config['experiment']}"
if workflow.is_main_process:
    share_results(RESULTS, CacheOptions())

rule report:
    input: f"{RESULTS}/score/wer.txt", f"{RESULTS}/corpus/cuts"
    output: f"{RESULTS}/report.html"
    log: f"{RESULTS}/logs/report/report.log"
    shell: "test ! -e full; echo report {RESULTS} >> ran; cat {input} > {output}"

rule prepare:
    input: "text"
    output: f"{RESULTS}/corpus/cuts"
    log: f"{RESULTS}/logs/prepare/corpus.log"
    params: max_skipped_fraction=lambda wildcards, output: config.get("limit", 0.5)
    shell:
        "echo prepare >> ran; echo log > {log}; test ! -e edit || cp edit text;"
        "cp text {output}"

rule train:
    input: f"{RESULTS}/corpus/cuts"
    output: f"{RESULTS}/gmm/meta.json"
    log: f"{RESULTS}/logs/train/gmm.log"
    params: leaves=config.get("leaves", 1)
    shell:
        "echo train >> ran; cat {input} > {RESULTS}/gmm/model;"
        "echo {params.leaves} > {output}"

rule part:
    input: f"{RESULTS}/gmm/meta.json"
    output: temp(directory(f"{RESULTS}/parts/one"))
    log: f"{RESULTS}/logs/part/one.log"
    shell: "echo part >> ran; mkdir -p {output}; cp {RESULTS}/gmm/model {output}/hyp"

rule score:
    input: f"{RESULTS}/parts/one"
    output: f"{RESULTS}/score/wer.txt"
    log: f"{RESULTS}/logs/score/wer.log"
    params: way=f"of {RESULTS}/score"
    shell: "echo score >> ran; cp {input}/hyp {output}"
"""


class Folder:
    """A folder of experiments."""

    def __init__(self, path):
        self.path = path
        (path / "Snakefile").write_text(SNAKEFILE)
        (path / "text").write_text("yes no\n")

    def run(self, experiment, *arguments, status=0, **config):
        """Run an experiment; return the rules that ran."""
        (self.path / "ran").write_text("")
        self.said = self._snakemake(experiment, arguments, config, status)
        return (self.path / "ran").read_text().replace("\n", " ").split()

    def planned(self, experiment, **config):
        """Return the rules that a dry run names."""
        said = self._snakemake(experiment, ["-n"], config)
        table = said.partition("Job stats:")[2].partition("Reasons:")[0]
        return set(re.findall(r"^(\w+) +\d+$", table, re.M)) - {"total"}

    def _snakemake(self, experiment, arguments, config, status=0):
        settings = {"experiment": experiment, **config}
        done = dry_runs.snakemake(
            self.path, "--snakefile", self.path / "Snakefile", "--directory",
            self.path, "--cores", "1", "--rerun-incomplete",
            "--rerun-triggers", "mtime", "params", "input",
            *arguments, "--config", *(f"{k}={v}" for k, v in settings.items()),
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path)
    ran = folder.run("one")
    assert ran == ["prepare", "train", "part", "score", "report", "results/one"]
    return folder


def test_the_same_runs_nothing_but_the_report(folder):
    assert folder.planned("two") == {"report"}
    assert not (folder.path / "results/two").exists()  # a dry run takes nothing
    assert folder.run("two") == ["report", "results/two"]
    assert "Took 3 results" in folder.said
    two = folder.path / "results/two"
    assert (two / "gmm/model").read_text() == "yes no\n"  # which no rule names
    assert (two / "gmm/model").samefile(folder.path / "results/one/gmm/model")
    assert (two / "logs/prepare/corpus.log").read_text() == "log\n"
    assert folder.run("two") == []
    assert folder.run("one") == []


def test_other_settings_run_what_follows_from_them(folder):
    then = ["train", "part", "score", "report", "results/two"]
    assert folder.planned("two", leaves=2) == {"train", "part", "score", "report"}
    assert folder.run("two", leaves=2) == then
    # Back to what another has: nothing runs again but what sums up the experiment.
    assert folder.run("two") == ["report", "results/two"]
    assert folder.run("two") == []
    assert folder.run("one") == []


def test_a_run_that_fails_after_results_were_taken_goes_on(folder):
    folder.run("two", leaves=2)
    (folder.path / "full").touch()
    assert folder.run("two", status=1) == []
    (folder.path / "full").unlink()
    # The report is newer than what was taken, but of other results.
    assert folder.run("two") == ["report", "results/two"]


def test_other_contents_run_all(folder):
    (folder.path / "text").write_text("no yes\n")
    assert "prepare" in folder.run("two")
    (folder.path / "text").write_text("yes no\n")
    assert folder.run("three") == ["report", "results/three"]


def test_what_is_made_while_an_input_changes_is_not_kept(folder):
    text = folder.path / "text"
    text.write_text("maybe\n")
    (folder.path / "edit").write_text("edited\n")  # as someone does during the run
    assert folder.run("two")[0] == "prepare"
    (folder.path / "edit").unlink()
    text.write_text("maybe\n")
    assert folder.run("three")[0] == "prepare"
    assert (folder.path / "results/three/score/wer.txt").read_text() == "maybe\n"


def test_what_is_forced_runs_with_all_that_follows(folder):
    assert folder.run("two", "--forcerun", "train")[:3] == ["train", "part", "score"]
    assert folder.run("two") == []


def test_a_job_that_does_not_run_loses_nothing(folder):
    # `train` follows from `prepare`, but is not asked for.
    assert folder.run("one", "--forcerun", "prepare", "--until", "prepare") == [
        "prepare"
    ]
    assert (folder.path / "results/one/gmm/model").read_text() == "yes no\n"
    assert "train" not in folder.run("one")
    (folder.path / "edit").mkdir()  # so `prepare` fails
    folder.run("one", "--forcerun", "prepare", status=1)
    assert (folder.path / "results/one/gmm/model").read_text() == "yes no\n"


def test_a_lower_limit_of_skipped_utterances_counts(folder):
    assert folder.run("two", limit=0.1)[:2] == ["prepare", "train"]
    assert folder.run("three", limit=0.6) == ["report", "results/three"]


def test_a_result_changed_in_place_is_not_taken(folder):
    (folder.path / "results/one/gmm/model").write_text("ruined\n")
    assert folder.run("two")[0] == "train"
    assert (folder.path / "results/two/score/wer.txt").read_text() == "yes no\n"


def test_marking_outputs_as_made_keeps_nothing(tmp_path):
    folder = Folder(tmp_path)
    folder.run("one")
    cache = folder.path / "results/.cache"
    before = len(list(cache.iterdir()))
    folder.run("one", "--touch", "--forceall")
    assert len(list(cache.iterdir())) == before
