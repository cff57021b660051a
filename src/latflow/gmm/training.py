"""The Viterbi training that all GMM systems share: data, loop, and what is written.

In each iteration the utterances are aligned again, if it is time for that; a feature
transform is re-estimated, if the kind of system has one; statistics are gathered with
the present alignment; mixtures and transitions are re-estimated; and the number of
Gaussians is raised by splitting, in equal steps up to a given iteration.

Source: Kaldi `steps/train_mono.sh`, `steps/train_deltas.sh`, `gmmbin/gmm-est.cc`.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from latflow.align.aligner import AlignmentFailure
from latflow.align.corpus import AlignmentSummary
from latflow.align.graphs import TrainingGraphs
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output, write_json
from latflow.fst.graph import Graph
from latflow.gmm.alignment import align_source
from latflow.gmm.estep import Statistics, accumulate, checked_device
from latflow.gmm.model import AcousticModel, save_transform
from latflow.gmm.options import (
    DeltasOptions,
    LdaMlltOptions,
    MonoOptions,
    SatOptions,
    SharedOptions,
    TrainingOptions,
)
from latflow.gmm.source import FrameSource
from latflow.gmm.update import UpdateOptions, mix_up, pdf_occupancies, update_gmms
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A system to be trained: files and options, which its rule gives by name."""

    options: MonoOptions | DeltasOptions | LdaMlltOptions | SatOptions
    """Of the system."""
    shared: SharedOptions
    """Settings of all systems."""
    frames_dir: Path
    """The `FrameStore` of the training data."""
    lang_dir: Path
    """The lang directory."""
    out_dir: Path
    """Folder of the system; its name is the system's."""
    threads: int = 1
    """Number of threads."""
    max_skipped_fraction: float = 0.05
    """Share of the utterances that may fail to align."""
    began: float = field(default_factory=time.perf_counter, init=False)

    @cached_property
    def store(self) -> FrameStore:
        """The frames."""
        return FrameStore.load(self.frames_dir)

    @cached_property
    def lang(self) -> Lang:
        """The lang directory."""
        return Lang.load(self.lang_dir)

    def source(self, transform: FeatureTransform, **how: Any) -> FrameSource:
        """Return the frames of the utterances to train on, transformed.

        Args:
            transform: of the stored frames.
            how: other arguments of `FrameSource`.

        Raises:
            UserError: there is no utterance with frames.
        """
        chosen = shortest(self.store, self.options.subset_shortest)
        return FrameSource(self.store, transform, chosen, **how)


@dataclass(frozen=True, eq=False, kw_only=True)
class AlignedJob(Job):
    """The same of a system that starts from alignments with another."""

    options: DeltasOptions | LdaMlltOptions | SatOptions
    alignments: Path
    """`ali.ark` of the training data, made with the source system."""
    source_dir: Path
    """Folder of the source system."""


def shortest(store: FrameStore, count: int | None) -> np.ndarray:
    """Return the utterances with frames, or the shortest of them.

    Args:
        count: how many; None for all.

    Returns:
        int64[U], ascending; of equally long ones the first in the store are taken.

    Raises:
        UserError: none was found.
    """
    lengths = np.diff(store.begin)
    usable = np.flatnonzero(lengths > 0)
    if not len(usable):
        raise UserError(
            "no frames to train on",
            file=store.folder,
            remedy="look at the ledgers of corpus and features",
        )
    order = usable[np.argsort(lengths[usable], kind="stable")]
    return np.sort(order[:count])


def targets(options: TrainingOptions, initial: int) -> list[int]:
    """Return the Gaussians wanted at the end of iterations 1, 2, ...

    Iterations count from 1; the model that iteration `num_iterations` - 1 ends with is
    the final one, as in Kaldi's scripts.

    Args:
        initial: number to begin with.
    """
    last = options.last_increase_iteration
    step = max(0, options.num_gaussians - initial) // max(1, last)
    return [initial + step * min(x, last) for x in range(options.num_iterations - 1)]


@dataclass(frozen=True)
class Iteration:
    """A row of `iterations.tsv`: what the model saw that an iteration began with.

    `transform_gain` is what a new feature transform added to the log-likelihood of a
    frame, as estimated; None where none was made.
    """

    iter: int
    log_like_per_frame: float
    num_gaussians: int
    num_utterances: int
    num_frames: int
    seconds: float
    phase: str
    transform_gain: float | None = None


class Kind:
    """Steps of a kind of system beside the common ones; this one has none."""

    def start(self, model: AcousticModel, counts: np.ndarray) -> AcousticModel:  # noqa: ARG002
        """Return the model of iteration 1.

        Args:
            model: of the new tree, a Gaussian a leaf.
            counts: float64[P], frames of each leaf.
        """
        return model

    def refine(
        self,
        model: AcousticModel,
        training: Training,  # noqa: ARG002
        iteration: int,  # noqa: ARG002
    ) -> AcousticModel:
        """Return the model that the statistics of an iteration are gathered with.

        Called in every iteration, after aligning; may put another source of the same
        utterances in place and set `training.transform_gain`.
        """
        return model

    def finish(self, model: AcousticModel, training: Training) -> dict[str, Any]:  # noqa: ARG002
        """Write what the kind has beside model and tree; return facts for a report."""
        return {}


@dataclass
class Training:
    """A system in training.

    Attributes:
        job: data and options.
        source: frames of the training utterances.
        tree: the decision tree.
        graph_of: gives the training graph of an utterance, or the reason why it has
            none.
        alignment: int32[sum T], transition-ids, 0 where not aligned.
        pool: threads to use.
        device: where the E-step is computed.
        history: one entry an iteration.
        last_pass: outcome of the latest alignment.
        ever_failed: utterances that some pass could not align, and in how many.
        num_passes: passes of alignment so far.
        transform_gain: objective gained by a new feature transform, per frame; goes
            into the next row of the history.
    """

    job: Job
    source: FrameSource
    tree: ContextDependency
    graph_of: Callable[[int], Graph | str]
    alignment: np.ndarray
    pool: Executor
    device: str
    history: list[Iteration] = field(default_factory=list)
    last_pass: AlignmentSummary | None = None
    ever_failed: dict[int, int] = field(default_factory=dict)
    num_passes: int = 0
    transform_gain: float | None = None

    @classmethod
    @contextmanager
    def begin(
        cls,
        job: Job,
        source: FrameSource,
        tree: ContextDependency,
        model: AcousticModel,
    ) -> Iterator[Training]:
        """Compile the training graphs and allocate the alignment, for a while.

        Both lie in a scratch folder beside the system's, which goes in the end.

        Args:
            model: a model of the tree.
        """
        parent, lang = job.out_dir.parent, job.lang
        parent.mkdir(parents=True, exist_ok=True)
        with (
            worker_pool(job.threads) as pool,
            tempfile.TemporaryDirectory(prefix=".tmp.", dir=parent) as scratch,
        ):
            graphs = TrainingGraphs.write(
                Path(scratch) / "graphs",
                (lang.words_to_ids(source.text(u)) for u in range(len(source))),
                TrainingGraphCompiler(lang, tree, model.transitions),
                threads=job.threads,
            )
            alignment = np.lib.format.open_memmap(
                Path(scratch) / "alignment.npy",
                mode="w+",
                dtype=np.int32,
                shape=(source.num_frames,),
            )
            yield cls(
                job,
                source,
                tree,
                lambda u: graphs.get(lang.words_to_ids(source.text(u))),
                alignment,
                pool,
                checked_device(job.shared.device),
            )

    def run(
        self, model: AcousticModel, kind: Kind, *, initial_gaussians: int
    ) -> AcousticModel:
        """Train a model that already has an alignment (or realigns first).

        Args:
            kind: of the system; its `refine` is called.
            initial_gaussians: number that mixing up begins with.
        """
        options = self.job.options
        wanted = targets(options, initial_gaussians)
        iterations = range(1, options.num_iterations)
        for x in progress(iterations, f"train {self.job.out_dir.name}"):
            began = time.perf_counter()
            is_realigned = x in options.realign_iterations
            if is_realigned:
                self.align(model, x)
            model = kind.refine(model, self, x)
            statistics = self.statistics(model)
            self.note(x, "realign" if is_realigned else "keep", began, statistics)
            model = self.estimate(model, statistics, x, target=wanted[x - 1])
        return model

    def alignment_of(self, u: int) -> np.ndarray | None:
        """Return transition-ids int32[T_u] of utterance u; None if not aligned."""
        mine = self.alignment[self.source.begin[u] : self.source.begin[u + 1]]
        return mine if len(mine) and mine[0] else None

    def statistics(self, model: AcousticModel) -> Statistics:
        """Gather statistics with the present alignment."""
        return accumulate(
            model, self.source, self.alignment, self.pool, device=self.device
        )

    def num_aligned(self) -> int:
        """Return the number of utterances that have an alignment now."""
        first = self.source.begin[:-1][np.diff(self.source.begin) > 0]
        return int(np.count_nonzero(self.alignment[first]))

    def align(self, model: AcousticModel, iteration: int) -> None:
        """Replace the alignment by the best paths under a model."""
        source, options = self.source, self.job.options.search(iteration)
        alignments = align_source(
            model,
            source,
            self.graph_of,
            options,
            self.job.shared.graph,
            [self.job.lang.optional_silence],
            self.pool,
        )
        self.last_pass = AlignmentSummary(options)
        for u, found in enumerate(alignments):
            self.last_pass.add(u, found)
            mine = self.alignment[source.begin[u] : source.begin[u + 1]]
            is_failed = isinstance(found, AlignmentFailure)
            mine[:] = 0 if is_failed else found.transition_ids
        self.num_passes += 1
        for u in self.last_pass.failures:
            self.ever_failed[u] = self.ever_failed.get(u, 0) + 1

    def estimate(
        self,
        model: AcousticModel,
        statistics: Statistics,
        iteration: int,
        *,
        target: int,
        min_occupancy: float = 10.0,
    ) -> AcousticModel:
        """Re-estimate a model and mix it up (Kaldi's `gmm-est`).

        Args:
            model: the model that the statistics were made with.
            iteration: seeds the random moves.
            min_occupancy: frames that a Gaussian must see to stay.
        """
        transitions = copy.copy(model.transitions)
        transitions.update(statistics.transitions)
        options = UpdateOptions(min_occupancy=min_occupancy)
        gmms, report = update_gmms(model.gmms, statistics.moments, options)
        if report.num_removed:
            log.info("removed %d Gaussians with too little data", report.num_removed)
        occupancies = pdf_occupancies(model.gmms, statistics.moments)
        rng = np.random.default_rng([self.job.shared.seed, iteration])
        power = self.job.options.power
        gmms = mix_up(gmms, occupancies, target, rng, power=power)
        return AcousticModel(transitions, gmms)

    def note(
        self, iteration: int, phase: str, began: float, statistics: Statistics
    ) -> None:
        """Add a row to the history."""
        row = Iteration(
            iteration,
            statistics.log_like_per_frame,
            len(statistics.moments),
            self.num_aligned(),
            statistics.num_frames,
            time.perf_counter() - began,
            phase,
            self.transform_gain,
        )
        self.transform_gain = None
        self.history.append(row)
        log.info(
            "iteration %d (%s): log-likelihood %.4f a frame, %d Gaussians, %.2f s",
            iteration,
            phase,
            row.log_like_per_frame,
            row.num_gaussians,
            row.seconds,
        )

    def finish(self, model: AcousticModel, kind: Kind) -> None:
        """Check how much was left out, and write the system, the model last.

        Args:
            kind: of the system; its `finish` is called.

        Raises:
            UserError: more utterances than allowed could not be aligned.
        """
        job, folder, last = self.job, self.job.out_dir, self.history[-1]
        facts = kind.finish(model, self)
        ledger = Ledger(f"train_{folder.name}")
        self._record(ledger)
        ledger.write(folder / "ledger.jsonl")
        limit = job.max_skipped_fraction
        ledger.check(len(self.source), max_skipped_fraction=limit)
        _write_history(folder / "iterations.tsv", self.history)
        shared = job.shared.values()
        if not isinstance(job.options, MonoOptions | DeltasOptions):
            del shared["transform"]
        info = {
            "system": folder.name,
            "type": job.options.type,
            **model.facts(),
            "log_like_per_frame": last.log_like_per_frame,
            "num_utterances": last.num_utterances,
            "num_frames": last.num_frames,
            "cmvn": self.source.store.meta.get("cmvn"),
            "seconds": round(time.perf_counter() - job.began, 3),
            **facts,
            "options": {**job.options.values(), **shared},
        }
        write_json(folder / "info.json", info)
        save_transform(folder, self.source.transform)
        self.tree.save(folder / "tree")
        model.save(folder / "final.mdl")

    def _record(self, ledger: Ledger) -> None:
        """Enter what the last pass could not align, and what earlier ones could not."""
        failures: dict[int, AlignmentFailure] = {}
        if self.last_pass is not None:
            failures = self.last_pass.failures
            self.last_pass.record(ledger, self.source.utt_id)
        for u, times in sorted(self.ever_failed.items()):
            if u not in failures:
                ledger.record(
                    self.source.utt_id(u),
                    f"not aligned in {times} of {self.num_passes} passes",
                    action="noted",
                )


def _write_history(path: Path, history: list[Iteration]) -> None:
    """Write `iterations.tsv`."""
    names = [f.name for f in fields(Iteration)]
    with atomic_output(path) as temporary, temporary.open("w") as stream:
        stream.write("\t".join(names) + "\n")
        for row in history:
            values = asdict(row)
            values["log_like_per_frame"] = f"{row.log_like_per_frame:.6f}"
            values["seconds"] = f"{row.seconds:.3f}"
            gain = row.transform_gain
            values["transform_gain"] = "" if gain is None else f"{gain:.6f}"
            stream.write("\t".join(str(values[name]) for name in names) + "\n")
