"""The stage that aligns a corpus with a model package, without training.

A GMM system aligns as in its recipe: on stored frames, normalized as in training, and,
where it adapts to speakers, in two passes. A network scores utterances as a segment of
the package is scored, on a device in batches.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.align.aligner import Aligner
from latflow.align.corpus import AlignmentSummary, Split
from latflow.corpus.json_lines import Spool
from latflow.corpus.manifests import at_rate, read_cuts, samples_or_reason, text_of
from latflow.decode.align import align_scored
from latflow.decode.network_scorer import NetworkScorer
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
from latflow.gmm.alignment import align_split
from latflow.gmm.options import AlignAdaptedOptions
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainGraphOptions, GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lang.extension import extend_lang
from latflow.lang.options import LangOptions
from latflow.parallel import worker_pool
from latflow.serving.acoustics import NetworkAcoustics
from latflow.serving.package import GmmPackage, Model
from latflow.serving.package_info import PackageInfo, read_info


def align_package(
    task: AlignmentTask,
    out_dir: Path,
    *,
    options: AlignAdaptedOptions,
    device: str = "cpu",
) -> None:
    """Align all utterances of a split with a package (stage).

    Args:
        task: the split; of a package of a network its acoustic scale is used.
        out_dir: for `ali.ark` and what goes with it, for `lang/`, and, of a GMM system,
            for `features/ledger.jsonl`.
        options: of the search; `fmllr` is of systems that adapt to speakers.
        device: see `load_aligner`.

    Raises:
        UserError: the package is faulty or was trained by CTC, the lexicon has a phone
            that it has not, or too many utterances fail.
    """
    align_with(
        load_aligner(task.package_dir, device=device, trust_code=task.trust_code),
        task,
        out_dir,
        options,
    )


def load_aligner(
    path: str | Path, *, device: str = "cpu", trust_code: bool = False
) -> Model | GmmPackage:
    """Read a package to align with it.

    Args:
        path: its folder.
        device: of a network: `cpu`, `cuda` or `auto`.
        trust_code: whether code may run that the package names.

    Raises:
        UserError: as `Model.load`; or it was trained by CTC.
    """
    folder = Path(path)
    info = read_info(folder)
    refuse_ctc(info, folder)
    if info.kind == "gmm":
        return GmmPackage.load(folder, trust_code=trust_code)
    return Model.load(folder, device=device, trust_code=trust_code)


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
            UserError: a word of the transcripts has a phone that the package lacks.
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
            info: of the package; has the front end and the normalization, which has the
                statistics of these utterances, and of the training set with `online`,
                as in the recipe.
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
    """Align with a network; on a device it scores utterances in batches."""
    own = task.language(out_dir)
    search = options.replace(acoustic_scale=model.acoustic_scale)
    tree, transitions = load_model(model.folder / "model")
    compiler = TrainingGraphCompiler(own, tree, transitions)
    acoustics = model.acoustics
    assert isinstance(acoustics, NetworkAcoustics)
    aligner = Aligner(
        transitions,
        search,
        ChainGraphOptions() if acoustics.has_full_scale else GraphOptions(),
        silence_phones=[own.optional_silence],
    )
    with Spool(out_dir, MonoCut.from_dict) as spool, worker_pool(task.threads) as pool:
        cuts = at_rate(read_cuts(task.cuts), model.sample_rate, may_resample=True)
        spool.extend(cuts, file=task.cuts)
        frames = _PackageFrames(model, spool, pool)
        scorer = NetworkScorer(
            frames,
            acoustics.network,
            acoustics.normalization,
            transitions,
            acoustics.prior_scale,
            None,
            acoustics.device,
        )
        shift = model.frame_shift * model.subsampling
        number, skippable = len(frames.names), task.max_skipped_fraction
        split = Split(own, out_dir.parent.name, out_dir, number, skippable, shift)
        alignments = align_scored(
            aligner,
            scorer,
            range(number),
            lambda u: compiler.graph_or_reason(own.words_to_ids(frames.text(u))),
            pool,
            ahead=256 if acoustics.device.type == "cpu" else 2 * task.threads,
            fault_of=frames.faults.get,
        )
        facts = _first_middle(model.info)
        named = zip(frames.names, alignments, strict=True)
        split.write(named, AlignmentSummary(search), transitions, facts)


class _PackageFrames:
    """Features of utterances as the network of a package takes them, when asked for.

    Attributes:
        folder: the package.
        names: of the utterances, by their numbers.
        dim: of a frame.
        faults: reasons why utterances asked for have no frames; they get one of zeros.

    Args:
        model: the package.
        spool: the utterances, at the model's sample rate.
        pool: threads that compute.
    """

    def __init__(self, model: Model, spool: Spool[MonoCut], pool: Executor) -> None:
        self.folder, self.names = model.folder, spool.ids()
        self.faults: dict[int, str] = {}
        self._model, self._spool, self._pool = model, spool, pool
        self._lock = threading.Lock()
        self.dim = model.front_end().finish().shape[1]

    @property
    def begin(self) -> np.ndarray:
        """First frames of the utterances, as the number of their samples has them."""
        return self._begin

    @cached_property
    def _begin(self) -> np.ndarray:
        count = self._model.geometry.num_frames
        numbers = range(len(self.names))
        lengths = (max(1, count(self._cut(u).num_samples or 0)) for u in numbers)
        return np.cumsum([0, *lengths])

    def text(self, u: int) -> str:
        """Return the transcript of an utterance."""
        return text_of(self._cut(u))

    def frames(self, u: int) -> np.ndarray:
        """Return the frames of an utterance, float32 [T, D]."""
        samples = samples_or_reason(self._cut(u))
        if isinstance(samples, str):
            self.faults[u] = samples
        else:
            stream = self._model.front_end()
            found = np.concatenate([stream.accept(samples), stream.finish()])
            if len(found):
                return found
            self.faults[u] = "too short for one frame"
        return np.zeros((1, self.dim), np.float32)

    def get(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the frames of some utterances, computed side by side."""
        return list(self._pool.map(self.frames, numbers))

    def _cut(self, u: int) -> MonoCut:
        with self._lock:
            return self._spool[self.names[u]]


def refuse_ctc(info: PackageInfo, folder: Path) -> None:
    """Refuse a package whose labels have no times of phones."""
    if info.kind == "ctc":
        raise UserError(
            "was trained by CTC, whose labels have no times of phones",
            file=folder,
            remedy="take a package of a GMM system, or of a network of another kind",
        )
