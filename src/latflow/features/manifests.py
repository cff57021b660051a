"""Lhotse manifests and storage as the feature stages read and write them.

Cuts are read and written one at a time, sorted by id, so that a corpus of any size
passes through. What is written depends on the data alone: the packed file carries no
time and no name.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
from lhotse import CutSet, MonoCut
from lhotse.features.io import close_cached_file_handles, get_writer

from latflow.errors import UserError

# HDF5 ends the process when a write fails: it must never come to that. This much covers
# what it holds back in its caches.
HDF5_RESERVE_BYTES = 64 * 2**20

_REMEDY = "run the prepare_corpus stage again"


def read_cuts(path: str | Path) -> Iterator[MonoCut]:
    """Yield the cuts of a `cuts.jsonl.gz`.

    Raises:
        UserError: the file is missing or garbled, an id comes twice or out of order, or
            a cut is not one channel of one recording.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError("no such file", file=path, remedy=_REMEDY)
    last = ""
    try:
        for cut in CutSet.from_jsonl_lazy(path):
            if not isinstance(cut, MonoCut):
                raise UserError(
                    "is not a cut of one channel of one recording",
                    file=path,
                    utterance=cut.id,
                    remedy="cut the channel that is to be recognised",
                )
            if cut.id <= last:
                twice = "comes twice" if cut.id == last else f"comes after {last}"
                raise UserError(twice, file=path, utterance=cut.id, remedy=_REMEDY)
            last = cut.id
            yield cut
    except (EOFError, OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise UserError(
            f"is not a manifest of cuts ({error})", file=path, remedy=_REMEDY
        ) from error


def count_cuts(path: str | Path) -> int:
    """Count the lines of a manifest, for progress bars; 0 if it cannot be read."""
    try:
        with gzip.open(path, "rb") as stream:
            return sum(1 for _ in stream)
    except (OSError, EOFError, zlib.error):
        return 0


def speaker_of(cut: MonoCut) -> str:
    """Speaker of an utterance; its own id where none is known, as in Kaldi."""
    supervisions = cut.supervisions
    return (supervisions[0].speaker if supervisions else None) or cut.id


def text_of(cut: MonoCut) -> str:
    """Transcript of an utterance, empty where there is none."""
    supervisions = cut.supervisions
    return (supervisions[0].text if supervisions else None) or ""


class CutWriter:
    """Writes cuts as packed JSON lines."""

    def __init__(self, stream: TextIOWrapper) -> None:
        self._stream = stream

    def write(self, cut: MonoCut) -> None:
        """Append one cut."""
        self._stream.write(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n")


@contextmanager
def cut_writer(path: Path) -> Iterator[CutWriter]:
    """Open a manifest for writing."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
    ):
        yield CutWriter(text)


class FeatureStorage:
    """Lhotse's storage of feature matrices, written in one folder to lie in another.

    Args:
        kind: Lhotse's name of the storage.
        folder: where it is written now.
        target: where it will lie when it is read.
    """

    def __init__(self, kind: str, folder: Path, target: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        base = folder if kind == "numpy_files" else folder / "features"
        make_writer = cast("Callable[[str], Any]", get_writer(kind))
        self._writer = make_writer(str(base))
        self.kind = kind
        self._folder = folder
        self.path = str(target / Path(self._writer.storage_path).relative_to(folder))

    def write(self, utt_id: str, features: np.ndarray) -> str:
        """Store a matrix [T, D]; return the key under which Lhotse finds it.

        Raises:
            OSError: the disk is full (for HDF5: all but full).
        """
        if self.kind == "numpy_hdf5":
            free = shutil.disk_usage(self._folder).free
            if free < features.nbytes + HDF5_RESERVE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writer.write(quote(utt_id, safe="+=@,:"), features)

    def close(self) -> None:
        """Finish the files, and forget readers' handles on what they replace."""
        if self.kind != "numpy_files":
            self._writer.close()
        close_cached_file_handles()
