"""Commands about finished models: package them, use them."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.cli.commands import (
    PACKAGE_FOLDER,
    RECIPE,
    Arguments,
    Group,
    Option,
    file_name,
    flag,
    named_experiment,
    option,
    options_of,
    own_folder,
    read_flags,
    read_recipe,
)
from latflow.errors import UserError
from latflow.interruption import reporting_termination

if TYPE_CHECKING:
    from latflow.serving.load_report import LoadReport
    from latflow.serving.options import LanguageOptions, LoadOptions

log = logging.getLogger(__name__)
SERVING = Group()


@SERVING.command(
    "load-test",
    option("url", "ws://host:port, wss://host:port or grpc://host:port/model"),
    option(
        "audio", "audio files, Kaldi data directories, or manifests of cuts", nargs="+"
    ),
    option("--sessions", "clients at the same time; the first try of a search", 1),
    flag("--real-time", "send at the speed of speech"),
    option("--seconds", "duration of a run in real time", 20.0),
    option("--iterations", "how often the set is sent where not in real time", 1),
    option("--chunk", "seconds of speech in a message", 0.1),
    option("--patience", "greatest wait for a final, seconds", 30.0),
    option("--utterances", "greatest number that is read", 500),
    flag("--find-capacity", "search the largest number of sessions that holds --p95"),
    option("--p95", "greatest latency of 95 of 100 finals, milliseconds", 120.0),
    option("--soak", "minutes beside clients that misbehave (docs/load-test.md)", 0.0),
    option("--misbehaving", "number of them", 4),
    option("--pid", "the server's first process, to watch its memory", type=int),
    option("--token", "bearer token of the server"),
    option("--json", "file for all figures"),
    option("--csv", "file for all utterances"),
    example="load-test ws://localhost:2700 data/test --sessions 20 --real-time",
)
def _load_test(arguments: Arguments) -> int:
    """Load a server with many clients; status 1 where a final is lost."""
    from latflow.files import write_json
    from latflow.options import read_options
    from latflow.serving.load_report import format_reports, write_csv
    from latflow.serving.load_test import load_server
    from latflow.serving.options import LoadOptions

    given = vars(arguments)
    names = LoadOptions.model_fields.keys() & given
    options = read_options(LoadOptions, {name: given[name] for name in names})
    if arguments.soak:
        return _soak(arguments, options.replace(seconds=60 * arguments.soak))

    def show(report: LoadReport) -> None:
        sys.stderr.write(f"{report}\n")

    run = load_server(
        arguments.url,
        arguments.audio,
        options=options,
        utterances=arguments.utterances,
        p95=arguments.p95 / 1000 if arguments.find_capacity else None,
        token=arguments.token,
        on_report=show,
    )
    if not any(report.utterances for report in run.reports):
        raise UserError(
            f"no utterance ended within {options.seconds:g} s",
            remedy="give shorter ones, or more time (--seconds)",
        )
    sys.stdout.write(format_reports(run.reports))
    if run.capacity is not None:
        sys.stdout.write(f"capacity {run.capacity}\n")
    if arguments.json is not None:
        write_json(arguments.json, run.values())
    if arguments.csv is not None:
        write_csv(arguments.csv, run.exchanges)
    lost = run.capacity is None and run.reports[-1].errors
    return 1 if lost or run.capacity == 0 else 0


@SERVING.command(
    "package",
    option("system", "trained system of the recipe"),
    option("--results", "folder of the experiment; results/<experiment> by default"),
    option(
        "--out",
        "folder to write; <results>/package/<system> by default",
        type=PACKAGE_FOLDER,
    ),
    flag("--offline", "package a system, too, that cannot be streamed"),
    *RECIPE,
    example="package chain mine.yaml",
)
def _package(arguments: Arguments) -> None:
    """Write a trained system as a folder that needs nothing else."""
    from latflow.options import read_options
    from latflow.serving.packaging import PackageFiles, PackageOptions, write_package
    from latflow.workflow.packages import ONE_VOLUME, PackagePlan

    recipe = read_recipe(arguments)
    results = arguments.results or f"results/{recipe.experiment}"
    plan = PackagePlan(recipe, arguments.system, arguments.offline or None)
    plan.check()
    if plan.knows_one_volume:
        log.warning("%s: %s - %s", arguments.system, *ONE_VOLUME)
    out = Path(arguments.out or f"{results}/package/{arguments.system}")
    given = {
        name: _below(Path(file), recipe.results, results)
        for name, file in plan.files.items()
        if isinstance(file, str)
    }
    folders = {"model", "lang", "frames"} & given.keys()
    _check_trained(given, arguments.system, named_experiment(arguments))
    files = PackageFiles(
        **{k: v for k, v in given.items() if k not in folders},
        **{f"{k}_dir": given[k].parent for k in folders},
    )
    options = read_options(PackageOptions, plan.package_options)
    write_package(files, out, options=options)
    sys.stdout.write(f"package: {out}\n")


def _check_trained(files: Mapping[str, Path], system: str, recipe: str | None) -> None:
    """Refuse to package what is not made yet, naming the command that makes it.

    Raises:
        UserError: a file is missing.
    """
    missing = [path for path in files.values() if not path.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        targets = shlex.join([*([recipe] if recipe else []), *map(str, missing)])
        raise UserError(
            f"{system} lacks {missing[0]}{more}",
            remedy=f"latflow run {targets} makes what is missing",
        )


def _below(file: Path, results: str, other: str) -> Path:
    """Return a file of a results folder in another folder that it was moved to."""
    is_inside = file.is_relative_to(results)
    return Path(other, file.relative_to(results)) if is_inside else file


def _soak(arguments: Arguments, options: LoadOptions) -> int:
    """Load a server for long beside clients that misbehave."""
    from latflow.files import write_json
    from latflow.serving.load_report import format_reports
    from latflow.serving.soak import soak_server

    report = soak_server(
        arguments.url,
        arguments.audio,
        options=options,
        misbehaving=arguments.misbehaving,
        process=arguments.pid,
        utterances=arguments.utterances,
        token=arguments.token,
    )
    faults = ", ".join(f"{name} {count}" for name, count in report.faults.items())
    sys.stdout.write(f"{format_reports([report.load])}misdeeds: {faults}\n")
    if report.slope is not None:
        sys.stdout.write(f"memory {report.slope:+.1f} MB an hour\n")
    if arguments.json is not None:
        write_json(arguments.json, report.values())
    return 1 if report.load.errors else 0


@SERVING.command(
    "transcribe",
    option("package", "model package"),
    option("inputs", "audio files, folders of them, - for standard input", nargs="+"),
    option("--out", "folder for the results; one file alone can be printed"),
    option(
        "--format",
        "forms of the result, with commas between them: txt, json, ctm, srt, vtt, "
        "textgrid",
        "txt",
    ),
    option(
        "--segmentation",
        "ends of segments: silence, the model's endpoint rules, or none",
        "vad",
        choices=("vad", "endpoint", "none"),
    ),
    option("--vad-threshold", "probability that is speech", 0.2),
    option("--min-silence", "shortest silence that ends a segment, seconds", 0.5),
    option("--padding", "silence that is kept around speech, seconds", 0.5),
    option("--min-speech", "shortest speech that makes a segment, seconds", 0.1),
    option("--max-segment", "longest segment, seconds", 20.0),
    option("--channel", "channel to transcribe, from 1; else their mean", type=int),
    option("--raw-rate", "standard input is 16-bit samples at this rate", type=int),
    option("--n-best", "hypotheses of a segment in the JSON", 1),
    option(
        "--lattices",
        "archive to write the lattices of all segments to",
        type=file_name,
    ),
    option(
        "--words",
        "words to add, as a lexicon; without phones where the package has a G2P model",
        type=file_name,
    ),
    option("--word-boost", "discount on the cost of each of these words", -1.0),
    option("--words-like", "words that they are like", [], nargs="+", metavar="WORD"),
    option("--phrases", "file of phrases to favour, one a line", type=file_name),
    option("--phrase-boost", "discount on each word of these phrases", 4.0),
    option(
        "--grammar",
        "grammar, a file: JSON list of phrases, or JSGF",
        type=file_name,
    ),
    option("--lm", "other language model, in ARPA form", type=file_name),
    option("--threads", "segments recognized at a time", 2),
    option("--device", "of the network", "cpu", choices=("cpu", "cuda", "auto")),
    flag("--trust-code", "run code that the package names"),
    example="transcribe results/demo/package/chain calls/ --out texts --format txt,srt",
)
@reporting_termination()
def _transcribe(arguments: Arguments) -> int:
    """Transcribe recordings with a model package."""
    from latflow.decode.options import TranscribeOptions
    from latflow.lang.jsgf import GrammarError
    from latflow.options import read_options
    from latflow.serving.package import Model
    from latflow.serving.recording import find_recordings, received
    from latflow.serving.transcribe import Fault, transcribe

    segmentation = {
        "type": arguments.segmentation,
        "threshold": arguments.vad_threshold,
        "min_silence": arguments.min_silence,
        "padding": arguments.padding,
        "min_speech": arguments.min_speech,
        "max_segment": arguments.max_segment,
    }
    values = {
        "formats": arguments.format.split(","),
        "channel": arguments.channel,
        "segmentation": segmentation,
        "max_alternatives": arguments.n_best,
    }
    options = read_options(TranscribeOptions, values, "transcribe")
    inputs = [given for given in arguments.inputs if given != "-"]
    with ExitStack() as stack:
        recordings = find_recordings(inputs)
        if "-" in arguments.inputs:
            recordings.append(stack.enter_context(received(arguments.raw_rate)))
        model = Model.load(
            arguments.package, device=arguments.device, trust_code=arguments.trust_code
        )
        try:
            found = transcribe(
                model,
                recordings,
                options=options,
                language=_language(arguments),
                out_dir=Path(arguments.out) if arguments.out else None,
                lattices=Path(arguments.lattices) if arguments.lattices else None,
                threads=arguments.threads,
            )
        except GrammarError as error:
            raise error.at(file=arguments.grammar) from error
    bad = sum(isinstance(result, Fault) for result in found)
    if bad:
        sys.stderr.write(f"{bad} of {len(found)} recordings could not be transcribed\n")
    return int(bad > 0)


def _language(arguments: Arguments) -> LanguageOptions:
    """Return what recordings are recognized with beside the package."""
    from latflow.lang.lexicon import read_new_words
    from latflow.options import read_options
    from latflow.serving.options import LanguageOptions
    from latflow.text_files import read_lines

    lines = read_lines(arguments.phrases) if arguments.phrases else ()
    grammar = ""
    if arguments.grammar:
        grammar = "\n".join(line for _, line in read_lines(arguments.grammar))
        if not grammar.strip():
            raise UserError(
                "the grammar is empty",
                file=arguments.grammar,
                remedy="write the phrases of the grammar, or leave --grammar out",
            )
    values = {
        "new_words": read_new_words(arguments.words) if arguments.words else (),
        "word_boost": arguments.word_boost,
        "words_like": arguments.words_like,
        "phrases": [line.strip() for _, line in lines if line.strip()],
        "phrase_boost": arguments.phrase_boost,
        "grammar": grammar,
        "lm": arguments.lm or "",
    }
    return read_options(LanguageOptions, values, "transcribe")


def _server_options() -> tuple[Option, ...]:
    from latflow.serving.options import ServerOptions

    return options_of(ServerOptions)


@SERVING.command(
    "serve",
    option(
        "packages",
        "folders of packages; clients choose by `model`, the first is for all others",
        nargs="+",
    ),
    option("--chunk-length", "speech that is scored at a time, seconds", 0.24),
    option(
        "--segmentation",
        "ends of segments of a stream: silence, or the model's endpoint rules",
        "vad",
        choices=("vad", "endpoint"),
    ),
    option("--vad-threshold", "probability that is speech", 0.2),
    option("--min-silence", "shortest silence that ends a segment, seconds", 0.5),
    _server_options,
    example="serve packages/tdnnf --host 0.0.0.0 --workers 4 --token-file token",
)
def _serve(arguments: Arguments) -> None:
    """Serve packages: Vosk's websocket protocol, OpenAI's transcriptions, a page."""
    from latflow.options import read_options
    from latflow.serving.options import ServerOptions, SessionOptions

    try:
        from latflow.serving.workers import serve
    except ModuleNotFoundError as error:
        raise UserError(
            f"the server needs {error.name}", remedy="pip install 'latflow[serve]'"
        ) from None

    def show(address: str) -> None:
        page = address.replace("ws", "http", 1)
        sys.stdout.write(
            f"listening on {address}\n"
            f"page {page}/\ntranscriptions {page}/v1/audio/transcriptions\n"
            f"realtime {address}/v1/realtime\n"
        )
        sys.stdout.flush()

    vad = {
        "threshold": arguments.vad_threshold,
        "min_silence": arguments.min_silence,
        "padding": min(0.5, arguments.min_silence),
    }
    values = {
        "chunk_length": arguments.chunk_length,
        "vad": vad if arguments.segmentation == "vad" else None,
    }
    session = read_options(SessionOptions, values)
    options = read_flags(ServerOptions, arguments)
    serve(list(map(Path, arguments.packages)), options, session, on_ready=show)


@SERVING.command(
    "triton-repository",
    option(
        "out",
        "folder of the repository, replaced as a whole",
        type=own_folder("*/config.pbtxt"),
    ),
    option(
        "packages", "model packages, each maybe with a name: NAME=PACKAGE", nargs="+"
    ),
    option(
        "--set",
        "options of all models, e.g. gpus=[0,1]; docs/triton.md lists them",
        [],
        nargs="*",
        metavar="KEY=VALUE",
    ),
    example="triton-repository models package english=other --set gpus=[0,1]",
)
def _triton_repository(arguments: Arguments) -> None:
    """Write a model repository of the Triton Inference Server."""
    import yaml

    from latflow.options import read_options
    from latflow.serving.options import TritonOptions
    from latflow.serving.package_info import read_info
    from latflow.serving.triton import write_repository

    packages = {}
    for given in arguments.packages:
        name, sign, package = given.rpartition("=")
        name = name if sign else read_info(package).name
        if name in packages:
            raise UserError(f"two models of the name {name}", remedy="give other names")
        packages[name] = package
    settings = (setting.partition("=") for setting in arguments.set)
    values = {key: yaml.safe_load(value) for key, _, value in settings}
    options = read_options(TritonOptions, values)
    write_repository(packages, arguments.out, options=options)
