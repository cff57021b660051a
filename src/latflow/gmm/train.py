"""Stages that train GMM-HMM systems: monophones and triphones on delta features.

Source: Kaldi `steps/train_mono.sh`, `steps/train_deltas.sh`,
`gmmbin/gmm-init-mono.cc`, `gmmbin/gmm-init-model.cc` (`InitAmGmm`),
`fstext/fstext-utils-inl.h` (`EqualAlign`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import FeatureTransform
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.options import DeltasOptions, MonoOptions, TreeOptions
from latflow.gmm.source import FrameSource
from latflow.gmm.training import AlignedJob, Job, Kind, Training
from latflow.gmm.update import mix_up
from latflow.graphs.options import ChainTreeOptions
from latflow.hmm.alignment import convert
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import (
    StatisticsArrays,
    TreeStatistics,
    cluster_phones,
)
from latflow.kaldi.io import read_int_vectors
from latflow.lang.directory import Lang

log = logging.getLogger(__name__)

VARIANCE_FLOOR = 0.01  # of Gaussians made of tree statistics
_NUM_WALKS = 10  # attempts to find a path that is short enough
_FLAT_START_UTTERANCES = 10
_FIRST_MIN_OCCUPANCY = 3.0  # of the first estimate, so that rare phones survive it
_FIRST_POWER = 0.2  # of mixing up the model that comes from the tree


@dataclass(frozen=True, eq=False, kw_only=True)
class MonoJob(Job):
    """A monophone system to be trained."""

    options: MonoOptions


def train_mono(job: MonoJob) -> None:
    """Train a monophone system from a flat start (stage).

    Writes `final.mdl`, `tree`, `transform.json`, `iterations.tsv`, `ledger.jsonl` and
    `info.json`.

    Raises:
        UserError: no usable data, or too many utterances fail to align.
    """
    source = job.source(FeatureTransform.from_config(job.shared.transform.values()))
    topology = job.lang.topology
    tree = ContextDependency.monophone(job.lang.phone_sets, topology.pdf_class_counts())
    first = range(min(_FLAT_START_UTTERANCES, len(source)))
    model, kind = flat_start(tree, topology, map(source.frames, first)), Kind()
    with Training.begin(job, source, tree, model) as training:
        model = _from_equal_alignment(model, training)
        count = model.gmms.num_gaussians
        model = training.run(model, kind, initial_gaussians=count)
        training.finish(model, kind)


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltasJob(AlignedJob):
    """A triphone system on delta features to be trained."""

    options: DeltasOptions


def train_deltas(job: DeltasJob) -> None:
    """Train a triphone system, with its own tree, on delta features (stage).

    Writes what `train_mono` does.

    Raises:
        UserError: no usable data or alignments, or too many utterances fail to align.
    """
    source = job.source(FeatureTransform.from_config(job.shared.transform.values()))
    old = AcousticModel.load(job.source_dir / "final.mdl").transitions
    train_triphones(job, source, old, _Deltas(job.options, job.shared.seed))


class _Deltas(Kind):
    """Mixes the first model up to one Gaussian a leaf wanted."""

    def __init__(self, options: DeltasOptions, seed: int) -> None:
        self._num_gaussians, self._seed = options.num_leaves, seed

    def start(self, model: AcousticModel, counts: np.ndarray) -> AcousticModel:
        """Return the model of iteration 1."""
        rng = np.random.default_rng([self._seed, 0])
        total = self._num_gaussians
        gmms = mix_up(model.gmms, counts, total, rng, power=_FIRST_POWER)
        return AcousticModel(model.transitions, gmms)


def train_triphones(
    job: AlignedJob, source: FrameSource, old: TransitionModel, kind: Kind
) -> None:
    """Grow a tree from alignments, and train a system with it.

    Args:
        job: the system.
        source: the utterances to train on, transformed.
        old: the transition model of the alignments.
        kind: what else is to be done.

    Raises:
        UserError: no usable alignments, or too many utterances fail to align.

    Source: Kaldi `steps/train_deltas.sh`.
    """
    options = job.options
    statistics = TreeStatistics(
        context_width=options.context_width, central_position=options.context_width // 2
    )
    ci_phones = job.lang.context_independent
    for u, ids in known_alignments(source, job.alignments):
        statistics.accumulate(source.frames(u), ids, old, ci_phones)
    tree, model, counts = _model_of_tree(statistics, job.lang, options)
    model = kind.start(model, counts)
    with Training.begin(job, source, tree, model) as training:
        for u, ids in known_alignments(source, job.alignments):
            mine = training.alignment[source.begin[u] : source.begin[u + 1]]
            mine[:] = convert(ids, old, model.transitions, tree)
        model = training.run(model, kind, initial_gaussians=options.num_leaves)
        training.finish(model, kind)


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
    number = {source.utt_id(u): u for u in range(len(source))}
    found = 0
    for utt_id, ids in read_int_vectors(path):
        u = number.get(utt_id)
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


def grow_tree(
    statistics: StatisticsArrays,
    lang: Lang,
    topology: Topology,
    options: TreeOptions | ChainTreeOptions,
) -> ContextDependency:
    """Grow a tree, with questions that are clustered from the same statistics."""
    questions = cluster_phones(
        statistics, lang.phone_sets, topology, extra_questions=lang.extra_questions
    )
    return build_tree(
        statistics,
        questions,
        lang.roots,
        topology,
        max_leaves=options.num_leaves,
        threshold=options.split_threshold,
        cluster_threshold=options.cluster_threshold,
    )


def _model_of_tree(
    statistics: TreeStatistics, lang: Lang, options: TreeOptions
) -> tuple[ContextDependency, AcousticModel, np.ndarray]:
    """Build a tree, with one Gaussian a leaf.

    Returns:
        (the tree, its first model, frames of each leaf float64[P]).
    """
    arrays, topology = statistics.arrays(), lang.topology
    tree = grow_tree(arrays, lang, topology, options)
    counts, sums, squares = leaf_statistics(arrays, tree)
    gmms = from_leaf_statistics(counts, sums, squares)
    return tree, AcousticModel(TransitionModel.from_tree(tree, topology), gmms), counts


def _from_equal_alignment(model: AcousticModel, training: Training) -> AcousticModel:
    """Make the first estimate, from states of equal length (Kaldi's iteration 0)."""
    began = time.perf_counter()
    source, seed = training.source, training.job.shared.seed
    for u in range(len(source)):
        graph = training.graph_of(u)
        num_frames = int(source.begin[u + 1] - source.begin[u])
        rng = np.random.default_rng([seed, crc32(source.utt_id(u).encode())])
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
        min_occupancy=_FIRST_MIN_OCCUPANCY,
    )


def flat_start(
    tree: ContextDependency, topology: Topology, frames: Iterable[np.ndarray]
) -> AcousticModel:
    """Give every pdf one Gaussian, that of all frames.

    Args:
        frames: float32[T, D] of some utterances.

    Raises:
        UserError: there are no frames, or a dimension does not vary.
    """
    count, first, second = 0, np.zeros(0), np.zeros(0)
    for block in frames:
        exact = block.astype(np.float64)
        count += len(exact)
        first = exact.sum(axis=0) + (first if first.size else 0.0)
        second = np.square(exact).sum(axis=0) + (second if second.size else 0.0)
    if not count:
        raise UserError(
            "no frames to start the monophone model with",
            remedy="look at the ledgers of features and corpus",
        )
    mean = first / count
    variance = second / count - mean * mean
    if not (np.isfinite(variance) & (variance > 0)).all():
        bad = int(np.argmin(np.isfinite(variance) & (variance > 0)))
        raise UserError(
            f"feature {bad} does not vary over the first utterances",
            remedy="look for silent recordings or a fault in the features",
        )
    shape = (tree.num_pdfs, len(mean))
    gmms = DiagGmms.from_moments(
        np.arange(tree.num_pdfs + 1),
        np.ones(tree.num_pdfs),
        np.broadcast_to(mean, shape),
        np.broadcast_to(variance, shape),
    )
    return AcousticModel(TransitionModel.from_tree(tree, topology), gmms)


def from_leaf_statistics(
    counts: np.ndarray, sums: np.ndarray, squares: np.ndarray
) -> DiagGmms:
    """Give every leaf of a tree the Gaussian of its statistics.

    A leaf without data gets the Gaussian of all data.

    Args:
        counts: float64[P], frames of each leaf.
        sums: float64[P, D].
        squares: float64[P, D], sums of squares.
    """
    empty = counts <= 0
    if empty.any():
        log.warning("%d leaves of the tree have no data", int(empty.sum()))
    counts = np.where(empty, counts.sum(), counts)[:, None]
    means = np.where(empty[:, None], sums.sum(axis=0), sums) / counts
    variances = np.where(empty[:, None], squares.sum(axis=0), squares) / counts
    variances = np.maximum(variances - means * means, VARIANCE_FLOOR)
    begin = np.arange(len(counts) + 1)
    return DiagGmms.from_moments(begin, np.ones(len(counts)), means, variances)


def equal_alignment(
    graph: Graph, num_frames: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Walk through a graph at random, and stay equally long in all its states.

    Args:
        graph: a training graph with self-loops.
        num_frames: T.
        rng: draws the walk.

    Returns:
        Transition-ids int32[T], or None if no path was found that has T frames.
    """
    if not graph.num_states:
        return None
    for _ in range(_NUM_WALKS):
        states, arcs = _walk(graph, rng)
        ids = graph.ilabel[arcs]
        if np.count_nonzero(ids) <= num_frames:
            return _stretched(ids, _self_loops(graph, states), num_frames)
    return None


def _walk(graph: Graph, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return states and arcs of a random path to the end, without self-loops."""
    begin, next_state = graph.arc_begin, graph.next_state
    states, arcs = [graph.start], []
    while True:
        state = states[-1]
        first, last = int(begin[state]), int(begin[state + 1])
        choices = [a for a in range(first, last) if next_state[a] != state]
        is_final = bool(np.isfinite(graph.final[state]))
        drawn = int(rng.integers(len(choices) + is_final))
        if drawn == len(choices):
            return states, arcs
        arcs.append(choices[drawn])
        states.append(int(next_state[choices[drawn]]))


def _self_loops(graph: Graph, states: list[int]) -> np.ndarray:
    """Return the self-loop of each state of a path, 0 for none, int32[N]."""
    loops = np.zeros(len(states), np.int32)
    for n, state in enumerate(states):
        for arc in range(int(graph.arc_begin[state]), int(graph.arc_begin[state + 1])):
            if graph.next_state[arc] == state and graph.ilabel[arc] > 0:
                loops[n] = graph.ilabel[arc]
                break
    return loops


def _stretched(
    ids: np.ndarray, loops: np.ndarray, num_frames: int
) -> np.ndarray | None:
    """Fill a path up to T frames with self-loops, shared out equally.

    Args:
        ids: int32[N - 1], labels between the states of the path.
        loops: int32[N], self-loop of each state, 0 for none.
        num_frames: T.
    """
    missing = num_frames - np.count_nonzero(ids)
    can_stay = np.flatnonzero(loops)
    if missing and not len(can_stay):
        return None
    repeats = np.zeros(len(loops), np.int64)
    if missing:
        each, more = divmod(missing, len(can_stay))
        repeats[can_stay] = each
        repeats[can_stay[:more]] += 1
    labels = np.zeros(2 * len(loops) - 1, np.int32)
    labels[::2], labels[1::2] = loops, ids
    counts = np.ones(len(labels), np.int64)
    counts[::2] = repeats
    counts[1::2] = ids > 0
    return np.repeat(labels, counts)
