"""Options of GMM systems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from latflow.align.options import AlignOptions, AlignSplitOptions
from latflow.features.options import DeltasTransform, TransformOptions
from latflow.graphs.options import GraphOptions
from latflow.options import (
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)


class TrainingOptions(AlignOptions):
    """Schedule of the training of a system."""

    subset_shortest: PositiveInt | None = None
    """Train on this many of the shortest utterances; null for all."""
    num_gaussians: PositiveInt = 10000
    """Gaussians of all states together at the end of mixing up."""
    num_iterations: PositiveInt = 35
    """Iterations of training, the initial model counted in (34 estimates for 35)."""
    realign_iterations: tuple[PositiveInt, ...] = (10, 20, 30)
    """Iterations in which utterances are aligned again."""
    last_increase_iteration: PositiveInt = 25
    """Iteration up to which the number of Gaussians is raised, in equal steps."""
    power: Fraction = 0.25
    """Gaussians are shared out in proportion to a state's frames to this power."""

    def search(self, iteration: int) -> AlignOptions:  # noqa: ARG002
        """Return how utterances are aligned in an iteration."""
        return self


class MonoOptions(TrainingOptions):
    """Monophones from a flat start."""

    type: Literal["mono"] = "mono"
    num_gaussians: PositiveInt = 1000
    """Gaussians of all states together at the end of mixing up."""
    num_iterations: PositiveInt = 40
    """Iterations of training, the estimate from the equal alignment counted in."""
    realign_iterations: tuple[PositiveInt, ...] = (
        *range(1, 10),
        *range(10, 20, 2),
        *range(20, 39, 3),
    )
    """Iterations in which utterances are aligned again."""
    last_increase_iteration: PositiveInt = 30
    """Iteration up to which the number of Gaussians is raised, in equal steps."""
    initial_beam: PositiveFloat = 6.0
    """Beam of the first alignment, in scaled log-likelihood."""

    def search(self, iteration: int) -> AlignOptions:
        """Return how utterances are aligned in an iteration."""
        return self.replace(beam=self.initial_beam) if iteration == 1 else self


class TreeOptions(TrainingOptions):
    """Triphones, with their own decision tree."""

    alignments: Name
    """Earlier system whose alignments the tree is built from."""
    lexicon: Name | None = None
    """Earlier system whose alignments say how often each pronunciation and silence is
    spoken; null for the lexicon as it is given."""
    num_leaves: PositiveInt = 2000
    """Leaves of the tree at which splitting ends, before leaves are merged."""
    split_threshold: NonNegativeFloat = 300.0
    """Least gain in log-likelihood of a split of the tree, summed over frames."""
    cluster_threshold: float = -1.0
    """Greatest loss of merging leaves; negative for the gain of the least split, 0 to
    merge none."""
    context_width: Literal[1, 3, 5] = 3
    """Phones in the context window of the tree, 3 for triphones."""


class DeltasOptions(TreeOptions):
    """Triphones on delta features, with a decision tree."""

    type: Literal["deltas"] = "deltas"


class LdaMlltOptions(TreeOptions):
    """Triphones on spliced features, projected by LDA and turned by MLLT."""

    type: Literal["lda_mllt"] = "lda_mllt"
    splice_left: NonNegativeInt = 3
    """Frames before each that are spliced to it."""
    splice_right: NonNegativeInt = 3
    """Frames after each that are spliced to it."""
    lda_dim: PositiveInt = 40
    """Dimensions that LDA keeps; fewer than the pdfs of the system behind the
    alignments."""
    mllt_iterations: tuple[PositiveInt, ...] = (2, 4, 6, 12)
    """Iterations that begin with a new MLLT transform; [] for LDA alone."""


class FmllrOptions(Options):
    """Estimation of the transform of a speaker (fMLLR)."""

    update_type: Literal["full", "diag", "offset", "none"] = "full"
    """Parameters that are estimated: `full`, a matrix and an offset; `diag`, a factor
    and an offset a dimension; `offset`, an offset a dimension; `none`, nothing."""
    min_count: NonNegativeFloat = 500.0
    """Speakers with no more frames than this (without silence, as weighted) keep their
    features."""
    num_iterations: PositiveInt = 40
    """Times that all rows of a full transform are optimized."""
    silence_weight: Fraction = 0.0
    """Weight of frames of silence, in which speakers hardly differ; 0 leaves them out.
    """


class SatOptions(TreeOptions):
    """Triphones trained on features adapted to each speaker by fMLLR (SAT).

    Features are those of the system whose alignments are used.
    """

    type: Literal["sat"] = "sat"
    power: Fraction = 0.2
    """Gaussians are shared out in proportion to a state's frames to this power."""
    fmllr_iterations: tuple[PositiveInt, ...] = (2, 4, 6, 12)
    """Iterations in which the transforms of the speakers are estimated again; [] for
    the first ones alone."""
    fmllr: FmllrOptions = FmllrOptions()
    """Estimation of the transform of a speaker (fMLLR)."""


SystemOptions = Annotated[
    MonoOptions | DeltasOptions | LdaMlltOptions | SatOptions,
    Field(discriminator="type"),
]


class SharedOptions(Options):
    """Settings that all GMM systems of an experiment are trained with."""

    transform: TransformOptions = DeltasTransform()
    """Features of systems of the types `mono` and `deltas`."""
    graph: GraphOptions = GraphOptions()
    """Scales of transition probabilities in training graphs."""
    seed: int = 1
    """Seed of the random numbers."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that computes statistics."""


class AlignAdaptedOptions(AlignSplitOptions):
    """Alignment of whole splits with a finished system, adapted to each speaker."""

    fmllr: FmllrOptions = FmllrOptions()
    """Estimation of the transform of a speaker (fMLLR)."""


class MapOptions(Options):
    """Adaptation of the means of Gaussians to other speech (MAP)."""

    tau: PositiveFloat = 10.0
    """Frames that a mean's old value counts for (Kaldi's `--mean-tau`); more hold on to
    the old means."""
    num_iterations: PositiveInt = 3
    """Times that the speech is aligned and the means are estimated, always around the
    old ones."""


class GmmOptions(Options):
    """GMM-HMM systems, trained one after another, and how the finished ones align.

    Defaults are those of Kaldi's train_mono.sh, train_deltas.sh and align_si.sh.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    """Device that computes the statistics of training: `cpu` (Numba, all threads) or
    `cuda` (batched matrix products of torch on one GPU)."""
    import_: str | None = Field(default=None, alias="import")
    """Folder of a GMM system that Kaldi trained (an `exp/tri3b`: final.mdl, tree,
    final.mat, splice_opts, ali.*.gz, ...). It becomes the first system, under the
    folder's name; needs `lang`."""
    lang: str | None = None
    """Folder of the language directory that the imported system was trained with (a
    `data/lang`); it takes the place of one made from `lang.lexicon`."""
    graph: str | None = None
    """Folder with the decoding graph of the imported system (an `exp/tri3b/graph`:
    HCLG.fst); without it the graph is made from `lang` and the section `lm`."""
    systems: dict[Name, SystemOptions] = Field(
        default={"mono": MonoOptions(), "tri1": DeltasOptions(alignments="mono")}
    )
    """Systems by name, in the order of training."""
    align: AlignAdaptedOptions = AlignAdaptedOptions()
    """Alignment of whole splits with a finished system."""


class IvectorOptions(Options):
    """I-vectors: their extractor, and their extraction; defaults are Kaldi's."""

    features: Name
    """Features, of `nnet.features`, that i-vectors are made of and follow in each
    frame; best without CMVN."""
    dim: Annotated[int, Field(ge=2, le=1000)] = 100
    """Elements of an i-vector."""
    num_gaussians: Annotated[int, Field(ge=1, le=8192)] = 512
    """Gaussians of the background mixture."""
    context: Annotated[int, Field(ge=0, le=20)] = 3
    """Frames on either side that a frame is spliced with."""
    feature_dim: PositiveInt = 40
    """Principal components of spliced frames that are modelled."""
    num_iterations: PositiveInt = 10
    """Iterations of EM."""
    max_utterances: PositiveInt = 30000
    """Utterances that the extractor is trained on, at most (drawn)."""
    num_gselect: PositiveInt = 5
    """Gaussians that share a frame."""
    min_post: ProperFraction = 0.025
    """Smallest share of a frame."""
    posterior_scale: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Weight of a frame: frames are far from independent."""
    max_count: NonNegativeFloat = 100.0
    """Weighted frames beyond which the prior's weight grows with them; 0 for never."""
    history: Literal["speaker", "utterance"] = "speaker"
    """Speech that an i-vector knows at the start of an utterance: the speaker's
    utterances before, or none."""
    max_remembered_frames: PositiveFloat = 1000.0
    """Frames that a speaker's utterances before count for, at most."""
    period: PositiveInt = 10
    """Frames from one i-vector to the next."""
    silence_weight: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Weight of the frames that the search holds for silence, where a package
    recognizes speech as it arrives: then a pause does not pass for a speaker. Vosk has
    0.001. In training and decoding, which know no search, all frames count the same."""
