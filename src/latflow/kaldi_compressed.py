"""Kaldi's lossy compressed matrices, expanded: the formats `CM`, `CM2` and `CM3`.

`CM2` and `CM3` are linear in [low, low + span], with 16 and 8 bits a value. `CM` keeps
four quantiles of each column (0, 25, 75, 100 %) in 16 bits and places each value by 8
bits on the broken line through them: 64 steps up to the lower quartile, 128 more up to
the upper one, 63 above.

Source: Kaldi `matrix/compressed-matrix.{h,cc}` (`GlobalHeader`, `CopyToMat`).
"""

from __future__ import annotations

import numpy as np

KINDS = ("CM", "CM2", "CM3")
_KNOTS = np.array([0.0, 64.0, 192.0, 255.0])  # code of each quantile


def compressed_size(kind: str, rows: int, columns: int) -> int:
    """Bytes that follow the header of a compressed matrix."""
    if kind == "CM":
        return columns * (8 + rows)
    return rows * columns * (2 if kind == "CM2" else 1)


def expand(
    kind: str, raw: bytes, shape: tuple[int, int], low: float, span: float
) -> np.ndarray:
    """Expand the bytes after the header of a compressed matrix.

    Args:
        kind: one of `KINDS`.
        raw: `compressed_size(kind, *shape)` bytes.
        shape: (rows R, columns C).
        low: the smallest value that a code can stand for.
        span: the largest one minus `low`.

    Returns:
        float32[R, C].
    """
    rows, columns = shape
    if kind != "CM":
        dtype, steps = ("<u2", 65535.0) if kind == "CM2" else ("<u1", 255.0)
        codes = np.frombuffer(raw, dtype).reshape(rows, columns)
        return (low + codes * (span / steps)).astype(np.float32)
    header = np.frombuffer(raw[: 8 * columns], "<u2").reshape(columns, 4)
    quantiles = low + header * (span / 65535.0)
    codes = np.frombuffer(raw[8 * columns :], "<u1").reshape(columns, rows)
    values = np.empty((rows, columns), np.float32)
    for column in range(columns):
        values[:, column] = np.interp(codes[column], _KNOTS, quantiles[column])
    return values
