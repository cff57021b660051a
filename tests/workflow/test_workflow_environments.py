"""Conda environments: their form, their place in the rules, their versions."""

import ast
import os
import re
import stat
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from reference.rules import read_rules

FAMILIES = ("corpus", "gmm", "lang", "report", "serve", "torch-cpu", "torch-gpu")
# What a server loads: front end, network, decoder.
SERVED = (
    "features/front_end",
    "nnet/model_dir",
    "decode/streaming",
    "decode/recognizer",
)
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
# What the names in `conda:` stand for; others are files.
NAMED = {"TORCH": ["torch-cpu", "torch-gpu"]}


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


def tasks(repository):
    """(module of the stage, families) of every rule."""
    for rule in read_rules(repository).values():
        name = rule.directives["conda"].strip()
        module = rule.stage.rpartition(".")[0].replace(".", "/")
        families = NAMED.get(name) or [re.split(r"[/.]", name)[-2]]
        yield repository / f"src/{module}.py", families


@cache
def imports(path):
    """Names that a file imports when it is loaded, whether it is a module or in one."""
    return list(imported(path))


def imported(path):
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (ast.stmt, ast.ExceptHandler)
            pending += [n for n in ast.iter_child_nodes(node) if isinstance(n, inner)]


def needs(path, source):
    """Foreign modules that a module needs, itself or by modules of ours."""
    pending, reached, found = [path], set(), set()
    while pending:
        if (path := pending.pop()) in reached:
            continue
        reached.add(path)
        for name in imports(path):
            parts = name.split(".")
            found.add(parts[0])
            if parts[0] == "latflow":
                for end in range(1, len(parts) + 1):
                    base = source.joinpath(*parts[:end])
                    files = base.with_suffix(".py"), base / "__init__.py"
                    pending += filter(Path.is_file, files)
    return found - sys.stdlib_module_names - {"latflow"}


def plain(name):
    """The name of a package as all spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def brought(package):
    """A package and all that it requires."""
    found, pending, no_extra = set(), [package], {"extra": ""}
    while pending:
        if (name := plain(pending.pop())) not in found:
            found.add(name)
            lines = map(Requirement, metadata.requires(name) or [])
            wanted = (r for r in lines if not r.marker or r.marker.evaluate(no_extra))
            pending += [requirement.name for requirement in wanted]
    return found


@pytest.mark.slow
def test_environments_have_what_stages_import(repository):
    packages = metadata.packages_distributions()
    present = {}
    for family, environment in environments(repository).items():
        names = [line.split("==")[0] for line in environment["dependencies"][-1]["pip"]]
        present[family] = set().union(*map(brought, names))
    rooms = repository / "src/latflow"
    start = [rooms / f"workflow/{name}.py" for name in ("fork_server", "jobs")]
    found = list(tasks(repository))
    found += [(path, FAMILIES) for path in start]
    found += [(rooms / f"{name}.py", ["serve"]) for name in SERVED]
    lacking = [
        (path.name, family, module)
        for path, families in found
        for module in needs(path, repository / "src")
        for family in families
        if present[family].isdisjoint(map(plain, packages.get(module, [])))
    ]
    assert not lacking


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
