"""Stage: align a split with a finished system.

Source: Kaldi `steps/align_si.sh`, `steps/diagnostic/analyze_alignments.sh`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output
from latflow.gmm.corpus_alignment import Beams, PassSummary, align_all
from latflow.gmm.model import AcousticModel
from latflow.gmm.source import FrameSource
from latflow.gmm.training_graphs import on_demand
from latflow.gmm.viterbi import Aligner, Scales
from latflow.hmm.alignment import PhoneDurations
from latflow.hmm.tree import ContextDependency
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

    Writes `ali.ark` (transition-ids), `ledger.jsonl` and `statistics.json`.

    Args:
        frames_dir: the `FrameStore` of the split.
        lang_dir: the lang directory.
        model_dir: folder of the system: `final.mdl` and `tree`.
        out_dir: where the alignments go.
        options: `align` of `workflow/schemas/gmm.yaml`, with `transform` and `graph`.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail.

    Raises:
        UserError: model, language and frames do not fit, or too many utterances fail.
    """
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    transform = FeatureTransform.from_config(options["transform"])
    # Every utterance is needed once, so nothing is kept.
    source = FrameSource(store, transform, np.arange(len(store)), cache_bytes=0)
    model = AcousticModel.load(Path(model_dir) / "final.mdl")
    tree = ContextDependency.load(Path(model_dir) / "tree")
    aligner = Aligner(
        model,
        scales=Scales.from_options(options),
        boost=options["boost_silence"],
        boosted_phones=[lang.optional_silence],
        careful=options["careful"],
    )
    out, summary = Path(out_dir), PassSummary()
    durations = PhoneDurations(max(lang.topology.phones))
    beams = Beams(options["beam"], options["retry_beam"])
    ledger = Ledger(f"align_{out.parent.name}")

    def paths() -> Iterator[tuple[str, np.ndarray]]:
        graphs = on_demand(source, lang, tree, model.transitions)
        with worker_pool(threads) as pool:
            outcomes = align_all(aligner, source, graphs, beams, pool)
            for outcome in progress(outcomes, "align", len(source)):
                summary.add(outcome, beams)
                if outcome.aligned is not None:
                    ids = outcome.aligned.transition_ids
                    durations.add(ids, model.transitions)
                    yield source.utt_id(outcome.utterance), ids
        # Before the archive gets its name: a failed stage leaves none.
        summary.record(ledger, source, beams)
        ledger.write(out / "ledger.jsonl")
        ledger.check(len(source), max_skipped_fraction=max_skipped_fraction)

    write_int_vectors(out / "ali.ark", paths())
    statistics = {
        **summary.as_dict(),
        "frame_shift": store.frame_shift,
        **durations.summary(lang.phones, lang.silence_phones),
    }
    with atomic_output(out / "statistics.json") as temporary:
        temporary.write_text(json.dumps(statistics, indent=1) + "\n")
