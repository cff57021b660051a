"""Commands before a run: mistakes in the data, and what the run will take."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.cli.commands import (
    RECIPE,
    Arguments,
    Group,
    named_experiment,
    option,
    read_recipe,
)
from latflow.errors import UserError

if TYPE_CHECKING:
    from latflow.report.schedule import Machines
    from latflow.workflow.findings import Finding
    from latflow.workflow.recipe import Recipe

COMMANDS = Group()


@COMMANDS.command("doctor", *RECIPE)
def _doctor(arguments: Arguments) -> int:
    """Check an experiment's data before it runs; status 1 where there is an error."""
    from latflow.workflow.doctor import examine_experiment, render

    recipe = read_recipe(arguments)
    findings = examine_experiment(recipe)
    if not any(finding.severity == "error" for finding in findings):
        findings.append(_expected_disk(arguments, recipe))
    sys.stdout.write(render(findings) + "\n")
    return int(any(finding.severity == "error" for finding in findings))


def _expected_disk(arguments: Arguments, recipe: Recipe) -> Finding:
    """Compare the disk that `latflow plan` names with what is free."""
    from latflow.workflow.doctor import examine_disk
    from latflow.workflow.findings import Finding, finding_of
    from latflow.workflow.job_graph import plan_jobs
    from latflow.workflow.settings import give_cache

    try:
        from latflow.report.plan import expect
    except ModuleNotFoundError as error:  # torch may be in the jobs' environments alone
        what = f"the disk that it takes isn't known here: {error}"
        return Finding("note", recipe.results, what, "run latflow plan where it is")
    give_cache()
    machines = _machines(arguments)
    try:
        jobs = plan_jobs(
            named_experiment(arguments),
            _nested(arguments),
            cores=machines.cores,
            gpus=machines.gpus,
        )
        return examine_disk(expect(recipe, jobs, machines).disk, recipe.results)
    except UserError as error:
        return finding_of(error)


@COMMANDS.command(
    "plan",
    RECIPE[0],
    option("targets", "rules or files; the whole experiment by default", nargs="*"),
    option("--nodes", "machines", 1),
    option("--cores", "cores of each; those of this machine by default", type=int),
    option("--gpus", "GPUs of each; those of this machine by default", type=int),
    option(
        "--hours",
        "hours of speech of sets that are not here, e.g. train=960 dev=10",
        [],
        nargs="+",
        metavar="SET=N",
    ),
    option(
        "--utterances",
        "utterances of such sets, for trainings on the shortest ones",
        [],
        nargs="+",
        metavar="SET=N",
    ),
    option(
        "--size",
        "MiB, unpacked, of files that are not here, e.g. lm.arpa.gz=50",
        [],
        nargs="+",
        metavar="FILE=MIB",
    ),
    option(
        "--runs",
        "results of earlier runs to learn from, beside the figures that come with "
        "latflow; by default all in results/",
        nargs="+",
        metavar="RESULTS",
    ),
    *RECIPE[1:],
    example="plan librispeech_960 --nodes 4 --cores 16 --gpus 0 --hours train=960 ...",
)
def _plan(arguments: Arguments) -> None:
    """Tell what a run will take: time, memory and disk by rule, and the whole."""
    from latflow.report.cost_figures import Run, all_figures
    from latflow.report.cost_model import CostModel
    from latflow.report.plan import earlier_runs, make_plan, own_run, render
    from latflow.workflow.amounts import split_amounts
    from latflow.workflow.job_graph import plan_jobs
    from latflow.workflow.settings import give_cache, recipe_and_targets

    give_cache()
    machines = _machines(arguments)
    runs = [Run(Path(run)) for run in arguments.runs or ()] or earlier_runs()
    figures = all_figures(runs)
    words = [word for word in (arguments.recipe, *arguments.targets) if word]
    if not arguments.configfile:
        arguments.recipe, arguments.targets = recipe_and_targets(words)
    recipe = read_recipe(arguments)
    hours = _numbers("--hours", arguments.hours)
    utterances = _numbers("--utterances", arguments.utterances)
    files = _numbers("--size", arguments.size)
    splits = split_amounts(recipe, hours, utterances)
    jobs = plan_jobs(
        named_experiment(arguments),
        _nested(arguments),
        arguments.targets,
        cores=machines.cores,
        gpus=machines.gpus,
    )
    done, model = own_run(recipe, runs), CostModel(figures)
    plan = make_plan(
        recipe, jobs, model, machines, splits=splits, done=done, files=files
    )
    sys.stdout.write(f"{render(plan, figures)}\n")


def _machines(arguments: Arguments) -> Machines:
    """Return what a run is planned for: this machine, where nothing else is named."""
    from latflow.report.schedule import Machines
    from latflow.workflow.machine import capacity

    cores, gpus = getattr(arguments, "cores", None), getattr(arguments, "gpus", None)
    cores = os.cpu_count() or 1 if cores is None else cores
    gpus = capacity()["gpu"] if gpus is None else gpus
    nodes = getattr(arguments, "nodes", 1)
    if min(nodes, cores) < 1 or gpus < 0:
        raise UserError("--nodes and --cores begin at 1, --gpus at 0")
    return Machines(nodes, cores, gpus)


def _nested(arguments: Arguments) -> list[str]:
    """Return the settings of the command line as `snakemake --config` takes them."""
    from latflow.workflow.settings import nested_setting

    return [*arguments.config, *map(nested_setting, arguments.overrides)]


def _numbers(name: str, settings: list[str]) -> dict[str, float]:
    """Return settings `KEY=NUMBER` of an option."""
    numbers = {}
    for setting in settings:
        key, _, value = setting.rpartition("=")
        try:
            numbers[key] = float(value)
        except ValueError:
            numbers[key] = -1.0
        if not key or not 0 <= numbers[key] < float("inf"):
            raise UserError(f"{name} {setting} is not NAME=NUMBER")
    return numbers
