"""The commands `latflow forward` and `latflow average`.

Public: `add_commands`.
"""

from __future__ import annotations

import argparse
from typing import Any

Arguments = argparse.Namespace


def add_commands(commands: Any) -> None:
    """Add `forward` and `average` to the commands of the program.

    Args:
        commands: the subcommands of the program's parser.
    """
    _add_forward(commands)
    _add_average(commands)


def _add_forward(commands: Any) -> None:
    """Scores of a network."""
    text = "write a network's log-likelihoods of all frames of a frame store"
    command = commands.add_parser(
        "forward",
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", help="model folder, as training wrote it")
    command.add_argument("frames", help="frame store of the network's features")
    command.add_argument("out", help="file to write")
    command.add_argument(
        "--form",
        choices=("ark", "hdf5"),
        default="ark",
        help="Kaldi's archive of matrices, or HDF5 in RETURNN's layout",
    )
    command.add_argument("--scp", help="also write a list of places in the archive")
    command.add_argument(
        "--prior-scale",
        type=float,
        default=1.0,
        help="factor on the log priors that are taken off; 0 gives log posteriors",
    )
    command.add_argument(
        "--max-frames", type=int, default=8000, help="frames scored at once"
    )
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    command.add_argument("--threads", type=int, default=2, help="threads of torch")
    command.set_defaults(run=_forward)


def _add_average(commands: Any) -> None:
    """Mean of networks."""
    text = "write a model whose parameters are the mean of several models'"
    command = commands.add_parser(
        "average", help=text, description=text[0].upper() + text[1:] + "."
    )
    command.add_argument("models", nargs="+", help="model folders of the same layers")
    command.add_argument("--out", required=True, help="model folder to write")
    command.set_defaults(run=_average)


def _forward(arguments: Arguments) -> None:
    """Write the scores."""
    from latflow.training.forward import forward

    forward(
        arguments.frames,
        arguments.model,
        arguments.out,
        form=arguments.form,
        scp=arguments.scp,
        prior_scale=arguments.prior_scale,
        max_frames=arguments.max_frames,
        device=arguments.device,
        threads=arguments.threads,
    )


def _average(arguments: Arguments) -> None:
    """Write the mean."""
    from latflow.training.average import average_models

    average_models(arguments.models, arguments.out)
