"""Posteriors in Kaldi's archives, binary and text.

Text is a line an utterance: `[ id weight id weight ... ] ` for each frame. Binary is
the number of frames, then for each frame the number of its pairs and the pairs, each
number behind a byte that tells its width; weights are float32.

Public: `read_posteriors`, `write_posteriors`.

Source: Kaldi `hmm/posterior.cc` (`ReadPosterior`, `WritePosterior`).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, cast

import numpy as np

from latflow.files import atomic_output
from latflow.kaldi_io import BINARY_MARK, KaldiReader, read_archive
from latflow.lattice.posteriors import FramePosteriors

_PAIR = np.dtype(
    [("id_width", "i1"), ("id", "<i4"), ("weight_width", "i1"), ("weight", "<f4")]
)
_WIDTH = 4  # bytes of an int32 and of a float32
_WIDTH_AND_SIZE = struct.Struct("<bi")


def read_posteriors(path: str | Path) -> Iterator[tuple[str, FramePosteriors]]:
    """Yield (utterance, posteriors) of an archive, binary or text, `.gz` or not.

    Raises:
        UserError: the file is missing, truncated or garbled.
    """
    return read_archive(path, _read_item)


def write_posteriors(
    path: str | Path,
    items: Iterable[tuple[str, FramePosteriors]],
    *,
    binary: bool = True,
) -> None:
    """Write a Kaldi archive of posteriors, whole or not at all; weights as float32.

    Args:
        path: the archive; packed if its name ends in `.gz`.
        items: (utterance, posteriors).
        binary: Kaldi's binary form, or its text form.
    """
    as_item = _as_bytes if binary else _as_text
    with atomic_output(path) as temporary, _opened(temporary) as stream:
        for utterance, item in items:
            stream.write(as_item(utterance, item))


def _opened(path: Path) -> IO[bytes]:
    """Open a file for writing, packed if its name ends in `.gz` (without a time)."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(path, "wb", mtime=0))
    return path.open("wb")


def _read_item(reader: KaldiReader) -> FramePosteriors:
    """Read the posteriors of an utterance whose key has been read."""
    return _read_binary(reader) if reader.binary else _read_text(reader)


def _read_binary(reader: KaldiReader) -> FramePosteriors:
    """Read frames of pairs, each number with its width."""
    num_frames = reader.int32()
    if num_frames < 0:
        reader.fail(f"a negative number of frames: {num_frames}")
    frames = []
    for _ in range(num_frames):
        count = reader.int32()
        if count < 0:
            reader.fail(f"a negative number of posteriors: {count}")
        frames.append(np.frombuffer(reader.take(count * _PAIR.itemsize), _PAIR))
    pairs = np.concatenate([np.empty(0, _PAIR), *frames])
    widths = pairs["id_width"], pairs["weight_width"]
    if any((width != _WIDTH).any() for width in widths):
        reader.fail("posteriors whose numbers have not four bytes")
    begin = np.cumsum([0, *(len(frame) for frame in frames)]).astype(np.int64)
    return FramePosteriors(
        begin, pairs["id"].astype(np.int32), pairs["weight"].astype(np.float64)
    )


def _read_text(reader: KaldiReader) -> FramePosteriors:
    """Read one line of frames in brackets."""
    words = np.array(reader.take_line().split(), np.bytes_)
    opens, closes = np.flatnonzero(words == b"["), np.flatnonzero(words == b"]")
    is_number = np.ones(len(words), np.bool_)
    is_number[opens] = is_number[closes] = False
    # Each bracket closes before the next opens, and nothing stands between the two.
    if len(opens) != len(closes) or not (
        (opens < closes).all()
        and (opens[1:] == closes[:-1] + 1).all()
        and is_number.sum() == (closes - opens - 1).sum()
    ):
        reader.fail("posteriors that are not frames in brackets '[ id weight ... ]'")
    counts = closes - opens - 1
    numbers = words[is_number]
    if (counts % 2).any():
        reader.fail("a frame of posteriors that is not a row of pairs")
    try:
        ids, weights = numbers[0::2].astype(np.int32), numbers[1::2].astype(np.float64)
    except ValueError as error:
        reader.fail(f"posteriors with a word that is no number: {error}")
    begin = np.concatenate([[0], np.cumsum(counts // 2)]).astype(np.int64)
    return FramePosteriors(begin, ids, weights)


def _as_bytes(utterance: str, item: FramePosteriors) -> bytes:
    """An item of a binary archive: key, mark, frames."""
    pairs = np.empty(len(item.ids), _PAIR)
    pairs["id_width"] = pairs["weight_width"] = _WIDTH
    pairs["id"], pairs["weight"] = item.ids, item.weights
    raw, begin = pairs.tobytes(), item.frame_begin.tolist()
    parts = [
        f"{utterance} ".encode(),
        BINARY_MARK,
        _WIDTH_AND_SIZE.pack(_WIDTH, len(begin) - 1),
    ]
    for first, last in pairwise(begin):
        parts.append(_WIDTH_AND_SIZE.pack(_WIDTH, last - first))
        parts.append(raw[first * _PAIR.itemsize : last * _PAIR.itemsize])
    return b"".join(parts)


def _as_text(utterance: str, item: FramePosteriors) -> bytes:
    """A line of a text archive; weights with seven digits, as Kaldi prints them."""
    weights = item.weights.astype(np.float32).tolist()
    pairs = [
        f"{id_} {weight:.7g} "
        for id_, weight in zip(item.ids.tolist(), weights, strict=True)
    ]
    begin = item.frame_begin.tolist()
    frames = [f"[ {''.join(pairs[first:last])}] " for first, last in pairwise(begin)]
    return f"{utterance} {''.join(frames)}\n".encode()
