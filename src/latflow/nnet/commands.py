"""The command `latflow network`: what a description makes, before it is trained.

Public: `add_commands`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from latflow.errors import UserError

Arguments = argparse.Namespace


def add_commands(commands: Any) -> None:
    """Add `network` to the commands of the program.

    Args:
        commands: the subcommands of the program's parser.
    """
    text = "print a network's layers, parameters and receptive field, or draw it"
    command = commands.add_parser(
        "network",
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog="latflow network config/networks/tdnnf.yaml --dim-in 40 --classes 1200",
    )
    command.add_argument("description", nargs="?", help="YAML file; docs/networks.md")
    command.add_argument(
        "--dim-in", type=int, default=40, help="features a frame; 40 where not given"
    )
    command.add_argument(
        "--classes",
        nargs="+",
        default=["1000"],
        metavar="N",
        help="number of classes, or TARGET=N for each target; 1000 where not given",
    )
    command.add_argument(
        "--step", type=int, help="the network of this step of layer-wise pretraining"
    )
    command.add_argument("--svg", help="file to draw the network to")
    command.add_argument(
        "--layers", action="store_true", help="print all layer classes with options"
    )
    command.add_argument(
        "--update",
        metavar="DOC",
        help="renew the list of layer classes in a document (docs/networks.md)",
    )
    command.set_defaults(run=_network)


def _network(arguments: Arguments) -> None:
    """Tell of layer classes, or of one network."""
    if arguments.update is not None:
        _update(Path(arguments.update))
    elif arguments.layers:
        from latflow.nnet.reference import layer_reference

        sys.stdout.write(layer_reference())
    elif arguments.description is None:
        raise UserError("no description", remedy="name a file, or ask for --layers")
    else:
        _describe(arguments)


def _update(document: Path) -> None:
    """Renew the list of layer classes in a document."""
    from latflow.files import atomic_output
    from latflow.nnet.reference import in_document

    if not document.is_file():
        raise UserError("no such document", file=document)
    text = in_document(document)
    with atomic_output(document) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _describe(arguments: Arguments) -> None:
    """Print the table of a network; draw it where that is asked for."""
    from latflow.files import atomic_output
    from latflow.nnet.description import NetworkDescription
    from latflow.nnet.drawing import network_svg
    from latflow.nnet.network import Network

    description = NetworkDescription.load(arguments.description)
    if arguments.dim_in < 1:
        raise UserError(f"--dim-in is {arguments.dim_in}, below 1")
    if arguments.step is not None:
        if arguments.step < 0:
            raise UserError(f"--step is {arguments.step}, below 0")
        description = description.pretraining(arguments.step)
    targets = {loss.target for loss in description.outputs.values()}
    network = Network(description, arguments.dim_in, _classes(arguments, targets))
    heading = f"{description.text}\n\n" if description.text else ""
    sys.stdout.write(f"{heading}{network.summary()}\n")
    if arguments.svg is not None:
        with atomic_output(arguments.svg) as temporary:
            svg = network_svg(network.graph(), description.text)
            temporary.write_text(svg, encoding="utf-8")


def _classes(arguments: Arguments, targets: set[str]) -> dict[str, int]:
    """The number of classes by target; one number alone is for all."""
    classes = {}
    for setting in arguments.classes:
        name, _, number = setting.rpartition("=")
        if not number.isdecimal():
            raise UserError(f"--classes {setting} is neither N nor TARGET=N")
        for target in [name] if name else targets:
            classes[target] = int(number)
    return classes
