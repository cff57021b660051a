"""What a run of `latflow align` has left in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from latflow.align.export import audio_of, recording_names
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet
from latflow.errors import UserError
from latflow.files import reading
from latflow.workflow.aligning import ALIGNER, EXPERIMENT, RECIPE_NAME
from latflow.workflow.recipe import PACKAGED, Recipe


@dataclass(frozen=True)
class MadeAlignments:
    """Alignments, the package that made them, and the names of recordings."""

    aligned: AlignedSet
    """The alignments."""
    package: Path
    """The package that aligned, adapted if it was; or that of the corpus's systems."""
    names: Mapping[str, str]
    """Names of the TextGrids, without suffix, by id of the recording."""

    @classmethod
    def of(cls, out: Path) -> MadeAlignments:
        """Find them.

        Args:
            out: the folder.

        Raises:
            UserError: it is not that of such a run, or the run has not ended.
        """
        path, results = out / RECIPE_NAME, out / f"results/{EXPERIMENT}"
        remedy = "name the folder that latflow align has written to"
        with reading(path, "not the recipe of an alignment", remedy):
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
            recipe = Recipe.from_config(config)
            export = recipe.options.export_alignments
        system = ALIGNER if export.package is None else PACKAGED
        made = results / f"align/{system}/train"
        if not (made / "ali.ark").is_file():
            raise UserError("nothing is aligned here", file=out, remedy=remedy)
        if export.package is None:
            package = results / f"package/{ALIGNER}"
            lang, model = results / "lang", results / f"gmm/{ALIGNER}"
        else:
            is_adapted = export.adapt is not None
            package = results / "adapted/train" if is_adapted else Path(export.package)
            lang, model = made / "lang", package / "model"
        cuts = results / "corpus/train/cuts.jsonl.gz"
        aligned = AlignedSet(
            alignments=made / "ali.ark",
            statistics=made / "statistics.json",
            cuts=cuts,
            lang_dir=lang,
            model_dir=model,
            first_middle=recipe.first_middle(system),
        )
        options = export.part(ExportOptions)
        return cls(aligned, package, recording_names(audio_of(cuts), options))
