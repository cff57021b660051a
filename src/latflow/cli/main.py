"""The `latflow` command: the package's stage functions and tools from a terminal.

Each subcommand is a thin layer over one function of the package; the workflow calls the
same functions. A user's mistake is one line on standard error and exit status 1.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import textwrap
from collections.abc import Sequence

import latflow
from latflow.cli import (
    align,
    boundaries,
    cache,
    checks,
    completion,
    data,
    experiment,
    g2p,
    kaldi,
    language_models,
    lattice,
    models,
    returnn,
    scoring,
    serving,
)
from latflow.cli.commands import CommandParser
from latflow.errors import UserError
from latflow.logs import log_to_terminal

#: Commands by what they are for, as help lists them.
TOPICS = {
    "An experiment": (
        *("init", "doctor", "plan", "run", "show", "report", "compare", "provenance"),
        "cache",
    ),
    "Help": (
        *("docs", "explain", "config", "config-readme", "config-schema", "completion"),
    ),
    "The model at work": (
        *("package", "transcribe", "score", "serve", "load-test"),
        "triton-repository",
    ),
    "Alignment": (
        *("align", "align-one", "validate", "find-oovs", "compare-alignments"),
        "learn-boundaries",
        "import-mfa",
    ),
    "Kaldi's files": (
        *("import-kaldi", "export-kaldi", "lang", "loglikes", "model-info"),
        "model-copy",
    ),
    "Lexicon and language models": ("g2p", "ngram", "train-lm", "perplexity"),
    "Networks and features": (
        *("network", "forward", "evaluate", "analyze", "priors", "average", "fuse"),
        "import-returnn",
        *("features", "export-features", "hdf5", "simulation-records"),
    ),
    "Lattices": ("lattice",),
    "This machine": ("compile-kernels", "selftest"),
}

# Why a file that the command line names cannot be written or read.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EROFS}
_REFUSED |= {errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    _open_streams()
    try:
        arguments = _parser().parse_args(argv)
        log_to_terminal(verbose=arguments.verbose)
        status = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except BrokenPipeError:  # `head` has enough
        _flush_nowhere()
        return 1
    except OSError as error:
        file = error.filename2 or error.filename
        if file is None and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            _flush_nowhere()
            sys.stderr.write("error: no space left on the disk of the output\n")
            return 1
        if file is None or error.errno not in _REFUSED:
            raise
        sys.stderr.write(f"error: {file}: {error.strerror} - name another place\n")
        return 1
    except UnicodeEncodeError as error:
        if error.encoding.lower() != (sys.stdout.encoding or "").lower():
            raise
        wrong = error.object[error.start : error.end][:20]
        sys.stderr.write(
            f"error: the output is {error.encoding}, which has no {wrong!a} - set "
            "PYTHONUTF8=1, or a locale of UTF-8\n"
        )
        return 1
    return status


def _flush_nowhere() -> None:
    """Let what is left to write to standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Open all three standard streams; those that the caller closed are empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - it stays
            setattr(sys, name, stream)


class _Parser(argparse.ArgumentParser):
    """The program's parser, whose help lists the commands by what they are for."""

    def format_help(self) -> str:
        """Return usage, then the groups of commands with a line for each."""
        parts = [self.format_usage(), "\n", f"{self.description}\n"]
        (commands,) = (
            action.choices
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        for title, names in TOPICS.items():
            parts.append(f"\n{title}:\n")
            parts += [f"  {n:<20}{_summary(commands[n])}\n" for n in names]
        return "".join([*parts, f"\n{self.epilog}\n"])


def _summary(command: argparse.ArgumentParser) -> str:
    """Return the first sentence of a command's help, cut to the line."""
    text = " ".join((command.description or "").split())
    first = re.split(r"\.(?: |$)|; |: ", text)[0]
    return textwrap.shorten(first, 66, placeholder=" ...")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="latflow",
        description="Hybrid speech recognition recipes, and tools beside them.",
        epilog="latflow <command> --help: what it takes\n"
        "latflow -v <command>: logs progress, not only warnings",
    )
    parser.add_argument("--version", action="version", version=latflow.__version__)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log progress, not only warnings"
    )
    commands = parser.add_subparsers(
        required=True, metavar="<command>", parser_class=CommandParser
    )
    groups = (
        *(experiment.COMMANDS, checks.COMMANDS, data.COMMANDS, models.COMMANDS),
        *(data.HDF5, lattice.COMMANDS, language_models.COMMANDS),
        *(kaldi.IMPORT, kaldi.EXPORT, kaldi.COMMANDS, serving.SERVING),
        *(align.ALIGN, boundaries.COMMANDS, g2p.G2P, cache.CACHE),
        *(scoring.COMMANDS, returnn.COMMANDS, completion.COMMANDS),
    )
    for group in groups:
        group.add_to(commands)
    parser.set_defaults(groups=groups)
    return parser


if __name__ == "__main__":
    sys.exit(main())
