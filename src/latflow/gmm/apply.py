"""Stages: a split's features and log-likelihoods under a finished system.

    adapt_frames         what the model takes, as a `FrameStore` for networks
    write_features       the same as Kaldi's archive of matrices, float32 [T, D]
    write_log_likes      log-likelihoods of all pdfs, float32 [T, P], unscaled

A network on features that are adapted to each speaker starts where the GMM system
stands: LDA and MLLT have made the features plain, fMLLR has made the speakers alike.
For the training set transforms come from its alignments, for other sets from the first
passes of their decoding, so that nothing of their transcripts is used.

Of the archives the first goes to `gmm-latgen-faster` and `gmm-align-compiled`, the
second to `latgen-faster-mapped` and `align-compiled-mapped`. All three stages stream:
memory holds a few utterances a thread, and the number of threads never changes a byte.

Source: Kaldi `steps/nnet/make_fmllr_feats.sh`, `featbin/transform-feats.cc`,
`gmmbin/gmm-compute-likes.cc`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.files import atomic_directory, atomic_output
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import FrameSource, SpeakerTransforms
from latflow.kaldi.io import KaldiWriter
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool


def adapt_frames(
    frames_dir: Path,
    model_dir: Path,
    transforms: Path | None,
    out_dir: Path,
    *,
    threads: int,
) -> None:
    """Write the features of a system as a `FrameStore` (stage).

    Args:
        frames_dir: the `FrameStore` that the system starts from.
        transforms: its `trans.ark` for the speakers of this set; None where the system
            does not adapt.
        out_dir: the new store, replaced as a whole.

    Raises:
        UserError: the system adapts but no transforms are given, or dimensions differ.
    """
    source, _ = open_adapted(model_dir, frames_dir, transforms)
    store = source.store
    with (
        worker_pool(threads) as pool,
        atomic_directory(out_dir) as folder,
        FrameWriter(
            folder,
            dim=source.dim,
            frame_shift=store.frame_shift,
            meta={"system": Path(model_dir).name},
        ) as writer,
    ):
        frames = in_order(pool, source.frames, range(len(store)), ahead=2 * threads)
        for i, values in enumerate(progress(frames, "adapt frames", total=len(store))):
            writer.append(store.utt_ids[i], store.speakers[i], store.texts[i], values)


def write_features(
    system_dir: Path,
    frames_dir: Path,
    out_ark: Path,
    *,
    transforms: Path | None = None,
    scp: Path | None = None,
    threads: int = 1,
) -> None:
    """Write the features of a split as a system's model takes them.

    Args:
        frames_dir: the `FrameStore` of the split.
        out_ark: the archive, binary.
        transforms: `trans.ark` of the split's speakers, for an adapted system.
        scp: also write a table of offsets in the archive; None for none.

    Raises:
        UserError: system, frames and transforms do not fit each other, or the
            archive's name asks for packing.
    """
    source, _ = _open(system_dir, frames_dir, transforms)
    _write(source, source.frames, out_ark, scp, threads)


def write_log_likes(
    system_dir: Path,
    frames_dir: Path,
    out_ark: Path,
    *,
    transforms: Path | None = None,
    scp: Path | None = None,
    threads: int = 1,
) -> None:
    """Write the log-likelihoods of a split, natural logarithms, without a scale.

    An adapted system is asked by its model for adapted features where `transforms` is
    given, else by its model for unadapted ones. Arguments are those of
    `write_features`, and so are errors.
    """
    source, system = _open(system_dir, frames_dir, transforms)
    model = system.alignment_model if transforms is None else system.model

    def log_likes(u: int) -> np.ndarray:
        return model.gmms.log_likelihoods(source.frames(u))

    _write(source, log_likes, out_ark, scp, threads)


def open_adapted(
    system_dir: Path, frames_dir: Path, transforms: Path | None
) -> tuple[FrameSource, GmmSystem]:
    """Read the features that the model of a system is for, and the system.

    Args:
        system_dir: folder of the system.
        frames_dir: the `FrameStore` of a split.
        transforms: `trans.ark` of the split's speakers; None where the system does not
            adapt.

    Raises:
        UserError: the system adapts but no transforms are given, or dimensions differ.
    """
    source, system = _open(system_dir, frames_dir, transforms)
    if system.is_speaker_adapted and transforms is None:
        raise UserError(
            "the system adapts to speakers, but no transforms are given",
            file=system_dir,
            remedy="name the trans.ark of this set",
        )
    return source, system


def _open(
    system_dir: Path, frames_dir: Path, transforms: Path | None
) -> tuple[FrameSource, GmmSystem]:
    """Read what the features are made of, and check that it fits."""
    store, system = FrameStore.load(frames_dir), GmmSystem.load(system_dir)
    system.model.gmms.check_dim(system.transform.dim_out(store.dim))
    adapt = None
    if transforms is not None:
        adapt = SpeakerTransforms.load(transforms)
        adapt.check_dim(system.model.gmms.dim, transforms)
    everything = np.arange(len(store))
    source = FrameSource(
        store, system.transform, everything, cache_bytes=0, speaker_transforms=adapt
    )
    return source, system


def _write(
    source: FrameSource,
    make: Callable[[int], np.ndarray],
    path: Path,
    scp: Path | None,
    threads: int,
) -> None:
    """Write make(u) of every utterance u of a source, and where each begins."""
    if Path(path).suffix == ".gz":
        raise UserError(
            "archives of matrices are written unpacked",
            file=path,
            remedy="give it a name that does not end in .gz",
        )

    def as_bytes(u: int) -> bytes:
        stream = io.BytesIO()
        KaldiWriter(stream).write_float_matrix(make(u))
        return stream.getvalue()

    lines = []
    with (
        worker_pool(threads) as pool,
        nullcontext() if scp is None else atomic_output(scp) as table,
        atomic_output(path) as temporary,
        temporary.open("wb") as stream,
    ):
        items = in_order(pool, as_bytes, range(len(source)), ahead=2 * threads)
        name = f"write {Path(path).name}"
        for u, raw in enumerate(progress(items, name, len(source))):
            key = source.utt_id(u)
            stream.write(f"{key} ".encode())
            lines.append(f"{key} {path}:{stream.tell()}\n")
            stream.write(raw)
        if table is not None:
            table.write_text("".join(lines), encoding="utf-8")
