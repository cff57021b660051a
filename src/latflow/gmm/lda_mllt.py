"""Stage that trains triphones on spliced, projected features: LDA and MLLT.

Several frames beside each other are projected by LDA to a few dimensions that tell the
pdfs of the source system apart; a tree is grown on these; and in some iterations of
training MLLT turns the features so that diagonal covariances fit.

Source: Kaldi `steps/train_lda_mllt.sh`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.features.frames import FrameStore
from latflow.features.transform import Chain, Linear, Splice
from latflow.files import atomic_output
from latflow.gmm.lda import LdaAccumulator, LdaEstimate, estimate_lda
from latflow.gmm.mllt import MlltAccumulator, estimate_mllt, transform_means
from latflow.gmm.model import AcousticModel
from latflow.gmm.schedule import Training, run_schedule
from latflow.gmm.source import FrameSource
from latflow.gmm.train import (
    System,
    known_alignments,
    model_of_tree,
    shortest,
    take_alignments,
)
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import KaldiWriter
from latflow.lang.directory import Lang
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)

FULL_MATRIX = "full.mat"
SPLICE_OPTIONS = "splice_opts"
_BATCH_FRAMES = 65_536  # spliced frames worked on together


def train_lda_mllt(
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
    """Train a triphone system on features from LDA and MLLT.

    Writes `final.mdl`, `tree`, `transform.json`, `final.mat` (LDA, then all MLLT),
    `full.mat` (all directions of LDA), `splice_opts`, `iterations.tsv`, `ledger.jsonl`
    and `info.json`.

    Args:
        frames_dir: the `FrameStore` of the training data.
        lang_dir: the lang directory.
        alignments: `ali.ark` of the training data, made with the source system.
        source_dir: folder of the source system.
        out_dir: where the system goes.
        options: of the system (type `lda_mllt` in `workflow/schemas/gmm.yaml`), with
            `graph`, `seed` and `device`. Frames are spliced as they are stored;
            `transform`, which serves the other types, does not apply.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail to align.

    Raises:
        UserError: no usable data or alignments, too few pdfs for the dimension wanted,
            or too many utterances fail.
    """
    began = time.perf_counter()
    options = {key: value for key, value in options.items() if key != "transform"}
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    utterances = shortest(store, options["subset_shortest"])
    splice = Splice(options["splice_left"], options["splice_right"])
    old = AcousticModel.load(Path(source_dir) / "final.mdl").transitions
    if Path(alignments).with_name("trans.ark").exists():
        log.info("alignments of an adapted system; LDA takes its frames unadapted")
    # The spliced frames are needed once, so nothing of them is kept.
    spliced = FrameSource(store, splice, utterances, cache_bytes=0)
    lda = lda_of(spliced, alignments, old, lang, options, threads=threads)
    projection = lda.matrix(options["lda_dim"])
    source = FrameSource(store, Chain([splice, Linear(projection)]), utterances)
    tree, model, _ = model_of_tree(source, alignments, old, lang, options)
    system = System(Path(out_dir), tree, options, max_skipped_fraction)
    with system.training(source, lang, model, threads) as training:
        take_alignments(training, alignments, old, model.transitions, tree)
        refine = Mllt(
            frozenset(options["mllt_iterations"]), tuple(lang.silence_phones), splice
        )
        model = run_schedule(
            model,
            training,
            system.schedule,
            name=system.name,
            initial_gaussians=options["num_leaves"],
            refine=refine,
        )
        _write_matrix(system.folder / FULL_MATRIX, lda.full)
        _write_splice_options(system.folder / SPLICE_OPTIONS, splice)
        gains = [row.transform_gain or 0.0 for row in training.history]
        facts = {"spliced_dim": spliced.dim, "mllt_gain_per_frame": sum(gains)}
        seconds = time.perf_counter() - began
        system.finish(model, training, seconds=seconds, facts=facts)


def lda_of(
    spliced: FrameSource,
    alignments: str | Path,
    model: TransitionModel,
    lang: Lang,
    options: Mapping[str, Any],
    *,
    threads: int,
) -> LdaEstimate:
    """Estimate LDA with pdfs as classes, leaving silence out.

    Args:
        spliced: the frames.
        alignments: archive of alignments of their utterances.
        model: the transition model of the alignments.
        lang: says which phones are silence.
        options: of the system.
        threads: number of threads.

    Source: Kaldi's `ali-to-post | weight-silence-post 0.0 | acc-lda`, `est-lda`; all
    frames count here, Kaldi takes a quarter of them at random.
    """
    statistics = LdaAccumulator.zeros(model.num_pdfs, spliced.dim)
    pdf_of_id = pdfs_without(lang.silence_phones, model)
    with worker_pool(threads) as pool:
        for frames, ids in _batches(spliced, alignments):
            statistics.accumulate(frames, pdf_of_id[ids], pool)
    lda = estimate_lda(statistics, dim=options["lda_dim"])
    kept = lda.ratios[: options["lda_dim"]]
    log.info(
        "LDA on %.0f frames: %d of %d dimensions keep %.2f %% of the sum of variance "
        "ratios (first %.3f, last %.4f)",
        statistics.num_frames,
        len(kept),
        len(lda.ratios),
        100 * kept.sum() / lda.ratios.sum(),
        kept[0],
        kept[-1],
    )
    return lda


def _batches(
    source: FrameSource, alignments: str | Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (frames float32[n, D], transition-ids int32[n]) of several utterances."""
    frames: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    for u, path in known_alignments(source, alignments):
        frames.append(source.frames(u))
        ids.append(path)
        if sum(map(len, ids)) >= _BATCH_FRAMES:
            yield np.concatenate(frames), np.concatenate(ids)
            frames, ids = [], []
    if ids:
        yield np.concatenate(frames), np.concatenate(ids)


def pdfs_without(phones: Sequence[int], model: TransitionModel) -> np.ndarray:
    """Pdf of each transition-id, -1 for those of some phones and for id 0, int32."""
    pdfs = model.pdf.astype(np.int32, copy=True)
    pdfs[np.isin(model.phone, phones)] = -1
    pdfs[0] = -1
    return pdfs


@dataclass(frozen=True)
class Mllt:
    """Turns the features in some iterations of training: a `refine` of `run_schedule`.

    Attributes:
        iterations: when.
        silence_phones: phones whose frames do not count.
        splice: what comes before the matrix.
    """

    iterations: frozenset[int]
    silence_phones: tuple[int, ...]
    splice: Splice

    def __call__(
        self, model: AcousticModel, training: Training, iteration: int
    ) -> AcousticModel:
        """Estimate MLLT and move features and means by it, if it is time for that."""
        if iteration not in self.iterations:
            return model
        statistics = MlltAccumulator.zeros(model.gmms.dim)
        pdf_of_id = pdfs_without(self.silence_phones, model.transitions)
        for _, frames, ids in training.aligned_chunks():
            statistics.accumulate(
                model.gmms,
                frames,
                pdf_of_id[ids],
                training.pool,
                device=training.device,
            )
        estimate = estimate_mllt(statistics)
        log.info(
            "iteration %d: MLLT gains %.4f in log-likelihood a frame, over %.0f frames",
            iteration,
            estimate.gain_per_frame,
            estimate.count,
        )
        training.transform_gain = estimate.gain_per_frame
        present = training.source
        linear = Linear(estimate.matrix @ _matrix_of(present).astype(np.float64))
        training.source = FrameSource(
            present.store, Chain([self.splice, linear]), present.utterances
        )
        gmms = transform_means(model.gmms, estimate.matrix)
        return AcousticModel(model.transitions, gmms)


def _matrix_of(source: FrameSource) -> np.ndarray:
    """The matrix that spliced frames are projected with, float32[D, D']."""
    assert isinstance(source.transform, Chain)
    linear = source.transform.transforms[-1]
    assert isinstance(linear, Linear)
    return linear.matrix


def _write_matrix(path: Path, matrix: np.ndarray) -> None:
    """Write a matrix in Kaldi's form."""
    with KaldiWriter.open(path) as writer:
        writer.write_float_matrix(matrix.astype(np.float32))


def _write_splice_options(path: Path, splice: Splice) -> None:
    """Write the options of Kaldi's `splice-feats`."""
    line = f"--left-context={splice.left} --right-context={splice.right}\n"
    with atomic_output(path) as temporary:
        temporary.write_text(line, encoding="utf-8")
