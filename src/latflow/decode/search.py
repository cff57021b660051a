"""The lattice decoder: log-likelihoods in, raw lattices out.

A Viterbi beam search over a decoding graph that keeps, at each frame, all ways whose
cost is within the lattice beam of the best path. One decoder serves many threads: the
packed graph is shared, each search takes a store of its own from a pool.

Public: `LatticeDecoder`, `Decoded`, `DeadEndError`.

Source: Kaldi `decoder/lattice-faster-decoder.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numba import njit

from latflow.decode import collect, passing, pruning, tokens
from latflow.decode.search_graph import ArcArrays, make_search_graph
from latflow.errors import UserError
from latflow.lattice.lattice import Lattice


class DeadEndError(UserError):
    """The search came to a frame where no token survived."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a search found.

    Attributes:
        lattice: with unscaled acoustic costs.
        reached_final: whether some path ends in a final state of the graph. If not, all
            states of the last frame are final at no cost: a partial result.
        mean_active: tokens followed per frame.
    """

    lattice: Lattice
    reached_final: bool
    mean_active: float


class LatticeDecoder:
    """Decodes utterances with one graph; may be called from many threads at once.

    Args:
        graph: arcs with transition-ids as input labels and words as output labels.
        tid_to_pdf: int32[I + 1], pdf of each transition-id.
        beam: tokens costing more than the best of their frame plus this are dropped.
        lattice_beam: ways costing more than the best path plus this are dropped.
        max_active: most tokens followed per frame.
        min_active: least tokens followed per frame, even outside the beam.
        beam_delta: added to a beam that max_active or min_active has changed.
        prune_interval: frames between prunings; bounds memory, changes no result.

    Raises:
        UserError: the graph and the model do not fit, or a beam is not positive.
    """

    def __init__(
        self,
        graph: ArcArrays,
        tid_to_pdf: np.ndarray,
        *,
        beam: float = 13.0,
        lattice_beam: float = 6.0,
        max_active: int = 7000,
        min_active: int = 200,
        beam_delta: float = 0.5,
        prune_interval: int = 25,
    ) -> None:
        if not (beam > 0 and lattice_beam > 0 and max_active > 1 and min_active >= 0):
            raise UserError(
                f"a search with beam {beam:g}, lattice beam {lattice_beam:g}, "
                f"max_active {max_active}, min_active {min_active}",
                remedy="beams must be positive, max_active at least 2",
            )
        if min_active > max_active or beam_delta <= 0 or prune_interval < 1:
            raise UserError(
                f"a search with min_active {min_active} above max_active {max_active}, "
                f"beam_delta {beam_delta:g} or prune_interval {prune_interval}",
                remedy="min_active may not exceed max_active; the others are positive",
            )
        self._graph = graph
        self._packed = make_search_graph(graph, tid_to_pdf)
        self.num_pdfs = int(self._packed.arcs["pdf"].max(initial=-1)) + 1
        self._limits = passing.SearchLimits(
            float(beam), int(max_active), int(min_active), float(beam_delta)
        )
        self._lattice_beam = float(lattice_beam)
        self._prune_interval = prune_interval
        self._idle: list[tokens.Store] = []
        self._lock = Lock()

    @property
    def beam(self) -> float:
        """The beam that is used where a call names none."""
        return self._limits.beam

    def decode(
        self,
        log_likes: np.ndarray,
        *,
        acoustic_scale: float,
        utterance: str | None = None,
        beam: float | None = None,
    ) -> Decoded:
        """Decode one utterance.

        Args:
            log_likes: float32[T, P], natural log, P pdfs; -inf rules a pdf out.
            acoustic_scale: factor on the log-likelihoods in the search.
            utterance: named in errors.
            beam: instead of the decoder's.

        Raises:
            DeadEndError: no token survived some frame; names it.
            UserError: no frames, too few pdfs, or a frame with NaN or +inf or all -inf.
        """
        return self.decode_chunks(
            [log_likes], acoustic_scale=acoustic_scale, utterance=utterance, beam=beam
        )

    def decode_chunks(
        self,
        chunks: Iterable[np.ndarray],
        *,
        acoustic_scale: float,
        utterance: str | None = None,
        beam: float | None = None,
    ) -> Decoded:
        """Decode one utterance whose log-likelihoods come piece by piece.

        The same as `decode` on all of them at once.

        Args:
            chunks: float32[some, P] each, in order.
            acoustic_scale: as for `decode`.
            utterance: as for `decode`.
            beam: as for `decode`.
        """
        limits = self._limits
        if beam is not None:
            limits = limits._replace(beam=float(beam))
        scale = float(acoustic_scale)
        with self._store() as holder:
            holder[0] = passing.begin(self._packed, holder[0], limits)
            for block in self._blocks(chunks, utterance):
                holder[0] = passing.advance(
                    self._packed, holder[0], limits, block, scale
                )
                self._check_alive(holder[0], utterance)
                if len(block) == self._prune_interval:
                    pruning.prune(holder[0], scale, self._lattice_beam)
            return self._finish(holder[0], scale, utterance)

    @contextmanager
    def _store(self) -> Iterator[list[tokens.Store]]:
        """Lend a store that no other thread uses; a list, since growth replaces it."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        holder = [found or tokens.new_store(len(self._packed.states))]
        try:
            yield holder
        finally:
            with self._lock:
                self._idle.append(holder[0])

    def _blocks(
        self, chunks: Iterable[np.ndarray], utterance: str | None
    ) -> Iterator[np.ndarray]:
        """Cut checked log-likelihoods into pieces of `prune_interval` frames."""
        done = 0
        for chunk in chunks:
            log_likes = np.ascontiguousarray(chunk, np.float32)
            self._check(log_likes, done, utterance)
            for first in range(0, len(log_likes), self._prune_interval):
                yield log_likes[first : first + self._prune_interval]
            done += len(log_likes)

    def _check(self, log_likes: np.ndarray, done: int, utterance: str | None) -> None:
        """Refuse log-likelihoods that cannot be searched with."""
        if log_likes.ndim != 2 or log_likes.shape[1] < self.num_pdfs:
            raise UserError(
                f"log-likelihoods of shape {log_likes.shape}, where the decoding graph "
                f"has {self.num_pdfs} pdfs",
                utterance=utterance,
                remedy="use the model that the graph was made with",
            )
        frame, fault = _first_fault(log_likes)
        if frame >= 0:
            raise UserError(
                f"log-likelihoods at frame {done + frame} {_FAULTS[fault]}",
                utterance=utterance,
                remedy="check the features and the model of this utterance",
            )

    def _check_alive(self, store: tokens.Store, utterance: str | None) -> None:
        """Refuse to go on without tokens."""
        frame = int(store.counts[tokens.FRAMES])
        if store.token_begin[frame] == store.counts[tokens.TOKENS]:
            raise DeadEndError(
                f"no way through the decoding graph survives frame {frame - 1}",
                utterance=utterance,
                remedy="widen decode.beam, or check the features of this utterance",
            )

    def _finish(
        self, store: tokens.Store, acoustic_scale: float, utterance: str | None
    ) -> Decoded:
        """Prune to the end and make the lattice."""
        num_frames = int(store.counts[tokens.FRAMES])
        if num_frames == 0:
            raise UserError(
                "no frames to decode",
                utterance=utterance,
                remedy="remove the utterance; it is shorter than one frame",
            )
        rest = (self._packed, store, acoustic_scale)
        reached_final = pruning.finish(*rest, self._lattice_beam)
        if self._packed.has_epsilon_cycle:
            collect.break_cycles(*rest)
            pruning.finish(*rest, self._lattice_beam)
        collected = collect.collect(*rest)
        lattice = self._lattice(store, collected, num_frames, reached_final)
        expanded = float(store.counts[tokens.EXPANDED])
        return Decoded(lattice, reached_final, expanded / num_frames)

    def _lattice(
        self,
        store: tokens.Store,
        collected: collect.Collected,
        num_frames: int,
        reached_final: bool,  # noqa: FBT001 (private)
    ) -> Lattice:
        """Look the labels and costs of states and arcs up."""
        frame, graph_state, arc_begin, next_state, link = collected
        links = store.link[link]
        arcs = self._packed.origin[links["arc"]]
        graph = self._graph
        final = graph.final[graph_state] if reached_final else np.zeros(len(frame))
        final = np.where(frame == num_frames, final, np.inf).astype(np.float32)
        final_acoustic = np.where(np.isfinite(final), 0.0, np.inf).astype(np.float32)
        return Lattice(
            arc_begin=arc_begin,
            next_state=next_state,
            transition_id=np.asarray(graph.ilabel[arcs], np.int32),
            word=np.asarray(graph.olabel[arcs], np.int32),
            graph_cost=np.asarray(graph.weight[arcs], np.float32),
            acoustic_cost=np.ascontiguousarray(links["acoustic"]),
            final_graph_cost=final,
            final_acoustic_cost=final_acoustic,
            frame=frame,
            num_frames=num_frames,
        )


_FAULTS = ("hold NaN or +inf", "are all -inf")


@njit(cache=True, nogil=True)
def _first_fault(log_likes: np.ndarray) -> tuple[int, int]:
    """First frame that is no good, or -1, and what is wrong with it."""
    for t in range(len(log_likes)):
        is_empty = True
        for p in range(log_likes.shape[1]):
            value = log_likes[t, p]
            if np.isnan(value) or value == np.inf:
                return t, 0
            is_empty = is_empty and value == -np.inf
        if is_empty:
            return t, 1
    return -1, 0
