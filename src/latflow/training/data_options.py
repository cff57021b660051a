"""Options of the data of a training: pieces of utterances, order, batches."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from latflow.corpus.options import SourceName
from latflow.errors import UserError
from latflow.features.options import OnTheFlyOptions, PerturbationDraws
from latflow.options import (
    Fraction,
    Free,
    Name,
    NonNegativeFloat,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
    Unique,
)
from latflow.simulation.distributions import Decibels, Uniform
from latflow.simulation.options import SimulationDraws


class ContextOptions(Options):
    """Frames around a chunk that the network sees but that are not counted."""

    left: Annotated[int, Field(ge=0, le=10000)] = 0
    """Frames before."""
    right: Annotated[int, Field(ge=0, le=10000)] = 0
    """Frames behind."""


class ChunkOptions(Options):
    """Chunks of a fixed size.

    A frame counts once for each chunk that it lies in; context is seen and not counted.
    Sizes must be multiples of the network's subsampling.
    """

    type: Literal["chunks"] = "chunks"
    size: Annotated[int, Field(ge=1, le=100000)] = 80
    """Frames that a chunk counts."""
    step: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Frames from the start of one chunk to that of the next, at most size; null means
    size (no overlap)."""
    context: ContextOptions = ContextOptions()
    """Frames around a chunk that the network sees but that are not counted."""

    def check(self, subsampling: int) -> None:
        """Refuse sizes that do not fit each other, or a network's subsampling.

        Raises:
            UserError: they do not.
        """
        named = {"size": self.size, "step": self.step, "left": self.context.left}
        for name, frames in named.items():
            if frames is not None and frames % subsampling:
                raise UserError(
                    f"chunks: {name} {frames} is not a multiple of the network's "
                    f"subsampling {subsampling}",
                    remedy=f"take {-(-frames // subsampling) * subsampling}, for "
                    "example",
                )
        if self.step and self.step > self.size:
            raise UserError(
                f"chunks: step {self.step} is more than size {self.size}: frames "
                "between chunks would never be seen",
                remedy="lower step, or leave it out",
            )


class UtteranceOptions(Options):
    """Whole utterances."""

    type: Literal["utterances"] = "utterances"


class EvenChunkOptions(Options):
    """Chunks of nearly equal size.

    An utterance of n frames is cut into round(n / size) pieces, at least one, so that
    each frame counts once. A network whose description says `edges: repeat` sees the
    frames around a chunk.
    """

    type: Literal["chunks"] = "chunks"
    size: Annotated[int, Field(ge=3, le=100000)] = 150
    """Frames that chunks have about: two thirds to three halves of it."""


class SamplingOptions(Options):
    """Set how often a pass takes each utterance, by its speaker and its length.

    A pass takes as many utterances as there are (of a source of `source_weights`, as
    many as that says): some of them more than once, others not in every pass.
    """

    speaker_power: Fraction = 1.0
    """A speaker with n utterances comes in proportion to n to this power: 1 as often as
    the data have it, 0 each speaker equally often, 0.5 between the two. (With
    `length_power` the sum of what it makes of them takes the place of n.)"""
    length_power: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """An utterance of T frames comes in proportion to T to this power: 0 for all alike,
    1 for long ones more often, -1 for short ones more often, so that all are
    seen with as many frames."""

    @property
    def is_even(self) -> bool:
        """Return whether a pass takes each utterance once."""
        return self.speaker_power == 1 and not self.length_power


class MixedNoise(Options):
    """Noise from recordings, whose features are computed as those of the speech are."""

    files: Text
    """Folder of recordings (searched with all below it), or a pattern such as
    `noise/rain*.flac`; of several channels the first is taken. Noise that is shorter
    than the utterance repeats."""
    snr: Decibels = Uniform(low=0.0, high=20.0)
    """Energy of the utterance's features over that of the noise's, dB."""
    probability: Fraction = 1.0
    """Share of the mixed utterances that have this noise."""


class MixingDraws(Options):
    """Noises that are added to stored features, drawn again in each pass over the data.

    Energies add up, phases are not known; see docs/simulation.md. Draws follow from the
    seed, the utterance's id and the pass.
    """

    probability: Fraction = 1.0
    """Share of the utterances that noises are added to."""
    noises: Annotated[dict[Name, MixedNoise], Field(min_length=1)]
    """Noises by a name of their kind, which add up."""
    cache_mb: Free[PositiveInt] = 200
    """Features of noises that are kept in memory for their next use, MB; the longest
    unused go first."""

    @property
    def files(self) -> list[str]:
        """Folders and patterns of recordings that are needed."""
        return [noise.files for noise in self.noises.values()]


class BatchOptions(Options):
    """Data of a training: order, batches and lengths, in frames of the features."""

    sequences: Annotated[
        ChunkOptions | UtteranceOptions, Field(discriminator="type")
    ] = ChunkOptions()
    """Unit that a network is trained on at a time."""
    max_sequences: Annotated[int, Field(ge=1, le=1000000)] = 64
    """Sequences (chunks or utterances) in a batch, of all ranks together."""
    max_frames: PositiveInt | None = None
    """Frames in a batch of all ranks together, padding counted (sequences x the longest
    of them); a longer sequence comes alone. null for no limit."""
    quadratic_frames: PositiveInt | None = None
    """A sequence of n frames counts as n + n^2 / this for `max_frames`, so that batches
    of long ones are smaller: for layers whose memory grows so, as that of attention
    (Lhotse: quadratic_duration). null counts frames alone."""
    min_length: PositiveInt = 1
    """Shortest utterances that are trained on, frames."""
    max_length: PositiveInt | None = None
    """Longest utterances that are trained on, frames; null for all."""
    length_tolerance: Annotated[int, Field(ge=0, le=100)] = 0
    """Frames by which the labels of an utterance may be more or fewer than its
    features; frames without a label are not counted. Utterances that differ by more are
    left out (in the ledger)."""
    order: Annotated[
        str,
        Field(pattern="^(default|sorted|reverse|random|laplace:[.]?[1-9][0-9]{0,6})$"),
    ] = "random"
    """Order of the sequences in an epoch: `default` (as stored), `sorted` (by length),
    `reverse` (long ones first), `random`, or `laplace:<n>` (random, then n windows
    sorted by length, in turns up and down; `laplace:.<n>` makes windows of n
    sequences)."""
    pool: PositiveInt | None = None
    """Utterances whose chunks are drawn together where order is `random`: the chunks of
    so many utterances, then those of the next. For features on the fly or on a slow
    disk; null draws all chunks freely."""
    buckets: Annotated[int, Field(ge=1, le=1000)] = 1
    """Ranges of length, with equally many sequences each, that batches are kept within;
    1 for none."""
    partition_epoch: Annotated[int, Field(ge=1, le=10000)] = 1
    """Epochs that one pass over the data is split into."""
    subsets: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """Shares of the utterances, drawn once, that the first, second, ... pass learns
    from; the last holds for all passes behind, and a smaller share is part of a greater
    one: [0.1] is a random tenth for good (RETURNN: fixed_random_subset), [0.1, 0.5, 1]
    a set that grows. Empty for all utterances."""
    source_weights: dict[
        SourceName,
        Annotated[
            tuple[Annotated[float, Field(ge=0, le=1000)], ...], Field(min_length=1)
        ],
    ] = Field(default_factory=dict)
    """How often the first, second, ... pass takes the utterances of a source of
    `corpus.train`, where that is `combined`; the last number holds for all passes
    behind. {tv: [2], web: [0.5], calls: [0, 1]} takes those of tv twice a pass, half of
    those of web in turns, and those of calls from the second pass on. 1 for sources
    that are not named."""
    sampling: SamplingOptions = SamplingOptions()
    """How often a pass takes each utterance, by its speaker and its length."""
    shift_frames: bool = True
    """With a network that gives an output for one frame of s: whether the k-th pass
    over the data begins each utterance k modulo s frames later, so that in s passes
    every label is learnt from."""
    prefetch: Free[Annotated[int, Field(ge=0, le=1000)]] = 4
    """Batches that a background thread makes ready; 0 for no thread."""
    cache_mb: Free[PositiveInt | None] = None
    """Memory for stored features and labels, MB, of each rank, for train and for dev:
    what the coming batches need is read ahead into up to half of it, and what was asked
    for longest ago is dropped (RETURNN: cache_size). For slow disks and network file
    systems, and where memory is short. null leaves both to the operating system, which
    reads a page when it is touched and keeps what finds room."""
    on_the_fly: Free[OnTheFlyOptions] = OnTheFlyOptions()
    """Computation of features in training, where they are not stored (`stored:
    false` in `nnet.features`)."""
    perturbation: PerturbationDraws | None = None
    """Speed and volume that are drawn for each utterance in each pass, where features
    are not stored; null leaves the audio unchanged. See `corpus.perturbed` for stored
    ones."""
    simulation: SimulationDraws | None = None
    """Rooms, noises, other speakers and devices that are drawn for each utterance in
    each pass, where features are not stored; null for none. See docs/simulation.md."""

    mixing: MixingDraws | None = None
    """Noises that are added to stored features, drawn for each utterance in each pass;
    null for none."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(
                f"max_length {self.max_length} is below min_length {self.min_length}: "
                "no utterance would be used"
            )
        if self.pool is not None and self.order != "random":
            raise ValueError(
                f"pool is of order random, and does nothing with order {self.order}; "
                "leave it out"
            )
        if self.quadratic_frames is not None and self.max_frames is None:
            raise ValueError(
                "quadratic_frames says how frames count for max_frames, which is null; "
                "set both, or leave it out"
            )
        return self

    def pass_of(self, epoch: int) -> int:
        """Return the pass over the data that an epoch belongs to; both from 0."""
        return epoch // self.partition_epoch

    @property
    def first_whole_pass(self) -> int:
        """The first pass (from 0) that subsets and weights stay the same from."""
        weights = self.source_weights.values()
        return max(map(len, [self.subsets, *weights, (1.0,)])) - 1

    @property
    def chunks(self) -> ChunkOptions | None:
        """Options of the chunks; None where sequences are whole utterances."""
        return self.sequences if isinstance(self.sequences, ChunkOptions) else None

    def for_evaluation(self) -> Self:
        """Return the same data in a fixed order, short ones first, in one epoch.

        Simulated only where outputs learn what simulation knows.
        """
        simulation = self.simulation
        return self.replace(
            order="sorted",
            pool=None,
            partition_epoch=1,
            subsets=(),
            source_weights={},
            sampling=SamplingOptions(),
            shift_frames=False,
            perturbation=None,
            mixing=None,
            simulation=simulation if simulation and simulation.targets else None,
        )


class Hdf5Options(Options):
    """Features, and labels, that HDF5 files of RETURNN's layout hold.

    Sequences are utterances of the corpus: `seqTags` are their ids, with `_` in the
    place of blanks.
    """

    files: Annotated[
        dict[Text, Annotated[tuple[Text, ...], Field(min_length=1), Unique]],
        Field(min_length=1),
    ]
    """Files of each set, by its name (`train`, `dev`, those of `corpus.test` and
    `corpus.perturbed`): of all that a network with these features is trained on or
    decodes. Labels may lie in their own files, put together with those of the features
    by `seqTags`: where `inputs` are labels (RETURNN's `HDFDumpLayer`), they are those
    of the only one of `targets` that no other file has."""
    targets: Annotated[tuple[Name, ...], Unique] = ()
    """Names, in `targets/data`, of labels that outputs with `loss: ce` learn: one label
    a frame. `pdf`, pdf-ids of the tree of `alignments`, and `phone` take the place of
    those that alignments would give."""
    sparse: Name | None = None
    """Target whose labels are the features, one class number a frame (RETURNN's sparse
    data), for networks that begin with a layer of class `embedding`: `data` where the
    files' `inputs` are labels. null: `inputs` are features."""
    image_height: PositiveInt | None = None
    """Rows that images (2-D inputs, with a target `sizes`) are filled to, with zeros
    below; null for those of a set's highest image. Their columns are the frames."""
    frame_shift_ms: PositiveFloat = 10.0
    """Time from one frame to the next, milliseconds."""
    first_middle_ms: NonNegativeFloat = 12.5
    """Middle of the first frame's window, milliseconds."""


class DataOptions(BatchOptions):
    """Data of the training of a network.

    Pieces of utterances, their order, batches, normalization. All lengths are frames of
    the features.
    """

    normalization: Literal["none", "mean", "mean_variance", "global"] = "mean_variance"
    """Normalization of the features, beyond what their store has: `none`, by each
    utterance's `mean`, by its `mean_variance`, or `global` (mean and variance of the
    training frames, kept with the model)."""


class LfmmiDataOptions(DataOptions):
    """Data of the training of a network by LF-MMI.

    Pieces of utterances, their order, batches, normalization. All lengths are frames of
    the features.
    """

    sequences: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        EvenChunkOptions | UtteranceOptions, Field(discriminator="type")
    ] = EvenChunkOptions()
    """Unit that a network is trained on at a time."""

    @property
    def chunks(self) -> None:
        """None: chunks are those of `EvenChunkOptions`."""
        return

    @property
    def chunk_size(self) -> int | None:
        """Frames of a chunk; None where sequences are whole utterances."""
        chunks = self.sequences
        return chunks.size if isinstance(chunks, EvenChunkOptions) else None


class CtcDataOptions(DataOptions):
    """Data of the training of a network by CTC: whole utterances.

    Their order, batches, normalization. All lengths are frames of the features.
    """

    sequences: UtteranceOptions = UtteranceOptions()  # pyright: ignore[reportIncompatibleVariableOverride]
    """Unit that a network is trained on at a time: `utterances`."""

    @property
    def chunks(self) -> None:
        """None: transcripts have no times to cut at."""
        return


class AttentionDataOptions(CtcDataOptions):
    """Data of the training of a decoder with attention: whole utterances.

    Their order, batches, normalization. All lengths are frames of the features.
    """


class SequenceDataOptions(BatchOptions):
    """Data of sequence training."""

    sequences: UtteranceOptions = UtteranceOptions()  # pyright: ignore[reportIncompatibleVariableOverride]
    """Lattices need whole utterances."""
    max_sequences: Annotated[int, Field(ge=1, le=1000000)] = 16
    """Utterances in a batch, of all ranks together."""
    normalization: Literal["inherited"] = "inherited"
    """That of the parent, which its weights expect."""
    shift_frames: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Frames of the output are those that decoding scores, in every pass."""
