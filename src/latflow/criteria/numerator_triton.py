"""Kernels of the numerator of LF-MMI (and of CTC) for GPUs, in Triton.

A program goes through all frames of a sequence, forward or backward; both directions
are one launch, and the posteriors of all frames another. Arcs of a sum lie side by side
(`PackedGraphs`), so that a segmented scan adds them up: equal arguments give equal
bits. Scores are logarithms in float64, as on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from latflow.criteria.packed_graphs import (
    INTO,
    OF_PDF,
    OUT_OF,
    PDF,
    SOURCE,
    TARGET,
    PackedGraphs,
)

_COLUMNS = {"SOURCE": SOURCE, "TARGET": TARGET, "PDF": PDF}
_ARCS_OF_WARP = 64


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not again for each size of a batch."""
    sizes = ["num_frames", "num_states", "num_pdfs", "width"]
    return triton.jit(function, do_not_specialize=sizes)


@triton.jit
def _add_logs(begins, first, begins_too, second):
    """Combine two runs of scores: the sum, or what a new sum begins with."""
    greatest = tl.maximum(first, second)
    is_none = greatest == float("-inf")
    offset = tl.where(is_none, 0.0, greatest)
    both = tl.exp(first - offset) + tl.exp(second - offset)
    both = tl.where(is_none, greatest, offset + tl.log(tl.where(is_none, 1.0, both)))
    return begins | begins_too, tl.where(begins_too > 0, second, both)


@triton.jit
def _add(begins, first, begins_too, second):
    """Combine two runs of probabilities."""
    return begins | begins_too, tl.where(begins_too > 0, second, first + second)


@triton.jit
def _edges(keys, at, TILE: tl.constexpr):
    """Return which arcs of a tile are the first, and the last, of their sum."""
    within = at % TILE
    key = tl.load(keys + at)
    before = tl.load(keys + at - 1, mask=within > 0, other=-1)
    behind = tl.load(keys + at + 1, mask=within < TILE - 1, other=-1)
    return key, (key != before).to(tl.int32), (key != behind) & (key >= 0)


@triton.jit
def _sum_arcs(
    arcs, weights, known, likes, sums, width,
    OTHER: tl.constexpr, KEY: tl.constexpr, PDF: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sum the arcs of a frame by their state `KEY`, with what is known of the other."""
    for begin in range(0, width, TILE):
        at = begin + tl.arange(0, TILE)
        key, is_first, is_last = _edges(arcs + KEY * width, at, TILE)
        is_arc = key >= 0
        other = tl.load(arcs + OTHER * width + at)
        pdf = tl.load(arcs + PDF * width + at)
        score = tl.load(known + other, mask=is_arc, other=float("-inf"))
        score += tl.load(likes + pdf, mask=is_arc, other=0.0).to(tl.float64)
        score -= tl.load(weights + at).to(tl.float64)
        _, found = tl.associative_scan((is_first, score), 0, _add_logs)
        tl.store(sums + key, found, mask=is_last)
    tl.debug_barrier()


@_kernel
def _sums(
    arcs, weights, final, start, counts, scores, alphas, betas,
    num_frames, num_states, num_pdfs, width,
    INTO: tl.constexpr, OUT_OF: tl.constexpr, SOURCE: tl.constexpr,
    TARGET: tl.constexpr, PDF: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sum the paths of a sequence to each state (program 0), or from it (1)."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row).to(tl.int32)
    scores += row * num_frames * num_pdfs
    alphas += row * (num_frames + 1) * num_states
    betas += row * (num_frames + 1) * num_states
    arcs += row * 9 * width
    weights += row * 3 * width
    if tl.program_id(1) == 0:
        first = tl.load(start + row)
        tl.store(alphas + first, tl.cast(0.0, tl.float64), mask=first >= 0)
        tl.debug_barrier()
        arcs += INTO * 3 * width
        weights += INTO * width
        for t in range(0, count):
            _sum_arcs(
                arcs, weights, alphas + t * num_states, scores + t * num_pdfs,
                alphas + (t + 1) * num_states, width, SOURCE, TARGET, PDF, TILE,
            )  # fmt: skip
    else:
        final += row * num_states
        for begin in range(0, num_states, TILE):
            state = begin + tl.arange(0, TILE)
            cost = tl.load(final + state, mask=state < num_states, other=0.0)
            to = betas + count * num_states + state
            tl.store(to, -cost.to(tl.float64), mask=state < num_states)
        tl.debug_barrier()
        arcs += OUT_OF * 3 * width
        weights += OUT_OF * width
        for step in range(0, count):
            t = count - 1 - step
            _sum_arcs(
                arcs, weights, betas + (t + 1) * num_states, scores + t * num_pdfs,
                betas + t * num_states, width, TARGET, SOURCE, PDF, TILE,
            )  # fmt: skip


@_kernel
def _posteriors(
    arcs, weights, counts, scores, alphas, betas, totals, posteriors,
    num_frames, num_states, num_pdfs, width,
    OF_PDF: tl.constexpr, SOURCE: tl.constexpr, TARGET: tl.constexpr,
    PDF: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sum the paths of a frame that go through each pdf."""
    t, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if t < tl.load(counts + row):
        total = tl.load(totals + row)
        is_known = tl.abs(total) < float("inf")
        scores += (row * num_frames + t) * num_pdfs
        posteriors += (row * num_frames + t) * num_pdfs
        alphas += (row * (num_frames + 1) + t) * num_states
        betas += (row * (num_frames + 1) + t + 1) * num_states
        arcs += row * 9 * width + OF_PDF * 3 * width
        weights += row * 3 * width + OF_PDF * width
        for begin in range(0, width, TILE):
            at = begin + tl.arange(0, TILE)
            key, is_first, is_last = _edges(arcs + PDF * width, at, TILE)
            is_arc = key >= 0
            source = tl.load(arcs + SOURCE * width + at)
            target = tl.load(arcs + TARGET * width + at)
            cost = tl.load(weights + at).to(tl.float64)
            score = tl.load(alphas + source, mask=is_arc, other=float("-inf"))
            score += tl.load(betas + target, mask=is_arc, other=float("-inf"))
            like = tl.load(scores + key, mask=is_arc, other=0.0)
            score += like.to(tl.float64) - cost
            share = tl.where(is_known, tl.exp(score - total), 0.0)
            _, found = tl.associative_scan((is_first, share), 0, _add)
            found = found.to(posteriors.dtype.element_ty)
            tl.store(posteriors + key, found, mask=is_last)


def path_sums(
    scores: Tensor, graphs: PackedGraphs, counts: Tensor, *, need_posteriors: bool
) -> tuple[Tensor, Tensor | None]:
    """Sum the paths of each graph that have one arc a frame.

    Args:
        scores: float32 or float64 [B, T, P], contiguous.
        graphs: on the same device.
        counts: int64 [B], frames of each sequence, at most T.
        need_posteriors: whether posteriors are computed.

    Returns:
        (float64 [B], log-likelihoods; [B, T, P], posteriors, 0 beyond the ends).
    """
    size, num_frames, num_pdfs = scores.shape
    num_states, width = graphs.final.shape[1], graphs.arcs.shape[3]
    shape = (2 if need_posteriors else 1, size, num_frames + 1, num_states)
    known = scores.new_full(shape, -torch.inf, dtype=torch.float64)
    alphas, betas = known[0], known[-1]
    warps = max(1, min(8, graphs.tile // _ARCS_OF_WARP))
    _sums[size, len(known)](
        graphs.arcs, graphs.weights, graphs.final, graphs.start, counts, scores,
        alphas, betas, num_frames, num_states, num_pdfs, width,
        INTO=INTO, OUT_OF=OUT_OF, **_COLUMNS, TILE=graphs.tile, num_warps=warps,
    )  # fmt: skip
    at_end = alphas.gather(1, counts[:, None, None].expand(-1, 1, num_states))[:, 0]
    totals = torch.logsumexp(at_end - graphs.final, 1)
    if not need_posteriors:
        return totals, None
    posteriors = torch.zeros_like(scores)
    # frames first: of the second dimension CUDA has no more than 65,535 programs
    _posteriors[num_frames, size](
        graphs.arcs, graphs.weights, counts, scores, alphas, betas, totals, posteriors,
        num_frames, num_states, num_pdfs, width,
        OF_PDF=OF_PDF, **_COLUMNS, TILE=graphs.tile, num_warps=warps,
    )  # fmt: skip
    return totals, posteriors
