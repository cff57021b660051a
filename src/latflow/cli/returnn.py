"""The command `latflow import-returnn`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from latflow.cli.commands import Arguments, Group, option
from latflow.errors import UserError

if TYPE_CHECKING:
    from latflow.nnet.returnn_layers import Row

COMMANDS = Group()


@COMMANDS.command(
    "import-returnn",
    option("config", "configuration file of RETURNN, JSON or Python; it is not run"),
    option("--out", "folder for network.yaml and recipe.yaml; else the table alone"),
    example="import-returnn blstm.config --out returnn",
)
def _import_returnn(arguments: Arguments) -> None:
    """Take over a network of RETURNN's and its training; print what became of each key.

    Where a key of the network cannot be done, nothing is written.
    """
    from latflow.training.returnn_import import import_returnn

    rows = import_returnn(arguments.config, arguments.out)
    sys.stdout.write(_table(rows))
    if refused := [row for row in rows if row.fate == "refused"]:
        more = f"; {len(refused) - 1} more keys" if len(refused) > 1 else ""
        raise UserError(
            f"refused: {refused[0].key}: {refused[0].text}{more}",
            file=arguments.config,
            remedy="change these layers, or describe the network again "
            "(docs/networks.md)",
        )


def _table(rows: Sequence[Row]) -> str:
    """Return a line for each key, those that cannot be done first."""
    order = ("refused", "renamed", "taken", "left out")
    width = max((len(row.key) for row in rows), default=0)
    return "".join(
        f"{row.fate:8}  {row.key:{width}}  {row.text}".rstrip() + "\n"
        for row in sorted(rows, key=lambda row: order.index(row.fate))
    )
