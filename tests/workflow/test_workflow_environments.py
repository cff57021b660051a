"""Conda environments: their form, their place in the rules, their versions."""

import os
import re
import stat
import subprocess
import sys

import pytest
import yaml

FAMILIES = ("corpus", "gmm", "lang", "report", "torch-cpu", "torch-gpu")
# Answers what Snakemake asks of conda before it plans, and nothing else.
STAND_IN = """#!/bin/sh
case "$*" in
  "info --json") echo '{"conda_prefix": "/nowhere", "platform": "linux-64"}' ;;
  "--version") echo "conda 25.1.0" ;;
  "config --get channel_priority --json")
    echo '{"get": {"channel_priority": "strict"}}' ;;
  *) echo "asked for: $*" >&2; exit 9 ;;
esac
"""


def environments(repository):
    return {
        path.stem: yaml.safe_load(path.read_text())
        for path in (repository / "envs").glob("*.yaml")
    }


def test_one_file_for_each_family_of_stages(repository):
    assert sorted(environments(repository)) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_environment_has_the_form_that_conda_reads(repository, family):
    found = environments(repository)[family]
    assert set(found) == {"name", "channels", "dependencies"}
    assert found["name"] == f"latflow-{family}"
    assert found["channels"] == ["conda-forge", "nodefaults"]
    *packages, pip = found["dependencies"]
    assert packages[:2] == ["python=3.11", "pip"]
    assert all(re.fullmatch(r"[a-z0-9-]+(=[0-9.]+)?", name) for name in packages)
    assert set(pip) == {"pip"}
    names = [line.split("==")[0].lower() for line in pip["pip"]]
    assert len(names) == len(set(names))


def test_horovod_has_the_same_version_everywhere(repository):
    texts = [
        (repository / "envs" / name).read_text()
        for name in ("install_horovod.sh", "torch-gpu.post-deploy.sh")
    ]
    versions = {re.search(r"^version=(\S+)$", text, re.MULTILINE)[1] for text in texts}
    assert len(versions) == 1
    assert f"horovod=={versions.pop()}" in (repository / "pyproject.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("device", "family"), [("cpu", "cpu"), ("cuda", "gpu")])
def test_workflow_plans_with_conda(repository, tmp_path, device, family):
    tool = tmp_path / "bin" / "conda"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    recipe = yaml.safe_load((repository / "tests/e2e/small.yaml").read_text())
    recipe["nnet"]["device"] = device
    network = str(repository / "tests/e2e/tiny_network.yaml")
    recipe["nnet"]["systems"]["ce"]["network"] = network
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    done = subprocess.run(
        [
            sys.executable, "-m", "snakemake", "-n", "--sdm", "conda", "--cores", "1",
            "--snakefile", str(repository / "Snakefile"),
            "--configfile", "recipe.yaml",
        ],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    planned = set(re.findall(r"envs/([a-z-]+)\.yaml", said))
    assert planned == {"corpus", "gmm", "lang", "report", f"torch-{family}"}
