"""Model of what a job costs, fitted on the jobs of earlier runs.

Each rule has its own line over the amount of work of its jobs:

* a job that goes over speech: hours of it, times passes (epochs, iterations of EM),
  times the network's parameters where it trains one;
* another job: size of the language data that it reads, that is of files from outside,
  and of what jobs have written which go over no speech either (lexicon, language
  models, graphs), times epochs where it trains a language model.

Processor time is a start plus a rate times the work. Disk is the same over hours (of
trainings of networks over parameters). Memory of a job that goes over speech is a
power of the hours, near 0 where stages stream their data (that of all rules, where runs
of a rule are too similar for a fit); what it maps of graphs comes on top. Memory of
another job is a start plus a rate times what it reads; where the largest job that was
seen took hardly more than the least one, that rate is chance, and memory far beyond all
that was seen is not predicted.

A job that goes over a part of a set (`<rule>_part`) counts among those of its rule. A
rule without figures of its own goes by one that does alike (`ALIKE`).

Of all lines through two jobs of a rule, that with the least sum of absolute log errors
is taken (every run weighs the same): one job that had to compile its kernels, or shared
its core, does not bend it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from latflow.report.cost_figures import AMOUNTS, Work

# Of rules that may have no figures, those whose work is most like theirs: what they
# write has the same form.
ALIKE = {
    "import_alignments": "join_alignments",  # int vectors, in the order of ids
    "import_graph": "make_grammar",  # a graph in OpenFst's form
    "import_hdf5": "adapt_frames",  # matrices into a frame store
    "import_lang": "make_lang",  # words, phones, topology and L.fst
    "import_system": "package_model",  # model, tree and transform
    "join_with_pauses": "simulate_corpus",  # audio of a set, written again
    "paste_features": "adapt_frames",  # frames into a frame store
    "recognize_words": "score_wer",  # best paths of lattices
    "score_served": "transcribe",  # speech into words, by a package
    "train_g2p": "make_lang",  # of the lexicon alone
}

# Jobs with more work than this many times the largest that was seen are not guessed at:
# an hour of speech takes what every other takes; of lexica and language models earlier
# runs had so little that their jobs were mostly start.
FARTHEST_SPEECH, FARTHEST = 10_000.0, 1000.0
# Where memory rises by less than the first over all that was read, or that was less
# than the second, MiB, more than the third times as much as was ever seen isn't
# predicted.
_LEAST_RISE, _LEAST_READ, _MOST_MEMORY = 1.5, 1.0, 10.0
# Runs whose amounts differ less than this say nothing of a rate.
_LEAST_SPREAD = 4.0


@dataclass(frozen=True)
class Cost:
    """What a job costs.

    Attributes:
        start_seconds: processor time before it works, on one core.
        cpu_seconds: all processor time; on a GPU, the time that it takes.
        memory_mib: peak memory; NaN where the size of a file is not known.
        disk_mib: size of what it writes.
        reach: work, in that of the largest job that was seen.
    """

    start_seconds: float
    cpu_seconds: float
    memory_mib: float
    disk_mib: float
    reach: float


@dataclass(frozen=True)
class Line:
    """A start plus a rate times an amount."""

    start: float
    rate: float

    def at(self, amount: float) -> float:
        """Return the value at an amount."""
        return self.start + self.rate * amount


@dataclass(frozen=True)
class _Rule:
    """The lines of a rule, on a CPU or on a GPU."""

    time: Line
    disk: Line
    memory: Callable[[Work], float]
    largest: float


class CostModel:
    """Costs of jobs by rule.

    Args:
        figures: jobs of earlier runs, as `read_figures` gives them.
    """

    def __init__(self, figures: pd.DataFrame) -> None:
        table = _with_amounts(figures.assign(rule=figures["rule"].map(whole)))
        exponent = _memory_exponent(table)
        starts = _starts(table)
        self.runs = sorted(map(str, table["run"].unique()))
        self._rules = {
            (str(rule), bool(on_gpu), bool(has_speech)): _fit_rule(
                jobs, starts, exponent
            )
            for (rule, on_gpu, has_speech), jobs in table.groupby(
                ["rule", "gpu", "has_speech"]
            )
        }

    def predict(self, rule: str, work: Work, *, on_gpu: bool = False) -> Cost | str:
        """Return what a job costs, or why that is not known."""
        has_speech = work.audio_hours is not None
        names = whole(rule), ALIKE.get(rule, "")
        known = (self._rules.get((name, on_gpu, has_speech)) for name in names)
        found = next(filter(None, known), None)
        if found is None:
            device = " on a GPU" if on_gpu else ""
            return f"no earlier run has shown it{device}"
        amount, disk = work.time, work.disk
        if amount is None or disk is None:
            return "the size of a file that it reads is not known (--size)"
        reach = amount / found.largest if found.largest else 0.0
        if reach > (FARTHEST_SPEECH if has_speech else FARTHEST):
            return f"{reach:.0f} times the largest job that was seen"
        return Cost(
            found.time.start,
            found.time.at(amount),
            found.memory(work),
            found.disk.at(disk),
            reach,
        )


def whole(rule: str) -> str:
    """Return the rule that does for a set what this one does for a part of one."""
    return rule.removesuffix("_part")


def leave_one_out(figures: pd.DataFrame) -> pd.DataFrame:
    """Predict the jobs of each run by a model of the other runs.

    Returns:
        A row a job that could be predicted: `run`, `rule`, `job`, and for time, memory
        and disk what was measured and what was predicted (`<column>_predicted`).
    """
    rows = []
    for run in sorted(figures["run"].unique()):
        others = CostModel(figures[figures["run"] != run])
        for _, job in figures[figures["run"] == run].iterrows():
            work = _work(job[AMOUNTS])
            cost = others.predict(job["rule"], work, on_gpu=bool(job["gpu"]))
            if isinstance(cost, Cost):
                predicted = [cost.cpu_seconds, cost.memory_mib, cost.disk_mib]
                time = job["wall_seconds" if job["gpu"] else "cpu_seconds"]
                measured = [time, job["peak_memory_mib"], job["disk_mib"]]
                rows.append([run, job["rule"], job["job"], *measured, *predicted])
    names = ["cpu_seconds", "peak_memory_mib", "disk_mib"]
    columns = ["run", "rule", "job", *names, *(f"{name}_predicted" for name in names)]
    return pd.DataFrame(rows, columns=columns)


def error_factors(left: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return how far predictions are off, as factors.

    Args:
        left: of `leave_one_out`.

    Returns:
        By `time`, `memory`, `disk`: (median, 90 % quantile) of the larger of predicted
        over measured and its inverse; nothing where no job was predicted.
    """
    factors = {}
    names = {"time": "cpu_seconds", "memory": "peak_memory_mib", "disk": "disk_mib"}
    for title, name in names.items():
        ratio = left[f"{name}_predicted"] / left[name]
        ratio = ratio[(ratio > 0) & (ratio < math.inf)]
        if len(ratio):
            off = np.exp(np.abs(np.log(ratio.to_numpy(float))))
            half, most = np.quantile(off, [0.5, 0.9])
            factors[title] = float(half), float(most)
    return factors


def _work(amounts: pd.Series) -> Work:
    """Return the work of a job of the figures, whose empty cells are NaN."""
    hours, passes, parameters, read, graphs = map(float, amounts)
    return Work(_or_none(hours), passes, _or_none(parameters), _or_none(read), graphs)


def _or_none(value: float) -> float | None:
    """Return a number; None for NaN."""
    return None if math.isnan(value) else value


def _with_amounts(figures: pd.DataFrame) -> pd.DataFrame:
    """Add the amounts that time and disk go with, as `Work` has them."""
    hours, parameters = figures["audio_hours"], figures["parameters"]
    work = hours * figures["passes"] * parameters.fillna(1.0)
    read = figures["input_mib"]
    return figures.assign(
        work=work.where(hours.notna(), figures["passes"] * read),
        disk_work=parameters.fillna(hours.fillna(read)),
        has_speech=hours.notna(),
    )


def _starts(table: pd.DataFrame) -> pd.DataFrame:
    """Return what a process costs that does next to nothing.

    Returns:
        By whether it goes over speech: medians over rules of their smallest jobs.
    """
    names = ["cpu_seconds", "wall_seconds", "peak_memory_mib"]
    least = table.groupby(["has_speech", "rule"])[names].min()
    return least.groupby("has_speech").median()


def _fit_rule(jobs: pd.DataFrame, starts: pd.DataFrame, exponent: float) -> _Rule:
    """Fit the lines of a rule.

    Args:
        jobs: its jobs.
        starts: of `_starts`, for rules whose jobs are all alike.
        exponent: of memory over hours.
    """
    on_gpu = bool(jobs["gpu"].iloc[0])
    seconds = "wall_seconds" if on_gpu else "cpu_seconds"
    has_speech = bool(jobs["has_speech"].iloc[0])
    start = starts.loc[has_speech].to_dict()
    time = _fit(jobs, "work", seconds, start[seconds])
    disk = _fit(jobs, "disk_work", "disk_mib", 0.0)
    largest = float(jobs["work"].max())
    if has_speech:
        level, power = _memory_over_hours(jobs, exponent)

        def memory(work: Work) -> float:
            return level * (work.audio_hours or 0.0) ** power + work.graph_mib

        return _Rule(time, disk, memory, largest)
    line = _fit(jobs, "input_mib", "peak_memory_mib", start["peak_memory_mib"])
    most = _most_memory(jobs)

    def memory_of_input(work: Work) -> float:
        estimate = line.at(work.input_mib or 0.0)
        return estimate if estimate <= most else math.nan

    return _Rule(time, disk, memory_of_input, largest)


def _most_memory(jobs: pd.DataFrame) -> float:
    """Return up to where the memory of jobs without speech is predicted, MiB."""
    known = jobs.dropna(subset=["input_mib", "peak_memory_mib"])
    if known.empty:
        return math.inf
    memory, largest = known["peak_memory_mib"], known.sort_values("input_mib").iloc[-1]
    rises = largest["peak_memory_mib"] >= _LEAST_RISE * memory.min()
    if rises and largest["input_mib"] >= _LEAST_READ:
        return math.inf
    return _MOST_MEMORY * float(memory.max())


def _fit(jobs: pd.DataFrame, amount: str, measured: str, start: float) -> Line:
    """Return the line through two jobs of a rule that suits all of them best.

    Args:
        jobs: of the rule.
        amount: column that the line goes over.
        measured: column that it gives.
        start: of the line where amounts are too similar for a fit.
    """
    x, y = jobs[amount].to_numpy(float), jobs[measured].to_numpy(float)
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return Line(math.nan, math.nan)
    x, y = x[known], y[known]
    _, run, size = np.unique(
        jobs["run"].to_numpy(str)[known], return_inverse=True, return_counts=True
    )
    if x.max() <= 0:
        return Line(float(np.median(y)), 0.0)
    if x[x > 0].max() < _LEAST_SPREAD * x[x > 0].min():
        start = min(start, float(y.min()))
        rates = (y[x > 0] - start) / x[x > 0]
        # What is off is too slow, never too quick.
        return Line(start, float(np.quantile(rates, 0.5, method="lower")))
    starts, rates = _lines(x, y)
    least = 1e-6
    guesses = np.maximum(starts[:, None] + rates[:, None] * x, least)
    errors = np.abs(np.log(guesses / np.maximum(y, least))) @ (1 / size[run])
    best = int(errors.argmin())
    return Line(float(starts[best]), float(rates[best]))


def _lines(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lines that do not fall: through two points, level, and through the origin.

    Returns:
        (their starts, their rates).
    """
    first, second = np.triu_indices(len(x), 1)
    apart = np.abs(x[first] - x[second]) > 1e-9 * x.max()
    first, second = first[apart], second[apart]
    rates = (y[second] - y[first]) / (x[second] - x[first])
    starts = y[first] - rates * x[first]
    rises = (rates >= 0) & (starts >= 0)
    moving = x > 0
    return (
        np.concatenate([starts[rises], y, np.zeros(moving.sum())]),
        np.concatenate([rates[rises], np.zeros(len(y)), y[moving] / x[moving]]),
    )


def _memory_over_hours(jobs: pd.DataFrame, exponent: float) -> tuple[float, float]:
    """Return level and power of a rule's memory over hours, its graphs aside.

    Args:
        jobs: of the rule.
        exponent: of all rules, for one whose jobs are too similar for a fit.
    """
    known = jobs.dropna(subset=["audio_hours", "peak_memory_mib"])
    own = (known["peak_memory_mib"] - known["graph_mib"].fillna(0.0)).clip(lower=1)
    hours = known["audio_hours"]
    if hours.max() >= _LEAST_SPREAD * hours.min():
        # Of each run, its largest job of the rule: it is the largest that is asked for.
        by_run = pd.DataFrame({"hours": hours, "own": own}).groupby(known["run"]).max()
        logs = np.log(by_run)
        if logs["hours"].max() - logs["hours"].min() > math.log(_LEAST_SPREAD):
            slope = float(np.polyfit(logs["hours"], logs["own"], 1)[0])
            exponent = min(max(slope, 0.0), 1.0)
    return float((own / hours**exponent).median()), exponent


def _memory_exponent(table: pd.DataFrame) -> float:
    """Return the power of the hours that memory grows with, within rules, 0 to 1."""
    known = table.dropna(subset=["audio_hours", "peak_memory_mib"])
    known = known[(known["audio_hours"] > 0) & (known["peak_memory_mib"] > 0)]
    if known.empty:
        return 0.0
    own = (known["peak_memory_mib"] - known["graph_mib"].fillna(0.0)).clip(lower=1)
    logs = pd.DataFrame({"x": np.log(known["audio_hours"]), "y": np.log(own)})
    within = logs - logs.groupby(known["rule"]).transform("mean")
    spread = float((within["x"] ** 2).sum())
    slope = float((within["x"] * within["y"]).sum()) / spread if spread > 0 else 0.0
    return min(max(slope, 0.0), 1.0)
