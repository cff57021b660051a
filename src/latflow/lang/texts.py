"""Sentences for language models: from text files and from manifests, streamed.

Public: `text_sentences`, `transcript_sentences`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from latflow.errors import UserError
from latflow.files import read_lines


def text_sentences(path: str | Path) -> Iterator[list[str]]:
    """Words of each line of a text file (`.gz` too).

    Raises:
        UserError: the file is missing or not UTF-8.
    """
    for _, line in read_lines(path):
        yield line.split()


def transcript_sentences(cuts: Iterable[str | Path]) -> Iterator[list[str]]:
    """Words of each transcript of Lhotse cut manifests (`cuts.jsonl.gz`).

    The lines are read as plain JSON: building Lhotse's objects takes ten times as long.

    Raises:
        UserError: a file is missing, or a line is no cut.
    """
    for path in cuts:
        for number, line in read_lines(path):
            try:
                supervisions = json.loads(line).get("supervisions", ())
                texts = [item.get("text") or "" for item in supervisions]
            except (ValueError, AttributeError) as error:
                raise UserError(
                    f"line {number} is not a cut in JSON",
                    file=path,
                    remedy="prepare the corpus again",
                ) from error
            for text in texts:
                yield text.split()
