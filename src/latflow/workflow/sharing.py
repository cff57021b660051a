"""Experiments that share work: a result of the same settings, code and inputs is taken.

A job is known by a key: its rule, stage and digest of code, the params that results
follow from, and its inputs; an input that another job makes counts by that job's key,
any other by its contents. Before a run, what `results/.cache` has under the keys of
missing or outdated jobs is linked into the experiment (`latflow.workflow.result_cache`)
and recorded as Snakemake records a finished job; these jobs aren't run. What jobs write
is kept there when they have ended.

Neither Snakemake's `cache` nor links to files do: the first takes a rule with one
output, and hands jobs out to a cluster before it looks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from snakemake import api  # noqa: F401 - first, for its modules import each other
from snakemake.dag import DAG
from snakemake.logging import logger
from snakemake.settings.enums import RerunTrigger
from snakemake_interface_common.exceptions import WorkflowError

from latflow.files import size_text
from latflow.workflow.contents import Contents
from latflow.workflow.experiment import CacheOptions
from latflow.workflow.jobs import record_path
from latflow.workflow.result_cache import Entry, ResultCache, facts_of

_UPDATE: Any = DAG.update_needrun
_FINISH: Any = DAG.finish
_START: Any = DAG.register_running
# Without these, what is there may be older than the keys that it would be known by.
_TRIGGERS = frozenset((RerunTrigger.MTIME, RerunTrigger.PARAMS, RerunTrigger.INPUT))
# Other keys for results that were kept otherwise.
_FORMAT = 1


class SharedResults:
    """Takes what the jobs of an experiment would write, and keeps what they wrote.

    Args:
        results: folder of the experiment.
        options: of the cache.
    """

    def __init__(self, results: str, options: CacheOptions) -> None:
        self._results = Path(results)
        folder = options.folder or self._results.parent / ".cache"
        self._cache = ResultCache(Path(folder))
        self._days = options.days
        self._contents = Contents()
        self._keys: dict[Any, str | None] = {}
        self._planned: dict[Any, str | None] = {}  # keys before jobs ran
        self._owners: dict[Path, set[Any]] = {}
        self._is_refused = False

    @property
    def place(self) -> Path:
        """Folder of the results that experiments share."""
        return self._cache.folder

    def takeable(self, dag: Any) -> dict[Any, Entry]:
        """Return the jobs that would run though their results are there, by entry.

        A job that was asked to run again (`--forcerun`) does, and so does what follows.
        """
        forced = [job for job in dag.needrun_jobs() if dag.reason(job).forced]
        barred = {*forced, *dag.bfs(dag.depending, *forced)} if forced else set()
        found = {}
        for job in set(dag.needrun_jobs()) - barred:
            key = self.key(job, dag)
            entry = self._cache.find(key) if key else None
            if entry is not None and _may_skip(job, entry):
                found[job] = entry
        self._contents.save()
        return found

    def begin(self) -> None:
        """Forget keys before jobs run: what is there now may be others' then."""
        self._planned, self._keys = self._keys, {}

    def take(self, job: Any, entry: Entry, dag: Any) -> None:
        """Put results where a job would have written them.

        Raises:
            OSError: an entry's file is gone, or the experiment's folder can't be
                written.
        """
        for name in self._files(job, dag):
            if name not in entry.files:
                (self._results / name).unlink(missing_ok=True)
        self._cache.take(str(self.key(job, dag)), entry, self._results)

    def make_room(self, job: Any, dag: Any) -> None:
        """Remove links from where a job is about to write.

        Snakemake removes outputs alone; whatever else a stage writes in place would
        change in other experiments, too.
        """
        kept = {str(path) for path in (*job.output, *job.log)}
        for name in self._files(job, dag):
            path = self._results / name
            if str(path) not in kept and path.stat().st_nlink > 1:
                path.unlink()

    def keep(self, job: Any, dag: Any) -> None:
        """Keep what a job has written; where that can't be, say so once.

        What Snakemake removes after its use isn't kept, nor what was made while an
        input changed: of which contents isn't known.
        """
        key = self.key(job, dag)
        if key is None or self._is_refused or job.temp_output:
            return
        if self._planned.get(job) not in (None, key):
            return
        entry = Entry(
            rule=job.rule.name,
            experiment=self._results.name,
            files=facts_of(self._results, self._files(job, dag)),
            max_skipped_fraction=job.params.get("max_skipped_fraction"),
        )
        is_forced = bool(dag.reason(job).forced)
        try:
            self._cache.keep(key, entry, self._results, replace=is_forced)
        except OSError as error:
            self._is_refused = True
            logger.warning(f"{self.place}: no results are kept there: {error}")

    def prune(self) -> None:
        """Remove what no experiment has had for as long as results are kept."""
        if removed := list(self._cache.prune(self._days)):
            size = size_text(sum(bytes_ for _, bytes_ in removed))
            logger.info(
                f"Removed {len(removed)} results ({size}) from "
                f"{self.place} that no experiment has used for "
                f"{self._days:g} days."
            )

    def key(self, job: Any, dag: Any) -> str | None:
        """Return what the results of a job are known by; None if they aren't shared.

        What sums up an experiment is its own, and so is what a job measures of this
        machine; files elsewhere are shared anyway.
        """
        if job not in self._keys or self._keys[job] is None:
            self._keys[job] = self._key(job, dag)
        return self._keys[job]

    def _key(self, job: Any, dag: Any) -> str | None:
        """Return the key of a job again."""
        outputs = [Path(path) for path in job.output]
        inside = [path.is_relative_to(self._results) for path in outputs]
        if not (outputs and all(inside)) or job.rule.name == "measure_capacity":
            return None
        if any(path.parent == self._results for path in outputs):
            return None
        made = {
            str(path): producer
            for producer, paths in dag.dependencies[job].items()
            for path in paths
        }
        inputs = []
        for path in job.input:
            source = self._input(path, made.get(str(path)), dag)
            if source is None:
                return None
            inputs.append([self._named(str(path)), source])
        stack = dag.workflow.persistence
        known = [
            _FORMAT,
            job.rule.name,
            [self._named(str(path)) for path in outputs],
            inputs,
            {name: self._named(str(given)) for name, given in job.input.items()},
            sorted(self._named(param) for param in stack._params(job)),
            stack._software_stack_hash(job),
        ]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]

    def _input(self, path: Any, producer: Any, dag: Any) -> str | None:
        """Return what an input of a job is known by; None if it is not there yet."""
        key = self.key(producer, dag) if producer is not None else None
        is_inside = Path(path).is_relative_to(self._results)
        if key is not None or (producer is not None and is_inside):
            return key  # what is there without a key may be made of something else
        if path.is_ancient and producer is None:
            return ""  # what counts of it is among the params
        try:
            return self._digest(Path(path))
        except OSError:
            return None

    def _digest(self, path: Path) -> str:
        """Return the digest of a file, or of names, sizes and times in a folder."""
        facts = path.stat()
        if path.is_file():
            return self._contents(path, facts)
        below = sorted(p for p in path.rglob("*") if p.is_file())
        listed = facts_of(path, (str(p.relative_to(path)) for p in below))
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]

    def _named(self, text: str) -> str:
        """Return a text with the folder of the experiment called the same in all."""
        name = rf"(?<![\w./-]){re.escape(str(self._results))}(?![\w.-])"
        return re.sub(name, "<results>", text)

    def _files(self, job: Any, dag: Any) -> list[str]:
        """Return all that belongs to a job, as paths below the experiment's folder.

        Stages write more than their rules name: whatever is in a folder that has
        outputs of no other job. With it go log, benchmark and provenance.
        """
        if not self._owners:
            for other in dag.jobs:
                for path in other.output:
                    self._owners.setdefault(Path(path).parent, set()).add(other)
        found = {Path(path) for path in job.output}
        for folder in {path.parent for path in found}:
            if self._owners[folder] == {job}:
                found |= set(self._below(folder))
        found |= {p for path in job.output for p in self._below(Path(path))}
        found |= {Path(path) for path in (*job.log, job.benchmark) if path}
        found |= {record_path(Path(path)) for path in job.log}
        return sorted(str(p.relative_to(self._results)) for p in found if p.is_file())

    def _below(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a folder and below, but for folders of other jobs."""
        if not folder.is_dir():
            return
        for path in folder.iterdir():
            if path.is_file():
                yield path
            elif path not in self._owners:
                yield from self._below(path)


def share_results(results: str, options: CacheOptions) -> None:
    """Make this process's Snakemake take the results of other experiments.

    Args:
        results: folder of the experiment.
        options: of the cache.
    """
    shared = SharedResults(results, options)

    async def update_needrun(dag: Any, create_inventory: bool = False) -> None:  # noqa: FBT001, FBT002
        """Find the jobs that have to run; at first take what is there of theirs."""
        await _UPDATE(dag, create_inventory)
        if not _is_asked_to_run(dag.workflow):
            return
        if dag.workflow.dryrun:
            taken = _leave_out(dag, shared.takeable(dag))
            if taken and create_inventory:
                logger.info(f"{len(taken)} results would be taken from {shared.place}.")
        elif create_inventory:
            shared.prune()
            await _take_all(dag, shared)

    def register_running(dag: Any, jobs: Any) -> None:
        """Make room for jobs that are about to begin, and for no other.

        What is removed before is lost where the run ends before the job begins.
        """
        for job in _single(jobs, dag):
            shared.make_room(job, dag)
        _START(dag, jobs)

    async def finish(dag: Any, job: Any, **known: Any) -> Any:
        """Keep what a job has written before those that wait for it begin."""
        for single in _single([job], dag):
            shared.keep(single, dag)
        return await _FINISH(dag, job, **known)

    setattr(DAG, "update_needrun", update_needrun)  # noqa: B010 - Snakemake's own
    setattr(DAG, "register_running", register_running)  # noqa: B010
    setattr(DAG, "finish", finish)  # noqa: B010


def _single(jobs: Iterable[Any], dag: Any) -> Iterator[Any]:
    """Yield jobs and those within groups; none where jobs do not really run."""
    if _is_asked_to_run(dag.workflow) and not dag.workflow.dryrun:
        for job in jobs:
            yield from job if job.is_group() else [job]


async def _take_all(dag: Any, shared: SharedResults) -> None:
    """Take what there is; leave to Snakemake what remains to be done."""
    found = shared.takeable(dag)
    taken = _leave_out(dag, found)
    if taken:
        await _put_in_place(dag, shared, {job: found[job] for job in taken})
    shared.begin()


async def _put_in_place(
    dag: Any, shared: SharedResults, taken: dict[Any, Entry]
) -> None:
    """Put results where their jobs would have, with the records of these."""
    dag.update_jobids()  # a shell command may have its job's
    cache, records = dag.workflow.iocache, dag.workflow.persistence
    # If this run is killed the next one must not take half of a result for all of it;
    # nor, since what is taken is older, what was made of other results for up to date.
    for job in dag.needrun_jobs():
        if any([await path.exists() for path in job.output]):
            records.started(job)
    try:
        for job, entry in taken.items():
            records.started(job)
            shared.take(job, entry, dag)
    except OSError as error:
        raise WorkflowError(
            f"error: {shared.place}: results can't be taken: {error} - run again, or "
            "with --config cache={enabled: false}"
        ) from error
    cache.clear()
    cache.exists_local.has_inventory.clear()  # which `clear` forgets
    for job in taken:
        await records.finished(job)
    rules = Counter(job.rule.name for job in taken)
    some = ", ".join(f"{name} {number}" for name, number in rules.most_common(4))
    logger.info(
        f"Took {len(taken)} results ({some} ...) from {shared.place}: their settings, "
        "code and inputs are the same. --forcerun RULE runs a job all the same."
    )


def _is_asked_to_run(workflow: Any) -> bool:
    """Return whether jobs are to run, or would in a dry run, by all usual reasons."""
    is_run = workflow.executor_plugin is not None and not workflow.touch
    return is_run and set(workflow.rerun_triggers) >= _TRIGGERS


def _may_skip(job: Any, entry: Entry) -> bool:
    """Return whether a job may leave out as many utterances as an entry's might."""
    limit = job.params.get("max_skipped_fraction")
    return limit is None or (entry.max_skipped_fraction or 0.0) <= limit


def _leave_out(dag: Any, found: dict[Any, Entry]) -> set[Any]:
    """Take jobs out of those that have to run.

    Args:
        dag: Snakemake's graph of jobs.
        found: jobs whose results are there.

    Returns:
        Those of them that don't have to run since nothing before them does.
    """
    taken = set(found)
    while taken:
        left = _without_needless(dag, dag._needrun - taken)
        if taken.isdisjoint(later := set(dag.bfs(dag.depending, *left))):
            _set_needed(dag, left)
            break
        taken -= later
    return taken


def _without_needless(dag: Any, jobs: set[Any]) -> set[Any]:
    """Return jobs without those whose outputs are temporary, and needed by no other."""
    left = set(jobs)
    while needless := {
        job for job in left if job.temp_output and left.isdisjoint(dag.depending[job])
    }:
        left -= needless
    return left


def _set_needed(dag: Any, jobs: set[Any]) -> None:
    """Set the jobs that have to run, as `DAG.update_needrun` does."""
    for job in dag._needrun - jobs:
        dag.reason(job).clear()
    dag._needrun.intersection_update(jobs)
    dag._n_until_ready.clear()
    for job in jobs:
        dag._n_until_ready[job] = len(jobs.intersection(dag.dependencies[job]))
    dag._len = len(dag._finished | jobs)
