"""The trainer: epochs, evaluation, checkpoints; the same for all criteria.

A training is a function of its inputs, options and seed. It may be killed at any moment
and continues from its last checkpoint; on the processor, with the same numbers of ranks
and threads, it ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from latflow.criteria.batch import Batch
from latflow.criteria.options import Scales
from latflow.criteria.protocol import Criterion
from latflow.errors import Interrupted
from latflow.gpu_load import GpuLoad
from latflow.logs import progress as progress_bar
from latflow.nnet.model_dir import average_states
from latflow.nnet.network import Network
from latflow.nnet.precision import dtype_of
from latflow.nnet.pretraining import Pretraining
from latflow.training.batches import BatchSource
from latflow.training.checkpoint import (
    FRAMES,
    CheckpointStore,
    Means,
    Position,
    State,
    TrainingState,
    means,
)
from latflow.training.distributed import Backend
from latflow.training.epoch_choice import EpochChoice
from latflow.training.evaluation import evaluate
from latflow.training.moving_average import MovingAverage
from latflow.training.optimizers import (
    Moment,
    is_exhausted,
    learning_rate,
    make_optimizer,
)
from latflow.training.options import TrainingOptions
from latflow.training.progress import Clock, TrainingLog
from latflow.training.steps import (
    CHECKPOINT,
    LOSS,
    STOP,
    Measured,
    Stepper,
    not_finite,
)


@dataclass(frozen=True)
class Result:
    """The end of a training.

    Attributes:
        epochs: that were made.
        steps: of the optimizer.
        history: means per frame on dev at the end of each epoch.
        chosen_epoch: whose parameters the network has; 0 where they are an average.
        dev: means per frame on dev of the network as it is.
        train: means per frame in training, of the last epoch.
        outliers: steps that were skipped or clipped; see `Trainer._note_outlier`.
    """

    epochs: int
    steps: int
    history: Sequence[Means]
    chosen_epoch: int
    dev: Means
    train: Means
    outliers: Sequence[Mapping[str, Any]] = ()


@dataclass(eq=False)
class Trainer:
    """Trains a network.

    Attributes:
        network: on its device; trained in place.
        criterion: what is minimized.
        batches: the training data.
        dev: evaluated at the end of each epoch.
        options: how; the same for all criteria.
        seed: of dropout, gradient noise and constraints.
        store: checkpoints; rank 0 alone reads and writes them.
        backend: the other ranks.
        dev_criterion: what dev is evaluated with; by default the criterion.
        should_stop: asked once a step; true ends the training with a checkpoint.
        pretraining: layer-wise, towards `network`, which is then the network of the
            moment; None for none.
        scales: of the criterion, for the record in checkpoints.
    """

    network: Network
    criterion: Criterion
    batches: BatchSource
    dev: BatchSource
    options: TrainingOptions
    store: CheckpointStore
    seed: int = 0
    backend: Backend = field(default_factory=Backend)
    dev_criterion: Criterion | None = None
    should_stop: Callable[[], bool] = lambda: False
    pretraining: Pretraining | None = None
    scales: Scales = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pretraining is not None:
            self.network = self.pretraining.network(0, None)
        self._now = TrainingState()
        self._log: TrainingLog | None = None
        self._clock = Clock()
        self._gpu_load = GpuLoad()
        self._pending: Measured | None = None
        self.set_up()

    def set_up(self) -> None:
        """Make what depends on network, criterion and ranks; after any is replaced."""
        options = self.options
        self.network.freeze(options.freeze)
        optimizer = make_optimizer(
            self.network,
            options.optimizer,
            options.learning_rate,
            options.learning_rate_factors,
            dtype_of(options.precision, next(self.network.parameters()).device),
        )
        self._average = MovingAverage(self.network, options.ema)
        self._stepper = Stepper(
            self.network,
            self.criterion,
            optimizer,
            options,
            seed=self.seed,
            backend=self.backend,
        )

    @property
    def log_file(self) -> Path:
        """The log of the training, beside the checkpoints."""
        return self.store.folder / "log.jsonl"

    def run(self) -> Result:
        """Train to the end; continues from the newest checkpoint if there is one.

        Raises:
            Interrupted: it was asked to stop.
            UserError: a loss or gradient that is not finite; a checkpoint of another
                training.
        """
        self._restore()
        self._open_log()
        try:
            # a job that trains on a processor is watched by what runs it
            is_logged = self.backend.is_main and self._stepper.device.type == "cuda"
            with self._gpu_load if is_logged else nullcontext():
                while not self._is_done():
                    self._run_epoch()
            return self._finish()
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    # --- epochs -------------------------------------------------------------------

    def _is_done(self) -> bool:
        """Return whether there is no epoch left to make."""
        if is_exhausted(self._choice.judged, self.options.patience):
            return True
        return self._now.position.epoch > self.options.epochs

    def _run_epoch(self) -> None:
        """Go on with the current epoch to its end, and evaluate."""
        self._start_clocks()
        self._add_layer()
        at = self._now.position
        rank, size = self.backend.rank, self.backend.size
        with closing(
            self.batches.epoch(at.epoch - 1, first_batch=at.batch, rank=rank, size=size)
        ) as batches:
            for group in self._groups(batches):
                self._step(group)
        self._drain()
        self._stepper.synchronize()
        train, rate = means(self._now.epoch_sums), self._rate()
        dev = self.evaluate()
        now = self._now
        now.history.append(dev)
        done = round(self._progress(), 6)
        numbers = {"learning_rate": rate, **self.batches.pop_statistics()}
        self._write("epoch", progress=done, train=train, dev=dev, **numbers)
        now.last_train = train
        now.next_epoch()
        self._save()
        self.backend.accept_new_ranks()

    def _add_layer(self) -> None:
        """Add the layer that falls due with this epoch, if there is one."""
        now = self._now
        if self.pretraining is None:
            return
        step = self.pretraining.step(now.position.epoch)
        if step == now.pretraining_step:
            return
        now.pretraining_step = step
        self.network = self.pretraining.network(step, self.network)
        self.set_up()

    def _start_clocks(self) -> None:
        """Begin to measure time."""
        self._clock = Clock()
        self._saved_at = time.monotonic()

    def _groups(self, batches: Iterator[Batch | None]) -> Iterator[list[Batch | None]]:
        """Yield the batches of each step that is left in the epoch."""
        epoch, done = self._now.position.epoch, self._now.position.batch
        accumulate = self.options.accumulate
        left = math.ceil((self.batches.num_batches(epoch - 1) - done) / accumulate)
        steps: Any = range(left)
        if self.backend.is_main:
            steps = progress_bar(steps, f"epoch {epoch}", left)
        for _ in steps:
            with self._clock.during("data"):
                group = list(islice(batches, accumulate))
            yield group

    def _step(self, group: list[Batch | None]) -> None:
        """Make one step, and what falls due after it."""
        now, options = self._now, self.options
        now.step += 1
        due = time.monotonic() - self._saved_at > 60.0 * options.checkpoint_minutes
        measured = self._stepper.make(
            group,
            now.step,
            self._rate(),
            self._clock,
            requests={
                CHECKPOINT: due and self.backend.is_main,
                STOP: self.should_stop(),
            },
        )
        self._average.update(now.step)
        at = now.position
        now.position = Position(at.epoch, at.batch + len(group))
        every = options.parameter_averaging
        if every is not None and now.step % every == 0:
            self._stepper.synchronize()
        requests = self._record_latest(measured)
        if options.dev_interval and now.step % options.dev_interval == 0:
            self._evaluate_within()
        if requests[STOP] or requests[CHECKPOINT]:
            self._drain()
            self._save()
            if requests[STOP]:
                raise Interrupted
            self.backend.accept_new_ranks()

    def _evaluate_within(self) -> None:
        """Evaluate on dev within an epoch."""
        self._drain()
        with self._stepper.joined():
            dev = self.evaluate()
        self._write("dev", dev=dev, learning_rate=self._rate())

    def _rate(self) -> float:
        """Return the learning rate of the current step."""
        now = self._now
        moment = Moment(max(1, now.step), now.position.epoch, self._progress())
        return learning_rate(self.options, moment, self._choice.judged)

    def _progress(self) -> float:
        """Return the share of all epochs that is done, 0 to 1."""
        at = self._now.position
        num_batches = max(1, self.batches.num_batches(at.epoch - 1))
        done = at.epoch - 1 + min(1.0, at.batch / num_batches)
        return done / self.options.epochs

    # --- numbers of steps ---------------------------------------------------------

    def _record_latest(self, measured: Measured) -> Mapping[str, float]:
        """Look at the step before (on a GPU) or at this one."""
        if measured.arrived is None:
            return self._record(measured)
        before, self._pending = self._pending, measured
        return {CHECKPOINT: 0.0, STOP: 0.0} if before is None else self._record(before)

    def _drain(self) -> None:
        """Look at the step that is still to be looked at, if there is one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._record(pending)
        self._stepper.sync_sums()

    def _record(self, measured: Measured) -> dict[str, float]:
        """Check, add up and log the numbers of a step; returns its requests."""
        numbers = measured.read()
        norm = numbers.pop("gradient_norm")
        if not (math.isfinite(norm) and math.isfinite(numbers[LOSS])):
            together = Backend() if self._stepper.averages_parameters else self.backend
            raise not_finite(measured, norm, numbers[LOSS], together)
        requests = {request: numbers.pop(request) for request in (CHECKPOINT, STOP)}
        self._stepper.add_sums(numbers)
        if self._stepper.averages_parameters:
            requests = self._agreed(requests, measured.step)
        self._now.add(numbers)
        if measured.is_outlier:
            self._note_outlier(measured, numbers, norm)
        if measured.step % self.options.log_interval == 0:
            self._log_step(measured.step, norm)
        return requests

    def _note_outlier(
        self, measured: Measured, numbers: Mapping[str, float], norm: float
    ) -> None:
        """Keep step, loss per frame, gradient and utterances of an outlier."""
        batches = [part.batch for part in measured.parts]
        own = sorted({name for batch in batches for name in batch.utterances})
        ranks = self.backend.gather(own)
        found = {
            "step": measured.step,
            "loss": numbers[LOSS] / max(numbers[FRAMES], 1.0),
            "gradient_norm": norm,
            "utterances": sorted({name for names in ranks for name in names}),
        }
        self._now.outliers.append(found)
        self._write("outlier", **found)

    def _agreed(self, requests: dict[str, float], step: int) -> dict[str, float]:
        """Return what all ranks ask for, where they meet only to average parameters."""
        every = self.options.parameter_averaging
        if every is None or step % every != 0:
            return dict.fromkeys(requests, 0.0)
        self._stepper.sync_sums()
        own = [float(self.should_stop()), requests[CHECKPOINT]]
        stop, checkpoint = self.backend.all_reduce_numbers(own)
        return {CHECKPOINT: checkpoint, STOP: stop}

    def _log_step(self, step: int, norm: float) -> None:
        """Write a line on the steps since the line before.

        Where none of their frames counted there are no means: they are of the next.
        """
        sums = self._now.window_sums
        if not sums[FRAMES]:
            return
        seconds, shares = self._clock.read()
        self._now.window_sums = {}
        busy = self._gpu_load.take()
        self._write(
            "step",
            step=step,
            progress=round(self._progress(), 6),
            **means(sums),
            learning_rate=self._rate(),
            gradient_norm=norm,
            frames_per_second=round(sums[FRAMES] / seconds, 1),
            time=shares,
            **({} if busy is None else {"gpu_share": round(busy, 3)}),
        )

    def _write(self, kind: str, **record: Any) -> None:
        """Write a line of the log."""
        if self._log is not None:
            at = self._now.position
            at_step = {"epoch": at.epoch, "batch": at.batch, "step": self._now.step}
            self._log.write({"kind": kind, **at_step, **record})

    def _open_log(self) -> None:
        """Go on with the log where the checkpoint left it."""
        if self.backend.is_main:
            self._log = TrainingLog(
                self.log_file,
                offset=self._now.log_offset,
                tensorboard=self.store.folder / "tensorboard"
                if self.options.tensorboard
                else None,
                step=self._now.step,
            )

    def evaluate(self) -> Means:
        """Return means per frame on dev of the network, or of its moving average.

        All ranks share the work.

        Raises:
            UserError: dev has no labelled frame.
        """
        with self._average.in_network():
            return evaluate(
                self.network,
                self.dev_criterion or self.criterion,
                self.dev,
                self.options,
                self.backend,
            )

    # --- checkpoints --------------------------------------------------------------

    @property
    def _choice(self) -> EpochChoice:
        """The epochs that are finished, and which of them are taken at the end."""
        grown = self.pretraining
        whole_from = 1 if grown is None else grown.first_whole
        return EpochChoice(self._now.history, self.options, whole_from)

    def _save(self) -> None:
        """Write a checkpoint."""
        optimizers = [self._stepper.optimizer.state_dict()]
        if self._stepper.averages_parameters:
            optimizers = self.backend.gather(optimizers[0])
        criteria = self.backend.gather(self.criterion.state())
        statistics = self.backend.gather(self._stepper.statistics.state())
        if self.backend.is_main:
            now = self._now
            if self._log is not None:
                now.log_offset = self._log.offset
            state = {
                "model": _on_cpu(self.network.state_dict()),
                "optimizers": optimizers,
                "statistics": statistics,
                "criteria": criteria,
                "training": now.state(),
                "scales": dict(self.scales),
                "ema": self._average.state(),
            }
            if self._stepper.outliers is not None:
                state["outliers"] = self._stepper.outliers.state()
            self.store.save(now.position, state, self._choice.wanted)
        self._saved_at = time.monotonic()

    def _restore(self) -> None:
        """Go on from the newest checkpoint, if there is one; the same on all ranks."""
        found = self.store.latest() if self.backend.is_main else None
        found = self.backend.broadcast_object(found)
        if found is None:
            self.backend.broadcast_(list(self.network.state_dict().values()))
            return
        position, state = found
        self._now = TrainingState.of(position, state["training"])
        if self.pretraining is not None:
            self.network = self.pretraining.network(self._now.pretraining_step, None)
            self.set_up()
        self.network.load_state_dict(state["model"])
        self._average.load_state(state.get("ema", {}))
        optimizers = state["optimizers"]
        own = optimizers[self.backend.rank % len(optimizers)]
        self._stepper.optimizer.load_state_dict(own)
        if self._stepper.outliers is not None:
            self._stepper.outliers.load_state(state["outliers"])
        if len(state["statistics"]) == self.backend.size:
            self._stepper.statistics.load_state(state["statistics"][self.backend.rank])
        self.criterion.load_states(state["criteria"], is_main=self.backend.is_main)

    def _finish(self) -> Result:
        """Give the network its final parameters, and evaluate it."""
        now, choice = self._now, self._choice
        self._average = MovingAverage(self.network, None)  # it is in the parameters
        ends: dict[int, State] = {}
        if self.backend.is_main:
            ends = {e: self.store.load(Position(e + 1)) for e in choice.candidates[0]}

        def put_in(epochs: Sequence[int]) -> None:
            found = [ends[e]["model"] | ends[e].get("ema", {}) for e in epochs if ends]
            state = self.backend.broadcast_object(average_states(found) if ends else 0)
            self.network.load_state_dict(state)

        epochs, dev = choice.take_best(put_in, self.evaluate)
        if self.backend.is_main:
            self.store.end(choice.wanted)
        self._write("final", dev=dev, epochs=epochs)
        return Result(
            epochs=len(now.history),
            steps=now.step,
            history=now.history,
            chosen_epoch=epochs[0] if len(epochs) == 1 else 0,
            dev=dev,
            train=now.last_train,
            outliers=now.outliers,
        )


def _on_cpu(state: Mapping[str, Tensor]) -> State:
    """Return the copies of parameters, off the device."""
    return {name: value.detach().to("cpu") for name, value in state.items()}
