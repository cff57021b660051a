"""Stages that train GMM-HMM systems: monophones and triphones on delta features.

Source: Kaldi `steps/train_mono.sh`, `steps/train_deltas.sh`.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output
from latflow.gmm.initial import equal_alignment, flat_start, from_leaf_statistics
from latflow.gmm.model import AcousticModel
from latflow.gmm.schedule import Schedule, Training, run_schedule, write_history
from latflow.gmm.source import FrameSource
from latflow.gmm.training_graphs import TrainingGraphs, compile_graphs
from latflow.gmm.update import mix_up
from latflow.gmm.workers import worker_pool
from latflow.hmm.alignment import convert
from latflow.hmm.questions import cluster_phones
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import TreeStatistics
from latflow.kaldi_io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.ledger import Ledger

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
    device: str = "cpu",
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
        device: where the E-step is computed.

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
    ledger = Ledger(Path(out_dir).name)
    schedule = Schedule.from_options(options)
    with worker_pool(threads) as pool, _training(
        source, lang, tree, model.transitions, out_dir, pool=pool, seed=options["seed"],
        device=device,
    ) as training:
        model = _from_equal_alignment(model, training, schedule, ledger)
        model = run_schedule(
            model,
            training,
            schedule,
            name=Path(out_dir).name,
            initial_gaussians=tree.num_pdfs,
        )
        _finish(out_dir, model, tree, training, schedule, ledger, began=began,
                max_skipped_fraction=max_skipped_fraction)


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
    device: str = "cpu",
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
        device: where the E-step is computed.

    Raises:
        UserError: no usable data or alignments, or too many utterances fail.
    """
    began = time.perf_counter()
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    transform = FeatureTransform.from_config(options["transform"])
    source = FrameSource(store, transform, shortest(store, None))
    old = AcousticModel.load(Path(source_dir) / "final.mdl").transitions
    ledger = Ledger(Path(out_dir).name)
    statistics = tree_statistics(source, alignments, old, lang, options)
    tree = grow_tree(statistics, lang, options)
    counts, sums, squares = leaf_statistics(statistics, tree)
    rng = np.random.default_rng([options["seed"], 0])
    gmms = mix_up(
        from_leaf_statistics(counts, sums, squares),
        counts,
        options["num_leaves"],
        rng,
        power=_FIRST_POWER,
    )
    model = AcousticModel(TransitionModel.from_tree(tree, lang.topology), gmms)
    schedule = Schedule.from_options(options)
    with worker_pool(threads) as pool, _training(
        source, lang, tree, model.transitions, out_dir, pool=pool, seed=options["seed"],
        device=device,
    ) as training:
        for u, ids in known_alignments(source, alignments):
            mine = training.alignment[source.begin[u] : source.begin[u + 1]]
            mine[:] = convert(ids, old, model.transitions, tree)
        model = run_schedule(
            model,
            training,
            schedule,
            name=Path(out_dir).name,
            initial_gaussians=options["num_leaves"],
        )
        _finish(out_dir, model, tree, training, schedule, ledger, began=began,
                max_skipped_fraction=max_skipped_fraction)
