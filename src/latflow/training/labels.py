"""Labels of the frames of a corpus, flat and memory-mapped: what networks are taught.

A `LabelStore` is a folder of three files, as a `FrameStore` is: `labels.npy` holds the
labels of all utterances one after another (int32 [sum T]), `index.npz` says where each
utterance begins and holds the ids as packed UTF-8, `meta.json` the number of classes.

Labels are pdf-ids (from an alignment) or whatever classes another output has; -1 marks
a frame without a label, which is never counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.hmm.alignment import pdfs_of
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import read_int_vectors

FORMAT = "latflow-labels-1"
LABELS, INDEX, META = "labels.npy", "index.npz", "meta.json"
UNLABELLED = -1
_BLOCK = 1 << 22  # labels that are counted at a time


class LabelStore:
    """Labels by utterance, read only; make one with `LabelStore.load`.

    Attributes:
        folder: where it lies.
        begin: int64[N + 1], first label of each utterance; the last entry is sum T.
        num_classes: K; labels are 0..K-1, or -1.
        meta: the whole of `meta.json`.
        flat: int32[sum T], all labels, read only.
    """

    def __init__(
        self,
        folder: Path,
        flat: np.ndarray,
        index: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.begin = index["begin"]
        self.num_classes = int(meta["num_classes"])
        self.meta = meta
        self.flat = flat
        self._packed_ids = index["utt_ids"]

    @classmethod
    def load(cls, folder: str | Path) -> LabelStore:
        """Open a folder that `LabelWriter` wrote.

        Raises:
            UserError: there is no such store, or its files do not fit each other.
        """
        folder = Path(folder)
        remedy = "make the labels again"
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            with np.load(folder / INDEX) as arrays:
                index = {name: arrays[name] for name in arrays.files}
            flat = _map(folder / LABELS)
        except (OSError, ValueError) as error:
            raise UserError(
                f"not a readable label store ({error})", file=folder, remedy=remedy
            ) from error
        fits = meta.get("format") == FORMAT and {"begin", "utt_ids"} <= index.keys()
        if not fits or index["begin"][-1] != len(flat):
            raise UserError("labels and index differ", file=folder, remedy=remedy)
        return cls(folder, flat, index, meta)

    def __len__(self) -> int:
        return len(self.begin) - 1

    @cached_property
    def utt_ids(self) -> list[str]:
        """Utterance ids, in the order in which they were written."""
        if not len(self):
            return []
        return self._packed_ids.tobytes().decode("utf-8").split("\n")

    def labels(self, i: int) -> np.ndarray:
        """Return the labels of utterance i, int32 [T_i], a read-only view."""
        return self.flat[self.begin[i] : self.begin[i + 1]]

    def counts(self) -> np.ndarray:
        """Frames of each class, int64[K]; their shares are the classes' priors."""
        total = np.zeros(self.num_classes, np.int64)
        for first in range(0, len(self.flat), _BLOCK):
            block = self.flat[first : first + _BLOCK]
            total += np.bincount(block[block >= 0], minlength=self.num_classes)
        return total

    def __reduce__(self) -> tuple[Any, ...]:
        return (LabelStore.load, (self.folder,))


class LabelWriter:
    """Write a `LabelStore`, an utterance at a time; memory holds the index alone.

    Use it as a context manager, inside `latflow.files.atomic_directory`.

    Args:
        folder: made if absent.
        num_classes: K.
        meta: further JSON values to keep.
    """

    def __init__(
        self,
        folder: str | Path,
        num_classes: int,
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._num_classes = num_classes
        self._meta = {**(meta or {}), "format": FORMAT, "num_classes": num_classes}
        self._utt_ids: list[str] = []
        self._begin = [0]
        self._stream = (self._folder / LABELS).open("wb")
        self._write_header()

    def append(self, utt_id: str, labels: np.ndarray) -> None:
        """Add one utterance; ids may come in any order, each once.

        Args:
            utt_id: its id.
            labels: [T], integers in -1..K-1.

        Raises:
            UserError: a label outside of that range.
            ValueError: a line break in the id, or an array that is not flat.
        """
        if "\n" in utt_id or labels.ndim != 1:
            raise ValueError(f"{utt_id!r}: line break in the id, or {labels.shape}")
        lowest, highest = labels.min(initial=0), labels.max(initial=0)
        if lowest < UNLABELLED or highest >= self._num_classes:
            worst = lowest if lowest < UNLABELLED else highest
            raise UserError(
                f"label {worst}, but there are {self._num_classes} classes",
                utterance=utt_id,
                remedy="labels and model must be of the same training",
            )
        self._stream.write(np.ascontiguousarray(labels, "<i4").data)
        self._utt_ids.append(utt_id)
        self._begin.append(self._begin[-1] + len(labels))

    def close(self) -> None:
        """Write the final header, the index and `meta.json`.

        Raises:
            UserError: an utterance came twice.
        """
        self._stream.seek(0)
        self._write_header()
        self._stream.close()
        if len(set(self._utt_ids)) < len(self._utt_ids):
            twice = next(a for a, b in pairwise(sorted(self._utt_ids)) if a == b)
            raise UserError("has labels twice", utterance=twice)
        packed = np.frombuffer("\n".join(self._utt_ids).encode("utf-8"), np.uint8)
        begin = np.array(self._begin, np.int64)
        np.savez(self._folder / INDEX, begin=begin, utt_ids=packed)
        meta = {**self._meta, "num_utterances": len(self._utt_ids)}
        text = json.dumps(meta, indent=1, sort_keys=True)
        (self._folder / META).write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> LabelWriter:
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
        """Write numpy's header for the labels so far (padded, rewritten in place)."""
        header = {"descr": "<i4", "fortran_order": False, "shape": (self._begin[-1],)}
        npy.write_array_header_1_0(self._stream, header)


def write_pdf_labels(
    alignments: str | Path, model: TransitionModel, out_dir: str | Path
) -> LabelStore:
    """Make labels of alignments: the pdf-id of each frame.

    Args:
        alignments: `ali.ark`, transition-ids by utterance; or the folder of a label
            store (as `import_hdf` writes it), whose labels are taken as pdf-ids.
        model: that the transition-ids are of.
        out_dir: a folder, replaced as a whole.

    Raises:
        UserError: a transition-id or pdf-id that the model does not have.
    """
    with (
        atomic_directory(out_dir) as folder,
        LabelWriter(folder, model.num_pdfs, meta={"kind": "pdf"}) as writer,
    ):
        is_store = Path(alignments).is_dir()
        items = _stored(alignments) if is_store else _pdf_ids(alignments, model)
        for utt_id, labels in items:
            writer.append(utt_id, labels)
    return LabelStore.load(out_dir)


def _stored(folder: str | Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the utterances of a label store."""
    store = LabelStore.load(folder)
    for i, utt_id in enumerate(store.utt_ids):
        yield utt_id, store.labels(i)


def _pdf_ids(
    path: str | Path, model: TransitionModel
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the pdf-ids of alignments."""
    for utt_id, alignment in read_int_vectors(path):
        highest = alignment.max(initial=1)
        if alignment.min(initial=1) < 1 or highest > model.num_transition_ids:
            raise UserError(
                f"holds transition-ids outside 1..{model.num_transition_ids}",
                file=path,
                utterance=utt_id,
                remedy="take the alignments of the model's own system",
            )
        yield utt_id, pdfs_of(alignment, model)


def _map(path: Path) -> np.ndarray:
    """Memory-map a vector, read only (an empty file cannot be mapped)."""
    flat = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else None
    plain = np.load(path) if flat is None else np.asarray(flat)
    if plain.ndim != 1 or plain.dtype != np.int32:
        raise ValueError(f"{path.name} is not an int32 vector")
    return plain
