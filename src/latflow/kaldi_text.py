"""Numbers as Kaldi prints and reads them in text files.

Source: Kaldi `matrix/kaldi-vector.cc`, `matrix/kaldi-matrix.cc` (`Read`, `Write`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def parse_numbers(
    words: Sequence[bytes], parse: Callable[[bytes], int | float]
) -> np.ndarray:
    """Turn words into float64[N].

    Raises:
        ValueError: one is not a number.
    """
    return np.array([parse(word) for word in words], np.float64)


def parse_matrix(text: bytes) -> np.ndarray:
    """Turn what is between the brackets of a text matrix into float32[R, C].

    Rows end with a line or a semicolon; empty ones do not count.

    Raises:
        ValueError: a word is not a number, or rows differ in length.
    """
    lines = text.replace(b";", b"\n").split(b"\n")
    rows = [row for line in lines if (row := line.split())]
    if not rows:
        return np.zeros((0, 0), np.float32)
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("a matrix whose rows differ in length")
    values = parse_numbers([word for row in rows for word in row], float)
    return values.reshape(len(rows), -1).astype(np.float32)


def format_floats(values: np.ndarray) -> str:
    """Numbers[N] as C++ streams print them at Kaldi's precision, a space after each."""
    return ("%.7g " * len(values)) % tuple(values.tolist())


def format_matrix(matrix: np.ndarray) -> str:
    """A matrix[R, C] in brackets, each row on a line of its own."""
    if matrix.size == 0:
        return " [ ]\n"
    rows = "".join(f"\n  {format_floats(row)}" for row in matrix)
    return f" [{rows}]\n"
