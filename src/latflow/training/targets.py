"""Labels of the frames for each target that a network's outputs may have.

pdf     the pdf of the alignment (what decoding needs, of the first output)
phone   the phone of the alignment, by its id in phones.txt; class 0 never occurs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.hmm.alignment import phones_of
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import read_int_vectors
from latflow.training.labels import LabelStore, LabelWriter, write_pdf_labels

Targets = dict[str, LabelStore]


def write_targets(
    alignments: str | Path,
    model: TransitionModel,
    out_dir: str | Path,
    names: Iterable[str],
) -> Targets:
    """Make the labels of some targets from alignments.

    Args:
        alignments: `ali.ark`, transition-ids by utterance.
        model: that the transition-ids are of.
        out_dir: gets a label store for each target, by its name.
        names: of the targets.

    Returns:
        The label stores by name.

    Raises:
        UserError: a target that alignments do not tell, or alignments of another model.
    """
    found = {}
    for name in dict.fromkeys(names):
        if name not in _WRITERS:
            raise UserError(
                f"no labels for the target {name}",
                remedy=f"alignments give: {', '.join(_WRITERS)}",
            )
        found[name] = _WRITERS[name](alignments, model, Path(out_dir) / name)
    return found


def load_targets(folder: str | Path) -> Targets:
    """Open what `write_targets` wrote."""
    return {path.name: LabelStore.load(path) for path in sorted(Path(folder).iterdir())}


def _write_phones(
    alignments: str | Path, model: TransitionModel, out_dir: Path
) -> LabelStore:
    """Write the phone of each frame."""
    num_classes = int(np.max(model.phone)) + 1
    with (
        atomic_directory(out_dir) as folder,
        LabelWriter(folder, num_classes, meta={"kind": "phone"}) as writer,
    ):
        for utterance, alignment in read_int_vectors(alignments):
            highest = alignment.max(initial=1)
            if alignment.min(initial=1) < 1 or highest > model.num_transition_ids:
                raise UserError(
                    f"holds transition-ids outside 1..{model.num_transition_ids}",
                    file=alignments,
                    utterance=utterance,
                    remedy="take the alignments of the model's own system",
                )
            writer.append(utterance, phones_of(alignment, model))
    return LabelStore.load(out_dir)


_WRITERS: dict[str, Callable[[str | Path, TransitionModel, Path], LabelStore]] = {
    "pdf": write_pdf_labels,
    "phone": _write_phones,
}
