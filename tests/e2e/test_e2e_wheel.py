"""A wheel, installed away from the checkout, runs an experiment."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fixtures.rules import read_rules

from latflow.workflow.code_digest import Sources

pytestmark = pytest.mark.slow
FILES = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src"),
    *("Snakefile", "workflow", "config", "envs", "profiles", "docs", "CHANGELOG.md"),
)
# Started with each Python: notes which functions of the package a job calls.
TRACE = """
import atexit, inspect, json, os, sys, threading
called = set()
def note(frame, event, _):
    code = frame.f_code
    is_function = code.co_flags & inspect.CO_OPTIMIZED  # not a class, not a module
    if event == "call" and is_function and "/latflow/" in code.co_filename:
        called.add((code.co_filename, code.co_firstlineno))
def save():
    if job := getattr(sys.modules["__main__"], "snakemake", None):
        path = f"{os.environ['CALLS']}/{job.rule}.{os.getpid()}.json"
        with open(path, "w") as stream:
            json.dump(sorted(called), stream)
if os.environ.get("CALLS") and sys.argv[:1] != ["-c"]:
    sys.setprofile(note)
    threading.setprofile(note)
    atexit.register(save)
"""
RECIPE = {
    "experiment": "wheel",
    "corpus": {
        "train": {"type": "synthetic", "speakers": 4, "utterances": 24},
        "dev": {"type": "synthetic", "speakers": 2, "utterances": 6},
        "test": {"test": {"type": "synthetic", "speakers": 1, "utterances": 2}},
    },
    "lm": {"type": "text"},
    "gmm": {
        "systems": {
            "mono": {
                "type": "mono", "num_gaussians": 60, "num_iterations": 4,
                "last_increase_iteration": 2,
            }
        }
    },
}  # fmt: skip


def call(folder, environment, *command):
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment():
    """Variables without those that would lead to the checkout."""
    left_out = {"PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS"}
    kept = {k: v for k, v in os.environ.items() if k not in left_out}
    return {**kept, "NUMBA_OPT": "0"}  # kernels are compiled anew: faster to make


@pytest.fixture(scope="module")
def python(repository, environment, tmp_path_factory):
    """Python of an environment with the wheel and, from ours, all but latflow."""
    root = tmp_path_factory.mktemp("wheel")
    (root / "source").mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in FILES:
        if (repository / name).is_dir():
            shutil.copytree(repository / name, root / "source" / name, ignore=ignored)
        else:
            shutil.copy(repository / name, root / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", root, "."]
    call(root / "source", environment, *pip, *build)
    shutil.rmtree(root / "source")
    call(root, environment, sys.executable, "-m", "venv", "--without-pip", root / "env")
    python = root / "env/bin/python"
    site = next(root.glob("env/lib/python*/site-packages"))
    # A line in a .pth file adds a folder without the .pth files (our checkout's) in it.
    ours = next(p for p in sys.path if Path(p, "snakemake", "__init__.py").is_file())
    (site / "shared.pth").write_text(f"{ours}\n")
    (site / "trace_calls.py").write_text(TRACE)
    (site / "trace.pth").write_text("import trace_calls\n")
    wheel = next(root.glob("latflow-*.whl"))
    install = ["--python", python, "install", "--no-deps", "--no-index", wheel]
    call(root, environment, *pip[:3], *install)
    return python


def test_package_is_the_installed_one_and_has_its_workflow(python, environment):
    code = "import latflow; print(latflow.__file__)"
    folder = python.parents[2]
    file = Path(call(folder, environment, python, "-c", code).strip())
    assert file.is_relative_to(python.parents[1])
    assert (file.parent / "_workflow/workflow/rules/common.smk").is_file()
    assert (file.parent / "py.typed").is_file()
    assert (file.parent / "report/page.css").is_file()


@pytest.fixture(scope="module")
def experiment(python, environment, tmp_path_factory):
    """Folder of an experiment that was run, and of the calls of its jobs."""
    folder = tmp_path_factory.mktemp("experiment")
    calls = folder / "calls"
    calls.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    program = python.with_name("latflow")
    call(
        folder, {**environment, "CALLS": str(calls), "LATFLOW_FORK_SERVER": "off"},
        program, "run", "recipe.yaml", "gmm_mono", "--cores", "2", "--quiet", "rules",
    )  # fmt: skip
    return folder


def test_wheel_runs_an_experiment_where_the_user_stands(
    experiment, python, environment
):
    results = experiment / "results/wheel"
    assert (results / "gmm/mono/final.mdl").is_file()
    program = python.with_name("latflow")
    said = call(
        experiment, environment, program, "run", "recipe.yaml", "gmm_mono", "-n"
    )
    assert "Nothing to be done" in said
    said = call(
        experiment, environment, program, "provenance", results / "gmm/mono/final.mdl"
    )
    assert "state: unchanged" in said


def test_init_and_run_agree(tmp_path, python, environment):
    program = python.with_name("latflow")
    call(tmp_path, environment, program, "init", "mine")
    assert "# Models at work" in call(tmp_path, environment, program, "docs", "serving")
    call(
        tmp_path / "mine", environment, program, "config", "--configfile", "recipe.yaml"
    )


def definitions(folder):
    """Name of the definition at the top of a module, by file and line."""
    found = {}
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                for line in range(first, node.end_lineno + 1):
                    found[str(path), line] = f"{module}.{node.name}"
    return found


def test_digests_are_of_all_that_jobs_call(experiment, python, repository):
    folder = next(python.parents[1].glob("lib/python*/site-packages/latflow"))
    names, sources = definitions(folder), Sources(folder)
    rules, seen = read_rules(repository), set()
    for path in (experiment / "calls").glob("*.json"):
        rule = path.name.split(".")[0]
        seen.add(rule)
        called = {names.get((f, n)) for f, n in json.loads(path.read_text())} - {None}
        called = {n for n in called if not n.startswith(RUNNER)}
        assert called <= sources.reached(*rules[rule].counted), rule
    assert seen >= {"prepare_corpus", "make_lang", "extract_features", "train_mono"}


# What runs around a stage, and makes no result old.
RUNNER = (
    "latflow.workflow.", "latflow.provenance.", "latflow.options.", "latflow.logs.",
    "latflow.files.", "latflow.text_files.", "latflow.yaml_files.", "latflow.jit.",
    "latflow.gpu_load.",
)  # fmt: skip
