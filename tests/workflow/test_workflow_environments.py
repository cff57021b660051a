"""Conda environments: their form, their place in the rules, their versions."""

import os
import re
import stat
import subprocess
import sys
from importlib import metadata

import pytest
import yaml
from fixtures.imports import distributions, plain
from fixtures.rules import read_rules
from packaging.requirements import Requirement

FAMILIES = ("corpus", "gmm", "lang", "report", "serve", "torch-cpu", "torch-gpu")
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
# What the name TORCH in `conda:` stands for; others are files.
TORCH = ("torch-cpu", "torch-gpu")


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


def read_python(path):
    """Return the packages of Python in an environment, `name==version`.

    They come from an index of Python's, but for torch without CUDA, which is
    conda-forge's `pytorch-cpu` (it is a distribution `torch` to pip).
    """
    *packages, pip = yaml.safe_load(path.read_text())["dependencies"]
    lines = [line for line in pip["pip"] if not line.startswith("--")]
    torch = [x for x in packages if x.startswith("pytorch-cpu=")]
    return [*lines, *(x.replace("pytorch-cpu=", "torch==") for x in torch)]


def test_torch_with_cuda_is_in_the_environment_for_gpus_alone(repository):
    for name, found in environments(repository).items():
        *packages, pip = found["dependencies"]
        cpu = [x for x in packages if x.startswith("pytorch-cpu=")]
        any_torch = [x for x in pip["pip"] if x.startswith("torch==")]
        is_gpu = name == "torch-gpu"
        assert (len(cpu), len(any_torch)) == ((0, 1) if is_gpu else (1, 0)), name


def test_conda_environments_use_the_locked_versions(repository):
    lines = (repository / "requirements.lock").read_text().splitlines()
    pairs = (line.split(";")[0].split("==") for line in lines)
    versions = {plain(name): version.strip() for name, version in pairs}
    paths = sorted((repository / "envs").glob("*.yaml"))
    assert paths
    for path in paths:
        for requirement in read_python(path):
            name, version = requirement.lower().split("==")
            assert versions[name] == version, f"{path.name}: {requirement}"


# What some code imports that no rule of an environment runs: a client of Triton's, and
# NVIDIA's compiler, which comes with torch.
NEVER_RUN = {"grpcio", "tritonclient", "triton", "triton-python-backend-utils"}


def closure(names):
    """Return distributions with all that they require, as they are installed here."""
    found, pending = set(), list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            required = map(Requirement, metadata.requires(name) or ())
            pending += [
                plain(one.name)
                for one in required
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


def stages(repository):
    """Return the stages that run in each environment."""
    found = {}
    for rule in read_rules(repository).values():
        named = re.findall(r"envs/([\w-]+)\.yaml", rule.directives["conda"])
        for environment in named or TORCH:
            found.setdefault(environment, set()).add(rule.stage)
    return found


@pytest.mark.slow
def test_environments_have_what_the_code_of_their_rules_imports(repository):
    """Lazy imports too."""
    found = stages(repository)
    assert sorted(found) == sorted(FAMILIES)
    for environment, names in found.items():
        needed = distributions(*names, "latflow.workflow.fork_server.run") - NEVER_RUN
        if "lhotse" in needed:
            needed.add("lilcom")  # loaded by name, for manifests with features of it
        python = read_python(repository / f"envs/{environment}.yaml")
        lacking = needed - closure(plain(one.split("==")[0]) for one in python)
        assert not lacking, environment


def test_no_environment_names_a_registry(repository):
    for path in (repository / "envs").glob("*.yaml"):
        assert "://" not in path.read_text(), path


def test_triton_environment_has_what_backend_and_load_client_import(repository):
    roots = "latflow.serving.triton_model", "latflow.serving.load_test.load_server"
    script = (repository / "envs/install_triton.sh").read_text()
    (text,) = re.findall(r"^locked=\((.*?)\)", script, re.MULTILINE | re.DOTALL)
    listed = set(map(plain, text.split()))
    needed = distributions(*roots) - NEVER_RUN
    assert needed - closure(listed) == set()
    assert listed - needed == set()


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
    del recipe["nnet"]["systems"]["ce"]["training"]["schedule"]  # a file as well
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
