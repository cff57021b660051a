"""An i-vector extractor as the files that Kaldi's online decoder reads.

    final.ie           factors of the means, inverse covariances, offset
    final.dubm         background mixture
    final.mat          projection of spliced frames; what it adds in the last column
    splice.conf        frames on either side
    online_cmvn.conf   CMVN of the frames that Gaussians are chosen on; none in training
                       here
    global_cmvn.stats  statistics that it begins with; without CMVN those of one frame,
                       as Kaldi wants the file

Other options of the extraction (`num_gselect`, ...) are those of the program that reads
them: Vosk has them built in, Kaldi's programs read `ivector_extractor.conf`.

Source: Kaldi `ivector/ivector-extractor.cc`, `gmm/diag-gmm.cc` (`Write`, `Read`),
`online2/online-ivector-feature.{h,cc}`, `feat/online-feature.{h,cc}`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn_options import OnlineCmvn
from latflow.files import write_text
from latflow.gmm.ivector import Extractor, FrameProjection, IvectorModel
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.kaldi.conf import options_of, read_known
from latflow.kaldi.io import KaldiReader, KaldiWriter, read_matrix, write_matrix

_SAME = "take all files of the folder from one training"
_CMVN = {
    "norm-means": "norm_means", "norm-vars": "norm_vars", "cmn-window": "window",
    "global-frames": "global_frames",
}  # fmt: skip
_EXTRACTION = {
    "num-gselect": "num_gselect", "min-post": "min_post",
    "posterior-scale": "posterior_scale", "max-count": "max_count",
    "ivector-period": "period", "max-remembered-frames": "max_remembered_frames",
}  # fmt: skip
# Paths of the other files, and which i-vector a chunk of scores takes.
_IGNORED = (
    "cmvn-config", "diag-ubm", "global-cmvn-stats", "greedy-ivector-extractor",
    "ivector-extractor", "lda-matrix", "splice-config", "use-most-recent-ivector",
)  # fmt: skip


def write_ivectors(model: IvectorModel, folder: Path) -> None:
    """Write the files into a folder, see the module."""
    with KaldiWriter.open(folder / "final.ie") as writer:
        _write_extractor(writer, model)
    with KaldiWriter.open(folder / "final.dubm") as writer:
        model.ubm.write_only_mixture(writer)
    projection = model.projection
    added = -projection.matrix @ projection.mean
    affine = np.column_stack((projection.matrix, added))
    write_matrix(folder / "final.mat", affine.astype(np.float32))
    sides = f"--left-context={projection.context}\n--right-context={projection.context}"
    write_text(folder / "splice.conf", f"{sides}\n")
    lines, statistics = ("--norm-means=false", "--norm-vars=false"), model.cmvn_stats
    if (cmvn := model.cmvn) is not None:
        lines = (
            f"--norm-vars={str(cmvn.norm_vars).lower()}",
            f"--cmn-window={cmvn.window}",
            f"--global-frames={cmvn.global_frames}",
        )
    if statistics is None:
        statistics = _statistics(projection)
    write_text(folder / "online_cmvn.conf", "".join(f"{line}\n" for line in lines))
    write_matrix(folder / "global_cmvn.stats", statistics)


def _write_extractor(writer: KaldiWriter, model: IvectorModel) -> None:
    """Write Kaldi's `IvectorExtractor`."""
    extractor = model.extractor
    writer.write_token("<IvectorExtractor>")
    writer.write_token("<w>")  # weights do not depend on i-vectors
    writer.write_float_matrix(np.zeros((0, 0)))
    writer.write_token("<w_vec>")
    writer.write_float_vector(model.ubm.weights.astype(np.float64))
    writer.write_token("<M>")
    writer.write_int32(len(extractor.matrices))
    for matrix in extractor.matrices:
        writer.write_float_matrix(matrix)
    writer.write_token("<SigmaInv>")
    for inverse in extractor.inverses:
        writer.write_symmetric_matrix(inverse)
    writer.write_token("<IvectorOffset>")
    writer.write_float64(extractor.offset)
    writer.write_token("</IvectorExtractor>")


def _statistics(projection: FrameProjection) -> np.ndarray:
    """Return CMVN statistics of one frame, of the frames' mean and variance one."""
    dim = len(projection.mean) // (2 * projection.context + 1)
    mean = projection.mean[projection.context * dim :][:dim]
    return np.array([[*mean, 1.0], [*(np.square(mean) + 1.0), 0.0]])


# -- and back ------------------------------------------------------------------------


def read_ivectors(
    folder: Path, dim: int, *, features: str, conf: Path | None = None
) -> IvectorModel:
    """Read the files of a folder, see the module.

    Args:
        folder: the folder.
        dim: numbers of a frame.
        features: name of the frames.
        conf: options of the extraction, as `prepare_online_decoding.sh` writes them;
            None for those that Vosk has built in, our defaults.

    Raises:
        UserError: a file is missing or garbled, has what ours does not do, or does not
            fit the others.
    """
    projection = _read_projection(folder, dim)
    with KaldiReader.open(folder / "final.dubm") as reader:
        ubm = DiagGmms.read_only_mixture(reader)
    extractor = _read_extractor(folder / "final.ie")
    num_gaussians, size, ivector_dim = extractor.matrices.shape
    rows = len(projection.matrix)
    for path, found, wanted in (
        (folder / "final.dubm", ubm.means_invvars.shape, (num_gaussians, rows)),
        (folder / "final.ie", (num_gaussians, size), (num_gaussians, rows)),
    ):
        if found != wanted:
            raise UserError(
                "{} Gaussians of dimension {}".format(*found)
                + ", where final.ie and final.mat have {} and {}".format(*wanted),
                file=path,
                remedy=_SAME,
            )
    mixture = ubm.gconsts, ubm.weights, ubm.means_invvars, ubm.inv_vars
    _check_finite(folder / "final.dubm", *mixture)
    cmvn = _read_cmvn(folder / "online_cmvn.conf")
    statistics = read_statistics(folder / "global_cmvn.stats", dim)
    sizes = {
        "dim": ivector_dim,
        "num_gaussians": num_gaussians,
        "context": projection.context,
        "feature_dim": rows,
    }
    settings = {} if conf is None else _read_extraction(conf)
    options = options_of(
        IvectorOptions,
        {"features": features, "history": "utterance", **sizes, **settings},
        conf or folder,
    )
    return IvectorModel(
        projection, ubm, extractor, options, cmvn, None if cmvn is None else statistics
    )


def read_statistics(path: Path, dim: int) -> np.ndarray:
    """Read CMVN statistics of frames of `dim` numbers, float64 [2, dim + 1].

    Raises:
        UserError: they are of other frames, or of none.
    """
    statistics = read_matrix(path).astype(np.float64)
    if statistics.shape != (2, dim + 1):
        rows, columns = statistics.shape
        raise UserError(
            f"statistics of {rows} x {columns} numbers, for frames of {dim}", file=path
        )
    _check_finite(path, statistics)
    if statistics[0, -1] < 1:
        raise UserError("CMVN statistics of no frames", file=path)
    return statistics


def _read_projection(folder: Path, dim: int) -> FrameProjection:
    """Read `final.mat` and `splice.conf`.

    Kaldi adds the last column where we subtract a mean before the matrix: the shortest
    that comes to the same.
    """
    path, conf = folder / "final.mat", folder / "splice.conf"
    sides = read_known(conf, {f"{s}-context": s for s in ("left", "right")})
    left, right = (sides.get(side, "4") for side in ("left", "right"))
    if left != right or not (left.isascii() and left.isdecimal() and int(left) <= 20):
        raise UserError(
            f"frames are spliced with {left[:40]} to the left and {right[:40]} to the "
            "right",
            file=conf,
            remedy="only as many on both sides are supported, 20 at most",
        )
    matrix = read_matrix(path).astype(np.float64)
    _check_finite(path, matrix)
    width = (2 * int(left) + 1) * dim
    if not len(matrix) or matrix.shape[1] not in {width, width + 1}:
        rows, columns = matrix.shape
        raise UserError(
            f"a matrix of {rows} x {columns}, for {2 * int(left) + 1} frames of {dim}",
            file=path,
            remedy="splice.conf and final.mat must be of the frames of conf/",
        )
    added = np.zeros(len(matrix))
    if matrix.shape[1] > width:
        matrix, added = matrix[:, :width].copy(), matrix[:, width]
    mean = np.linalg.lstsq(matrix, -added)[0]
    if not np.allclose(matrix @ mean, -added, rtol=1e-6, atol=1e-6):
        raise UserError(
            "the last column is of no mean: rows of the matrix depend on each other",
            file=path,
            remedy="train the extractor with fewer dimensions",
        )
    return FrameProjection(int(left), mean, matrix)


def _read_extractor(path: Path) -> Extractor:
    """Read Kaldi's `IvectorExtractor`."""
    with KaldiReader.open(path) as reader:
        reader.expect("<IvectorExtractor>")
        reader.expect("<w>")
        if reader.float_matrix().size:
            raise UserError(
                "weights of Gaussians depend on i-vectors",
                file=path,
                remedy="only extractors of ivector-extractor-init --use-weights=false "
                "are supported",
            )
        reader.expect("<w_vec>")
        reader.float_vector()
        reader.expect("<M>")
        matrices = [reader.float_matrix() for _ in range(reader.int32())]
        reader.expect("<SigmaInv>")
        inverses = [reader.symmetric_matrix() for _ in matrices]
        reader.expect("<IvectorOffset>")
        offset = reader.float32()
        reader.expect("</IvectorExtractor>")
    shapes = {matrix.shape for matrix in matrices}
    dim = next(iter(shapes))[0] if len(shapes) == 1 else 0
    if not dim or {inverse.shape for inverse in inverses} != {(dim, dim)}:
        raise UserError(
            "Gaussians of different dimensions, or none", file=path, remedy=_SAME
        )
    extractor = Extractor(
        np.stack(matrices).astype(np.float64),
        np.stack(inverses).astype(np.float64),
        offset,
    )
    _check_finite(path, extractor.matrices, extractor.inverses, np.array(offset))
    try:
        np.linalg.cholesky(extractor.inverses)
    except np.linalg.LinAlgError:
        raise UserError(
            "covariances that are not positive", file=path, remedy=_SAME
        ) from None
    return extractor


def _read_cmvn(path: Path) -> OnlineCmvn | None:
    """Read how frames are normalized before Gaussians are chosen; None: not at all."""
    ignored = ("speaker-frames",)  # none is known of a speaker
    values = read_known(path, _CMVN, ignored=ignored)
    if values.pop("norm_means", "true") != "false":
        return options_of(OnlineCmvn, values, path)
    if values.get("norm_vars", "false") != "false":
        raise UserError(
            "--norm-vars=true is not supported without --norm-means=true", file=path
        )
    return None


def _read_extraction(path: Path) -> dict[str, str]:
    """Read options of the extraction; with Kaldi's default where it is not ours."""
    fixed = {"online-cmvn-iextractor": "false"}
    values = read_known(path, _EXTRACTION, fixed=fixed, ignored=_IGNORED)
    return {"max_count": "0", **values}


def _check_finite(path: Path, *arrays: np.ndarray) -> None:
    """Refuse NaN and infinite numbers."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise UserError("numbers that are not finite", file=path, remedy=_SAME)
