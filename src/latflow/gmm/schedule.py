"""The loop of Viterbi training that all GMM systems share.

In each iteration the utterances are aligned anew, if it is time for that; a feature
transform is re-estimated, if the system has one (`refine`); statistics are gathered
with the present alignment; mixtures and transitions are re-estimated; and the number of
Gaussians is raised by splitting, in equal steps up to a given iteration.

Source: Kaldi `steps/train_mono.sh`, `steps/train_deltas.sh`, `gmmbin/gmm-est.cc`,
`gmmbin/gmm-boost-silence.cc`.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from latflow.files import atomic_output
from latflow.gmm.corpus_alignment import Beams, PassSummary, realign
from latflow.gmm.estep import Statistics, accumulate
from latflow.gmm.model import AcousticModel
from latflow.gmm.source import Chunk, FrameSource
from latflow.gmm.training_graphs import Graphs
from latflow.gmm.update import (
    UpdateOptions,
    mix_up,
    pdf_occupancies,
    update_gmms,
)
from latflow.gmm.viterbi import Aligner, Scales
from latflow.ledger import Ledger
from latflow.logs import progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """When what happens in training; see `workflow/schemas/gmm.yaml` for the meaning.

    Iterations count from 1; the model that iteration `num_iterations` - 1 ends with is
    the final one, as in Kaldi's scripts.
    """

    num_iterations: int
    realign_iterations: frozenset[int]
    last_increase_iteration: int
    num_gaussians: int
    power: float
    initial_beam: float
    beam: float
    retry_beam: float
    boost_silence: float
    careful: bool
    scales: Scales

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Schedule:
        """Take the schedule out of the options of a system."""
        taken = {f.name: options[f.name] for f in fields(cls) if f.name in options}
        taken["realign_iterations"] = frozenset(options["realign_iterations"])
        taken.setdefault("initial_beam", options["beam"])
        return cls(**taken, scales=Scales.from_options(options))

    def beams(self, iteration: int) -> Beams:
        """Widths of the search in an iteration."""
        first = self.initial_beam if iteration == 1 else self.beam
        return Beams(first, self.retry_beam)

    def targets(self, initial: int) -> list[int]:
        """Gaussians wanted at the end of iterations 1, 2, ...

        Args:
            initial: number to begin with.
        """
        step = max(0, self.num_gaussians - initial) // max(
            1, self.last_increase_iteration
        )
        return [
            initial + step * min(x - 1, self.last_increase_iteration)
            for x in range(1, self.num_iterations)
        ]


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


@dataclass
class Training:
    """The data of one training, and its history.

    Attributes:
        source: frames of the training utterances; whoever re-estimates a transform of
            the features puts another source of the same utterances in its place.
        graphs: gives the training graph of an utterance.
        alignment: int32[sum T], transition-ids, 0 where not aligned.
        pool: threads to use.
        boosted_phones: phones that `boost_silence` applies to.
        seed: seed of the random moves of split Gaussians.
        device: where the E-step is computed.
        history: one entry an iteration.
        last_pass: outcome of the latest alignment.
        ever_failed: utterances that some pass could not align, and in how many.
        num_passes: passes of alignment so far.
        transform_gain: objective gained by a new feature transform, per frame; goes
            into the next row of the history.
    """

    source: FrameSource
    graphs: Graphs
    alignment: np.ndarray
    pool: Executor
    boosted_phones: list[int]
    seed: int
    device: str = "cpu"
    history: list[Iteration] = field(default_factory=list)
    last_pass: PassSummary | None = None
    ever_failed: dict[int, int] = field(default_factory=dict)
    num_passes: int = 0
    transform_gain: float | None = None

    def aligned_chunks(
        self, source: FrameSource | None = None
    ) -> Iterator[tuple[Chunk, np.ndarray, np.ndarray]]:
        """Go through all frames with their present alignment, a chunk at a time.

        Args:
            source: frames of the same utterances in another form; None for `source`.

        Yields:
            (utterances of the chunk, frames float32[n, D], transition-ids int32[n],
            0 where a frame is not aligned).
        """
        given = self.source if source is None else source
        for chunk in given.chunks:
            first, last = given.begin[chunk.first], given.begin[chunk.last]
            frames = given.chunk(chunk, self.pool)
            yield chunk, frames, self.alignment[first:last]

    def alignment_of(self, u: int) -> np.ndarray | None:
        """Transition-ids int32[T_u] of utterance u; None if it is not aligned."""
        mine = self.alignment[self.source.begin[u] : self.source.begin[u + 1]]
        return mine if len(mine) and mine[0] else None

    def statistics(self, model: AcousticModel) -> Statistics:
        """Gather statistics with the present alignment."""
        return accumulate(
            model, self.source, self.alignment, self.pool, device=self.device
        )

    def num_aligned(self) -> int:
        """Utterances that have an alignment now."""
        first = self.source.begin[:-1][np.diff(self.source.begin) > 0]
        return int(np.count_nonzero(self.alignment[first]))

    def align(self, model: AcousticModel, schedule: Schedule, iteration: int) -> None:
        """Replace the alignment by the best paths under a model."""
        aligner = Aligner(
            model,
            scales=schedule.scales,
            boost=schedule.boost_silence,
            boosted_phones=self.boosted_phones,
            careful=schedule.careful,
        )
        self.last_pass = realign(
            aligner,
            self.source,
            self.graphs,
            schedule.beams(iteration),
            self.pool,
            alignment=self.alignment,
        )
        self.num_passes += 1
        for u in self.last_pass.failed:
            self.ever_failed[u] = self.ever_failed.get(u, 0) + 1

    def estimate(
        self,
        model: AcousticModel,
        statistics: Statistics,
        iteration: int,
        *,
        target: int,
        power: float,
        min_occupancy: float = 10.0,
    ) -> AcousticModel:
        """Re-estimate a model and mix it up (Kaldi's `gmm-est`).

        Args:
            model: the model that the statistics were made with.
            statistics: of all frames.
            iteration: seeds the random moves.
            target: number of Gaussians wanted.
            power: exponent of the occupancy in mixing up.
            min_occupancy: frames that a Gaussian must see to stay.
        """
        transitions = copy.copy(model.transitions)
        transitions.update(statistics.transitions)
        options = UpdateOptions(min_occupancy=min_occupancy)
        gmms, report = update_gmms(model.gmms, statistics.moments, options)
        if report.num_removed:
            log.info("removed %d Gaussians with too little data", report.num_removed)
        occupancies = pdf_occupancies(model.gmms, statistics.moments)
        rng = np.random.default_rng([self.seed, iteration])
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

    def record(self, ledger: Ledger, schedule: Schedule) -> None:
        """Enter what the last pass could not align, and what earlier ones could not."""
        beams = schedule.beams(schedule.num_iterations)
        last = self.last_pass or PassSummary()
        last.record(ledger, self.source, beams)
        for u, times in sorted(self.ever_failed.items()):
            if u not in last.failed:
                ledger.record(
                    self.source.utt_id(u),
                    f"not aligned in {times} of {self.num_passes} passes",
                    action="noted",
                )


Refine = Callable[[AcousticModel, Training, int], AcousticModel]


def run_schedule(
    model: AcousticModel,
    training: Training,
    schedule: Schedule,
    *,
    name: str,
    initial_gaussians: int,
    refine: Refine | None = None,
) -> AcousticModel:
    """Train a model that already has an alignment (or realigns first).

    Args:
        model: the model of iteration 1.
        training: data, present alignment, history.
        schedule: when what happens.
        name: of the system, for the progress bar.
        initial_gaussians: number that mixing up begins with.
        refine: called as refine(model, training, iteration) in every iteration, after
            aligning; it may put a new `training.source` in place, set
            `training.transform_gain`, and returns the model that the statistics are
            gathered with (the same one where it does nothing).
    """
    targets = schedule.targets(initial_gaussians)
    for x in progress(range(1, schedule.num_iterations), f"train {name}"):
        began = time.perf_counter()
        is_realigned = x in schedule.realign_iterations
        if is_realigned:
            training.align(model, schedule, x)
        if refine is not None:
            model = refine(model, training, x)
        statistics = training.statistics(model)
        training.note(x, "realign" if is_realigned else "keep", began, statistics)
        model = training.estimate(
            model, statistics, x, target=targets[x - 1], power=schedule.power
        )
    return model


def write_history(path: Path, history: list[Iteration]) -> None:
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
