"""Stage that trains on speaker-adapted features (speaker adaptive training, SAT).

Every speaker has an fMLLR transform. The first ones fit the source system; a tree is
grown on the features after them; and in some iterations of training they are estimated
again with the present model, each on top of the last. In the end the same Gaussians are
estimated once more from unadapted features, for first passes over new speakers.

Source: Kaldi `steps/train_sat.sh`; T. Anastasakos et al., A compact model for
speaker-adaptive training, ICSLP 1996; M. Gales 1998 (see `latflow.gmm.fmllr`) for
training with feature transforms.
"""

from __future__ import annotations

import copy
import logging
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latflow.files import atomic_output
from latflow.gmm.adaptation import (
    SPEAKER_TRANSFORMS,
    Adaptation,
    FmllrAccumulator,
    adapt_to_alignments,
)
from latflow.gmm.estep import portions, sort_by_pdf
from latflow.gmm.kernels import accumulate_pairs
from latflow.gmm.model import ALIGNMENT_MODEL, AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.options import SatOptions
from latflow.gmm.source import FrameSource, SpeakerTransforms
from latflow.gmm.train import known_alignments, train_triphones
from latflow.gmm.training import AlignedJob, Kind, Training
from latflow.gmm.update import UpdateOptions, update_gmms
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)

_COPIED = ("full.mat", "splice_opts")  # what belongs to a source's matrix, if any


@dataclass(frozen=True, eq=False, kw_only=True)
class SatJob(AlignedJob):
    """A speaker-adapted triphone system to be trained."""

    options: SatOptions


def train_sat(job: SatJob) -> None:
    """Train a triphone system on features adapted to each speaker (stage).

    Writes what `train_mono` does, and `final.alimdl` (for unadapted features),
    `trans.ark` (transforms by speaker); the feature transform is the source system's,
    not that of all systems. If `trans.ark` is beside the alignments, these are the
    first transforms.

    Raises:
        UserError: no usable data or alignments, or too many utterances fail to align.
    """
    behind, options = GmmSystem.load(job.source_dir), job.options
    # Unadapted frames are needed at the beginning and the end alone.
    plain = job.source(behind.transform, cache_bytes=0)
    kind = _Sat(options, tuple(job.lang.silence_phones), plain, job.source_dir)
    kind.transforms = _first_transforms(kind, job.alignments, behind, job.threads)
    source = job.source(behind.transform, speaker_transforms=kind.transforms)
    train_triphones(job, source, behind.model.transitions, kind)


@dataclass
class _Sat(Kind):
    """Adapts features in some iterations of training.

    Attributes:
        options: of the system.
        silence_phones: phones whose frames are weighted.
        plain: unadapted features.
        source_dir: folder of the source system.
        transforms: of all speakers so far, from unadapted features.
        history: what each estimate was worth.
    """

    options: SatOptions
    silence_phones: tuple[int, ...]
    plain: FrameSource
    source_dir: Path
    transforms: SpeakerTransforms = field(default_factory=lambda: SpeakerTransforms({}))
    history: list[Adaptation] = field(default_factory=list)

    def accumulator(self, model: AcousticModel) -> FmllrAccumulator:
        """Return what makes statistics with a model."""
        weight = self.options.fmllr.silence_weight
        return FmllrAccumulator.of(model, self.silence_phones, weight)

    def refine(
        self, model: AcousticModel, training: Training, iteration: int
    ) -> AcousticModel:
        """Adapt the features further, if it is time for that."""
        if iteration not in self.options.fmllr_iterations:
            return model
        adaptation = adapt_to_alignments(
            training.source,
            ((u, training.alignment_of(u)) for u in range(len(training.source))),
            self.accumulator(model),
            self.options.fmllr,
            training.pool,
            what=f"iteration {iteration}",
        )
        self.history.append(adaptation)
        self.transforms = adaptation.transforms.after(self.transforms)
        training.source = training.source.with_speaker_transforms(self.transforms)
        training.transform_gain = adaptation.gain_per_frame
        return model

    def finish(self, model: AcousticModel, training: Training) -> dict[str, Any]:
        """Estimate and write the alignment model; write the speakers' transforms."""
        folder, alignment = training.job.out_dir, training.alignment
        twin = estimate_alignment_model(
            model, training.source, self.plain, alignment, training.pool
        )
        twin.save(folder / ALIGNMENT_MODEL)
        self.transforms.save(folder / SPEAKER_TRANSFORMS)
        for name in _COPIED:
            if (self.source_dir / name).exists():
                with atomic_output(folder / name) as temporary:
                    temporary.write_bytes((self.source_dir / name).read_bytes())
        last = self.history[-1].num_unadapted if self.history else 0
        return {
            "num_speakers": len(self.transforms),
            "num_unadapted_speakers": last,
            "fmllr_gain_per_frame": sum(a.gain_per_frame for a in self.history),
        }


def _first_transforms(
    kind: _Sat, alignments: Path, behind: GmmSystem, threads: int
) -> SpeakerTransforms:
    """Return the transforms that the tree is grown with: known ones, or estimated."""
    known = Path(alignments).with_name(SPEAKER_TRANSFORMS)
    if known.exists():
        log.info("the first speaker transforms are those of %s", known)
        return SpeakerTransforms.load(known)
    with worker_pool(threads) as pool:
        adaptation = adapt_to_alignments(
            kind.plain,
            known_alignments(kind.plain, alignments),
            kind.accumulator(behind.model),
            kind.options.fmllr,
            pool,
            what="source system",
        )
    kind.history.append(adaptation)
    return adaptation.transforms


def estimate_alignment_model(
    model: AcousticModel,
    adapted: FrameSource,
    plain: FrameSource,
    alignment: np.ndarray,
    pool: Executor,
) -> AcousticModel:
    """Estimate the alignment model: the twin of a model for unadapted features.

    Each Gaussian of it is estimated from the frames that its counterpart in the adapted
    model holds, but from their unadapted features. It makes the first pass over a new
    speaker, and its Gaussian posteriors go with the adapted model's means.

    Args:
        plain: unadapted features of the same utterances.
        alignment: int32[sum T], transition-ids; 0 where a frame is not aligned.

    Source: Kaldi `gmmbin/gmm-acc-stats-twofeats.cc`, `gmmbin/gmm-est.cc` with
    `--remove-low-count-gaussians=false`.
    """
    counts, moments = pair_statistics(model, adapted, plain, alignment, pool)
    new = copy.copy(model.transitions)
    new.update(counts)
    return AcousticModel(new, update_all(model.gmms, moments))


def pair_statistics(
    model: AcousticModel,
    adapted: FrameSource,
    plain: FrameSource,
    alignment: np.ndarray,
    pool: Executor,
) -> tuple[np.ndarray, np.ndarray]:
    """Return statistics of unadapted features, posteriors being of adapted ones.

    Args:
        model: the model of adapted features.
        adapted: these features.
        plain: unadapted features of the same utterances.
        alignment: int32[sum T], transition-ids; 0 where a frame is not aligned.

    Returns:
        (float64[I + 1], how often each transition-id was taken;
        float64[G, 1 + 2 D], sums of posterior * [1, x, x^2]).

    Source: Kaldi `gmmbin/gmm-acc-stats-twofeats.cc`.
    """
    transitions, gmms = model.transitions, model.gmms
    counts = np.zeros(transitions.num_transition_ids + 1)
    moments = np.zeros((gmms.num_gaussians, 1 + 2 * gmms.dim))
    sources = (s.aligned_chunks(alignment, pool) for s in (adapted, plain))
    for (x, ids), (y, _) in zip(*sources, strict=True):
        counts += np.bincount(ids, minlength=len(counts))
        order, begin = sort_by_pdf(transitions.pdf[ids], gmms.num_pdfs)

        def do(pdfs: np.ndarray, x=x, y=y, order=order, begin=begin) -> None:
            accumulate_pairs(
                x, y, order, begin, pdfs, gmms.begin, gmms.factors, moments
            )

        for _ in pool.map(do, portions(np.diff(begin) * np.diff(gmms.begin))):
            pass
    counts[0] = 0
    return counts, moments


def update_all(gmms: DiagGmms, moments: np.ndarray) -> DiagGmms:
    """Estimate mixtures without removing a Gaussian.

    One with too little data keeps its mean and variance, and has a least weight.

    Args:
        moments: float64[G, 1 + 2 D], sums of posterior * [1, x, x^2].
    """
    options = UpdateOptions()
    sizes, occupancy = np.diff(gmms.begin), moments[:, 0]
    totals = np.repeat(np.add.reduceat(occupancy, gmms.begin[:-1]), sizes)
    share = np.where(
        totals > 0, occupancy / np.maximum(totals, 1e-300), 1 / np.repeat(sizes, sizes)
    )
    # As mixtures of one, which are never removed.
    single = DiagGmms.from_natural(
        np.arange(gmms.num_gaussians + 1),
        np.ones(gmms.num_gaussians),
        gmms.means_invvars,
        gmms.inv_vars,
    )
    is_rare = share <= options.min_weight
    found, _ = update_gmms(single, np.where(is_rare[:, None], 0.0, moments), options)
    weights = np.maximum(share, options.min_weight)
    weights /= np.repeat(np.add.reduceat(weights, gmms.begin[:-1]), sizes)
    return DiagGmms.from_natural(
        gmms.begin, weights, found.means_invvars, found.inv_vars
    )
