"""Stage that makes lattices of all pronunciations of each transcript.

Such a lattice has all likely pronunciations of the words, and silences or none between
them, of which an alignment has one each: supervision of LF-MMI may allow them all.
Utterances are searched in their training graphs, and lattices determinized on words and
phones, so that each phone sequence has its best alignment. Written files:

* `lattices.ark`: state-level lattices, Kaldi's binary form, acoustic costs unscaled;
* `ledger.jsonl`: utterances without a lattice, and those searched twice;
* `decode.json`: sizes and times, as of decodings; sizes are those before determinizing.

Source: Kaldi `steps/align_fmllr_lats.sh`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from latflow.decode.decoder import Attempt
from latflow.decode.lattices import record
from latflow.decode.options import TranscriptLatticeOptions
from latflow.decode.recognizer import Recognizer, Result
from latflow.decode.scorers import GmmScorer
from latflow.decode.totals import Totals, write_summary
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import LatticeWriter
from latflow.lattice.lattice import Lattice
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.parts import SetJob

_REMEDY = "widen supervision_lattices.beam, or set its on_no_final to retry"


def align_lattices(
    job: SetJob,
    transforms: Path | None,
    *,
    options: TranscriptLatticeOptions,
    graph: GraphOptions,
) -> None:
    """Make a lattice of the pronunciations of each transcript of a split (stage).

    Args:
        job: the set, a `FrameStore`, and the GMM system.
        transforms: `trans.ark` of the split's speakers; None where it does not adapt.
        options: of the search.
        graph: scales of the transition probabilities.

    Raises:
        UserError: model, language and frames do not fit; an utterance has no lattice
            and `on_no_final` is `fail`; more utterances than allowed have none.
    """
    started = time.perf_counter()
    store, lang = FrameStore.load(job.frames_dir), Lang.load(job.lang_dir)
    system = GmmSystem.load(job.model_dir)
    scorer = GmmScorer.of(store, system)
    if transforms is not None:
        scorer = scorer.adapted(SpeakerTransforms.load(transforms))
    compiler = TrainingGraphCompiler(
        lang,
        system.tree,
        system.model.transitions,
        self_loop_scale=graph.self_loop_scale,
        transition_scale=graph.transition_scale,
    )
    work = _Work(scorer, lang, compiler, options)
    ledger, totals = Ledger("align_lattices"), Totals(store.frame_shift, job.threads)
    with (
        LatticeWriter.open(job.out_dir / "lattices.ark") as writer,
        worker_pool(job.threads) as pool,
    ):
        lattices = in_order(pool, work, range(len(store)), ahead=2 * job.threads)
        for utterance, result, lattice in progress(lattices, "lattices", len(store)):
            if isinstance(lattice, str):
                if options.on_no_final == "fail":
                    raise UserError(lattice, utterance=utterance, remedy=_REMEDY)
                ledger.record(utterance, lattice)
                continue
            assert result is not None
            record(ledger, result)
            totals.add(result)
            writer.write(utterance, lattice)
        ledger.write(job.out_dir / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=job.max_skipped_fraction)
    totals.wall_seconds = time.perf_counter() - started
    write_summary(job.out_dir, None, totals, options, {}, lattices=writer.entries)


@dataclass(frozen=True, eq=False)
class _Work:
    """The work on an utterance; shared by threads."""

    scorer: GmmScorer
    lang: Lang
    compiler: TrainingGraphCompiler
    options: TranscriptLatticeOptions

    def __call__(self, index: int) -> tuple[str, Result | None, Lattice | str]:
        """Return an utterance, its search, and its lattice or why it has none."""
        store, transitions = self.scorer.store, self.scorer.transitions
        utterance = store.utt_ids[index]
        words = self.lang.words_to_ids(store.texts[index])
        graph = self.compiler.graph_or_reason(words)
        if isinstance(graph, str):
            return utterance, None, graph
        recognizer = Recognizer.of(self.scorer, graph, self.options)
        result = recognizer.decode_utterance(index)
        raw = _complete(result.attempt)
        if isinstance(raw, str):
            return utterance, result, raw
        try:
            phones = determinize(
                raw,
                transitions,
                beam=self.options.lattice_beam,
                acoustic_scale=self.options.acoustic_scale,
                on_words=False,
            )
        except UserError as error:
            return utterance, result, error.what
        return utterance, result, phones.to_lattice()


def _complete(attempt: Attempt) -> Lattice | str:
    """Return the lattice of a search that ended well, or why there is none."""
    if attempt.error is not None:
        return attempt.error.what
    assert attempt.decoded is not None
    if attempt.is_partial:
        return f"no path through its training graph within beam {attempt.beam:g}"
    return attempt.decoded.lattice
