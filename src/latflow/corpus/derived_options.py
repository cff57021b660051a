"""Options of sets that are made of others: other speeds, pauses, the good parts."""

from __future__ import annotations

from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from latflow.options import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
    Unique,
)

Speed = Annotated[float, Field(ge=0.5, le=2.0)]
_Number = TypeVar("_Number", int, float)


def _ascending(bounds: tuple[_Number, _Number]) -> tuple[_Number, _Number]:
    """Return a range; refuse one whose end is below its start."""
    if bounds[0] > bounds[1]:
        raise ValueError(f"{bounds[0]:g} is above {bounds[1]:g}")
    return bounds


VolumeRange = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_ascending)]


class PerturbationOptions(Options):
    """The training set at other speeds and volumes, as Kaldi's `train_sp_hires`.

    Ids of utterances and speakers begin with `sp<speed>-`; at speed 1 they stay.
    """

    of: Text = "train"
    """Set that it is made of: `train`, or one of `corpus.cleaned`, or a training set
    of `corpus.paused`."""
    speeds: Annotated[tuple[Speed, ...], Field(min_length=1), Unique] = (0.9, 1.0, 1.1)
    """Speeds that every utterance is taken at: factors of its frequencies, and of the
    inverse of its duration."""
    volume: VolumeRange | None = (0.125, 2.0)
    """Range that each utterance's volume, a factor of its samples, is drawn from
    (uniform); null leaves it. Features of `nnet.features` follow it; those of the GMM
    systems, which align the set, do not (as in Kaldi)."""


class PausedSetOptions(Options):
    """Utterances of a set, joined to recordings with pauses, as servers hear speech.

    Pauses come before, between and behind the utterances of a speaker: noise as loud
    as, and of the spectrum of, the quietest parts of the utterance beside it.
    """

    of: Text = "train"
    """Set that it is made of: `train` or one of `corpus.cleaned`, for a training set;
    `dev` or one of `corpus.test`, for a test set."""
    utterances: Annotated[
        tuple[PositiveInt, PositiveInt], AfterValidator(_ascending)
    ] = (2, 6)
    """Range that the number of utterances in a recording is drawn from."""
    pause: Annotated[
        tuple[NonNegativeFloat, NonNegativeFloat], AfterValidator(_ascending)
    ] = (0.2, 3.0)
    """Range that the length of each pause is drawn from, seconds."""
    no_pause: Fraction = 0.0
    """Share of the places between utterances that have no pause."""
    quiet: Fraction = 0.5
    """Share of the pauses whose noise is as soft as `quiet_db` says: of a microphone
    that closes, or of speech cut out of its noise."""
    quiet_db: Annotated[tuple[float, float], AfterValidator(_ascending)] = (
        -60.0,
        -60.0,
    )
    """Range that the level of such a pause is drawn from, dB; 0 is full scale."""
    digital: Fraction = 0.0
    """Share of the pauses that are digital silence: samples of 0."""
    alone: bool = False
    """Keep the utterances by themselves in the set, too."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        """Refuse more pauses than there are."""
        if self.quiet + self.digital > 1:
            raise ValueError("quiet, digital: shares of more than 1 together")
        return self


class CleanedSetOptions(Options):
    """Parts of the training set that are what their transcripts say.

    As Kaldi's clean_and_segment_data.sh finds them; its defaults. Utterances are
    decoded against their transcripts as `suspects.biased_decoding` and
    `suspects.system` say.
    """

    min_segment: NonNegativeFloat = 0.5
    """Shortest utterance that is kept, seconds."""
    min_new_segment: NonNegativeFloat = 1.0
    """Shortest part of an utterance that is kept, seconds."""
    max_edge_silence: NonNegativeFloat = 0.5
    """Longest silence at an end of a part, seconds; more is cut off, if what is left is
    long enough."""
    max_internal_silence: PositiveFloat = 2.0
    """Longest silence within a part, seconds; longer ones divide it."""
    unknown_padding: NonNegativeFloat = 0.05
    """Audio beyond a first or last word, towards an error, that is taken too, since the
    word may continue in it, seconds; the unknown word stands for it in the transcript,
    unless it is silence. 0 for none."""
    max_junk: Fraction = 0.1
    """Largest share of a part that is such audio."""
    min_split_silence: NonNegativeFloat = 0.1
    """Silence that a part may begin or end in when an end of it is cut off because too
    much of it is such audio, seconds."""
    max_left_out_words: NonNegativeInt = 1
    """Words that were not recognized between two parts which touch each other; more are
    left out of the transcript when the parts are joined."""
