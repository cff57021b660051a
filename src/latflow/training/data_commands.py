"""The commands `latflow hdf5 export` and `latflow hdf5 import`.

Public: `add_commands`. What they do is imported when one of them runs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from latflow.errors import UserError

Arguments = argparse.Namespace


def add_commands(commands: Any) -> None:
    """Add the group `hdf5` to the commands of the program.

    Args:
        commands: the subcommands of the program's parser.
    """
    text = "exchange frames and labels with RETURNN as HDF5 files"
    group = commands.add_parser(
        "hdf5", help=text, description=text[0].upper() + text[1:] + "."
    )
    verbs = group.add_subparsers(required=True, metavar="<verb>")
    command = _verb(verbs, "export", "write a file that RETURNN's HDFDataset reads")
    command.add_argument("frames", help="frame store, frames/<split>")
    command.add_argument("out", help="HDF5 file to write")
    command.add_argument(
        "--alignments", help="ali.ark, whose pdf-ids become the target `pdf`"
    )
    command.add_argument("--model", help="folder of the system that made them")
    command.add_argument(
        "--labels",
        nargs="*",
        default=[],
        metavar="NAME=FOLDER",
        help="label stores, by the name of the target",
    )
    command.set_defaults(run=_export)
    command = _verb(verbs, "import", "read files of RETURNN's layout")
    command.add_argument("files", nargs="+", help="HDF5 files of one data set")
    command.add_argument("--frames", required=True, help="frame store to write")
    command.add_argument(
        "--labels", required=True, help="folder for the label stores, one a target"
    )
    command.add_argument(
        "--targets", nargs="*", default=None, help="targets to read; all by default"
    )
    command.add_argument(
        "--frame-shift", type=float, default=0.01, help="seconds from frame to frame"
    )
    command.set_defaults(run=_import)


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add one command."""
    return verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def _export(arguments: Arguments) -> None:
    """Write an HDF5 file."""
    from latflow.lang.composition import load_model
    from latflow.training.hdf5 import export_hdf
    from latflow.training.labels import write_pdf_labels

    labels: dict[str, str | Path] = {}
    for setting in arguments.labels:
        name, sign, folder = setting.partition("=")
        if not (name and sign and folder):
            raise UserError(f"label store {setting!r} is not NAME=FOLDER")
        labels[name] = folder
    if (arguments.alignments is None) != (arguments.model is None):
        raise UserError("--alignments and --model belong together")
    with tempfile.TemporaryDirectory(prefix="latflow-labels-") as temporary:
        if arguments.alignments is not None:
            _, transitions = load_model(arguments.model)
            labels["pdf"] = Path(temporary, "pdf")
            write_pdf_labels(arguments.alignments, transitions, labels["pdf"])
        export_hdf(arguments.frames, labels, arguments.out)


def _import(arguments: Arguments) -> None:
    """Read HDF5 files."""
    from latflow.training.hdf5 import import_hdf

    import_hdf(
        arguments.files,
        arguments.frames,
        arguments.labels,
        targets=arguments.targets,
        frame_shift=arguments.frame_shift,
    )
