"""Export of features to Lhotse's storages, with the manifest that names them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

import numpy as np
from lhotse import Features, MonoCut
from lhotse.features.io import close_cached_file_handles, get_writer
from lhotse.utils import compute_num_frames, fastcopy

from latflow.corpus.ids import file_name
from latflow.corpus.json_lines import ManifestWriter, count_cuts
from latflow.corpus.manifests import at_rate, read_cuts
from latflow.errors import UserError
from latflow.features.extractor_file import EXTRACTOR_FILE, write_extractor
from latflow.features.frames import FrameStore
from latflow.files import atomic_directory
from latflow.logs import progress
from latflow.options import check_choice

log = logging.getLogger(__name__)
# Lhotse has others, and reads them with programs that run commands (`kaldiio`).
STORAGES = (
    *("numpy_hdf5", "numpy_files", "lilcom_chunky", "lilcom_files", "lilcom_hdf5"),
    "chunked_lilcom_hdf5",
)
# HDF5 ends the process when a write fails: it must never come to that. This much covers
# what it holds back in its caches.
HDF5_RESERVE_BYTES = 64 * 2**20


def export_features(
    features_dir: str | Path,
    cuts: str | Path,
    out_dir: str | Path,
    *,
    storage: str = "numpy_hdf5",
    url: str | None = None,
) -> None:
    """Write features in one of Lhotse's storages, and the cuts that have them.

    Writes `cuts.jsonl.gz`, without the cuts that have no features (the ledger of
    `extract_features` says why), `storage/` and `feature_extractor.yaml`, Lhotse's form
    of the extractor's settings. Lhotse counts a frame for each frame shift: a cut that
    has fewer (as with `snip_edges`) is shortened to the time of its frames, and frames
    behind its end are left out; both are counted in a log line.

    Args:
        features_dir: a `FrameStore` of features of audio; normalized where it is one
            that normalizes.
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        storage: name of the storage (`STORAGES`).
        url: place to write to instead, such as s3://bucket/folder, which the package
            smart_open writes to; for the storages of files.

    Raises:
        UserError: no such storage, or it cannot hold these features; the folder is not
            of features of audio, or of other cuts; or the disk is full.
    """
    store, target = FrameStore.load(features_dir), Path(out_dir)
    _check_storage(storage, url, store)
    num_written, num_shortened, num_cut = 0, 0, 0
    with atomic_directory(target) as folder:
        made, lies_at = folder / "storage", target / "storage"
        writer = FeatureStorage(storage, made, lies_at, url=url)
        rate, total = store.meta["sample_rate"], count_cuts(cuts)
        all_cuts = at_rate(read_cuts(cuts), rate, may_resample=True)
        with closing(writer), ManifestWriter(folder / "cuts.jsonl.gz") as manifest:
            for cut in progress(all_cuts, "export features", total=total):
                if cut.id not in store:
                    continue
                features = np.array(store.frames(store.position(cut.id)))
                described = _manifest(cut, features, store.meta, writer)
                duration = described.duration
                manifest.write(fastcopy(cut, features=described, duration=duration))
                num_written += 1
                num_shortened += duration < cut.duration
                num_cut += described.num_frames < len(features)
        write_extractor(folder / EXTRACTOR_FILE, store.meta["extraction"], rate)
        if num_written < len(store):
            raise UserError(
                f"{num_written} of {len(store)} utterances are among the cuts",
                file=store.folder,
                remedy="name the cuts.jsonl.gz of the same set",
            )
    if lacking := total - num_written:
        log.warning("%d of %d cuts have no features, and are left out", lacking, total)
    if num_shortened:
        log.info("%d cuts are shortened to the time of their frames", num_shortened)
    if num_cut:
        log.warning("frames behind the end of %d cuts are left out", num_cut)


def _check_storage(storage: str, url: str | None, store: FrameStore) -> None:
    """Refuse storages that cannot hold the features, or lie at no URL."""
    check_choice("storage", storage, STORAGES)
    if url is not None and not storage.endswith("_files"):
        raise UserError(
            f"--url: {storage} cannot lie there",
            remedy="take the storage numpy_files or lilcom_files",
        )
    if "extraction" not in store.meta:
        raise UserError(
            "does not name the extractor of its features",
            file=store.folder,
            remedy="name a folder of features of audio",
        )
    if store.meta["type"] == "latflow-waveform" and "lilcom" in storage:
        raise UserError(
            f"{storage} would round samples to 1/32",
            file=store.folder,
            remedy="take a storage of numpy",
        )


def _manifest(
    cut: MonoCut,
    features: np.ndarray,
    facts: Mapping[str, Any],
    storage: FeatureStorage,
) -> Features:
    """Store one utterance's features, and return what Lhotse reads them by."""
    shift, rate = facts["frame_shift"], facts["sample_rate"]
    duration = cut.duration
    fitting = compute_num_frames(duration, shift, rate)
    if len(features) < fitting:
        duration = round(len(features) * shift, 8)
    features = features[:fitting]
    return Features(
        type=facts["type"],
        num_frames=len(features),
        num_features=features.shape[1],
        frame_shift=shift,
        sampling_rate=rate,
        start=cut.start,
        duration=duration,
        storage_type=storage.kind,
        storage_path=storage.path,
        storage_key=storage.write(cut.id, features),
        recording_id=cut.recording_id,
        channels=cut.channel,
    )


class FeatureStorage:
    """Lhotse's storage of feature matrices, written in one folder to lie in another.

    Args:
        kind: Lhotse's name of the storage.
        target: where it will lie when it is read.
        url: place to write to instead, below the path of `target`; None for none. Of
            `file:///` it is the folder itself.
    """

    def __init__(
        self, kind: str, folder: Path, target: Path, *, url: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if url is not None and url.startswith("file:///"):
            folder = target = Path(unquote(urlsplit(url).path)) / target.name
            folder.mkdir(parents=True, exist_ok=True)
            url = None
        base: str | Path = folder if kind.endswith("_files") else folder / "features"
        self._url = None
        if url is not None:
            base = self._url = f"{url.rstrip('/')}/{quote(str(target).lstrip('/'))}"
        make_writer = cast("Callable[[str], Any]", get_writer(kind))
        self._writer = make_writer(str(base))
        self.kind = kind
        self._folder = folder
        made = self._writer.storage_path
        self.path = self._url or str(target / Path(made).relative_to(folder))

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
                    remedy="fix the URL, or install what smart_open asks for",
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
