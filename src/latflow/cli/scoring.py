"""The command that counts the word errors of transcripts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latflow.cli.commands import Arguments, Group, flag, option
from latflow.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from latflow.corpus.words import WordForms

COMMANDS = Group()
log = logging.getLogger(__name__)
_EXAMPLES = 3  # that a message names
_CONFUSIONS = 5  # of each kind that are printed


@COMMANDS.command(
    "score",
    option(
        "references",
        "correct transcripts: a folder with one in each .txt, .lab, .TextGrid, .vtt "
        "or .srt file, a Kaldi directory or text, NIST's .trn, or a table (.csv, .tsv, "
        ".jsonl) with the columns id or path, and text",
    ),
    option(
        "hypotheses",
        "recognized transcripts, likewise; a reference without one counts as deleted",
    ),
    option(
        "--lexicon",
        "package, lexicon or words.txt: references take on its spelling, as the "
        "transcripts of a recipe do (case, punctuation, ...; docs/texts.md)",
    ),
    option(
        "--alignment",
        "costs of the alignment: Kaldi's compute-wer, or NIST's sclite",
        "kaldi",
        choices=("kaldi", "sclite"),
    ),
    flag("--fold-case", "words that differ only in case are equal"),
    flag("--characters", "count errors of characters (CER), blanks aside"),
    option("--speakers", "Kaldi's utt2spk, for the interval and a table by speaker"),
    option("--out", "folder for wer.json and tables of utterances, speakers, errors"),
    example="score recordings/ texts/ --lexicon results/demo/package/chain",
)
def _score(arguments: Arguments) -> None:
    """Print the word error rate of transcripts, whatever recognized them."""
    from latflow.files import write_json
    from latflow.scoring import results, texts
    from latflow.scoring.options import BootstrapOptions, ComparisonOptions

    references = texts.read_texts(arguments.references)
    hypotheses = texts.read_texts(arguments.hypotheses)
    matched, missing, unknown = texts.match_names(references, hypotheses)
    _warn(missing, "references without a hypothesis, which count as deleted")
    _warn(unknown, "hypotheses without a reference, left out")
    is_cer = arguments.characters
    forms = _forms(arguments.lexicon)
    words = texts.words_of(references, forms, by_character=is_cer)
    recognized = texts.words_of(matched, None, by_character=is_cer)
    options = ComparisonOptions(
        alignment=arguments.alignment, fold_case=arguments.fold_case
    )
    speakers = _speakers(arguments.speakers, references)
    scores = results.score_utterances(words, recognized, speakers, options=options)
    summary = results.summary(scores, options=BootstrapOptions(), seed=0)
    unit = "characters" if is_cer else "words"
    sys.stdout.write(_rendered(scores, summary, unit))
    if forms is None and not is_cer:
        spelled = texts.differences_of_spelling(words, recognized)
        what = "reference words that differ from recognized ones in case or punctuation"
        _warn(spelled, f"{what} alone, see --lexicon")
    if arguments.out is not None:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        results.write_tables(folder, scores, sys.maxsize)
        known = {"unit": unit, "alignment": options.alignment, "missing": missing}
        write_json(folder / "wer.json", {**summary, **known})


def _warn(names: list[str], what: str) -> None:
    """Warn of utterances or words, if there are any."""
    if names:
        log.warning("%s: %d (%s)", what, len(names), ", ".join(names[:_EXAMPLES]))


def _forms(lexicon: str | None) -> WordForms | None:
    """Return what spells the references; None where they stay as written."""
    if lexicon is None:
        return None
    from latflow.corpus.words import WordForms
    from latflow.lang.vocabulary import read_vocabulary

    path = Path(lexicon)
    words, _ = read_vocabulary(path / "lang/words.txt" if path.is_dir() else path)
    return WordForms(words)


def _speakers(path: str | None, utterances: dict[str, str]) -> dict[str, str]:
    """Return the speaker of each utterance; without a file each has its own."""
    if path is None:
        return {name: name for name in utterances}
    from latflow.scoring.transcripts import read_text

    speakers = {name: " ".join(words) for name, words in read_text(path).items()}
    for name in utterances:
        if not speakers.get(name):
            raise UserError(
                "no speaker of this utterance",
                file=path,
                utterance=name,
                remedy="write a line for it: utterance speaker",
            )
    return speakers


def _rendered(scores: pd.DataFrame, summary: dict[str, Any], unit: str) -> str:
    """Return the rate, its interval, and the most frequent errors, in lines."""
    from latflow.scoring import results

    bounds = summary["confidence_interval"]
    name = "WER" if unit == "words" else "CER"
    rate = f"no {unit} in the references"
    if summary["wer"] is not None:
        rate = f"{summary['wer']:.2f} % [{bounds['low']:.2f}, {bounds['high']:.2f}]"
    lines = [
        f"{name} {rate}: {summary['ins']} inserted, {summary['del']} deleted, "
        f"{summary['sub']} substituted of {summary['words']} {unit}",
        f"utterances with errors: {summary['sentence_errors']} of "
        f"{summary['sentences']}",
    ]
    confusions = results.confusions(scores)
    for kind, title in ("sub", "substituted"), ("del", "deleted"), ("ins", "inserted"):
        confused = confusions[confusions["kind"] == kind].head(_CONFUSIONS)
        pairs = [
            f"{hypothesis if kind == 'ins' else reference}"
            + (f" > {hypothesis}" if kind == "sub" else "")
            + f" {count}"
            for _, reference, hypothesis, count in confused.itertuples(index=False)
        ]
        if pairs:
            lines.append(f"most often {title}: {', '.join(pairs)}")
    return "\n".join(lines) + "\n"
