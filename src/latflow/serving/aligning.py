"""The stage that aligns a corpus with a model package, without training.

A GMM system aligns as in its recipe: on stored frames, normalized as in training, and,
where it adapts to speakers, in two passes. A network scores utterances as a segment of
the package is scored.

Public: `align_package` (stage), `store_frames`.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.align.aligner import Aligner
from latflow.align.corpus import AlignmentSummary, Split, align_all
from latflow.corpus.manifests import (
    Spool,
    at_rate,
    read_cuts,
    samples_or_reason,
    text_of,
)
from latflow.errors import UserError
from latflow.features.cmvn import normalize_features
from latflow.features.extract import extract_features
from latflow.features.frame_times import FrameTimes
from latflow.features.frames import FrameStore
from latflow.features.options import (
    ExtractionOptions,
    FrontEndOptions,
    LhotseExtractionOptions,
)
from latflow.fst.graph import Graph
from latflow.gmm.alignment import align_split
from latflow.gmm.options import AlignAdaptedOptions
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainGraphOptions, GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import extend_lang
from latflow.parallel import worker_pool
from latflow.serving.package import GmmPackage, Model, PackageInfo, read_info


def align_package(
    package_dir: Path,
    cuts: Path,
    lexicon: Path,
    out_dir: Path,
    *,
    options: AlignAdaptedOptions,
    lang: LangOptions,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Align all utterances of a split with a package (stage).

    Args:
        package_dir: the package; of a network its acoustic scale is used.
        cuts: `cuts.jsonl.gz` of the split.
        lexicon: lexicon of the split's words, with the phones of the package.
        out_dir: for `ali.ark` and what goes with it, for `lang/`, and, of a GMM system,
            for `features/ledger.jsonl`.
        options: of the search; `fmllr` is of systems that adapt to speakers.
        lang: how the lexicon is read.
        threads: utterances aligned at a time.
        max_skipped_fraction: share of the utterances that may fail.

    Raises:
        UserError: the package is faulty or was trained by CTC, the lexicon has a phone
            that it has not, or too many utterances fail.
    """
    info = read_info(package_dir)
    if info.kind == "ctc":
        raise UserError(
            "was trained by CTC, whose labels have no times of phones",
            file=package_dir,
            remedy="take a package of a GMM system, or of a network of another kind",
        )
    extend_lang(package_dir / "lang", lexicon, out_dir / "lang", options=lang)
    align = _align_with_gmm if info.kind == "gmm" else _align_with_network
    align(
        package_dir,
        cuts,
        out_dir,
        options,
        threads=threads,
        max_skipped_fraction=max_skipped_fraction,
    )


def store_frames(
    info: PackageInfo,
    cuts: Path,
    folder: Path,
    ledger: Path,
    *,
    threads: int,
    max_skipped_fraction: float,
) -> FrameStore:
    """Compute the frames that the system of a package is for.

    Args:
        info: tells the front end and the normalization, which has the statistics of
            these utterances, as in the recipe.
        cuts: `cuts.jsonl.gz` of the utterances.
        folder: for the frames.
        ledger: file that names the utterances without frames.
        threads: threads to use.
        max_skipped_fraction: share of the utterances that may have none.

    Raises:
        UserError: too many have none.
    """
    is_kaldi = isinstance(info.front_end, FrontEndOptions)
    kind = ExtractionOptions if is_kaldi else LhotseExtractionOptions
    extraction = kind(**info.front_end.values(), sample_rate=info.sample_rate)
    with tempfile.TemporaryDirectory(prefix="features.", dir=folder) as scratch:
        made = Path(scratch, "features")
        extract_features(
            cuts,
            made,
            options=extraction,
            threads=threads,
            max_skipped_fraction=max_skipped_fraction,
        )
        ledger.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / "ledger.jsonl", ledger)
        normalize_features(made / "cuts.jsonl.gz", folder / "frames", cmvn=info.cmvn)
    return FrameStore.load(folder / "frames")


def _align_with_gmm(
    package_dir: Path,
    cuts: Path,
    out_dir: Path,
    options: AlignAdaptedOptions,
    *,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Align with a GMM system, adapted to each speaker if it is one that adapts."""
    package = GmmPackage.load(package_dir)
    info, system = package.info, package.system
    with tempfile.TemporaryDirectory(prefix=".tmp.", dir=out_dir) as scratch:
        store = store_frames(
            info,
            cuts,
            Path(scratch),
            out_dir / "features/ledger.jsonl",
            threads=threads,
            max_skipped_fraction=max_skipped_fraction,
        )
        split = Split(
            Lang.load(out_dir / "lang"),
            out_dir.parent.name,
            out_dir,
            len(store),
            max_skipped_fraction,
            store.frame_shift,
        )
        align_split(
            system,
            store,
            split,
            options=options,
            graph=GraphOptions(),
            threads=threads,
            facts=_first_middle(info),
        )


def _first_middle(info: PackageInfo) -> dict[str, float]:
    """Return where the first frame is, for the statistics of alignments."""
    times = FrameTimes.of(info.front_end, info.sample_rate)
    return {"first_middle": times.first_middle}


def _align_with_network(
    package_dir: Path,
    cuts: Path,
    out_dir: Path,
    options: AlignAdaptedOptions,
    *,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Align with a network."""
    model = Model.load(package_dir)
    own = Lang.load(out_dir / "lang")
    tree, transitions = load_model(package_dir / "model")
    compiler = TrainingGraphCompiler(own, tree, transitions)
    is_full = model.acoustics.has_full_scale
    scales = ChainGraphOptions() if is_full else GraphOptions()
    search = options.replace(acoustic_scale=model.acoustic_scale)
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
            Aligner(transitions, search, scales, silence_phones=[own.optional_silence]),
            len(names),
            graph,
            scores,
            pool,
        )
        facts = _first_middle(model.info)
        named = zip(names, alignments, strict=True)
        split.write(named, AlignmentSummary(search), transitions, facts)
