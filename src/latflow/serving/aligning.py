"""The stage that aligns a corpus with a model package, without training.

A GMM system aligns as in its recipe: on stored frames, normalized as in training, and,
where it adapts to speakers, in two passes. A network scores utterances as a segment of
the package is scored.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.align.aligner import Aligner
from latflow.align.corpus import AlignmentSummary, Split, align_all
from latflow.align.options import AlignOptions
from latflow.corpus.json_lines import Spool
from latflow.corpus.manifests import at_rate, read_cuts, samples_or_reason, text_of
from latflow.errors import UserError
from latflow.features.extract import extract_features
from latflow.features.frame_times import FrameTimes
from latflow.features.frames import FrameStore
from latflow.features.normalization import compute_cmvn
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
from latflow.lang.extension import extend_lang
from latflow.lang.options import LangOptions
from latflow.parallel import worker_pool
from latflow.serving.package import (
    GmmPackage,
    Model,
)
from latflow.serving.package_info import (
    PackageInfo,
    read_info,
)


def align_package(
    task: AlignmentTask, out_dir: Path, *, options: AlignAdaptedOptions
) -> None:
    """Align all utterances of a split with a package (stage).

    Args:
        task: the split; of a package of a network its acoustic scale is used.
        out_dir: for `ali.ark` and what goes with it, for `lang/`, and, of a GMM system,
            for `features/ledger.jsonl`.
        options: of the search; `fmllr` is of systems that adapt to speakers.

    Raises:
        UserError: the package is faulty or was trained by CTC, the lexicon has a phone
            that it has not, or too many utterances fail.
    """
    align_with(
        load_aligner(task.package_dir, trust_code=task.trust_code),
        task,
        out_dir,
        options,
    )


def load_aligner(path: str | Path, *, trust_code: bool = False) -> Model | GmmPackage:
    """Read a package to align with it.

    Args:
        path: its folder.
        trust_code: whether code may run that the package names.

    Raises:
        UserError: as `Model.load`; or it was trained by CTC.
    """
    folder = Path(path)
    info = read_info(folder)
    refuse_ctc(info, folder)
    kind = GmmPackage if info.kind == "gmm" else Model
    return kind.load(folder, trust_code=trust_code)


def align_with(
    package: Model | GmmPackage,
    task: AlignmentTask,
    out_dir: Path,
    options: AlignAdaptedOptions,
) -> None:
    """Align all utterances of a split with a package, see `align_package`.

    Args:
        package: that of the task.
    """
    if isinstance(package, GmmPackage):
        _align_with_gmm(package, task, out_dir, options)
    else:
        _align_with_network(package, task, out_dir, options)


@dataclass(frozen=True)
class AlignmentTask:
    """A split that a package aligns.

    Attributes:
        package_dir: the package.
        cuts: `cuts.jsonl.gz` of the split.
        lexicon: lexicon of the split's words, with the phones of the package.
        lang: how the lexicon is read.
        threads: threads to use.
        max_skipped_fraction: share of the utterances that may fail.
        trust_code: whether code may run that the package names.
        known: the package's phones with the words of the lexicon, where they are known
            already.
    """

    package_dir: Path
    cuts: Path
    lexicon: Path
    lang: LangOptions
    threads: int
    max_skipped_fraction: float
    trust_code: bool = False
    known: Lang | None = None

    def language(self, out_dir: Path) -> Lang:
        """Return the package's phones with the words of the lexicon.

        Writes them to `lang/`, unless they are known already.

        Pronunciations with phones that the package has not are left out where no
        transcript needs them.

        Raises:
            UserError: a word of the transcripts has a phone that the package has not.
        """
        if self.known is not None:
            return self.known
        own = self.package_dir / "lang"
        words = {word for cut in read_cuts(self.cuts) for word in text_of(cut).split()}
        extend_lang(
            own, self.lexicon, out_dir / "lang", options=self.lang, needed=words
        )
        return Lang.load(out_dir / "lang")

    @contextmanager
    def frames(
        self, info: PackageInfo, out_dir: Path, system: str
    ) -> Iterator[tuple[FrameStore, Split]]:
        """Compute the frames that the GMM system of the package is for.

        Args:
            info: of the package; tells the front end and the normalization, which has
                the statistics of these utterances, and of the training set with
                `online`, as in the recipe.
            out_dir: for the alignments; gets `lang/` and `features/ledger.jsonl`.
            system: name of what aligns.

        Yields:
            (the frames, which are kept no longer; the split).

        Raises:
            UserError: too many utterances have none; the lexicon is faulty.
        """
        lang = self.language(out_dir)
        is_kaldi = isinstance(info.front_end, FrontEndOptions)
        kind = ExtractionOptions if is_kaldi else LhotseExtractionOptions
        extraction = kind(**info.front_end.values(), sample_rate=info.sample_rate)
        skippable = self.max_skipped_fraction
        with tempfile.TemporaryDirectory(prefix=".tmp.", dir=out_dir) as scratch:
            made, frames = Path(scratch, "features"), Path(scratch, "frames")
            extract_features(
                self.cuts,
                made,
                options=extraction,
                threads=self.threads,
                max_skipped_fraction=skippable,
            )
            ledger = out_dir / "features/ledger.jsonl"
            ledger.parent.mkdir(exist_ok=True)
            shutil.copyfile(made / "ledger.jsonl", ledger)
            training = self.package_dir / "model"
            compute_cmvn(made, frames, cmvn=info.cmvn, training_dir=training)
            store = FrameStore.load(frames)
            shift = store.frame_shift
            yield store, Split(lang, system, out_dir, len(store), skippable, shift)


def _align_with_gmm(
    package: GmmPackage,
    task: AlignmentTask,
    out_dir: Path,
    options: AlignAdaptedOptions,
) -> None:
    """Align with a GMM system, adapted to each speaker if it is one that adapts."""
    with task.frames(package.info, out_dir, out_dir.parent.name) as (store, split):
        align_split(
            package.system,
            store,
            split,
            options=options,
            graph=GraphOptions(),
            threads=task.threads,
            facts=_first_middle(package.info),
        )


def _first_middle(info: PackageInfo) -> dict[str, float]:
    """Return where the first frame is, for the statistics of alignments."""
    times = FrameTimes.of(info.front_end, info.sample_rate)
    return {"first_middle": times.first_middle}


def _align_with_network(
    model: Model, task: AlignmentTask, out_dir: Path, options: AlignAdaptedOptions
) -> None:
    own = task.language(out_dir)
    search = options.replace(acoustic_scale=model.acoustic_scale)
    network = _NetworkAligner(model, own, search)
    with Spool(out_dir, MonoCut.from_dict) as spool, worker_pool(task.threads) as pool:
        cuts = at_rate(read_cuts(task.cuts), model.sample_rate, may_resample=True)
        spool.extend(cuts, file=task.cuts)
        names = spool.ids()
        shift = model.frame_shift * model.subsampling
        skippable = task.max_skipped_fraction
        split = Split(own, out_dir.parent.name, out_dir, len(names), skippable, shift)
        lock = threading.Lock()

        def cut(u: int) -> MonoCut:
            with lock:
                return spool[names[u]]

        def scores(u: int) -> np.ndarray | str:
            samples = samples_or_reason(cut(u))
            return samples if isinstance(samples, str) else network.scores(samples)

        alignments = align_all(
            network.aligner,
            range(len(names)),
            lambda u: network.graph(text_of(cut(u))),
            scores,
            pool,
        )
        facts = _first_middle(model.info)
        named = zip(names, alignments, strict=True)
        split.write(named, AlignmentSummary(search), network.transitions, facts)


class _NetworkAligner:
    """What aligns utterances with a package of a network; shared by threads.

    Args:
        model: the package.
        lang: its phones, with the words to align.
        options: of the search.
    """

    def __init__(self, model: Model, lang: Lang, options: AlignOptions) -> None:
        self._model, self._lang = model, lang
        tree, self.transitions = load_model(model.folder / "model")
        self._compiler = TrainingGraphCompiler(lang, tree, self.transitions)
        is_full = model.acoustics.has_full_scale
        self.aligner = Aligner(
            self.transitions,
            options,
            ChainGraphOptions() if is_full else GraphOptions(),
            silence_phones=[lang.optional_silence],
        )

    def graph(self, text: str) -> Graph | str:
        """Return the graph of a transcript, or why there is none."""
        return self._compiler.graph_or_reason(self._lang.words_to_ids(text))

    def scores(self, samples: np.ndarray) -> np.ndarray | str:
        """Return the scores of an utterance's frames, or why there are none.

        Args:
            samples: float32[L], at the model's rate.
        """
        stream = self._model.front_end()
        frames = np.concatenate([stream.accept(samples), stream.finish()])
        found = self._model.acoustics.log_likes(frames)
        return "scores that are NaN" if np.isnan(found).any() else found


def refuse_ctc(info: PackageInfo, folder: Path) -> None:
    """Refuse a package whose labels have no times of phones."""
    if info.kind == "ctc":
        raise UserError(
            "was trained by CTC, whose labels have no times of phones",
            file=folder,
            remedy="take a package of a GMM system, or of a network of another kind",
        )
