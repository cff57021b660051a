"""What a run will take, before it runs: time, memory and disk of each rule.

The jobs are those of Snakemake's dry run (`latflow.workflow.job_graph`), their costs
those of `latflow.report.cost_model`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from types import MappingProxyType

import numpy as np
import pandas as pd

from latflow.errors import UserError
from latflow.features.frame_times import Amount
from latflow.files import size_text
from latflow.report.cost_figures import (
    MIB,
    Run,
    all_figures,
    size_of,
    work_of,
)
from latflow.report.cost_model import (
    Cost,
    CostModel,
    error_factors,
    leave_one_out,
)
from latflow.report.costs import share_of_split, split_of
from latflow.report.schedule import Estimate, Machines, Plan
from latflow.workflow.amounts import split_amounts, synthetic_lexicon
from latflow.workflow.job_graph import PlannedJob
from latflow.workflow.network_sizes import NetworkSizes
from latflow.workflow.recipe import Recipe

_PROCESS_MIB = 400  # of a training, before it has a network
_SHOWN_SHARE = 0.02  # of the critical path


def expect(recipe: Recipe, jobs: Sequence[PlannedJob], machines: Machines) -> Plan:
    """Predict what jobs take by what earlier runs took, those in results/ too.

    Raises:
        UserError: hours of speech are not known.
    """
    splits = split_amounts(recipe, {}, {})
    runs = earlier_runs()
    model, done = CostModel(all_figures(runs)), own_run(recipe, runs)
    return make_plan(recipe, jobs, model, machines, splits=splits, done=done)


def earlier_runs() -> list[Run]:
    """Return the runs in this folder that there are figures of."""
    return [Run(p.parent) for p in sorted(Path().glob("results/*/benchmarks"))]


def own_run(recipe: Recipe, runs: Iterable[Run]) -> Run:
    """Return what has run of a recipe: one of some runs, if it is among them."""
    results = Path(recipe.results)
    return next((run for run in runs if run.results == results), Run(results))


def make_plan(
    recipe: Recipe,
    jobs: Sequence[PlannedJob],
    model: CostModel,
    machines: Machines,
    *,
    splits: Mapping[str, Amount],
    done: Run,
    files: Mapping[str, float] = MappingProxyType({}),
) -> Plan:
    """Predict what each job takes.

    Args:
        recipe: the experiment.
        jobs: of Snakemake's dry run.
        model: what jobs cost.
        machines: what they run on.
        splits: amounts of speech, as `split_amounts` gives them.
        done: what has run of the experiment.
        files: MiB, unpacked, of files that are not here, by path or file name.

    Raises:
        UserError: a file that no job reads.
    """
    paths = {path for job in jobs for path in (*job.inputs, *job.outputs)}
    for name in files.keys() - paths - {PurePath(path).name for path in paths}:
        raise UserError(
            f"--size {name}: no job reads such a file", remedy="check the name"
        )
    networks = NetworkSizes(recipe, splits)
    over_speech = done.files_over_speech(splits)
    sizes = _Sizes(jobs, {**synthetic_lexicon(recipe), **files}, over_speech)
    estimates = []
    for job in _in_order(jobs):
        split = split_of(job.wildcards, job.inputs, splits)
        options = job.params.get("options") or {}
        is_training = "training" in options and "network" in job.wildcards
        memory = networks.memory(job.wildcards["network"]) if is_training else None
        reads, graphs = sizes.read(job, ""), sizes.read(job, ".fst")
        work = work_of(
            job.params,
            splits.get(split or ""),
            share=share_of_split(job.wildcards),
            parameters=None if memory is None else memory.parameters / 1e6,
            input_mib=reads,
            graph_mib=np.nan if reads is None or graphs is None else graphs,
        )
        is_unsized = is_training and memory is None
        cost = (
            "the size of its network is not known"
            if is_unsized
            else model.predict(job.rule, work, on_gpu=job.gpu > 0)
        )
        if memory is not None and isinstance(cost, Cost) and not job.gpu:
            least = _PROCESS_MIB + memory.total / MIB
            cost = replace(cost, memory_mib=np.fmax(cost.memory_mib, least))
        sizes.note(job, cost, is_over_speech=split is not None)
        seconds = _seconds(job, cost, machines)
        estimates.append(Estimate(job, cost, seconds, memory))
    return Plan(estimates, machines)


def _seconds(job: PlannedJob, cost: Cost | str, machines: Machines) -> float:
    """Return how long a job takes: its start on one core, the rest on all of its."""
    if isinstance(cost, str):
        return 0.0
    if job.gpu:
        return cost.cpu_seconds
    cores = max(1, min(job.threads, machines.cores))
    return cost.start_seconds + (cost.cpu_seconds - cost.start_seconds) / cores


def _in_order(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return jobs behind those that they need."""
    of = {job.number: job for job in jobs}
    order: dict[int, PlannedJob] = {}
    pending = [job.number for job in reversed(jobs)]
    while pending:
        number = pending[-1]
        missing = [n for n in of[number].needs if n not in order]
        if number in order or not missing:
            order.setdefault(number, of[number])
            pending.pop()
        else:
            pending += missing
    return list(order.values())


class _Sizes:
    """Sizes of files that jobs read: of what made them, as figures have it.

    Args:
        jobs: of the plan.
        given: sizes of files, MiB, by path or file name.
        left_out: files that are there, and no language data.
    """

    def __init__(
        self,
        jobs: Sequence[PlannedJob],
        given: Mapping[str, float],
        left_out: Collection[str],
    ) -> None:
        self._maker = {path: job.number for job in jobs for path in job.outputs}
        self._made: dict[int, float] = {}
        self._over_speech: set[int | None] = set()
        self._given = given
        self._left_out = left_out

    def read(self, job: PlannedJob, suffix: str) -> float | None:
        """Return the size of the language data that a job reads; None if not known.

        Args:
            suffix: of the names of the files that count.
        """
        found: dict[str, float | None] = {}
        for path in job.inputs:
            maker = self._maker.get(path)
            is_left_out = maker is None and path in self._left_out
            if not path.endswith(suffix) or is_left_out:
                continue
            if maker not in self._over_speech:
                known = self._given.get(path, self._given.get(PurePath(path).name))
                if known is not None:
                    found[path] = known
                elif maker is None:
                    found[path] = size_of(path) / MIB
                else:
                    found[str(maker)] = self._made.get(maker)
        total = 0.0
        for size in found.values():
            if size is None:
                return None
            total += size
        return total

    def note(self, job: PlannedJob, cost: Cost | str, *, is_over_speech: bool) -> None:
        """Take note of what a job writes."""
        if is_over_speech:
            self._over_speech.add(job.number)
        elif isinstance(cost, Cost):
            self._made[job.number] = cost.disk_mib


def render(plan: Plan, figures: pd.DataFrame) -> str:
    """Lay a plan out for a terminal.

    Args:
        figures: that its model was fitted on; show its error there.
    """
    if not plan.estimates:
        return "Nothing is left to run: all that was asked for is up to date."
    machines = plan.machines
    lines = [*_table(plan), ""]
    if plan.unknown:
        lines.append("Unknown, and not in what follows:")
        lines += [
            f"  {rule} ({count} {'job' if count == 1 else 'jobs'}): {why}"
            for (rule, why), count in plan.unknown.items()
        ]
        lines.append("")
    lines += _trainings(plan)
    known = plan.known
    if known:
        core_hours = sum(c.cpu_seconds for e, c in known if not e.job.gpu) / 3600
        lines.append(f"processor time   {core_hours:,.1f} core hours")
        if any(e.job.gpu for e, _ in known):
            gpu_hours = sum(e.seconds * e.job.gpu for e, _ in known) / 3600
            lines.append(f"GPU time         {gpu_hours:,.1f} GPU hours")
        lines.append(f"disk             {size_text(plan.disk)}")
        largest, cost = max(known, key=lambda pair: np.nan_to_num(pair[1].memory_mib))
        lines.append(
            f"largest job      {_named(largest)}: "
            f"{size_text(MIB * cost.memory_mib)} of memory"
        )
        lines.append(
            f"wall time        {_duration(plan.wall_seconds)} on {machines.nodes} x "
            f"{machines.cores} cores, {machines.gpus} GPUs"
        )
        path = plan.critical_path
        total = sum(estimate.seconds for estimate in path)
        steps = [
            f"{_named(e)} {_duration(e.seconds)}"
            for e in path
            if e.seconds > _SHOWN_SHARE * total
        ]
        lines.append(f"critical path    {_duration(total)}: {', '.join(steps)}")
    return "\n".join([*lines, "", _error(figures)])


def _table(plan: Plan) -> list[str]:
    """Return the lines of the table by rule, those first that take most time."""
    heading = ["rule", "jobs", "time each", "core hours", "memory", "disk", "seen"]
    groups: dict[str, list[Estimate]] = {}
    for estimate in plan.estimates:
        groups.setdefault(estimate.job.rule, []).append(estimate)
    rows = []
    for rule, estimates in groups.items():
        costs = [e.cost for e in estimates if isinstance(e.cost, Cost)]
        if not costs:
            continue
        times = [e.seconds for e in estimates if isinstance(e.cost, Cost)]
        hours = sum(c.cpu_seconds for c in costs) / 3600
        is_gpu = estimates[0].job.gpu > 0
        cells = [
            rule,
            str(len(costs)),
            _range(min(times), max(times)),
            "" if is_gpu else f"{hours:.2f}",
            size_text(MIB * max([c.memory_mib for c in costs], key=np.nan_to_num)),
            size_text(MIB * sum(c.disk_mib for c in costs)),
            f"{max(c.reach for c in costs):.1f}x",
        ]
        rows.append((sum(times), cells))
    rows.sort(key=lambda row: -row[0])
    table = [heading, *(cells for _, cells in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    form = "  ".join([f"{{:{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    return [form.format(*row) for row in table]


def _trainings(plan: Plan) -> list[str]:
    """Return the lines on what trainings keep in memory, of the processor or a GPU."""
    found = [(e, e.memory) for e in plan.estimates if e.memory is not None]
    if not found:
        return []
    lines = [
        f"  {_named(estimate)}: {memory.parameters / 1e6:,.1f} million parameters, "
        f"{size_text(memory.state)} with gradient and optimizer; at least "
        f"{size_text(memory.batch)} for the largest batch"
        for estimate, memory in found
    ]
    return ["Trainings keep in memory, of the device that they run on:", *lines, ""]


def _named(estimate: Estimate) -> str:
    """Return rule and job."""
    return f"{estimate.job.rule} {estimate.job.name}".rstrip()


def _range(least: float, most: float) -> str:
    """Return a range of durations, one where its ends look the same."""
    first, last = _duration(least), _duration(most)
    return first if first == last else f"{first} to {last}"


def _duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _error(figures: pd.DataFrame) -> str:
    """Report the model's error: each run predicted from the others."""
    factors = error_factors(leave_one_out(figures))
    if not factors:
        return "One earlier run: how far the model is off is unknown."
    parts = ", ".join(f"{name} {a:.1f} ({b:.1f})" for name, (a, b) in factors.items())
    return (
        f"Each of {figures['run'].nunique()} earlier runs predicted from the others: "
        f"half of the jobs (nine in ten) were within a factor of {parts}."
    )
