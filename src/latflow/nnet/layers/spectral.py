"""Layers from the samples on: spectra, mel filters, energy normalization.

They read features of type `waveform`, whose frames are the windows of samples that the
front end would analyse (of several microphones: one window after another). A frame's
spectrum so depends on no other frame: chunks, edges and streams are those of features.

The numbers at the start are those of `latflow.features.front_end`, Kaldi's. All is
computed in float32 at least, also where the network is not.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.errors import UserError
from latflow.features.front_end import (
    ENERGY_FLOOR,
    SAMPLE_SCALE,
    mel,
    mel_edges,
    mel_filters,
    spectrum,
    window_function,
)
from latflow.features.options import WindowType, padded_length
from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.options import (
    Fraction,
    NonNegativeFloat,
    Options,
    PositiveInt,
)

# Width of a bell at half of its height, in standard deviations. That of a triangle is
# the distance of its centre from the next one's.
_WIDTH_AT_HALF = 2.0 * (2.0 * np.log(2.0)) ** 0.5


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32, or as they are in float64."""
    return values if values.dtype == torch.float64 else values.float()


class StftOptions(Options):
    """Options of `Stft`."""

    channels: PositiveInt = 1
    """microphones, whose windows stand side by side"""
    window_type: WindowType = "povey"
    """shape of the analysis window"""
    preemphasis: Fraction = 0.97
    """share of the previous sample that is subtracted from each sample"""


class Stft(Layer):
    """The short-time Fourier transform of windows of samples, C microphones.

    The mean of each window is removed, then it is pre-emphasized, weighted and padded
    to N samples, a power of two, as Kaldi does. The result has 2 C maps of
    F = N / 2 + 1 numbers: real and imaginary parts of each microphone, of samples in
    steps of 16 bits. Nothing is learnt.

    Source: Kaldi `feat/feature-window.cc:ProcessWindow`.
    """

    USES_CONTEXT: ClassVar[bool] = True
    IS_DEEP: ClassVar[bool] = False
    OPTIONS = StftOptions

    window: Tensor

    def __init__(self, shape: Shape, options: StftOptions) -> None:
        super().__init__(shape)
        self.channels, self.preemphasis = options.channels, options.preemphasis
        length, rest = divmod(shape.dim, self.channels)
        if rest or length < 2:
            raise LayerError(
                f"{shape.dim} numbers a frame are not windows of {self.channels} "
                "channels; it reads features of type waveform"
            )
        weights = SAMPLE_SCALE * window_function(options.window_type, length)
        self.register_buffer("window", torch.tensor(weights).float(), persistent=False)
        lines = padded_length(length) // 2 + 1
        self.shape = Shape(2 * self.channels * lines, 2 * self.channels)

    def forward(self, batch: Padded) -> Padded:
        """Transform each window."""
        with torch.autocast(batch.values.device.type, enabled=False):
            windows = at_least_float32(batch.values).unflatten(2, (self.channels, -1))
            windows = windows - windows.mean(-1, keepdim=True)
            found = spectrum(windows, self.window.to(windows.dtype), self.preemphasis)
            # [B, T, C, F, 2] -> [B, T, C, 2, F]
            values = torch.view_as_real(found).transpose(-1, -2).flatten(2)
        return batch.with_values(values)


class MelOptions(Options):
    """Options of `Mel`."""

    sample_rate: Annotated[int, Field(ge=1000, le=192000)]
    """sample rate of the features, Hz"""
    num_bins: Annotated[int, Field(ge=3, le=512)] = 40
    """filters of a microphone"""
    low_freq: NonNegativeFloat = 20.0
    """lower edge of the lowest filter, Hz"""
    high_freq: float = 0.0
    """upper edge of the highest filter, Hz; 0 or less: added to half the rate"""
    filters: Literal["fixed", "weights", "gaussian"] = "fixed"
    """what is learnt of the filters; see above"""
    log: bool = True
    """give log energies, else energies"""


class Mel(Layer):
    """Energies of spectra in mel filters, and their logarithm: log-mel features.

    `fixed`: Kaldi's triangles, nothing is learnt. `weights`: the weights of all lines
    of the spectrum are learnt and start as those triangles; below 0 they count as 0.
    `gaussian`: bells on the mel scale, whose centres and widths are learnt; they start
    at the centres of the triangles, as wide at half of the height.

    Reads what `stft` or `mvdr` gives: [C, 2, F] a frame. Gives [C, `num_bins`]. As in
    Kaldi, energies count as 1.2e-7 at least before the logarithm.

    Source: Kaldi `feat/feature-fbank.cc`; Sainath et al. 2013 (learnt weights).
    """

    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = MelOptions

    lines: Tensor
    weight: Tensor

    def __init__(self, shape: Shape, options: MelOptions) -> None:
        super().__init__(shape)
        maps, size = shape.channels, shape.dim // shape.channels
        length = 2 * (size - 1)
        if maps % 2 or length < 2 or length & (length - 1):
            raise LayerError("needs the spectra that class stft or mvdr gives")
        self.kind, self.has_log = options.filters, options.log
        edges = {"low_freq": options.low_freq, "high_freq": options.high_freq}
        rate, bins = options.sample_rate, options.num_bins
        if self.kind == "gaussian":
            mels = mel(np.arange(size) * (rate / length))
            try:
                centres = mel_edges(bins, rate, **edges)[1:-1]
            except UserError as error:
                raise LayerError(error.what) from None
            widths = np.full_like(centres, (centres[1] - centres[0]) / _WIDTH_AT_HALF)
            self.register_buffer("lines", torch.tensor(mels).float(), persistent=False)
            self.centre = nn.Parameter(torch.tensor(centres).float())
            self.log_width = nn.Parameter(torch.tensor(np.log(widths)).float())
        else:
            try:
                weight = torch.tensor(mel_filters(bins, length, rate, **edges)).float()
            except UserError as error:
                raise LayerError(error.what) from None
            if self.kind == "weights":
                self.weight = nn.Parameter(weight)
            else:
                self.register_buffer("weight", weight, persistent=False)
        self.shape = Shape(options.num_bins * (maps // 2), maps // 2)

    def filters(self) -> Tensor:
        """Return the weights of the lines of the spectrum, [F, M]."""
        if self.kind == "gaussian":
            distance = (self.lines[:, None] - self.centre) / self.log_width.exp()
            return torch.exp(-0.5 * distance.square())
        return self.weight.clamp(min=0.0)

    def forward(self, batch: Padded) -> Padded:
        """Sum energies up."""
        with torch.autocast(batch.values.device.type, enabled=False):
            parts = batch.values.unflatten(2, (self.shape.channels, 2, -1))
            power = at_least_float32(parts).square().sum(-2)
            energies = power @ self.filters().to(power.dtype)
            if self.has_log:
                energies = energies.clamp(min=ENERGY_FLOOR).log()
        return batch.with_values(energies.flatten(2))


class PcenOptions(Options):
    """Options of `Pcen`."""

    smoothing: Annotated[float, Field(ge=1e-3, le=1)] = 0.025
    """weight of the present frame in the running mean at the start, s"""
    frames: PositiveInt = 100
    """frames that the running mean is taken from, the present one included"""
    gain: Fraction = 0.98
    """exponent of the running mean at the start, alpha"""
    bias: Annotated[float, Field(ge=1e-3)] = 2.0
    """offset before the root at the start, delta"""
    power: Annotated[float, Field(ge=0.01, le=1)] = 0.5
    """exponent of the root at the start, r"""
    learn: bool = True
    """learn s, alpha, delta and r of each number, else they stay"""


class Pcen(Layer):
    """Per-channel energy normalization, instead of the logarithm.

    With M the running mean of the energies E of a filter,
    y = (E / (M + 1e-6)^alpha + delta)^r - delta^r: quick changes remain, levels and
    slow changes of them hardly do. Reads class `mel` with `log: false`.

    The running mean weighs the frame k before the present one by (1 - s)^k, over
    `frames` of them or as many as there are, so that what a frame sees is bounded and
    the layer can be streamed. (The paper's goes back to the start; of its weights
    0.08 lie beyond 100 frames.)

    Source: Wang et al. 2017, equations 1 and 2; section 3 (trained in the network).
    """

    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = PcenOptions

    def __init__(self, shape: Shape, options: PcenOptions) -> None:
        super().__init__(shape)
        self.frames = options.frames

        def start(value: float) -> nn.Parameter:
            values = torch.full((shape.dim,), value)
            return nn.Parameter(values, requires_grad=options.learn)

        # the logarithm of 1 - s, so that s stays within its bounds
        self.log_decay = start(float(np.log(max(1.0 - options.smoothing, 1e-6))))
        self.gain, self.power = start(options.gain), start(options.power)
        self.bias = start(options.bias)
        self.context = Context(options.frames - 1, 0)

    def forward(self, batch: Padded) -> Padded:
        """Normalize energies."""
        with torch.autocast(batch.values.device.type, enabled=False):
            energies = at_least_float32(batch.values)
            mean = self._running_mean(energies, has_context=batch.before is not None)
            present = energies[:, -mean.shape[1] :]
            gain = self.gain.clamp(0.0, 1.0).to(energies.dtype)
            power = self.power.clamp(0.01, 1.0).to(energies.dtype)
            bias = self.bias.clamp(min=1e-3).to(energies.dtype)
            scaled = present * (mean + 1e-6).pow(-gain)
            values = (scaled + bias).pow(power) - bias.pow(power)
        if batch.before is not None:
            return batch.consumed(values, self.frames - 1, 0)
        return batch.with_values(values)

    def _running_mean(self, energies: Tensor, *, has_context: bool) -> Tensor:
        """Return the weighted mean of each frame and those before it, [B, T', D].

        Args:
            energies: [B, T, D].
            has_context: the first frames are context: the result begins where the
                window is full. Else windows reach back to the first frame at most.
        """
        dim, reach = energies.shape[2], self.frames - 1
        ages = torch.arange(reach, -1, -1, device=energies.device)
        log_decay = self.log_decay.clamp(max=0.0).to(energies.dtype)
        weights = torch.exp(log_decay[:, None] * ages)[:, None]  # [D, 1, frames]
        signal = energies.transpose(1, 2)
        if not has_context:
            signal = functional.pad(signal, (reach, 0))
        sums = functional.conv1d(signal, weights, groups=dim).transpose(1, 2)
        total = weights.squeeze(1).flip(-1).cumsum(-1).T  # of ages 0..k, [frames, D]
        if has_context:
            return sums / total[-1]
        known = torch.arange(energies.shape[1], device=energies.device)
        return sums / total[known.clamp(max=reach)]
