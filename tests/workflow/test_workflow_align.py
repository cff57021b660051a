"""Plans of recipes that align with a package, adapted or not."""

import os
import subprocess
import sys

import pytest
import yaml

from latflow.errors import UserError
from latflow.workflow.recipe import Recipe


def recipe(tmp_path, **export):
    (tmp_path / "lexicon.txt").write_text("A a\n")
    for name in ("package.json", "model/final.mdl"):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "data").mkdir(exist_ok=True)
    for name in ("wav.scp", "text", "utt2spk"):
        (tmp_path / "data" / name).write_text("")
    source = {"type": "kaldi", "path": str(tmp_path / "data")}
    return {
        "experiment": "mine",
        "corpus": {"train": source, "dev": {"type": "none"}},
        "lang": {"lexicon": str(tmp_path / "lexicon.txt")},
        "lm": {"type": "uniform"},
        "export_alignments": {"package": str(tmp_path / "package"), **export},
    }


def plan(repository, folder, config):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(config))
    command = [
        sys.executable, "-m", "snakemake", "--snakefile", str(repository / "Snakefile"),
        "--directory", str(folder), "--configfile", str(folder / "recipe.yaml"),
        "--cores", "2", "-n",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_package_is_adapted_before_it_aligns_where_asked(repository, tmp_path):
    plain = plan(repository, tmp_path, recipe(tmp_path))
    assert "adapt_package" not in plain
    assert "align_package" in plain
    adapted = plan(repository, tmp_path, recipe(tmp_path, adapt={}))
    assert "adapt_package" in adapted
    assert "align_package" in adapted


def test_adaptation_without_a_package_is_refused(tmp_path):
    given = recipe(tmp_path, adapt={"tau": 20}, package=None)
    with pytest.raises(UserError, match="there is no package to adapt"):
        Recipe.from_config(given)
