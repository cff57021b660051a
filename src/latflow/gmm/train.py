"""Stages that train GMM-HMM systems: monophones and triphones on delta features.

Source: Kaldi `steps/train_mono.sh`, `steps/train_deltas.sh`.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output
from latflow.gmm.estep import checked_device
from latflow.gmm.initial import equal_alignment, flat_start, from_leaf_statistics
from latflow.gmm.model import AcousticModel
from latflow.gmm.schedule import Schedule, Training, run_schedule, write_history
from latflow.gmm.source import FrameSource
from latflow.gmm.system import save_transform
from latflow.gmm.training_graphs import GraphFile, on_demand
from latflow.gmm.update import mix_up
from latflow.hmm.alignment import convert
from latflow.hmm.questions import cluster_phones
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import TreeStatistics
from latflow.kaldi_io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)

_FLAT_START_UTTERANCES = 10
_FIRST_MIN_OCCUPANCY = 3.0  # of the first estimate, so that rare phones survive it
_FIRST_POWER = 0.2  # of mixing up the model that comes from the tree


def train_mono(
    frames_dir: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Train a monophone system from a flat start.

    Writes `final.mdl`, `tree`, `iterations.tsv`, `ledger.jsonl` and `info.json`.

    Args:
        frames_dir: the `FrameStore` of the training data.
        lang_dir: the lang directory.
        out_dir: where the system goes.
        options: of the system (type `mono` in `workflow/schemas/gmm.yaml`), with
            `transform`, `graph` and `seed`.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail to align.

    Raises:
        UserError: no usable data, or too many utterances fail.
    """
    began = time.perf_counter()
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    transform = FeatureTransform.from_config(options["transform"])
    source = FrameSource(store, transform, shortest(store, options["subset_shortest"]))
    classes = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone(lang.phone_sets, classes)
    first = range(min(_FLAT_START_UTTERANCES, len(source)))
    model = flat_start(tree, lang.topology, (source.frames(u) for u in first))
    system = System(Path(out_dir), tree, options, max_skipped_fraction)
    with system.training(source, lang, model, threads) as training:
        model = from_equal_alignment(model, training, system)
        model = run_schedule(
            model,
            training,
            system.schedule,
            name=system.name,
            initial_gaussians=model.gmms.num_gaussians,
        )
        system.finish(model, training, seconds=time.perf_counter() - began)


def train_deltas(
    frames_dir: str | Path,
    lang_dir: str | Path,
    alignments: str | Path,
    source_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Train a triphone system, with a tree of its own, from a system's alignments.

    Writes `final.mdl`, `tree`, `iterations.tsv`, `ledger.jsonl` and `info.json`.

    Args:
        frames_dir: the `FrameStore` of the training data.
        lang_dir: the lang directory.
        alignments: `ali.ark` of the training data, made with the source system.
        source_dir: folder of the source system.
        out_dir: where the system goes.
        options: of the system (type `deltas` in `workflow/schemas/gmm.yaml`), with
            `transform`, `graph` and `seed`.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail to align.

    Raises:
        UserError: no usable data or alignments, or too many utterances fail.
    """
    began = time.perf_counter()
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    transform = FeatureTransform.from_config(options["transform"])
    source = FrameSource(store, transform, shortest(store, options["subset_shortest"]))
    old = AcousticModel.load(Path(source_dir) / "final.mdl").transitions
    tree, model, counts = model_of_tree(source, alignments, old, lang, options)
    rng = np.random.default_rng([options["seed"], 0])
    gmms = mix_up(model.gmms, counts, options["num_leaves"], rng, power=_FIRST_POWER)
    model = AcousticModel(model.transitions, gmms)
    system = System(Path(out_dir), tree, options, max_skipped_fraction)
    with system.training(source, lang, model, threads) as training:
        take_alignments(training, alignments, old, model.transitions, tree)
        model = run_schedule(
            model,
            training,
            system.schedule,
            name=system.name,
            initial_gaussians=options["num_leaves"],
        )
        system.finish(model, training, seconds=time.perf_counter() - began)


def shortest(store: FrameStore, count: int | None) -> np.ndarray:
    """The utterances to train on: those with frames, or the shortest of them.

    Args:
        store: the frames.
        count: how many; None for all.

    Returns:
        int64[U], ascending; of equally long ones the first in the store are taken.

    Raises:
        UserError: there is none.
    """
    lengths = np.diff(store.begin)
    usable = np.flatnonzero(lengths > 0)
    if not len(usable):
        raise UserError(
            "no frames to train on",
            file=store.folder,
            remedy="look at the ledgers of corpus and features",
        )
    order = usable[np.argsort(lengths[usable], kind="stable")]
    return np.sort(order[:count])


def known_alignments(
    source: FrameSource, path: str | Path
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (utterance number, transition-ids) for the utterances of a source.

    Args:
        source: the utterances wanted.
        path: archive of alignments; other utterances in it are passed over.

    Raises:
        UserError: no utterance is in the archive, or one has another number of frames.
    """
    place = {source.utt_id(u): u for u in range(len(source))}
    found = 0
    for utt_id, ids in read_int_vectors(path):
        u = place.get(utt_id)
        if u is None:
            continue
        num_frames = int(source.begin[u + 1] - source.begin[u])
        if len(ids) != num_frames:
            raise UserError(
                f"{len(ids)} frames aligned, but the features have {num_frames}",
                file=path,
                utterance=utt_id,
                remedy="align again with the features in use",
            )
        found += 1
        yield u, ids
    if not found:
        raise UserError(
            "no utterance of the training data is aligned",
            file=path,
            remedy="align the training data with the source system",
        )


def tree_statistics(
    source: FrameSource,
    alignments: str | Path,
    model: TransitionModel,
    lang: Lang,
    *,
    context_width: int,
) -> TreeStatistics:
    """Gather statistics of phones in context (Kaldi's `acc-tree-stats`)."""
    statistics = TreeStatistics(
        context_width=context_width, central_position=context_width // 2
    )
    for u, ids in known_alignments(source, alignments):
        statistics.accumulate(source.frames(u), ids, model, lang.context_independent)
    return statistics


def grow_tree(
    statistics: TreeStatistics, lang: Lang, options: Mapping[str, Any]
) -> ContextDependency:
    """Find questions and build the tree (Kaldi's `cluster-phones`, `build-tree`)."""
    questions = cluster_phones(
        statistics,
        lang.phone_sets,
        lang.topology,
        extra_questions=lang.extra_questions,
    )
    return build_tree(
        statistics,
        questions,
        lang.roots,
        lang.topology,
        max_leaves=options["num_leaves"],
        threshold=options["split_threshold"],
        cluster_threshold=options["cluster_threshold"],
    )


def model_of_tree(
    source: FrameSource,
    alignments: str | Path,
    old: TransitionModel,
    lang: Lang,
    options: Mapping[str, Any],
) -> tuple[ContextDependency, AcousticModel, np.ndarray]:
    """Grow a tree on the frames of a source, with one Gaussian a leaf.

    Args:
        source: the frames.
        alignments: archive of alignments of the source's utterances.
        old: the transition model of the alignments.
        lang: phones, their sets and topology.
        options: of the system.

    Returns:
        (the tree, its first model, frames of each leaf float64[P]).

    Source: Kaldi `steps/train_deltas.sh` up to `gmm-init-model`.
    """
    statistics = tree_statistics(
        source, alignments, old, lang, context_width=options["context_width"]
    )
    tree = grow_tree(statistics, lang, options)
    counts, sums, squares = leaf_statistics(statistics, tree)
    gmms = from_leaf_statistics(counts, sums, squares)
    transitions = TransitionModel.from_tree(tree, lang.topology)
    return tree, AcousticModel(transitions, gmms), counts


def take_alignments(
    training: Training,
    alignments: str | Path,
    old: TransitionModel,
    new: TransitionModel,
    tree: ContextDependency,
) -> None:
    """Begin a training with the alignments of another system (Kaldi's `convert-ali`).

    Args:
        training: its alignment is overwritten where there is one in the archive.
        alignments: archive of alignments of the training's utterances.
        old: the transition model of the alignments.
        new: the transition model of the training.
        tree: the tree behind `new`.
    """
    begin = training.source.begin
    for u, ids in known_alignments(training.source, alignments):
        training.alignment[begin[u] : begin[u + 1]] = convert(ids, old, new, tree)


def from_equal_alignment(
    model: AcousticModel, training: Training, system: System
) -> AcousticModel:
    """Make the first estimate, from states of equal length (Kaldi's iteration 0)."""
    began = time.perf_counter()
    source = training.source
    for u in range(len(source)):
        graph = training.graphs(u)
        num_frames = int(source.begin[u + 1] - source.begin[u])
        rng = np.random.default_rng([training.seed, crc32(source.utt_id(u).encode())])
        if isinstance(graph, str):
            continue
        ids = equal_alignment(graph, num_frames, rng)
        if ids is not None:
            training.alignment[source.begin[u] : source.begin[u + 1]] = ids
    if not training.num_aligned():
        raise UserError(
            "no utterance is long enough for its transcript",
            file=source.store.folder,
            remedy="look for transcripts that belong to other recordings",
        )
    statistics = training.statistics(model)
    training.note(0, "equal", began, statistics)
    return training.estimate(
        model,
        statistics,
        0,
        target=model.gmms.num_gaussians,
        power=system.schedule.power,
        min_occupancy=_FIRST_MIN_OCCUPANCY,
    )


@dataclass(frozen=True)
class System:
    """A system in the making: where it goes, and how it is finished.

    Attributes:
        folder: the system's folder; its name is the system's.
        tree: its tree.
        options: of the system.
        max_skipped_fraction: share of the utterances that may fail to align.
    """

    folder: Path
    tree: ContextDependency
    options: Mapping[str, Any]
    max_skipped_fraction: float

    @property
    def name(self) -> str:
        """The system's name."""
        return self.folder.name

    @cached_property
    def schedule(self) -> Schedule:
        """When what happens in training."""
        return Schedule.from_options(self.options)

    @contextmanager
    def training(
        self,
        source: FrameSource,
        lang: Lang,
        model: AcousticModel,
        threads: int,
    ) -> Iterator[Training]:
        """Compile the training graphs and make room for alignments, for a while.

        Both lie in a scratch folder beside the system's, which goes in the end.
        """
        parent = self.folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        with (
            worker_pool(threads) as pool,
            tempfile.TemporaryDirectory(prefix=".tmp.", dir=parent) as scratch,
        ):
            compiled = on_demand(source, lang, self.tree, model.transitions)
            graphs = GraphFile(Path(scratch) / "graphs", compiled, len(source), pool)
            alignment = np.lib.format.open_memmap(
                Path(scratch) / "alignment.npy",
                mode="w+",
                dtype=np.int32,
                shape=(source.num_frames,),
            )
            yield Training(
                source,
                graphs,
                alignment,
                pool,
                [lang.optional_silence],
                self.options["seed"],
                checked_device(self.options["device"]),
            )

    def finish(
        self,
        model: AcousticModel,
        training: Training,
        *,
        seconds: float,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Check how much was left out, and write the system, the model last.

        Args:
            model: the final model.
            training: its data and history.
            seconds: time that the stage took.
            facts: what `info.json` is to say besides.

        Raises:
            UserError: more utterances than allowed could not be aligned.
        """
        ledger = Ledger(f"train_{self.name}")
        training.record(ledger, self.schedule)
        ledger.write(self.folder / "ledger.jsonl")
        ledger.check(
            len(training.source), max_skipped_fraction=self.max_skipped_fraction
        )
        write_history(self.folder / "iterations.tsv", training.history)
        last = training.history[-1]
        info = {
            "system": self.name,
            "type": self.options["type"],
            "num_phones": len(model.transitions.topology.phones),
            "num_pdfs": model.gmms.num_pdfs,
            "num_gaussians": model.gmms.num_gaussians,
            "num_transition_ids": model.transitions.num_transition_ids,
            "dim": model.gmms.dim,
            "log_like_per_frame": last.log_like_per_frame,
            "num_utterances": last.num_utterances,
            "num_frames": last.num_frames,
            "cmvn": training.source.store.meta.get("cmvn"),
            "seconds": round(seconds, 3),
            **(facts or {}),
            "options": dict(self.options),
        }
        with atomic_output(self.folder / "info.json") as temporary:
            temporary.write_text(json.dumps(info, indent=1) + "\n")
        save_transform(self.folder, training.source.transform)
        self.tree.save(self.folder / "tree")
        model.save(self.folder / "final.mdl")
