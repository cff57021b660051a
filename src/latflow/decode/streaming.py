"""Searches that take their frames as they come.

An `Engine` is what all searches on one graph share: the packed graph, the limits, and
pools of stores and scratches. A `Session` is one search. It holds a store from its
first frame to its end, but a scratch (with its map of all graph states) only while it
works on frames: many sessions that wait for speech cost little more than their
lattices.

However the frames are cut into pieces, the result is the same to the last bit: links
are pruned after every `prune_interval` frames, wherever the pieces end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from latflow.decode import passing, pruning, tokens, tracing
from latflow.decode.composed_graph import ComposedGraph
from latflow.decode.search_graph import PackedGraph
from latflow.errors import UserError
from latflow.jit import njit
from latflow.lattice.best_path import BestPath
from latflow.lattice.lattice import Lattice


class DeadEndError(UserError):
    """The search came to a frame where no token survived."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Result of a search.

    Attributes:
        lattice: with unscaled acoustic costs.
        reached_final: whether some path ends in a final state of the graph. If not, all
            states of the last frame are final at no cost: a partial result.
        mean_active: tokens followed per frame.
    """

    lattice: Lattice
    reached_final: bool
    mean_active: float


def make_lattice(
    graph: PackedGraph,
    store: tokens.Store,
    collected: tracing.Collected,
    *,
    reached_final: bool,
) -> Lattice:
    """Look the labels and costs of states and arcs up.

    Args:
        graph: the graph that was searched.
        store: what the search has left.
        collected: its states and arcs in order.
        reached_final: whether paths end in final states alone; else in all states, at
            no cost.

    Raises:
        DeadEndError: the search has left nothing.
    """
    frame, graph_state, arc_begin, next_state, link = collected
    if not len(frame):
        raise DeadEndError(
            "no path of finite cost through the decoding graph is left",
            remedy="make the graph again, or check the features of this utterance",
        )
    links = store.link[link]
    arcs = graph.packed.origin[links["arc"]]
    num_frames = int(frame[-1])
    end = graph.packed.final[graph_state] if reached_final else 0.0
    final = np.where(frame == num_frames, end, np.inf)
    final_acoustic = np.where(np.isfinite(final), 0.0, np.inf)
    return Lattice(
        arc_begin=arc_begin,
        next_state=next_state,
        transition_id=np.asarray(graph.graph.ilabel[arcs], np.int32),
        word=np.asarray(graph.graph.olabel[arcs], np.int32),
        graph_cost=np.asarray(graph.graph.weight[arcs], np.float32),
        acoustic_cost=np.ascontiguousarray(links["acoustic"]),
        final_graph_cost=final.astype(np.float32),
        final_acoustic_cost=final_acoustic.astype(np.float32),
        frame=frame,
        num_frames=num_frames,
    )


@dataclass(frozen=True, eq=False)
class Engine:
    """Graph, limits and memory that searches share; safe to use from many threads.

    Attributes:
        graph: the graph, whole or composed while it is searched.
        num_pdfs: pdfs that it has.
        limits: beams.
        lattice_beam: paths costing more than the best path plus this are dropped.
        prune_interval: frames between prunings.
        stores: those that no search holds.
    """

    graph: PackedGraph | ComposedGraph
    num_pdfs: int
    limits: passing.SearchLimits
    lattice_beam: float
    prune_interval: int
    stores: tokens.StorePool = field(default_factory=tokens.StorePool)
    _scratches: list[tokens.Scratch] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def current_graph(self) -> PackedGraph:
        """Return the graph for a search that begins now."""
        if isinstance(self.graph, PackedGraph):
            return self.graph
        with self._lock:
            return self.graph.current()

    @contextmanager
    def scratch(self) -> Iterator[list[tokens.Scratch]]:
        """Yield a scratch; in a list, since a larger one may replace it.

        Serials outlive a composed graph: none of the next one's tokens has them.
        """
        with self._lock:
            scratch_memory = self._scratches.pop() if self._scratches else None
        if scratch_memory is None:
            num_states = len(self.current_graph().packed.states) - 1
            scratch_memory = tokens.new_scratch(num_states)
        holder = [scratch_memory]
        try:
            yield holder
        except UserError:  # raised between two frames
            self._keep(holder[0])
            raise
        # What a failure has left half done (of memory, above all) is not kept: its
        # serials name tokens of no store, and searches to come would write there.
        self._keep(holder[0])

    def clear(self) -> None:
        """Release memory that no search holds."""
        self.stores.clear()
        with self._lock:
            self._scratches.clear()

    def _keep(self, scratch: tokens.Scratch) -> None:
        """Keep a scratch for the next search."""
        with self._lock:
            self._scratches.append(scratch)


class Session:
    """One search, fed piece by piece; for one thread at a time.

    `LatticeDecoder.session` makes it. Close it, or use it in a `with` statement, when
    `finalise` is not called: its store then serves the next session.

    Args:
        engine: the graph and what belongs to it.
        acoustic_scale: factor on the log-likelihoods in the search.
        utterance: named in errors.
        beam: instead of the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        acoustic_scale: float,
        utterance: str | None = None,
        beam: float | None = None,
    ) -> None:
        self._engine = engine
        self._limits = engine.limits
        if beam is not None:
            self._limits = engine.limits._replace(beam=float(beam))
        self._scale = float(acoustic_scale)
        self._utterance = utterance
        self._graph = engine.current_graph()
        self._tracer = tracing.PathTracer(self._graph)
        store = engine.stores.take()
        with engine.scratch() as holder:
            store, holder[0] = passing.begin(
                self._graph.packed, store, holder[0], self._limits
            )
        self._store: tokens.Store | None = store

    @property
    def num_frames(self) -> int:
        """Frames searched so far."""
        return int(self._open_store().counts[tokens.FRAMES])

    @property
    def num_bytes(self) -> int:
        """Bytes of the search so far; 0 once it is over."""
        return 0 if self._store is None else tokens.num_bytes(self._store)

    def limit(self, most: int) -> None:
        """Make the search raise MemoryError where it would take more bytes."""
        self._open_store().counts[tokens.MOST] = most

    def advance(self, log_likes: np.ndarray) -> None:
        """Search through the next frames.

        Args:
            log_likes: float32[T, P], natural log, P pdfs; -inf rules a pdf out. T may
                be 0.

        Raises:
            DeadEndError: no token survived some frame; names it.
            UserError: too few pdfs, or a frame with NaN or +inf or all -inf. The
                session stays unchanged.
        """
        store, engine = self._open_store(), self._engine
        rows = np.ascontiguousarray(log_likes, np.float32)
        self._check(rows)
        with self._dropping(), engine.scratch() as holder:
            done = 0
            while done < len(rows):
                frames = int(store.counts[tokens.FRAMES])
                due = int(store.counts[tokens.SETTLED]) + engine.prune_interval
                piece = rows[done : done + due - frames]
                store, holder[0] = passing.advance(
                    *(self._graph.packed, store, holder[0]),
                    *(self._limits, piece, self._scale),
                )
                self._store = store
                self._check_alive()
                done += len(piece)
                if frames + len(piece) == due:
                    pruning.prune(store, engine.lattice_beam)

    def best_path(self, *, use_final: bool = False) -> BestPath:
        """Return the best path through the frames so far.

        Args:
            use_final: as if the utterance ended here: only paths to final states
                count, with their final costs, if there are any.

        Raises:
            DeadEndError: no token survived the last frame.
        """
        self._check_alive()
        with self._dropping():
            return self._tracer.best_path(self._open_store(), use_final=use_final)

    def final_relative_cost(self) -> float:
        """Return what ending here costs more: best path to a final state less best.

        Inf if no final state is reached.

        Source: Kaldi `LatticeFasterDecoder::FinalRelativeCost`.
        """
        store, final = self._open_store(), self._graph.packed.final
        first = store.token_begin[store.counts[tokens.FRAMES]]
        cost = store.cost[first : store.counts[tokens.TOKENS]]
        if not len(cost):
            return np.inf
        at_end = cost + final[store.state[first : first + len(cost)]]
        return float(at_end.min() - cost.min())

    def finalise(self) -> Decoded:
        """End the utterance and the session; the same as decoding it at once.

        Raises:
            DeadEndError: no token survived some frame.
            UserError: there have been no frames.
        """
        store, packed = self._open_store(), self._graph.packed
        lattice_beam = self._engine.lattice_beam
        num_frames = self.num_frames
        if num_frames == 0:
            raise UserError(
                "no frames to decode",
                utterance=self._utterance,
                remedy="remove the utterance; it is shorter than one frame",
            )
        self._check_alive()
        with self._dropping():
            reached_final = pruning.finish(packed, store, lattice_beam)
            if packed.has_epsilon_cycle:
                tracing.break_cycles(packed, store)
                pruning.finish(packed, store, lattice_beam)
            lattice = make_lattice(
                self._graph,
                store,
                tracing.collect(packed, store),
                reached_final=reached_final,
            )
        expanded = float(store.counts[tokens.EXPANDED])
        self.close()
        return Decoded(lattice, reached_final, expanded / num_frames)

    def close(self) -> None:
        """Release what the session holds; no more calls after that but this one."""
        if self._store is not None:
            self._engine.stores.give(self._store)
            self._store = None

    def __enter__(self) -> Session:
        """Return the session itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """End the session where work on its store fails, and keep the store nowhere."""
        try:
            yield
        except UserError:
            raise
        except BaseException:
            self._store = None
            raise

    def _open_store(self) -> tokens.Store:
        """Return the store, as long as there is one."""
        if self._store is None:
            raise RuntimeError("this session is over: it was finalised or closed")
        return self._store

    def _check(self, log_likes: np.ndarray) -> None:
        """Refuse log-likelihoods that cannot be searched with."""
        num_pdfs = self._engine.num_pdfs
        if log_likes.ndim != 2 or log_likes.shape[1] < num_pdfs:
            raise UserError(
                f"log-likelihoods of shape {log_likes.shape}, where the decoding graph "
                f"has {num_pdfs} pdfs",
                utterance=self._utterance,
                remedy="use the model that the graph was made with",
            )
        frame, fault = _first_fault(log_likes)
        if frame >= 0:
            raise UserError(
                f"log-likelihoods at frame {self.num_frames + frame} {_FAULTS[fault]}",
                utterance=self._utterance,
                remedy="check the features and the model of this utterance",
            )

    def _check_alive(self) -> None:
        """Refuse to continue without tokens."""
        store = self._open_store()
        frame = int(store.counts[tokens.FRAMES])
        if store.token_begin[frame] == store.counts[tokens.TOKENS]:
            raise DeadEndError(
                f"no path through the decoding graph survives frame {frame - 1}",
                utterance=self._utterance,
                remedy="widen decode.beam, or check the features of this utterance",
            )


_FAULTS = ("hold NaN or +inf", "are all -inf")


@njit(cache=True, nogil=True)
def _first_fault(log_likes: np.ndarray) -> tuple[int, int]:
    """Return the first frame that is no good, or -1, and what is wrong with it."""
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
