"""Options of forced alignment, and of supervision made from alignments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from latflow.align.forms import ExportFormat
from latflow.options import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    Text,
    Unique,
)


class AlignOptions(Options):
    """The Viterbi search of an alignment."""

    beam: PositiveFloat = 10.0
    """Beam, in scaled log-likelihood."""
    retry_beam: NonNegativeFloat = 40.0
    """Beam of the second attempt at an utterance; 0 for no second attempt."""
    boost_silence: PositiveFloat = 1.0
    """Factor of the likelihood of silence."""
    careful: bool = False
    """Refuse alignments that could continue with a second copy of the transcript."""
    acoustic_scale: PositiveFloat = 0.1
    """Factor of acoustic log-likelihoods."""


class AlignSplitOptions(AlignOptions):
    """Alignment of whole splits with a finished system."""

    rescue_memory_mb: NonNegativeInt = 1000
    """Memory for attempts beyond the second one, in megabytes: at four times the retry
    beam, then without any beam, which fails only if the transcript does not fit into
    the utterance. 0 for no such attempt; `careful` makes none."""


class ExportOptions(Options):
    """Alignments as files for people and other programs."""

    formats: Annotated[tuple[ExportFormat, ...], Field(min_length=1), Unique] = (
        "textgrid",
        "ctm",
        "json",
    )
    """Forms. A file a recording, in a folder of the form's name, with tiers of words
    and phones for each speaker: `textgrid`, `short_textgrid`, `mfa_json` and
    `csv` (MFA's forms of these names). A file for all: `ctm`,
    `words.ctm` and `phones.ctm`; `json`, `alignments.jsonl`, an utterance a line, with
    scores and confidences of words and phones; `analysis`, MFA's
    `alignment_analysis.csv`, the quality of each utterance."""
    names: Literal["recording", "path"] = "recording"
    """Names of TextGrids: the recording's id, or the path of its audio below `folder`.
    """
    folder: Text | None = None
    """Folder that `names: path` are relative to; null, or where audio lies elsewhere,
    for the one that holds all audio files."""
    long_pause: PositiveFloat = 15.0
    """Shortest time without a word that `export.json` reports, seconds: speech there
    may be missing from the transcript."""


class SupervisionOptions(Options):
    """Supervision of LF-MMI made from alignments."""

    left_tolerance: NonNegativeInt = 5
    """Frames by which a phone may begin before the alignment has it."""
    right_tolerance: NonNegativeInt = 5
    """Frames by which a phone may end after the alignment has it."""


class SuspectOptions(Options):
    """Bounds beyond which an utterance is suspected."""

    max_deviation: PositiveFloat = 5.0
    """For measures of alignments and for loud ends: distance from the median, in units
    of 1.4826 times the median absolute deviation."""
    max_silence: Fraction = 0.1
    """Share of an utterance that is digital silence."""
    max_clipping: Fraction = 0.01
    """Share of the samples that are clipped."""
    max_offset: PositiveFloat = 0.2
    """Mean of the samples over their standard deviation."""
    cut_db: float = -10.0
    """Least level of the first or last 30 ms, over that of loud parts, of an utterance
    that may have been cut within speech, dB."""
    max_word_errors: NonNegativeFloat = 0.1
    """Where sets are decoded against their transcripts: word errors of an utterance
    over the words of its transcript."""
