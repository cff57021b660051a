"""Transcripts by name, in the forms that people have them, and their comparison.

A name is an utterance's id, or that of a recording: its path below the folder, without
the suffix, as `latflow transcribe` names its results.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from latflow.corpus.folder import read_transcript, transcript_tiers
from latflow.corpus.table import PATHS, TEXTS, table_rows
from latflow.corpus.textgrid import Interval
from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.scoring.transcripts import read_text
from latflow.text_files import read_lines

# Of several beside each other the first is taken.
_SUFFIXES = (".txt", ".lab", ".textgrid", ".vtt", ".srt")
_TIMED = {".textgrid", ".vtt", ".srt"}
_TABLES = {".csv", ".tsv", ".tab", ".jsonl"}
_IDS = ("id", "utt_id", "utterance", "utterance_id", "key", "name")
_TRN = re.compile(r"(.*)\(([^()]+)\)\s*")

Texts = dict[str, str]


def read_texts(path: str | Path) -> Texts:
    """Read the transcripts of utterances, or of recordings.

    Args:
        path: a folder with a transcript in each `.txt`, `.lab`, `.TextGrid`, `.vtt` or
            `.srt` file; a Kaldi directory, or its `text`; NIST's `.trn`; or a table
            (`.csv`, `.tsv`, `.jsonl`) with a column of paths or ids and one of texts.

    Returns:
        Name -> text, as it is written.

    Raises:
        UserError: there is no such file, none of these, one that is damaged, or two
            texts have a name in common.
    """
    path = Path(path)
    if path.is_dir() and (path / "text").is_file():
        path /= "text"
    if path.is_dir():
        named = _of_folder(path)
    elif path.suffix.lower() == ".trn":
        named = _of_trn(path)
    elif Path(path.name.removesuffix(".gz")).suffix.lower() in _TABLES:
        named = _of_table(path)
    else:
        named = ((name, " ".join(words)) for name, words in read_text(path).items())
    texts: Texts = {}
    for name, text in named:
        if texts.setdefault(name, text) is not text:
            raise UserError(
                "two transcripts have this name",
                file=path,
                utterance=name,
                remedy="remove or rename one of them",
            )
    if not texts:
        raise UserError(
            "no transcript in it",
            file=path,
            remedy="name a folder of .txt files, a Kaldi text, .trn, or a table",
        )
    return texts


def _of_folder(top: Path) -> Iterator[tuple[str, str]]:
    """Yield the transcripts of the files below a folder."""
    suffixes: dict[str, dict[str, Path]] = {}
    for path in sorted(top.rglob("*")):
        if path.suffix.lower() in _SUFFIXES and path.is_file():
            name = path.relative_to(top).with_suffix("").as_posix()
            name = unicodedata.normalize("NFC", name)
            suffixes.setdefault(name, {})[path.suffix.lower()] = path
    for name, paths in suffixes.items():
        path = next(paths[suffix] for suffix in _SUFFIXES if suffix in paths)
        yield name, _of_file(path)


def _of_file(path: Path) -> str:
    """Return the transcript that a file holds."""
    if path.suffix.lower() in _TIMED:
        tiers = transcript_tiers(path)
        # Aligners and `latflow transcribe` write tiers of words beside longer ones.
        words = [tier for tier in tiers if "word" in tier.name.lower()]
        intervals: list[Interval] = []
        for tier in words or tiers:
            intervals += tier.intervals
        return " ".join(interval.text for interval in sorted(intervals))
    return read_transcript(path)


def _of_trn(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the transcripts of a file whose lines end with the utterance in brackets.

    Source: NIST, `sclite` (format trn).
    """
    for number, line in read_lines(path):
        if not line.strip() or line.startswith(";;"):
            continue
        found = _TRN.fullmatch(line)
        if found is None:
            raise UserError(
                f"line {number} does not end with an utterance in brackets",
                file=path,
                remedy="write: words (utterance)",
            )
        yield found[2].strip(), found[1].strip()


def _of_table(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the transcripts of a table."""
    for number, row in table_rows(path):
        if isinstance(row, UserError):
            raise UserError(f"line {number}: {row.what}", file=path, remedy=row.remedy)
        titles = {str(title).strip().lower(): title for title in reversed([*row])}
        named = next((name for name in (*_IDS, *PATHS) if name in titles), None)
        text = next((name for name in TEXTS if name in titles), None)
        if named is None or text is None:
            raise UserError(
                f"line {number} has no column of ids or paths, or none of texts",
                file=path,
                remedy=f"call them {_IDS[0]} or {PATHS[0]}, and {TEXTS[0]}",
            )
        name = str(row[titles[named]])
        if named in PATHS:
            name = Path(name).with_suffix("").as_posix()
        yield unicodedata.normalize("NFC", name), str(row[titles[text]] or "")


def match_names(
    references: Texts, hypotheses: Texts
) -> tuple[Texts, list[str], list[str]]:
    """Give hypotheses the names of their references.

    Where no name is the same, those of files count without their folders, if these
    differ.

    Returns:
        (hypotheses that have a reference; names of references without a hypothesis; of
        hypotheses without a reference).

    Raises:
        UserError: no hypothesis has a reference.
    """
    known = {name: name for name in references}
    own = {name: name for name in hypotheses}
    if not references.keys() & hypotheses.keys():
        known, own = _by_last_part(references), _by_last_part(hypotheses)
    common = known.keys() & own.keys()
    if not common:
        first, other = min(references), min(hypotheses)
        raise UserError(
            f"no hypothesis has the name of a reference: {other}, {first}",
            remedy="name recordings and utterances alike",
        )
    found = {known[name]: hypotheses[own[name]] for name in sorted(common)}
    taken = {own[name] for name in common}
    return found, sorted(references.keys() - found), sorted(hypotheses.keys() - taken)


def _by_last_part(texts: Texts) -> dict[str, str]:
    """Return names by what follows their last slash; none where two have the same."""
    named = {name.rpartition("/")[2]: name for name in texts}
    return named if len(named) == len(texts) else {}


def words_of(
    texts: Mapping[str, str], forms: WordForms | None, *, by_character: bool
) -> dict[str, list[str]]:
    """Return the words of texts, or their characters but for blanks.

    Args:
        texts: by name.
        forms: the lexicon that words are spelled by; None leaves them as written, in
            one of Unicode's forms.
        by_character: characters count instead of words.
    """
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        composed = unicodedata.normalize("NFC", text)
        words = composed.split() if forms is None else forms.words(composed)
        found[name] = list("".join(words)) if by_character else words
    return found


def differences_of_spelling(
    references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return reference words that are recognized ones but for case and punctuation.

    Args:
        references, hypotheses: words by utterance, as they are written.
    """
    recognized = {word for words in hypotheses.values() for word in words}
    unknown = {word for words in references.values() for word in words} - recognized
    forms = WordForms(recognized)
    spelled = {word: forms.words(word) for word in unknown}
    return sorted(w for w, found in spelled.items() if found and {*found} <= recognized)
