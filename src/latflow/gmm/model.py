"""Diagonal Gaussian mixture models and the acoustic model file `final.mdl`.

All mixtures of a model share flat arrays: the Gaussians of pdf p are rows
begin[p] ... begin[p + 1] - 1. What is stored is what Kaldi stores, in float32 and in
its exponential form, so that the arrays in memory and a saved file are the same model:

    log(w_g N(x; m_g, v_g)) = gconst_g + sum_d (m_gd / v_gd) x_d - x_d^2 / (2 v_gd)

Source: Kaldi `gmm/diag-gmm.{h,cc}`, `gmm/am-diag-gmm.{h,cc}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from latflow.errors import UserError
from latflow.gmm import kernels
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import KaldiReader, KaldiWriter

_LOG_2PI = 1.8378770664093453
_BLOCK_BYTES = 1 << 18  # of single Gaussians' log-likelihoods: fits the L2 cache


@dataclass(frozen=True, eq=False)
class DiagGmms:
    """All mixtures of an acoustic model; not to be changed once made.

    Attributes:
        begin: int64[P + 1], where the Gaussians of each pdf begin.
        weights: float32[G], summing to 1 within a pdf.
        gconsts: float32[G], the part of the log-likelihood that knows no x.
        means_invvars: float32[G, D], mean / variance.
        inv_vars: float32[G, D], 1 / variance.
    """

    begin: np.ndarray
    weights: np.ndarray
    gconsts: np.ndarray
    means_invvars: np.ndarray
    inv_vars: np.ndarray

    @classmethod
    def from_natural(
        cls,
        begin: np.ndarray,
        weights: np.ndarray,
        means_invvars: np.ndarray,
        inv_vars: np.ndarray,
    ) -> DiagGmms:
        """Round to float32 and compute the constants (Kaldi's `ComputeGconsts`)."""
        stored = [np.asarray(a, np.float32) for a in (weights, means_invvars, inv_vars)]
        weight, linear, inverse = (np.asarray(a, np.float64) for a in stored)
        with np.errstate(divide="ignore"):
            constants = np.log(weight) - 0.5 * linear.shape[1] * _LOG_2PI
        constants += 0.5 * (np.log(inverse) - linear * linear / inverse).sum(axis=1)
        if not np.isfinite(constants[weight > 0]).all():
            raise UserError(
                "a Gaussian without finite mean and positive variance",
                remedy="look for constant or non-finite features",
            )
        return cls(
            np.asarray(begin, np.int64),
            stored[0],
            constants.astype(np.float32),
            stored[1],
            stored[2],
        )

    @classmethod
    def from_moments(
        cls,
        begin: np.ndarray,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
    ) -> DiagGmms:
        """Make mixtures of means and variances, float64[G, D] each."""
        return cls.from_natural(begin, weights, means / variances, 1.0 / variances)

    @property
    def num_pdfs(self) -> int:
        """P, the number of mixtures."""
        return len(self.begin) - 1

    @property
    def num_gaussians(self) -> int:
        """G, the number of Gaussians of all mixtures."""
        return len(self.weights)

    @property
    def dim(self) -> int:
        """D, the dimension of the features."""
        return self.inv_vars.shape[1]

    @property
    def variances(self) -> np.ndarray:
        """Variances, float64[G, D]."""
        return 1.0 / self.inv_vars.astype(np.float64)

    @property
    def means(self) -> np.ndarray:
        """Means, float64[G, D]."""
        return self.means_invvars.astype(np.float64) * self.variances

    @property
    def pdf_of_gaussian(self) -> np.ndarray:
        """The pdf that each Gaussian belongs to, int64[G]."""
        return np.repeat(np.arange(self.num_pdfs), np.diff(self.begin))

    @cached_property
    def factors(self) -> np.ndarray:
        """Factors of [1, x, x^2] in the log-likelihood, float32[G, 1 + 2 D]."""
        squares = np.float32(-0.5) * self.inv_vars
        return np.hstack([self.gconsts[:, None], self.means_invvars, squares])

    def log_likelihoods(
        self, x: np.ndarray, pdfs: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Log-likelihood of every frame under every mixture.

        Only the Gaussians of the mixtures asked for are computed.

        Args:
            x: float32[T, D], feature frames.
            pdfs: mixtures wanted, in this order; None for all.

        Returns:
            float32[T, P], or float32[T, len(pdfs)].

        Raises:
            UserError: the frames have another dimension than the model.
        """
        self.check_dim(x.shape[1])
        begin, rows = self._select(pdfs)
        factors = torch.from_numpy(self.factors if pdfs is None else self.factors[rows])
        out = np.empty((len(x), len(begin) - 1), np.float32)
        step = max(kernels.TILE, _BLOCK_BYTES // (4 * max(1, len(factors))))
        for first in range(0, len(x), step):
            block = np.asarray(x[first : first + step], np.float32)
            powers = np.ones((1 + 2 * self.dim, len(block)), np.float32)
            powers[1 : 1 + self.dim] = block.T
            np.square(block.T, out=powers[1 + self.dim :])
            scores = factors @ torch.from_numpy(powers)
            kernels.log_sum_exp(scores.numpy(), begin, out[first : first + step])
        return out

    def _select(
        self, pdfs: Sequence[int] | np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the Gaussians of some mixtures begin, and which rows they are."""
        if pdfs is None:
            return self.begin, np.arange(self.num_gaussians)
        wanted = np.asarray(pdfs, np.int64)
        sizes = self.begin[wanted + 1] - self.begin[wanted]
        begin = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(self.begin[wanted] - begin[:-1], sizes)
        return begin, np.arange(begin[-1]) + shift

    def check_dim(self, dim: int) -> None:
        """Refuse features of another dimension than the model's.

        Raises:
            UserError: they differ.
        """
        if dim != self.dim:
            raise UserError(
                f"features of dimension {dim}, but the model is of {self.dim}",
                remedy="use the features and the transform the model was trained with",
            )

    # -- Kaldi's AmDiagGmm ------------------------------------------------------------

    @classmethod
    def read(cls, reader: KaldiReader) -> DiagGmms:
        """Read Kaldi's `AmDiagGmm`, keeping the constants it stores.

        Raises:
            UserError: it is truncated, garbled or inconsistent.
        """
        reader.expect("<DIMENSION>")
        dim = reader.int32()
        reader.expect("<NUMPDFS>")
        parts = [_read_mixture(reader) for _ in range(reader.int32())]
        if not parts:
            reader.fail("an acoustic model without mixtures")
        columns = list(zip(*parts, strict=True))
        sizes = [len(weights) for weights in columns[1]]
        arrays = [np.concatenate(column).astype(np.float32) for column in columns]
        constants, weights, means_invvars, inv_vars = arrays
        if inv_vars.shape != (len(weights), dim):
            reader.fail(f"mixtures that are not of dimension {dim}")
        begin = np.concatenate([[0], np.cumsum(sizes)])
        return cls(begin, weights, constants, means_invvars, inv_vars)

    def write(self, writer: KaldiWriter) -> None:
        """Write Kaldi's `AmDiagGmm`."""
        writer.write_token("<DIMENSION>")
        writer.write_int32(self.dim)
        writer.write_token("<NUMPDFS>")
        writer.write_int32(self.num_pdfs)
        for first, last in zip(self.begin[:-1], self.begin[1:], strict=True):
            writer.write_token("<DiagGMM>")
            writer.end_line()
            writer.write_token("<GCONSTS>")
            writer.write_float_vector(self.gconsts[first:last])
            writer.write_token("<WEIGHTS>")
            writer.write_float_vector(self.weights[first:last])
            writer.write_token("<MEANS_INVVARS>")
            writer.write_float_matrix(self.means_invvars[first:last])
            writer.write_token("<INV_VARS>")
            writer.write_float_matrix(self.inv_vars[first:last])
            writer.write_token("</DiagGMM>")
            writer.end_line()


Mixture = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _read_mixture(reader: KaldiReader) -> Mixture:
    """One mixture: constants, weights, means / variances, inverse variances."""
    reader.expect("<DiagGMM>", "<DiagGMMBegin>")
    reader.expect("<GCONSTS>")
    constants = reader.float_vector()
    reader.expect("<WEIGHTS>")
    weights = reader.float_vector()
    reader.expect("<MEANS_INVVARS>")
    means_invvars = reader.float_matrix()
    reader.expect("<INV_VARS>")
    inv_vars = reader.float_matrix()
    reader.expect("</DiagGMM>", "<DiagGMMEnd>")
    count = len(weights)
    if not count or any(len(a) != count for a in (constants, means_invvars, inv_vars)):
        reader.fail("a mixture whose parts differ in their number of Gaussians")
    if means_invvars.shape != inv_vars.shape:
        reader.fail("a mixture whose means and variances differ in dimension")
    return constants, weights, means_invvars, inv_vars


@dataclass(frozen=True, eq=False)
class AcousticModel:
    """A GMM-HMM system: Kaldi's `final.mdl`.

    Attributes:
        transitions: the transition model.
        gmms: the mixtures, one a pdf of the transition model.
    """

    transitions: TransitionModel
    gmms: DiagGmms

    @classmethod
    def load(cls, path: str | Path) -> AcousticModel:
        """Read `final.mdl`, binary or text, `.gz` or not.

        Raises:
            UserError: the file is missing, garbled or inconsistent.
        """
        with KaldiReader.open(path) as reader:
            transitions = TransitionModel.read(reader)
            gmms = DiagGmms.read(reader)
        if gmms.num_pdfs != transitions.num_pdfs:
            raise UserError(
                f"{gmms.num_pdfs} mixtures for {transitions.num_pdfs} pdfs",
                file=path,
                remedy="train the model again",
            )
        return cls(transitions, gmms)

    def save(self, path: str | Path, *, binary: bool = True) -> None:
        """Write `final.mdl`, whole or not at all."""
        with KaldiWriter.open(path, binary=binary) as writer:
            self.transitions.write(writer)
            self.gmms.write(writer)
