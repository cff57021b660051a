"""The lattice decoder: log-likelihoods in, raw lattices out.

A Viterbi beam search over a decoding graph that keeps, at each frame, all ways whose
cost is within the lattice beam of the best path. One decoder serves many threads and
many utterances at a time: the packed graph is shared, each search has a store of its
own from a pool.

Public: `LatticeDecoder`.

Source: Kaldi `decoder/lattice-faster-decoder.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from latflow.decode.decoded import DeadEndError, Decoded
from latflow.decode.passing import SearchLimits
from latflow.decode.search_graph import (
    ArcArrays,
    GraphFile,
    make_search_graph,
    mapped_search_graph,
)
from latflow.decode.streaming import Engine, Session
from latflow.errors import UserError

__all__ = ["DeadEndError", "Decoded", "LatticeDecoder"]


class LatticeDecoder:
    """Decodes utterances with one graph; may be called from many threads at once.

    Args:
        graph: arcs with transition-ids as input labels and words as output labels. A
            `GraphFile` is packed into a file that all processes share; another graph
            is packed in memory.
        tid_to_pdf: int32[I + 1], pdf of each transition-id.
        beam: tokens costing more than the best of their frame plus this are dropped.
        lattice_beam: ways costing more than the best path plus this are dropped.
        max_active: most tokens followed per frame.
        min_active: least tokens followed per frame, even outside the beam.
        beam_delta: added to a beam that max_active or min_active has changed.
        prune_interval: frames between prunings; bounds memory, changes no result.
            Fewer take less memory and more time.

    Raises:
        UserError: the graph and the model do not fit, or a beam is not positive.
    """

    def __init__(
        self,
        graph: ArcArrays | GraphFile,
        tid_to_pdf: np.ndarray,
        *,
        beam: float = 13.0,
        lattice_beam: float = 6.0,
        max_active: int = 7000,
        min_active: int = 200,
        beam_delta: float = 0.5,
        prune_interval: int = 100,
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
        if isinstance(graph, GraphFile):
            packed = mapped_search_graph(graph.graph, tid_to_pdf, graph.path)
            graph = graph.graph
        else:
            packed = make_search_graph(graph, tid_to_pdf)
        self.num_pdfs = int(packed.arcs["pdf"].max(initial=0)) + 1
        self._engine = Engine(
            graph,
            packed,
            self.num_pdfs,
            SearchLimits(
                float(beam), int(max_active), int(min_active), float(beam_delta)
            ),
            float(lattice_beam),
            prune_interval,
        )

    @property
    def beam(self) -> float:
        """The beam that is used where a call names none."""
        return self._engine.limits.beam

    def session(
        self,
        *,
        acoustic_scale: float,
        utterance: str | None = None,
        beam: float | None = None,
    ) -> Session:
        """Begin an utterance whose frames come piece by piece.

        Any number of sessions may be open, and advance in different threads.

        Args:
            acoustic_scale: factor on the log-likelihoods in the search.
            utterance: named in errors.
            beam: instead of the decoder's.
        """
        return Session(
            self._engine, acoustic_scale=acoustic_scale, utterance=utterance, beam=beam
        )

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
        with self.session(
            acoustic_scale=acoustic_scale, utterance=utterance, beam=beam
        ) as session:
            for chunk in chunks:
                session.advance(chunk)
            return session.finalise()
