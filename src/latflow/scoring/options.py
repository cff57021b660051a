"""Options of scoring and of the choice of scales on dev."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from latflow.options import Options, PositiveFloat, PositiveInt, Text, Unique

_ENOUGH_SPEAKERS = 10
MAX_LMWT = 1000
MAX_PENALTY = 20.0
Decision = Literal["best_path", "mbr"]


class BootstrapOptions(Options):
    """Confidence intervals of word error rates.

    By drawing the test set again with replacement.
    """

    samples: Annotated[int, Field(ge=100, le=1000000)] = 10000
    """Number of sets drawn; the bounds vary less with more."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Share of the drawn word error rates inside the interval."""
    by: Literal["auto", "utterance", "speaker"] = "auto"
    """Unit that is drawn as a whole. `speaker` allows for errors that go together
    within a speaker, and needs a dozen speakers or more to mean something. `auto`:
    speakers where a set has ten or more of them, else utterances."""

    def unit(self, speakers: Sequence[str]) -> Literal["utterance", "speaker"]:
        """Return what is drawn from a set, given the speaker of each utterance."""
        if self.by != "auto":
            return self.by
        return "speaker" if len(set(speakers)) >= _ENOUGH_SPEAKERS else "utterance"

    def blocks(self, speakers: Sequence[str]) -> Sequence[str] | None:
        """Return the block of each utterance; None where utterances are drawn."""
        return speakers if self.unit(speakers) == "speaker" else None


class ComparisonOptions(Options):
    """Comparison of recognized words with the references."""

    alignment: Literal["kaldi", "sclite"] = "kaldi"
    """Costs of the word alignment. `kaldi` gives the numbers of Kaldi's compute-wer
    (every error costs 1), `sclite` those of NIST's sclite (substitution 4, insertion
    and deletion 3)."""
    ignore_words: Annotated[tuple[Text, ...], Unique] = ("<SIL>", "!SIL", "<eps>")
    """Words removed from references and hypotheses before they are compared, as Kaldi's
    wer_ref_filter and wer_hyp_filter do (words for silence or noise)."""
    fold_case: bool = False
    """Count words that differ only in case as equal."""

    def filter(self, words: Iterable[str]) -> list[str]:
        """Return the words that count, in the case that they are compared in."""
        kept = (word for word in words if word not in self.ignore_words)
        return [word.lower() for word in kept] if self.fold_case else list(kept)


class ScoreOptions(ComparisonOptions):
    """Comparison of recognized words with the references."""

    decision: Decision = "best_path"
    """Words of a lattice that are taken. `best_path`: those of the path of least cost.
    `mbr`: those with the fewest word errors to expect (minimum Bayes risk)."""
    max_confusions: PositiveInt = 100
    """Number of substitutions, deletions and insertions listed in confusions.tsv, the
    most frequent of each."""
    bootstrap: BootstrapOptions = BootstrapOptions()
    """Confidence intervals of word error rates, by drawing the test set again with
    replacement."""


class LmwtOptions(Options):
    """Language model weights, all integers from `min` to `max`."""

    min: PositiveInt = 7
    """Lowest weight."""
    max: Annotated[int, Field(ge=1, le=MAX_LMWT)] = 40
    """Highest weight."""


class TuneOptions(Options):
    """Settings tried on the dev set.

    The best word error rate decides; of equal ones the middle is taken. The LMWT is the
    weight of the language model against the acoustic model (the inverse of the acoustic
    scale), the penalty the cost of each word.
    """

    lmwt: LmwtOptions = LmwtOptions()
    """Language model weights, all integers from `min` to `max`."""
    word_insertion_penalties: Annotated[
        tuple[float, ...], Field(min_length=1), Unique
    ] = (0.0, 0.5, 1.0)
    """Costs of each word (negated log); more means fewer words, below 0 a bonus."""
    widen: bool = True
    """Try a penalty below these, and weights and penalties beyond them as long as the
    best one is the lowest or the highest of all (weights from 1 to 1000, penalties from
    -20 to 20). Where one weight or one penalty is given, it stays."""
    word_bonuses: Annotated[tuple[PositiveFloat, ...], Unique] = (1.0, 2.0, 4.0)
    """Bonuses of each word (costs below 0), tried beside these penalties for decoders
    with attention, which rather leave words out than add some."""

    def of_system(self, *, has_decoder: bool) -> Self:
        """Return the settings for a kind of system: bonuses as penalties, or none."""
        bonuses = [-bonus for bonus in self.word_bonuses] if has_decoder else []
        penalties = dict.fromkeys([*self.word_insertion_penalties, *bonuses])
        return self.replace(word_insertion_penalties=tuple(penalties), word_bonuses=())
