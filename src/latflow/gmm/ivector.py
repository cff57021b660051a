"""I-vectors: a few numbers that say how speaker and channel move all Gaussians.

Frames x of an utterance come from a mixture whose Gaussian g has covariance S_g and its
mean at M_g v, where v, the i-vector, is the same for all Gaussians and frames. Its
prior is normal, of variance one about (offset, 0, 0, ...); the first column of M_g
times the offset is the mean of all speakers. With the occupancies n_g and the sums f_g
of the frames, the posterior of v is normal:

    precision  I + sum_g n_g M_g' S_g^-1 M_g
    mean       precision^-1 (offset e_1 + sum_g M_g' S_g^-1 f_g)

Both sums are additive over frames, so that an i-vector can be had at any time: that of
frame t depends on the frames up to t alone.

Kaldi's recipes choose the Gaussians on frames with online CMVN and count them without;
what is trained here has no CMVN in either.

Source: Kaldi `ivector/ivector-extractor.{h,cc}`, `online2/online-ivector-feature.cc`,
`hmm/posterior.cc`; Karafiat et al. 2011; Saon et al. 2013.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn import CmvnState, CmvnStream
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.transform import Splice
from latflow.files import atomic_directory, reading
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.logs import progress

_MOST_CONTEXT = 1000  # frames on either side

log = logging.getLogger(__name__)

MODEL = "extractor.npz"


@dataclass(frozen=True, eq=False)
class Extractor:
    """Factors of the Gaussians' means; not to be changed once made.

    Attributes:
        matrices: float64 [G, D, S], M_g.
        inverses: float64 [G, D, D], inverse of the covariances S_g.
        offset: mean of the first element of i-vectors.
    """

    matrices: np.ndarray
    inverses: np.ndarray
    offset: float

    @property
    def dim(self) -> int:
        """Elements of an i-vector, S."""
        return self.matrices.shape[2]

    @cached_property
    def projections(self) -> np.ndarray:
        """S_g^-1 M_g of all Gaussians, float64 [G x D, S]."""
        return (self.inverses @ self.matrices).reshape(-1, self.dim)

    @cached_property
    def precisions(self) -> np.ndarray:
        """M_g' S_g^-1 M_g of all Gaussians, float64 [G, S x S]."""
        inner = self.matrices.transpose(0, 2, 1) @ self.inverses @ self.matrices
        return inner.reshape(len(inner), -1)

    def posterior(
        self, occupancy: np.ndarray, first: np.ndarray, max_count: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return means and precisions of i-vectors, float64 [U, S] and [U, S, S].

        Args:
            occupancy: float64 [U, G], n_g of each of U utterances or moments.
            first: float64 [U, G, D], f_g.
            max_count: with more frames than this (weighted), the prior has as much
                more weight; 0 for never.

        Raises:
            UserError: the extractor's numbers are so large that there is no posterior.
        """
        weight = np.ones(len(occupancy))
        if max_count:
            weight = np.maximum(occupancy.sum(1) / max_count, 1.0)
        precision = (occupancy @ self.precisions).reshape(-1, self.dim, self.dim)
        precision += weight[:, None, None] * np.eye(self.dim)
        linear = first.reshape(len(first), -1) @ self.projections
        linear[:, 0] += weight * self.offset
        try:
            means = np.linalg.solve(precision, linear[:, :, None])
        except np.linalg.LinAlgError:
            raise UserError(
                "the i-vector extractor gives no i-vectors", remedy="train it again"
            ) from None
        return means[:, :, 0], precision


@dataclass(frozen=True, eq=False)
class FrameProjection:
    """Transform of frames before they are counted: spliced, centered, projected.

    Attributes:
        context: frames on either side.
        mean: float64 [(2 context + 1) D].
        matrix: float64 [D', (2 context + 1) D].
    """

    context: int
    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float64 [T, D'] of float32 [T, D]."""
        spliced = Splice(self.context, self.context)(frames).astype(np.float64)
        return (spliced - self.mean) @ self.matrix.T


@dataclass(eq=False)
class Past:
    """Statistics of a speaker's frames so far.

    Attributes:
        occupancy: float64 [G].
        first: float64 [G, D].
    """

    occupancy: np.ndarray
    first: np.ndarray

    def limit(self, max_count: float) -> None:
        """Scale down to at most this many frames (weighted): let old ones decay."""
        count = self.occupancy.sum()
        if count > max_count:
            self.occupancy = self.occupancy * (max_count / count)
            self.first = self.first * (max_count / count)


@dataclass(frozen=True, eq=False)
class IvectorModel:
    """All that i-vectors of frames are made with.

    Attributes:
        projection: of the frames.
        ubm: one mixture, which chooses the Gaussians.
        extractor: G Gaussians as well.
        options: of posteriors, period and decay.
        cmvn: of the frames that Gaussians are chosen on; None for none.
        cmvn_stats: of the training set, float64 [2, D + 1], for `cmvn`.
    """

    projection: FrameProjection
    ubm: DiagGmms
    extractor: Extractor
    options: IvectorOptions
    cmvn: OnlineCmvn | None = None
    cmvn_stats: np.ndarray | None = None

    def begin(self) -> Past:
        """Return the statistics of a new speaker."""
        num_gaussians, dim, _ = self.extractor.matrices.shape
        return Past(np.zeros(num_gaussians), np.zeros((num_gaussians, dim)))

    def limit(self, past: Past) -> None:
        """Let the speaker's utterances before count for so many frames at most."""
        options = self.options
        past.limit(options.max_remembered_frames * options.posterior_scale)

    def normalizer(self, speaker: CmvnState | None = None) -> CmvnStream | None:
        """Begin the CMVN of an utterance's frames that Gaussians are chosen on.

        Args:
            speaker: of the speaker's frames before.
        """
        if self.cmvn is None:
            return None
        assert self.cmvn_stats is not None
        return CmvnStream(self.cmvn, self.cmvn_stats, speaker)

    def online(self, frames: np.ndarray, past: Past | None = None) -> np.ndarray:
        """Return the i-vectors of an utterance, one for `period` frames.

        The k-th is of the frames 0 .. k x period (and those that they are spliced
        with), for the frames from k x period on.

        Args:
            frames: float32 [T, D].
            past: the speaker's utterances before; changed to those with this one.

        Returns:
            float32 [ceil(T / period), S], without the offset.
        """
        options = self.options
        past = past or self.begin()
        self.limit(past)
        chosen = projected = self.projection(frames)
        if (normalizer := self.normalizer()) is not None:
            chosen = self.projection(normalizer.accept(frames))
        posteriors = gaussian_posteriors(self.ubm, chosen, options)
        # pieces: frame 0, then `period` frames each, then the rest
        edges = np.arange(1, len(frames), options.period)
        begin = np.concatenate(([0], edges))
        occupancy = np.add.reduceat(posteriors, begin)
        first = np.stack(
            [
                p.T @ x
                for p, x in zip(
                    np.split(posteriors, edges), np.split(projected, edges), strict=True
                )
            ]
        )
        occupancy = past.occupancy + np.cumsum(occupancy, axis=0)
        first = past.first + np.cumsum(first, axis=0)
        past.occupancy, past.first = occupancy[-1], first[-1]
        count = -(-len(frames) // options.period)
        means, _ = self.extractor.posterior(
            occupancy[:count], first[:count], options.max_count
        )
        means[:, 0] -= self.extractor.offset
        return means.astype(np.float32)

    def save(self, file: Path) -> None:
        """Write the model as arrays of NumPy."""
        parts = {
            "projection": asdict(self.projection),
            "ubm": {f.name: getattr(self.ubm, f.name) for f in fields(self.ubm)},
            "extractor": asdict(self.extractor),
        }
        arrays = {
            f"{part}.{name}": value
            for part, values in parts.items()
            for name, value in values.items()
        }
        if self.cmvn is not None:
            arrays |= {"cmvn_stats": self.cmvn_stats}
            arrays |= {"cmvn": np.array(self.cmvn.model_dump_json())}
        np.savez(file, options=self.options.model_dump_json(), **arrays)

    @classmethod
    def load(cls, file: Path) -> IvectorModel:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or garbled.
        """
        what = "not readable as an i-vector extractor"
        with reading(file, what, "run the train_ivectors stage again"):
            with file.open("rb") as stream, np.load(stream) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            parts: dict[str, dict] = {"projection": {}, "ubm": {}, "extractor": {}}
            for name, value in found.items():
                part, _, field = name.partition(".")
                if field:
                    parts[part][field] = value if value.ndim else value.item()
            cmvn = found.get("cmvn")
            model = cls(
                FrameProjection(**parts["projection"]),
                DiagGmms(**parts["ubm"]),
                Extractor(**parts["extractor"]),
                IvectorOptions.model_validate_json(str(found["options"])),
                None if cmvn is None else OnlineCmvn.model_validate_json(str(cmvn)),
                None if cmvn is None else found["cmvn_stats"],
            )
            model._check()
            return model

    def _check(self) -> None:
        """Refuse parts of other shapes or types than they fit each other in.

        Raises:
            TypeError, ValueError: they are.
        """
        projection, ubm, extractor = self.projection, self.ubm, self.extractor
        if type(projection.context) is not int or type(extractor.offset) is not float:
            raise TypeError("context or offset is not a number")
        if not 0 <= projection.context <= _MOST_CONTEXT:
            raise ValueError(f"context is {projection.context}")
        width = 2 * projection.context + 1
        dim, size = _shape("matrix", projection.matrix, None, None)
        _shape("mean", projection.mean, size)
        if not size or size % width:
            raise ValueError(f"{size} values of {width} frames")
        (gaussians,) = _shape("weights", ubm.weights, None)
        _shape("begin", ubm.begin, 2)
        if [*ubm.begin] != [0, gaussians] or not gaussians:
            raise ValueError("not one mixture")
        _shape("gconsts", ubm.gconsts, gaussians)
        for name in ("means_invvars", "inv_vars"):
            _shape(name, getattr(ubm, name), gaussians, dim)
        _, _, length = _shape("matrices", extractor.matrices, gaussians, dim, None)
        _shape("inverses", extractor.inverses, gaussians, dim, dim)
        if not length:
            raise ValueError("i-vectors without elements")
        if self.cmvn is not None:
            _shape("cmvn_stats", self.cmvn_stats, 2, size // width + 1)


def _shape(name: str, array: Any, *wanted: int | None) -> tuple[int, ...]:
    """Return the shape of an array of numbers, which is to be as wanted.

    Raises:
        TypeError, ValueError: it is another, or no array of finite numbers.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise TypeError(f"{name} is not an array of numbers")
    sizes = zip(array.shape, wanted, strict=True)  # other dimensions: ValueError
    if any(want is not None and size != want for size, want in sizes):
        raise ValueError(f"{name} has shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are not finite")
    return array.shape


def gaussian_posteriors(
    ubm: DiagGmms, frames: np.ndarray, options: IvectorOptions
) -> np.ndarray:
    """Return scaled posteriors of the Gaussians of one mixture, float64 [T, G].

    The `num_gselect` best of a frame share it; those below `min_post` (but not the
    best) leave theirs to the others; all is times `posterior_scale`.

    Source: Kaldi `hmm/posterior.cc:VectorToPosteriorEntry`.
    """
    ubm.check_dim(frames.shape[1])
    powers = np.hstack((np.ones((len(frames), 1)), frames, np.square(frames)))
    scores = powers.astype(np.float32) @ ubm.factors.T
    num_chosen = min(options.num_gselect, ubm.num_gaussians)
    chosen = np.argpartition(-scores, num_chosen - 1, axis=1)[:, :num_chosen]
    best = np.take_along_axis(scores, chosen, 1).astype(np.float64)
    shares = np.exp(best - best.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    is_best = shares == shares.max(1, keepdims=True)
    shares[(shares < options.min_post) & ~is_best] = 0.0
    shares *= options.posterior_scale / shares.sum(1, keepdims=True)
    posteriors = np.zeros(scores.shape)
    np.put_along_axis(posteriors, chosen, shares, 1)
    return posteriors


def append_ivectors(frames_dir: Path, model: Path, out_dir: Path) -> None:
    """Write the frames of a split with the i-vectors of their speakers (stage).

    Each frame is followed by the i-vector of the speech up to then: of the frames of
    its utterance, at the pace of the model's `period`, and of the speaker's utterances
    before (by id) where its `history` is `speaker`.

    Args:
        frames_dir: a `FrameStore`.
        model: `extractor.npz` of `train_ivectors`.
        out_dir: a `FrameStore`, replaced as a whole.

    Raises:
        UserError: the model is of other frames.
    """
    store, extractor = FrameStore.load(frames_dir), IvectorModel.load(model)
    check_dim(extractor, store)
    period, by_speaker = extractor.options.period, extractor.options.history
    left = Counter(store.speaker_codes.tolist())
    pasts: dict[int, Past] = {}
    dim = store.dim + extractor.extractor.dim
    with (
        atomic_directory(out_dir) as folder,
        FrameWriter(
            folder, dim=dim, frame_shift=store.frame_shift, meta={"ivectors": True}
        ) as writer,
    ):
        numbers = progress(range(len(store)), "append i-vectors", total=len(store))
        for i in numbers:
            speaker = int(store.speaker_codes[i])
            is_known = by_speaker == "speaker" and speaker in pasts
            past = pasts[speaker] if is_known else extractor.begin()
            frames = store.frames(i)
            ivectors = extractor.online(frames, past)
            left[speaker] -= 1
            pasts[speaker] = past
            if not left[speaker]:
                del pasts[speaker]
            spread = np.repeat(ivectors, period, axis=0)[: len(frames)]
            joined = np.hstack((frames, spread))
            writer.append(store.utt_ids[i], store.speakers[i], store.texts[i], joined)


def check_dim(model: IvectorModel, store: FrameStore) -> None:
    """Refuse frames of another dimension than the model's."""
    width = 2 * model.projection.context + 1
    wanted = len(model.projection.mean) // width
    if store.dim != wanted:
        raise UserError(
            f"has {store.dim} features, the i-vector extractor expects {wanted}",
            file=store.folder,
            remedy="train the extractor on the same features",
        )
