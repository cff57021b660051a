"""Layers for several microphones: masks of speech and noise, and the MVDR beamformer.

    spectra: {class: stft, channels: 4}
    masks: {class: mask_estimator, size: 256}
    beam: {class: mvdr, from: [spectra, masks]}
    mel: {class: mel, sample_rate: 16000}

Both see whole utterances: such a network cannot be streamed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from latflow.features.front_end import ENERGY_FLOOR
from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.recurrent import Recurrent, RecurrentOptions
from latflow.nnet.layers.spectral import at_least_float32
from latflow.nnet.options import NumLayers
from latflow.options import NonNegativeInt, Options, PositiveInt

_SMALLEST = 1e-10  # of sums of masks and of traces, against division by zero


class MaskEstimatorOptions(Options):
    """Options of `MaskEstimator`."""

    size: PositiveInt = 256
    """LSTM cells a direction"""
    num_layers: NumLayers = 1


class MaskEstimator(Layer):
    """Tell speech from noise in spectra: a mask of each, F numbers in 0..1.

    Each microphone's log powers, normalized in each frame, go through the same
    bidirectional LSTM and a linear map; the microphones' mean, squashed, is the masks.
    Their number and order do not matter. Reads class `stft`.

    Source: Heymann, Drude & Haeb-Umbach 2016 (theirs takes the median of the masks).
    """

    OPTIONS = MaskEstimatorOptions

    def __init__(self, shape: Shape, options: MaskEstimatorOptions) -> None:
        super().__init__(shape)
        self.channels, self.lines = _of_spectra(shape)
        self.norm = nn.LayerNorm(self.lines)
        inner = RecurrentOptions(size=options.size, num_layers=options.num_layers)
        self.rec = Recurrent(Shape(self.lines), inner)
        self.map = nn.Linear(self.rec.shape.dim, 2 * self.lines)
        self.shape = Shape(2 * self.lines, 2)
        self.context = Context(None, None)

    def forward(self, batch: Padded) -> Padded:
        """Estimate the masks."""
        spectra = batch.values.unflatten(2, (self.channels, 2, self.lines))
        power = at_least_float32(spectra).square().sum(3).clamp(min=ENERGY_FLOOR)
        # [B, T, C, F] -> [B x C, T, F]: a sequence for each microphone
        frames = self.norm(power.log()).transpose(1, 2).flatten(0, 1)
        each = Padded(
            frames,
            batch.lengths.repeat_interleave(self.channels),
            _repeated(batch.padding, self.channels),
        )
        logits = self.map(self.rec(each.with_values(frames)).values)
        mean = logits.unflatten(0, (-1, self.channels)).mean(1)
        return batch.with_values(torch.sigmoid(at_least_float32(mean)))


class MvdrOptions(Options):
    """Options of `Mvdr`."""

    reference: NonNegativeInt = 0
    """microphone whose speech is to come through unchanged"""
    loading: Annotated[float, Field(ge=1e-9, le=1)] = 1e-4
    """share of the noise's mean power that is added to that of each microphone"""


class Mvdr(Layer):
    """The minimum variance distortionless response beamformer, by masks.

    Reads the spectra of C microphones and two masks, `from: [<stft>, <masks>]`. In each
    line of the spectrum the covariances S of speech and N of noise are means over the
    utterance, weighed by the masks. The filter is w = (N^-1 S) u / trace(N^-1 S), u the
    reference microphone, and the result w^H y: a spectrum as of one microphone, which
    class `mel` reads.

    Source: Souden, Benesty & Affes 2010, equation 18; Heymann et al. 2016 (masks),
    Ochiai et al. 2017 (trained through it).
    """

    IS_DEEP: ClassVar[bool] = False
    OPTIONS = MvdrOptions

    def __init__(self, shape: Shape, options: MvdrOptions) -> None:
        super().__init__(shape)
        # joined, the spectra's 2 C maps and 2 masks are 2 C + 2 maps of F
        maps, self.lines = shape.channels, shape.dim // shape.channels
        self.channels = maps // 2 - 1
        if maps % 2 or self.channels < 2:
            raise LayerError(
                "needs from: [<stft of several channels>, <mask_estimator>]"
            )
        if options.reference >= self.channels:
            raise LayerError(
                f"reference is {options.reference}, there are {self.channels} "
                "microphones, counted from 0"
            )
        self.reference, self.loading = options.reference, options.loading
        self.shape = Shape(2 * self.lines, 2)
        self.context = Context(None, None)

    def forward(self, batch: Padded) -> Padded:
        """Filter the spectra."""
        with torch.autocast(batch.values.device.type, enabled=False):
            maps = at_least_float32(batch.values).unflatten(2, (-1, 2, self.lines))
            real, imaginary = maps[:, :, : self.channels].unbind(3)
            spectra = torch.complex(real, imaginary).permute(0, 3, 2, 1)
            speech, noise = maps[:, :, self.channels].permute(0, 3, 2, 1).unbind(2)
            found = beamformed(
                spectra, speech, noise, reference=self.reference, loading=self.loading
            )
            # [B, F, T, 2] -> [B, T, 2, F]
            values = torch.view_as_real(found).permute(0, 2, 3, 1).flatten(2)
        return batch.with_values(values)


def beamformed(
    spectra: Tensor, speech: Tensor, noise: Tensor, *, reference: int, loading: float
) -> Tensor:
    """Return the result of the MVDR beamformer, see `Mvdr`.

    Args:
        spectra: complex [B, F, C, T].
        speech: mask, [B, F, T], zero where there is no frame.
        noise: likewise.
        reference: microphone.
        loading: share of the noise's mean power that is added to its diagonal.

    Returns:
        complex [B, F, T].
    """
    # Solved in double precision: covariances of few frames are nearly singular.
    wide = spectra.to(torch.complex128)
    target, disturbance = _covariance(wide, speech), _covariance(wide, noise)
    power = _trace(disturbance).real / spectra.shape[2]
    identity = torch.eye(spectra.shape[2], dtype=wide.dtype, device=wide.device)
    loaded = (loading * power).clamp(min=_SMALLEST)[..., None, None] * identity
    ratio = torch.linalg.solve(disturbance + loaded, target)
    # N^-1 S has the trace of a product of positive matrices: real, not negative
    weights = ratio[..., reference] / (_trace(ratio).real + _SMALLEST)[..., None]
    return torch.einsum("bfc,bfct->bft", weights.conj(), wide).to(spectra.dtype)


def _covariance(spectra: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of y y^H, weighed by a mask: complex [B, F, C, C]."""
    weight = mask.to(torch.float64)
    weighed = weight[:, :, None] * spectra
    total = weighed @ spectra.mH
    return total / weight.sum(2).clamp(min=_SMALLEST)[..., None, None]


def _trace(matrices: Tensor) -> Tensor:
    """Return the traces of matrices [..., C, C]."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _of_spectra(shape: Shape) -> tuple[int, int]:
    """Return the microphones and lines of what class `stft` gives.

    Raises:
        LayerError: it does not look like it.
    """
    if shape.channels % 2:
        raise LayerError("needs the spectra that class stft gives")
    return shape.channels // 2, shape.dim // shape.channels


def _repeated(padding: Tensor | None, times: int) -> Tensor | None:
    """Return padding [B, T, 1] for each of several microphones, [B x C, T, 1]."""
    return None if padding is None else padding.repeat_interleave(times, 0)
