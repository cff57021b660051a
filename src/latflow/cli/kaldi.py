"""The commands `latflow import-kaldi`, `export-kaldi` and `loglikes`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.cli.commands import (
    RECIPE,
    SOURCE_KEYS,
    Arguments,
    Group,
    flag,
    option,
    own_folder,
    read_recipe,
    results_folder,
)
from latflow.errors import UserError

if TYPE_CHECKING:
    from latflow.features.cmvn_options import OnlineCmvn
    from latflow.features.options import ExtractionOptions
    from latflow.workflow.recipe import Recipe

COMMANDS = Group()
IMPORT = Group("import-kaldi", "Take over what Kaldi's scripts wrote.")
EXPORT = Group("export-kaldi", "Write what Kaldi's programs read.")

_THREADS = option("--threads", "parallel workers", 2)
_ARCHIVE = (
    option("system_dir", "results/<name>/gmm/<system>"),
    option("frames_dir", "results/<name>/streams/gmm/frames/<split>"),
    option("ark", "archive to write"),
    option("--scp", "table of offsets in the archive to write too"),
    option("--transforms", "trans.ark of the speakers, for an adapted system"),
    _THREADS,
)


@IMPORT.command(
    "data",
    option("data_dir", "folder with wav.scp, text, utt2spk"),
    option(
        "out_dir",
        "folder for the Lhotse manifests",
        type=own_folder("cuts.jsonl.gz", "recordings.jsonl.gz"),
    ),
    flag("--allow-commands", "run pipes that wav.scp names"),
    SOURCE_KEYS,
)
def _import_data(arguments: Arguments) -> None:
    """Turn a Kaldi data directory into manifests."""
    from latflow.corpus.kaldi_dir import import_kaldi_dir
    from latflow.corpus.options import KaldiSource
    from latflow.options import read_options
    from latflow.workflow.settings import nested_values, read_settings

    given = {"allow_commands": arguments.allow_commands, "path": arguments.data_dir}
    given |= nested_values(read_settings(arguments.set, "--set"))
    source = read_options(KaldiSource, given)
    import_kaldi_dir(
        arguments.data_dir,
        arguments.out_dir,
        checks=source,
        allow_commands=source.allow_commands,
    )


@EXPORT.command(
    "data",
    option("corpus_dir", "folder with the Lhotse manifests"),
    option(
        "data_dir", "Kaldi data directory to write, new or empty", type=own_folder()
    ),
)
def _export_data(arguments: Arguments) -> None:
    """Turn manifests into a Kaldi data directory."""
    from latflow.corpus.kaldi_dir import export_kaldi_dir

    export_kaldi_dir(arguments.corpus_dir, arguments.data_dir)


@IMPORT.command(
    "system",
    option("exp_dir", "folder with final.mdl and tree"),
    option("lang_dir", "lang directory it was trained with"),
    option("results", "folder of an experiment, results/<name>"),
    option("--name", "name of the system; by default as the workflow writes exp_dir's"),
    option("--graph", "folder with the decoding graph, HCLG.fst"),
    option("--frames", "frames of the training data, to take over its alignments"),
    *RECIPE,
)
def _import_system(arguments: Arguments) -> None:
    """Turn an exp/<system> and its lang directory into gmm/, lang/, graph/, align/."""
    from latflow.gmm.kaldi_import import (
        import_alignments,
        import_graph,
        import_system,
    )
    from latflow.lang.prepare import import_lang
    from latflow.workflow.systems import name_of_import

    features = read_recipe(arguments, otherwise="demo").options.features
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


@EXPORT.command(
    "system",
    option("system_dir", "results/<name>/gmm/<system>"),
    option("lang_dir", "results/<name>/lang"),
    option("out_dir", "directory to write, new or empty", type=own_folder()),
    option("--graph", "decoding graph, HCLG.fst"),
    option("--alignments", "ali.ark of the training data"),
    option("--transforms", "trans.ark of its speakers"),
    option("--frames", "frames of the training data: its speakers, normalization"),
    option("--num-jobs", "pieces of archives", 1),
    flag("--training-graphs", "write fsts.N.gz too; needs --frames"),
    _THREADS,
)
def _export_system(arguments: Arguments) -> None:
    """Turn a system into an exp/<system>."""
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


@IMPORT.command(
    "vosk",
    option("model_dir", "model folder of Vosk: am/, graph/, conf/, ivector/"),
    option("results", "folder of an experiment, results/<name>"),
    option(
        "--name", "name of the system; by default as the workflow writes model_dir's"
    ),
    option("--lang", "lang directory of the graph; by default made of what is there"),
    option("--g2p", "G2P model with its phones, for words that sessions bring"),
    example="import-kaldi vosk vosk-model results/mine --name chain",
)
def _import_vosk(arguments: Arguments) -> None:
    """Turn a model folder of Vosk into nnet/, graph/, lang/, ... and package/."""
    from latflow.serving.vosk_import import import_vosk
    from latflow.workflow.systems import name_of_import

    import_vosk(
        arguments.model_dir,
        arguments.results,
        arguments.name or name_of_import(arguments.model_dir),
        lang_dir=arguments.lang,
        g2p=arguments.g2p,
    )


@EXPORT.command(
    "vosk",
    option("recipe", "recipe of the experiment, or results/<name>"),
    option("system", "LF-MMI network, or one trained on top of it"),
    option("out_dir", "model folder to write, new or empty", type=own_folder()),
    *RECIPE[1:],
    example="export-kaldi vosk results/mine chain model",
)
def _export_vosk(arguments: Arguments) -> None:
    """Turn an LF-MMI network into a model folder of Vosk."""
    from latflow.corpus.manifests import read_cuts
    from latflow.decode.options import SearchOptions
    from latflow.decode.vosk import VoskFiles, export_vosk
    from latflow.workflow.frames import IvectorFrames

    recipe, results = read_recipe(arguments), results_folder(arguments)
    base, features, cmvn = _plain_features(recipe, arguments.system)
    network = recipe.networks[arguments.system]
    rate = features.sample_rate
    if rate is None:
        rate = next(read_cuts(results / "corpus/train/cuts.jsonl.gz")).sampling_rate
    extractor = results / f"ivectors/{network.frames.name}/extractor.npz"
    files = VoskFiles(
        model_dir=results / "nnet" / arguments.system,
        lang_dir=results / Path(network.lang_folder).name,
        graph=results / "graph" / network.tree_owner.name / "HCLG.fst",
        frames_dir=results / f"streams/{base}/frames/train",
        ivectors=extractor if isinstance(network.frames, IvectorFrames) else None,
    )
    export_vosk(
        files,
        arguments.out_dir,
        features=features,
        sample_rate=rate,
        search=recipe.options.decode.part(SearchOptions),
        acoustic_scale=network.scores_options["acoustic_scale"] or 1.0,
        cmvn=cmvn,
    )


def _plain_features(
    recipe: Recipe, network: str
) -> tuple[str, ExtractionOptions, OnlineCmvn | None]:
    """Return how a network's features are computed of a signal alone.

    I-vectors that follow them are left out.

    Returns:
        The stream of the features; their computation; their normalization, None for
        none.

    Raises:
        UserError: there is no such network; or its features depend on an utterance or a
            speaker as a whole, or are a GMM system's.
    """
    from latflow.features.cmvn_options import NoCmvn, OnlineCmvn
    from latflow.features.options import ExtractionOptions
    from latflow.workflow.frames import ExtractedFrames, IvectorFrames

    if network not in recipe.networks:
        known = ", ".join(recipe.networks) or "none"
        raise UserError(
            f"the recipe has no network {network}", remedy=f"its networks: {known}"
        )
    frames = recipe.networks[network].frames
    below = frames.below if isinstance(frames, IvectorFrames) else frames
    if not isinstance(below, ExtractedFrames):
        raise UserError(
            f"network {network} reads {below.name}: HDF5 files, what a GMM system "
            "makes of features, or several features side by side",
            remedy="train one on features of nnet.features",
        )
    found = below.options
    cmvn = None if isinstance(found.cmvn, NoCmvn) else found.cmvn
    if not isinstance(cmvn, OnlineCmvn | None):
        raise UserError(
            f"network {network} reads features with cmvn of type {found.cmvn.type}, "
            "which Vosk does not compute",
            remedy="train one on features of nnet.features with cmvn: {type: online}, "
            "or none",
        )
    if not isinstance(found, ExtractionOptions):
        raise UserError(
            f"network {network} reads features of the extractor {found.extractor}, "
            "which Vosk does not compute",
            remedy="train one on features of type mfcc or fbank",
        )
    return below.name, found.extraction, cmvn


@EXPORT.command("features", *_ARCHIVE)
def _features(arguments: Arguments) -> None:
    """Write features as a system's model takes them."""
    from latflow.gmm.apply import write_features

    _write_archive(write_features, arguments)


@COMMANDS.command("loglikes", *_ARCHIVE)
def _log_likes(arguments: Arguments) -> None:
    """Write log-likelihoods of all pdfs as Kaldi's archive."""
    from latflow.gmm.apply import write_log_likes

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
