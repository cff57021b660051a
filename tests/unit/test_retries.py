"""Retries of a training: attempts that came further use up none, others do."""

import os
import subprocess
import sys

import pytest

from latflow.workflow.retries import Retries

# Each attempt of `goes` writes one more checkpoint and dies, of `stands` it just dies.
SNAKEFILE = """
from latflow.workflow.retries import count_by_progress

if workflow.is_main_process:
    count_by_progress(["checkpoints/goes", "checkpoints/stands"])

rule all:
    input: "goes", "stands", "other"

rule goes:
    output: "goes"
    params: checkpoints="checkpoints/goes"
    resources: mem_mb=lambda wildcards, attempt: 10 * attempt
    shell:
        '''
        echo {resources.mem_mb} >> goes.log
        folder={params.checkpoints}/digest; mkdir -p $folder
        step=$(ls $folder | wc -l)
        # Out of memory: nothing new is written.
        [ $step = 2 ] && [ {resources.mem_mb} -lt 30 ] && exit 1
        [ $step -lt 5 ] && touch $folder/e0001-b0000000$step.pt && exit 1
        touch {output}
        '''

rule stands:
    output: "stands"
    params: checkpoints="checkpoints/stands"
    resources: mem_mb=lambda wildcards, attempt: 10 * attempt
    shell: "echo {resources.mem_mb} >> stands.log; exit 1"

rule other:
    output: "other"
    resources: mem_mb=lambda wildcards, attempt: 10 * attempt
    shell: "echo {resources.mem_mb} >> other.log; exit 1"
"""


def checkpoint(folder, training, name):
    (folder / training).mkdir(exist_ok=True, parents=True)
    (folder / training / name).touch()


def test_attempts_count_that_wrote_no_checkpoint(tmp_path):
    checkpoint(tmp_path, "old", "e0007-b00000000.pt")
    retries = Retries([str(tmp_path)])
    folder = str(tmp_path)
    assert retries.note_failure(folder) == 1  # what was there before is no progress
    checkpoint(tmp_path, "new", "e0001-b00000020.pt")  # with other options
    assert retries.note_failure(folder) == 0
    assert [retries.note_failure(folder) for _ in range(3)] == [1, 2, 3]
    checkpoint(tmp_path, "new", "e0002-b00000000.pt")
    (tmp_path / "new/e0001-b00000020.pt").unlink()
    checkpoint(tmp_path, "new", ".tmp.e0003-b00000000.pt")
    assert retries.note_failure(folder) == 0
    (tmp_path / "new/e0002-b00000000.pt").unlink()  # by hand
    assert retries.note_failure(folder) == 1


def test_folders_of_checkpoints_have_counts_of_their_own(tmp_path):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    retries = Retries([one])
    assert retries.note_failure(one) == 1
    assert retries.note_failure(other) == 1
    checkpoint(tmp_path / "one", "digest", "e0001-b00000001.pt")
    assert retries.note_failure(other) == 2
    assert retries.note_failure(one) == 0


@pytest.mark.slow
def test_snakemake_tries_again_by_what_attempts_reached(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--keep-going"]
    done = subprocess.run(
        [*command, "--retries", "2", "--resources", "mem_mb=30"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    given = {
        path.stem: [int(amount) for amount in path.read_text().split()]
        for path in tmp_path.glob("*.log")
    }
    # More is asked for only by an attempt that wrote nothing, and no less later.
    assert given["goes"] == [10] * 3 + [20] + [30] * 4
    assert (tmp_path / "goes").exists(), done.stderr
    assert given["stands"] == given["other"] == [10, 20, 30]
    assert "goes: continues from a new checkpoint, no retry used." in done.stderr
    told = "stands: 3 attempts in a row wrote no checkpoint in checkpoints/stands"
    assert told in done.stderr
