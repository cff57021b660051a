"""Simulation of utterances when they are read, again in each pass over the data."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from latflow.simulation.counts import Counts
from latflow.simulation.drawing import Drawing
from latflow.simulation.options import (
    CleanTarget,
    EarlyTarget,
    MaskTarget,
    SimulationDraws,
)
from latflow.simulation.records import Record, Speech
from latflow.simulation.simulator import Simulator


class SimulationOnTheFly:
    """Simulation of a corpus; what it reads is kept from pass to pass.

    Args:
        options: what utterances are put into.
        speech: the corpus.
        rate: of all samples, Hz.
        seed: of the training.
        purpose: of its rooms, see `Drawing`.

    Raises:
        UserError: see `Drawing`.
    """

    def __init__(
        self,
        options: SimulationDraws,
        speech: Speech,
        *,
        rate: int,
        seed: int,
        purpose: str = "training",
    ) -> None:
        self._fresh_every = options.fresh_every
        self._speech = speech
        self._counts = _Counts(len(speech))
        self._drawing = Drawing(options, speech, rate=rate, seed=seed, purpose=purpose)
        self._simulator = Simulator(speech, rate=rate, cache_mb=options.cache_mb)

    def in_pass(self, whole_pass: int) -> PassSimulation:
        """Return the simulation of a pass, counted from 0."""
        drawn_pass = whole_pass // self._fresh_every
        return PassSimulation(
            self._drawing, self._simulator, self._speech, drawn_pass, self._counts
        )

    def take_counts(self) -> dict[str, float]:
        """Return counts of what was read since the last call; see `Counts`.

        Of utterances that are read several times the first counts. What was at hand,
        simulated before, is counted in `utterances` and `simulated` alone.
        """
        return self._counts.take()


class _Counts:
    """Counts of the utterances that are read; safe to share between threads.

    Args:
        number: of utterances in the corpus, N.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._number = number
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing."""
        # read at all, read to be simulated, and simulated
        self._read, self._meant, self._done = np.zeros((3, self._number), np.bool_)
        self._made = Counts()

    def read(self, i: int, *, is_simulated: bool) -> None:
        """Count utterance i as one that is read."""
        with self._lock:
            self._read[i] = True
            self._meant[i] |= is_simulated

    def made(self, i: int, record: Record, events: Mapping[str, int]) -> None:
        """Count what was done to utterance i."""
        with self._lock:
            if record.is_simulated and not self._done[i]:
                self._made.add(record, events)
            self._done[i] = True

    def take(self) -> dict[str, float]:
        """Return the counts, and begin again."""
        with self._lock:
            read = {"utterances": self._read.sum(), "simulated": self._meant.sum()}
            counts = {**self._made.values(), **{k: int(n) for k, n in read.items()}}
            self._begin()
        return counts


@dataclass(frozen=True)
class PassSimulation:
    """What is done to utterances in a pass; see `features.perturb.Simulation`."""

    drawing: Drawing
    simulator: Simulator
    speech: Speech
    drawn_pass: int
    counts: _Counts

    def draws(self, i: int) -> Hashable:
        """See `features.perturb.Simulation`."""
        is_simulated = self.drawing.is_simulated(
            self.speech.utt_id(i), whole_pass=self.drawn_pass
        )
        self.counts.read(i, is_simulated=is_simulated)
        return self.drawn_pass if is_simulated else "left alone"

    def record(self, i: int, num_samples: int) -> Record:
        """Return what is done to utterance i, which has some number of samples."""
        utt_id = self.speech.utt_id(i)
        return self.drawing.draw(utt_id, num_samples, whole_pass=self.drawn_pass)

    def __call__(self, i: int, samples: np.ndarray) -> np.ndarray:
        """See `features.perturb.Simulation`."""
        record, events = self.record(i, len(samples)), Counter[str]()
        simulated = self.simulator.apply(record, samples, events=events)
        self.counts.made(i, record, events)
        return simulated

    def wanted(self, target: CleanTarget | EarlyTarget | MaskTarget) -> WantedSpeech:
        """Return the simulation that leaves what a target is made of."""
        return WantedSpeech(self, target)


@dataclass(frozen=True)
class WantedSpeech:
    """What of the utterances of a pass is wanted; see `features.perturb.Simulation`."""

    simulation: PassSimulation
    target: CleanTarget | EarlyTarget | MaskTarget

    def draws(self, i: int) -> Hashable:
        """Tell the draws of utterance i apart, and what is wanted of them."""
        return self.simulation.draws(i), self.target

    def __call__(self, i: int, samples: np.ndarray) -> np.ndarray:
        """Return the wanted speech of utterance i, float32 [L].

        Of masks float32 [2, L]: the wanted speech, and the rest.
        """
        record = self.simulation.record(i, len(samples))
        early = _seconds(self.target)
        parts = self.simulation.simulator.split(record, samples, early=early)
        return np.stack(parts) if isinstance(self.target, MaskTarget) else parts[0]


def _seconds(target: CleanTarget | EarlyTarget | MaskTarget) -> float:
    """Return how long the room's response is wanted, s."""
    if isinstance(target, CleanTarget):
        return 0.0
    return math.inf if target.early_ms is None else target.early_ms / 1000
