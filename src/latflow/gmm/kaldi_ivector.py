"""An i-vector extractor as the files that Kaldi's online decoder reads.

    final.ie           factors of the means, inverse covariances, offset
    final.dubm         background mixture
    final.mat          projection of spliced frames; what it adds in the last column
    splice.conf        frames on either side
    online_cmvn.conf   no CMVN before the mixture, as in training here
    global_cmvn.stats  mean of the frames: Kaldi wants the file, for CMVN only

Other options of the extraction (`num_gselect`, ...) are those of the program that reads
them.

Public: `write_ivectors`.

Source: Kaldi `ivector/ivector-extractor.cc`, `gmm/diag-gmm.cc` (`Write`),
`online2/online-ivector-feature.{h,cc}`, `feat/online-feature.{h,cc}`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latflow.files import write_text
from latflow.gmm.ivector import FrameProjection, IvectorModel
from latflow.kaldi.io import KaldiWriter, write_matrix


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
    write_text(folder / "online_cmvn.conf", "--norm-means=false\n--norm-vars=false\n")
    write_matrix(folder / "global_cmvn.stats", _statistics(projection))


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
