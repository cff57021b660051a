"""The jobs that Snakemake would run for a recipe, and which of them need which.

Snakemake's own dry run makes the graph, in its own process (`python -m
latflow.workflow.job_graph`): it prints to the terminal and changes the environment. A
run has its graph already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from latflow.errors import UserError
from latflow.files import write_json
from latflow.options import Options
from latflow.workflow.settings import (
    find_recipe,
    nested_values,
    read_settings,
    workflow_folder,
)

# Nothing that a job asks for is cut down to the machine of the plan.
_NO_LIMIT = 1 << 30
# Begins what a refusal says, behind all that Snakemake prints.
_REFUSED = "no plan: "


class PlannedJob(Options):
    """A job of a dry run."""

    number: int
    """Snakemake's number of the job."""
    rule: str
    """Name of the rule."""
    name: str
    """Name of its benchmark, which is that of the job in cost.tsv; empty without."""
    wildcards: dict[str, str]
    """Wildcards."""
    inputs: tuple[str, ...]
    """Files that it reads."""
    outputs: tuple[str, ...]
    """Files that it writes."""
    params: dict[str, Any]
    """Settings, as records of jobs have them."""
    threads: int
    """Cores, at most those of a node."""
    gpu: int
    """GPUs."""
    needs: tuple[int, ...]
    """Jobs of the plan that must have ended before."""


def plan_jobs(
    recipe: str | None,
    settings: Sequence[str] = (),
    targets: Sequence[str] = (),
    *,
    cores: int,
    gpus: int,
) -> list[PlannedJob]:
    """Return the jobs that Snakemake would run here now.

    Args:
        recipe: as `latflow.workflow.settings.find_recipe` takes it.
        settings: `KEY=VALUE`, as `snakemake --config` takes them.
        targets: rules or files; the whole experiment by default.
        cores: cores of a node.
        gpus: GPUs of a node.

    Raises:
        UserError: Snakemake refuses the recipe, or misses a file.
    """
    asked = {
        "recipe": str(find_recipe(recipe)),
        "settings": list(settings),
        "targets": list(targets),
        "cores": cores,
        "gpus": gpus,
    }
    with tempfile.TemporaryDirectory(prefix="latflow-plan-") as folder:
        found = Path(folder, "jobs.json")
        command = [sys.executable, "-m", "latflow.workflow.job_graph"]
        done = subprocess.run(
            [*command, json.dumps(asked), str(found)],
            capture_output=True,
            text=True,
            check=False,
        )
        if not found.is_file():
            refusal = done.stderr.rpartition(_REFUSED)[2]
            raise UserError(
                f"no plan can be made: {' '.join(refusal.split())}",
                file=asked["recipe"],
            )
        jobs = json.loads(found.read_text(encoding="utf-8"))
    return [PlannedJob.model_validate(job) for job in jobs]


def _write_jobs(asked: dict[str, Any], target: str) -> None:
    """Run Snakemake dry and write the jobs that it would run."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings import types

    limits = {"mem_mb": _NO_LIMIT, "gpu": asked["gpus"]}
    with SnakemakeApi(types.OutputSettings(dryrun=True)) as snakemake:
        workflow = snakemake.workflow(
            resource_settings=types.ResourceSettings(
                cores=asked["cores"], resources=limits
            ),
            config_settings=types.ConfigSettings(
                configfiles=[Path(asked["recipe"])],
                config=nested_values(read_settings(asked["settings"])),
            ),
            snakefile=workflow_folder() / "Snakefile",
        )
        dag = workflow.dag(types.DAGSettings(targets=frozenset(asked["targets"])))
        dag.execute_workflow(executor="local", pseudo_executor="dryrun")
        # Snakemake's graph of jobs has no public name; its version is pinned.
        graph = cast("Any", workflow._workflow.dag)
        write_json(target, described_jobs(graph))


def described_jobs(graph: Any) -> list[dict[str, Any]]:
    """Return the jobs of a graph that are to run, as `PlannedJob` has them."""
    jobs = [job for job in graph.jobs if graph.needrun(job) and job.output]
    numbers = {job: number for number, job in enumerate(jobs)}
    return [_described(job, graph, numbers) for job in jobs]


def _described(job: Any, graph: Any, numbers: dict[Any, int]) -> dict[str, Any]:
    """Return what is known of a job before it runs."""
    params = {key: value for key, value in job.params.items() if key != "stage"}
    return {
        "number": numbers[job],
        "rule": job.rule.name,
        "name": Path(job.benchmark).stem if job.benchmark else "",
        "wildcards": {key: str(value) for key, value in job.wildcards_dict.items()},
        "inputs": [str(path) for path in job.input],
        "outputs": [str(path) for path in job.output],
        "params": json.loads(json.dumps(params, default=str)),
        "threads": job.threads,
        "gpu": int(job.resources.get("gpu", 0)),
        "needs": sorted(numbers[n] for n in graph.dependencies[job] if n in numbers),
    }


def _main() -> None:
    """Write the jobs of what the first argument asks for to the file of the second."""
    from snakemake.exceptions import RuleException
    from snakemake_interface_common.exceptions import WorkflowError

    from snakemake_logger_plugin_latflow.refusals import in_one_line

    try:
        _write_jobs(json.loads(sys.argv[1]), sys.argv[2])
    except (WorkflowError, RuleException) as error:
        refusal = in_one_line(type(error).__name__, str(error)) or str(error)
        sys.exit(f"{_REFUSED}{refusal.removeprefix('error: ')}")


if __name__ == "__main__":
    _main()
