"""Transcripts as scoring sees them: filtering words, Kaldi's text files, NIST's trn.

Public: `WordFilter`, `read_text`, `write_text`, `read_trn`, `write_trn`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines


@dataclass(frozen=True)
class WordFilter:
    """What happens to reference and hypothesis before they are compared.

    The same as Kaldi recipes' `local/wer_hyp_filter` and `wer_ref_filter`: words that
    do not count are removed from both sides.

    Attributes:
        ignore: words removed, as spelt in the language directory (silence, noise, OOV).
        fold_case: compare in lower case.
    """

    ignore: frozenset[str] = field(default_factory=frozenset)
    fold_case: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> WordFilter:
        """Make the filter that the section `score` of the configuration describes."""
        return cls(frozenset(options["ignore_words"]), options["fold_case"])

    def __call__(self, words: Iterable[str]) -> list[str]:
        """Words that count, in order."""
        kept = (word for word in words if word not in self.ignore)
        return [word.lower() for word in kept] if self.fold_case else list(kept)


def read_text(path: str | Path) -> dict[str, list[str]]:
    """Read a Kaldi `text` file: utterance id, then words.

    Raises:
        UserError: a line is empty or not UTF-8, or an id occurs twice.
    """
    texts: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        fields = line.split()
        if not fields:
            raise UserError(
                f"line {number} is empty",
                file=path,
                remedy="each line is an utterance id and its words",
            )
        _add(texts, fields[0], fields[1:], path)
    return texts


def write_text(path: str | Path, texts: Mapping[str, Sequence[str]]) -> None:
    """Write a Kaldi `text` file, sorted by utterance id, atomically."""
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.writelines(
            " ".join([utterance, *texts[utterance]]) + "\n"
            for utterance in sorted(texts)
        )


def read_trn(path: str | Path) -> dict[str, list[str]]:
    """Read a NIST transcript file: words, then the utterance id in parentheses.

    Raises:
        UserError: a line does not end in an id in parentheses, or an id occurs twice.
    """
    texts: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        words, sign, rest = line.rstrip().rpartition("(")
        if not sign or not rest.endswith(")") or not rest[:-1].strip():
            raise UserError(
                f"line {number} does not end in (utterance-id)",
                file=path,
                remedy="NIST trn lines look like: WORD WORD (speaker-utterance)",
            )
        _add(texts, rest[:-1].strip(), words.split(), path)
    return texts


def write_trn(
    path: str | Path,
    texts: Mapping[str, Sequence[str]],
    speakers: Mapping[str, str] | None = None,
) -> None:
    """Write transcripts for NIST's `sclite`, sorted by utterance id, atomically.

    `sclite -i rm` takes the speaker from the id: what stands before the first `-`.

    Args:
        path: file to write.
        texts: words of each utterance.
        speakers: speaker of each utterance; the written id is then
            `<speaker with - as _>-<utterance>`.
    """
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        for utterance in sorted(texts):
            name = utterance
            if speakers is not None:
                name = f"{speakers[utterance].replace('-', '_')}-{utterance}"
            out.write(" ".join([*texts[utterance], f"({name})"]) + "\n")


def _add(
    texts: dict[str, list[str]], utterance: str, words: list[str], path: str | Path
) -> None:
    """Add one utterance, refusing a second of the same id."""
    if utterance in texts:
        raise UserError(
            "utterance occurs twice",
            file=path,
            utterance=utterance,
            remedy="remove or rename one of them",
        )
    texts[utterance] = words
