"""Options of the training of networks: steps, systems, runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from latflow.align.options import SupervisionOptions
from latflow.criteria.options import CriterionOptions, LfmmiOptions
from latflow.criteria.sequence.options import SequenceOptions
from latflow.decode.options import (
    AttentionDecodeOptions,
    NetworkDecodeOptions,
    TranscriptLatticeOptions,
)
from latflow.graphs.options import (
    ChainGraphOptions,
    ChainTreeOptions,
    CtcGraphOptions,
    GraphOptions,
)
from latflow.nnet.options import Precision
from latflow.options import (
    SWITCH,
    Fraction,
    Free,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)
from latflow.scoring.options import ComparisonOptions
from latflow.training.data_options import (
    AttentionDataOptions,
    BatchOptions,
    CtcDataOptions,
    DataOptions,
    LfmmiDataOptions,
    SequenceDataOptions,
)
from latflow.training.optimizer_options import (
    AdamOptions,
    NewbobSchedule,
    OptimizerOptions,
    OutlierOptions,
    ScheduleOptions,
)


class TrainingOptions(Options):
    """Training of the network; the same for all criteria. See docs/training.md."""

    epochs: PositiveInt = 8
    """Passes over the training data (over a part each, where `data` splits epochs)."""
    optimizer: OptimizerOptions = AdamOptions()
    """Optimizer: what makes a step of a gradient."""
    learning_rate: PositiveFloat = 0.001
    """Learning rate that the schedule starts from; the factor of `noam`."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises evenly from 0 at the start of training.
    """
    schedule: ScheduleOptions = NewbobSchedule()
    """Change of the learning rate during training."""
    label_smoothing: ProperFraction = 0.0
    """Share of a label's weight that is spread over all classes (cross-entropy of
    frames, or of units that a decoder predicts)."""
    focal: NonNegativeFloat = 0.0
    """Exponent of the focal loss: the cross-entropy of each frame is multiplied by
    (1 - p(label))^focal, so that frames that are classified well weigh less. 2 is usual
    (RETURNN: focal_loss_factor); 0 for none."""
    consistency: NonNegativeFloat = 0.0
    """Weight of the consistency of two views (CR-CTC): each batch goes through the
    network twice, with other masks and dropout, and outputs of CTC or cross-entropy are
    to classify both alike. 0.2 is usual; 0 for one view."""
    clip_norm: PositiveFloat | None = 5.0
    """Gradients (mean over frames) longer than this are shortened to it; null for
    never."""
    outliers: OutlierOptions | None = None
    """Steps whose loss or gradient is far from those before are skipped or clipped, and
    counted in log, ledger and report (RETURNN: outlier detection); null for never. On a
    GPU each step is then waited for."""
    gradient_noise: NonNegativeFloat = 0.0
    """eta; normal noise of variance eta / (1 + step)^0.55 is added to the gradient."""
    l2: NonNegativeFloat = 0.0
    """Factor of the parameters that is added to the gradient before it is clipped."""
    max_change: PositiveFloat | None = None
    """Greatest length of the change that a step makes to all parameters together
    (Kaldi's max-param-change); longer ones are shortened to it. null for no limit."""
    learning_rate_factors: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Factors on the learning rate, by layer of the network; 1 for the others. (Kaldi
    trains the cross-entropy branch of LF-MMI with 5; Adam's steps do not depend on the
    size of a gradient, so that it needs none.)"""
    freeze: tuple[str, ...] = ()
    """Layers of the network that stay unchanged at the start of this training, by name;
    `*` stands for any part of one. Their normalization keeps its statistics too.
    """
    max_norm: PositiveFloat | None = None
    """Greatest length of a unit's incoming weights; null for no limit."""
    constrain_share: Fraction = 0.25
    """Share of the steps after which layers restore their constraints (semi-orthogonal
    factors)."""
    precision: Precision = "float32"
    """Numbers of the forward and backward pass; `bf16` by torch's autocast, `auto`:
    bf16 where the processor or the GPU multiplies such numbers, else float32.
    Parameters are float32."""
    compile: Free[Annotated[Literal["auto", "off"], SWITCH]] = "auto"
    """`auto`: on a GPU, passes of batches that have one shape in common are captured as
    CUDA graphs, so that nothing waits for Python, where layers allow it; `off`: each
    operation is launched by itself."""
    accumulate: PositiveInt = 1
    """Batches whose gradients make one step."""
    micro_sequences: PositiveInt | None = None
    """Greatest number of sequences that go through the network at once; larger batches
    are split, which saves memory; steps change by rounding, and with batch
    normalization (statistics of each part) or dropout (other masks) by more. null for
    whole batches."""
    parameter_averaging: PositiveInt | None = None
    """Instead of adding up gradients in each step, ranks train alone and their
    parameters are averaged every so many steps; null for gradients."""
    elastic: Free[bool] = False
    """With Horovod: continue with the ranks that are left when one dies, and take in
    new ones."""
    pretraining: NonNegativeInt = 0
    """Layer-wise pretraining: epochs with the first layer alone, then with one more
    layer each time, until all are there. 0 for none. These epochs count in `epochs`."""
    dev_interval: PositiveInt | None = None
    """Steps between evaluations on dev within an epoch; null for the ends of epochs
    alone."""
    patience: PositiveInt | None = None
    """Epochs without a better dev loss after which training ends; null for never."""
    final: Literal["last", "best", "average"] = "best"
    """Parameters of the finished model: of the last epoch, of the epoch with the best
    dev loss, or the mean of the last epochs', of as many as is best on dev."""
    average: PositiveInt = 4
    """Epochs whose parameters are averaged at most where `final` is `average`."""
    ema: ProperFraction | None = None
    """Decay, per step, of a moving average of the parameters, for example 0.999; it is
    what dev is evaluated with, and the finished model. null for the parameters as they
    are."""
    ensemble: PositiveInt = 1
    """Networks that are trained in this way, with their own seeds, and made one by the
    mean of their scores. On a processor they are trained side by side, so many that no
    thread is idle. The decoded output has to be of class `output`."""
    priors: Literal["posteriors", "alignments"] = "posteriors"
    """Prior of the classes: the mean of the network's posteriors on the training data
    (as Kaldi's nnet2 and nnet3), or their shares in the training labels. The latter
    favour a class that the alignments hardly have, since the network has not learnt how
    rare it is."""
    continue_from: Literal["last"] | None = None
    """`last`: continue from the newest checkpoint of the last training of this network,
    killed or finished, under the options as they are now, of which learning rate,
    schedule, epochs and the like may have changed (see docs/training.md). null: only
    the same training continues; another begins again."""
    keep_finished: Free[bool] = True
    """Keep the last checkpoint of a training that has ended, and that of its best
    epoch, so that it may continue later (`continue_from`): with Adam three times the
    size of the network each. false removes them."""
    checkpoint_minutes: Free[PositiveFloat] = 10.0
    """Minutes between checkpoints within an epoch."""
    keep_checkpoints: Free[PositiveInt] = 2
    """Checkpoints of epochs that are kept, beside the best."""
    log_interval: Free[PositiveInt] = 50
    """Steps between lines of log.jsonl."""
    tensorboard: Free[bool] = True
    """Write events for TensorBoard too."""

    @model_validator(mode="after")
    def _check_freeze(self) -> Self:
        if self.freeze and self.pretraining:
            raise ValueError(
                "freeze: with pretraining layers come one by one, and cannot stay as "
                "they are; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_continuing(self) -> Self:
        if self.continue_from and self.ensemble > 1:
            raise ValueError(
                "continue_from is of one network; leave it out with an ensemble"
            )
        return self

    @model_validator(mode="after")
    def _check_ema(self) -> Self:
        if self.ema is not None and self.parameter_averaging is not None:
            raise ValueError(
                "ema is of parameters that all ranks have in common, and with "
                "parameter_averaging they train alone; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_outliers(self) -> Self:
        if self.outliers is not None and self.parameter_averaging is not None:
            raise ValueError(
                "outliers are judged by all ranks together, which parameter_averaging "
                "lets train alone; leave out one of the two"
            )
        return self


#: A description of a network: a file, or what would stand in it.
NetworkSource = str | dict[str, Any]
# Keys that systems of several types have.
Parent = Annotated[
    str | None,
    Field(
        description="Earlier network whose parameters the training starts from, by the "
        "names of the layers: a network may be grown, or cut, on the way. null for "
        "random parameters. See docs/training.md."
    ),
]
FeaturesRead = Annotated[
    str | None,
    Field(
        description="Features that the network reads: a name of `nnet.features`, "
        "`nnet.ivectors`, `nnet.hdf5` or `nnet.pasted`; or a GMM system's name, for "
        "its features (after LDA, MLLT, and the transforms of the speakers); or null "
        "for the frames that GMM systems start from."
    ),
]
AlignedSet = Annotated[
    str,
    Field(
        description="Set that the network is trained on: `train`, or one of "
        "`corpus.perturbed` or `corpus.cleaned`, which `alignments` then aligns."
    ),
]


class CeSystemOptions(Options):
    """Frames are classified; labels are the pdfs of the alignments (cross-entropy).

    Further outputs of the network may have other losses: phones, CTC.
    """

    type: Literal["ce"] = "ce"
    network: NetworkSource
    """File with the description of the network, or the description itself, with the key
    `layers`; see docs/networks.md."""
    parent: Parent = None
    alignments: str
    """System whose alignments, tree and decoding graph are used:
    a GMM system, or an earlier network, which aligns as `nnet.align` says."""
    features: FeaturesRead = None
    training_set: AlignedSet = "train"
    data: DataOptions = DataOptions()
    """Data of the training: pieces of utterances, their order, batches, normalization.
    All lengths are frames of the features."""
    training: TrainingOptions = TrainingOptions()
    """Training of the network; the same for all criteria. See docs/training.md."""
    decode: NetworkDecodeOptions = NetworkDecodeOptions()
    """Use of the network's scores in decoding."""


class CtcSystemOptions(Options):
    """Predict the phones of the transcripts in order, at any frame (CTC).

    No alignments are needed. The network has its own tree and graph: labels are the
    phones of the lexicon, and a blank.
    """

    type: Literal["ctc"] = "ctc"
    network: NetworkSource
    """File with the description of the network, or the description itself, with the key
    `layers`; see docs/networks.md. Its decoded
    output has `loss: ctc`."""
    parent: Parent = None
    alignments: str | None = None
    """System whose alignments further outputs of cross-entropy learn from: a GMM
    system, or an earlier network, which aligns as `nnet.align` says; null where there
    are none."""
    features: FeaturesRead = None
    training_set: AlignedSet = "train"
    graph: CtcGraphOptions = CtcGraphOptions()
    """Scales of the transition probabilities in graphs of CTC, which has none."""
    data: CtcDataOptions = CtcDataOptions()
    """Data of the training: whole utterances, their order, batches, normalization. All
    lengths are frames of the features."""
    training: TrainingOptions = TrainingOptions()
    """Training of the network; the same for all criteria. See docs/training.md."""
    decode: NetworkDecodeOptions = NetworkDecodeOptions()
    """Use of the network's scores in decoding."""


class AttentionSystemOptions(Options):
    """Predict units of the transcripts one after another, by a decoder with attention.

    No alignments are needed. Decoding is a separate beam search, along the words of the
    lexicon and with the language model of the section `lm` (see docs/training.md).
    """

    type: Literal["attention"] = "attention"
    network: NetworkSource
    """File with the description of the network, or the description itself, with the key
    `layers`; see docs/networks.md. Its decoded
    output is a layer of class `attention_decoder`; another output may have the loss
    `ctc`, over the same units."""
    parent: Parent = None
    units: Literal["phone", "character", "word"] = "phone"
    """What is predicted: phones of the lexicon, characters of its words (and a space
    behind each), or its words."""
    alignments: None = None
    """Always null: transcripts alone are learnt from."""
    features: FeaturesRead = None
    training_set: str = "train"
    """Set that the network is trained on: `train`, or one of `corpus.perturbed` or
    `corpus.cleaned`."""
    data: AttentionDataOptions = AttentionDataOptions()
    """Data of the training: whole utterances, their order, batches, normalization. All
    lengths are frames of the features."""
    training: TrainingOptions = TrainingOptions()
    """Training of the network; the same for all criteria. See docs/training.md."""
    decode: AttentionDecodeOptions = AttentionDecodeOptions()
    """Beam search of a decoder with attention."""


class LfmmiSystemOptions(Options):
    """Discriminate phone sequences from all others (lattice-free MMI, Kaldi's chain).

    The network has its own tree and graphs.
    """

    type: Literal["lfmmi"] = "lfmmi"
    network: NetworkSource
    """File with the description of the network, or the description itself, with the key
    `layers`; see docs/networks.md. Its first output
    has `loss: lfmmi`."""
    parent: Parent = None
    alignments: str | None = None
    """System whose alignments the supervision is made from: a GMM system, or an earlier
    network that scores every frame, which aligns as `nnet.align` says. The tree is made
    from those of the GMM system. Without, the training starts flat, from transcripts
    alone: on whole utterances, with the full tree of `tree.context_width` phones (1
    unless set, or 2), and `criterion.l2` 5e-5 unless set."""
    features: FeaturesRead = None
    training_set: AlignedSet = "train"
    tree: ChainTreeOptions = ChainTreeOptions()
    """Tree and denominator of a network trained with lattice-free MMI."""
    supervision: SupervisionOptions = SupervisionOptions()
    """Times that the supervision allows."""
    supervision_lattices: TranscriptLatticeOptions | None = None
    """Makes the supervision from lattices of all likely pronunciations of the
    transcripts, silences between words among them, as Kaldi's chain recipes do; by the
    GMM system that `alignments` names. null for one pronunciation of each word, that
    of the alignment. `{}` for the defaults."""
    graph: ChainGraphOptions = ChainGraphOptions()
    """Scales of the transition probabilities in graphs of LF-MMI networks."""
    criterion: LfmmiOptions = LfmmiOptions()
    """Lattice-free maximum mutual information (Kaldi's chain models)."""
    data: LfmmiDataOptions = LfmmiDataOptions()
    """Data of the training: pieces of utterances, their order, batches, normalization.
    All lengths are frames of the features."""
    training: TrainingOptions = TrainingOptions()
    """Training of the network; the same for all criteria. See docs/training.md."""
    decode: NetworkDecodeOptions = NetworkDecodeOptions()
    """Use of the network's scores in decoding."""


class SequenceTrainingOptions(TrainingOptions):
    """Training of a network on lattices."""

    epochs: PositiveInt = 2
    """Passes over the training data (over a part each, where `data` splits epochs)."""
    learning_rate: PositiveFloat = 0.0001
    """Learning rate that the schedule starts from: a tenth of that of other trainings,
    since the network has learnt already."""
    micro_sequences: PositiveInt | None = 4
    """Utterances that go through the network at once: while lattices of one such part
    are made, the network works on the next."""


class SequenceSystemOptions(Options):
    """Continue the training of a network, by a criterion over lattices.

    Lattices are made on the fly from whole utterances; see docs/sequence-training.md.
    """

    type: Literal["sequence"] = "sequence"
    parent: str
    """Network that the training starts from, of `nnet.systems`; its features,
    alignments, graph and priors stay."""
    training_set: str | None = None
    """Set that the network is trained on: `train`, or one of `corpus.perturbed` or
    `corpus.cleaned`; null for the parent's."""
    criterion: CriterionOptions
    """Criterion that the training maximizes. See docs/criteria.md."""
    sequence: SequenceOptions = SequenceOptions()
    """Sequence training: lattices and alignments made on the fly. The graph of the
    competing hypotheses is `nnet.denominator`."""
    data: SequenceDataOptions = SequenceDataOptions()
    """Data of the training: pieces of utterances, their order, batches, normalization.
    All lengths are frames of the features."""
    training: SequenceTrainingOptions = SequenceTrainingOptions()
    """Training of the network; the same for all criteria. See docs/training.md."""
    decode: NetworkDecodeOptions = NetworkDecodeOptions()
    """Use of the network's scores in decoding."""


class RunOptions(Options):
    """Everything that a training depends on beside its files."""

    data: BatchOptions
    training: TrainingOptions = TrainingOptions()
    device: Free[Literal["auto", "cpu", "cuda"]] = "auto"
    backend: Free[Literal["auto", "horovod", "torch", "none"]] = "auto"
    seed: int = 0


class CeRunOptions(RunOptions):
    """Everything that a training by cross-entropy depends on beside its files."""

    type: Literal["ce"] = "ce"
    data: DataOptions = DataOptions()  # pyright: ignore[reportIncompatibleVariableOverride]


class CtcRunOptions(RunOptions):
    """Everything that a training by CTC depends on beside its files."""

    type: Literal["ctc"] = "ctc"
    data: CtcDataOptions = CtcDataOptions()  # pyright: ignore[reportIncompatibleVariableOverride]


class AttentionRunOptions(RunOptions):
    """Everything that a training of a decoder with attention depends on."""

    type: Literal["attention"] = "attention"
    data: AttentionDataOptions = AttentionDataOptions()  # pyright: ignore[reportIncompatibleVariableOverride]


class LfmmiRunOptions(RunOptions):
    """Everything that a training by lattice-free MMI depends on beside its files."""

    type: Literal["lfmmi"] = "lfmmi"
    data: LfmmiDataOptions = LfmmiDataOptions()  # pyright: ignore[reportIncompatibleVariableOverride]
    criterion: LfmmiOptions = LfmmiOptions()


class SequenceRunOptions(RunOptions):
    """Everything that a sequence training depends on beside its files."""

    type: Literal["sequence"] = "sequence"
    criterion: CriterionOptions
    sequence: SequenceOptions = SequenceOptions()
    data: SequenceDataOptions = SequenceDataOptions()  # pyright: ignore[reportIncompatibleVariableOverride]
    training: SequenceTrainingOptions = SequenceTrainingOptions()  # pyright: ignore[reportIncompatibleVariableOverride]
    score: ComparisonOptions = ComparisonOptions()
    """Comparison of words."""
    graph: GraphOptions = GraphOptions()
    """Scales of the transition probabilities in the denominator."""
