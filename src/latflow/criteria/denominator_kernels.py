"""Kernels of the denominator of LF-MMI: `LANES` sequences side by side.

An array of rows of lanes holds a number of each sequence in a row: what is done for an
arc is then one vector operation. Such arrays are C-contiguous; F is their type, float32
or float64.

Source: Kaldi `chain/chain-denominator.cc`, whose sums these are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latflow.jit import njit

#: Sequences that go through the graph side by side: a cache line of float32.
LANES = 16
_LINE = 64  # bytes of a cache line
_CHUNK = 128  # states whose probabilities are summed before float64 takes over


class Layout(NamedTuple):
    """A denominator graph as arrays; probabilities are of type F.

    Arcs that share target and pdf are a group: their sources are summed before the
    output of the network is multiplied.

    Attributes:
        source: int32[A], by group.
        probability: F[A], by group.
        group_begin: int64[G + 1], where the arcs of each group begin.
        group_pdf, group_target: int32[G]; targets ascend.
        out_begin: int64[S + 1], where the arcs that leave each state begin.
        out_group: int32[A], by source.
        out_probability: F[A], by source.
        initial: F[S].
        ones: F[max(S, G)], ones.
        identity: int32[S], 0 ... S - 1.
    """

    source: np.ndarray
    probability: np.ndarray
    group_begin: np.ndarray
    group_pdf: np.ndarray
    group_target: np.ndarray
    out_begin: np.ndarray
    out_group: np.ndarray
    out_probability: np.ndarray
    initial: np.ndarray
    ones: np.ndarray
    identity: np.ndarray

    @classmethod
    def make(
        cls,
        source: np.ndarray,
        pdf: np.ndarray,
        target: np.ndarray,
        probability: np.ndarray,
        initial: np.ndarray,
    ) -> Layout:
        """Lay a graph out.

        Args:
            source: int[A], states.
            pdf: int[A].
            target: int[A], states; arcs ascend by target, then by pdf.
            probability: F[A].
            initial: F[S].
        """
        is_first = np.ones(len(source), bool)
        is_first[1:] = (np.diff(target) != 0) | (np.diff(pdf) != 0)
        first = np.flatnonzero(is_first)
        out = np.argsort(source, kind="stable")
        out_begin = np.zeros(len(initial) + 1, np.int64)
        np.cumsum(np.bincount(source, minlength=len(initial)), out=out_begin[1:])
        return cls(
            source.astype(np.int32),
            probability,
            np.append(first, len(source)).astype(np.int64),
            pdf[first].astype(np.int32),
            target[first].astype(np.int32),
            out_begin,
            (np.cumsum(is_first) - 1)[out].astype(np.int32),
            probability[out],
            initial,
            np.ones(max(len(initial), len(first)), probability.dtype),
            np.arange(len(initial), dtype=np.int32),
        )


@njit(cache=True, nogil=True)
def aligned_rows(count: int, like: np.ndarray) -> np.ndarray:
    """Make rows of lanes, not filled, that lie on cache lines; F of another array."""
    raw = np.empty(count * LANES + _LINE // like.itemsize, like.dtype)
    skip = (-raw.ctypes.data % _LINE) // like.itemsize
    return raw[skip : skip + count * LANES].reshape((count, LANES))


def _emit_add_rows(
    typingctx: Any,  # noqa: ARG001 - a type, of no interest
    out: Any,
    out_row: Any,  # noqa: ARG001 - a type, of no interest
    factor: Any,
    factor_row: Any,  # noqa: ARG001 - a type, of no interest
    rows: Any,
    index: Any,
    weight: Any,
    first: Any,  # noqa: ARG001 - a type, of no interest
    last: Any,  # noqa: ARG001 - a type, of no interest
) -> Any:
    """Emit LLVM's code for a weighted sum of rows, times a row, added to a row.

    out[out_row] += factor[factor_row] * sum(weight[i] * rows[index[i]]), over i from
    `first` to `last` - 1. By hand, so that the sum stays in vector registers: Numba
    makes scalar operations of a loop over as few lanes. The arguments are the types of
    those of `_add_rows`.

    Args:
        typingctx: Numba's.
        out: F[N, LANES], C-contiguous as all arrays here.
        out_row: which row.
        factor: F[M, LANES].
        factor_row: which row.
        rows: F[L, LANES].
        index: int32[A].
        weight: F[A].
        first: the first of the terms.
        last: behind the last of the terms.
    """
    signature = types.void(
        out, types.intp, factor, types.intp, rows, index, weight, types.intp, types.intp
    )

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number = context.get_data_type(out.dtype)
        number_size = out.dtype.bitwidth // 8
        vector = ir.VectorType(number, LANES)
        (
            out_at,
            out_row,
            factor_at,
            factor_row,
            rows_at,
            index_at,
            weight_at,
            start,
            stop,
        ) = (
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(signature.args, values, strict=True)
        )
        one, first_lane = ir.Constant(stop.type, 1), ir.Constant(ir.IntType(32), 0)
        undefined = ir.Constant(vector, ir.Undefined)

        def row(base: Any, index: Any) -> Any:
            return builder.gep(builder.bitcast(base, vector.as_pointer()), [index])

        def multiply_add(a: Any, b: Any, c: Any) -> Any:
            return builder.fadd(
                builder.fmul(a, b, flags=("contract",)), c, flags=("contract",)
            )

        total = cgutils.alloca_once(builder, vector)
        builder.store(ir.Constant(vector, [0.0] * LANES), total)
        with cgutils.for_range_slice(builder, start, stop, one, inc=True) as (i, _):
            at = builder.sext(builder.load(builder.gep(index_at, [i])), one.type)
            scale = builder.load(builder.gep(weight_at, [i]))
            scale = builder.insert_element(undefined, scale, first_lane)
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            scales = builder.shuffle_vector(scale, undefined, zeros)
            term = builder.load(row(rows_at, at), align=number_size)
            builder.store(multiply_add(scales, term, builder.load(total)), total)
        by = builder.load(row(factor_at, factor_row), align=number_size)
        to = row(out_at, out_row)
        value = multiply_add(
            by, builder.load(total), builder.load(to, align=number_size)
        )
        builder.store(value, to, align=number_size)
        return context.get_dummy_value()

    return signature, generate


_add_rows: Any = intrinsic(_emit_add_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    graph: Layout, outputs: np.ndarray, leaky: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the paths from the beginning.

    Args:
        graph: the denominator.
        outputs: F[T, P, LANES], exponentiated; is divided by the sums.
        leaky: coefficient of the leaky HMM.

    Returns:
        F[T + 1, S, LANES], sums of the paths to each state, after leaking, each frame
        relative to the sum of the one before; float64[T + 1, LANES], the sums over the
        states, before leaking.
    """
    num_frames, num_states = len(outputs), len(graph.initial)
    leak = (graph.initial * leaky).astype(graph.initial.dtype)
    alphas = aligned_rows((num_frames + 1) * num_states, leak)
    alphas = alphas.reshape((num_frames + 1, num_states, LANES))
    sums = np.empty((num_frames + 1, LANES))
    total = np.empty((1, LANES), leak.dtype)
    ones = np.ones((1, LANES), leak.dtype)
    zeros = np.zeros(num_states, np.int32)
    for state in range(num_states):
        alphas[0, state] = graph.initial[state]
    for t in range(num_frames + 1):
        alpha = alphas[t]
        _sum_states(alpha, graph, sums[t])
        total[0] = sums[t]
        for state in range(num_states):
            _add_rows(alpha, state, ones, 0, total, zeros, leak, state, state + 1)
        if t == num_frames:
            break
        output, after = outputs[t], alphas[t + 1]
        for pdf in range(len(output)):
            output[pdf] /= sums[t]
        after[:] = 0.0
        for group in range(len(graph.group_pdf)):
            _add_rows(
                after,
                graph.group_target[group],
                output,
                graph.group_pdf[group],
                alpha,
                graph.source,
                graph.probability,
                graph.group_begin[group],
                graph.group_begin[group + 1],
            )
    return alphas, sums


@njit(cache=True, nogil=True)
def _sum_states(values: np.ndarray, graph: Layout, sums: np.ndarray) -> None:
    """Sum rows [S, LANES] into float64 `sums`, by chunks."""
    ones = np.ones((1, LANES), values.dtype)
    part = np.empty((1, LANES), values.dtype)
    sums[:] = 0.0
    for first in range(0, len(values), _CHUNK):
        last = min(first + _CHUNK, len(values))
        part[:] = 0.0
        _add_rows(part, 0, ones, 0, values, graph.identity, graph.ones, first, last)
        sums += part[0]


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    graph: Layout,
    outputs: np.ndarray,
    leaky: float,
    counts: np.ndarray,
    alphas: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Sum the paths from the end, and compute posteriors.

    Args:
        graph: the denominator.
        outputs: F[T, P, LANES], as `forward` left them; receives the posteriors of
            pdfs at the frames that a sequence has.
        leaky: coefficient of the leaky HMM.
        counts: int64[LANES], frames of each sequence.
        alphas: of `forward`.
        sums: of `forward`.
    """
    num_states, num_groups = len(graph.initial), len(graph.group_pdf)
    leak = (graph.initial * leaky).astype(graph.initial.dtype)
    before, after = aligned_rows(num_states, leak), aligned_rows(num_states, leak)
    terms = aligned_rows(num_groups, leak)
    held = aligned_rows(outputs.shape[1], leak)
    leaked = np.empty((1, LANES), leak.dtype)
    ones = np.ones((1, LANES), leak.dtype)
    zeros = np.zeros(num_states, np.int32)
    after[:] = 0.0
    for t in range(len(outputs) - 1, -1, -1):
        output = outputs[t]
        for lane in range(LANES):
            if counts[lane] == t + 1:
                after[:, lane] = 1.0 / sums[t + 1, lane]
        terms[:] = 0.0
        held[:] = 0.0
        for group in range(num_groups):
            pdf, target = graph.group_pdf[group], graph.group_target[group]
            _add_rows(
                terms,
                group,
                output,
                pdf,
                after,
                graph.group_target,
                graph.ones,
                group,
                group + 1,
            )
            _add_rows(
                held,
                pdf,
                after,
                target,
                alphas[t],
                graph.source,
                graph.probability,
                graph.group_begin[group],
                graph.group_begin[group + 1],
            )
        before[:] = 0.0
        for state in range(num_states):
            _add_rows(
                before,
                state,
                ones,
                0,
                terms,
                graph.out_group,
                graph.out_probability,
                graph.out_begin[state],
                graph.out_begin[state + 1],
            )
        leaked[:] = 0.0
        _add_rows(leaked, 0, ones, 0, before, graph.identity, leak, 0, num_states)
        for state in range(num_states):
            _add_rows(before, state, ones, 0, leaked, zeros, graph.ones, 0, 1)
        output *= held
        before, after = after, before
