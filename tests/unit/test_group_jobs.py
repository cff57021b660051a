"""A group of jobs that the cluster refuses says why."""

import os
import subprocess
import sys

import pytest

SNAKEFILE = """
from latflow.workflow.group_jobs import show_reasons

show_reasons()

rule all:
    input: "two"

rule one:
    output: "one"
    group: "short"
    resources: runtime=100
    shell: "touch {output}"

rule two:
    input: "one"
    output: "two"
    group: "short"
    resources: runtime=150
    shell: "touch {output}"
"""
REFUSED = "sbatch: error: Batch job submission failed: Requested time limit is invalid"


@pytest.fixture
def submitted(tmp_path):
    """Submit the group to a cluster of one account, which refuses every job."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    commands = tmp_path / "bin"
    commands.mkdir()

    scripts = {
        "sbatch": f"echo '{REFUSED}' >&2; exit 1",
        "sacctmgr": "echo speech",
        "sshare": "echo speech",
    }
    for name, script in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)

    def submit(account):
        command = [sys.executable, "-m", "snakemake", "--executor", "slurm"]
        command += ["--slurm-init-seconds-before-status-checks", "1", "--jobs", "2"]
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [*command, "--default-resources", "slurm_partition=p", account],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    return submit


def test_a_refused_group_shows_what_sbatch_said(submitted):
    done = submitted("slurm_account=speech")
    assert done.returncode == 1
    assert "Error in group short" in done.stderr
    assert REFUSED in done.stderr.partition("Group short: ")[2].partition("\n")[0]


def test_a_group_that_cannot_be_submitted_ends_the_run(submitted):
    """Its account is not known; without a word the run waited for ever."""
    done = submitted("slurm_account=spech")
    assert done.returncode == 1
    assert "account spech" in done.stderr.partition("Group short: ")[2].lower()
