"""Alignment with GMMs: mixtures are evaluated when a search asks for them.

A training graph is nearly a line, and the beam keeps a short piece of it alive, so that
a search meets a small part of the graph's pdfs in any one frame. Mixtures are therefore
evaluated when an arc first asks for them, for `WIDTH` frames at once: what is alive now
is most probably alive in the next frames too, and frames beside each other in memory
fill vector registers.

A *book* of scores is (log_likes float32[P, WIDTH], filled int64[P], powers float32[R,
WIDTH], scratch of the evaluation): the log-likelihoods of one tile of frames, by pdf;
the tile each row was filled for, -1 at first; 1, x and x^2 of the tile's frames as
columns, R = 1 + 2 D rounded up to a multiple of 4, zeros behind. It does not grow with
the utterance.

Public: `align_gmm` (stage), `align_split`, `align_source`, `MixtureScorer`,
`MixtureScores`.

Source: Kaldi `steps/align_si.sh`, `steps/align_fmllr.sh`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

from latflow.align.aligner import Aligner, Alignment, AlignmentFailure
from latflow.align.corpus import AlignmentSummary, Split, align_all
from latflow.align.graphs import Graphs, TrainingGraphs
from latflow.align.options import AlignOptions
from latflow.align.viterbi import frame_scores
from latflow.features.frames import FrameStore
from latflow.fst.graph import Graph
from latflow.gmm.adaptation import (
    SPEAKER_TRANSFORMS,
    FmllrAccumulator,
    adapt_to_alignments,
)
from latflow.gmm.kernels import log_sum_exp_tile
from latflow.gmm.model import AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.options import AlignAdaptedOptions
from latflow.gmm.source import FrameSource
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.logs import progress
from latflow.parallel import worker_pool
from latflow.parts import utterances_of

WIDTH = 32  # frames of a tile; 16 and 64 were measured to be as fast


class MixtureScores(NamedTuple):
    """Scores of an utterance, for one search at a time (`latflow.align.aligner`).

    Attributes:
        frames: float32[T, D].
        mixtures: (begin int64[P + 1], factors float32[G, R], see `padded_factors`).
        book: see above.
    """

    frames: np.ndarray
    mixtures: tuple[np.ndarray, np.ndarray]
    book: Any

    @property
    def shape(self) -> tuple[int, int]:
        """T, P."""
        return len(self.frames), len(self.mixtures[0]) - 1


class MixtureScorer:
    """Gives the scores of utterances; safe to use from several threads."""

    def __init__(self, gmms: DiagGmms) -> None:
        self._gmms = gmms
        self._mixtures = (gmms.begin.astype(np.int64), padded_factors(gmms.factors))

    def scores(self, frames: np.ndarray) -> MixtureScores | str:
        """Return the scores of frames, or the reason why there are none.

        Args:
            frames: float32[T, D].

        Raises:
            UserError: the frames have another dimension than the mixtures.
        """
        self._gmms.check_dim(frames.shape[1])
        if not np.isfinite(frames).all():
            return "features that are not finite"
        x = np.ascontiguousarray(frames, np.float32)
        return MixtureScores(x, self._mixtures, new_book(self._mixtures))


@overload(frame_scores, inline="always")
def _mixture_scores(scores, t, live):  # noqa: ARG001
    """Evaluate what the live states emit."""
    if getattr(scores, "instance_class", None) is not MixtureScores:
        return None

    def row(scores, t, live):
        frames, mixtures, book = scores
        if t % WIDTH == 0:
            open_tile(book, frames, t)
        _fill_needed(live, book, t // WIDTH, mixtures)
        return book[0][:, t % WIDTH]

    return row


def align_source(
    model: AcousticModel,
    source: FrameSource,
    graph_of: Callable[[int], Graph | str],
    options: AlignOptions,
    scales: GraphOptions,
    silence_phones: Sequence[int],
    pool: Executor,
) -> Iterator[Alignment | AlignmentFailure]:
    """Yield the alignments of all utterances of a source, in order.

    Args:
        graph_of: gives the training graph of an utterance, or the reason why it has
            none.
        scales: of the transition probabilities.
        silence_phones: phones that `boost_silence` applies to.

    Raises:
        UserError: the frames have another dimension than the model.
    """
    model.gmms.check_dim(source.dim)
    scorer = MixtureScorer(model.gmms)
    aligner = Aligner(model.transitions, options, scales, silence_phones=silence_phones)
    return align_all(
        aligner,
        len(source),
        graph_of,
        lambda u: scorer.scores(source.frames(u)),
        pool,
    )


def padded_factors(factors: np.ndarray) -> np.ndarray:
    """Return factors of [1, x, x^2], float32[G, 1 + 2 D], as float32[G, R]."""
    return np.pad(factors, ((0, 0), (0, -factors.shape[1] % 4)))


@njit(cache=True, nogil=True)
def new_book(mixtures):
    """Return an empty book for mixtures (begin int64[P + 1], factors float32[G, R])."""
    begin, factors = mixtures
    num_pdfs, widest = len(begin) - 1, (begin[1:] - begin[:-1]).max()
    powers = np.zeros((factors.shape[1], WIDTH), np.float32)
    powers[0] = 1
    return (
        np.empty((num_pdfs, WIDTH), np.float32),
        np.full(num_pdfs, -1),
        powers,
        (
            np.empty((widest + 1, WIDTH), np.float32),
            np.empty((3, WIDTH), np.float32),
            np.empty(WIDTH, np.int32),
        ),
    )


@njit(cache=True, nogil=True)
def open_tile(book, x, first):
    """Lay out frames first ... first + WIDTH - 1 of x, or as many as there are.

    Args:
        book: changed; columns behind the last frame keep what they held.
        x: float32[T, D].
        first: the tile's first frame.
    """
    powers = book[2]
    dim = x.shape[1]
    for i in range(min(WIDTH, len(x) - first)):
        for d in range(dim):
            value = x[first + i, d]
            powers[1 + d, i] = value
            powers[1 + dim + d, i] = value * value


@njit(cache=True, nogil=True)
def _fill_needed(live, book, tile, mixtures):
    """Evaluate what the arcs of the live states emit, where that is not yet done."""
    arcs, states, cost, cutoff = live
    arc_begin, pdf = arcs[0], arcs[1]
    filled = book[1]
    for i in range(len(states)):
        if cost[i] > cutoff:
            continue
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            emitted = pdf[arc]
            if emitted >= 0 and filled[emitted] != tile:
                fill(book, tile, mixtures, emitted)


# Contraction alone of the fast-math rules: a product and its sum are rounded once.
@njit(cache=True, nogil=True, fastmath={"contract"})
def fill(book, tile, mixtures, pdf):
    """Evaluate one mixture on the open tile.

    Args:
        book: see above; its row of the pdf is written.
        tile: number of the open tile.
        mixtures: (begin int64[P + 1], factors float32[G, R], see `padded_factors`).
    """
    begin, factors = mixtures
    log_likes, filled, powers, (scores, sums, bits) = book
    first, count = begin[pdf], begin[pdf + 1] - begin[pdf]
    # Two Gaussians (of an odd number the last one twice) and four rows at a time: an
    # entry of `powers` is loaded half as often, a sum a quarter as often.
    for k in range(0, count, 2):
        g, h = first + k, first + min(k + 1, count - 1)
        scores[k : k + 2] = 0
        for r in range(0, len(powers), 4):
            g0, g1, g2, g3 = _four(factors, g, r)
            h0, h1, h2, h3 = _four(factors, h, r)
            for i in range(WIDTH):
                p0, p1 = powers[r, i], powers[r + 1, i]
                p2, p3 = powers[r + 2, i], powers[r + 3, i]
                scores[k, i] += (g0 * p0 + g1 * p1) + (g2 * p2 + g3 * p3)
                scores[k + 1, i] += (h0 * p0 + h1 * p1) + (h2 * p2 + h3 * p3)
    top, total, log_total = sums[0], sums[1], sums[2]
    log_sum_exp_tile(scores[:count], top, total, log_total, bits, WIDTH)
    for i in range(WIDTH):
        log_likes[pdf, i] = top[i] + log_total[i]
    filled[pdf] = tile


@njit(cache=True, nogil=True, inline="always")
def _four(factors, g, r):
    """Return four factors of a Gaussian."""
    return factors[g, r], factors[g, r + 1], factors[g, r + 2], factors[g, r + 3]


def align_gmm(
    frames_dir: Path,
    lang_dir: Path,
    model_dir: Path,
    out_dir: Path,
    *,
    options: AlignAdaptedOptions,
    graph: GraphOptions,
    threads: int,
    max_skipped_fraction: float,
    part: str | None = None,
) -> None:
    """Align all utterances of a split with a GMM system (stage).

    A system that adapts to speakers aligns twice: with its alignment model on
    unadapted features, which gives each speaker a transform; and with its model on
    features after it. Then `trans.ark` has the transforms by speaker.

    Args:
        frames_dir: the `FrameStore` of the split.
        options: of the search; `fmllr` is of systems that adapt to speakers.
        graph: scales of the transition probabilities.
        max_skipped_fraction: share of the utterances of the split that may fail.
        part: the part of the split to align (`latflow.parts`), which keeps speakers
            together if the system adapts to them; None for all of it.

    Raises:
        UserError: model, language and frames do not fit, or too many utterances fail.
    """
    system, store = GmmSystem.load(model_dir), FrameStore.load(frames_dir)
    split = Split(
        Lang.load(lang_dir),
        model_dir.name,
        out_dir,
        len(store),
        max_skipped_fraction,
        store.frame_shift,
    )
    align_split(
        system, store, split, options=options, graph=graph, threads=threads, part=part
    )


def align_split(
    system: GmmSystem,
    store: FrameStore,
    split: Split,
    *,
    options: AlignAdaptedOptions,
    graph: GraphOptions,
    threads: int,
    part: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Align the utterances of a store, see `align_gmm`.

    Args:
        system: aligns.
        store: the frames that `system.transform` is for.
        split: gets the results.
        facts: further keys of the statistics.

    Raises:
        UserError: as `align_gmm`.
    """
    transitions, words = system.model.transitions, split.lang.words_to_ids
    compiler = TrainingGraphCompiler(split.lang, system.tree, transitions)
    together = store.speaker_codes if system.is_speaker_adapted else None
    utterances = utterances_of(part, store.begin, together)
    # Every utterance is needed once in a pass, so nothing is kept.
    source = FrameSource(store, system.transform, utterances, cache_bytes=0)

    def align(
        model: AcousticModel, source: FrameSource, graphs: Graphs, pool: Executor
    ) -> Iterator[Alignment | AlignmentFailure]:
        return align_source(
            model,
            source,
            lambda u: graphs(words(source.text(u))),
            options,
            graph,
            [split.lang.optional_silence],
            pool,
        )

    out_dir, known = split.out_dir, dict(facts or {})
    out_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".tmp.", dir=out_dir) as scratch,
        worker_pool(threads) as pool,
    ):
        graphs = compiler.graph_or_reason
        if system.is_speaker_adapted:
            texts = (words(source.text(u)) for u in range(len(source)))
            graphs = TrainingGraphs.write(
                Path(scratch, "graphs"), texts, compiler, threads=threads
            ).get
            first = align(system.alignment_model, source, graphs, pool)
            progressing = progress(first, "align unadapted", len(source))
            adaptation = adapt_to_alignments(
                source,
                (
                    (u, found.transition_ids if isinstance(found, Alignment) else None)
                    for u, found in enumerate(progressing)
                ),
                FmllrAccumulator.of(
                    system.alignment_model,
                    split.lang.silence_phones,
                    options.fmllr.silence_weight,
                    target=system.model.gmms,
                ),
                options.fmllr,
                pool,
                what="first alignment",
            )
            adaptation.transforms.save(out_dir / SPEAKER_TRANSFORMS)
            source = source.with_speaker_transforms(adaptation.transforms)
            if part is None:
                known["adaptation"] = adaptation.as_dict()
            else:  # those of the whole are made of these
                known["gains"] = adaptation.gains
        alignments = align(system.model, source, graphs, pool)
        names = [source.utt_id(u) for u in range(len(source))]
        named = zip(names, alignments, strict=True)
        split.write(named, AlignmentSummary(options), transitions, known)
