"""The lattice decoder: log-likelihoods in, raw lattices out.

A Viterbi beam search over a decoding graph that keeps, at each frame, all paths whose
cost is within the lattice beam of the best one. One decoder serves many threads and
many utterances at a time: the packed graph is shared, each search has its own store
from a pool; kernels release the interpreter's lock.

A search can die (no token survives) or end in no final state of the graph; a wider beam
often mends both. A `RetryPolicy` says which beams are tried and whether a lattice of
incomplete paths is taken in the end; an `Attempt` says what became of it.

Source: Kaldi `decoder/lattice-faster-decoder.cc`, `decoder/decoder-wrappers.cc`
(`DecodeUtteranceLatticeFaster`, `--allow-partial`) and the retry beam of
`gmmbin/gmm-align-compiled.cc`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from latflow.decode.composed_graph import ComposedGraph, GraphParts, SessionParts
from latflow.decode.options import SearchOptions
from latflow.decode.passing import SearchLimits
from latflow.decode.search_graph import (
    ArcArrays,
    GraphFile,
    PackedGraph,
    make_search_graph,
    mapped_search_graph,
)
from latflow.decode.streaming import Decoded, Engine, Session
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.transducer import HmmCache
from latflow.lang.directory import Lang
from latflow.lang.lexicon import SENTENCE_END
from latflow.parallel import worker_pool

_MAPPED_BYTES = 64 << 20  # graphs above this are packed to a file that processes share

DecodingGraph = ArcArrays | GraphFile | GraphParts


@dataclass(frozen=True, eq=False)
class Attempt:
    """Result of the searches for one utterance.

    Attributes:
        decoded: the lattice, or None.
        error: why there is none.
        beam: the last beam tried.
        num_tries: searches made.
    """

    decoded: Decoded | None
    error: UserError | None
    beam: float
    num_tries: int

    @property
    def was_retried(self) -> bool:
        """Return whether more than one search was made."""
        return self.num_tries > 1

    @property
    def is_partial(self) -> bool:
        """Return whether there is a lattice, of incomplete paths."""
        return self.decoded is not None and not self.decoded.reached_final


@dataclass(frozen=True)
class RetryPolicy:
    """Beams to try in turn, and the lattice to take.

    Attributes:
        beams: tried in order until a search ends in a final state.
        allow_partial: take the last lattice even if no search did.
    """

    beams: tuple[float, ...]
    allow_partial: bool = True

    def __post_init__(self) -> None:
        """Refuse a policy that cannot be followed.

        Raises:
            UserError: no beams, one that is not positive, or one that is no wider than
                the one before.
        """
        wider = all(a < b for a, b in zip(self.beams, self.beams[1:], strict=False))
        if not self.beams or self.beams[0] <= 0 or not wider:
            raise UserError(
                f"beams {list(self.beams)} for a search and its repetitions",
                remedy="name at least one; positive, each wider than the one before",
            )

    @classmethod
    def from_options(
        cls, options: SearchOptions, beam: float | None = None
    ) -> RetryPolicy:
        """Return the policy of a search, with another first beam if one is given."""
        first = options.beam if beam is None else float(beam)
        if options.on_no_final == "retry":
            return cls((first, first * options.retry_beam_factor))
        return cls((first,), allow_partial=options.on_no_final == "partial")

    def run(
        self, search: Callable[[float], Decoded], *, utterance: str | None = None
    ) -> Attempt:
        """Search with one beam after the other.

        If every search dies, or only incomplete paths are found and these are not
        allowed, the attempt holds an error. A lattice of incomplete paths from a
        narrow beam is kept if the search with a wider one dies.

        Args:
            search: decodes the utterance with the given beam.
            utterance: named in errors.
        """
        decoded: Decoded | None = None
        error: UserError | None = None
        beam, num_tries = self.beams[0], 0
        for beam in self.beams:
            num_tries += 1
            try:
                decoded = search(beam)
            except UserError as failure:
                error = failure
                continue
            if decoded.reached_final:
                return Attempt(decoded, None, beam, num_tries)
        if decoded is not None and self.allow_partial:
            return Attempt(decoded, None, beam, num_tries)
        if decoded is not None:
            error = UserError(
                f"no final state of the graph is reached within beam {beam:g}",
                utterance=utterance,
                remedy="widen decode.beam, or set decode.on_no_final to retry",
            )
        return Attempt(None, error, beam, num_tries)


class LatticeDecoder:
    """Decodes utterances with one graph; may be called from many threads at once.

    Args:
        graph: arcs with transition-ids as input labels and words as output labels. A
            `GraphFile` is packed into a file that all processes share; another graph
            is packed in memory; `GraphParts` are composed while they are searched, and
            may get words where they have a model.
        tid_to_pdf: int32[I + 1], pdf of each transition-id.
        beam: tokens costing more than the best of their frame plus this are dropped.
        lattice_beam: paths costing more than the best path plus this are dropped.
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
        graph: DecodingGraph,
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
        searched, self.num_pdfs = _searched(graph, tid_to_pdf)
        self._engine = Engine(
            searched,
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

    @property
    def is_composing(self) -> bool:
        """Ability to search with parts of a session's own."""
        return isinstance(self._engine.graph, ComposedGraph)

    @property
    def composed(self) -> ComposedGraph:
        """The graph, where it is composed while searching."""
        graph = self._engine.graph
        assert isinstance(graph, ComposedGraph), "made of a whole graph"
        return graph

    def with_parts(self, own: SessionParts, hmms: HmmCache | None) -> LatticeDecoder:
        """Return the decoder for a session, see `ComposedGraph.with_parts`.

        Raises:
            UserError: as there.
        """
        graph = self._engine.graph
        assert isinstance(graph, ComposedGraph), "made of a whole graph"
        decoder = copy(self)
        decoder._engine = Engine(
            graph.with_parts(own, hmms),
            self.num_pdfs,
            self._engine.limits,
            self._engine.lattice_beam,
            self._engine.prune_interval,
        )
        return decoder

    def free(self) -> None:
        """Release memory that is kept for searches to come."""
        self._engine.clear()

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


def load_graph(path: str | Path, lang: Lang) -> DecodingGraph:
    """Read a decoding graph, whole or in two parts (HCL and, behind it, G).

    Args:
        path: its file. Beside a large whole one a packed file is kept, which processes
            share, where the folder can be written to.
        lang: the language that it must be of.

    Raises:
        UserError: the file is missing or garbled, or has words that the language lacks.
    """
    graph, *grammar = Graph.load_all(path)
    if (lowest := int(np.min(graph.olabel, initial=0))) < 0:
        raise UserError(
            f"the graph has word {lowest}", file=path, remedy="make the graph again"
        )
    if (highest := int(np.max(graph.olabel, initial=0))) > max(lang.words):
        raise UserError(
            f"the graph has word {highest}, which words.txt of {lang.folder} lacks",
            file=path,
            remedy="make the graph again from this lang directory",
        )
    if grammar:
        end = lang.word_ids.get(SENTENCE_END, 0)
        return GraphParts.of(graph, grammar[0], path, sentence_end=end)
    is_large = Path(path).stat().st_size > _MAPPED_BYTES
    if is_large and os.access(Path(path).parent, os.W_OK):
        return GraphFile(graph, path)
    return graph


def _searched(
    graph: DecodingGraph, tid_to_pdf: np.ndarray
) -> tuple[PackedGraph | ComposedGraph, int]:
    """Return a graph as searches take it, and the number of its pdfs."""
    if isinstance(graph, GraphParts):
        composed = ComposedGraph(graph, tid_to_pdf)
        return composed, composed.num_pdfs
    if isinstance(graph, GraphFile):
        packed = mapped_search_graph(graph.graph, tid_to_pdf, graph.path)
        graph = graph.graph
    else:
        packed = make_search_graph(graph, tid_to_pdf)
    return PackedGraph(graph, packed), int(packed.arcs["pdf"].max(initial=0)) + 1


Item = tuple[str | None, np.ndarray]


def decode_batch(
    decoder: LatticeDecoder,
    log_likes: Sequence[np.ndarray],
    *,
    acoustic_scale: float,
    threads: int = 1,
    pool: Executor | None = None,
    utterances: Sequence[str] | None = None,
) -> list[Decoded | UserError]:
    """Decode a batch.

    Args:
        decoder: of all.
        log_likes: float32[T_i, P] each.
        acoustic_scale: factor on them.
        threads: how many to use, if there is no pool.
        pool: threads to use; with batch after batch, keep one.
        utterances: names for errors; the numbers in the batch if there are none.

    Returns:
        For each, what `LatticeDecoder.decode` returns or raises.
    """
    policy = RetryPolicy((decoder.beam,))
    names = utterances or [f"utterance {i} of the batch" for i in range(len(log_likes))]
    work = partial(_attempt, decoder, policy, acoustic_scale)
    items = list(zip(names, log_likes, strict=True))
    if pool is not None:
        return [_outcome(attempt) for attempt in pool.map(work, items)]
    with worker_pool(threads) as own:
        return [_outcome(attempt) for attempt in own.map(work, items)]


def _attempt(
    decoder: LatticeDecoder, policy: RetryPolicy, acoustic_scale: float, item: Item
) -> Attempt:
    """Decode one utterance by the policy."""
    name, log_likes = item

    def search(beam: float) -> Decoded:
        return decoder.decode(
            log_likes, acoustic_scale=acoustic_scale, utterance=name, beam=beam
        )

    return policy.run(search, utterance=name)


def _outcome(attempt: Attempt) -> Decoded | UserError:
    """Return the lattice, or the error in its place."""
    outcome = attempt.decoded or attempt.error
    assert outcome is not None
    return outcome
