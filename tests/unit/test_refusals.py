"""What Snakemake refuses is told in one line: what is wrong, and what to do."""

import os
import subprocess
import sys

import pytest
from fixtures.waiting import wait_until

from snakemake_logger_plugin_latflow import refusals
from snakemake_logger_plugin_latflow.refusals import in_one_line

MISSING = """MissingInputException in rule prepare_corpus in file "a.smk", line 5:
Missing input files for rule prepare_corpus:
    output: results/x/corpus/full/cuts.jsonl.gz
    wildcards: split=full
    affected files:
        /data/lexicon.txt
        /data/text"""
UNKNOWN = """MissingRuleException:
No rule to produce {} (if you use input functions make sure that they don't raise)."""
FAULT = """WorkflowError in file "/x/common.smk", line 40:
unknown configuration key sead - did you mean seed?
  File "/x/common.smk", line 40, in <module>"""


def test_missing_files_are_named_with_the_rule_that_reads_them():
    line = in_one_line("MissingInputException", MISSING)
    assert line.startswith("error: /data/lexicon.txt: no such file (and 1 more)")
    assert "prepare_corpus reads it" in line
    assert "\n" not in line


def test_unknown_targets_are_compared_with_those_that_there_are(monkeypatch):
    monkeypatch.setattr(refusals, "TARGETS", ["all", "gmm_mono", "gmm_tri1"])
    line = in_one_line("MissingRuleException", UNKNOWN.format("gmm_tri9"))
    assert line == (
        "error: no target gmm_tri9 - did you mean gmm_tri1? "
        "there are: all, gmm_mono, gmm_tri1"
    )
    line = in_one_line("MissingRuleException", UNKNOWN.format("results/x/none.tsv"))
    assert line.startswith("error: results/x/none.tsv: nothing makes this file")


def test_faults_of_a_recipe_are_told_without_places_in_the_workflow():
    told = "error: unknown configuration key sead - did you mean seed?"
    assert in_one_line("WorkflowError", FAULT) == told
    assert in_one_line("WorkflowError", "error: --cores begins at 1") == (
        "error: --cores begins at 1"
    )


def test_what_a_function_of_a_rule_refuses_is_told_without_its_trace():
    said = "InputFunctionException:\n  WorkflowError:\n    error: no\nTraceback:"
    assert in_one_line("InputFunctionException", said) == "error: no"
    assert in_one_line("InputFunctionException", "KeyError: 'x'") is None


def test_a_lock_names_the_run_that_holds_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = in_one_line("LockException", "")
    assert "no run of this machine works here" in line
    assert "--unlock" in line
    (tmp_path / "snakemake").write_text("import time; time.sleep(600)")
    other = subprocess.Popen([sys.executable, "snakemake", "gmm_mono"])
    try:
        wait_until(lambda: str(other.pid) in in_one_line("LockException", ""))
        line = in_one_line("LockException", "")
    finally:
        other.kill()
        other.wait()
    assert f"another run works in this folder: process {other.pid} (gmm_mono)" in line
    assert str(os.getpid()) not in line


@pytest.mark.parametrize("kind", ["RuleException", "Exception", ""])
def test_what_else_is_said_stays_as_it_is(kind):
    assert in_one_line(kind, "something") is None
