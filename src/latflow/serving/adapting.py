"""The stage that adapts a package of a GMM system to a corpus with transcripts."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.gmm.adaptation import SPEAKER_TRANSFORMS
from latflow.gmm.alignment import align_split
from latflow.gmm.estep import accumulate
from latflow.gmm.model import ALIGNMENT_MODEL, AcousticModel, GmmSystem
from latflow.gmm.options import AlignAdaptedOptions, MapOptions
from latflow.gmm.sat import pair_statistics
from latflow.gmm.source import FrameSource, SpeakerTransforms
from latflow.gmm.train import known_alignments
from latflow.gmm.update import map_means
from latflow.graphs.options import GraphOptions
from latflow.parallel import worker_pool
from latflow.serving.aligning import AlignmentTask
from latflow.serving.package import GmmPackage
from latflow.serving.package_info import (
    PackageInfo,
    read_info,
)
from latflow.serving.packaging import rewrite_package

log = logging.getLogger(__name__)


def adapt_package(
    task: AlignmentTask,
    out_dir: Path,
    *,
    options: MapOptions,
    align: AlignAdaptedOptions,
) -> None:
    """Write a package with the means of its Gaussians adapted to a split (stage).

    The split is aligned, by a system that adapts to speakers in its two passes; then
    the means are estimated with those of the package as prior (`map_means`), from
    features after the speakers' transforms, and those of the alignment model from
    features before them. Aligned with these means it continues so. Nothing else of the
    package changes.

    Args:
        task: the split.
        out_dir: the new package, replaced as a whole.
        options: of the estimation.
        align: of the search.

    Raises:
        UserError: the package is faulty or not of a GMM system, the lexicon has a phone
            that it has not, or too many utterances fail.
    """
    check_adaptable(read_info(task.package_dir), task.package_dir)
    package = GmmPackage.load(task.package_dir, trust_code=task.trust_code)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".tmp.", dir=out_dir.parent) as scratch,
        task.frames(package.info, Path(scratch), package.info.name) as (store, split),
    ):
        plain = FrameSource(store, package.system.transform, np.arange(len(store)))

        def do_align(system: GmmSystem) -> None:
            graph = GraphOptions()
            align_split(
                system, store, split, options=align, graph=graph, threads=task.threads
            )

        adapted = package.system
        for number in range(1, options.num_iterations + 1):
            adapted, log_like = _adapted(
                package.system,
                adapted,
                plain,
                split.out_dir,
                do_align,
                options,
                task.threads,
            )
            log.info(
                "iteration %d: log-likelihood %.4f a frame before", number, log_like
            )
    with atomic_directory(out_dir) as folder:
        _write(package, adapted, folder)
        GmmPackage.load(folder, trust_code=task.trust_code)


def check_adaptable(info: PackageInfo, folder: str | Path) -> None:
    """Refuse a package whose system has no Gaussians.

    Args:
        info: of the package.
        folder: named in the message.

    Raises:
        UserError: it is a network's.
    """
    if info.kind != "gmm":
        raise UserError(
            f"{info.name} is a network, and adaptation moves the means of Gaussians",
            file=folder,
            remedy="align without --adapt (export_alignments.adapt: null), or name a "
            "package of a GMM system",
        )


def _adapted(
    old: GmmSystem,
    present: GmmSystem,
    plain: FrameSource,
    aligned: Path,
    align: Callable[[GmmSystem], None],
    options: MapOptions,
    threads: int,
) -> tuple[GmmSystem, float]:
    """Align once and adapt once.

    Args:
        old: has the means of the prior.
        present: aligns, and shares frames out among Gaussians.
        plain: features before the transforms of speakers.
        aligned: folder that `align` writes to.

    Returns:
        (the system with new means, log-likelihood of a frame with the present ones).
    """
    align(present)
    transition_ids = np.zeros(plain.num_frames, np.int32)
    for u, ids in known_alignments(plain, aligned / "ali.ark"):
        transition_ids[plain.begin[u] : plain.begin[u + 1]] = ids

    def moved(model: AcousticModel, moments: np.ndarray) -> AcousticModel:
        gmms = map_means(model.gmms, moments, options.tau)
        return AcousticModel(model.transitions, gmms)

    with worker_pool(threads) as pool:
        source = plain
        if old.is_speaker_adapted:
            transforms = SpeakerTransforms.load(aligned / SPEAKER_TRANSFORMS)
            source = plain.with_speaker_transforms(transforms)
        found = accumulate(present.model, source, transition_ids, pool)
        model = twin = moved(old.model, found.moments)
        if old.is_speaker_adapted:
            of_plain = pair_statistics(
                present.model, source, plain, transition_ids, pool
            )
            twin = moved(old.alignment_model, of_plain[1])
    system = GmmSystem(old.tree, model, old.transform, twin)
    return system, found.log_like_per_frame


def _write(package: GmmPackage, system: GmmSystem, folder: Path) -> None:
    """Write a package with other models."""

    def change(folder: Path) -> None:
        system.model.save(folder / "model/final.mdl")
        if system.is_speaker_adapted:
            system.alignment_model.save(folder / "model" / ALIGNMENT_MODEL)

    rewrite_package(package.folder, package.info, folder, change)
