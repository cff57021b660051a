"""Stored features of cuts, read without Lhotse where its storage is a plain one.

Lhotse imports torch, which takes longer than a short job. Matrices of `numpy_hdf5`,
`numpy_files` and `manifest_numpy` are read here; of other storages, and of those at a
URL, by Lhotse.
"""

from __future__ import annotations

import base64
import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from latflow.features.storage_names import NUMPY, STORAGES


class StoredFeatures:
    """Reads matrices of features; keeps files open, so use it as a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._hdf5: dict[str, Any] = {}

    def load(self, manifest: dict[str, Any]) -> np.ndarray:
        """Return the features [T, D] that a manifest of Lhotse's describes.

        Args:
            manifest: the field `features` of a cut, as JSON has it.

        Raises:
            OSError: the file is missing or damaged.
            KeyError: the storage has no such matrix, or the manifest no such field.
            ValueError: the matrix is damaged, or its place is a command or of a storage
                that is not read.
        """
        kind, key = manifest["storage_type"], manifest["storage_key"]
        path = manifest["storage_path"]
        if kind not in STORAGES:
            raise ValueError(f"storage_type {kind!r} is none of {', '.join(STORAGES)}")
        if path.startswith("pipe:"):  # which Lhotse runs
            raise ValueError(f"storage_path {path!r} is a command")
        if kind == NUMPY:
            packed = base64.b64decode(key, validate=True)
            return np.load(io.BytesIO(packed), allow_pickle=False)
        if kind == "numpy_hdf5" and "://" not in path:
            return self._file(path)[key][:]
        if kind == "numpy_files" and "://" not in path:
            return np.load(Path(path) / key, allow_pickle=False)
        return self._load_by_lhotse(manifest)

    def _file(self, path: str) -> Any:
        """Return an HDF5 file, open."""
        if path not in self._hdf5:
            import h5py  # not every storage is of it

            self._hdf5[path] = self._stack.enter_context(h5py.File(path, "r"))
        return self._hdf5[path]

    def _load_by_lhotse(self, manifest: dict[str, Any]) -> np.ndarray:
        """Return the features as `load`."""
        from lhotse import Features
        from lhotse.features.io import close_cached_file_handles

        import latflow.features.manifest_storage  # noqa: F401 - registers storages

        self._stack.callback(close_cached_file_handles)
        return Features.from_dict(manifest).load()

    def __enter__(self) -> StoredFeatures:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
