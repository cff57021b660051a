"""Feature frames of a corpus, flat and memory-mapped: what the GMM stages read.

A `FrameStore` is a folder of three files. `frames.npy` holds the frames of all
utterances below each other (float32 [sum T, D]); `index.npz` says where each utterance
begins and holds ids, speakers and texts as packed UTF-8; `meta.json` the rest. Opening
it costs milliseconds whatever the size: nothing is parsed per utterance, and frames
come from the disk when they are touched.

Row order is utterance order, and utterances are sorted by id (byte order).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy

from latflow.errors import UserError

FORMAT = "latflow-frames-1"
FRAMES, INDEX, META = "frames.npy", "index.npz", "meta.json"


class FrameStore:
    """Frames of a corpus, read only; make one with `FrameStore.load`.

    Safe to share between threads. Pickling it pickles the folder's name alone, so
    worker processes map the same pages of memory.

    Attributes:
        folder: where it lies.
        begin: int64[N + 1], first row of each utterance; the last entry is sum T.
        dim: features a frame, D.
        frame_shift: time from one frame to the next, seconds.
        meta: the whole of `meta.json`.
    """

    def __init__(
        self,
        folder: Path,
        matrix: np.ndarray,
        index: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.begin = index["begin"]
        self.dim = int(matrix.shape[1])
        self.frame_shift = float(meta["frame_shift"])
        self.meta = meta
        self._matrix = matrix
        self._index = index

    @classmethod
    def load(cls, folder: str | Path) -> FrameStore:
        """Open a folder that `FrameWriter` wrote.

        Raises:
            UserError: there is no such store, or its files do not fit each other.
        """
        folder = Path(folder)
        remedy = "run the normalise_features stage again"
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            with np.load(folder / INDEX) as arrays:
                index = {name: arrays[name] for name in arrays.files if name != "texts"}
            matrix = _map(folder / FRAMES)
        except (OSError, ValueError) as error:
            raise UserError(
                f"not a readable frame store ({error})", file=folder, remedy=remedy
            ) from error
        fits = meta.get("format") == FORMAT and "begin" in index
        if not fits or index["begin"][-1] != len(matrix):
            raise UserError("frames and index differ", file=folder, remedy=remedy)
        return cls(folder, matrix, index, meta)

    def __len__(self) -> int:
        return len(self.begin) - 1

    @property
    def num_frames(self) -> int:
        """Frames of all utterances together."""
        return int(self.begin[-1])

    @cached_property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        return unpack(self._index["utt_ids"], len(self))

    @cached_property
    def speakers(self) -> list[str]:
        """Speaker of each utterance."""
        names = self.speaker_names
        return [names[code] for code in self.speaker_codes]

    @cached_property
    def speaker_names(self) -> list[str]:
        """The distinct speakers, in order of first appearance."""
        return unpack(self._index["speaker_names"], int(self.meta["num_speakers"]))

    @property
    def speaker_codes(self) -> np.ndarray:
        """int32[N]: index of each utterance's speaker in `speaker_names`."""
        return self._index["speaker_codes"]

    @cached_property
    def texts(self) -> list[str]:
        """Transcript of each utterance, words separated by blanks."""
        with np.load(self.folder / INDEX) as arrays:
            return unpack(arrays["texts"], len(self))

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Utterance id -> index."""
        return {utt_id: i for i, utt_id in enumerate(self.utt_ids)}

    def position(self, utt_id: str) -> int:
        """Index of an utterance.

        Raises:
            KeyError: no such utterance.
        """
        return self._positions[utt_id]

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of utterance i, float32 [T_i, D], a read-only view."""
        return self.block(i, i + 1)

    def block(self, first: int, last: int) -> np.ndarray:
        """Return the frames of utterances first..last-1 below each other."""
        return self._matrix[self.begin[first] : self.begin[last]]

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrameStore.load, (self.folder,))


class FrameWriter:
    """Write a `FrameStore`, an utterance at a time; memory holds the index alone.

    Use it as a context manager, inside `latflow.files.atomic_directory`: `meta.json`,
    without which the folder is no store, comes last.

    Args:
        folder: made if absent.
        dim: features a frame, D.
        frame_shift: time from one frame to the next, seconds.
        meta: further JSON values to keep with the frames.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dim: int,
        frame_shift: float = 0.01,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._dim = dim
        self._meta = {**(meta or {}), "format": FORMAT, "frame_shift": frame_shift}
        self._utt_ids: list[str] = []
        self._texts: list[str] = []
        self._codes: list[int] = []
        self._speakers: dict[str, int] = {}
        self._begin = [0]
        self._stream: BufferedWriter = (self._folder / FRAMES).open("wb")
        self._write_header()
        self._header_length = self._stream.tell()

    def append(self, utt_id: str, speaker: str, text: str, frames: np.ndarray) -> None:
        """Add one utterance; ids must come sorted (byte order), each once.

        Args:
            utt_id: its id.
            speaker: its speaker's id.
            text: its transcript.
            frames: [T, D], stored as float32.

        Raises:
            ValueError: ids out of order, a line break in a string, or a wrong D.
        """
        if self._utt_ids and utt_id <= self._utt_ids[-1]:
            raise ValueError(f"{utt_id!r} comes after {self._utt_ids[-1]!r}")
        if "\n" in utt_id or "\n" in speaker or "\n" in text:
            raise ValueError(f"{utt_id!r}: line break in id, speaker or text")
        if frames.ndim != 2 or frames.shape[1] != self._dim:
            raise ValueError(f"{utt_id!r}: shape {frames.shape}, not [T, {self._dim}]")
        self._stream.write(np.ascontiguousarray(frames, "<f4").data)
        self._utt_ids.append(utt_id)
        self._texts.append(text)
        self._codes.append(self._speakers.setdefault(speaker, len(self._speakers)))
        self._begin.append(self._begin[-1] + len(frames))

    def close(self) -> None:
        """Write the final header, the index and `meta.json`."""
        if self._stream.closed:
            return
        self._stream.seek(0)
        self._write_header()
        assert self._stream.tell() == self._header_length
        self._stream.close()
        np.savez(
            self._folder / INDEX,
            begin=np.array(self._begin, np.int64),
            utt_ids=pack(self._utt_ids),
            texts=pack(self._texts),
            speaker_names=pack(list(self._speakers)),
            speaker_codes=np.array(self._codes, np.int32),
        )
        meta = {
            **self._meta,
            "num_utterances": len(self._utt_ids),
            "num_speakers": len(self._speakers),
            "num_frames": self._begin[-1],
            "dim": self._dim,
        }
        text = json.dumps(meta, indent=1, sort_keys=True)
        (self._folder / META).write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stream.close()

    def _write_header(self) -> None:
        """Write numpy's header for the rows so far.

        Numpy pads it so that the number of rows can be rewritten in place.
        """
        shape = (self._begin[-1], self._dim)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._stream, header)


def batches(store: FrameStore, max_frames: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive utterances with at most `max_frames` frames.

    An utterance longer than that comes alone. All utterances are covered, in order.
    """
    first = 0
    while first < len(store):
        limit = store.begin[first] + max_frames
        last = int(np.searchsorted(store.begin, limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def _map(path: Path) -> np.ndarray:
    """Memory-map a matrix, read only (an empty file cannot be mapped)."""
    matrix = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else None
    plain = np.load(path) if matrix is None else np.asarray(matrix)
    if plain.ndim != 2 or plain.dtype != np.float32:
        raise ValueError(f"{path.name} is not a float32 matrix")
    return plain


def pack(strings: list[str]) -> np.ndarray:
    """Strings as the bytes of their lines, uint8."""
    return np.frombuffer("\n".join(strings).encode("utf-8"), np.uint8)


def unpack(packed: np.ndarray, count: int) -> list[str]:
    """Strings from the bytes of their lines."""
    return packed.tobytes().decode("utf-8").split("\n") if count else []
