"""Jobs on machines: how long a whole run takes, and what it waits for."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latflow.report.cost_figures import MIB
from latflow.report.cost_model import Cost
from latflow.training.memory import TrainingMemory
from latflow.workflow.job_graph import PlannedJob


@dataclass(frozen=True)
class Machines:
    """What jobs run on.

    Attributes:
        nodes: number of machines.
        cores: cores of each.
        gpus: GPUs of each.
    """

    nodes: int
    cores: int
    gpus: int


@dataclass(frozen=True)
class Estimate:
    """A job and what it will take.

    Attributes:
        cost: or why it is not known.
        seconds: from its start to its end; 0 where that is not known.
        memory: of a training, what it keeps on its device; None of other jobs.
    """

    job: PlannedJob
    cost: Cost | str
    seconds: float
    memory: TrainingMemory | None = None


@dataclass(frozen=True)
class Plan:
    """All jobs, in an order in which they could run."""

    estimates: Sequence[Estimate]
    machines: Machines

    @property
    def known(self) -> list[tuple[Estimate, Cost]]:
        """Jobs whose cost is known."""
        return [(e, e.cost) for e in self.estimates if isinstance(e.cost, Cost)]

    @property
    def unknown(self) -> dict[tuple[str, str], int]:
        """Number of jobs of which something is not known, by rule and reason."""
        found: dict[tuple[str, str], int] = {}
        for estimate in self.estimates:
            why = estimate.cost
            if isinstance(why, Cost):
                if not math.isnan(why.memory_mib):
                    continue
                why = "its memory: no job that reads so much was seen, or not how much"
            key = estimate.job.rule, why
            found[key] = found.get(key, 0) + 1
        return found

    @property
    def disk(self) -> float:
        """Bytes that all jobs write, as far as they are known."""
        return MIB * float(np.nansum([cost.disk_mib for _, cost in self.known]))

    @cached_property
    def _remaining(self) -> dict[int, float]:
        """Seconds from the start of each job to the end of all that need it."""
        after: dict[int, float] = {}
        for estimate in reversed(self.estimates):
            job = estimate.job
            own = after.get(job.number, 0.0) + estimate.seconds
            after[job.number] = own
            for needed in job.needs:
                after[needed] = max(after.get(needed, 0.0), own)
        return after

    @property
    def critical_path(self) -> list[Estimate]:
        """The jobs that follow each other and take longest together."""
        remaining = self._remaining
        of = {estimate.job.number: estimate for estimate in self.estimates}
        users: dict[int, list[int]] = {}
        for estimate in self.estimates:
            for needed in estimate.job.needs:
                users.setdefault(needed, []).append(estimate.job.number)
        path: list[Estimate] = []
        choice = [number for number, estimate in of.items() if not estimate.job.needs]
        while choice:
            number = max(choice, key=lambda n: (remaining[n], -n))
            path.append(of[number])
            choice = users.get(number, [])
        return path

    @cached_property
    def wall_seconds(self) -> float:
        """Time of the whole run: what has most behind it starts first."""
        machines = self.machines
        free = [[machines.cores, machines.gpus] for _ in range(machines.nodes)]
        waiting = {e.job.number: len(e.job.needs) for e in self.estimates}
        users: dict[int, list[Estimate]] = {}
        for estimate in self.estimates:
            for needed in estimate.job.needs:
                users.setdefault(needed, []).append(estimate)
        ready = [e for e in self.estimates if not e.job.needs]
        running: list[tuple[float, int, int]] = []
        of = {e.job.number: e for e in self.estimates}
        now = 0.0
        while ready or running:
            ready.sort(key=lambda e: (-self._remaining[e.job.number], e.job.number))
            for estimate in list(ready):
                node = self._place(estimate.job, free)
                if node is not None:
                    ready.remove(estimate)
                    end = now + estimate.seconds
                    heapq.heappush(running, (end, estimate.job.number, node))
            now, number, node = heapq.heappop(running)
            cores, gpus = self._asked(of[number].job)
            free[node][0] += cores
            free[node][1] += gpus
            for user in users.get(number, []):
                waiting[user.job.number] -= 1
                if not waiting[user.job.number]:
                    ready.append(user)
        return now

    def _asked(self, job: PlannedJob) -> tuple[int, int]:
        """Return cores and GPUs of a job, at most those of a machine."""
        return (
            min(job.threads, self.machines.cores),
            min(job.gpu, self.machines.gpus),
        )

    def _place(self, job: PlannedJob, free: list[list[int]]) -> int | None:
        """Take a job's cores and GPUs on the first machine that has them."""
        cores, gpus = self._asked(job)
        for node, (has_cores, has_gpus) in enumerate(free):
            if cores <= has_cores and gpus <= has_gpus:
                free[node][0] -= cores
                free[node][1] -= gpus
                return node
        return None
