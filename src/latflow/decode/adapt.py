"""The stage `decode_adapted`: decoding in passes that adapt to each speaker.

1. A first, narrow search with the system's alignment model on unadapted features. The
   posteriors of its lattices give each speaker an fMLLR transform.
2. The main search with the adapted model on features after it. The posteriors of its
   lattices give a second transform, on top of the first.
3. The main lattices are scored again on features after both, and pruned.

Lattices are determinized before posteriors are taken, so that each word sequence has
its best alignment only. The main lattices lie in a scratch file between the passes;
what is in memory is a few utterances and the statistics of the speakers under way.

Written files, as by `latflow.decode.lattices`:

* `lattices.ark`: raw lattices, Kaldi's binary form, acoustic costs unscaled;
* `trans.ark`: the transforms by speaker, both as one;
* `ledger.jsonl`: utterances skipped, searched twice, or without a complete path;
* `decode.json`: sizes and times of the main search, what adaptation did, and times of
  the other passes.

Source: Kaldi `steps/decode_fmllr.sh`, `gmmbin/gmm-rescore-lattice.cc`.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from latflow.archive_sizes import Entries
from latflow.decode.decoder import RetryPolicy
from latflow.decode.lattices import write_result
from latflow.decode.options import AdaptOptions, SearchOptions
from latflow.decode.recognizer import Recognizer, Result
from latflow.decode.scorers import GmmScorer
from latflow.decode.totals import Totals, write_summary
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.gmm.adaptation import (
    SPEAKER_TRANSFORMS,
    WAITING,
    Adaptation,
    FmllrAccumulator,
    SpeakerEstimates,
)
from latflow.gmm.fmllr import FmllrStatistics
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.lang.directory import Lang
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import LatticeWriter, read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import FramePosteriors, posteriors
from latflow.lattice.prune import prune
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.parts import SetJob, utterances_of

log = logging.getLogger(__name__)


def decode_adapted(
    job: SetJob, graph: Path, *, options: SearchOptions, adapt: AdaptOptions
) -> None:
    """Decode all utterances of a frame store, adapted to each speaker.

    Args:
        job: the set, a `FrameStore`, and the system; of one without an alignment model
            the model itself makes the first search. Parts keep speakers together.
        graph: `HCLG.fst`.
        options: of the main search.
        adapt: of the other passes.

    Raises:
        UserError: graph, model, features and words do not fit; an utterance reaches no
            final state in the main search and `on_no_final` is `fail`; more utterances
            than allowed are skipped.
    """
    started = time.perf_counter()
    store = FrameStore.load(job.frames_dir)
    utterances = utterances_of(job.part, store.begin, store.speaker_codes).tolist()
    system, lang = GmmSystem.load(job.model_dir), Lang.load(job.lang_dir)
    job.out_dir.mkdir(parents=True, exist_ok=True)
    with (
        worker_pool(job.threads) as pool,
        tempfile.TemporaryDirectory(prefix=".tmp.", dir=job.out_dir) as scratch,
    ):
        ledger, totals = Ledger("decode"), Totals(store.frame_shift, job.threads)
        passes = _Passes(store, utterances, system, lang, options, adapt, pool, ledger)
        first = passes.first(graph)
        plain = passes.recognizer(graph, system, options)
        main = adapted(plain, first.transforms)
        raw = Path(scratch) / "lattices.ark"
        second = passes.main(main, raw, totals)
        ledger.write(job.out_dir / "ledger.jsonl")
        # A part alone ends the run where it has too many for the whole split.
        ledger.check(len(store), max_skipped_fraction=job.max_skipped_fraction)
        transforms = second.transforms.after(first.transforms)
        transforms.save(job.out_dir / SPEAKER_TRANSFORMS)
        rescorer = adapted(plain, transforms)
        entries = passes.rescore(rescorer, raw, job.out_dir / "lattices.ark")
    totals.wall_seconds = time.perf_counter() - started
    rounds = [first, second]
    if job.part is None:
        facts = {
            "adaptation": [one.as_dict() for one in rounds],
            "other_cpu_seconds": passes.seconds,
        }
        write_summary(job.out_dir, job.part, totals, options, facts, lattices=entries)
    else:
        to_join = {"gains": [one.gains for one in rounds], "seconds": passes.seconds}
        write_summary(
            job.out_dir, job.part, totals, options, {}, to_join, lattices=entries
        )


@dataclass(frozen=True, eq=False)
class _Adapted:
    """Result of a search, and the statistics that it gives of the speaker.

    Attributes:
        result: of the search.
        statistics: of the utterance, or None.
        reason: why there are none though there is a lattice.
        seconds: processor time of the statistics.
    """

    result: Result
    statistics: FmllrStatistics | None = None
    reason: str = ""
    seconds: float = 0.0


class _Passes:
    """The passes over utterances of a set.

    Attributes:
        seconds: processor time other than the main search, by what it was for.
    """

    def __init__(
        self,
        store: FrameStore,
        utterances: Sequence[int],
        system: GmmSystem,
        lang: Lang,
        options: SearchOptions,
        adapt: AdaptOptions,
        pool: Executor,
        ledger: Ledger,
    ) -> None:
        self._store, self._system, self._lang = store, system, lang
        self._utterances = utterances
        self._options, self._pool, self._ledger = options, pool, ledger
        self._adapt_options = adapt
        self.seconds = {"first_search": 0.0, "adaptation": 0.0, "rescoring": 0.0}

    def recognizer(
        self, graph: str | Path, system: GmmSystem, options: SearchOptions
    ) -> Recognizer[GmmScorer]:
        """Return what decodes with the model of a system."""
        scorer = GmmScorer.of(self._store, system)
        made = Recognizer.load(scorer, graph, self._lang, options)
        made.warm_up()
        return made

    def first(self, graph: str | Path) -> Adaptation:
        """Search with the alignment model, and estimate the first transforms.

        An utterance that comes to no end here says nothing of its speaker; the main
        search has its own try.
        """
        adapt = self._adapt_options
        alignment_model = self._system.alignment_model
        options = self._options.replace(
            beam=adapt.first_beam,
            lattice_beam=adapt.first_lattice_beam,
            max_active=adapt.first_max_active,
            min_active=min(self._options.min_active, adapt.first_max_active),
        )
        unadapted = replace(self._system, model=alignment_model)
        recognizer = replace(
            self.recognizer(graph, unadapted, options),
            policy=RetryPolicy((adapt.first_beam,)),
        )
        work = self._search(
            recognizer,
            FmllrAccumulator.of(
                alignment_model,
                self._lang.silence_phones,
                adapt.silence_weight,
                target=self._system.model.gmms,
            ),
            adapt.first_lattice_beam,
        )

        def count(decoded: _Adapted) -> None:
            result = decoded.result
            self.seconds["first_search"] += result.log_like_seconds
            self.seconds["first_search"] += result.search_seconds

        return self._adapt(work, count, "first search")

    def main(
        self, recognizer: Recognizer[GmmScorer], raw: Path, totals: Totals
    ) -> Adaptation:
        """Search with the adapted model, write lattices, estimate on top of the first.

        Args:
            recognizer: with the first transforms.
            raw: where the lattices go.
            totals: gets sizes and times.
        """
        adapt = self._adapt_options
        accumulator = FmllrAccumulator.of(
            recognizer.scorer.model, self._lang.silence_phones, adapt.silence_weight
        )
        work = self._search(recognizer, accumulator, adapt.second_lattice_beam)
        with LatticeWriter.open(raw) as writer:

            def write(decoded: _Adapted) -> None:
                write_result(
                    decoded.result, self._options, writer, self._ledger, totals
                )

            return self._adapt(work, write, "main search")

    def rescore(
        self, recognizer: Recognizer[GmmScorer], raw: Path, path: Path
    ) -> Entries:
        """Score lattices again on features after all transforms, and prune them.

        Args:
            recognizer: with the composed transforms.
            raw: the lattices of the main search.
            path: where the lattices go.

        Returns:
            What has been written.
        """
        index_of = {utterance: i for i, utterance in enumerate(self._store.utt_ids)}
        scale = self._options.acoustic_scale

        def do(item: tuple[str, Lattice]) -> tuple[str, Lattice, float]:
            begun = time.thread_time()
            utterance, lattice = item
            frames = recognizer.scorer.frames(index_of[utterance])
            new = score_frames(lattice, frames, recognizer)
            pruned = prune(new, self._options.lattice_beam, acoustic_scale=scale)
            return utterance, pruned, time.thread_time() - begun

        with LatticeWriter.open(path) as writer:
            items = progress(read_lattices(raw), "rescore")
            found = in_order(self._pool, do, items, ahead=WAITING)
            for utterance, lattice, seconds in found:
                writer.write(utterance, lattice)
                self.seconds["rescoring"] += seconds
        return writer.entries

    def _search(
        self,
        recognizer: Recognizer[GmmScorer],
        accumulator: FmllrAccumulator,
        beam: float,
    ) -> Callable[[int], _Adapted]:
        """Return a function that decodes an utterance and makes statistics of it."""
        scale = self._options.acoustic_scale

        def do(index: int) -> _Adapted:
            result = recognizer.decode_utterance(index)
            if result.decoded is None:
                return _Adapted(result)
            begun = time.thread_time()
            try:
                weights = word_posteriors(
                    result.decoded.lattice,
                    beam,
                    scale,
                    note=partial(log.warning, "%s: %s", result.utterance),
                )
            except UserError as error:
                return _Adapted(result, reason=error.what)
            statistics = accumulator.statistics(
                recognizer.scorer.frames(index), weights
            )
            seconds = time.thread_time() - begun
            return _Adapted(result, statistics, seconds=seconds)

        return do

    def _adapt(
        self,
        work: Callable[[int], _Adapted],
        take: Callable[[_Adapted], None],
        what: str,
    ) -> Adaptation:
        """Go through all utterances, and estimate the transforms of their speakers."""
        utterances = self._utterances
        speakers = [self._store.speakers[u] for u in utterances]
        estimates = SpeakerEstimates(speakers, self._adapt_options, self._pool)
        results = in_order(self._pool, work, utterances, ahead=WAITING)
        bar = progress(results, what, len(utterances))
        for speaker, decoded in zip(speakers, bar, strict=True):
            take(decoded)
            self.seconds["adaptation"] += decoded.seconds
            if decoded.reason:
                reason = f"{what}: says nothing of its speaker: {decoded.reason}"
                self._ledger.record(decoded.result.utterance, reason, action="noted")
            estimates.add(speaker, decoded.statistics)
        return estimates.finish(what)


def adapted(
    recognizer: Recognizer[GmmScorer], transforms: SpeakerTransforms
) -> Recognizer[GmmScorer]:
    """Return the same recognizer on features that are adapted to speakers."""
    return replace(recognizer, scorer=recognizer.scorer.adapted(transforms))


def word_posteriors(
    lattice: Lattice,
    beam: float,
    acoustic_scale: float,
    note: Callable[[str], None] = log.warning,
) -> FramePosteriors:
    """Return posteriors of transition-ids, each word sequence with its best alignment.

    Args:
        lattice: raw.
        beam: word sequences that cost this much more than the best do not count.
        acoustic_scale: factor on acoustic costs.
        note: see `determinize`.

    Source: Kaldi's `lattice-determinize-pruned | lattice-to-post`.
    """
    compact = determinize(lattice, beam=beam, acoustic_scale=acoustic_scale, note=note)
    spread = compact.to_lattice()
    sums = forward_backward(spread, acoustic_scale=acoustic_scale)
    return posteriors(spread, sums)


def score_frames(
    lattice: Lattice, frames: np.ndarray, recognizer: Recognizer[GmmScorer]
) -> Lattice:
    """Give a lattice the acoustic costs of frames under a recognizer's model.

    Only the pdfs that the lattice holds are computed.

    Args:
        lattice: raw, T frames.
        frames: float32[T, D].
        recognizer: the model of its scorer is used.
    """
    tid_to_pdf = recognizer.scorer.model.transitions.pdf
    pdfs = np.unique(tid_to_pdf[lattice.transition_id[lattice.transition_id > 0]])
    column = np.zeros(int(pdfs.max(initial=0)) + 1, np.int32)
    column[pdfs] = np.arange(len(pdfs))
    tid_to_column = column[np.minimum(tid_to_pdf, len(column) - 1)]
    log_likes = recognizer.scorer.model.gmms.log_likelihoods(frames, pdfs)
    return rescore_acoustic(lattice, log_likes, tid_to_column)


def rescore_acoustic(
    lattice: Lattice, log_likes: np.ndarray, tid_to_pdf: np.ndarray
) -> Lattice:
    """Replace the acoustic costs of a lattice.

    Args:
        lattice: raw, T frames.
        log_likes: float32[T, P], natural log.
        tid_to_pdf: int32[I + 1], the column of `log_likes` of each transition-id.

    Returns:
        The same lattice with acoustic cost -log_likes[frame, pdf] on arcs with a
        transition-id and 0 elsewhere.

    Raises:
        UserError: the numbers of frames differ.

    Source: Kaldi `lat/lattice-functions.cc` (`RescoreLattice`), after acoustic costs
    were set to 0.
    """
    if len(log_likes) != lattice.num_frames:
        raise UserError(
            f"a lattice of {lattice.num_frames} frames and features of "
            f"{len(log_likes)}",
            remedy="make the lattices again from these features",
        )
    costs = np.zeros(lattice.num_arcs, np.float32)
    emitting = np.flatnonzero(lattice.transition_id)
    frame = lattice.frame[lattice.source()[emitting]]
    # Dead ends of a partial lattice can be as long as the utterance, never longer.
    costs[emitting] = -log_likes[frame, tid_to_pdf[lattice.transition_id[emitting]]]
    is_final = np.isfinite(lattice.final_graph_cost)
    final = np.where(is_final, np.float32(0.0), np.float32(np.inf))
    return replace(lattice, acoustic_cost=costs, final_acoustic_cost=final)
