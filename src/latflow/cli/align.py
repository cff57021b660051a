"""Commands of forced alignment: align a corpus, look it over."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latflow.align.forms import EXPORT_FORMATS
from latflow.cli.commands import (
    PACKAGE_FOLDER,
    SOURCE_KEYS,
    Arguments,
    Group,
    Option,
    flag,
    option,
)
from latflow.errors import UserError

if TYPE_CHECKING:
    from latflow.lang.options import LangOptions

ALIGN = Group()

_CORPUS = option(
    "corpus",
    "folder of audio with .txt, .lab, .TextGrid, .srt or .vtt files, table (.csv, "
    ".tsv, .jsonl), Kaldi data directory, or folder with Lhotse's manifests",
)
_LEXICON = option(
    "lexicon",
    "pronunciations, WORD PHONE PHONE ... lines (.gz too); or MFA's YAML with "
    "dictionaries of speakers",
)
_TOKENIZER = option(
    "--tokenizer",
    "words of transcripts: between blanks; characters (one each, of scripts without "
    "case); icu (PyICU); or a function, file.py:name",
)
_SOURCE: tuple[Option, ...] = (
    option(
        "--speaker",
        "who speaks: as the corpus says, each utterance its own, or all one",
        choices=("given", "utterance", "single"),
    ),
    option(
        "--speaker-by",
        "of a folder: the speaker is the folder, the TextGrid's tier, or the name's "
        "beginning",
        choices=("folder", "tier", "prefix"),
    ),
    option("--tiers", "of TextGrids: those with transcripts", nargs="+"),
    _TOKENIZER,
    option("--audio", "of a table: folder that its paths are relative to"),
    SOURCE_KEYS,
)
_MAX_SKIPPED = option(
    "--max-skipped", "share of the utterances that may be skipped", 0.05
)
_G2P = option(
    "--g2p",
    "pronunciations of words that the lexicon lacks, by a model of latflow g2p train, "
    "or `train` for one that learns from the lexicon",
    metavar="MODEL|train",
)
CORES = option("--cores", "processor cores to use; all by default", os.cpu_count() or 1)
_EXAMPLES = """align recordings/ lexicon.txt aligned
  latflow align train.tsv lexicon.txt aligned --audio clips
  latflow align more/ lexicon.txt more_aligned --model aligned/package
  latflow align recordings/ lexicon.txt aligned --model results/mine/package/chain"""
_PRODUCTS = (
    *("textgrid", "short_textgrid", "mfa_json", "csv", "words.ctm", "phones.ctm"),
    *("alignments.jsonl", "alignment_analysis.csv", "export.json"),
)


@ALIGN.command(
    "align",
    _CORPUS,
    _LEXICON,
    option("out", "folder for the alignments, and for what is made on the way"),
    option("--model", "model package that aligns; else systems trained on the corpus"),
    flag("--adapt", "adapt the package, of a GMM system, to the corpus before"),
    option(
        "--device",
        "of the package's network; by default a GPU where torch finds one",
        "auto",
        choices=("auto", "cpu", "cuda"),
    ),
    flag("--trust-code", "run code that the package names"),
    option(
        "--boundaries",
        "times of phones: refined in short windows of the audio, or those of frames",
        "refined",
        choices=("refined", "frames"),
    ),
    option(
        "--formats",
        "forms of the alignments: a TextGrid, table or MFA's JSON of each recording; "
        "CTM, JSON lines and MFA's alignment_analysis.csv of all",
        ["textgrid", "ctm", "json", "analysis"],
        nargs="+",
        choices=EXPORT_FORMATS,
    ),
    option("--beam", "of the search for each utterance", 10.0),
    option("--retry-beam", "of the second attempt; others follow by themselves", 40.0),
    CORES,
    _MAX_SKIPPED,
    flag("--clean", "begin again: remove what earlier runs left in the folder"),
    flag("--dry-run", "say what would be done"),
    _G2P,
    *_SOURCE,
    example=_EXAMPLES,
)
def _align(arguments: Arguments) -> int:
    """Align a corpus: TextGrids, CTM and JSON with times of words and phones."""
    from latflow.workflow.aligning import (
        AligningPackage,
        align_recipe,
        g2p_settings,
        run_recipe,
    )
    from latflow.workflow.doctor import render
    from latflow.workflow.recipe import Recipe

    if arguments.cores < 1:
        raise UserError(f"--cores {arguments.cores}: it begins at 1")
    out = Path(os.path.abspath(arguments.out))
    g2p = g2p_settings(arguments.g2p)
    source, findings, survey = _surveyed(arguments, _lang_options(g2p))
    sys.stdout.write(f"{render(findings)}\n")
    if any(finding.severity == "error" for finding in findings):
        sys.stdout.write("fix the errors, then run the command again\n")
        return 1
    speakers = len(survey.speakers)
    sys.stdout.write(
        f"{survey.num_utterances} utterances, {survey.hours_text()}, "
        f"{speakers} speaker{'s' if speakers != 1 else ''}\n"
    )
    _check_package(arguments.model, adapts=arguments.adapt, device=arguments.device)
    package = None
    if arguments.model is not None:
        package = AligningPackage(
            arguments.model,
            adapts=arguments.adapt,
            trust_code=arguments.trust_code,
            device=arguments.device,
        )
    if arguments.clean and not arguments.dry_run:
        _remove_runs(out)
    recipe = align_recipe(
        source,
        arguments.lexicon,
        survey,
        package=package,
        g2p=g2p,
        search={"beam": arguments.beam, "retry_beam": arguments.retry_beam},
        export={"boundaries": arguments.boundaries, "formats": arguments.formats},
        max_skipped_fraction=arguments.max_skipped,
    )
    Recipe.from_config(recipe)
    sys.stdout.flush()
    is_dry = arguments.dry_run
    status = run_recipe(
        recipe, out, cores=arguments.cores, stream=sys.stdout, is_dry=is_dry
    )
    if status:
        sys.stdout.write(
            "Run the command again when that is mended: what that does not change is "
            "kept.\n"
        )
    elif not is_dry:
        _show(out, recipe)
    return status


def _remove_runs(out: Path) -> None:
    """Remove what earlier runs left in the folder.

    Raises:
        UserError: it has results of an experiment, which are not alignments.
    """
    from latflow.workflow.aligning import EXPERIMENT

    results = out / "results"
    others = {p.name for p in results.iterdir()} if results.is_dir() else set()
    if others := sorted(others - {EXPERIMENT, ".cache"}):
        raise UserError(
            "is of another experiment: --clean would remove it",
            file=results / others[0],
            remedy="align into a separate folder",
        )
    if (results / EXPERIMENT).is_dir():  # else Snakemake's folder is not of ours
        for folder in (results, out / ".snakemake"):
            shutil.rmtree(folder, ignore_errors=True)


@ALIGN.command(
    "align-one",
    option("audio", "the recording"),
    option("text", "its transcript: .txt, .lab or .TextGrid"),
    _LEXICON,
    option("model", "model package that aligns"),
    option(
        "out",
        "file to write, .TextGrid, or .csv or .json as MFA's; standard output without",
        nargs="?",
    ),
    option("--speaker", "who speaks, where the lexicon names dictionaries of speakers"),
    _TOKENIZER,
    option("--beam", "of the search", 10.0),
    option("--retry-beam", "of the second attempt; others follow by themselves", 40.0),
    flag("--short", "write the short form of a TextGrid"),
    flag("--trust-code", "run code that the package names"),
    example="align-one talk.wav talk.txt lexicon.txt english talk.TextGrid",
)
def _align_one(arguments: Arguments) -> None:
    """Align one recording with a package, at once: words and phones in a TextGrid."""
    from latflow.files import write_text
    from latflow.gmm.options import AlignAdaptedOptions
    from latflow.lang.speaker_dictionaries import SpeakerDictionaries
    from latflow.serving.align_one import RecordingAligner
    from latflow.serving.aligning import load_aligner

    _check_package(arguments.model)
    forms = {".TextGrid": "textgrid", ".csv": "csv", ".json": "mfa_json"}
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None and out.suffix not in forms:
        raise UserError(
            "a form that is not known",
            file=out,
            remedy=f"let its name end in {', '.join(forms)}",
        )
    form: Any = "textgrid" if out is None else forms[out.suffix]
    if arguments.short and form == "textgrid":
        form = "short_textgrid"
    search = {"beam": arguments.beam, "retry_beam": arguments.retry_beam}
    package = load_aligner(arguments.model, trust_code=arguments.trust_code)
    lexicon = SpeakerDictionaries.find(arguments.lexicon).of(arguments.speaker)
    aligner = RecordingAligner(
        *(package, lexicon, AlignAdaptedOptions(**search)),
        tokenizer=arguments.tokenizer or "blanks",
    )
    found, noise = aligner.write(Path(arguments.audio), Path(arguments.text), form)
    if noise:
        sys.stderr.write(
            f"aligned as noise, since the lexicon lacks them: {', '.join(noise)}\n"
        )
    if out is None:
        sys.stdout.write(found)
    else:
        write_text(out, found)


def _check_package(
    model: str | None, *, adapts: bool = False, device: str = "auto"
) -> None:
    """Refuse a package that is not there, or is not of a kind that options ask for."""
    from latflow.serving.package_info import read_info

    if model is not None and not Path(model).is_dir():
        raise UserError(
            "no folder of a package",
            file=model,
            remedy="latflow package writes one, latflow import-mfa one of MFA's models",
        )
    if adapts:
        if model is None:
            raise UserError(
                "--adapt changes a package, and none is named",
                remedy="name it with --model; without one, systems are trained on the "
                "corpus",
            )
        from latflow.serving.adapting import check_adaptable

        check_adaptable(read_info(model), model)
    if device != "auto" and (model is None or read_info(model).kind == "gmm"):
        raise UserError(
            "--device is of a network, and none aligns",
            remedy="leave it out, or name the package of a network with --model",
        )


def _surveyed(
    arguments: Arguments, lang: LangOptions
) -> tuple[dict[str, Any], list[Any], Any]:
    """Return the source of a corpus, findings about it, and what was counted."""
    from latflow.workflow.aligning import survey_corpus
    from latflow.workflow.layout import find_source
    from latflow.workflow.settings import nested_values, read_settings

    settings: dict[str, Any] = {}
    for key in ("speaker", "speaker_by", "tiers", "audio", "tokenizer"):
        if (value := getattr(arguments, key)) is not None:
            settings[key] = value
    settings.update(nested_values(read_settings(arguments.set, "--set")))
    source = find_source(arguments.corpus, settings)
    findings, survey = survey_corpus(
        source,
        arguments.lexicon,
        lang,
        max_skipped_fraction=arguments.max_skipped,
    )
    return source, findings, survey


def _lang_options(g2p: Mapping[str, Any]) -> LangOptions:
    """Return how the lexicon is read and completed, by section `lang.g2p`."""
    from latflow.lang.options import LangOptions
    from latflow.options import read_options

    return read_options(LangOptions, {"g2p": g2p}, "lang")


def _show(out: Path, recipe: Mapping[str, Any]) -> None:
    """Link the results into the folder, and report them."""
    import json

    from latflow.workflow.aligning import ALIGNER
    from latflow.workflow.recipe import PACKAGED

    results = out / f"results/{recipe['experiment']}"
    is_packaged = "package" in recipe["export_alignments"]
    made = results / f"alignments/{PACKAGED if is_packaged else ALIGNER}/train"
    is_adapted = "adapt" in recipe["export_alignments"]
    package = results / ("adapted/train" if is_adapted else f"package/{ALIGNER}")
    generated = results / "g2p/generated.tsv"
    for target in (*(made / name for name in _PRODUCTS), package, generated):
        link = out / ("package" if target == package else target.name)
        if link.is_symlink():
            link.unlink()
        if target.exists() and not link.exists():
            link.symlink_to(os.path.relpath(target, out))
    record = json.loads((made / "export.json").read_text(encoding="utf-8"))
    sys.stdout.write(
        f"{record['utterances']} utterances of {record['recordings']} recordings are "
        f"aligned: {out / 'textgrid' if (out / 'textgrid').exists() else out}\n"
    )
    if record["not_aligned"]:
        names = ", ".join(record["not_aligned"][:5])
        sys.stdout.write(
            f"{len(record['not_aligned'])} could not be aligned: {names} "
            f"(why: ledger.jsonl files below {out / 'results'})\n"
        )
    if pauses := record["long_pauses"]:
        where = ", ".join(
            f"{p['recording']} {p['start']:.1f} to {p['end']:.1f} s" for p in pauses[:5]
        )
        sys.stdout.write(
            f"{len(pauses)} long times without a word, maybe not transcribed: {where}"
            f"{' (all: export.json)' if len(pauses) > 5 else ''}\n"
        )
    if is_adapted or not is_packaged:
        sys.stdout.write(
            f"other recordings can be aligned with these models: --model "
            f"{out / 'package'}\n"
        )


@ALIGN.command(
    "import-mfa",
    option(
        "model",
        "acoustic model of Montreal Forced Aligner: zip file, folder, or its name in "
        "MFA's own folder of downloads",
    ),
    option("out", "folder for the package", type=PACKAGE_FOLDER),
    example="import-mfa english_us_arpa.zip english",
)
def _import_mfa(arguments: Arguments) -> None:
    """Turn a model of Montreal Forced Aligner into a package that aligns."""
    from latflow.serving.mfa_import import import_mfa

    import_mfa(arguments.model, arguments.out)


@ALIGN.command(
    "validate",
    _CORPUS,
    _LEXICON,
    _MAX_SKIPPED,
    _G2P,
    *_SOURCE,
    example="validate recordings/ lexicon.txt",
)
def _validate(arguments: Arguments) -> int:
    """Look a corpus and a lexicon over before they are aligned; status 1 for errors."""
    from latflow.workflow.aligning import g2p_settings
    from latflow.workflow.doctor import render

    lang = _lang_options(g2p_settings(arguments.g2p))
    source, findings, survey = _surveyed(arguments, lang)
    sys.stdout.write(
        f"{source['type']}: {survey.num_utterances} utterances, "
        f"{survey.hours_text()}, {len(survey.speakers)} speakers, "
        f"{survey.num_words} words\n{render(findings)}\n"
    )
    if arguments.g2p is not None and survey.oov:
        _show_pronunciations(arguments.lexicon, sorted(survey.oov), lang)
    return int(any(finding.severity == "error" for finding in findings))


@ALIGN.command(
    "find-oovs",
    _CORPUS,
    _LEXICON,
    *_SOURCE,
    example="find-oovs recordings/ lexicon.txt > missing.tsv",
)
def _find_oovs(arguments: Arguments) -> int:
    """Print all words without pronunciation: the word, how often, the utterances."""
    from latflow.corpus.dictionaries import parted_word
    from latflow.lang.options import LangOptions
    from latflow.workflow.doctor import render

    arguments.max_skipped = 1.0
    _, findings, survey = _surveyed(arguments, LangOptions())
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        sys.stderr.write(f"{render(errors)}\n")
    for word, count in sorted(survey.oov.items(), key=lambda item: (-item[1], item[0])):
        plain, dictionary = parted_word(word)
        row = [plain, str(count), " ".join(survey.oov_utterances[word])]
        row += [dictionary or "default"] if survey.dictionaries else []
        sys.stdout.write("\t".join(row) + "\n")
    return int(bool(errors))


def _show_pronunciations(lexicon: str, words: list[str], options: LangOptions) -> None:
    """Print the pronunciations that words of the corpus get."""
    from latflow.lang.completion import pronounce_words

    model = options.g2p.model
    found = pronounce_words(
        Path(lexicon), words, options, None if model is None else Path(model)
    )
    sys.stdout.write("pronunciations of words that the lexicon lacks, generated:\n")
    for word, guesses in zip(words, found, strict=True):
        for guess in guesses:
            sys.stdout.write(f"{word} {' '.join(guess.phones)}\n")
        if not guesses:
            sys.stdout.write(f"{word} (none: noise)\n")
