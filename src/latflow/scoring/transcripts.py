"""Transcripts of a set: its references, Kaldi's text files, words with times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.corpus.ctm import TimedWord
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.lattice.mbr import MbrResult
from latflow.text_files import read_json_lines, read_lines

_REMEDY = "remove the file and extract the features again"


@dataclass(frozen=True)
class References:
    """Words and speakers by utterance id, and the features' frame shift in seconds."""

    words: dict[str, list[str]]
    speakers: dict[str, str]
    frame_shift: float


def read_references(
    cuts: str | Path, features_dir: str | Path | None = None
) -> References:
    """Read the texts, speakers and frame shift of a set.

    The lines are read as JSON: Lhotse would import torch, for nothing here.

    Args:
        cuts: manifest with one supervision a cut.
        features_dir: features of the set: cuts that have none are left out. None where
            the cuts have features attached, or supervisions (of a corpus without audio)
            contain the `frame_shift`.

    Raises:
        UserError: the manifest is missing or empty, a line is not a cut, an id occurs
            twice, or a cut has no features or not one supervision.
    """
    if not Path(cuts).is_file():
        raise UserError("no such file", file=cuts, remedy="run the target features")
    features = None if features_dir is None else FrameStore.load(features_dir)
    words: dict[str, list[str]] = {}
    speakers: dict[str, str] = {}
    frame_shift = None

    def make(cut: dict[str, Any]) -> tuple[str, str, str, float]:
        utterance = str(cut["id"])
        supervisions = cut["supervisions"]
        framed: Any = {} if features is None else {"frame_shift": features.frame_shift}
        framed = framed or cut.get("features")
        if not framed and supervisions:
            framed = supervisions[0].get("custom")
        if len(supervisions) != 1 or not framed:
            raise UserError(
                "cut needs one supervision and features",
                file=cuts,
                utterance=utterance,
                remedy=_REMEDY,
            )
        text, speaker = (supervisions[0].get(key) for key in ("text", "speaker"))
        fields = str(text or ""), str(speaker or "unknown")
        return utterance, *fields, float(framed["frame_shift"])

    for utterance, text, speaker, shift in read_json_lines(
        cuts, make, "a Lhotse cut", _REMEDY
    ):
        if features is not None and utterance not in features:
            continue
        frame_shift = frame_shift or shift
        _add(words, utterance, text.split(), cuts)
        speakers[utterance] = speaker
    if frame_shift is None:
        raise UserError(
            "no utterance to score", file=cuts, remedy="check the set's corpus"
        )
    return References(words, speakers, frame_shift)


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


def names_of(
    word_ids: np.ndarray,
    names: Mapping[int, str],
    *,
    file: str | Path | None = None,
    utterance: str | None = None,
) -> list[str]:
    """Return the words of these ids.

    Args:
        word_ids: int32[N].
        names: word id -> word.
        file: origin of the ids, for messages.
        utterance: likewise.

    Raises:
        UserError: a word id has no name.
    """
    ids = word_ids.tolist()
    for word_id in ids:
        if word_id not in names:
            raise UserError(
                f"word id {word_id} is not in words.txt",
                file=file,
                utterance=utterance,
                remedy="use the lang directory that the graph was made of",
            )
    return [names[word_id] for word_id in ids]


def timed_words(
    utterance: str, found: MbrResult, names: Mapping[int, str], *, frame_shift: float
) -> list[TimedWord]:
    """Return the words of an utterance with times and confidences, for a CTM file.

    Args:
        utterance: its id.
        found: words with frames and confidences.
        names: word id -> word.
        frame_shift: seconds from frame to frame.

    Raises:
        UserError: a word id has no name.

    Source: Kaldi `latbin/lattice-to-ctm-conf.cc`.
    """
    words = names_of(found.words, names, utterance=utterance)
    rows = zip(words, found.begin, found.end, found.confidence, strict=True)
    return [
        TimedWord(
            utterance,
            float(begin) * frame_shift,
            float(end - begin) * frame_shift,
            word,
            confidence=float(confidence),
        )
        for word, begin, end, confidence in rows
    ]
