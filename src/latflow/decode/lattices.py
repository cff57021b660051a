"""Stages that decode a split: to lattices, and at several beams for their word errors.

`decode_lattices` takes utterances one by one, searches them on a pool of threads, and
writes their lattices in order; what is in memory depends on the number of threads and
the longest utterance (and on a GPU on what is scored together), not on the corpus.
Written files:

* `lattices.ark`: raw lattices, Kaldi's binary form, acoustic costs unscaled (but for
  some networks, see `AcousticNetwork.lattice_scale`);
* `ledger.jsonl`: utterances skipped, searched twice, or without a complete path;
* `decode.json`: sizes and times, see `latflow.decode.totals`.

Of a part of a split, `part.json` takes the place of `decode.json`;
`latflow.decode.joining` makes one decoding of all parts.

Source: Kaldi `gmmbin/gmm-latgen-faster.cc`, `latgen-faster-mapped.cc`,
`decoder/decoder-wrappers.cc` (`DecodeUtteranceLatticeFaster`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.decode.recognizer import Recognizer, Result
from latflow.decode.scorers import GmmScorer, load_scorer
from latflow.decode.totals import Totals, write_summary
from latflow.gmm.source import SpeakerTransforms
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.lattice.io.archives import LatticeWriter
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import worker_pool
from latflow.parts import SetJob, utterances_of
from latflow.scoring.options import ComparisonOptions
from latflow.scoring.results import write_rows
from latflow.scoring.transcripts import names_of
from latflow.scoring.tune import read_scales

DEFAULT_SCORES = NetworkScoreOptions()


def decode_lattices(
    job: SetJob,
    graph: Path,
    *,
    options: SearchOptions,
    scores: NetworkScoreOptions = DEFAULT_SCORES,
) -> None:
    """Decode all utterances of a split with a GMM system or a network (stage).

    Each thread searches an utterance of its own, and scores it where no GPU does;
    model and graph lie in memory once.

    Args:
        job: the set and the system.
        graph: `HCLG.fst` of the GMM system, or of the one behind the network.
        options: of the search.
        scores: use of a network's scores.

    Raises:
        UserError: graph, model, features and words do not fit; an utterance reaches no
            final state and `on_no_final` is `fail`; more utterances than allowed are
            skipped.
    """
    scorer = load_scorer(job.frames_dir, job.model_dir, scores, threads=job.threads)
    recognizer = Recognizer.load(scorer, graph, Lang.load(job.lang_dir), options)
    recognizer.warm_up()
    started = time.perf_counter()
    store = scorer.store
    utterances = utterances_of(job.part, store.begin).tolist()
    ledger, totals = Ledger("decode"), Totals(store.frame_shift, job.threads)
    with (
        LatticeWriter.open(job.out_dir / "lattices.ark") as writer,
        worker_pool(job.threads) as pool,
    ):
        results = recognizer.results(pool, utterances, ahead=2 * job.threads)
        for result in progress(results, "decode", total=len(utterances)):
            write_result(result, options, writer, ledger, totals)
        ledger.write(job.out_dir / "ledger.jsonl")
        # A part alone ends the run where it has too many for the whole split.
        ledger.check(len(store), max_skipped_fraction=job.max_skipped_fraction)
    totals.wall_seconds = time.perf_counter() - started
    facts = {
        "acoustic_scale": recognizer.acoustic_scale,
        "lattice_scale": scorer.lattice_scale,
    }
    write_summary(
        job.out_dir, job.part, totals, options, facts, lattices=writer.entries
    )


def write_result(
    result: Result,
    options: SearchOptions,
    writer: LatticeWriter,
    ledger: Ledger,
    totals: Totals,
) -> None:
    """Write a lattice, note in the ledger what went wrong, add sizes and times up.

    Raises:
        UserError: the utterance has no lattice, and `on_no_final` is `fail`.
    """
    attempt = result.attempt
    if attempt.error is not None and options.on_no_final == "fail":
        raise attempt.error
    record(ledger, result)
    totals.add(result)
    if attempt.decoded is not None:
        writer.write(result.utterance, attempt.decoded.lattice)


def record(ledger: Ledger, result: Result) -> None:
    """Note in the ledger what went wrong with an utterance."""
    attempt = result.attempt
    if attempt.error is not None:
        reason = f"{attempt.error.what} - {attempt.error.remedy}"
        ledger.record(result.utterance, reason, beam=attempt.beam)
    elif attempt.is_partial:
        reason = "no final state reached: the lattice holds incomplete paths"
        ledger.record(result.utterance, reason, action="partial", beam=attempt.beam)
    elif attempt.was_retried:
        reason = "a final state was reached only with a wider beam"
        ledger.record(result.utterance, reason, action="retried", beam=attempt.beam)


def sweep_beams(
    job: SetJob,
    graph: Path,
    lattices_dir: Path,
    scales: Path,
    *,
    options: SearchOptions,
    beams: Sequence[float],
    score: ComparisonOptions,
    scores: NetworkScoreOptions = DEFAULT_SCORES,
) -> None:
    """Decode a set at several beams (stage).

    Writes `beams.tsv`: `rtf` is processor time of log-likelihoods and search over the
    duration of the speech, `wer` in per cent, `depth` in lattice arcs a frame, `active`
    in tokens a frame.

    Args:
        job: the set and the system.
        graph: `HCLG.fst`.
        lattices_dir: folder of an earlier decoding of the set; an adapted system takes
            the transforms of the speakers from there (`trans.ark`).
        scales: `scales.json` with the chosen `lmwt` and `wip`.
        options: of the search, but for the beam.
        beams: those to try.
        score: how words are compared.
        scores: use of a network's scores.

    Raises:
        UserError: the parts do not fit each other.
    """
    lang = Lang.load(job.lang_dir)
    keep = score.filter
    scorer = load_scorer(job.frames_dir, job.model_dir, scores, threads=job.threads)
    transforms = lattices_dir / "trans.ark"
    if isinstance(scorer, GmmScorer) and transforms.is_file():
        scorer = scorer.adapted(SpeakerTransforms.load(transforms))
    store = scorer.store
    recognizer = Recognizer.load(scorer, graph, lang, options)
    recognizer.warm_up()
    references = dict(zip(store.utt_ids, store.texts, strict=True))
    chosen = read_scales(scales)
    scale = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
    rows = []
    for beam in sorted(beams):
        totals, errors = Totals(store.frame_shift, job.threads), ErrorCounts()
        narrowed = recognizer.with_beam(options, beam)
        with worker_pool(job.threads) as pool:
            results = narrowed.results(pool, range(len(store)), ahead=2 * job.threads)
            for result in progress(results, f"beam {beam:g}", total=len(store)):
                totals.add(result)
                hypothesis: list[str] = []
                if result.decoded is not None:
                    path = best_paths(result.decoded.lattice, [scale])[0]
                    utterance = result.utterance
                    words = names_of(
                        path.words, lang.words, file=graph, utterance=utterance
                    )
                    hypothesis = keep(words)
                reference = keep(references[result.utterance].split())
                errors += count_errors(reference, hypothesis, rule=score.alignment)
        rows.append(
            (
                f"{beam:g}",
                f"{totals.real_time_factor:.5f}",
                f"{errors.wer:.3f}",
                *(errors.ins, errors.del_, errors.sub, errors.words),
                f"{totals.mean_depth:.3f}",
                f"{totals.mean_active:.1f}",
            )
        )
    names = ("beam", "rtf", "wer", "ins", "del", "sub", "words", "depth", "active")
    write_rows(job.out_dir / "beams.tsv", names, rows)
