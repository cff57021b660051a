"""Names agree: rule = script = log folder = benchmark folder; versions = lock file."""

import importlib
import inspect
import re
import tomllib
from importlib import metadata

import pytest
import yaml

from latflow.report.cost_figures import Work, packaged_figures
from latflow.report.cost_model import ALIKE, Cost, CostModel

RULE = re.compile(r"^( *)rule (\w+):\n((?:(?:\1 +.*)?\n)+)", re.MULTILINE)
LIMIT = re.compile(r"max_skipped_fraction=(.*),$", re.MULTILINE)


def rules(repository):
    """(name, text) of every rule that runs something."""
    for path in sorted((repository / "workflow/rules").glob("*.smk")):
        for match in RULE.finditer(path.read_text()):
            if "script:" in match[3] or "shell:" in match[3]:
                yield match[2], match[3]


def test_every_rule_names_its_script_log_and_benchmark_after_itself(repository):
    found = dict(rules(repository))
    assert len(found) > 10
    for name, text in found.items():
        assert f'"../scripts/{name}.py"' in text, name
        assert f'"<logs>/{name}/' in text, name
        assert f'"<benchmarks>/{name}/' in text, name
        assert "message:" in text, name
        assert "conda:" in text, name
        assert "source_digest(" in text, name


def test_every_script_belongs_to_a_rule_and_is_short(repository):
    names = {name for name, _ in rules(repository)} | {"download"}
    for path in (repository / "workflow/scripts").glob("*.py"):
        assert path.stem in names, f"{path.name} has no rule"
        assert len(path.read_text().splitlines()) <= 40, path.name


def test_every_rule_has_the_digest_of_what_its_script_calls(repository):
    for path in sorted((repository / "workflow/rules").glob("*.smk")):
        for part in re.split(r"^ *(?:use )?rule ", path.read_text(), flags=re.M)[1:]:
            digests = re.findall(r'source_digest\("(.+)"\)', part)
            script = re.search(r"scripts/(\w+)\.py", part)
            if digests and script:
                text = (repository / f"workflow/scripts/{script[1]}.py").read_text()
                assert f'run("{digests[0]}", snakemake)' in text


def test_every_rule_gives_what_its_stage_needs(repository):
    """As `latflow.workflow.jobs.run` gives it; what is missing would end the job."""
    of_all_jobs = {"out_dir", "threads", "ranks", "hosts"}
    checked = 0
    for name, text in rules(repository):
        script = (repository / f"workflow/scripts/{name}.py").read_text()
        stage = re.search(r'^run\("(\S+)\.(\w+)", snakemake\)', script, re.M)
        function = getattr(importlib.import_module(stage[1]), stage[2])
        if "unpack(" in text:
            continue
        parameters = inspect.signature(function).parameters.values()
        needed = {p.name for p in parameters if p.default is p.empty}
        named = set(re.findall(r"^ +(\w+)=", text, re.M))
        given = named | {f"{one}_dir" for one in named} | of_all_jobs
        assert needed <= given, f"rule {name} lacks {sorted(needed - given)}"
        checked += 1
    assert checked > 40


def test_the_plan_knows_every_rule(repository):
    """All but downloads, whose time is that of the connection."""
    names = {name for name, _ in rules(repository)}
    for path in (repository / "workflow/rules").glob("*.smk"):
        names.update(
            re.findall(r"^ *use rule \w+ as (\w+) with:", path.read_text(), re.M)
        )
    assert set(ALIKE) <= names
    model = CostModel(packaged_figures())
    works = Work(audio_hours=0.1), Work(input_mib=0.1)
    for name in sorted(names):
        costs = [model.predict(name, work) for work in works]
        assert any(isinstance(cost, Cost) for cost in costs), name


def locked(repository):
    """Versions of the lock file by lower-case name."""
    lines = (repository / "requirements.lock").read_text().splitlines()
    pairs = (line.lower().split("==") for line in lines if "==" in line)
    return {name.replace("_", "-"): version for name, version in pairs}


def test_conda_environments_use_the_locked_versions(repository):
    versions = locked(repository)
    paths = sorted((repository / "envs").glob("*.yaml"))
    assert paths
    for path in paths:
        pip = yaml.safe_load(path.read_text())["dependencies"][-1]["pip"]
        for requirement in pip:
            name, version = requirement.lower().split("==")
            assert versions[name] == version, f"{path.name}: {requirement}"


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


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_share_that_may_be_skipped_makes_no_finished_step_old(repository):
    """Snakemake does not compare params that are functions of the output."""
    folder = repository / "workflow/rules"
    common = (folder / "common.smk").read_text()
    functions = dict(re.findall(r"^def (skippable\w*)\((.*)\):", common, re.M))
    assert all("output" in parameters for parameters in functions.values())
    texts = [path.read_text() for path in folder.glob("*.smk")]
    given = {name for text in texts for name in LIMIT.findall(text)}
    assert given == set(functions)
