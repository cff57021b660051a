"""Corpora whose transcripts take on the spelling of a lexicon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latflow.corpus import prepare
from latflow.corpus.options import Source
from latflow.lang.lexicon import RESERVED_WORDS
from latflow.lang.options import LangOptions
from latflow.lang.speaker_dictionaries import read_dictionaries
from latflow.text_files import read_lines


def prepare_corpus(
    source: Source,
    split: str,
    out_dir: str | Path,
    *,
    seed: int,
    threads: int,
    max_skipped_fraction: float,
    vocabulary: str | Path | None = None,
) -> None:
    """Write the manifests of one split (stage); see `latflow.corpus.prepare`.

    Args:
        vocabulary: lexicon, or `words.txt`, whose spelling transcripts take on; None
            for none.

    Raises:
        UserError: the source, an utterance or the lexicon is faulty.
    """
    words: frozenset[str] = frozenset()
    speakers: Mapping[str, str] = {}
    if vocabulary is not None:
        words, speakers = read_vocabulary(vocabulary)
    prepare.prepare_corpus(
        source,
        split,
        out_dir,
        seed=seed,
        threads=threads,
        max_skipped_fraction=max_skipped_fraction,
        vocabulary=words,
        speakers=speakers,
    )


def read_vocabulary(path: str | Path) -> tuple[frozenset[str], Mapping[str, str]]:
    """Return the words of a lexicon, or of a symbol table (`words.txt`).

    Returns:
        (the words; dictionaries of speakers who have one of their own).

    Raises:
        UserError: the file is missing or faulty.
    """
    if Path(path).name == "words.txt":
        words = {line.split()[0] for _, line in read_lines(path) if line.strip()}
        return frozenset(words) - set(RESERVED_WORDS), {}
    lexicon = read_dictionaries(path, LangOptions())
    return frozenset(lexicon.words), lexicon.speakers
