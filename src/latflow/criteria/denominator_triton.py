"""Kernels of the denominator of LF-MMI for GPUs, in Triton.

A frame is three launches: the sums forward, those backward, and the posteriors of pdfs.
Arcs lie by what they are summed into (target, source, pdf), so that a program adds up
all arcs of one sum, some at a time, for some sequences side by side: no atomic
operations, and equal arguments give equal bits. Numbers of a state or pdf lie by
sequence, [frame, state, sequence], so that what an arc reads is contiguous.

F is the type of the numbers, float32 or float64; sums over states are float64.

Public: `DeviceLayout`, `forward`, `backward`.

Source: Kaldi `chain/chain-denominator.cc`, whose sums these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_ARCS, _LANES = 16, 64  # of a program at a time: arcs of a state, sequences
_ARCS_OF_PDF, _LANES_OF_PDF = 64, 16


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not for each number of a frame, `t`, anew."""
    return triton.jit(function, do_not_specialize=["t"])


class DeviceLayout(NamedTuple):
    """A denominator graph on a device, its arcs in three orders.

    Attributes:
        in_begin: int32[S + 1], where the arcs into each state begin.
        in_arcs: source, pdf int32[A] and probability F[A] of these.
        out_begin: int32[S + 1], where the arcs that leave each state begin.
        out_arcs: target, pdf and probability of these.
        pdf_begin: int32[P + 1], where the arcs of each pdf begin.
        pdf_arcs: source, target and probability of these.
        initial: F[S].
    """

    in_begin: Tensor
    in_arcs: tuple[Tensor, Tensor, Tensor]
    out_begin: Tensor
    out_arcs: tuple[Tensor, Tensor, Tensor]
    pdf_begin: Tensor
    pdf_arcs: tuple[Tensor, Tensor, Tensor]
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

        def ordered(by: np.ndarray, count: int, *ids: np.ndarray) -> tuple[Tensor, Any]:
            order = np.argsort(by, kind="stable")
            begin = np.zeros(count + 1, np.int32)
            np.cumsum(np.bincount(by, minlength=count), out=begin[1:])
            arcs = [
                torch.from_numpy(x[order].astype(np.int32)).to(like.device) for x in ids
            ]
            weights = torch.from_numpy(probability[order]).to(like)
            return torch.from_numpy(begin).to(like.device), (*arcs, weights)

        count = len(initial)
        return cls(
            *ordered(target, count, source, pdf),
            *ordered(source, count, target, pdf),
            *ordered(pdf, num_pdfs, source, target),
            torch.from_numpy(initial).to(like),
        )


@_kernel
def _forward_frame(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, source, pdf, probability, leak, outputs, sums, alphas,
    t, num_states, num_pdfs, size, ARCS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum the arcs into a state: alphas[t + 1] of alphas[t]."""
    state = tl.program_id(0)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    frame = t.to(tl.int64)
    alphas += frame * num_states * size
    outputs += frame * num_pdfs * size
    total = tl.load(sums + frame * size + lane, mask=is_lane, other=1.0)
    total = total.to(alphas.dtype.element_ty)
    first, last = tl.load(begin + state), tl.load(begin + state + 1)
    found = tl.zeros((LANES,), alphas.dtype.element_ty)
    for arc in range(first, last, ARCS):
        at = arc + tl.arange(0, ARCS)
        is_arc = at < last
        come_from = tl.load(source + at, mask=is_arc, other=0)
        says = tl.load(pdf + at, mask=is_arc, other=0)
        weight = tl.load(probability + at, mask=is_arc, other=0.0)
        leaks = tl.load(leak + come_from)
        both = is_arc[:, None] & is_lane[None, :]
        alpha = tl.load(
            alphas + come_from[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        output = tl.load(
            outputs + says[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        terms = (alpha + leaks[:, None] * total[None, :]) * weight[:, None] * output
        found += tl.sum(terms, axis=0)
    to = alphas + (num_states + state) * size + lane
    tl.store(to, found / total, mask=is_lane)


@_kernel
def _backward_frame(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, target, pdf, probability, outputs, sums, counts, after, leaked, before,
    t, num_pdfs, size, ARCS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum the arcs that leave a state, before leaking: `before` of `after`."""
    state = tl.program_id(0)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    frame = t.to(tl.int64)
    number = before.dtype.element_ty
    outputs += frame * num_pdfs * size
    total = tl.load(sums + frame * size + lane, mask=is_lane, other=1.0)
    ending = tl.load(sums + (frame + 1) * size + lane, mask=is_lane, other=1.0)
    is_end = tl.load(counts + lane, mask=is_lane, other=0) == frame + 1
    leak = tl.load(leaked + lane, mask=is_lane, other=0.0)
    first, last = tl.load(begin + state), tl.load(begin + state + 1)
    found = tl.zeros((LANES,), number)
    for arc in range(first, last, ARCS):
        at = arc + tl.arange(0, ARCS)
        is_arc = at < last
        goes_to = tl.load(target + at, mask=is_arc, other=0)
        says = tl.load(pdf + at, mask=is_arc, other=0)
        weight = tl.load(probability + at, mask=is_arc, other=0.0)
        both = is_arc[:, None] & is_lane[None, :]
        beta = tl.load(
            after + goes_to[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        beta = tl.where(
            is_end[None, :], (1.0 / ending).to(number)[None, :], beta + leak[None, :]
        )
        output = tl.load(
            outputs + says[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        found += tl.sum(beta * weight[:, None] * output, axis=0)
    tl.store(before + state * size + lane, found / total.to(number), mask=is_lane)


@_kernel
def _posterior_frame(  # noqa: PLR0913, PLR0917 - a kernel takes tensors one by one
    begin, source, target, probability, leak, outputs, sums, counts, alphas, after,
    leaked, t, num_states, num_pdfs, size, ARCS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum the arcs of a pdf: its posteriors, in place of its outputs."""
    pdf = tl.program_id(0)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    is_lane = lane < size
    frame = t.to(tl.int64)
    number = alphas.dtype.element_ty
    alphas += frame * num_states * size
    place = outputs + (frame * num_pdfs + pdf) * size + lane
    total = tl.load(sums + frame * size + lane, mask=is_lane, other=1.0).to(number)
    ending = tl.load(sums + (frame + 1) * size + lane, mask=is_lane, other=1.0)
    count = tl.load(counts + lane, mask=is_lane, other=0)
    back = tl.load(leaked + lane, mask=is_lane, other=0.0)
    first, last = tl.load(begin + pdf), tl.load(begin + pdf + 1)
    found = tl.zeros((LANES,), number)
    for arc in range(first, last, ARCS):
        at = arc + tl.arange(0, ARCS)
        is_arc = at < last
        come_from = tl.load(source + at, mask=is_arc, other=0)
        goes_to = tl.load(target + at, mask=is_arc, other=0)
        weight = tl.load(probability + at, mask=is_arc, other=0.0)
        leaks = tl.load(leak + come_from)
        both = is_arc[:, None] & is_lane[None, :]
        alpha = tl.load(
            alphas + come_from[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        beta = tl.load(
            after + goes_to[:, None] * size + lane[None, :], mask=both, other=0.0
        )
        beta = tl.where(
            (count == frame + 1)[None, :],
            (1.0 / ending).to(number)[None, :],
            beta + back[None, :],
        )
        alpha += leaks[:, None] * total[None, :]
        found += tl.sum(alpha * weight[:, None] * beta, axis=0)
    output = tl.load(place, mask=is_lane, other=0.0)
    held = tl.where(frame < count, found * output / total, 0.0)
    tl.store(place, held, mask=is_lane)


def forward(
    graph: DeviceLayout, outputs: Tensor, leaky: float
) -> tuple[Tensor, Tensor]:
    """Sum the paths from the beginning.

    Args:
        graph: the denominator.
        outputs: F[T, P, B], exponentiated, contiguous.
        leaky: coefficient of the leaky HMM.

    Returns:
        F[T + 1, S, B], sums of the paths to each state, before leaking, each frame
        relative to the sum of the one before; float64[T + 1, B], the sums over states.
    """
    num_frames, num_pdfs, size = outputs.shape
    num_states = len(graph.initial)
    leak = graph.initial * leaky
    alphas = outputs.new_empty(num_frames + 1, num_states, size)
    sums = outputs.new_empty(num_frames + 1, size, dtype=torch.float64)
    alphas[0] = graph.initial[:, None]
    torch.sum(alphas[0], 0, dtype=torch.float64, out=sums[0])
    lanes = min(_LANES, triton.next_power_of_2(size))
    grid = num_states, triton.cdiv(size, lanes)
    for t in range(num_frames):
        _forward_frame[grid](
            graph.in_begin, *graph.in_arcs, leak, outputs, sums, alphas,
            t, num_states, num_pdfs, size, ARCS=_ARCS, LANES=lanes,
        )  # fmt: skip
        torch.sum(alphas[t + 1], 0, dtype=torch.float64, out=sums[t + 1])
    return alphas, sums


def backward(
    graph: DeviceLayout,
    outputs: Tensor,
    leaky: float,
    counts: Tensor,
    alphas: Tensor,
    sums: Tensor,
) -> None:
    """Sum the paths from the end, and compute posteriors.

    Args:
        graph: the denominator.
        outputs: F[T, P, B], as `forward` had them; receives the posteriors of pdfs, 0
            behind the end of a sequence.
        leaky: coefficient of the leaky HMM.
        counts: int64[B], frames of each sequence.
        alphas: of `forward`.
        sums: of `forward`.
    """
    num_frames, num_pdfs, size = outputs.shape
    num_states = len(graph.initial)
    leak = graph.initial * leaky
    after, before = torch.zeros_like(alphas[0]), torch.empty_like(alphas[0])
    leaked = outputs.new_zeros(size)
    lanes = min(_LANES, triton.next_power_of_2(size))
    few = min(_LANES_OF_PDF, triton.next_power_of_2(size))
    for t in range(num_frames - 1, -1, -1):
        _backward_frame[num_states, triton.cdiv(size, lanes)](
            graph.out_begin, *graph.out_arcs, outputs, sums, counts, after, leaked,
            before, t, num_pdfs, size, ARCS=_ARCS, LANES=lanes,
        )  # fmt: skip
        _posterior_frame[num_pdfs, triton.cdiv(size, few)](
            graph.pdf_begin, *graph.pdf_arcs, leak, outputs, sums, counts, alphas,
            after, leaked, t, num_states, num_pdfs, size,
            ARCS=_ARCS_OF_PDF, LANES=few,
        )  # fmt: skip
        leaked = torch.mv(before.T, leak)
        after, before = before, after
