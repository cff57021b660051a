"""Labels of the frames of a corpus, flat and memory-mapped: what networks learn.

A `LabelStore` is a `latflow.ragged` store with the column `labels` (int32). Labels are
pdf-ids (of an alignment) or whatever classes another output has; -1 marks a frame
without a label, which is never counted.

Alignments give labels for two targets of a network's outputs:

    pdf     the pdf of the alignment (what decoding needs, of the first output)
    phone   its phone, by the id in phones.txt; class 0 never occurs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.hmm.alignment import check_ids, pdfs_of, phones_of
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import read_int_vectors
from latflow.ragged import RaggedStore, RaggedWriter

UNLABELLED = -1
TARGETS = ("pdf", "phone")
_MOST_CLASSES = 1 << 24
_BLOCK = 1 << 22  # labels that are counted at a time


def _number_of_classes(value: Any) -> int:
    """Return a number of classes of a store.

    Raises:
        ValueError: it cannot be one.
    """
    if not 0 <= int(value) <= _MOST_CLASSES:
        raise ValueError(f"num_classes is {value}")
    return int(value)


class LabelStore(RaggedStore):
    """Labels by utterance, read only; open one with `LabelStore.load`."""

    FORMAT = "latflow-labels-1"
    KIND = "label store"
    REMEDY = "make the labels again"
    COLUMNS: ClassVar = {"labels": ("<i4", 1)}
    FACTS: ClassVar = {"num_classes": _number_of_classes}

    @property
    def num_classes(self) -> int:
        """K; labels are 0..K-1, or -1."""
        return int(self.meta["num_classes"])

    @property
    def flat(self) -> np.ndarray:
        """int32[sum T], all labels, read only."""
        return self["labels"].flat

    def labels(self, i: int) -> np.ndarray:
        """Return the labels of utterance i, int32 [T_i], a read-only view."""
        return self["labels"][i]

    def counts(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the frames of each class; their shares are the priors.

        Args:
            weights: float64 [n], how often each utterance counts; None for once.

        Returns:
            int64 [K], float64 [K] with weights.

        Raises:
            UserError: a label is not a class.
        """
        total = np.zeros(self.num_classes, np.int64 if weights is None else np.float64)
        for first in range(0, len(self.flat), _BLOCK):
            block = self.flat[first : first + _BLOCK]
            highest = int(block.max(initial=UNLABELLED))
            if highest >= self.num_classes:
                raise UserError(
                    f"has a label {highest}, with {self.num_classes} classes",
                    file=self.folder,
                    remedy=self.REMEDY,
                )
            is_label, of_frame = block >= 0, None
            if weights is not None:
                frames = np.arange(first, first + len(block))
                of = np.searchsorted(self.begin, frames, side="right") - 1
                of_frame = weights[of][is_label]
            total += np.bincount(block[is_label], of_frame, self.num_classes)
        return total


class LabelWriter(RaggedWriter):
    """Write a `LabelStore`, an utterance at a time; see `RaggedWriter`.

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
        self._num_classes = num_classes
        meta = {**(meta or {}), "num_classes": num_classes}
        super().__init__(folder, LabelStore, meta=meta)

    def append(self, utt_id: str, labels: np.ndarray) -> None:
        """Add one utterance; ids may come in any order, each once.

        Args:
            utt_id: its id.
            labels: [T], integers in -1..K-1.

        Raises:
            UserError: a label outside of that range.
            ValueError: a line break in the id, or an array that is not flat.
        """
        lowest, highest = labels.min(initial=0), labels.max(initial=0)
        if lowest < UNLABELLED or highest >= self._num_classes:
            worst = lowest if lowest < UNLABELLED else highest
            raise UserError(
                f"label {worst}, but there are {self._num_classes} classes",
                utterance=utt_id,
                remedy="labels and model must be of the same training",
            )
        self.write(utt_id, labels)


def write_labels(
    alignments: str | Path,
    model: TransitionModel,
    out_dir: str | Path,
    target: str = "pdf",
) -> LabelStore:
    """Write the labels of alignments, one a frame, and return their store.

    Args:
        alignments: `ali.ark`, transition-ids by utterance; or the folder of a label
            store (as `import_hdf` writes it), whose labels are taken as pdf-ids.
        model: that the transition-ids are of.
        out_dir: a folder, replaced as a whole.
        target: one of `TARGETS`.

    Raises:
        UserError: a transition-id that the model does not have, or labels of another
            number of pdfs.
    """
    is_pdf = target == "pdf"
    num_classes = model.num_pdfs if is_pdf else int(np.max(model.phone)) + 1
    with (
        atomic_directory(out_dir) as folder,
        LabelWriter(folder, num_classes, meta={"kind": target}) as writer,
    ):
        if is_pdf and Path(alignments).is_dir():
            store = LabelStore.load(alignments)
            if len(store) and store.num_classes != num_classes:
                raise UserError(
                    f"has labels of {store.num_classes} pdfs, and the tree has "
                    f"{num_classes}",
                    file=alignments,
                    remedy="give pdf-ids of the tree of `alignments`, or name that of "
                    "the labels",
                )
            for i, utt_id in enumerate(store.utt_ids):
                writer.append(utt_id, store.labels(i))
        else:
            for utt_id, alignment in read_int_vectors(alignments):
                try:
                    check_ids(alignment, model)
                except UserError as error:
                    raise error.at(file=alignments, utterance=utt_id) from None
                labels = (pdfs_of if is_pdf else phones_of)(alignment, model)
                writer.append(utt_id, labels)
    return LabelStore.load(out_dir)


def write_targets(
    alignments: str | Path,
    model: TransitionModel,
    out_dir: str | Path,
    names: Iterable[str],
    given: Path | None = None,
) -> dict[str, LabelStore]:
    """Write the labels of some targets, and return their stores by name.

    Args:
        alignments: `ali.ark`, transition-ids by utterance.
        model: that the transition-ids are of.
        out_dir: gets a label store for each target, by its name.
        names: of the targets.
        given: folder of label stores by the names of their targets, which are taken in
            the place of alignments; None for none.

    Raises:
        UserError: a target that alignments do not have, or alignments of another model.
    """
    found = {}
    for name in dict.fromkeys(names):
        if given is not None and (given / name).is_dir():
            if name == "pdf":  # of this model: none may be higher than it has
                found[name] = write_labels(given / name, model, Path(out_dir) / name)
            else:
                Path(out_dir, name).symlink_to((given / name).resolve())
                found[name] = LabelStore.load(given / name)
            continue
        if name not in TARGETS:
            raise UserError(
                f"no labels for the target {name}",
                remedy=f"alignments give: {', '.join(TARGETS)}",
            )
        found[name] = write_labels(alignments, model, Path(out_dir) / name, name)
    return found


def load_targets(folder: str | Path) -> dict[str, LabelStore]:
    """Return the label stores that `write_targets` wrote."""
    return {path.name: LabelStore.load(path) for path in sorted(Path(folder).iterdir())}
