"""Responses of rooms by the image method, with the reverberation time asked for.

Rooms are boxes whose walls reflect all alike. Impulses of the images of the source are
laid on a grid 16 times as fine as the samples (`latflow.simulation.images`), and the
grid is brought to the sample rate by one windowed sinc: the same as a windowed sinc of
each impulse, for a hundredth of the work. Batches lie on any device of torch; on the
processor equal arguments give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.device_copies import sent
from latflow.errors import UserError
from latflow.simulation.acoustics import SPEED_OF_SOUND, shortest_decay_time
from latflow.simulation.images import Boxes, lay_images

_FINENESS = 16  # grid points a sample
_HALF_WIDTH = 0.004  # of the windowed sinc, s
_HIGH_PASS = 100.0  # Hz
_HIGH_PASS_TAIL = 0.02  # s, after which its response is below -100 dB
_SAMPLES = 1 << 22  # of responses that are computed together: 256 MB of grids


def room_responses(
    size: Tensor,
    source: Tensor,
    microphone: Tensor,
    reflection: Tensor,
    *,
    rate: int,
    num_samples: int | Sequence[int],
    advance: Tensor | None = None,
    high_pass: bool = True,
) -> Tensor:
    """Compute the responses of N rooms by the image method.

    On a GPU those of like length are computed together, as many as memory allows.

    Args:
        size: float64 [N, 3], length, width, height of the rooms, m.
        source: float64 [N, 3], within the room.
        microphone: float64 [N, 3], within the room, not at the source.
        reflection: float64 [N], factor of the amplitude at each wall, in (0, 1).
        rate: Hz.
        num_samples: L, or of each room one of its own; L is the greatest of them.
        advance: float64 [N], path by which all sound comes earlier, m, at most the
            distance of source and microphone (which puts the direct path on sample 0).
        high_pass: take out what is below 100 Hz, where reflections that are never
            negative would add up to what no room has.

    Returns:
        float32 [N, L], on the device of `size`; 0 behind the end of each room's own.

    Raises:
        UserError: a source or microphone is outside of its room, or both are at one
            place.

    Source: Allen and Berkley 1979 (the high-pass, too); Peterson 1986 (windowed
        sinc).
    """
    for name, place in {"source": source, "microphone": microphone}.items():
        for i in ((place <= 0) | (place >= size)).any(1).nonzero().flatten().tolist():
            raise UserError(
                f"the {name} at {_metres(place[i])} is outside of its room of "
                f"{_metres(size[i])}",
                remedy="give it a place between 0 and the size of the room",
            )
    if (source - microphone).norm(dim=1).lt(0.01).any():
        raise UserError("source and microphone are at one place")
    if advance is None:
        advance = size.new_zeros(len(size))
    boxes = Boxes(size, source, microphone, reflection, advance)
    lengths = [num_samples] * len(size) if isinstance(num_samples, int) else num_samples
    found = torch.zeros(len(size), max(lengths, default=0), device=size.device)
    for rows in alike(lengths, rate):
        there = sent(np.array(rows), size.device)
        made = _responses(
            Boxes(*(part[there] for part in boxes)),
            [lengths[i] for i in rows],
            rate=rate,
            high_pass=high_pass,
        )
        found[there, : made.shape[1]] = made
    return found


def alike(lengths: Sequence[int], rate: int) -> Iterator[list[int]]:
    """Yield responses of like length whose grids fit in memory together, or one.

    Args:
        lengths: of the responses, samples.
        rate: Hz.
    """
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (len(rows) + 1) * _grid_length(lengths[i], rate) > _SAMPLES:
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows


def _grid_length(num_samples: int, rate: int) -> int:
    """Return the samples that a response is computed with."""
    width = round(_HALF_WIDTH * rate)
    return _fast_length(num_samples + 2 * width + int(_HIGH_PASS_TAIL * rate))


def _responses(
    boxes: Boxes, lengths: Sequence[int], *, rate: int, high_pass: bool
) -> Tensor:
    """Return the responses of rooms, computed together; see `room_responses`."""
    length, longest = _grid_length(max(lengths), rate), max(lengths)
    device = boxes.size.device
    fine = torch.zeros(len(lengths), length, _FINENESS, device=device)
    lay_images(
        fine.view(len(lengths), -1),
        boxes,
        [_FINENESS * n for n in lengths],
        unit=_FINENESS * rate / SPEED_OF_SOUND,
    )
    phases = torch.fft.rfft(fine.transpose(1, 2))
    phases *= _phase_filters(rate, length, device, high_pass=high_pass)
    found = torch.fft.irfft(phases.sum(1), n=length)[:, :longest]
    if min(lengths) == longest:
        return found
    return found.masked_fill(_is_past(lengths, found), 0.0)


def _is_past(lengths: Sequence[int], values: Tensor) -> Tensor:
    """Return where values [N, L] are behind the end of each, bool [N, L]."""
    ends = sent(np.array(lengths), values.device)
    return torch.arange(values.shape[1], device=values.device) >= ends[:, None]


def absorbed(
    responses: Tensor, decay: float, high: float | None, *, rate: int
) -> Tensor:
    """Let high frequencies decay faster, as walls do that absorb more of them.

    The reverberation time stays up to 1 kHz and falls linearly with the octaves to its
    share at 8 kHz, and beyond to a tenth at least. Sound that arrives at the time t has
    met walls in proportion to t, so that the frequency f of it gets the factor
    10^(3 t (1 / T60 - 1 / T60(f))).

    Args:
        responses: float32 [N, L], of walls that absorb all frequencies alike; with the
            direct path at their beginning.
        decay: their reverberation time T60, s.
        high: that at 8 kHz over it, in (0, 1]; None for responses as they are.
        rate: Hz.

    Returns:
        float32 [N, L].
    """
    if high is None:
        return responses
    length, window = responses.shape[-1], max(32, 1 << round(math.log2(rate * 0.008)))
    shape = {
        "n_fft": window,
        "hop_length": window // 4,
        "window": torch.hann_window(window, device=responses.device),
    }
    spectra = torch.stft(
        responses, **shape, pad_mode="constant", return_complex=True
    )  # [N, F, T]
    bins = torch.arange(spectra.shape[1], device=responses.device)
    octaves = (bins * (rate / window / 1000)).clamp(min=1.0).log2()
    share = (1 - (1 - high) * octaves / 3).clamp(min=0.1)
    time = torch.arange(spectra.shape[2], device=responses.device) * (
        window // 4 / rate
    )
    slope = math.log(1000) / decay * (1 - 1 / share)
    return torch.istft(
        spectra * torch.exp(slope[:, None] * time), **shape, length=length
    )


def _metres(place: Tensor) -> str:
    """Return lengths for a message."""
    return " x ".join(f"{x:.2f}" for x in place.tolist()) + " m"


def _fast_length(least: int) -> int:
    """Return the next length whose Fourier transform is fast: 2^k, 3 2^k, 5 2^k."""
    power = 1 << (least - 1).bit_length()
    return min(n for n in (power, power // 4 * 3, power // 8 * 5) if n >= least)


@lru_cache(maxsize=16)
def _phase_filters(
    rate: int, length: int, device: torch.device, *, high_pass: bool
) -> Tensor:
    """Return what brings the fine grid to the sample rate, complex64 [16, L // 2 + 1].

    Every 16th point of the grid, from point p on, is a signal at the sample rate. Of
    the response it makes what the windowed sinc leaves of it; p is the first axis.
    """
    width = round(_HALF_WIDTH * rate)
    time = torch.arange(-width, width + 1, dtype=torch.float64)
    time = time - torch.arange(_FINENESS, dtype=torch.float64)[:, None] / _FINENESS
    inside = time.abs() <= width
    kernel = torch.sinc(time) * (0.5 + 0.5 * torch.cos(math.pi * time / width)) * inside
    laid = torch.zeros(_FINENESS, length, dtype=torch.float64)
    laid[:, : width + 1], laid[:, -width:] = kernel[:, width:], kernel[:, :width]
    filters = torch.fft.rfft(laid)
    if high_pass:
        filters = filters * _high_pass(rate, length)
    return filters.to(torch.complex64).to(device)


def _high_pass(rate: int, length: int) -> Tensor:
    """Return the spectrum of Allen and Berkley's high-pass, [L // 2 + 1]."""
    w = 2 * math.pi * _HIGH_PASS / rate
    r = math.exp(-w)
    z = torch.exp(-2j * math.pi * torch.arange(length // 2 + 1).double() / length)
    above = 1 - (1 + r) * z + r * z**2
    return above / (1 - 2 * r * math.cos(w) * z + r**2 * z**2)


def decay_time(
    responses: Tensor, rate: int, lengths: Sequence[int] | None = None
) -> Tensor:
    """Measure reverberation times from Schroeder's decay.

    The energy that is still to come is integrated backwards; a line through its level
    between -5 and -35 dB is drawn on to -60 dB (T30).

    Args:
        responses: [N, L], from the direct path on, long enough to fall by more than
            35 dB.
        rate: Hz.
        lengths: of each response, with zeros behind it; None for L.

    Returns:
        float64 [N], s; NaN where a response does not fall so far.

    Source: Schroeder 1965; ISO 3382-1.
    """
    energy = responses.double().square().flip(1).cumsum(1).flip(1)
    samples = torch.arange(responses.shape[1], device=responses.device).double()
    if lengths is not None:
        # Behind the end there is no level, rather than one that the response falls to.
        energy = torch.where(_is_past(lengths, energy), energy[:, :1], energy)
    return _decay_of(energy, (samples / rate).expand_as(energy))


def _decay_of(energy: Tensor, time: Tensor) -> Tensor:
    """Return the time in which energies fall by 60 dB, by the line of T30.

    Args:
        energy: float64 [N, L], falling; the first again where there is none.
        time: float64 [N, L], of the energies.

    Returns:
        float64 [N]; NaN where the energy does not fall by 35 dB.
    """
    level = 10 * torch.log10((energy / energy[:, :1]).clamp_min(1e-30))
    inside = ((level <= -5) & (level >= -35)).double()
    falls = (level < -35).any(1) & (inside.sum(1) > 1)
    mean = (inside * time).sum(1, keepdim=True) / inside.sum(1, keepdim=True)
    spread = inside * (time - mean)
    slope = (spread * level).sum(1) / (spread * time).sum(1)
    return torch.where(falls, -60 / slope, torch.nan)


class CalibratedResponses(NamedTuple):
    """Responses, and what was found for them.

    Attributes:
        responses: float32 [N, L], the direct path on sample 0; 0 behind each one's end.
        reflection: float64 [N], factor of the amplitude at the walls.
        decay_time: float64 [N], reverberation times that the responses have, s.
    """

    responses: Tensor
    reflection: Tensor
    decay_time: Tensor


def calibrated_responses(
    size: Tensor,
    source: Tensor,
    microphone: Tensor,
    wanted: Tensor,
    *,
    rate: int,
    tolerance: float = 0.03,
    max_attempts: int = 8,
) -> CalibratedResponses:
    """Compute responses of rooms whose walls make the wanted reverberation times.

    The first guess takes sound to go in all directions alike (which no formula of
    Sabine or Eyring does); then the reflection is corrected by the time that is
    measured (`decay_time`) until that is within the tolerance, or attempts end and the
    nearest stays.

    Args:
        size: see `room_responses`.
        source: see `room_responses`.
        microphone: see `room_responses`.
        wanted: float64 [N], reverberation times, s; each response lasts its own.
        rate: Hz.
        tolerance: of measured times, relative.
        max_attempts: responses that are computed for one room at most.

    Raises:
        UserError: see `room_responses`; a time is shorter than `shortest_decay_time`.

    Source: the first guess is eq. (9) of Lehmann and Johansson 2008, without its
        approximations.
    """
    for i in (shortest_decay_time(size) > wanted).nonzero().flatten().tolist():
        raise UserError(
            f"a room of {_metres(size[i])} cannot have a reverberation time of "
            f"{float(wanted[i]):.2f} s",
            remedy=f"ask for {float(shortest_decay_time(size)[i]):.2f} s or more, or "
            "make the room smaller",
        )
    advance = (source - microphone).norm(dim=1)
    # A reflection takes the factor exp(-damping) of the energy.
    damping = _damping_times_decay(size) / wanted
    lengths = [math.ceil(time * rate) for time in wanted.tolist()]
    responses = torch.zeros(len(size), max(lengths, default=0), device=size.device)
    reflection, times = torch.zeros_like(wanted), torch.full_like(wanted, torch.inf)
    left = torch.arange(len(size), device=size.device)
    for _ in range(max_attempts):
        ends = [lengths[i] for i in left.tolist()]
        tried = torch.exp(-damping[left] / 2)
        made = room_responses(
            size[left],
            source[left],
            microphone[left],
            tried,
            rate=rate,
            num_samples=ends,
            advance=advance[left],
        )
        # Where a response does not fall by 35 dB it decays for far too long.
        measured = decay_time(made, rate, ends)
        measured = measured.where(measured.isfinite(), 2 * wanted[left])
        ratio = measured / wanted[left]
        is_nearer = (ratio - 1).abs() < (times[left] / wanted[left] - 1).abs()
        better = left[is_nearer]
        responses[better, : made.shape[1]] = made[is_nearer]
        reflection[better], times[better] = tried[is_nearer], measured[is_nearer]
        damping[left] = damping[left] * ratio
        left = left[(ratio - 1).abs() > tolerance]
        if len(left) == 0:
            break
    return CalibratedResponses(responses, reflection, times)


def _damping_times_decay(size: Tensor) -> Tensor:
    """Return the product of damping and reverberation time of rooms, [N].

    Sound that goes in the direction u meets `g = sum |u_k| / size_k` walls a metre, so
    that the energy at time t is the mean over u of exp(-damping g c t).
    """
    steps = (torch.arange(24, dtype=torch.float64, device=size.device) + 0.5) / 24
    up, around = torch.cartesian_prod(steps, steps * math.pi / 2).unbind(1)
    flat = (1 - up.square()).sqrt()
    directions = torch.stack((flat * around.cos(), flat * around.sin(), up), 1)
    walls = (directions[None] / size[:, None]).sum(-1)
    step = 0.04 / walls.mean(1, keepdim=True)
    grid = torch.arange(32, dtype=torch.float64, device=size.device)
    path = step * torch.arange(1024, dtype=torch.float64, device=size.device)
    # exp(-g (32 a + b) step) is a product: 32 times fewer exponentials.
    met = (step * walls)[:, None] * grid[:, None]
    still = torch.exp(-32 * met) @ (torch.exp(-met) / walls[:, None]).mT
    still = still.flatten(1)
    return _decay_of(still, path) / SPEED_OF_SOUND
