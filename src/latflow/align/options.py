"""Options of forced alignment, and of supervision made from alignments."""

from __future__ import annotations

from latflow.options import (
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
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
    """Refuse alignments that could go on with a second copy of the transcript."""
    acoustic_scale: PositiveFloat = 0.1
    """Factor of acoustic log-likelihoods."""


class SupervisionOptions(Options):
    """Supervision of LF-MMI made from alignments."""

    left_tolerance: NonNegativeInt = 5
    """Frames by which a phone may begin before the alignment has it."""
    right_tolerance: NonNegativeInt = 5
    """Frames by which a phone may end after the alignment has it."""
