"""The command `latflow selftest`: proofs of the criteria, as a table.

Public: `add_commands`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from latflow.errors import UserError


def add_commands(commands: Any) -> None:
    """Add `selftest` to the commands of the program.

    Args:
        commands: the subcommands of the program's parser.
    """
    text = "prove values and gradients of the sequence criteria on this machine"
    command = commands.add_parser(
        "selftest",
        help=text,
        description=text[0].upper() + text[1:] + "; exit status 1 if one fails.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("--criterion", help="only those whose name begins so")
    command.add_argument("--trials", type=int, default=5, help="lattices a proof")
    command.set_defaults(run=_selftest)


def _selftest(arguments: argparse.Namespace) -> int:
    """Print a table of the proofs; returns 1 if one does not hold."""
    from latflow.criteria.selftest import (
        LIMITS,
        run,
    )  # torch, Numba: not for all commands

    if arguments.trials < 1:
        raise UserError("no trials asked for", remedy="set --trials to 1 or more")
    failed = 0
    sys.stdout.write(f"{'criterion':<26}{'proof':<14}{'deviation':>10}  {'limit':>7}\n")
    for proof in run(arguments.criterion, trials=arguments.trials):
        failed += not proof.holds
        sys.stdout.write(
            f"{proof.case:<26}{proof.proof:<14}{proof.deviation:>10.1e}  "
            f"{LIMITS[proof.proof]:>7.0e}{'' if proof.holds else '  FAILED'}\n"
        )
    verdict = f"{failed} failed" if failed else "all hold"
    sys.stdout.write(f"{verdict} ({arguments.trials} random lattices each)\n")
    return 1 if failed else 0
