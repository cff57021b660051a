"""Commands on the times of alignments that are made: learn from others, compare."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from latflow.cli.align import CORES
from latflow.cli.commands import PACKAGE_FOLDER, Arguments, Group, option
from latflow.errors import UserError

COMMANDS = Group()


@COMMANDS.command(
    "learn-boundaries",
    option("aligned", "folder of latflow align, with alignments of the recordings"),
    option("by_hand", "folder of TextGrids with manual boundaries, named as those"),
    option(
        "out", "folder for the package, which has learnt from them", type=PACKAGE_FOLDER
    ),
    option(
        "--tier", "name of the tiers of phones, or what their names end in", "phones"
    ),
    option("--json", "file for all figures"),
    CORES,
    example="learn-boundaries aligned by_hand better",
)
def _learn_boundaries(arguments: Arguments) -> None:
    """Teach a package where boundaries are, by TextGrids that were set by hand."""
    from latflow.files import write_json
    from latflow.serving.package_info import read_info
    from latflow.serving.packaging import add_boundaries
    from latflow.training.boundary_learning import learn_boundaries, render
    from latflow.workflow.made_alignments import MadeAlignments

    made = MadeAlignments.of(Path(os.path.abspath(arguments.aligned)))
    found = learn_boundaries(
        made.aligned,
        Path(arguments.by_hand),
        made.names,
        tier=arguments.tier,
        sample_rate=read_info(made.package).sample_rate,
        threads=arguments.cores,
    )
    add_boundaries(made.package, found.model, Path(arguments.out))
    sys.stdout.write(render(found))
    if arguments.json is not None:
        write_json(arguments.json, found.values())
    sys.stdout.write(f"latflow align ... --model {arguments.out} sets them so\n")


@COMMANDS.command(
    "compare-alignments",
    option("first", "CTM file, TextGrid, or folder of TextGrids"),
    option("second", "likewise, of the same recordings"),
    option(
        "--tier", "name of the tiers compared, or what their names end in", "phones"
    ),
    option("--json", "file for all figures"),
    example="compare-alignments by_hand/ aligned/textgrid",
)
def _compare(arguments: Arguments) -> None:
    """Compare the times of two alignments of the same speech."""
    from latflow.files import write_json
    from latflow.scoring.boundaries import compare_labels, read_labels, render

    first = read_labels(arguments.first, arguments.tier)
    second = read_labels(arguments.second, arguments.tier)
    found = compare_labels(first, second)
    if not found.all:
        raise UserError(
            "the two have no label in common",
            file=arguments.second,
            remedy="recordings need the same names in both: ids in CTM files, paths "
            "of TextGrids below the folder",
        )
    sys.stdout.write(render(found))
    if arguments.json is not None:
        write_json(arguments.json, found.values())
