"""Options of the search for lattices and of what is done with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from latflow.align.options import AlignSplitOptions
from latflow.gmm.options import FmllrOptions
from latflow.graphs.options import BiasedGraphOptions, Composition, Sentences
from latflow.lang.options import RescoringLmOptions
from latflow.nnet.options import Precision
from latflow.options import (
    Fraction,
    Free,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
    Unique,
)
from latflow.scoring.options import TuneOptions


class BeamOptions(Options):
    """The paths that a search follows."""

    beam: PositiveFloat = 13.0
    """Paths costing more than the best of their frame plus this are dropped (negated
    log, scaled)."""
    lattice_beam: PositiveFloat = 6.0
    """Paths costing more than the best of the utterance plus this are left out of the
    lattice (negated log, scaled)."""
    max_active: Annotated[int, Field(ge=2)] = 7000
    """Graph states followed per frame, at most; bounds the time a hard frame takes."""
    min_active: NonNegativeInt = 200
    """Graph states followed per frame, at least, even outside the beam."""

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.min_active > self.max_active:
            raise ValueError(
                f"min_active {self.min_active} is above max_active {self.max_active}: "
                f"set it to {self.max_active} or less"
            )
        return self


class SearchOptions(BeamOptions):
    """The search that makes lattices."""

    acoustic_scale: PositiveFloat = 0.083333
    """Factor of acoustic log-likelihoods in the search. Lattices keep them unscaled."""
    on_no_final: Literal["retry", "partial", "fail"] = "retry"
    """Treatment of an utterance whose search does not end in a final state of the
    graph. `retry` searches again with a wider beam and then takes what there is,
    `partial` takes what there is, `fail` stops the stage. The ledger names each such
    utterance."""
    retry_beam_factor: Annotated[float, Field(gt=1)] = 2.0
    """Factor of the beam in a second search."""


class BiasedDecodeOptions(SearchOptions):
    """Decoding of a set against its own transcripts.

    Each utterance is decoded with a language model of its transcript and its
    neighbours', mixed with the most frequent words of the set. Defaults are those of
    Kaldi's clean_and_segment_data.sh.
    """

    lm: BiasedGraphOptions = BiasedGraphOptions()
    """Language models of decoding graphs that are biased to transcripts."""
    beam: PositiveFloat = 15.0
    """Paths costing more than the best of their frame plus this are dropped (negated
    log, scaled)."""
    lattice_beam: PositiveFloat = 1.0
    """Paths costing more than the best of the utterance plus this are left out of the
    lattice (negated log, scaled)."""
    acoustic_scale: PositiveFloat = 0.1
    """Factor of acoustic log-likelihoods in the search."""


class TranscriptLatticeOptions(SearchOptions):
    """Lattices of all pronunciations of each transcript.

    A GMM system searches each utterance in its training graph.
    """

    beam: PositiveFloat = 20.0
    """Paths costing more than the best of their frame plus this are dropped (negated
    log, scaled)."""
    lattice_beam: PositiveFloat = 6.0
    """Phone sequences costing more than the best of the utterance plus this are left
    out of the lattice (negated log, scaled)."""
    acoustic_scale: PositiveFloat = 0.1
    """Factor of acoustic log-likelihoods in the search."""
    on_no_final: Literal["retry", "partial", "fail"] = "retry"
    """Treatment of an utterance whose search does not end in a final state of its
    training graph. `retry` searches again with a wider beam and then leaves it out,
    `partial` leaves it out at once, `fail` stops the stage. The ledger names each such
    utterance."""


class AdaptOptions(FmllrOptions):
    """Decoding of systems that adapt to speakers (`sat`).

    A first, narrow search with the unadapted model gives each speaker a transform; the
    main search takes place with it; its lattices give a second transform on top, with
    which they are scored again. Defaults are those of Kaldi's decode_fmllr.sh.
    """

    first_beam: PositiveFloat = 10.0
    """Beam of the first search (negated log, scaled)."""
    first_max_active: Annotated[int, Field(ge=2)] = 2000
    """Graph states followed per frame in the first search, at most."""
    first_lattice_beam: PositiveFloat = 6.0
    """Lattice beam of the first search (negated log, scaled); its lattices are
    determinized with it."""
    second_lattice_beam: PositiveFloat = 4.0
    """Beam to which the main lattices are determinized for the second transforms
    (negated log, scaled)."""
    silence_weight: Fraction = 0.01
    """Weight of posteriors of silence in the estimates; 0 leaves silence out."""


class RescoreOptions(Options):
    """A second language model, and the lattices that it rescores."""

    lm: RescoringLmOptions
    """The language model: given, or estimated from text, or a neural one that is
    trained on text (`type: neural`)."""
    systems: tuple[str, ...] = ()
    """Systems whose lattices are rescored; an empty list for the last system alone."""
    beam: PositiveFloat = 8.0
    """Paths of a rescored lattice costing more than the best plus this are dropped
    (negated log, scaled)."""


class NetworkDecodeOptions(Options):
    """Use of the network's scores in decoding."""

    prior_scale: Annotated[float, Field(ge=0, le=2)] | None = None
    """Factor on the log priors that are taken from the network's scores; null for 1,
    or 0 where LF-MMI or CTC trained it."""
    acoustic_scale: PositiveFloat | None = None
    """Factor of acoustic log-likelihoods in the search; null for that of `decode` times
    the frame subsampling, or 1.0 where LF-MMI or CTC trained the network. Acoustic
    costs in lattices are times the subsampling, or times 10, so that the LMWT means the
    same for all systems."""
    precision: Precision = "float32"
    """Numbers of the forward pass, as `training.precision`; scores are float32. bf16
    rounds them to two or three digits, and takes a fraction of the time on a GPU."""


class AttentionDecodeOptions(Options):
    """Beam search of a decoder with attention.

    The score of a word sequence is log p(units) + `length_bonus` x units + `coverage` x
    frames attended to - `lm_scale` x language model cost.
    """

    beam: PositiveInt = 8
    """Sequences of units that are followed at a time, and most that are found."""
    margin: PositiveFloat = 20.0
    """Sequences whose score is lower than that of the best finished one by more than
    this are dropped (natural log)."""
    lm_scale: NonNegativeFloat = 0.3
    """Weight of the language model in the search; 0 for none. The lattices keep its
    costs apart: tuning weighs them again (a weight of LMWT / 10)."""
    length_bonus: float = 0.0
    """Added for each unit: against words that are left out (length normalization)."""
    coverage: NonNegativeFloat = 0.0
    """Added for each frame of the network's output that the attention has covered:
    against words that are left out or repeated."""
    coverage_threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Sum of the weights of a frame above which it is covered."""
    max_sequences: PositiveInt = 8
    """Utterances that are searched together."""


class NetworkScoreOptions(NetworkDecodeOptions):
    """Use of a network's scores, and its device."""

    device: Free[Literal["auto", "cpu", "cuda"]] = "auto"
    """Device of the network."""


class EndpointRule(Options):
    """A condition under which a segment ends; all of its parts must hold."""

    must_contain_nonsilence: bool = True
    """Require something besides silence to have been recognized."""
    min_trailing_silence: NonNegativeFloat = 0.0
    """Least silence at the end, seconds."""
    max_relative_cost: NonNegativeFloat | None = None
    """Most that the best path to a final state of the graph may cost more than the best
    path (negated log, scaled); null for any."""
    min_utterance_length: NonNegativeFloat = 0.0
    """Least length of the segment, seconds."""

    @field_validator("max_relative_cost", mode="before")
    @classmethod
    def _any(cls, value: Any) -> Any:
        """Take Kaldi's word for any cost, infinity, too."""
        return None if value == math.inf else value


class EndpointOptions(Options):
    """Kaldi's five rules: a segment ends when one of them holds."""

    rule1: EndpointRule = EndpointRule(
        must_contain_nonsilence=False, min_trailing_silence=5.0
    )
    """No word for a long time."""
    rule2: EndpointRule = EndpointRule(min_trailing_silence=0.5, max_relative_cost=2.0)
    """A short silence where the sentence very probably ends."""
    rule3: EndpointRule = EndpointRule(min_trailing_silence=1.0, max_relative_cost=8.0)
    """A longer silence where the sentence may end."""
    rule4: EndpointRule = EndpointRule(min_trailing_silence=2.0)
    """A silence after anything."""
    rule5: EndpointRule = EndpointRule(
        must_contain_nonsilence=False, min_utterance_length=20.0
    )
    """The segment has become long."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Give a rule that is set in part the rest of its own defaults."""
        if not isinstance(values, Mapping):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {
            name: {**defaults[name].values(), **rule}
            if name in defaults and isinstance(rule, Mapping)
            else rule
            for name, rule in values.items()
        }


class AlignNetworkOptions(AlignSplitOptions):
    """Alignment of a split with a network."""

    scores: NetworkScoreOptions = NetworkScoreOptions()
    """Use of the network's scores; the acoustic scale is that of the alignment."""


class DecodeOptions(SearchOptions):
    """The search that makes lattices, and the choice of scales on the dev set."""

    sentences: Sentences = "one"
    """Sentences that an utterance may hold. With `several`, decoding graphs lead from
    the end of a sentence to the beginning of another one, which people who speak do
    without a pause; an utterance of one costs the same. Attention decoders know nothing
    of it."""
    composition: Composition = "static"
    """How lexicon and language model come together in decoding graphs. With `static`
    they are composed before, as HCLG; with `lookahead` while a search asks for it:
    graphs of large language models are made in seconds, and take little memory."""
    beam_sweep: Annotated[tuple[PositiveFloat, ...], Unique] = (
        5.0,
        7.0,
        9.0,
        11.0,
        13.0,
        15.0,
    )
    """Beams with which dev is decoded again by the last system, for the plot of word
    error rate over real-time factor in the report; an empty list for no plot."""
    adapt: AdaptOptions = AdaptOptions()
    """Decoding of systems that adapt to speakers (`sat`). A first, narrow search with
    the unadapted model gives each speaker a transform; the main search takes place with
    it; its lattices give a second transform on top, with which they are scored again.
    Defaults are those of Kaldi's decode_fmllr.sh."""
    rescore: dict[Name, RescoreOptions] = Field(default_factory=dict)
    """Second language models by name. The lattices of a system, or with a neural model
    their n best word sequences, are given the costs of this model in place of those of
    the decoding graph's; the result is tuned and scored as `<system>.<name>`."""
    tune: TuneOptions = TuneOptions()
    """Settings tried on the dev set. The best word error rate decides; of equal ones
    the middle is taken. The LMWT is the weight of the language model against the
    acoustic model (the inverse of the acoustic scale), the penalty the cost of each
    word."""


class SegmentationOptions(Options):
    """Division of a recording into segments, which are recognized one by one."""

    type: Literal["vad", "endpoint", "none"] = "vad"
    """Ends of segments: silence by Silero's voice activity detector (`vad`; the other
    options are its) and the endpoint rules of the model, these rules alone
    (`endpoint`), or the end of the recording (`none`: memory then grows with its
    length)."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability from which on a window of 32 ms is speech; what has begun continues
    while it is above 0.15 less. Less than Silero's 0.5, which loses speech in noise
    (docs/serving.md)."""
    min_silence: Annotated[float, Field(ge=0.05)] = 0.5
    """Shortest silence that ends a segment, seconds."""
    padding: NonNegativeFloat = 0.5
    """Silence that is kept before and after the speech, seconds; no more than
    `min_silence`."""
    min_speech: NonNegativeFloat = 0.1
    """Shortest speech that makes a segment, seconds."""
    max_segment: Annotated[float, Field(ge=1)] = 20.0
    """Longest segment, seconds; longer speech is cut where it is less probable."""

    @model_validator(mode="after")
    def _check_padding(self) -> Self:
        """Refuse padding that would reach into other speech, or leave it no room."""
        if self.padding > min(self.min_silence, self.max_segment / 4):
            raise ValueError(
                "padding is above min_silence, or above a quarter of max_segment"
            )
        return self


class TranscribeOptions(Options):
    """Transcription of recordings by a model package."""

    formats: Annotated[
        tuple[Literal["txt", "json", "ctm", "srt", "vtt", "textgrid"], ...],
        Field(min_length=1),
        Unique,
    ] = ("txt",)
    """Forms of the result: `txt` (a segment a line), `json` (words with times and
    confidences, alternatives), `ctm`, `srt` and `vtt` (subtitles), `textgrid`."""
    channel: PositiveInt | None = None
    """Channel that is transcribed, from 1; null for the mean of all."""
    segmentation: SegmentationOptions = SegmentationOptions()
    """Division of a recording into segments, which are recognized one by one."""
    max_alternatives: Annotated[int, Field(ge=1, le=100)] = 1
    """Hypotheses of a segment in the JSON, at most."""
    chunk_length: PositiveFloat = 2.4
    """Speech that the network scores at a time, seconds, with `segmentation.type:
    none`; else that of streaming, where endpoints are looked for in each chunk."""


class RecordingsOptions(TranscribeOptions):
    """Recordings that a system transcribes when it has been packaged."""

    system: Name
    """System of `package.systems`."""
    path: Text | None = None
    """File, or folder of files, that is transcribed."""
    set: Name | None = None
    """Or the set of the corpus whose recordings are transcribed."""
    lattices: bool = False
    """Write the lattices, too: `lattices.ark`."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        """Refuse none, and both, of the two sources."""
        if (self.path is None) == (self.set is None):
            raise ValueError("name either a path or a set")
        return self
