"""Estimates for a run that has begun what its jobs will take.

`python -m latflow.report.expected_costs run.json` prints seconds of a job by rule, the
disk that all of them write in bytes, and a warning where it is too small.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from latflow.report.plan import expect
from latflow.report.schedule import Machines
from latflow.workflow.doctor import examine_disk
from latflow.workflow.job_graph import PlannedJob
from latflow.workflow.machine import capacity
from latflow.workflow.recipe import Recipe


def expected_costs(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the jobs of a run are expected to take.

    Args:
        run: its jobs (`PlannedJob`), its complete configuration, its cores.
    """
    recipe = Recipe.from_config(run["config"])
    jobs = [PlannedJob.model_validate(job) for job in run["jobs"]]
    plan = expect(recipe, jobs, Machines(1, run["cores"], capacity()["gpu"]))
    seconds: dict[str, list[float]] = {}
    for estimate, _ in plan.known:
        seconds.setdefault(estimate.job.rule, []).append(estimate.seconds)
    disk = examine_disk(plan.disk, recipe.results)
    known = [estimate.seconds for estimate, _ in plan.known]
    for rule, _ in plan.unknown:
        seconds.setdefault(rule, known)
    return {
        "seconds": {rule: fmean(found or [1.0]) for rule, found in seconds.items()},
        "disk": plan.disk,
        "warning": "" if disk.severity == "note" else f"{disk.what} - {disk.remedy}",
    }


if __name__ == "__main__":
    os.nice(10)  # the jobs go first
    found = expected_costs(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    sys.stdout.write(json.dumps(found))
