"""Options of cepstral mean and variance normalization (CMVN)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from latflow.options import Options, PositiveInt


class _Cmvn(Options):
    """Base of the types of CMVN.

    Attributes:
        statistics: what statistics are taken over: each utterance by itself needs no
            others to be read before it.
        needs_end: whether they are known at the end of the utterance only.
    """

    statistics: ClassVar[Literal["utterance", "speaker", "set"]] = "utterance"
    needs_end: ClassVar[bool] = False

    @property
    def is_causal(self) -> bool:
        """Return whether no frame to come is needed, but for the first ones."""
        return not self.needs_end


class SpeakerCmvn(_Cmvn):
    """By the statistics of each speaker (Kaldi's usual way)."""

    statistics = "speaker"
    needs_end = True
    type: Literal["speaker"] = "speaker"
    norm_vars: bool = False
    """Scale variances to one too, not only means to zero."""


class UtteranceCmvn(_Cmvn):
    """By the statistics of each utterance."""

    needs_end = True
    type: Literal["utterance"] = "utterance"
    norm_vars: bool = False
    """Scale variances to one too, not only means to zero."""


class GlobalCmvn(_Cmvn):
    """By the statistics of the split."""

    statistics = "set"
    type: Literal["global"] = "global"
    norm_vars: bool = False
    """Scale variances to one too, not only means to zero."""


class SlidingCmvn(_Cmvn):
    """By the frames around each frame (Kaldi's apply-cmvn-sliding)."""

    type: Literal["sliding"] = "sliding"
    norm_vars: bool = False
    """Scale variances to one too, not only means to zero."""
    window: PositiveInt = 600
    """Frames that the mean is taken from."""
    min_window: PositiveInt = 100
    """Fewest frames, at the start of an utterance, where center is false."""
    center: bool = True
    """Let the window lie around the frame; else it ends with it."""

    @property
    def is_causal(self) -> bool:
        """Return whether no frame to come is needed, but for the first ones."""
        return not self.center


class LevelCmvn(_Cmvn):
    """By how loud the loudest of the frames up to each frame is.

    One number, the mean of that frame, is subtracted from all log energies (`type:
    fbank`): features are the same at any volume, and no pause changes their mean.
    """

    type: Literal["level"] = "level"
    window: PositiveInt = 300
    """Frames, up to each frame, that the loudest is looked for in."""
    min_window: PositiveInt = 100
    """Fewest frames, at the start of an utterance."""


class OnlineCmvn(_Cmvn):
    """By the frames up to each frame, and at first those of the training set too.

    Kaldi's apply-cmvn-online, which Vosk has; no frame waits. Utterances begin without
    what was known of their speaker; the segments of a session continue with it.
    """

    statistics = "set"
    type: Literal["online"] = "online"
    norm_vars: bool = False
    """Scale variances to one too, not only means to zero."""
    window: PositiveInt = 600
    """Frames, up to each frame, that statistics are taken from."""
    global_frames: PositiveInt = 200
    """Frames that the training set counts for where `window` is not full yet."""


class NoCmvn(_Cmvn):
    """Not at all."""

    type: Literal["none"] = "none"


WindowedCmvn = SlidingCmvn | LevelCmvn | OnlineCmvn  # by frames around or up to each
CmvnOptions = Annotated[
    SpeakerCmvn
    | UtteranceCmvn
    | GlobalCmvn
    | SlidingCmvn
    | LevelCmvn
    | OnlineCmvn
    | NoCmvn,
    Field(discriminator="type"),
]
