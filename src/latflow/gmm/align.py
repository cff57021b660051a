"""Stage: align a split with a finished system.

A system that adapts to speakers aligns twice: with its alignment model on unadapted
features, which gives each speaker a transform; and with its model on features after it.

Source: Kaldi `steps/align_si.sh`, `steps/align_fmllr.sh`,
`steps/diagnostic/analyze_alignments.sh`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.gmm.adaptation import (
    SPEAKER_TRANSFORMS,
    Adaptation,
    FmllrAccumulator,
    adapt_to_alignments,
)
from latflow.gmm.corpus_alignment import Beams, PassSummary, align_all
from latflow.gmm.fmllr import FmllrOptions
from latflow.gmm.model import AcousticModel
from latflow.gmm.source import FrameSource
from latflow.gmm.system import GmmSystem
from latflow.gmm.training_graphs import GraphFile, Graphs, on_demand
from latflow.gmm.viterbi import Aligner, Scales
from latflow.hmm.alignment import PhoneDurations
from latflow.kaldi_io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import worker_pool


def align(
    frames_dir: str | Path,
    lang_dir: str | Path,
    model_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Align all utterances of a split to their transcripts.

    Writes `ali.ark` (transition-ids), `ledger.jsonl` and `statistics.json`; with a
    system that adapts to speakers also `trans.ark`, the transforms by speaker.

    Args:
        frames_dir: the `FrameStore` of the split.
        lang_dir: the lang directory.
        model_dir: folder of the system.
        out_dir: where the alignments go.
        options: `align` of `workflow/schemas/gmm.yaml`, with `graph`; the feature
            transform is the system's.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail.

    Raises:
        UserError: model, language and frames do not fit, or too many utterances fail.
    """
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    system, out = GmmSystem.load(model_dir), Path(out_dir)
    # Every utterance is needed once in a pass, so nothing is kept.
    source = FrameSource(store, system.transform, np.arange(len(store)), cache_bytes=0)
    out.mkdir(parents=True, exist_ok=True)
    graphs = on_demand(source, lang, system.tree, system.model.transitions)
    with (
        worker_pool(threads) as pool,
        tempfile.TemporaryDirectory(prefix=".tmp.", dir=out) as scratch,
    ):
        if not system.is_speaker_adapted:
            work = _Work(source, lang, graphs, options, pool)
            work.write(system.model, out, max_skipped_fraction=max_skipped_fraction)
            return
        kept = GraphFile(Path(scratch) / "graphs", graphs, len(source), pool)
        work = _Work(source, lang, kept, options, pool)
        adaptation = work.adapt(system)
        adaptation.transforms.save(out / SPEAKER_TRANSFORMS)
        adapted = source.with_speaker_transforms(adaptation.transforms)
        work = _Work(adapted, lang, kept, options, pool, adaptation)
        work.write(system.model, out, max_skipped_fraction=max_skipped_fraction)


@dataclass(frozen=True, eq=False)
class _Work:
    """What all passes of alignment over a split share.

    Attributes:
        source: the frames.
        lang: the lang directory.
        graphs: gives the training graph of an utterance.
        options: of the stage.
        pool: threads to use.
        adaptation: where the transforms in `source` come from, if there are any.
    """

    source: FrameSource
    lang: Lang
    graphs: Graphs
    options: Mapping[str, Any]
    pool: Executor
    adaptation: Adaptation | None = None

    @property
    def beams(self) -> Beams:
        """Widths of the search."""
        return Beams(self.options["beam"], self.options["retry_beam"])

    def aligner(self, model: AcousticModel) -> Aligner:
        """What aligns with a model."""
        return Aligner(
            model,
            scales=Scales.from_options(self.options),
            boost=self.options["boost_silence"],
            boosted_phones=[self.lang.optional_silence],
            careful=self.options["careful"],
        )

    def adapt(self, system: GmmSystem) -> Adaptation:
        """Align with the alignment model, and fit the speakers to the adapted one."""
        options = self.options["fmllr"]
        accumulator = FmllrAccumulator.of(
            system.alignment_model,
            self.lang.silence_phones,
            options["silence_weight"],
            target=system.model.gmms,
        )
        aligner = self.aligner(system.alignment_model)

        def paths() -> Iterator[tuple[int, np.ndarray | None]]:
            outcomes = align_all(
                aligner, self.source, self.graphs, self.beams, self.pool
            )
            for outcome in progress(outcomes, "align unadapted", len(self.source)):
                found = outcome.aligned
                yield outcome.utterance, found and found.transition_ids

        return adapt_to_alignments(
            self.source,
            paths(),
            accumulator,
            FmllrOptions.from_options(options),
            self.pool,
            what="first alignment",
        )

    def write(
        self, model: AcousticModel, out: Path, *, max_skipped_fraction: float
    ) -> None:
        """Align with a model, and write alignments, ledger and statistics."""
        aligner, summary = self.aligner(model), PassSummary()
        durations = PhoneDurations(max(self.lang.topology.phones))
        ledger = Ledger(f"align_{out.parent.name}")
        count = len(self.source)

        def paths() -> Iterator[tuple[str, np.ndarray]]:
            outcomes = align_all(
                aligner, self.source, self.graphs, self.beams, self.pool
            )
            for outcome in progress(outcomes, "align", count):
                summary.add(outcome, self.beams)
                if outcome.aligned is not None:
                    ids = outcome.aligned.transition_ids
                    durations.add(ids, model.transitions)
                    yield self.source.utt_id(outcome.utterance), ids
            # Before the archive gets its name: a failed stage leaves none.
            summary.record(ledger, self.source, self.beams)
            ledger.write(out / "ledger.jsonl")
            ledger.check(count, max_skipped_fraction=max_skipped_fraction)

        write_int_vectors(out / "ali.ark", paths())
        adapted = self.adaptation and {"adaptation": self.adaptation.as_dict()}
        statistics = {
            **summary.as_dict(),
            **(adapted or {}),
            "frame_shift": self.source.store.frame_shift,
            **durations.summary(self.lang.phones, self.lang.silence_phones),
        }
        with atomic_output(out / "statistics.json") as temporary:
            temporary.write_text(json.dumps(statistics, indent=1) + "\n")
