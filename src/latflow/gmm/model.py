"""Diagonal Gaussian mixture models, acoustic models, and the systems of these.

All mixtures of a model share flat arrays: the Gaussians of pdf p are rows
begin[p] ... begin[p + 1] - 1. What is stored is what Kaldi stores, in float32 and in
its exponential form, so that the arrays in memory and a saved file are the same model:

    log(w_g N(x; m_g, v_g)) = gconst_g + sum_d (m_gd / v_gd) x_d - x_d^2 / (2 v_gd)

A system lies in its folder, `gmm/<system>/`, in files with Kaldi's names:

* `final.mdl`, `tree`: model and decision tree;
* `transform.json`: the features of the model, made of the stored frames;
* `final.mat`: the matrix of that transform, where it has one (LDA and MLLT);
* `final.alimdl`: of a speaker-adapted system, the model for unadapted features.

Source: Kaldi `gmm/diag-gmm.{h,cc}`, `gmm/am-diag-gmm.{h,cc}`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import FeatureTransform
from latflow.files import reading, write_json
from latflow.gmm import kernels
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, KaldiWriter, read_matrix, write_matrix

TRANSFORM = "transform.json"
MATRIX = "final.mat"
ALIGNMENT_MODEL = "final.alimdl"
_LOG_2PI = 1.8378770664093453


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

    @cached_property
    def factors(self) -> np.ndarray:
        """Factors of [1, x, x^2] in the log-likelihood, float32[G, 1 + 2 D]."""
        squares = np.float32(-0.5) * self.inv_vars
        return np.hstack([self.gconsts[:, None], self.means_invvars, squares])

    @cached_property
    def mixtures(self) -> tuple[np.ndarray, np.ndarray]:
        """Mixtures for the kernels that score: (`begin`, `factors` as float32[G, R]).

        R is 1 + 2 D rounded up to a multiple of 4, with zeros in the columns behind.
        """
        factors = self.factors
        padded = np.zeros((len(factors), -(-factors.shape[1] // 4) * 4), np.float32)
        padded[:, : factors.shape[1]] = factors
        return self.begin.astype(np.int64), padded

    def log_likelihoods(
        self, x: np.ndarray, pdfs: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Return the log-likelihood of every frame under every mixture.

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
        wanted = np.asarray(range(self.num_pdfs) if pdfs is None else pdfs, np.int64)
        out = np.empty((len(x), len(wanted)), np.float32)
        frames = np.ascontiguousarray(x, np.float32)
        kernels.log_likelihoods(frames, self.mixtures, wanted, out)
        return out

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

    @classmethod
    def read_only_mixture(cls, reader: KaldiReader) -> DiagGmms:
        """Read Kaldi's `DiagGmm` as a model of one mixture.

        Raises:
            UserError: it is truncated, garbled or inconsistent.
        """
        arrays = [array.astype(np.float32) for array in _read_mixture(reader)]
        constants, weights, means_invvars, inv_vars = arrays
        begin = np.array([0, len(weights)])
        return cls(begin, weights, constants, means_invvars, inv_vars)

    def write(self, writer: KaldiWriter) -> None:
        """Write Kaldi's `AmDiagGmm`."""
        writer.write_token("<DIMENSION>")
        writer.write_int32(self.dim)
        writer.write_token("<NUMPDFS>")
        writer.write_int32(self.num_pdfs)
        for first, last in zip(self.begin[:-1], self.begin[1:], strict=True):
            self._write_mixture(writer, slice(first, last))

    def write_only_mixture(self, writer: KaldiWriter) -> None:
        """Write Kaldi's `DiagGmm`: the Gaussians of a model of one mixture."""
        (_,) = self.begin[1:]
        self._write_mixture(writer, slice(None))

    def _write_mixture(self, writer: KaldiWriter, which: slice) -> None:
        writer.write_token("<DiagGMM>")
        writer.end_line()
        writer.write_token("<GCONSTS>")
        writer.write_float_vector(self.gconsts[which])
        writer.write_token("<WEIGHTS>")
        writer.write_float_vector(self.weights[which])
        writer.write_token("<MEANS_INVVARS>")
        writer.write_float_matrix(self.means_invvars[which])
        writer.write_token("<INV_VARS>")
        writer.write_float_matrix(self.inv_vars[which])
        writer.write_token("</DiagGMM>")
        writer.end_line()


Mixture = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _read_mixture(reader: KaldiReader) -> Mixture:
    """Return one mixture: constants, weights, means / variances, inverse variances."""
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
            UserError: the file is missing, garbled or inconsistent, or holds a network.
        """
        with KaldiReader.open(path) as reader:
            transitions = TransitionModel.read(reader)
            kind = reader.peek_token()
            if kind.lower().startswith(("<nnet", "<components", "<numcomponents")):
                raise UserError(
                    f"a neural network ({kind}), not Gaussian mixtures",
                    file=path,
                    remedy="name the GMM system that its alignments came from",
                )
            gmms = DiagGmms.read(reader)
        if gmms.num_pdfs != transitions.num_pdfs:
            raise UserError(
                f"{gmms.num_pdfs} mixtures for {transitions.num_pdfs} pdfs",
                file=path,
                remedy="train the model again, or copy the file again",
            )
        return cls(transitions, gmms)

    def facts(self) -> dict[str, int]:
        """Return sizes for a report."""
        return {
            "num_phones": len(self.transitions.topology.phones),
            "num_pdfs": self.gmms.num_pdfs,
            "num_gaussians": self.gmms.num_gaussians,
            "num_transition_ids": self.transitions.num_transition_ids,
            "dim": self.gmms.dim,
        }

    def save(self, path: str | Path, *, binary: bool = True) -> None:
        """Write `final.mdl` atomically."""
        with KaldiWriter.open(path, binary=binary) as writer:
            self.transitions.write(writer)
            self.gmms.write(writer)


@dataclass(frozen=True, eq=False)
class GmmSystem:
    """Everything that decoding and aligning with a system need.

    Attributes:
        tree: the decision tree.
        model: for features after `transform` and, in an adapted system, after the
            transform of the speaker.
        transform: from stored frames to features.
        alignment_model: for features after `transform` alone; `model` itself in a
            system that is not adapted.
    """

    tree: ContextDependency
    model: AcousticModel
    transform: FeatureTransform
    alignment_model: AcousticModel

    @property
    def is_speaker_adapted(self) -> bool:
        """Return whether the model was trained on features adapted to each speaker."""
        return self.alignment_model is not self.model

    @classmethod
    def load(cls, folder: str | Path) -> GmmSystem:
        """Read a system's folder.

        Raises:
            UserError: a file is missing or garbled, or tree and models do not fit.
        """
        folder = Path(folder)
        model = AcousticModel.load(folder / "final.mdl")
        tree = ContextDependency.load(folder / "tree")
        path = folder / ALIGNMENT_MODEL
        alignment_model = AcousticModel.load(path) if path.exists() else model
        for part in (tree.num_pdfs, alignment_model.gmms.num_pdfs):
            if part != model.gmms.num_pdfs:
                raise UserError(
                    f"{model.gmms.num_pdfs} pdfs in final.mdl, but {tree.num_pdfs} in "
                    f"tree, {alignment_model.gmms.num_pdfs} in the alignment model",
                    file=folder,
                    remedy="take all files of a folder from one training",
                )
        return cls(tree, model, load_transform(folder), alignment_model)


def load_transform(folder: str | Path) -> FeatureTransform:
    """Read the feature transform of a system.

    Raises:
        UserError: `transform.json` or the matrix is missing or garbled.
    """
    path = Path(folder) / TRANSFORM
    remedy = "train the system again, or import it with latflow import-kaldi"
    with reading(path, "no readable feature transform", remedy):
        config = json.loads(path.read_text(encoding="utf-8"))
        for part in _linear_parts(config):
            part["matrix"] = read_matrix(path.parent / part["matrix"])
        return FeatureTransform.from_config(config)


def save_transform(folder: str | Path, transform: FeatureTransform) -> None:
    """Write the feature transform of a system.

    The matrix of a `Linear`, of which a system may have one, goes to `final.mat`.
    """
    folder = Path(folder)
    config = transform.to_config()
    linear = _linear_parts(config)
    if len(linear) > 1:
        raise ValueError("a system's features are made with one matrix at most")
    for part in linear:
        write_matrix(folder / MATRIX, np.array(part["matrix"], np.float32))
        part["matrix"] = MATRIX
    write_json(folder / TRANSFORM, config)


def _linear_parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the descriptions of matrices in that of a transform."""
    if config["type"] == "chain":
        return [p for part in config["transforms"] for p in _linear_parts(part)]
    return [config] if config["type"] == "linear" else []
