"""Commands about data: features, simulated corpora, lexicons, HDF5 files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from latflow.cli.commands import (
    RECIPE,
    Arguments,
    Group,
    option,
    own_folder,
    read_recipe,
)
from latflow.errors import UserError

COMMANDS = Group()
_FRAMES = own_folder("frames.npy", "meta.json")
HDF5 = Group("hdf5", "Frames, labels and images in HDF5 files of RETURNN's layout.")


@COMMANDS.command(
    "features",
    option("cuts", "cuts.jsonl.gz"),
    option("out_dir", "folder for the features", type=_FRAMES),
    option("--threads", "parallel workers", 2),
    option("--extractor", "settings in Lhotse's form, instead of the recipe's"),
    *RECIPE,
    example="features cuts.jsonl.gz out --extractor feature_extractor.yaml",
)
def _features(arguments: Arguments) -> None:
    """Extract the features of a cut manifest: a recipe's for GMM systems, or others."""
    from latflow.features.extract import extract_features
    from latflow.features.extractor_file import read_extractor

    recipe = read_recipe(arguments, otherwise="demo")
    file = arguments.extractor
    extract_features(
        arguments.cuts,
        arguments.out_dir,
        options=read_extractor(file) if file else recipe.options.features.extraction,
        threads=arguments.threads,
        max_skipped_fraction=recipe.max_skipped_fraction,
    )


@COMMANDS.command(
    "export-features",
    option("features", "features of audio, streams/<name>/features/<split>"),
    option("cuts", "cuts of the same set, corpus/<split>/cuts.jsonl.gz"),
    option(
        "out_dir",
        "folder for cuts.jsonl.gz and storage/",
        type=own_folder("cuts.jsonl.gz", "feature_extractor.yaml"),
    ),
    option("--storage", "Lhotse's name of the storage", "numpy_hdf5"),
    option("--url", "place to store at instead, e.g. s3://bucket/folder"),
    example="export-features results/x/streams/gmm/features/test "
    "results/x/corpus/test/cuts.jsonl.gz test_features --storage lilcom_chunky",
)
def _export_features(arguments: Arguments) -> None:
    """Write cuts with features in one of Lhotse's storages.

    `numpy_hdf5` (one file) and `numpy_files` (a file an utterance) keep every bit;
    those of lilcom take a third of the space and round to multiples of 1/32. The folder
    streams/<name>/frames/<split> gives features with CMVN.
    """
    from latflow.features.storage import export_features

    export_features(
        arguments.features,
        arguments.cuts,
        arguments.out_dir,
        storage=arguments.storage,
        url=arguments.url,
    )


@COMMANDS.command(
    "simulation-records",
    option("system", "network of the recipe whose data have simulation"),
    option("frames", "features of its training set, streams/<name>/frames/train"),
    option("out", "file to write, e.g. records.jsonl"),
    option("--epoch", "epoch, as log.jsonl counts them, from 1", 1),
    option("--audio", "folder for utterances to hear: WAV, clean and simulated"),
    option("--number", "utterances that are written there, evenly from the set", 10),
    *RECIPE,
    example="simulation-records noise results/x/streams/logmel/frames/train "
    "records.jsonl --epoch 3 --audio heard",
)
def _simulation_records(arguments: Arguments) -> None:
    """Write what training draws for its utterances in an epoch, as records."""
    from latflow.files import atomic_output
    from latflow.options import check_choice
    from latflow.simulation.records import record_line
    from latflow.simulation.replay import evenly, write_audio
    from latflow.training.records import DrawnRecords

    recipe = read_recipe(arguments)
    known = [
        name
        for name, network in recipe.networks.items()
        if network.options.data.simulation is not None
    ]
    check_choice("systems with data.simulation", arguments.system, known)
    for name in ("epoch", "number"):
        if (given := getattr(arguments, name)) < 1:
            raise UserError(f"--{name} is {given}, below 1")
    drawn = DrawnRecords(
        arguments.frames,
        recipe.networks[arguments.system].options.data,
        seed=recipe.options.seed,
        epoch=arguments.epoch - 1,
    )
    with atomic_output(arguments.out) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(map(record_line, drawn))
    if arguments.audio is not None:
        chosen = evenly(range(len(drawn)), arguments.number)
        write_audio(
            map(drawn.of, chosen),
            arguments.audio,
            speech=drawn.speech,
            audio=drawn.audio,
            rate=drawn.speech.sample_rate,
        )


@COMMANDS.command(
    "lang",
    option("lexicon", "WORD PHONE PHONE ... lines"),
    option(
        "out_dir",
        "lang directory to write",
        type=own_folder("words.txt", "phones.txt", "topo"),
    ),
    *RECIPE,
)
def _lang(arguments: Arguments) -> None:
    """Make a Kaldi lang directory of a lexicon."""
    from latflow.lang.prepare import make_lang

    options = read_recipe(arguments, otherwise="demo").options.lang
    make_lang(arguments.lexicon, arguments.out_dir, options=options)


@HDF5.command(
    "export",
    option("frames", "frame store, streams/gmm/frames/<split>"),
    option("out", "HDF5 file to write"),
    option("--alignments", "ali.ark, whose pdf-ids become the target `pdf`"),
    option("--model", "folder of the system that made them"),
    option(
        "--labels",
        "label stores, by the name of the target; frames alone without any",
        [],
        nargs="*",
        metavar="NAME=FOLDER",
    ),
)
def _hdf5_export(arguments: Arguments) -> None:
    """Write a file that RETURNN's HDFDataset reads."""
    from latflow.graphs.hclg import load_model
    from latflow.training.hdf5 import export_hdf
    from latflow.training.labels import write_labels

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
            write_labels(arguments.alignments, transitions, labels["pdf"])
        export_hdf(arguments.frames, labels, arguments.out)


@HDF5.command(
    "import",
    option("files", "HDF5 files of one data set", nargs="+"),
    option("--frames", "frame store to write", required=True, type=_FRAMES),
    option(
        "--labels",
        "folder for the label stores, one a target",
        required=True,
        type=own_folder("*/meta.json"),
    ),
    option("--targets", "targets to read; all by default", nargs="*"),
    option("--sparse", "target whose labels are the frames, one number each"),
    option("--frame-shift", "seconds from frame to frame", 0.01),
)
def _hdf5_import(arguments: Arguments) -> None:
    """Read files of RETURNN's layout."""
    from latflow.training.hdf5 import import_hdf

    import_hdf(
        arguments.files,
        arguments.frames,
        arguments.labels,
        targets=arguments.targets,
        sparse=arguments.sparse,
        frame_shift=arguments.frame_shift,
    )


@HDF5.command(
    "digits",
    option(
        "out",
        "folder for train.hdf, dev.hdf, test.hdf and lexicon.txt",
        type=own_folder("train.hdf", "lexicon.txt"),
    ),
    option("--train", "images to train on", 1500),
    option("--dev", "images of the dev set", 150),
    option("--test", "images of the test set", 150),
    option("--seed", "chooses digits, fonts, sizes and noise", 1),
    example="hdf5 digits corpora/image_digits",
)
def _hdf5_digits(arguments: Arguments) -> None:
    """Draw images of digits in a row, as RETURNN's files of handwriting."""
    from latflow.corpus.image_digits import write_image_digits

    counts = {name: getattr(arguments, name) for name in ("train", "dev", "test")}
    write_image_digits(arguments.out, counts, seed=arguments.seed)
