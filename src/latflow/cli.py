"""The `latflow` command: the package's stage functions and tools from a terminal.

Each subcommand is a thin layer over one function of the package; the workflow calls the
same functions. A user's mistake is one line on standard error and exit status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

import latflow
from latflow import kaldi_commands
from latflow.criteria import commands as criteria_commands
from latflow.errors import UserError
from latflow.lattice import commands as lattice_commands
from latflow.logs import log_to_terminal
from latflow.nnet import commands as network_commands
from latflow.training import commands as training_commands
from latflow.training import data_commands

Arguments = argparse.Namespace
SCHEMAS = Path(__file__).resolve().parents[2] / "workflow" / "schemas"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = _parser().parse_args(argv)
    log_to_terminal(verbose=arguments.verbose)
    try:
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    """All subcommands and their options."""
    parser = argparse.ArgumentParser(
        prog="latflow",
        description="Hybrid speech recognition recipes: tools beside `snakemake`.",
        epilog="The whole job of an experiment: snakemake --configfile <recipe>.",
    )
    parser.add_argument("--version", action="version", version=latflow.__version__)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log progress, not only warnings"
    )
    commands = parser.add_subparsers(required=True, metavar="<command>")
    _add_experiment_commands(commands)
    _add_corpus_commands(commands)
    _add_language_commands(commands)
    _add_model_commands(commands)
    network_commands.add_commands(commands)
    training_commands.add_commands(commands)
    data_commands.add_commands(commands)
    criteria_commands.add_commands(commands)
    lattice_commands.add_commands(commands)
    kaldi_commands.add_commands(
        commands, _with_config, lambda arguments: _recipe(arguments).config["features"]
    )
    return parser


def _command(
    commands: Any, name: str, run: Callable[[Arguments], int | None], text: str
) -> argparse.ArgumentParser:
    """Add one subcommand."""
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _with_config(command: argparse.ArgumentParser) -> None:
    """Options that name an experiment as `snakemake` does."""
    command.add_argument(
        "--configfile", default="config/config.yaml", help="recipe of the experiment"
    )
    command.add_argument(
        "--config",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings that override the recipe's, e.g. corpora=../shared/corpora",
    )


def _add_experiment_commands(commands: Any) -> None:
    """Commands about a whole experiment."""
    command = _command(
        commands, "doctor", _doctor, "check an experiment's data before it runs"
    )
    _with_config(command)
    command = _command(
        commands, "config", _config, "print the complete configuration, defaults filled"
    )
    _with_config(command)
    command = _command(
        commands, "config-readme", _config_readme, "describe all configuration keys"
    )
    command.add_argument("--out", help="file to write instead of standard output")
    command = _command(
        commands, "show", _show, "print the WER table and the report's path"
    )
    command.add_argument("results", help="folder of an experiment, results/<name>")
    command = _command(
        commands, "report", _report, "write the HTML report of what exists so far"
    )
    command.add_argument("results", help="folder of an experiment, results/<name>")
    command.add_argument("--out", help="HTML file; <results>/report.html by default")
    _with_config(command)
    command = _command(
        commands, "provenance", _provenance, "tell what made a file of the results"
    )
    command.add_argument("file", help="any file under results/<name>")


def _add_corpus_commands(commands: Any) -> None:
    """Commands about corpora and features."""
    command = _command(
        commands, "features", _features, "extract features of a cut manifest"
    )
    command.add_argument("cuts", help="cuts.jsonl.gz")
    command.add_argument("out_dir", help="folder for features and cuts")
    command.add_argument("--threads", type=int, default=2, help="parallel workers")
    _with_config(command)


def _add_language_commands(commands: Any) -> None:
    """Commands about lexicon and language model."""
    command = _command(
        commands, "lang", _lang, "make a Kaldi lang directory of a lexicon"
    )
    command.add_argument("lexicon", help="WORD PHONE PHONE ... lines")
    command.add_argument("out_dir", help="lang directory to write")
    _with_config(command)
    command = _command(
        commands, "ngram", _ngram, "estimate a Kneser-Ney language model (ARPA)"
    )
    command.add_argument("text", help="one sentence a line")
    command.add_argument("arpa", help="ARPA file to write")
    command.add_argument("--order", type=int, default=3, help="length of the n-grams")
    command = _command(
        commands, "perplexity", _perplexity, "perplexity of a text under an ARPA model"
    )
    command.add_argument("arpa", help="ARPA file")
    command.add_argument("text", help="one sentence a line")


def _add_model_commands(commands: Any) -> None:
    """Commands about acoustic models."""
    command = _command(
        commands, "model-info", _model_info, "sizes of a Kaldi final.mdl (gmm-info)"
    )
    command.add_argument("model", help="final.mdl")
    command = _command(
        commands, "model-copy", _model_copy, "copy a final.mdl, as text or binary"
    )
    command.add_argument("model", help="final.mdl to read")
    command.add_argument("out", help="file to write")
    command.add_argument("--text", action="store_true", help="write Kaldi's text form")


def _load_config(arguments: Arguments) -> dict[str, Any]:
    """Read the recipe file and the overriding settings."""
    path = Path(arguments.configfile)
    if not path.is_file():
        raise UserError("no such recipe", file=path, remedy="name it by --configfile")
    config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for setting in arguments.config:
        key, sign, value = setting.partition("=")
        if not sign:
            raise UserError(f"setting {setting!r} is not KEY=VALUE")
        config[key] = yaml.safe_load(value)
    return config


def _recipe(arguments: Arguments) -> Any:
    """The checked recipe that the command line names."""
    from latflow.recipe import Recipe

    return Recipe.from_config(_load_config(arguments), SCHEMAS)


def _config(arguments: Arguments) -> None:
    """Print the resolved configuration."""
    config = dict(_recipe(arguments).config)
    sys.stdout.write(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _config_readme(arguments: Arguments) -> None:
    """Write the description of all keys."""
    from latflow.configuration import document
    from latflow.files import atomic_output

    text = document(SCHEMAS)
    if arguments.out is None:
        sys.stdout.write(text)
        return
    with atomic_output(arguments.out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _show(arguments: Arguments) -> None:
    """Print the word error rates and where the report is."""
    from latflow.scoring.summary import format_table

    folder = Path(arguments.results)
    table, report = folder / "wer.tsv", folder / "report.html"
    if not table.is_file():
        raise UserError("no results yet", file=table, remedy="run snakemake first")
    sys.stdout.write(f"{format_table(table)}\n\n")
    if report.is_file():
        sys.stdout.write(f"report: {report.resolve()}\n")


def _provenance(arguments: Arguments) -> int:
    """Print the record of a file; status 1 if the file is no longer what was made."""
    from latflow.records import describe, find_record

    found = find_record(arguments.file)
    sys.stdout.write(describe(found))
    return int(found.state in {"changed", "gone"})


def _report(arguments: Arguments) -> None:
    """Write the report of what exists."""
    from latflow.report.build import make_report

    folder = Path(arguments.results)
    if not folder.is_dir():
        raise UserError(
            "no such folder", file=folder, remedy="name results/<experiment>"
        )
    out = Path(arguments.out) if arguments.out else folder / "report.html"
    make_report(folder, out, config=_recipe(arguments).config)
    sys.stdout.write(f"report: {out.resolve()}\n")


def _features(arguments: Arguments) -> None:
    """Extract features with the recipe's settings."""
    from latflow.features.extract import extract_features

    recipe = _recipe(arguments)
    extract_features(
        arguments.cuts,
        arguments.out_dir,
        options=recipe.extraction_options(),
        threads=arguments.threads,
        max_skipped_fraction=recipe.max_skipped_fraction,
    )


def _lang(arguments: Arguments) -> None:
    """Make a lang directory with the recipe's settings."""
    from latflow.lang.prepare import make_lang

    options = _recipe(arguments).lang_options()
    make_lang(arguments.lexicon, arguments.out_dir, options=options)


def _model_info(arguments: Arguments) -> None:
    """Print what Kaldi's gmm-info prints."""
    from latflow.gmm.model import AcousticModel

    model = AcousticModel.load(arguments.model)
    for name, value in (
        ("number of phones", len(model.transitions.topology.phones)),
        ("number of pdfs", model.gmms.num_pdfs),
        ("number of transition-ids", model.transitions.num_transition_ids),
        ("number of transition-states", model.transitions.num_states),
        ("feature dimension", model.gmms.dim),
        ("number of gaussians", model.gmms.num_gaussians),
    ):
        sys.stdout.write(f"{name} {value}\n")


def _model_copy(arguments: Arguments) -> None:
    """Copy a model from either of Kaldi's forms to either."""
    from latflow.gmm.model import AcousticModel

    model = AcousticModel.load(arguments.model)
    model.save(arguments.out, binary=not arguments.text)


def _doctor(arguments: Arguments) -> int:
    """Examine the experiment's data; status 1 where an error was found."""
    from latflow.doctor import examine, examine_sources, render

    recipe = _recipe(arguments)
    results = Path("results", recipe.experiment)
    prepared = {
        split: path
        for split in recipe.splits
        if (path := results / "corpus" / split / "cuts.jsonl.gz").is_file()
    }
    lexicon = recipe.lexicon(str(results / "corpus" / "language"))
    common = {
        "lang": recipe.config["lang"],
        "features": recipe.config["features"],
        "results": results,
    }
    if len(prepared) == len(recipe.splits):
        lang_dir = results / "lang"
        findings = examine(
            prepared,
            lexicon=lexicon,
            lang_dir=lang_dir if (lang_dir / "phones.txt").is_file() else None,
            **common,
        )
    else:
        is_own = recipe.config["lang"]["lexicon"] is None
        findings = examine_sources(
            recipe.config["corpus"], lexicon=None if is_own else lexicon, **common
        )
    sys.stdout.write(render(findings) + "\n")
    return int(any(finding.severity == "error" for finding in findings))


def _ngram(arguments: Arguments) -> None:
    """Estimate a language model from a text."""
    from latflow.lang.arpa import write_arpa
    from latflow.lang.ngram import estimate
    from latflow.lang.texts import text_sentences

    model = estimate(text_sentences(arguments.text), arguments.order)
    write_arpa(model, arguments.arpa)


def _perplexity(arguments: Arguments) -> None:
    """Print the perplexity of a text."""
    from latflow.lang.arpa import read_arpa
    from latflow.lang.perplexity import perplexity
    from latflow.lang.texts import text_sentences

    found = perplexity(read_arpa(arguments.arpa), text_sentences(arguments.text))
    sys.stdout.write(f"{found}\n")
