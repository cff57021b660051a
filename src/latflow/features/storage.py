"""Features of utterances to Lhotse's storages, and the manifest that says where."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

import numpy as np
from lhotse import Features, MonoCut
from lhotse.features.io import close_cached_file_handles, get_writer
from lhotse.utils import fastcopy

import latflow.features.manifest_storage  # noqa: F401 - registers storages
from latflow.corpus.ids import file_name
from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.options import Extraction, FrameGeometry
from latflow.features.storage_names import IN_MANIFEST
from latflow.ledger import Ledger

# HDF5 ends the process when a write fails: it must never come to that. This much covers
# what it holds back in its caches.
HDF5_RESERVE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Outcome:
    """One utterance: its features [T, D], or why there are none."""

    cut: MonoCut
    features: np.ndarray | None
    reason: str = ""


class Described(Protocol):
    """Facts of an extractor that a features manifest holds."""

    name: str

    @property
    def sample_rate(self) -> int:
        """Sample rate, Hz."""
        ...

    @property
    def geometry(self) -> FrameGeometry:
        """Position of frames in the samples."""
        ...

    @property
    def frame_shift(self) -> float:
        """Time from one frame to the next, seconds."""
        ...


def store_features(
    outcomes: Iterable[Outcome],
    extractor: Described,
    options: Extraction,
    folder: Path,
    target: Path,
    ledger: Ledger,
) -> None:
    """Store features, and write the manifest of the cuts that have some.

    Args:
        outcomes: of the cuts, sorted by id.
        extractor: that computed the features.
        options: of the storage.
        folder: for `storage/` and `cuts.jsonl.gz`.
        target: where the folder will lie when they are read.
        ledger: gets the cuts that have none.
    """
    storage = FeatureStorage(
        options.storage,
        folder / "storage",
        target / "storage",
        url=options.storage_url,
    )
    with closing(storage), ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for outcome in outcomes:
            _keep(outcome, extractor, storage, writer, ledger)


def _keep(
    outcome: Outcome,
    extractor: Described,
    storage: FeatureStorage,
    writer: ManifestWriter,
    ledger: Ledger,
) -> None:
    """Store one utterance's features and write its cut, or put it in the ledger."""
    cut, features = outcome.cut, outcome.features
    if features is None:
        ledger.record(cut.id, outcome.reason)
        return
    covered = round(len(features) * extractor.frame_shift, 8)
    manifest = Features(
        type=extractor.name,
        num_frames=len(features),
        num_features=features.shape[1],
        frame_shift=extractor.frame_shift,
        sampling_rate=extractor.sample_rate,
        start=cut.start,
        duration=covered if extractor.geometry.snip_edges else cut.duration,
        storage_type=storage.kind,
        storage_path=storage.path,
        storage_key=storage.write(cut.id, features),
        recording_id=cut.recording_id,
        channels=cut.channel,
    )
    writer.write(fastcopy(cut, features=manifest))


class FeatureStorage:
    """Lhotse's storage of feature matrices, written in one folder to lie in another.

    Args:
        kind: Lhotse's name of the storage.
        target: where it will lie when it is read.
        url: place to write to instead, below the path of `target`; None for none.
    """

    def __init__(
        self, kind: str, folder: Path, target: Path, *, url: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        base: str | Path = folder if kind.endswith("_files") else folder / "features"
        self._url = None
        if url is not None:
            base = self._url = f"{url.rstrip('/')}/{quote(str(target).lstrip('/'))}"
        make_writer = cast("Callable[[str], Any]", get_writer(kind))
        self._writer = make_writer(str(base))
        self.kind = kind
        self._folder = folder
        self.path = self._url or ""
        if url is None and kind not in IN_MANIFEST:
            lies_at = Path(self._writer.storage_path).relative_to(folder)
            self.path = str(target / lies_at)

    def write(self, utt_id: str, features: np.ndarray) -> str:
        """Store a matrix [T, D]; return the key under which Lhotse finds it.

        Raises:
            OSError: the disk is full (for HDF5: all but full).
            UserError: the URL cannot be written to, or the id is too long for a file.
        """
        name = file_name(utt_id)
        if self._url is not None:
            try:
                return self._writer.write(quote(name, safe="+=@,:%"), features)
            except (ImportError, NotImplementedError, OSError, ValueError) as error:
                raise UserError(
                    f"features cannot be stored there ({error})",
                    file=self._url,
                    remedy="mend storage_url, or install what smart_open asks for",
                ) from error
        if self.kind.endswith("_hdf5"):
            free = shutil.disk_usage(self._folder).free
            if free < features.nbytes + HDF5_RESERVE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writer.write(name, features)

    def close(self) -> None:
        """Finish the files, and forget readers' handles on what they replace."""
        if not self.kind.endswith("_files"):
            self._writer.close()
        close_cached_file_handles()
