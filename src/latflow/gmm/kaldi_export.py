"""A system of ours as a directory that Kaldi's programs and scripts take.

Written is what `steps/train_*.sh`, `steps/align_*.sh` and `utils/mkgraph.sh` leave:

    final.mdl tree phones.txt num_jobs           always
    delta_opts, or splice_opts and final.mat     how features are made
    full.mat final.alimdl                        where the system has them
    cmvn_opts                                    where the normalization is known
    lang/                                        the lang directory
    graph/ {HCLG.fst,words.txt,phones.txt,phones/,num_pdfs,disambig_tid.int}
    ali.N.gz trans.N fsts.N.gz                   alignments, transforms, training graphs

so that `gmm-latgen-faster`, `gmm-align-compiled`, `latgen-faster-mapped`, `lattice-*`
and the scripts around them continue where we stop. The pieces of jobs are those of
`utils/split_data.sh` on the same data.
"""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn_options import CmvnOptions
from latflow.features.frames import FrameStore
from latflow.files import atomic_directory, atomic_output, read_json
from latflow.fst.graph import Graph
from latflow.gmm.kaldi_dir import (
    ALIGNMENTS,
    FULL_MATRIX,
    NUM_JOBS,
    TRANSFORMS,
    check_alignment,
    check_tree,
    read_num_jobs,
    write_cmvn,
    write_transform,
)
from latflow.gmm.kaldi_import import check_graph
from latflow.gmm.model import ALIGNMENT_MODEL, GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lang.compatibility import check_language
from latflow.lang.directory import Lang
from latflow.lang.prepare import copy_lang
from latflow.logs import progress
from latflow.options import adapter
from latflow.own_folder import check_own_folder
from latflow.parallel import in_order, worker_pool

GRAPHS = "fsts.{}.gz"
# What mkgraph.sh takes along of lang/phones.
_GRAPH_PHONES = (
    "align_lexicon.*",
    "disambig.int",
    "disambig.txt",
    "optional_silence.*",
    "silence.csl",
    "word_boundary.*",
)


def export_system(
    system_dir: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    graph: str | Path | None = None,
    alignments: str | Path | None = None,
    frames: str | Path | None = None,
    transforms: str | Path | None = None,
    num_jobs: int = 1,
) -> None:
    """Write a system as Kaldi's `exp/<system>`, see the module.

    Args:
        out_dir: the directory to write; must be new or empty.
        graph: `HCLG.fst` to go to `graph/`.
        alignments: `ali.ark` to be cut into `ali.N.gz`.
        frames: the `FrameStore` of the training data: speakers, for the pieces of
            jobs, and how the features were normalized.
        transforms: `trans.ark` to be cut into `trans.N`.
        num_jobs: number of pieces; more than one needs `frames`.

    Raises:
        UserError: the folder is not empty, parts do not fit each other, Kaldi's scripts
            have no form for the features, or `frames` is missing where it is needed.
    """
    check_own_folder(out := Path(out_dir))
    lang, system = Lang.load(lang_dir), GmmSystem.load(system_dir)
    store = None if frames is None else FrameStore.load(frames)
    jobs = _Jobs(store, num_jobs)
    model = system.model.transitions
    check_language(model, lang, Path(system_dir) / "final.mdl")
    check_tree(system.tree, model, Path(system_dir) / "final.mdl")
    with atomic_directory(out) as folder:
        _write_model(Path(system_dir), system, store, folder)
        (folder / "lang").mkdir()
        copy_lang(lang, folder / "lang")
        shutil.copyfile(lang.folder / "phones.txt", folder / "phones.txt")
        (folder / NUM_JOBS).write_text(f"{num_jobs}\n", encoding="utf-8")
        if graph is not None:
            (folder / "graph").mkdir()
            write_graph(Path(graph), model, lang, folder / "graph")
        if alignments is not None:
            jobs.write_alignments(Path(alignments), model, folder)
        if transforms is not None:
            jobs.write_transforms(Path(transforms), system.model.gmms.dim, folder)


def _write_model(
    system_dir: Path, system: GmmSystem, store: FrameStore | None, folder: Path
) -> None:
    """Write models, tree, and how the features are made."""
    system.model.save(folder / "final.mdl")
    system.tree.save(folder / "tree")
    if system.is_speaker_adapted:
        system.alignment_model.save(folder / ALIGNMENT_MODEL)
    cmvn = _known_cmvn(system_dir) if store is None else _cmvn(store.meta.get("cmvn"))
    if cmvn is not None:
        write_cmvn(folder, cmvn)
    write_transform(folder, system.transform, dim_out=system.model.gmms.dim)
    if (system_dir / FULL_MATRIX).is_file():
        shutil.copyfile(system_dir / FULL_MATRIX, folder / FULL_MATRIX)


def _known_cmvn(system_dir: Path) -> CmvnOptions | None:
    """Return how the features were normalized, if the system's folder says so."""
    path = system_dir / "info.json"
    if not path.is_file():
        return None
    what = "what is known of a system"
    return read_json(path, lambda info: _cmvn(info.get("cmvn")), what, "train it again")


def _cmvn(cmvn: Any) -> CmvnOptions | None:
    """Return how features were normalized, where it is known."""
    return None if cmvn is None else adapter(CmvnOptions).validate_python(cmvn)


def write_graph(path: Path, model: TransitionModel, lang: Lang, folder: Path) -> None:
    """Write a decoding graph with the tables that Kaldi's scripts want beside it.

    `disambig_tid.int` lists the labels that H makes for disambiguation symbols, one for
    each symbol of the language; a graph that uses less of them has the first ones.

    Source: Kaldi `utils/mkgraph.sh`, `hmm/hmm-utils.cc` (`GetHTransducer`).
    """
    graph = Graph.load(path)
    check_graph(graph, model, lang, path)
    graph.save(folder / "HCLG.fst")
    for name in ("words.txt", "phones.txt"):
        shutil.copyfile(lang.folder / name, folder / name)
    (folder / "phones").mkdir()
    for pattern in _GRAPH_PHONES:
        for source in sorted((lang.folder / "phones").glob(pattern)):
            shutil.copyfile(source, folder / "phones" / source.name)
    (folder / "num_pdfs").write_text(f"{model.num_pdfs}\n", encoding="utf-8")
    first = model.num_transition_ids + 1
    symbols = range(first, first + len(lang.disambig_phones))
    (folder / "disambig_tid.int").write_text(
        "".join(f"{symbol}\n" for symbol in symbols), encoding="utf-8"
    )


class _Jobs:
    """The pieces that Kaldi's jobs work on.

    Args:
        store: frames of the data, which know the speakers; None for one piece.

    Raises:
        UserError: several pieces without frames, or more than there are speakers.
    """

    def __init__(self, store: FrameStore | None, num_jobs: int) -> None:
        self.num_jobs = num_jobs
        self._job_of: dict[str, int] | None = None
        self._job_of_speaker: dict[str, int] = {}
        if store is not None:
            jobs = jobs_of_utterances(store.speakers, num_jobs).tolist()
            self._job_of = dict(zip(store.utt_ids, jobs, strict=True))
            self._job_of_speaker = dict(zip(store.speakers, jobs, strict=True))
        elif num_jobs != 1:
            raise UserError(
                f"{num_jobs} jobs: which speakers belong to each?",
                remedy="name the frames of the training data too",
            )

    def write_alignments(
        self, path: Path, model: TransitionModel, folder: Path
    ) -> None:
        """Cut an archive of alignments into the pieces, one pass for each.

        Raises:
            UserError: an utterance is not one of the frames', or an id not one of the
                model's.
        """

        def of_job(job: int) -> Iterator[tuple[str, np.ndarray]]:
            for utterance, ids in read_int_vectors(path):
                if self._job(utterance, path) == job:
                    check_alignment(ids, model, path, utterance)
                    yield utterance, ids

        for job in range(self.num_jobs):
            write_int_vectors(folder / ALIGNMENTS.format(job + 1), of_job(job))

    def _job(self, utterance: str, path: Path) -> int:
        if self._job_of is None:
            return 0
        if utterance not in self._job_of:
            raise UserError(
                "the frames have no such utterance",
                file=path,
                utterance=utterance,
                remedy="name the frames that were aligned",
            )
        return self._job_of[utterance]

    def write_transforms(self, path: Path, dim: int, folder: Path) -> None:
        """Cut an archive of speaker transforms into the pieces.

        Speakers that are not in the frames go to the last piece.

        Raises:
            UserError: a transform is of another dimension than the model.
        """
        transforms = SpeakerTransforms.load(path)
        transforms.check_dim(dim, path)
        for job in range(self.num_jobs):
            mine = {
                speaker: matrix
                for speaker, matrix in transforms.matrices.items()
                if self._job_of_speaker.get(speaker, self.num_jobs - 1) == job
            }
            SpeakerTransforms(mine).save(folder / TRANSFORMS.format(job + 1))


def export_training_graphs(
    system_dir: str | Path,
    lang_dir: str | Path,
    frames_dir: str | Path,
    out_dir: str | Path,
    *,
    threads: int = 1,
) -> None:
    """Write `fsts.N.gz`, the graphs of transcripts, beside an exported system.

    They carry no transition probabilities, which `gmm-align-compiled` adds, and are
    cut into as many pieces as `num_jobs` of the directory says. Utterances that no
    graph can be made of are left out, as in Kaldi.

    Args:
        frames_dir: the `FrameStore`, for transcripts and speakers.
        out_dir: what `export_system` wrote.

    Raises:
        UserError: there is no exported system, or the parts do not fit.
    """
    out, lang, store = Path(out_dir), Lang.load(lang_dir), FrameStore.load(frames_dir)
    path = out / NUM_JOBS
    if not path.is_file():
        raise UserError(
            "no exported system here", file=out, remedy="export the system first"
        )
    num_jobs = read_num_jobs(path)
    system = GmmSystem.load(system_dir)
    check_language(system.model.transitions, lang, Path(system_dir) / "final.mdl")
    compiler = TrainingGraphCompiler(lang, system.tree, system.model.transitions)
    jobs = jobs_of_utterances(store.speakers, num_jobs)
    for job in range(num_jobs):
        mine = np.flatnonzero(jobs == job).tolist()
        texts = (lang.words_to_ids(store.texts[u]) for u in mine)
        with (
            worker_pool(threads) as pool,
            atomic_output(out / GRAPHS.format(job + 1)) as temporary,
            gzip.GzipFile(temporary, "wb", compresslevel=6, mtime=0) as stream,
        ):
            graphs = in_order(pool, compiler.graph_or_reason, texts)
            for u, graph in zip(
                mine, progress(graphs, "training graphs", len(mine)), strict=True
            ):
                if isinstance(graph, Graph):
                    stream.write(f"{store.utt_ids[u]} ".encode())
                    graph.write_vector(cast("BinaryIO", stream))


def jobs_of_utterances(speakers: Sequence[str], num_jobs: int) -> np.ndarray:
    """Share out utterances to jobs as Kaldi's `split_data.sh` does.

    Equally many speakers a job to begin with; then the first and last speakers of a
    job go to the neighbour as long as that makes two jobs more equal in utterances.

    Args:
        speakers: of each utterance, utterances sorted by id.
        num_jobs: number of jobs, >= 1.

    Returns:
        int64[N], the job of each utterance, from 0.

    Raises:
        UserError: there are less speakers than jobs.
    """
    count = Counter(speakers)  # speakers in the order of their first utterances
    names = list(count)
    if not 1 <= num_jobs <= len(names):
        raise UserError(
            f"{len(names)} speakers cannot be shared out to {num_jobs} jobs",
            remedy="choose a number of jobs from 1 to the number of speakers",
        )
    sizes = np.array([count[name] for name in names])
    # first[j] ... first[j + 1] - 1 are the speakers of job j
    first = [-(-job * len(names) // num_jobs) for job in range(num_jobs + 1)]
    while _move_edges(first, sizes):
        pass
    job_of = dict(zip(names, np.repeat(range(num_jobs), np.diff(first)), strict=True))
    return np.array([job_of[name] for name in speakers], np.int64)


def _move_edges(first: list[int], sizes: np.ndarray) -> bool:
    """Go over all jobs once; return True if a speaker went to a neighbour."""
    has_moved = False
    for job in range(len(first) - 1):
        if job < len(first) - 2:
            has_moved |= _move_edge(first, job + 1, -1, sizes)
        if job > 0:
            has_moved |= _move_edge(first, job, 1, sizes)
    return has_moved


def _move_edge(first: list[int], edge: int, step: int, sizes: np.ndarray) -> bool:
    """Move the edge before job `edge` by a speaker if that evens the two jobs out."""
    low, middle, high = first[edge - 1], first[edge], first[edge + 1]
    if not low <= middle + step <= high:
        return False
    before, after = sizes[low:middle].sum(), sizes[middle:high].sum()
    moved = step * sizes[min(middle, middle + step)]
    if abs((after - moved) - (before + moved)) >= abs(after - before):
        return False
    first[edge] += step
    return True
