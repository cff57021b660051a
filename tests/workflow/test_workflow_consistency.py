"""Names agree: rule = log folder = benchmark folder; versions = lock file."""

import importlib
import inspect
import re
import tomllib
from dataclasses import is_dataclass
from importlib import metadata
from typing import get_type_hints

import pytest
from fixtures.imports import plain
from fixtures.rules import read_rules
from packaging.requirements import Requirement

from latflow.report.cost_figures import Work, packaged_figures
from latflow.report.cost_model import ALIKE, Cost, CostModel

LIMIT = re.compile(r"max_skipped_fraction=(.*),$", re.MULTILINE)


@pytest.fixture(scope="module")
def rules(repository):
    found = read_rules(repository)
    del found["download"]  # one for each file of a recipe; of none is the digest asked
    return found


def test_every_rule_names_its_log_and_benchmark_after_itself(rules):
    for name, rule in rules.items():
        assert f'"<logs>/{name}/' in rule.directives["log"], name
        assert f'"<benchmarks>/{name}/' in rule.directives["benchmark"], name
        assert rule.directives.keys() >= {"message", "conda", "threads"}, name


def test_every_rule_runs_a_stage_whose_code_it_counts(repository, rules):
    (script,) = (repository / "workflow/scripts").iterdir()
    for name, rule in rules.items():
        assert rule.directives["script"].strip() == f'"../scripts/{script.name}"', name
        assert rule.params["stage"].startswith("stage("), name


def needed_by(called):
    """Parameters without a default; of a dataclass those of its fields."""
    annotations = get_type_hints(called)
    for name, parameter in inspect.signature(called).parameters.items():
        if is_dataclass(annotations[name]):
            yield from needed_by(annotations[name])
        elif parameter.default is parameter.empty:
            yield name


def test_every_rule_gives_what_its_stage_needs(rules):
    """As `latflow.workflow.jobs.run` gives it; what is missing would end the job."""
    of_all_jobs = {"out_dir", "threads", "ranks", "hosts"}
    checked = 0
    for name, rule in rules.items():
        module, _, stage = rule.stage.rpartition(".")
        function = getattr(importlib.import_module(module), stage)
        if "unpack(" in rule.directives.get("input", ""):
            continue
        needed = set(needed_by(function))
        given = rule.given | {f"{one}_dir" for one in rule.given} | of_all_jobs
        assert needed <= given, f"rule {name} lacks {sorted(needed - given)}"
        checked += 1
    assert checked > 40


def test_the_plan_knows_every_rule(rules):
    """All but downloads, whose time is that of the connection."""
    assert rules.keys() >= set(ALIKE)
    model = CostModel(packaged_figures())
    works = Work(audio_hours=0.1), Work(input_mib=0.1)
    for name in sorted(rules):
        costs = [model.predict(name, work) for work in works]
        assert any(isinstance(cost, Cost) for cost in costs), name


def locked(repository):
    """Versions of the lock file by lower-case name."""
    lines = (repository / "requirements.lock").read_text().lower().splitlines()
    pairs = (line.split(";")[0].split("==") for line in lines)
    return {name.replace("_", "-"): version for name, version in pairs}


SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}
# Torch's own, which its builds for CPUs do not have.
OF_TORCH = re.compile(r"nvidia-|cuda-|triton$")


@pytest.mark.parametrize("platform", SYSTEMS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_lock_file_has_all_that_its_packages_need(repository, python, platform):
    """As the packages that are installed here tell it of another Python and system."""
    other = {
        "python_version": python, "python_full_version": f"{python}.0", "extra": "",
        "sys_platform": platform, "platform_system": SYSTEMS[platform],
    }  # fmt: skip

    def needed(lines):
        requirements = map(Requirement, lines)
        return {
            plain(one.name): one
            for one in requirements
            if one.marker is None or one.marker.evaluate(other)
        }

    present = needed((repository / "requirements.lock").read_text().splitlines())
    versions = {name: str(one.specifier)[2:] for name, one in present.items()}
    missing = set()
    for name in versions:
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # of other Pythons
        for required, one in needed(lines).items():
            is_there = required in versions and versions[required] in one.specifier
            if not is_there and not OF_TORCH.match(required):
                missing.add(f"{name}: {one}")
    assert not missing


@pytest.mark.parametrize("mark", ["@ ", "://", "file:", "--hash", "-e "])
def test_lock_file_holds_names_and_versions_only(repository, mark):
    assert mark not in (repository / "requirements.lock").read_text()


def test_required_packages_are_in_the_lock_file(repository):
    text = (repository / "pyproject.toml").read_text()
    block = text.split("dependencies = [", 1)[1].split("]\n", 1)[0]
    names = re.findall(r'"([A-Za-z0-9_-]+)', block)
    versions = locked(repository).keys()
    assert len(names) > 10
    assert {name.lower() for name in names} <= versions


# Required by what others load by name.
LOADED_BY_NAME = {"lilcom", "tensorboard", "espeakng-loader"}


def test_every_required_package_is_imported_by_a_source_file(repository):
    modules = metadata.packages_distributions()
    sources = (repository / "src").rglob("*.py")
    imported = {
        name.split(".")[0]
        for path in sources
        for name in re.findall(r"^ *(?:from|import) ([\w.]+)", path.read_text(), re.M)
    }
    present = {plain(d) for module in imported for d in modules.get(module, ())}
    text = (repository / "pyproject.toml").read_text()
    required = tomllib.loads(text)["project"]["dependencies"]
    names = {plain(re.match(r"[\w.-]+", line)[0]) for line in required}
    assert names - present <= LOADED_BY_NAME


def test_the_share_that_may_be_skipped_makes_no_finished_step_old(repository):
    """Snakemake does not compare params that are functions of the output."""
    folder = repository / "workflow/rules"
    common = (folder / "common.smk").read_text()
    functions = dict(re.findall(r"^def (skippable\w*)\((.*)\):", common, re.M))
    assert all("output" in parameters for parameters in functions.values())
    texts = [path.read_text() for path in folder.glob("*.smk")]
    given = {name for text in texts for name in LIMIT.findall(text)}
    assert given == set(functions)
