"""The stage that aligns a corpus with a model package, without training.

Public: `align_package` (stage).
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.align.aligner import Aligner
from latflow.align.corpus import AlignmentSummary, Split, align_all
from latflow.align.options import AlignSplitOptions
from latflow.corpus.manifests import (
    Spool,
    at_rate,
    read_cuts,
    samples_or_reason,
    text_of,
)
from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainGraphOptions, GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import extend_lang
from latflow.parallel import worker_pool
from latflow.serving.package import Model


def align_package(
    package_dir: Path,
    cuts: Path,
    lexicon: Path,
    out_dir: Path,
    *,
    options: AlignSplitOptions,
    lang: LangOptions,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Align all utterances of a split with a package (stage).

    Args:
        package_dir: the package; its acoustic scale is used.
        cuts: `cuts.jsonl.gz` of the split.
        lexicon: lexicon of the split's words, with the phones of the package.
        out_dir: for `ali.ark` and what goes with it, and for `lang/`.
        options: of the search.
        lang: how the lexicon is read.
        threads: utterances aligned at a time.
        max_skipped_fraction: share of the utterances that may fail.

    Raises:
        UserError: the package is faulty or was trained by CTC, the lexicon has a phone
            that it has not, or too many utterances fail.
    """
    model = Model.load(package_dir)
    if model.info.kind == "ctc":
        raise UserError(
            "was trained by CTC, whose labels have no times of phones",
            file=package_dir,
            remedy="take a package of a GMM system, or of a network of another kind",
        )
    extend_lang(package_dir / "lang", lexicon, out_dir / "lang", options=lang)
    own = Lang.load(out_dir / "lang")
    tree, transitions = load_model(package_dir / "model")
    compiler = TrainingGraphCompiler(own, tree, transitions)
    is_full = model.acoustics.has_full_scale
    scales = ChainGraphOptions() if is_full else GraphOptions()
    options = options.replace(acoustic_scale=model.acoustic_scale)
    with Spool(out_dir, MonoCut.from_dict) as spool, worker_pool(threads) as pool:
        spool.extend(
            at_rate(read_cuts(cuts), model.sample_rate, may_resample=True), file=cuts
        )
        names = spool.ids()
        shift = model.frame_shift * model.subsampling
        split = Split(
            own, out_dir.parent.name, out_dir, len(names), max_skipped_fraction, shift
        )
        lock = threading.Lock()

        def cut(u: int) -> MonoCut:
            with lock:
                return spool[names[u]]

        def graph(u: int) -> Graph | str:
            return compiler.graph_or_reason(own.words_to_ids(text_of(cut(u))))

        def scores(u: int) -> np.ndarray | str:
            samples = samples_or_reason(cut(u))
            if isinstance(samples, str):
                return samples
            stream = model.front_end()
            frames = [stream.accept(samples), stream.finish()]
            found = model.acoustics.log_likes(np.concatenate(frames))
            return "scores that are not numbers" if np.isnan(found).any() else found

        alignments = align_all(
            Aligner(
                transitions, options, scales, silence_phones=[own.optional_silence]
            ),
            len(names),
            graph,
            scores,
            pool,
        )
        times = FrameTimes.of(model.info.front_end, model.sample_rate)
        facts = {"first_middle": times.first_middle}
        named = zip(names, alignments, strict=True)
        split.write(named, AlignmentSummary(options), transitions, facts)
