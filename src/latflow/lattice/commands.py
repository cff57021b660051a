"""The commands `latflow lattice <verb>` and their options.

What they do is in `latflow.lattice.command_actions`, which is imported when one of them
runs: numerical libraries take seconds to load, and help should not wait for them.

Public: `add_commands`.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(commands: Any) -> None:
    """Add the group `lattice` to the commands of the program.

    Args:
        commands: the subcommands of the program's parser.
    """
    text = "read, measure, change and decode lattices"
    group = commands.add_parser(
        "lattice", help=text, description=text[0].upper() + text[1:] + "."
    )
    verbs = group.add_subparsers(required=True, metavar="<verb>")
    _add_looking(verbs)
    _add_words(verbs)
    _add_changes(verbs)
    _add_language_models(verbs)
    _add_posteriors(verbs)


def _add_looking(verbs: Any) -> None:
    """copy, info, depth."""
    command = _verb(
        verbs,
        "copy",
        "copy lattices from any of Kaldi's forms to any",
        "lattices.ark - --form raw",
    )
    _with_lattices(command, threads=False)
    _with_output(command)
    command = _verb(verbs, "info", "list sizes and depth of lattices", "lattices.ark")
    _with_lattices(command, threads=False)
    _with_form(command)
    command = _verb(
        verbs, "depth", "count the arcs that cross each frame", "lattices.ark"
    )
    _with_lattices(command, threads=False)


def _add_words(verbs: Any) -> None:
    """best-path, n-best, oracle, mbr."""
    command = _verb(
        verbs,
        "best-path",
        "print the words of the cheapest path",
        "lattices.ark --words lang/words.txt --acoustic-scale 0.1",
    )
    _with_lattices(command)
    _with_words(command)
    _with_scales(command, penalty=True)
    command.add_argument("--alignments", help="archive of its transition-ids to write")
    command = _verb(
        verbs,
        "n-best",
        "print the cheapest word sequences with their costs",
        "lattices.ark -n 10 --words lang/words.txt --acoustic-scale 0.1",
    )
    _with_lattices(command)
    _with_words(command)
    _with_scales(command, penalty=True)
    command.add_argument("-n", type=int, default=10, help="how many of a lattice")
    command = _verb(
        verbs,
        "oracle",
        "find the least word error rate of any paths",
        "lattices.ark data/test/text --words lang/words.txt",
    )
    _with_lattices(command)
    command.add_argument("text", help="references: utterance and words on each line")
    command.add_argument("--words", required=True, help="words.txt")
    command.add_argument(
        "--ignore", nargs="*", default=[], metavar="WORD", help="words not to count"
    )
    command.add_argument("--out", help="file for the words of the paths")
    command = _verb(
        verbs,
        "mbr",
        "print the words with the fewest errors to expect",
        "lattices.ark --lang lang --model final.mdl --ctm --acoustic-scale 0.1",
    )
    _with_lattices(command)
    _with_scales(command)
    command.add_argument("--lang", required=True, help="lang directory")
    command.add_argument("--model", help="final.mdl, for exact times")
    command.add_argument(
        "--ctm", action="store_true", help="print times and confidences too (CTM)"
    )
    command.add_argument("--frame-shift", type=float, default=0.01, help="seconds")
    command.add_argument(
        "--keep-best-path", action="store_true", help="its words; only confidences"
    )
    command.add_argument(
        "--beam", type=float, default=6.0, help="word sequences that take part"
    )


def _add_changes(verbs: Any) -> None:
    """prune, determinise, boost."""
    command = _verb(
        verbs,
        "prune",
        "leave out arcs that only costly paths take",
        "lattices.ark pruned.ark --beam 5 --acoustic-scale 0.1",
    )
    _with_lattices(command)
    _with_output(command)
    _with_scales(command)
    command.add_argument("--beam", type=float, default=10.0, help="on scaled costs")
    command = _verb(
        verbs,
        "determinise",
        "keep one path for each word sequence",
        "lattices.ark small.ark --beam 6 --acoustic-scale 0.1",
    )
    _with_lattices(command)
    _with_output(command)
    _with_scales(command)
    command.add_argument("--beam", type=float, default=10.0, help="on scaled costs")
    command.add_argument(
        "--model", help="final.mdl: determinise on words and phones first"
    )
    command = _verb(
        verbs,
        "boost",
        "make wrong phones cheaper, for boosted MMI",
        "lattices.ark ali.ark final.mdl boosted.ark --lang lang --b 0.1",
    )
    _with_lattices(command)
    command.add_argument("alignments", help="archive of what was said, transition-ids")
    command.add_argument("model", help="final.mdl")
    _with_output(command)
    command.add_argument("--lang", required=True, help="lang directory: its silences")
    command.add_argument("--b", type=float, default=0.1, help="nats a wrong frame")
    command.add_argument(
        "--max-silence-error", type=float, default=0.0, help="share of b for silences"
    )


def _add_language_models(verbs: Any) -> None:
    """rescore, pack-lm."""
    command = _verb(
        verbs,
        "rescore",
        "exchange the language model's costs",
        "lattices.ark new.ark --old lm/G.fst --new large.arpa --words lang/words.txt",
    )
    _with_lattices(command)
    _with_output(command)
    command.add_argument("--old", required=True, help="G.fst they were decoded with")
    command.add_argument(
        "--new", required=True, help="ARPA file, or what pack-lm made of one"
    )
    command.add_argument("--words", required=True, help="words.txt")
    command.add_argument(
        "--lm-scale", type=float, default=1.0, help="share that is exchanged"
    )
    command = _verb(
        verbs,
        "pack-lm",
        "turn an ARPA file to a form that is quick to open",
        "large.arpa.gz large.lm",
    )
    command.add_argument("arpa", help="ARPA file, .gz or not")
    command.add_argument("out", help="file to write")


def _add_posteriors(verbs: Any) -> None:
    """to-post."""
    command = _verb(
        verbs,
        "to-post",
        "write posteriors of transition-ids",
        "lattices.ark post.ark --acoustic-scale 0.1",
    )
    _with_lattices(command)
    command.add_argument("out", help="archive to write, packed if it ends in .gz")
    _with_scales(command)
    command.add_argument("--pdfs-of", help="final.mdl: posteriors of its pdfs instead")
    command.add_argument("--text", action="store_true", help="write Kaldi's text form")


def _run(arguments: argparse.Namespace) -> None:
    """Run the verb that was given."""
    from latflow.lattice.command_actions import ACTIONS

    ACTIONS[arguments.verb](arguments)


class _HelpFormat(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Defaults behind the options; the example as it is written."""


def _verb(verbs: Any, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """Add `latflow lattice <name>`.

    Args:
        verbs: of the group.
        name: of the command.
        text: what it does.
        example: of its arguments.
    """
    command = verbs.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n  latflow lattice {name} {example}",
        formatter_class=_HelpFormat,
    )
    command.set_defaults(run=_run, verb=name)
    return command


def _with_lattices(command: argparse.ArgumentParser, *, threads: bool = True) -> None:
    """The lattices to read, and how many to work on at a time."""
    command.add_argument(
        "lattices", help="archive, binary or text, .gz or not; or a list of places .scp"
    )
    if threads:
        command.add_argument(
            "--threads", type=int, default=2, help="lattices at a time"
        )


def _with_output(command: argparse.ArgumentParser) -> None:
    """The lattices to write."""
    command.add_argument(
        "out", help="archive to write, packed if it ends in .gz; - to print as text"
    )
    _with_form(command)
    command.add_argument("--text", action="store_true", help="write Kaldi's text form")
    command.add_argument("--scp", help="list of places in the archive to write too")


def _with_form(command: argparse.ArgumentParser) -> None:
    """Compact or raw."""
    command.add_argument(
        "--form",
        choices=("compact", "raw"),
        default="compact",
        help="an arc for each word with its transition-ids, or for each transition-id",
    )


def _with_scales(command: argparse.ArgumentParser, *, penalty: bool = False) -> None:
    """Factors on costs."""
    command.add_argument(
        "--lm-scale", type=float, default=1.0, help="factor on graph costs"
    )
    command.add_argument(
        "--acoustic-scale",
        type=float,
        default=1.0,
        help="factor on acoustic costs, about 1/LMWT",
    )
    if penalty:
        command.add_argument(
            "--word-insertion-penalty", type=float, default=0.0, help="cost of a word"
        )


def _with_words(command: argparse.ArgumentParser) -> None:
    """The table of words."""
    command.add_argument("--words", help="words.txt; without it words are numbers")
