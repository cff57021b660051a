"""Stages: features and log-likelihoods of a split as Kaldi's archives of matrices.

    write_features       what the model takes, float32 [T, D]
    write_log_likes      log-likelihoods of all pdfs, float32 [T, P], unscaled

The first go to `gmm-latgen-faster` and `gmm-align-compiled`, the second to
`latgen-faster-mapped` and `align-compiled-mapped`. Both stream: memory holds a few
utterances a thread, and the number of threads never changes a byte.

Source: Kaldi `featbin/transform-feats.cc`, `gmmbin/gmm-compute-likes.cc`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.gmm.kaldi_checks import check_transforms
from latflow.gmm.source import FrameSource
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.gmm.system import GmmSystem
from latflow.kaldi_io import KaldiWriter
from latflow.logs import progress
from latflow.parallel import map_in_order


def write_features(
    system_dir: str | Path,
    frames_dir: str | Path,
    out_ark: str | Path,
    *,
    transforms: str | Path | None = None,
    scp: str | Path | None = None,
    threads: int = 1,
) -> None:
    """Write the features of a split as a system's model takes them.

    Args:
        system_dir: folder of the system.
        frames_dir: the `FrameStore` of the split.
        out_ark: the archive, binary.
        transforms: `trans.ark` of the split's speakers, for an adapted system.
        scp: also write a list of places in the archive; None for none.
        threads: utterances worked on at a time.

    Raises:
        UserError: system, frames and transforms do not fit each other, or the
            archive's name asks for packing.
    """
    source, _ = _open(system_dir, frames_dir, transforms)
    _write(source, source.frames, out_ark, scp, threads)


def write_log_likes(
    system_dir: str | Path,
    frames_dir: str | Path,
    out_ark: str | Path,
    *,
    transforms: str | Path | None = None,
    scp: str | Path | None = None,
    threads: int = 1,
) -> None:
    """Write the log-likelihoods of a split, natural logarithms, without a scale.

    An adapted system is asked by its model for adapted features where `transforms` is
    given, else by its model for unadapted ones.

    Args:
        system_dir: folder of the system.
        frames_dir: the `FrameStore` of the split.
        out_ark: the archive, binary.
        transforms: `trans.ark` of the split's speakers, for an adapted system.
        scp: also write a list of places in the archive; None for none.
        threads: utterances worked on at a time.

    Raises:
        UserError: system, frames and transforms do not fit each other, or the
            archive's name asks for packing.
    """
    source, system = _open(system_dir, frames_dir, transforms)
    model = system.alignment_model if transforms is None else system.model
    _write(
        source,
        lambda u: model.gmms.log_likelihoods(source.frames(u)),
        out_ark,
        scp,
        threads,
    )


def _open(
    system_dir: str | Path, frames_dir: str | Path, transforms: str | Path | None
) -> tuple[FrameSource, GmmSystem]:
    """Read what the features are made of, and check that it fits."""
    store, system = FrameStore.load(frames_dir), GmmSystem.load(system_dir)
    system.model.gmms.check_dim(system.transform.dim_out(store.dim))
    adapt = None
    if transforms is not None:
        adapt = SpeakerTransforms.load(transforms)
        check_transforms(adapt, system.model.gmms.dim, transforms)
    everything = np.arange(len(store))
    source = FrameSource(
        store, system.transform, everything, cache_bytes=0, speaker_transforms=adapt
    )
    return source, system


def _write(
    source: FrameSource,
    make: Callable[[int], np.ndarray],
    path: str | Path,
    scp: str | Path | None,
    threads: int,
) -> None:
    """Write make(u) of every utterance u of a source, and where each begins."""
    if Path(path).suffix == ".gz":
        raise UserError(
            "archives of matrices are written unpacked",
            file=path,
            remedy="give it a name that does not end in .gz",
        )
    items = map_in_order(lambda u: _as_bytes(make(u)), range(len(source)), threads)
    items = progress(items, f"write {Path(path).name}", len(source))
    with (
        nullcontext() if scp is None else atomic_output(scp) as listed,
        atomic_output(path) as temporary,
        temporary.open("wb") as stream,
    ):
        places = _copy(source, items, stream, str(path))
        if listed is not None:
            listed.write_text("".join(places), encoding="utf-8")


def _copy(
    source: FrameSource, items: Iterable[bytes], stream: io.BufferedWriter, name: str
) -> list[str]:
    """Write the objects of an archive; returns the lines of its list of places."""
    places = []
    for u, raw in enumerate(items):
        key = source.utt_id(u)
        stream.write(f"{key} ".encode())
        places.append(f"{key} {name}:{stream.tell()}\n")
        stream.write(raw)
    return places


def _as_bytes(matrix: np.ndarray) -> bytes:
    """A matrix as Kaldi writes it in binary."""
    stream = io.BytesIO()
    KaldiWriter(stream).write_float_matrix(matrix)
    return stream.getvalue()
