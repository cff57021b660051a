"""The scores of a test set: per utterance, per speaker, in all, and as files.

Public: `UtteranceScore`, `score_utterances`, `total`, `by_speaker`, `confusions`,
`interval`, the writers of `per_utterance.tsv`, `per_speaker.tsv`, `confusions.tsv`, and
`read_utterance_scores`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output, read_lines
from latflow.scoring.alignment import ErrorCounts, WordAlignment, align_words
from latflow.scoring.bootstrap import Interval, bootstrap_interval
from latflow.scoring.text import WordFilter

GAP = "***"
UTTERANCE_COLUMNS = (
    "utterance",
    "speaker",
    "words",
    "ins",
    "del",
    "sub",
    "errors",
    "wer",
    "reference",
    "hypothesis",
)
SPEAKER_COLUMNS = (
    "speaker",
    "sentences",
    "sentence_errors",
    "words",
    "ins",
    "del",
    "sub",
    "errors",
    "wer",
)
CONFUSION_COLUMNS = ("kind", "reference", "hypothesis", "count")

Pair = tuple[str | None, str | None]


@dataclass(frozen=True)
class UtteranceScore:
    """One utterance, compared word by word.

    Attributes:
        utterance: its id.
        speaker: its speaker.
        pairs: (reference word, hypothesis word); None where the other side has nothing.
        counts: the errors.
    """

    utterance: str
    speaker: str
    pairs: tuple[Pair, ...]
    counts: ErrorCounts


def score_utterances(
    references: Mapping[str, Sequence[str]],
    hypotheses: Mapping[str, Sequence[str]],
    speakers: Mapping[str, str],
    *,
    options: Mapping[str, Any],
) -> list[UtteranceScore]:
    """Compare every reference with its hypothesis.

    Args:
        references: words of each utterance.
        hypotheses: recognised words; a reference without one counts as all deleted.
        speakers: speaker of each reference.
        options: section `score` of the configuration.

    Returns:
        Scores, sorted by utterance id.

    Raises:
        UserError: a hypothesis has no reference.
    """
    unknown = sorted(hypotheses.keys() - references.keys())
    if unknown:
        raise UserError(
            f"{len(unknown)} recognised utterances have no reference",
            utterance=unknown[0],
            remedy="score with the cuts that were decoded",
        )
    keep = WordFilter.from_options(options)
    scores = []
    for utterance in sorted(references):
        aligned: WordAlignment = align_words(
            keep(references[utterance]),
            keep(hypotheses.get(utterance, ())),
            rule=options["alignment"],
        )
        scores.append(
            UtteranceScore(
                utterance, speakers[utterance], aligned.pairs, aligned.counts
            )
        )
    return scores


def total(scores: Iterable[UtteranceScore]) -> ErrorCounts:
    """Sum of the counts."""
    return sum((score.counts for score in scores), ErrorCounts())


def num_sentence_errors(scores: Iterable[UtteranceScore]) -> int:
    """Utterances with at least one error."""
    return sum(score.counts.errors > 0 for score in scores)


def by_speaker(scores: Iterable[UtteranceScore]) -> dict[str, list[UtteranceScore]]:
    """Group scores by speaker, speakers sorted."""
    groups: dict[str, list[UtteranceScore]] = {}
    for score in scores:
        groups.setdefault(score.speaker, []).append(score)
    return dict(sorted(groups.items()))


def confusions(scores: Iterable[UtteranceScore]) -> Counter[Pair]:
    """Count the pairs that are errors: (reference, hypothesis), None for nothing."""
    return Counter(
        pair for score in scores for pair in score.pairs if pair[0] != pair[1]
    )


def interval(
    scores: Sequence[UtteranceScore], *, options: Mapping[str, Any]
) -> Interval:
    """Bootstrap interval of the word error rate of these utterances.

    Args:
        scores: of all utterances of the set.
        options: section `score` of the configuration, with the experiment's `seed`.
    """
    bootstrap = options["bootstrap"]
    errors, words = count_arrays(scores)
    return bootstrap_interval(
        errors,
        words,
        samples=bootstrap["samples"],
        confidence=bootstrap["confidence"],
        seed=options["seed"],
        blocks=blocks(scores, by=bootstrap["by"]),
    )


def count_arrays(scores: Sequence[UtteranceScore]) -> tuple[np.ndarray, np.ndarray]:
    """Errors [N] and reference words [N] of utterances, int64."""
    errors = np.array([score.counts.errors for score in scores], dtype=np.int64)
    words = np.array([score.counts.words for score in scores], dtype=np.int64)
    return errors, words


def blocks(scores: Sequence[UtteranceScore], *, by: str) -> list[str] | None:
    """What the bootstrap draws as a whole: speakers, or (None) utterances."""
    return [score.speaker for score in scores] if by == "speaker" else None


def write_per_utterance(path: str | Path, scores: Iterable[UtteranceScore]) -> None:
    """Write one line an utterance, both sides aligned word by word (`***`: nothing)."""
    write_tsv(
        path,
        UTTERANCE_COLUMNS,
        (
            (
                score.utterance,
                score.speaker,
                *_count_fields(score.counts),
                " ".join(word or GAP for word, _ in score.pairs),
                " ".join(word or GAP for _, word in score.pairs),
            )
            for score in scores
        ),
    )


def read_utterance_scores(path: str | Path) -> list[UtteranceScore]:
    """Read a `per_utterance.tsv` back.

    Raises:
        UserError: a line does not have its fields.
    """
    scores = []
    for number, line in read_lines(path):
        if number == 1:
            continue
        fields = line.split("\t")
        if len(fields) != len(UTTERANCE_COLUMNS):
            raise UserError(
                f"line {number} has {len(fields)} fields, not {len(UTTERANCE_COLUMNS)}",
                file=path,
                remedy="remove the file and score again",
            )
        utterance, speaker, words, ins, del_, sub, *_, reference, hypothesis = fields
        pairs = tuple(
            (None if a == GAP else a, None if b == GAP else b)
            for a, b in zip(reference.split(), hypothesis.split(), strict=True)
        )
        counts = ErrorCounts(int(ins), int(del_), int(sub), int(words))
        scores.append(UtteranceScore(utterance, speaker, pairs, counts))
    return scores


def write_per_speaker(path: str | Path, scores: Iterable[UtteranceScore]) -> None:
    """Write one line a speaker."""
    write_tsv(
        path,
        SPEAKER_COLUMNS,
        (
            (speaker, len(own), num_sentence_errors(own), *_count_fields(total(own)))
            for speaker, own in by_speaker(scores).items()
        ),
    )


def write_confusions(
    path: str | Path, scores: Iterable[UtteranceScore], *, limit: int
) -> None:
    """Write the most frequent substitutions, deletions and insertions, `limit` each."""
    write_tsv(path, CONFUSION_COLUMNS, _confusion_rows(confusions(scores), limit))


def _confusion_rows(counts: Counter[Pair], limit: int) -> Iterator[tuple[object, ...]]:
    """Rows of the confusion table, most frequent first within each kind."""
    kinds: dict[str, list[tuple[int, str, str]]] = {"sub": [], "del": [], "ins": []}
    for (word, heard), count in counts.items():
        kind = "ins" if word is None else "del" if heard is None else "sub"
        kinds[kind].append((-count, word or GAP, heard or GAP))
    for kind, rows in kinds.items():
        for negative, word, heard in sorted(rows)[:limit]:
            yield kind, word, heard, -negative


def _count_fields(counts: ErrorCounts) -> tuple[object, ...]:
    """Counts as fields of a table: words, ins, del, sub, errors, WER."""
    return (
        counts.words,
        counts.ins,
        counts.del_,
        counts.sub,
        counts.errors,
        f"{counts.wer:.2f}",
    )


def write_tsv(
    path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write a tab-separated table with a heading line, atomically."""
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.write("\t".join(columns) + "\n")
        out.writelines("\t".join(map(str, row)) + "\n" for row in rows)
