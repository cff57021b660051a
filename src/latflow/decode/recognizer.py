"""Lattices of the utterances of a frame store: scorer, decoder and retries as one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from latflow.decode.decoder import (
    Attempt,
    DecodingGraph,
    LatticeDecoder,
    RetryPolicy,
    load_graph,
)
from latflow.decode.options import SearchOptions
from latflow.decode.scorers import Scorer
from latflow.decode.streaming import Decoded
from latflow.decode.turns import Turn
from latflow.errors import UserError
from latflow.features.source import Frames
from latflow.lang.directory import Lang
from latflow.parallel import in_order

ScorerT = TypeVar("ScorerT", bound=Scorer)


@dataclass(frozen=True, eq=False)
class Result:
    """Result of one utterance: a lattice or an error, and times.

    Attributes:
        utterance: its id.
        num_frames: its length, in frames of the features.
        num_scores: frames that were scored and searched: fewer, where the network
            subsamples.
        attempt: the lattice, or why there is none.
        log_like_seconds: processor time of log-likelihoods (with the transforms).
        search_seconds: processor time of the search.
    """

    utterance: str
    num_frames: int
    num_scores: int
    attempt: Attempt
    log_like_seconds: float
    search_seconds: float

    @property
    def decoded(self) -> Decoded | None:
        """The lattice; None if the utterance is skipped."""
        return self.attempt.decoded


@dataclass(frozen=True, eq=False)
class Recognizer(Generic[ScorerT]):
    """Decodes the utterances of a frame store; shared by threads.

    Attributes:
        scorer: gives the log-likelihoods.
        decoder: finds the lattices.
        policy: what is done when a search comes to no good end.
        acoustic_scale: factor on log-likelihoods in the search.
    """

    scorer: ScorerT
    decoder: LatticeDecoder
    policy: RetryPolicy
    acoustic_scale: float

    @classmethod
    def load(
        cls,
        scorer: ScorerT,
        graph_path: str | Path,
        lang: Lang,
        options: SearchOptions,
    ) -> Recognizer[ScorerT]:
        """Read the graph and check that all parts fit each other.

        Args:
            scorer: gives the log-likelihoods.
            graph_path: `HCLG.fst`.
            lang: language directory that the graph was made of.
            options: of the search.

        Raises:
            UserError: graph, model and words do not fit.
        """
        graph = load_graph(graph_path, lang)
        try:
            return cls.of(scorer, graph, options)
        except UserError as error:
            raise error.at(file=graph_path) from None

    @classmethod
    def of(
        cls, scorer: ScorerT, graph: DecodingGraph, options: SearchOptions
    ) -> Recognizer[ScorerT]:
        """Return the recognizer with a graph.

        Args:
            scorer: gives the log-likelihoods.
            graph: HCLG, or HCL and G.
            options: of the search.

        Raises:
            UserError: graph and model do not fit.
        """
        decoder = LatticeDecoder(
            graph,
            scorer.transitions.pdf,
            beam=options.beam,
            lattice_beam=options.lattice_beam,
            max_active=options.max_active,
            min_active=options.min_active,
        )
        tries = RetryPolicy.from_options(options)
        by_frame = options.acoustic_scale * scorer.lattice_scale
        scale = scorer.acoustic_scale or by_frame
        return cls(scorer, decoder, tries, scale)

    @property
    def store(self) -> Frames:
        """The frames."""
        return self.scorer.store

    def with_beam(self, options: SearchOptions, beam: float) -> Recognizer[ScorerT]:
        """Return the same recognizer with another beam in the first search."""
        return replace(self, policy=RetryPolicy.from_options(options, beam))

    def warm_up(self) -> None:
        """Load the compiled kernels, so that no utterance's time has that in it."""
        if len(self.store):
            log_likes = self.scorer.warm_up()
            with contextlib.suppress(UserError):  # one frame seldom ends well
                self.decoder.decode(log_likes, acoustic_scale=self.acoustic_scale)

    def results(
        self, pool: Executor, utterances: Sequence[int], *, ahead: int
    ) -> Iterator[Result]:
        """Decode utterances on a pool of threads, and return the results in order.

        Args:
            pool: see `latflow.parallel.worker_pool`.
            utterances: their numbers.
            ahead: see `latflow.parallel.in_order`.
        """
        turns = self.scorer.turns(utterances)
        return in_order(pool, self._search, turns, ahead=ahead)

    def decode_utterance(self, index: int) -> Result:
        """Decode one utterance, again with a wider beam if the policy says so."""
        return self._search(Turn(index, partial(self.scorer.log_likes, index)))

    def _search(self, turn: Turn) -> Result:
        """Decode an utterance with the log-likelihoods that its turn gives."""
        store = self.store
        utterance, clock = store.utt_ids[turn.index], _Clock()
        num_frames = int(store.begin[turn.index + 1] - store.begin[turn.index])

        def search(beam: float) -> Decoded:
            decoded = self.decoder.decode_chunks(
                clock.timed(turn.log_likes()),
                acoustic_scale=self.acoustic_scale,
                utterance=utterance,
                beam=beam,
            )
            return self._scaled(decoded)

        attempt = self.policy.run(search, utterance=utterance)
        return Result(
            utterance,
            num_frames,
            -(-num_frames // self.scorer.subsampling),
            attempt,
            turn.seconds + clock.log_like_seconds,
            clock.all_seconds() - clock.log_like_seconds,
        )

    def _scaled(self, decoded: Decoded) -> Decoded:
        """Return what was found with the acoustic costs that lattices are to have."""
        scale, lattice = np.float32(self.scorer.lattice_scale), decoded.lattice
        if scale == 1.0:
            return decoded
        costs = scale * lattice.acoustic_cost
        return replace(decoded, lattice=replace(lattice, acoustic_cost=costs))


class _Clock:
    """Processor time of the thread that works on an utterance."""

    def __init__(self) -> None:
        self._begun = time.thread_time()
        self.log_like_seconds = 0.0

    def all_seconds(self) -> float:
        """Return the seconds since the utterance was begun."""
        return time.thread_time() - self._begun

    def timed(self, pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield log-likelihoods, and add up the time that they take."""
        while True:
            begun = time.thread_time()
            piece = next(pieces, None)
            self.log_like_seconds += time.thread_time() - begun
            if piece is None:
                return
            yield piece
