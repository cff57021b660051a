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

Source: Kaldi `chain/chain-denominator.cc`, whose sums these are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 64  # sequences side by side
_GROUP, _UNROLLED = 16, 4  # sums of few arcs side by side, arcs of each
_ARCS = 128  # of a sum of many, side by side
_FEW = 64
_PARTS = 128  # programs that share out the sums, at most; a power of 2
_WARPS = 8
_REGISTERS = {1: 255, 2: 128}  # of a thread, by programs on a multiprocessor


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not again for each number of frames."""
    frames = {"num_frames", "first_frame", "last_frame"}
    frames &= set(inspect.signature(function).parameters)
    return triton.jit(function, do_not_specialize=sorted(frames))


class _Grid(NamedTuple):
    """Shares out the work of a pass.

    Attributes:
        parts: programs for some sequences side by side.
        lanes: sequences side by side.
        blocks: of this many sequences.
        resident: programs on a multiprocessor at a time; 0 where a launch does not go
            through all frames.
    """

    parts: int
    lanes: int
    blocks: int
    resident: int

    @classmethod
    def of(cls, size: int, device: torch.device) -> _Grid:
        """Choose for a number of sequences."""
        lanes = min(_LANES, triton.next_power_of_2(size))
        blocks = triton.cdiv(size, lanes)
        if device.type != "cuda":
            return cls(4, lanes, blocks, 0)
        count = torch.cuda.get_device_properties(device).multi_processor_count
        resident = 1 if count // blocks >= _PARTS else 2
        parts = min(_PARTS, _power_of_2_within(resident * count // blocks))
        return cls(max(1, parts), lanes, blocks, resident if parts else 0)

    def launch(
        self, kernel: Any, num_frames: int, device: torch.device, *arguments: Any
    ) -> None:
        """Go through the frames: a launch for all of them, or for each."""
        options: dict[str, Any] = {"PARTS": self.parts, "LANES": self.lanes}
        options |= {"ARCS": _ARCS, "GROUP": _GROUP, "UNROLLED": _UNROLLED}
        options |= {"IS_WHOLE": self.resident > 0, "num_warps": _WARPS}
        step = 1
        if self.resident:
            options["maxnreg"] = _REGISTERS[self.resident]
            options["launch_cooperative_grid"] = True
            step = max(1, num_frames)
        arrived = torch.zeros(self.blocks, dtype=torch.int32, device=device)
        grid = self.parts, self.blocks
        for first in range(0, num_frames, step):
            kernel[grid](*arguments, arrived, first, first + step, **options)


def _power_of_2_within(limit: int) -> int:
    """Return the greatest power of 2 up to a limit; 0 for 0."""
    return 1 << (limit.bit_length() - 1) if limit else 0


def num_programs(size: int, device: torch.device) -> int:
    """Return how many programs share out the sums of this many sequences."""
    return _Grid.of(size, device).parts


class _Sums(NamedTuple):
    """Arcs by what they are summed into, in the order in which programs take them.

    A program has sums of many arcs, one after the other, and of few arcs, some side by
    side; sums of like length are dealt out to all programs in turn.

    Attributes:
        sums: int32[R], states or pdfs.
        begin: int32[R + 1], where the arcs of each of these begin.
        first: int32[A], the states that the arcs come from, or go to.
        second: int32[A], their pdfs, or the states that they go to.
        probability: F[A].
        cuts: int32[2 PARTS + 1], where the sums of many arcs of each program begin,
            and those of few.
    """

    sums: Tensor
    begin: Tensor
    first: Tensor
    second: Tensor
    probability: Tensor
    cuts: Tensor

    @classmethod
    def make(
        cls,
        by: np.ndarray,
        counts: np.ndarray,
        columns: tuple[np.ndarray, np.ndarray],
        probability: Tensor,
        parts: int,
    ) -> _Sums:
        """Deal out sums.

        Args:
            by: int[A], the sum that each arc belongs to.
            counts: int[R], arcs of each sum.
            columns: int[A] each, see `first` and `second`.
            probability: F[A], on the device.
            parts: programs.
        """
        longest = np.argsort(-counts, kind="stable")
        num_many = np.count_nonzero(counts > _FEW)
        share = np.arange(len(counts))
        share[num_many:] -= num_many
        key = 2 * (share % parts) + (counts[longest] <= _FEW)
        sums = longest[np.argsort(key, kind="stable")]
        place = np.empty_like(sums)
        place[sums] = np.arange(len(sums))
        order = np.argsort(place[by], kind="stable")

        def there(ids: np.ndarray) -> Tensor:
            return torch.from_numpy(ids.astype(np.int32)).to(probability.device)

        return cls(
            there(sums),
            there(np.append(0, np.cumsum(counts[sums]))),
            there(columns[0][order]),
            there(columns[1][order]),
            probability[torch.from_numpy(order).to(probability.device)],
            there(np.append(0, np.cumsum(np.bincount(key, minlength=2 * parts)))),
        )


class DeviceLayout(NamedTuple):
    """A denominator graph on a device, its arcs in three orders.

    Attributes:
        into: arcs by the state that they enter: source, pdf.
        out_of: by the state that they leave: target, pdf.
        of_pdf: by pdf: source, target.
        initial: F[S].
    """

    into: _Sums
    out_of: _Sums
    of_pdf: _Sums
    initial: Tensor

    @classmethod
    def make(
        cls,
        arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
        probability: np.ndarray,
        initial: np.ndarray,
        num_pdfs: int,
        parts: int,
        like: Tensor,
    ) -> DeviceLayout:
        """Lay a graph out.

        Args:
            arcs: source, pdf and target, int[A] each.
            probability: float64[A].
            initial: float64[S].
            num_pdfs: P.
            parts: `num_programs`.
            like: has the type and device.
        """
        (source, pdf, target), num_states = arcs, len(initial)
        weights = torch.from_numpy(probability).to(like)

        def sums(by: np.ndarray, count: int, *columns: np.ndarray) -> _Sums:
            counts = np.bincount(by, minlength=count)
            return _Sums.make(by, counts, (columns[0], columns[1]), weights, parts)

        return cls(
            sums(target, num_states, source, pdf),
            sums(source, num_states, target, pdf),
            sums(pdf, num_pdfs, source, target),
            torch.from_numpy(initial).to(like),
        )


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


@triton.jit
def _terms(
    first, second, weight, is_arc, x, y, leak, total, back, ending, is_end,
    lane, is_lane, size, KIND: tl.constexpr,
):  # fmt: skip
    """Return the terms of some arcs [N, LANES]."""
    both = is_arc[:, None] & is_lane[None, :]
    one = tl.load(x + first[:, None] * size + lane[None, :], mask=both, other=0.0)
    two = tl.load(y + second[:, None] * size + lane[None, :], mask=both, other=0.0)
    if KIND == 1:  # backward
        one = tl.where(is_end[None, :], ending[None, :], one + back[None, :])
    else:
        leaks = tl.load(leak + first, mask=is_arc, other=0.0)
        one += leaks[:, None] * total[None, :]
    if KIND == 2:  # posteriors
        two = tl.where(is_end[None, :], ending[None, :], two + back[None, :])
    return tl.where(both, one * two * weight[:, None], 0.0)


@triton.jit
def _put(
    found, at, is_sum, to, output, leak, total, is_frame, lane, is_lane, size,
    KIND: tl.constexpr,
):  # fmt: skip
    """Store sums of arcs [N, LANES]; return their share of the frame's sum [LANES]."""
    both = is_sum[:, None] & is_lane[None, :]
    place = at[:, None] * size + lane[None, :]
    found /= total[None, :]
    if KIND == 2:  # posteriors
        like = tl.load(output + place, mask=both, other=0.0)
        found = tl.where(is_frame[None, :], found * like, 0.0)
    tl.store(to + place, found, mask=both)
    if KIND == 1:  # backward
        found *= tl.load(leak + at, mask=is_sum, other=0.0)[:, None]
    return tl.sum(tl.where(both, found.to(tl.float64), 0.0), axis=0)


@triton.jit
def _sum_arcs(
    sums, begin, first, second, probability, cuts, x, y, to, output,
    leak, total, back, ending, is_end, is_frame, lane, is_lane, size,
    KIND: tl.constexpr, ARCS: tl.constexpr, GROUP: tl.constexpr,
    UNROLLED: tl.constexpr,
):  # fmt: skip
    """Sum the arcs of this program's share of the sums of a frame."""
    part = tl.program_id(0)
    number = to.dtype.element_ty
    many, few = tl.load(cuts + 2 * part), tl.load(cuts + 2 * part + 1)
    last_row = tl.load(cuts + 2 * part + 2)
    mine = tl.zeros_like(total).to(tl.float64)
    for row in range(many, few):
        start, end = tl.load(begin + row), tl.load(begin + row + 1)
        found = tl.zeros_like(total)
        for arc in range(start, end, ARCS):
            at = arc + tl.arange(0, ARCS)
            is_arc = at < end
            terms = _terms(
                tl.load(first + at, mask=is_arc, other=0),
                tl.load(second + at, mask=is_arc, other=0),
                tl.load(probability + at, mask=is_arc, other=0.0), is_arc, x, y,
                leak, total, back, ending, is_end, lane, is_lane, size, KIND,
            )  # fmt: skip
            found += tl.sum(terms, axis=0)
        at = tl.load(sums + row + tl.arange(0, 1))
        mine += _put(
            found[None, :], at, at >= 0, to, output, leak, total, is_frame, lane,
            is_lane, size, KIND,
        )  # fmt: skip
    for row in range(few, last_row, GROUP):
        rows = row + tl.arange(0, GROUP)
        is_sum = rows < last_row
        start = tl.load(begin + rows, mask=is_sum, other=0)
        count = tl.load(begin + rows + 1, mask=is_sum, other=0) - start
        found = tl.zeros_like(tl.zeros((GROUP, 1), number) + total[None, :])
        for arc in range(0, tl.max(count, axis=0), UNROLLED):
            for ahead in tl.static_range(UNROLLED):
                is_arc = arc + ahead < count
                at = start + arc + ahead
                found += _terms(
                    tl.load(first + at, mask=is_arc, other=0),
                    tl.load(second + at, mask=is_arc, other=0),
                    tl.load(probability + at, mask=is_arc, other=0.0), is_arc, x, y,
                    leak, total, back, ending, is_end, lane, is_lane, size, KIND,
                )  # fmt: skip
        at = tl.load(sums + rows, mask=is_sum, other=0)
        mine += _put(
            found, at, is_sum, to, output, leak, total, is_frame, lane, is_lane, size,
            KIND,
        )  # fmt: skip
    return mine


@_kernel
def _forward(
    arc_sums, begin, source, pdf, probability, cuts, leak, outputs, alphas, sums,
    partial, num_states, num_pdfs, size, arrived, first_frame, last_frame,
    ARCS: tl.constexpr, GROUP: tl.constexpr, UNROLLED: tl.constexpr,
    PARTS: tl.constexpr, LANES: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Sum the arcs into each state: alphas[t + 1] of alphas[t]."""
    part, block = tl.program_id(0), tl.program_id(1)
    lane = block * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    for t in range(first_frame, last_frame):
        frame = tl.cast(t, tl.int64)
        known = partial + (t % 2) * PARTS * size
        whole = tl.where(is_lane, _total(known, lane, is_lane, size, PARTS), 1.0)
        if part == 0:
            tl.store(sums + frame * size + lane, whole, mask=is_lane)
        total = whole.to(alphas.dtype.element_ty)
        before = alphas + frame * num_states * size
        output = outputs + frame * num_pdfs * size
        mine = _sum_arcs(
            arc_sums, begin, source, pdf, probability, cuts, before, output,
            before + num_states * size, output, leak, total, total, total, is_lane,
            is_lane, lane, is_lane, size, 0, ARCS, GROUP, UNROLLED,
        )  # fmt: skip
        place = partial + (((t + 1) % 2) * PARTS + part) * size + lane
        tl.store(place, mine, mask=is_lane)
        if IS_WHOLE:
            _wait_for_others(arrived + block, (t - first_frame + 1) * PARTS)


@_kernel
def _backward(
    arc_sums, begin, target, pdf, probability, cuts,
    pdf_sums, pdf_begin, pdf_source, pdf_target, pdf_probability, pdf_cuts,
    leak, outputs, alphas, sums, counts, betas, partial,
    num_frames, num_states, num_pdfs, size, arrived, first_frame, last_frame,
    ARCS: tl.constexpr, GROUP: tl.constexpr, UNROLLED: tl.constexpr,
    PARTS: tl.constexpr, LANES: tl.constexpr, IS_WHOLE: tl.constexpr,
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
        mine = _sum_arcs(
            arc_sums, begin, target, pdf, probability, cuts, after, output,
            betas + (t % 2) * num_states * size, output, leak, total, back, ending,
            is_end, is_lane, lane, is_lane, size, 1, ARCS, GROUP, UNROLLED,
        )  # fmt: skip
        place = partial + ((t % 2) * PARTS + part) * size + lane
        tl.store(place, mine, mask=is_lane)
        _sum_arcs(
            pdf_sums, pdf_begin, pdf_source, pdf_target, pdf_probability, pdf_cuts,
            alphas + frame * num_states * size, after, output + num_pdfs * size, output,
            leak, total, back, ending, is_end, t < count, lane, is_lane, size, 2,
            ARCS, GROUP, UNROLLED,
        )  # fmt: skip
        if IS_WHOLE:
            _wait_for_others(arrived + block, (step - first_frame + 1) * PARTS)


def forward(
    graph: DeviceLayout, outputs: Tensor, leaky: float
) -> tuple[Tensor, Tensor]:
    """Sum the paths from the beginning.

    Args:
        graph: the denominator, laid out for the programs that B sequences have.
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
        _forward, num_frames, device, *graph.into, graph.initial * leaky,
        outputs, alphas, sums, partial, num_states, num_pdfs, size,
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
        graph: the denominator, laid out for the programs that B sequences have.
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
        _backward, num_frames, device, *graph.out_of, *graph.of_pdf,
        graph.initial * leaky, outputs, alphas, sums, counts, betas, partial,
        num_frames, num_states, num_pdfs, size,
    )  # fmt: skip
    return outputs[1:]
