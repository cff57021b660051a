"""Alignment with GMMs: mixtures are evaluated when a search asks for them.

A training graph is nearly a line, and the beam keeps a short piece of it alive, so that
a search meets a small part of the graph's pdfs in any one frame. Mixtures are therefore
evaluated when an arc first asks for them, for `WIDTH` frames at once: what is alive now
is most probably alive in the next frames too, and frames beside each other in memory
fill vector registers.

A *book* of scores is (log_likes float32[P, WIDTH], filled int64[P], tile): the
log-likelihoods of one tile of frames, by pdf; the tile each row was filled for, -1 at
first; and the frames themselves (`latflow.gmm.kernels.new_tile`), where columns behind
the last frame keep what they held. It does not grow with the utterance.

Source: Kaldi `steps/align_si.sh`, `steps/align_fmllr.sh`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
from latflow.gmm.kernels import new_tile, open_tile, score_mixture
from latflow.gmm.model import AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.options import AlignAdaptedOptions
from latflow.gmm.source import FrameSource
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.jit import njit
from latflow.lang.directory import Lang
from latflow.logs import progress
from latflow.parallel import worker_pool
from latflow.parts import SetJob, utterances_of

WIDTH = 32  # frames of a tile; 16 and 64 were measured to be as fast


class MixtureScores(NamedTuple):
    """Scores of an utterance, for one search at a time (`latflow.align.aligner`).

    Attributes:
        frames: float32[T, D].
        mixtures: (begin int64[P + 1], factors float32[G, R]).
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
        self._mixtures = gmms.mixtures

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
            open_tile(book[2], frames, t, min(WIDTH, len(frames) - t))
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
        range(len(source)),
        graph_of,
        lambda u: scorer.scores(source.frames(u)),
        pool,
    )


@njit(cache=True, nogil=True)
def new_book(mixtures):
    """Return an empty book for mixtures (begin int64[P + 1], factors float32[G, R])."""
    begin, factors = mixtures
    num_pdfs, widest = len(begin) - 1, (begin[1:] - begin[:-1]).max()
    return (
        np.empty((num_pdfs, WIDTH), np.float32),
        np.full(num_pdfs, -1),
        new_tile(factors.shape[1], WIDTH, widest),
    )


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
                score_mixture(book[2], mixtures, emitted, WIDTH, book[0][emitted])
                filled[emitted] = tile


def align_gmm(
    job: SetJob, *, options: AlignAdaptedOptions, graph: GraphOptions
) -> None:
    """Align all utterances of a split with a GMM system (stage).

    A system that adapts to speakers aligns twice: with its alignment model on
    unadapted features, which gives each speaker a transform; and with its model on
    features after it. Then `trans.ark` has the transforms by speaker.

    Args:
        job: the set, a `FrameStore`, and the system; parts keep speakers together if it
            adapts to them.
        options: of the search; `fmllr` is of systems that adapt to speakers.
        graph: scales of the transition probabilities.

    Raises:
        UserError: model, language and frames do not fit, or too many utterances fail.
    """
    system, store = GmmSystem.load(job.model_dir), FrameStore.load(job.frames_dir)
    split = Split(
        Lang.load(job.lang_dir),
        job.model_dir.name,
        job.out_dir,
        len(store),
        job.max_skipped_fraction,
        store.frame_shift,
    )
    align_split(
        system,
        store,
        split,
        options=options,
        graph=graph,
        threads=job.threads,
        part=job.part,
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
