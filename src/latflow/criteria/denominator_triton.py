"""Kernels of the denominator of LF-MMI for GPUs, in Triton.

A pass is one launch, whatever its frames: the programs of a launch share out states and
pdfs, and wait for each other behind each frame. Arcs lie by what they are summed into
(target, source, pdf), so that a program adds up all arcs of one sum, some at a time,
for some sequences side by side: no atomic sums, and equal arguments give equal bits.
Numbers of a state or pdf lie by sequence, [frame, state, sequence], so that what an arc
reads is contiguous.

Programs can wait for each other where all of them run at once, which a cooperative
launch makes sure of. Otherwise (in Triton's interpreter, or with more sequences than
a GPU has room for) each frame is a launch.

F is the type of the numbers, float32 or float64; sums over states are float64.

Public: `DeviceLayout`, `forward`, `backward`.

Source: Kaldi `chain/chain-denominator.cc`, whose sums these are.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_ARCS, _LANES = 32, 64  # of a program at a time: arcs of a sum, sequences
_PARTS = 128  # programs that share out the states, at most; a power of 2
_RESIDENT = 2  # programs that a multiprocessor has room for
_REGISTERS = 128  # of a thread, for that: 65,536 / (2 programs x 8 warps x 32)
_WARPS = 8
_ROW = 8.0  # what beginning with a sum costs, in arcs


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not anew for each number of frames."""
    frames = {"num_frames", "first_frame", "last_frame"}
    frames &= set(inspect.signature(function).parameters)
    return triton.jit(function, do_not_specialize=sorted(frames))


class _Rows(NamedTuple):
    """Arcs by what they are summed into, and the shares of programs.

    Attributes:
        begin: int32[R + 1], where the arcs of each sum begin.
        first: int32[A], the states that the arcs come from, or go to.
        second: int32[A], their pdfs, or the states that they go to.
        probability: F[A].
        cuts: int32[PARTS + 1], where the sums of each program begin; about as many
            arcs each.
    """

    begin: Tensor
    first: Tensor
    second: Tensor
    probability: Tensor
    cuts: Tensor

    @classmethod
    def make(
        cls,
        by: np.ndarray,
        count: int,
        columns: tuple[np.ndarray, np.ndarray],
        probability: np.ndarray,
        like: Tensor,
    ) -> _Rows:
        """Sort arcs by their sum, stably.

        Args:
            by: int[A], the sum that each arc belongs to.
            count: R.
            columns: int[A] each, see `first` and `second`.
            probability: float64[A].
            like: tells type and device.
        """
        order = np.argsort(by, kind="stable")
        begin = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(by, minlength=count), out=begin[1:])
        cost = begin + _ROW * np.arange(count + 1)
        shares = np.linspace(0.0, cost[-1], _PARTS + 1)
        cuts = np.searchsorted(cost, shares[:-1])
        cuts = np.append(cuts, count)

        def there(ids: np.ndarray) -> Tensor:
            return torch.from_numpy(ids.astype(np.int32)).to(like.device)

        first, second = (there(column[order]) for column in columns)
        weights = torch.from_numpy(probability[order]).to(like)
        return cls(there(begin), first, second, weights, there(cuts))

    def shared_by(self, parts: int) -> _Rows:
        """Return the rows with shares for fewer programs."""
        return self._replace(cuts=self.cuts[:: _PARTS // parts].contiguous())


class DeviceLayout(NamedTuple):
    """A denominator graph on a device, its arcs in three orders.

    Attributes:
        into: arcs by the state that they enter: source, pdf.
        out_of: by the state that they leave: target, pdf.
        of_pdf: by pdf: source, target.
        initial: F[S].
    """

    into: _Rows
    out_of: _Rows
    of_pdf: _Rows
    initial: Tensor

    @classmethod
    def make(
        cls,
        source: np.ndarray,
        pdf: np.ndarray,
        target: np.ndarray,
        probability: np.ndarray,
        initial: np.ndarray,
        num_pdfs: int,
        like: Tensor,
    ) -> DeviceLayout:
        """Lay a graph out.

        Args:
            source: int[A], states.
            pdf: int[A].
            target: int[A], states.
            probability: float64[A].
            initial: float64[S].
            num_pdfs: P.
            like: tells type and device.
        """
        count = len(initial)
        return cls(
            _Rows.make(target, count, (source, pdf), probability, like),
            _Rows.make(source, count, (target, pdf), probability, like),
            _Rows.make(pdf, num_pdfs, (source, target), probability, like),
            torch.from_numpy(initial).to(like),
        )


class _Grid(NamedTuple):
    """How the work of a pass is shared out.

    Attributes:
        parts: programs for some sequences side by side.
        lanes: sequences side by side.
        blocks: of so many sequences.
        is_whole: whether a launch goes through all frames.
    """

    parts: int
    lanes: int
    blocks: int
    is_whole: bool

    @classmethod
    def of(cls, size: int, device: torch.device) -> _Grid:
        """Choose for a number of sequences."""
        lanes = min(_LANES, triton.next_power_of_2(size))
        blocks = triton.cdiv(size, lanes)
        if device.type != "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            return cls(4, lanes, blocks, is_whole=False)
        known = torch.cuda.get_device_properties(device)
        room = _RESIDENT * known.multi_processor_count // blocks
        parts = min(_PARTS, 1 << max(0, room.bit_length() - 1))
        return cls(parts, lanes, blocks, is_whole=parts <= room)

    def launch(
        self, kernel: Any, num_frames: int, device: torch.device, *arguments: Any
    ) -> None:
        """Go through the frames: a launch for all of them, or for each."""
        options: dict[str, Any] = {"PARTS": self.parts, "ARCS": _ARCS}
        options |= {"LANES": self.lanes, "IS_WHOLE": self.is_whole}
        options |= {"num_warps": _WARPS}
        step = 1
        if self.is_whole:
            options |= {"maxnreg": _REGISTERS, "launch_cooperative_grid": True}
            step = max(1, num_frames)
        arrived = torch.zeros(self.blocks, dtype=torch.int32, device=device)
        grid = self.parts, self.blocks
        for first in range(0, num_frames, step):
            kernel[grid](*arguments, arrived, first, first + step, **options)


@triton.jit
def _wait_for_others(arrived, expected):
    """Wait until as many programs have come here, with what they have written."""
    tl.debug_barrier()
    count = tl.atomic_add(arrived, 1, sem="acq_rel") + 1
    while count < expected:
        count = tl.atomic_add(arrived, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _total(partial, lane, is_lane, size, PARTS: tl.constexpr):
    """Add up what all programs have found for a frame, in their order."""
    part = tl.arange(0, PARTS)
    place = partial + part[:, None] * size + lane[None, :]
    return tl.sum(tl.load(place, mask=is_lane[None, :], other=0.0), axis=0)


@_kernel
def _forward(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, source, pdf, probability, cuts, leak, outputs, alphas, sums, partial,
    num_states, num_pdfs, size, arrived, first_frame, last_frame,
    PARTS: tl.constexpr, ARCS: tl.constexpr, LANES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Sum the arcs into each state: alphas[t + 1] of alphas[t]."""
    part, block = tl.program_id(0), tl.program_id(1)
    lane = block * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    number = alphas.dtype.element_ty
    for t in range(first_frame, last_frame):
        frame = tl.cast(t, tl.int64)
        before = alphas + frame * num_states * size
        output = outputs + frame * num_pdfs * size
        known = partial + (t % 2) * PARTS * size
        whole = tl.where(is_lane, _total(known, lane, is_lane, size, PARTS), 1.0)
        if part == 0:
            tl.store(sums + frame * size + lane, whole, mask=is_lane)
        total = whole.to(number)
        mine = tl.zeros((LANES,), tl.float64)
        for state in range(tl.load(cuts + part), tl.load(cuts + part + 1)):
            found = tl.zeros((LANES,), number)
            first, last = tl.load(begin + state), tl.load(begin + state + 1)
            for arc in range(first, last, ARCS):
                at = arc + tl.arange(0, ARCS)
                is_arc = at < last
                come_from = tl.load(source + at, mask=is_arc, other=0)
                says = tl.load(pdf + at, mask=is_arc, other=0)
                weight = tl.load(probability + at, mask=is_arc, other=0.0)
                leaks = tl.load(leak + come_from)
                both = is_arc[:, None] & is_lane[None, :]
                alpha = tl.load(
                    before + come_from[:, None] * size + lane[None, :],
                    mask=both, other=0.0,
                )  # fmt: skip
                like = tl.load(
                    output + says[:, None] * size + lane[None, :], mask=both, other=0.0
                )
                terms = (alpha + leaks[:, None] * total[None, :]) * weight[:, None]
                found += tl.sum(terms * like, axis=0)
            found /= total
            to = before + (num_states + state) * size + lane
            tl.store(to, found, mask=is_lane)
            mine += found.to(tl.float64)
        place = partial + (((t + 1) % 2) * PARTS + part) * size + lane
        tl.store(place, mine, mask=is_lane)
        if IS_WHOLE:
            _wait_for_others(arrived + block, (t - first_frame + 1) * PARTS)


@triton.jit
def _sum_pdfs(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, source, target, probability, cuts, leak, output, alphas, after,
    total, back, ending, is_end, is_frame, lane, is_lane, num_pdfs, size,
    ARCS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum the arcs of each pdf in a frame: posteriors, in place of the next outputs."""
    number = alphas.dtype.element_ty
    part = tl.program_id(0)
    for pdf in range(tl.load(cuts + part), tl.load(cuts + part + 1)):
        found = tl.zeros((LANES,), number)
        first, last = tl.load(begin + pdf), tl.load(begin + pdf + 1)
        for arc in range(first, last, ARCS):
            at = arc + tl.arange(0, ARCS)
            is_arc = at < last
            come_from = tl.load(source + at, mask=is_arc, other=0)
            goes_to = tl.load(target + at, mask=is_arc, other=0)
            weight = tl.load(probability + at, mask=is_arc, other=0.0)
            leaks = tl.load(leak + come_from)
            both = is_arc[:, None] & is_lane[None, :]
            alpha = tl.load(
                alphas + come_from[:, None] * size + lane[None, :],
                mask=both, other=0.0,
            )  # fmt: skip
            beta = tl.load(
                after + goes_to[:, None] * size + lane[None, :],
                mask=both, other=0.0,
            )  # fmt: skip
            beta = tl.where(is_end[None, :], ending[None, :], beta + back[None, :])
            alpha += leaks[:, None] * total[None, :]
            found += tl.sum(alpha * weight[:, None] * beta, axis=0)
        place = output + pdf * size + lane
        like = tl.load(place, mask=is_lane, other=0.0)
        held = tl.where(is_frame, found * like / total, 0.0)
        tl.store(place + num_pdfs * size, held, mask=is_lane)


@_kernel
def _backward(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, target, pdf, probability, cuts,
    pdf_begin, pdf_source, pdf_target, pdf_probability, pdf_cuts,
    leak, outputs, alphas, sums, counts, betas, partial,
    num_frames, num_states, num_pdfs, size, arrived, first_frame, last_frame,
    PARTS: tl.constexpr, ARCS: tl.constexpr, LANES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Sum the arcs that leave each state, and those of each pdf; from the last frame.

    The sums of states are those before leaking. Posteriors of a frame take the place of
    the outputs of the next one, which nobody reads any more.
    """
    part, block = tl.program_id(0), tl.program_id(1)
    lane = block * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    number = alphas.dtype.element_ty
    count = tl.load(counts + lane, mask=is_lane, other=0)
    for step in range(first_frame, last_frame):
        t = num_frames - 1 - step
        frame = tl.cast(t, tl.int64)
        output = outputs + frame * num_pdfs * size
        total = tl.load(sums + frame * size + lane, mask=is_lane, other=1.0)
        total = total.to(number)
        ending = tl.load(sums + (frame + 1) * size + lane, mask=is_lane, other=1.0)
        ending = (1.0 / ending).to(number)
        is_end = count == t + 1
        after = betas + ((t + 1) % 2) * num_states * size
        known = partial + ((t + 1) % 2) * PARTS * size
        back = _total(known, lane, is_lane, size, PARTS).to(number)
        mine = tl.zeros((LANES,), tl.float64)
        for state in range(tl.load(cuts + part), tl.load(cuts + part + 1)):
            found = tl.zeros((LANES,), number)
            first, last = tl.load(begin + state), tl.load(begin + state + 1)
            for arc in range(first, last, ARCS):
                at = arc + tl.arange(0, ARCS)
                is_arc = at < last
                goes_to = tl.load(target + at, mask=is_arc, other=0)
                says = tl.load(pdf + at, mask=is_arc, other=0)
                weight = tl.load(probability + at, mask=is_arc, other=0.0)
                both = is_arc[:, None] & is_lane[None, :]
                beta = tl.load(
                    after + goes_to[:, None] * size + lane[None, :],
                    mask=both, other=0.0,
                )  # fmt: skip
                beta = tl.where(is_end[None, :], ending[None, :], beta + back[None, :])
                like = tl.load(
                    output + says[:, None] * size + lane[None, :], mask=both, other=0.0
                )
                found += tl.sum(beta * weight[:, None] * like, axis=0)
            found /= total
            to = betas + ((t % 2) * num_states + state) * size + lane
            tl.store(to, found, mask=is_lane)
            mine += (found * tl.load(leak + state)).to(tl.float64)
        place = partial + ((t % 2) * PARTS + part) * size + lane
        tl.store(place, mine, mask=is_lane)
        _sum_pdfs(
            pdf_begin, pdf_source, pdf_target, pdf_probability, pdf_cuts, leak, output,
            alphas + frame * num_states * size, after, total, back, ending, is_end,
            t < count, lane, is_lane, num_pdfs, size, ARCS, LANES,
        )  # fmt: skip
        if IS_WHOLE:
            _wait_for_others(arrived + block, (step - first_frame + 1) * PARTS)


def forward(
    graph: DeviceLayout, outputs: Tensor, leaky: float
) -> tuple[Tensor, Tensor]:
    """Sum the paths from the beginning.

    Args:
        graph: the denominator.
        outputs: F[T + 1, P, B], exponentiated, contiguous; the last row is not read.
        leaky: coefficient of the leaky HMM.

    Returns:
        F[T + 1, S, B], sums of the paths to each state, before leaking, each frame
        relative to the sum of the one before; float64[T + 1, B], the sums over states.
    """
    num_frames, (_, num_pdfs, size) = len(outputs) - 1, outputs.shape
    num_states, device = len(graph.initial), outputs.device
    alphas = outputs.new_empty(num_frames + 1, num_states, size)
    alphas[0] = graph.initial[:, None]
    sums = outputs.new_empty(num_frames + 1, size, dtype=torch.float64)
    grid = _Grid.of(size, device)
    partial = sums.new_zeros(2, grid.parts, size)
    partial[0, 0] = graph.initial.sum(dtype=torch.float64)
    grid.launch(
        _forward, num_frames, device, *graph.into.shared_by(grid.parts),
        graph.initial * leaky, outputs, alphas, sums, partial,
        num_states, num_pdfs, size,
    )  # fmt: skip
    torch.sum(partial[num_frames % 2], 0, out=sums[num_frames])
    return alphas, sums


def backward(
    graph: DeviceLayout,
    outputs: Tensor,
    leaky: float,
    counts: Tensor,
    alphas: Tensor,
    sums: Tensor,
) -> Tensor:
    """Sum the paths from the end, and compute posteriors.

    Args:
        graph: the denominator.
        outputs: as `forward` had them; overwritten.
        leaky: coefficient of the leaky HMM.
        counts: int64[B], frames of each sequence.
        alphas: of `forward`.
        sums: of `forward`.

    Returns:
        F[T, P, B], posteriors of pdfs, 0 behind the end of a sequence.
    """
    num_frames, (_, num_pdfs, size) = len(outputs) - 1, outputs.shape
    num_states, device = len(graph.initial), outputs.device
    grid = _Grid.of(size, device)
    betas = outputs.new_zeros(2, num_states, size)
    partial = sums.new_zeros(2, grid.parts, size)
    grid.launch(
        _backward, num_frames, device, *graph.out_of.shared_by(grid.parts),
        *graph.of_pdf.shared_by(grid.parts), graph.initial * leaky, outputs, alphas,
        sums, counts, betas, partial, num_frames, num_states, num_pdfs, size,
    )  # fmt: skip
    return outputs[1:]
