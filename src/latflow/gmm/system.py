"""A trained GMM system as it lies in its folder, `gmm/<system>/`.

The names of files are Kaldi's, so that its users find their way:

* `final.mdl`, `tree`: model and decision tree;
* `transform.json`: the features of the model, made of the stored frames;
* `final.mat`: the matrix of that transform, where it has one (LDA and MLLT);
* `final.alimdl`: of a speaker-adapted system, the model for unadapted features.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output
from latflow.gmm.model import AcousticModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi_io import KaldiReader, KaldiWriter

TRANSFORM = "transform.json"
MATRIX = "final.mat"
ALIGNMENT_MODEL = "final.alimdl"


@dataclass(frozen=True, eq=False)
class GmmSystem:
    """Everything that decoding and aligning with a system need.

    Attributes:
        tree: the decision tree.
        model: for features after `transform` and, in an adapted system, after the
            transform of the speaker.
        transform: from stored frames to features.
        alignment_model: for features after `transform` alone; `model` itself in a
            system that is not adapted.
    """

    tree: ContextDependency
    model: AcousticModel
    transform: FeatureTransform
    alignment_model: AcousticModel

    @property
    def is_speaker_adapted(self) -> bool:
        """Whether the model was trained on features adapted to each speaker."""
        return self.alignment_model is not self.model

    @classmethod
    def load(cls, folder: str | Path) -> GmmSystem:
        """Read a system's folder.

        Raises:
            UserError: a file is missing or garbled, or tree and models do not fit.
        """
        folder = Path(folder)
        model = AcousticModel.load(folder / "final.mdl")
        tree = ContextDependency.load(folder / "tree")
        path = folder / ALIGNMENT_MODEL
        alignment_model = AcousticModel.load(path) if path.exists() else model
        for part in (tree.num_pdfs, alignment_model.gmms.num_pdfs):
            if part != model.gmms.num_pdfs:
                raise UserError(
                    f"{model.gmms.num_pdfs} pdfs in final.mdl, but {tree.num_pdfs} in "
                    f"tree, {alignment_model.gmms.num_pdfs} in the alignment model",
                    file=folder,
                    remedy="take all files of a folder from one training",
                )
        return cls(tree, model, load_transform(folder), alignment_model)


def load_transform(folder: str | Path) -> FeatureTransform:
    """Read the feature transform of a system.

    Raises:
        UserError: `transform.json` or the matrix is missing or garbled.
    """
    path = Path(folder) / TRANSFORM
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        for part in _linear_parts(config):
            with KaldiReader.open(path.parent / part["matrix"]) as reader:
                part["matrix"] = reader.float_matrix()
        return FeatureTransform.from_config(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no readable feature transform: {error}",
            file=path,
            remedy="train the system again, or import it with latflow import-kaldi",
        ) from None


def save_transform(folder: str | Path, transform: FeatureTransform) -> None:
    """Write the feature transform of a system.

    The matrix of a `Linear`, of which a system may have one, goes to `final.mat`.
    """
    folder = Path(folder)
    config = transform.to_config()
    linear = _linear_parts(config)
    if len(linear) > 1:
        raise ValueError("a system's features are made with one matrix at most")
    for part in linear:
        with KaldiWriter.open(folder / MATRIX) as writer:
            writer.write_float_matrix(np.array(part["matrix"], np.float32))
        part["matrix"] = MATRIX
    with atomic_output(folder / TRANSFORM) as temporary:
        temporary.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _linear_parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The descriptions of matrices in that of a transform."""
    if config["type"] == "chain":
        return [p for part in config["transforms"] for p in _linear_parts(part)]
    return [config] if config["type"] == "linear" else []
