"""HDF5 files in RETURNN's layout, in and out.

`latflow.corpus.hdf5_files` has the layout, and reads it.

Training reads `FrameStore` and `LabelStore`, which several threads and processes can
map at once; so HDF5 is converted, once, and both functions stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np

from latflow.corpus.hdf5_files import HdfSequences, open_sequences, write_strings
from latflow.corpus.manifests import read_cuts, speaker_of, text_of
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.files import atomic_directory, atomic_output
from latflow.ledger import Ledger
from latflow.training.data_options import Hdf5Options
from latflow.training.labels import LabelStore, LabelWriter

log = logging.getLogger(__name__)


def export_hdf(
    frames_dir: str | Path, labels: Mapping[str, str | Path], out: str | Path
) -> int:
    """Write frames and labels as RETURNN reads them.

    Utterances that lack labels of any target are left out, and counted in a line of
    the log.

    Args:
        frames_dir: a `FrameStore`.
        labels: folders of label stores by the name that the target is to have; none for
            frames alone.
        out: the file, replaced as a whole.

    Returns:
        The number of utterances written.

    Raises:
        UserError: a store is missing, or no utterance has all labels.
    """
    store = FrameStore.load(frames_dir)
    stores = {name: LabelStore.load(labels[name]) for name in sorted(labels)}
    chosen, rows = _with_all_labels(store, stores)
    if not len(chosen):
        raise UserError("no utterance has all labels", file=frames_dir)
    if len(chosen) < len(store):
        missing = len(store) - len(chosen)
        log.warning("%d of %d utterances lack labels", missing, len(store))
    columns = [np.diff(store.begin)[chosen]]
    with atomic_output(out) as path, h5py.File(path, "w") as file:
        _write_inputs(file, store, chosen)
        for name, target in stores.items():
            _write_target(file, name, target, rows[name])
            columns.append(np.diff(target.begin)[rows[name]])
        if not stores:  # RETURNN expects a column of a target all the same
            columns *= 2
        file["seqLengths"] = np.stack(columns, axis=1).astype(np.int32)
        write_strings(file, "seqTags", [store.utt_ids[i] for i in chosen])
        classes = [target.num_classes for target in stores.values()]
        file.attrs["numLabels"] = classes[0] if classes else store.dim
        file.attrs["numSeqs"] = len(chosen)
        file.attrs["numTimesteps"] = int(columns[0].sum())
        file.attrs["inputPattSize"] = store.dim
    return len(chosen)


def _with_all_labels(
    store: FrameStore, stores: Mapping[str, LabelStore]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the utterances with all labels, by number here and in each store."""
    is_chosen = np.ones(len(store), np.bool_)
    rows = {}
    for name, labels in stores.items():
        numbers = {utt_id: i for i, utt_id in enumerate(labels.utt_ids)}
        rows[name] = np.array([numbers.get(u, -1) for u in store.utt_ids], np.int64)
        is_chosen &= rows[name] >= 0
    chosen = np.flatnonzero(is_chosen)
    return chosen, {name: numbers[chosen] for name, numbers in rows.items()}


def _write_inputs(file: h5py.File, store: FrameStore, chosen: np.ndarray) -> None:
    """Write the frames of the chosen utterances below each other."""
    total = int(np.diff(store.begin)[chosen].sum())
    inputs = file.create_dataset("inputs", (total, store.dim), np.float32)
    row = 0
    for i in chosen:
        frames = store.frames(i)
        inputs[row : row + len(frames)] = frames
        row += len(frames)


def _write_target(
    file: h5py.File, name: str, store: LabelStore, rows: np.ndarray
) -> None:
    """Write the labels of utterances (by their numbers in the store)."""
    total = int(np.diff(store.begin)[rows].sum())
    data = file.create_dataset(f"targets/data/{name}", (total,), np.int32)
    at = 0
    for i in rows:
        labels = store.labels(i)
        data[at : at + len(labels)] = labels
        at += len(labels)
    size = file.require_group("targets/size")
    size.attrs[name] = np.array([store.num_classes, 1], np.int32)
    names = [str(k) for k in range(store.num_classes)]
    write_strings(file, f"targets/labels/{name}", names)


def import_hdf(
    files: Sequence[str | Path],
    frames_dir: str | Path,
    labels_dir: str | Path,
    *,
    targets: Sequence[str] | None = None,
    sparse: str | None = None,
    frame_shift: float = 0.01,
) -> None:
    """Read RETURNN's HDF5 files into a `FrameStore` and label stores.

    The file knows no speakers: each utterance is its own, and transcripts are empty.

    Args:
        files: of one data set, in any order.
        frames_dir: becomes the frame store.
        labels_dir: `<labels_dir>/<target>` become the label stores.
        targets: names of the targets to read; None for all of the first file.
        sparse: the target whose labels are the frames; None for `inputs`.
        frame_shift: time from one frame to the next, seconds.

    Raises:
        UserError: a file is not readable or not of this layout, lacks a target, or an
            utterance comes twice.
    """
    with ExitStack() as stack:
        data = open_sequences(stack, files, targets, sparse=sparse)
        folder = stack.enter_context(atomic_directory(frames_dir))
        write = _writer(stack, data, folder, Path(labels_dir), frame_shift)
        for tag in sorted(data.frames):
            write(tag, tag, "")


def import_split(
    cuts: str | Path,
    files: Sequence[Path],
    out_dir: str | Path,
    labels: str | Path,
    *,
    options: Hdf5Options,
    max_skipped_fraction: float,
) -> None:
    """Read the frames and labels of a split of a corpus from RETURNN's HDF5 files.

    Sequences that are not of the split are left alone. One is read at a time.

    Args:
        cuts: the split's `cuts.jsonl.gz`: its utterances, speakers and transcripts.
        files: that hold the utterances, in any order.
        out_dir: becomes the frame store, with `ledger.jsonl`.
        labels: `<labels>/<target>` become the label stores of the targets.
        options: `targets`, `sparse`, `image_height` and `frame_shift_ms`.
        max_skipped_fraction: share of the utterances that the files may lack.

    Raises:
        UserError: a file is not readable or not of this layout, lacks a target, or an
            utterance comes twice; or too many are in none of the files.
    """
    ledger = Ledger("import_hdf5")
    with ExitStack() as stack:
        data = open_sequences(
            stack,
            files,
            options.targets,
            image_height=options.image_height,
            sparse=options.sparse,
        )
        unused = set(data.frames)
        frames = stack.enter_context(atomic_directory(out_dir))
        folder = stack.enter_context(atomic_directory(labels))
        write = _writer(stack, data, frames, folder, options.frame_shift_ms / 1000)
        num_cuts = 0
        for num_cuts, cut in enumerate(read_cuts(cuts), start=1):  # noqa: B007
            if cut.id in unused:
                unused.remove(cut.id)
                write(cut.id, speaker_of(cut), text_of(cut))
            else:
                ledger.record(cut.id, "is in none of the HDF5 files")
        if ledger.num_skipped() == num_cuts:
            raise UserError(
                f"has none of the {num_cuts} utterances; it has "
                f"{next(iter(data.frames), 'nothing')}",
                file=files[0],
                remedy="seqTags must be ids of the corpus' utterances",
            )
        if unused:
            what = "%d sequences are of no utterance: %s"
            log.info(what, len(unused), min(unused))
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(frames / "ledger.jsonl")


def _writer(
    stack: ExitStack,
    data: HdfSequences,
    frames_dir: Path,
    labels_dir: Path,
    frame_shift: float,
) -> Callable[[str, str, str], None]:
    """Return a function that writes a sequence, by its id, with speaker and text."""
    frames = stack.enter_context(
        FrameWriter(frames_dir, dim=data.dim, frame_shift=frame_shift)
    )
    writers = []
    for labels in data.labels:
        folder = stack.enter_context(atomic_directory(labels_dir / labels.name))
        writers.append(stack.enter_context(LabelWriter(folder, labels.num_classes)))

    def write(utt_id: str, speaker: str, text: str) -> None:
        frames.append(utt_id, speaker, text, data.frames_of(utt_id))
        for labels, writer in zip(data.labels, writers, strict=True):
            if (numbers := labels.of(utt_id)) is not None:
                writer.append(utt_id, numbers)

    return write
