"""Feature transforms of speakers: what fMLLR estimates and adapted systems train on.

Source: Kaldi's `trans.*`, archives of matrices with speakers as keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import project
from latflow.kaldi_io import read_matrices, write_matrices


class SpeakerTransforms:
    """An affine transform a speaker; the identity for speakers without one.

    Args:
        matrices: float32[D, D + 1] by speaker, the offset in the last column.

    Raises:
        UserError: the matrices differ in size, or one is not D x (D + 1).
    """

    def __init__(self, matrices: Mapping[str, np.ndarray]) -> None:
        self.matrices = {
            speaker: np.ascontiguousarray(matrix, np.float32)
            for speaker, matrix in matrices.items()
        }
        shapes = sorted({matrix.shape for matrix in self.matrices.values()})
        if len(shapes) > 1 or any(columns != rows + 1 for rows, columns in shapes):
            raise UserError(
                f"speaker transforms of shapes {shapes}, where D x (D + 1) is needed",
                remedy="estimate them again, all on the same features",
            )

    def __len__(self) -> int:
        """Number of speakers that have a transform."""
        return len(self.matrices)

    def apply(self, speaker: str, frames: np.ndarray) -> np.ndarray:
        """Transform frames of a speaker, float32[T, D] -> float32[T, D].

        Raises:
            UserError: the frames have another dimension than the transforms.
        """
        matrix = self.matrices.get(speaker)
        if matrix is None:
            return frames
        dim = len(matrix)
        if frames.shape[1] != dim:
            raise UserError(
                f"frames of dimension {frames.shape[1]}, but the transform of speaker "
                f"{speaker} takes {dim}",
                remedy="estimate the transforms on these features",
            )
        return project(frames, matrix[:, :dim], matrix[:, dim])

    def after(self, first: SpeakerTransforms) -> SpeakerTransforms:
        """Combine two rounds: `first`, then these (Kaldi's compose-transforms)."""
        speakers = sorted(self.matrices.keys() | first.matrices.keys())
        return SpeakerTransforms(
            {
                speaker: _product(
                    self.matrices.get(speaker), first.matrices.get(speaker)
                )
                for speaker in speakers
            }
        )

    @classmethod
    def load(cls, path: str | Path) -> SpeakerTransforms:
        """Read an archive of matrices, binary or text, gunzipped if `.gz`.

        Raises:
            UserError: the file is missing or garbled, or the matrices do not fit.
        """
        try:
            return cls(dict(read_matrices(path)))
        except UserError as error:
            raise UserError(
                error.what, file=error.file or path, remedy=error.remedy
            ) from None

    def save(self, path: str | Path) -> None:
        """Write a binary archive, speakers sorted, whole or not at all."""
        write_matrices(path, sorted(self.matrices.items()))


def _product(second: np.ndarray | None, first: np.ndarray | None) -> np.ndarray:
    """The affine transform that does `first`, then `second`; None is the identity."""
    if second is None or first is None:
        known = first if second is None else second
        assert known is not None  # a speaker comes from one of the two
        return known
    dim = len(first)
    square = second[:, :dim].astype(np.float64)
    product = square @ first.astype(np.float64)
    product[:, dim] += second[:, dim]
    return product.astype(np.float32)
