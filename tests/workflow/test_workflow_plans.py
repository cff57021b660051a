"""Dry runs: every recipe plans; mistakes in the configuration are one line."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

REAL = ["yesno", "digits", "speechocean"]
LARGE = ["mini_librispeech", "librispeech_460", "librispeech_960"]
TARGETS = ["features", "lang", "gmm_mono", "gmm_tri1", "align", "decode", "score"]


def snakemake(repository, folder, *arguments):
    """Run Snakemake on the repository's workflow in a folder of its own."""
    command = [
        sys.executable, "-m", "snakemake", "--snakefile", str(repository / "Snakefile"),
        "--directory", str(folder), "--cores", "2", *map(str, arguments),
    ]  # fmt: skip
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ}
    )


@pytest.mark.parametrize("recipe", REAL)
def test_recipes_for_real_speech_plan(repository, corpora, tmp_path, recipe):
    done = snakemake(
        repository, tmp_path, "--configfile",
        repository / f"config/recipes/{recipe}.yaml",
        "--config", f"corpora={corpora}", "-n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "make_report" in done.stdout


@pytest.mark.parametrize("recipe", LARGE)
def test_recipes_for_librispeech_plan(repository, tmp_path, recipe):
    config = repository / f"config/recipes/{recipe}.yaml"
    done = snakemake(repository, tmp_path, "--configfile", config, "-n")
    assert done.returncode == 0, done.stderr
    for rule in ("train_lda_mllt", "train_sat", "decode_adapted", "rescore_lattices"):
        assert rule in done.stdout


@pytest.mark.parametrize("target", [*TARGETS, "report"])
def test_named_targets_plan_on_the_default(repository, tmp_path, target):
    config = repository / "config/config.yaml"
    done = snakemake(repository, tmp_path, "--configfile", config, "-n", target)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("system", "is_adapted"), [("tri1", False), ("tri3b", True)])
def test_a_system_of_kaldi_takes_the_place_of_training(
    repository, golden, corpora, tmp_path, system, is_adapted
):
    config = yaml.safe_load((repository / "config/recipes/digits.yaml").read_text())
    exp = tmp_path / system
    shutil.copytree(golden / "gmm" / system, exp)
    (exp / "ali.1.gz").touch()
    config["gmm"] = {"import": str(exp), "lang": str(golden / "lang")}
    del config["nnet"]  # its networks learn the alignments of systems of the recipe
    path = tmp_path / "import.yaml"
    path.write_text(
        yaml.safe_dump({**config, "corpora": str(corpora)}, sort_keys=False)
    )
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode == 0, done.stderr
    for rule in ("import_lang", "import_system", "import_alignments", "make_graph"):
        assert rule in done.stdout
    assert "train_" not in done.stdout
    assert "make_lang" not in done.stdout
    assert ("decode_adapted" in done.stdout) == is_adapted


def test_misspelt_key_is_refused_when_the_workflow_is_read(repository, tmp_path):
    config = yaml.safe_load((repository / "config/config.yaml").read_text())
    config["decode"] = {**config.get("decode", {}), "beem": 13}
    path = tmp_path / "typo.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "decode.beem" in told
    assert "did you mean beam?" in told
    assert "Traceback" not in told
