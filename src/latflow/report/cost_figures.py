"""Jobs of earlier runs: what each had to do, and what it took."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from latflow.errors import UserError
from latflow.report.costs import read_costs, share_of_split, split_of
from latflow.report.inputs import read_jobs
from latflow.report.records import Job
from latflow.scoring.results import read_table
from latflow.workflow.amounts import split_sizes

MIB = 1 << 20
_PACKAGED = Path(__file__).with_name("measured_costs.tsv")
#: Columns of figures; `speech` and `work` follow from the others.
MEASURED = ["cpu_seconds", "wall_seconds", "peak_memory_mib", "disk_mib"]
AMOUNTS = ["audio_hours", "passes", "parameters", "input_mib", "graph_mib"]
FIGURES = ["run", "rule", "job", "gpu", *MEASURED, *AMOUNTS]


@dataclass(frozen=True)
class Work:
    """What a job has to do.

    Attributes:
        audio_hours: hours of the speech that it goes over; None if it goes over none.
        passes: how often.
        parameters: millions of parameters of the network that it trains, if it does.
        input_mib: size of the language data that it reads, MiB; None where that is not
            known.
        graph_mib: size of the graphs among it (`.fst`), MiB; NaN where it is not known.
    """

    audio_hours: float | None = None
    passes: float = 1.0
    parameters: float | None = None
    input_mib: float | None = None
    graph_mib: float = 0.0

    @property
    def time(self) -> float | None:
        """Return the amount that processor time goes with."""
        if self.audio_hours is None:
            return None if self.input_mib is None else self.passes * self.input_mib
        parameters = 1.0 if self.parameters is None else self.parameters
        return self.audio_hours * self.passes * parameters

    @property
    def disk(self) -> float | None:
        """Return the amount that disk goes with."""
        if self.parameters is not None:
            return self.parameters
        return self.input_mib if self.audio_hours is None else self.audio_hours


def work_of(
    params: Mapping[str, Any],
    speech: tuple[float, int | None] | None,
    *,
    share: float = 1.0,
    parameters: float | None = None,
    input_mib: float | None = None,
    graph_mib: float = 0.0,
) -> Work:
    """Return the work of a job by its settings.

    Args:
        params: settings of the job.
        speech: hours and utterances of what it goes over, if any; a training on the
            shortest utterances has at most their share of the hours.
        share: of that speech that is the job's, where several share it.
        parameters: of the network, millions; counts where the settings have a training.
        input_mib: size of the language data that it reads.
        graph_mib: size of the graphs among it.
    """
    options = _mapping(params, "options")
    training, data = _mapping(options, "training"), _mapping(options, "data")
    part = _number(data, "partition_epoch")
    epochs = _number(training, "epochs") or _number(options, "epochs")
    passes = epochs or _number(options, "num_iterations") or 1
    hours = None if speech is None else share * speech[0]
    shortest = _number(options, "subset_shortest")
    if speech is not None and shortest and speech[1]:
        hours = speech[0] * min(1.0, shortest / speech[1])
    return Work(
        hours,
        passes / (part or 1),
        parameters if training else None,
        input_mib,
        graph_mib,
    )


def _mapping(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the settings below a key; none where it stands for something else."""
    value = settings.get(key)
    return value if isinstance(value, Mapping) else {}


def _number(settings: Mapping[str, Any], key: str) -> float | None:
    """Return the number of a key; None where it stands for something else."""
    value = settings.get(key)
    return value if isinstance(value, int | float) else None


def packaged_figures() -> pd.DataFrame:
    """Return the figures that come with latflow."""
    return _typed(read_table(_PACKAGED))


def all_figures(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the figures that come with latflow, and those of earlier runs.

    Raises:
        UserError: a folder is not that of an experiment.
    """
    tables = [packaged_figures()]
    for run in runs:
        if not (run.results / "benchmarks").is_dir():
            raise UserError(
                "no measured jobs here",
                file=run.results,
                remedy="name results/<experiment>",
            )
        tables.append(run.figures())
    return pd.concat([table for table in tables if len(table)], ignore_index=True)


class Run:
    """What the jobs of a run had to do, and took; their records are read once.

    Args:
        results: `results/<experiment>`.
    """

    def __init__(self, results: Path) -> None:
        self.results = results

    @cached_property
    def _records(self) -> Mapping[tuple[str, str], Job]:
        return read_jobs(self.results)

    def figures(self) -> pd.DataFrame:
        """Return what each job had to do, and what it took.

        Returns:
            A row a job that has left a record: the columns `FIGURES`; NaN where nothing
            was measured, or a column does not apply.
        """
        results, records = self.results, self._records
        costs = read_costs(results).set_index(["rule", "job"])
        sizes = split_sizes(results)
        disk = _disk_of(results, records)
        made = {p: o.size for job in records.values() for p, o in job.outputs.items()}
        splits = {k: split_of(j.wildcards, j.inputs, sizes) for k, j in records.items()}
        over_speech = self._over_speech(sizes)
        rows = []
        for key, record in records.items():
            if key not in costs.index:
                continue
            cost = costs.loc[[key]].iloc[-1]
            inputs = [path for path in record.inputs if path not in over_speech]
            reads = {p: made[p] if p in made else size_of(p) for p in inputs}
            graphs = [size for path, size in reads.items() if path.endswith(".fst")]
            work = work_of(
                record.params,
                sizes.get(splits[key] or ""),
                share=share_of_split(record.wildcards),
                parameters=_parameters(record),
                input_mib=sum(reads.values()) / MIB,
                graph_mib=sum(graphs) / MIB,
            )
            taken = [cost["cpu_seconds"], cost["wall_seconds"], cost["peak_memory_mib"]]
            amounts = [getattr(work, name) for name in AMOUNTS]
            on_gpu = int(cost["gpu_share"] > 0)
            rows.append([results.name, *key, on_gpu, *taken, disk[key] / MIB, *amounts])
        return _typed(pd.DataFrame(rows, columns=FIGURES))

    def files_over_speech(self, splits: Collection[str]) -> set[str]:
        """Return the files that jobs over speech have written: none is language data.

        Args:
            splits: names of the run's sets.
        """
        return {f"{self.results}/{path}" for path in self._over_speech(splits)}

    def _over_speech(self, splits: Collection[str]) -> set[str]:
        """Return the outputs of jobs over speech, as records name them."""
        return {
            path
            for job in self._records.values()
            if split_of(job.wildcards, job.inputs, splits) is not None
            for path in job.outputs
        }


def size_of(path: str) -> int:
    """Return the size of a file, unpacked, bytes; 0 where it is not there."""
    file = Path(path)
    if not file.is_file():
        return 0
    size = file.stat().st_size
    if file.suffix == ".gz" and size >= 8:
        with file.open("rb") as stream:
            stream.seek(-4, 2)
            size = max(size, int.from_bytes(stream.read(4), "little"))
    return size


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Return figures with numbers in their columns."""
    if missing := set(FIGURES) - set(table.columns):
        raise UserError(f"figures without {', '.join(sorted(missing))}", file=_PACKAGED)
    names = ["gpu", *MEASURED, *AMOUNTS]
    numbers = table[names].apply(pd.to_numeric, errors="coerce").astype(float)
    # Of jobs that end before Snakemake looks, it writes no memory, or 0.
    memory = numbers["peak_memory_mib"]
    numbers["peak_memory_mib"] = memory.where(memory > 0)
    return pd.concat([table[["run", "rule", "job"]], numbers], axis="columns")


def _disk_of(
    results: Path, records: Mapping[tuple[str, str], Job]
) -> dict[tuple[str, str], int]:
    """Return what each job has written, bytes.

    A file that no job declares belongs to the only job that has outputs in the nearest
    folder above it.
    """
    disk: dict[tuple[str, str], int] = {}
    makers: dict[PurePath, set[tuple[str, str]]] = {}
    declared: set[str] = set()
    for key, record in records.items():
        disk[key] = sum(made.size for made in record.outputs.values())
        declared |= record.outputs.keys()
        for output in record.outputs:
            makers.setdefault(PurePath(output).parent, set()).add(key)
    for path in results.rglob("*"):
        name = path.relative_to(results)
        if name.parts[0] in {"logs", "benchmarks", "provenance"} or not path.is_file():
            continue
        if name.as_posix() not in declared:
            folder = next((p for p in name.parents if p in makers), None)
            owners = makers.get(folder or PurePath(), set())
            if folder is not None and len(owners) == 1:
                disk[next(iter(owners))] += path.stat().st_size
    return disk


def _parameters(record: Job) -> float | None:
    """Return millions of parameters of the network that a job has written."""
    sizes = [
        made.size
        for path, made in record.outputs.items()
        if path.endswith("weights.safetensors")
    ]
    return sizes[0] / 4e6 if sizes else None
