"""Decoding of a set against its own transcripts: where it says something else.

Each utterance is decoded by a GMM system with a graph that is biased to its transcript
and those of its neighbours (`latflow.graphs.biased`). Where another word is recognized
nevertheless, it was probably spoken: `latflow.align.suspects` compares the words.
Written files:

* `hyp.txt`: recognized words, Kaldi's text form, a line for each decoded utterance;
* `hyp.ctm`: the same words with times and confidences;
* `ledger.jsonl`: utterances skipped, searched twice, or without a complete path;
* `decode.json`: sizes and times, as of other decodings.

A graph serves some neighbours, so that time grows linearly with the set; memory is that
of a few batches and of the set's index.

Source: Kaldi `steps/cleanup/find_bad_utts.sh`, `clean_and_segment_data.sh`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.decode.lattices import record
from latflow.decode.options import BiasedDecodeOptions
from latflow.decode.recognizer import Recognizer, Result
from latflow.decode.scorers import GmmScorer
from latflow.decode.totals import Totals
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import atomic_output, write_json
from latflow.gmm.adaptation import SPEAKER_TRANSFORMS
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.biased import BiasedGraphs, batches
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.parts import SetJob
from latflow.scoring.score import Transcriber


def decode_biased(
    job: SetJob,
    alignments_dir: Path,
    *,
    options: BiasedDecodeOptions,
    scales: GraphOptions,
) -> None:
    """Decode all utterances of a set with graphs biased to their transcripts (stage).

    Args:
        job: the set and the GMM system; `threads` are batches worked on at a time.
        alignments_dir: of the set with this system, for the transforms of speakers.
        options: of language models and search.
        scales: of the transition probabilities in graphs.

    Raises:
        UserError: files are missing or do not fit; an utterance reaches no final state
            and `on_no_final` is `fail`; more utterances than allowed are skipped.
    """
    started = time.perf_counter()
    store = FrameStore.load(job.frames_dir)
    work = _work(store, job.lang_dir, job.model_dir, alignments_dir, options, scales)
    ledger, totals = Ledger("decode_biased"), Totals(store.frame_shift, job.threads)
    job.out_dir.mkdir(parents=True, exist_ok=True)
    with worker_pool(job.threads) as pool, ExitStack() as stack:
        paths = (job.out_dir / "hyp.txt", job.out_dir / "hyp.ctm")
        parts = [stack.enter_context(atomic_output(path)) for path in paths]
        text, ctm = (
            stack.enter_context(part.open("w", encoding="utf-8")) for part in parts
        )
        runs = in_order(pool, work, batches(store.texts, options.lm.min_words))
        results = (decoded for run in runs for decoded in run)
        for decoded in progress(results, "decode", total=len(store)):
            if decoded.result is None or decoded.reason:
                ledger.record(decoded.utterance, decoded.reason)
                continue
            attempt = decoded.result.attempt
            if attempt.error is not None and options.on_no_final == "fail":
                raise attempt.error
            record(ledger, decoded.result)
            totals.add(decoded.result)
            if attempt.decoded is not None:
                words = [word.word for word in decoded.words]
                text.write(" ".join([decoded.utterance, *words]) + "\n")
                ctm.writelines(map(ctm_line, decoded.words))
        ledger.write(job.out_dir / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=job.max_skipped_fraction)
    totals.wall_seconds = time.perf_counter() - started
    write_json(job.out_dir / "decode.json", totals.summary(options))


@dataclass(frozen=True, eq=False)
class _BiasedResult:
    """What was recognized in an utterance.

    Attributes:
        utterance: its id.
        result: of the search; None if there was no graph.
        words: of the best path.
        reason: why the utterance is skipped though its search did not fail.
    """

    utterance: str
    result: Result | None = None
    words: Sequence[TimedWord] = ()
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _Work:
    """The work on a batch of utterances; shared by threads."""

    scorer: GmmScorer
    graphs: BiasedGraphs
    transcriber: Transcriber
    options: BiasedDecodeOptions

    def __call__(self, batch: range) -> list[_BiasedResult]:
        """Decode utterances with the graph of their transcripts."""
        store = self.scorer.store
        try:
            graph = self.graphs.graph([store.texts[index] for index in batch])
        except UserError as error:
            reason = f"no graph of its transcript and its neighbours': {error.what}"
            return [
                _BiasedResult(store.utt_ids[index], reason=reason) for index in batch
            ]
        recognizer = Recognizer.of(self.scorer, graph, self.options)
        return [self._words(recognizer.decode_utterance(index)) for index in batch]

    def _words(self, result: Result) -> _BiasedResult:
        """Return the words of a lattice."""
        if result.decoded is None:
            return _BiasedResult(result.utterance, result)
        try:
            recognized = self.transcriber((result.utterance, result.decoded.lattice))
        except UserError as error:
            return _BiasedResult(result.utterance, result, reason=error.what)
        return _BiasedResult(result.utterance, result, recognized.words)


def _work(
    store: FrameStore,
    lang_dir: Path,
    model_dir: Path,
    alignments_dir: Path,
    options: BiasedDecodeOptions,
    scales: GraphOptions,
) -> _Work:
    """Read the files."""
    lang = Lang.load(lang_dir)
    scorer = GmmScorer.of(store, GmmSystem.load(model_dir))
    transforms = alignments_dir / SPEAKER_TRANSFORMS
    if transforms.is_file():
        scorer = scorer.adapted(SpeakerTransforms.load(transforms))
    tree, transitions = load_model(model_dir)
    graphs = BiasedGraphs(store.texts, lang, tree, transitions, scales, options.lm)
    transcriber = Transcriber(
        lang,
        transitions,
        Scales(1.0, options.acoustic_scale),
        store.frame_shift,
        "best_path",
    )
    return _Work(scorer, graphs, transcriber, options)
