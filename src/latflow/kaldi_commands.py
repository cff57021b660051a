"""The commands `latflow import-kaldi`, `export-kaldi` and `loglikes`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latflow.errors import UserError

Arguments = argparse.Namespace
FeaturesOf = Callable[[Arguments], dict[str, Any]]


def add_commands(
    commands: Any,
    with_config: Callable[[argparse.ArgumentParser], None],
    features_of: FeaturesOf,
) -> None:
    """Add the commands to those of the program.

    Args:
        commands: the subcommands of the program's parser.
        with_config: adds the options that name an experiment.
        features_of: section `features` of the experiment that they name.
    """
    _add_import(commands, with_config, features_of)
    _add_export(commands)
    command = _command(
        commands,
        "loglikes",
        _log_likes,
        "write log-likelihoods of all pdfs as Kaldi's archive",
    )
    _add_archive_arguments(command)


def _command(
    commands: Any, name: str, run: Callable[[Arguments], None], text: str
) -> argparse.ArgumentParser:
    """Add one command."""
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _group(commands: Any, name: str, text: str) -> Any:
    """Add a command that has commands of its own."""
    group = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    return group.add_subparsers(required=True, metavar="<kind>")


def _add_import(
    commands: Any,
    with_config: Callable[[argparse.ArgumentParser], None],
    features_of: FeaturesOf,
) -> None:
    """From Kaldi."""
    kinds = _group(commands, "import-kaldi", "take over what Kaldi's scripts wrote")
    command = _command(
        kinds, "data", _import_data, "turn a data directory into manifests"
    )
    command.add_argument("data_dir", help="folder with wav.scp, text, utt2spk")
    command.add_argument("out_dir", help="folder for the Lhotse manifests")
    command.add_argument(
        "--allow-commands", action="store_true", help="run pipes that wav.scp names"
    )
    command = _command(
        kinds,
        "system",
        lambda arguments: _import_system(arguments, features_of(arguments)),
        "turn an exp/<system> and its lang directory into gmm/, lang/, graph/, align/",
    )
    command.add_argument("exp_dir", help="folder with final.mdl and tree")
    command.add_argument("lang_dir", help="lang directory it was trained with")
    command.add_argument("results", help="folder of an experiment, results/<name>")
    command.add_argument(
        "--name",
        help="name of the system; by default exp_dir's, as the workflow writes it",
    )
    command.add_argument("--graph", help="folder with the decoding graph, HCLG.fst")
    command.add_argument(
        "--frames", help="frames of the training data, to take over its alignments"
    )
    with_config(command)


def _add_export(commands: Any) -> None:
    """To Kaldi."""
    kinds = _group(commands, "export-kaldi", "write what Kaldi's programs read")
    command = _command(
        kinds, "data", _export_data, "turn manifests into a data directory"
    )
    command.add_argument("corpus_dir", help="folder with the Lhotse manifests")
    command.add_argument("data_dir", help="Kaldi data directory to write")
    command = _command(
        kinds, "system", _export_system, "turn a system into an exp/<system>"
    )
    command.add_argument("system_dir", help="results/<name>/gmm/<system>")
    command.add_argument("lang_dir", help="results/<name>/lang")
    command.add_argument("out_dir", help="directory to write, new or empty")
    command.add_argument("--graph", help="decoding graph, HCLG.fst")
    command.add_argument("--alignments", help="ali.ark of the training data")
    command.add_argument("--transforms", help="trans.ark of its speakers")
    command.add_argument(
        "--frames", help="frames of the training data: its speakers, normalisation"
    )
    command.add_argument("--num-jobs", type=int, default=1, help="pieces of archives")
    command.add_argument(
        "--training-graphs",
        action="store_true",
        help="write fsts.N.gz too; needs --frames",
    )
    command.add_argument("--threads", type=int, default=2, help="parallel workers")
    command = _command(
        kinds,
        "features",
        _features,
        "write features as a system's model takes them",
    )
    _add_archive_arguments(command)


def _add_archive_arguments(command: argparse.ArgumentParser) -> None:
    """What the commands that write archives of matrices take."""
    command.add_argument("system_dir", help="results/<name>/gmm/<system>")
    command.add_argument("frames_dir", help="results/<name>/frames/<split>")
    command.add_argument("ark", help="archive to write")
    command.add_argument("--scp", help="list of places in the archive to write too")
    command.add_argument(
        "--transforms", help="trans.ark of the speakers, for an adapted system"
    )
    command.add_argument("--threads", type=int, default=2, help="parallel workers")


def _import_data(arguments: Arguments) -> None:
    """Turn a Kaldi data directory into manifests."""
    from latflow.corpus.kaldi_dir import import_kaldi_dir

    import_kaldi_dir(
        arguments.data_dir, arguments.out_dir, allow_commands=arguments.allow_commands
    )


def _export_data(arguments: Arguments) -> None:
    """Turn manifests into a Kaldi data directory."""
    from latflow.corpus.kaldi_dir import export_kaldi_dir

    export_kaldi_dir(arguments.corpus_dir, arguments.data_dir)


def _import_system(arguments: Arguments, features: dict[str, Any]) -> None:
    """Take over a system with its language, and graph and alignments if asked."""
    from latflow.gmm.kaldi_alignments import import_alignments
    from latflow.gmm.kaldi_system import import_graph, import_lang, import_system
    from latflow.recipe import name_of_import

    name = arguments.name or name_of_import(arguments.exp_dir)
    results = Path(arguments.results)
    lang, system = results / "lang", results / "gmm" / name
    import_system(arguments.exp_dir, arguments.lang_dir, system, features=features)
    import_lang(arguments.lang_dir, lang)
    if arguments.graph:
        graph = results / "graph" / name / "HCLG.fst"
        import_graph(arguments.graph, system, lang, graph)
    if arguments.frames:
        import_alignments(
            arguments.exp_dir,
            system,
            lang,
            arguments.frames,
            results / "align" / name / Path(arguments.frames).resolve().name,
            max_skipped_fraction=1.0,
        )


def _export_system(arguments: Arguments) -> None:
    """Write a system as a directory of Kaldi's."""
    from latflow.gmm.kaldi_export import export_system, export_training_graphs

    if arguments.training_graphs and not arguments.frames:
        raise UserError(
            "--training-graphs needs the transcripts", remedy="name --frames too"
        )
    export_system(
        arguments.system_dir,
        arguments.lang_dir,
        arguments.out_dir,
        graph=arguments.graph,
        alignments=arguments.alignments,
        frames=arguments.frames,
        transforms=arguments.transforms,
        num_jobs=arguments.num_jobs,
    )
    if arguments.training_graphs:
        export_training_graphs(
            arguments.system_dir,
            arguments.lang_dir,
            arguments.frames,
            arguments.out_dir,
            threads=arguments.threads,
        )


def _features(arguments: Arguments) -> None:
    """Write features."""
    from latflow.gmm.archives import write_features

    _write_archive(write_features, arguments)


def _log_likes(arguments: Arguments) -> None:
    """Write log-likelihoods."""
    from latflow.gmm.archives import write_log_likes

    _write_archive(write_log_likes, arguments)


def _write_archive(write: Callable[..., None], arguments: Arguments) -> None:
    """Call one of the two stages."""
    write(
        arguments.system_dir,
        arguments.frames_dir,
        arguments.ark,
        transforms=arguments.transforms,
        scp=arguments.scp,
        threads=arguments.threads,
    )
