"""The components in a file of Kaldi's nnet3: a class, and tokens with values.

All classes of Kaldi are read, whatever a network of ours computes (`COMPUTED`): a
network has often parts that recognition does not need. Files of all ages are read:
tokens stand in any order, and those of training only are optional.

Source: Kaldi `nnet3/nnet-component-itf.cc` and
`nnet3/nnet-{simple,tdnn,normalize,general,combined,convolutional,attention}-component.cc`
(`Read`), `nnet3/convolution.cc` (`ConvolutionModel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latflow.kaldi.io import KaldiReader


@dataclass(frozen=True)
class Component:
    """A component: its class in Kaldi, and its values by their tokens."""

    name: str
    type: str
    values: Mapping[str, Any] = field(repr=False)


def read_component(reader: KaldiReader, name: str) -> Component:
    """Read a component.

    Raises:
        UserError: it is cut, has a class or a token that Kaldi lacks, or lacks what
            recognition needs.
    """
    opening = reader.token()
    kind = opening.removeprefix("<").removesuffix(">")
    if kind not in COMPUTED and kind not in _STORED:
        reader.fail(f"component {name}: '{kind[:60]}' is not a class of components")
    values: dict[str, Any] = {}
    while (token := reader.token()) not in _ENDS.get(kind, (f"</{kind}>",)):
        read = _READ_OF.get((kind, token)) or _READ.get(token)
        if read is None:
            reader.fail(f"component {name}: the token '{token[:40]}' is not known")
        values[token[1:-1]] = read(reader)
    needed = COMPUTED.get(kind, ())
    missing = [token for token in needed if token not in values]
    if missing:
        reader.fail(f"component {name}: <{missing[0]}> is missing")
    for token in needed:
        _check_finite(reader, name, token, values[token])
    return Component(name, kind, values)


def _check_finite(reader: KaldiReader, name: str, token: str, value: Any) -> None:
    """Refuse NaN and infinite numbers."""
    if not isinstance(value, Mapping) and not np.all(np.isfinite(value)):
        reader.fail(f"component {name}: <{token}> has numbers that are not finite")


def _flag(reader: KaldiReader) -> bool:
    """Return a truth value; a token that has none behind it is true."""
    word = reader.peek_token()
    if word.startswith("<"):
        return True
    found = reader.take(1).decode("latin-1") if reader.binary else reader.token()
    if found not in {"T", "F"}:
        reader.fail(f"found '{found[:40]}' where T or F is expected")
    return found == "T"


def _two(read: Callable[[KaldiReader], Any]) -> Callable[[KaldiReader], Any]:
    return lambda reader: (read(reader), read(reader))


def _vector_or_matrix(reader: KaldiReader) -> np.ndarray:
    """Read statistics that are of a vector in one class, of a matrix in another."""
    if not reader.binary:  # the vector's form holds the numbers of both
        return reader.float_vector()
    is_matrix = reader.peek_token() in {"FM", "DM"}
    return reader.float_matrix() if is_matrix else reader.float_vector()


def _sizes(reader: KaldiReader) -> np.ndarray:
    """Read whole numbers, which Kaldi wrote as floats for some time."""
    if reader.binary and reader.peek_token() == "FV":
        return np.rint(reader.float_vector()).astype(np.int32)
    return reader.int_vector()


def _convolution_model(reader: KaldiReader) -> dict[str, Any]:
    """Read the shape of a convolution over time and height."""
    reader.expect("<ConvolutionModel>")
    found: dict[str, Any] = {}
    for token in (
        "NumFiltersIn", "NumFiltersOut", "HeightIn", "HeightOut", "HeightSubsampleOut",
    ):  # fmt: skip
        reader.expect(f"<{token}>")
        found[token] = reader.int32()
    reader.expect("<Offsets>")
    found["Offsets"] = reader.int_pairs()
    reader.expect("<RequiredTimeOffsets>")
    found["RequiredTimeOffsets"] = reader.int_vector()
    reader.expect("</ConvolutionModel>")
    return found


def _parts(reader: KaldiReader) -> list[Component]:
    """Read the components that one is made of."""
    return [read_component(reader, f"part {n}") for n in range(1, reader.int32() + 1)]


#: How the value behind a token is read, whatever the component. Numbers that only tell
#: of training are read as floats, also those of four bytes that are whole.
_READ: dict[str, Callable[[KaldiReader], Any]] = {
    **dict.fromkeys(
        (
            "<ActiveScalingCount>", "<Alpha>", "<BackpropScale>", "<ClippingThreshold>",
            "<Count>", "<DropoutProportion>", "<Epsilon>", "<KeyScale>",
            "<L2Regularize>", "<LearningRate>", "<LearningRateFactor>", "<MaxChange>",
            "<MaxChangePerSample>", "<MaxChangeScaleStats>", "<MaxMemoryMb>",
            "<NumBackpropped>", "<NumDimsProcessed>", "<NumDimsSelfRepaired>",
            "<NumElementsClipped>", "<NumElementsProcessed>", "<NumElementsZeroed>",
            "<NumMinibatchesHistory>", "<NumSamplesHistory>", "<NumSelfRepaired>",
            "<NumZeroingBoundaries>", "<OderivCount>", "<OrthonormalConstraint>",
            "<Scale>", "<SelfRepairClippedProportionThreshold>",
            "<SelfRepairLowerThreshold>", "<SelfRepairScale>", "<SelfRepairTarget>",
            "<SelfRepairThreshold>", "<SelfRepairTotal>", "<SelfRepairUpperThreshold>",
            "<SpecAugmentMaxProportion>", "<StatsCount>", "<TargetRms>",
            "<UpdateCount>", "<VarianceFloor>", "<ZeroedProportion>",
            "<ZeroingThreshold>",
        ),
        KaldiReader.float32,
    ),
    **dict.fromkeys(
        (
            "<BlockDim>", "<CellDim>", "<Dim>", "<FiltXDim>", "<FiltXStep>",
            "<FiltYDim>", "<FiltYStep>", "<InputDim>", "<InputPeriod>",
            "<InputVectorization>", "<InputXDim>", "<InputYDim>", "<InputZDim>",
            "<KeyDim>", "<LeftContext>", "<MaxRowsProcess>", "<NumBlocks>",
            "<NumHeads>", "<NumLeftInputs>", "<NumLeftInputsRequired>",
            "<NumLogCountFeatures>", "<NumRepeats>", "<NumRightInputs>",
            "<NumRightInputsRequired>", "<OutputDim>", "<OutputPeriod>", "<PoolXSize>",
            "<PoolXStep>", "<PoolYSize>", "<PoolYStep>", "<PoolZSize>", "<PoolZStep>",
            "<Rank>", "<RankIn>", "<RankOut>", "<RecurrenceInterval>",
            "<RecurrentDim>", "<RightContext>", "<SpecAugmentMaxRegions>",
            "<TimeMaskMaxFrames>", "<TimePeriod>", "<TimeStride>", "<UpdatePeriod>",
            "<ValueDim>", "<ZeroingInterval>",
        ),
        KaldiReader.int32,
    ),
    **dict.fromkeys(
        (
            "<AddLogStddev>", "<Continuous>", "<DropoutPerFrame>", "<IncludeVarinance>",
            "<IsGradient>", "<IsUpdatable>", "<NormBasedClipping>", "<OutputContext>",
            "<OutputStddevs>", "<TestMode>", "<UseDropout>", "<UseNaturalGradient>",
        ),
        _flag,
    ),
    **dict.fromkeys(
        (
            "<Bias>", "<BiasParams>", "<EntropyStats>", "<OderivRms>", "<Offsets>",
            "<Output>", "<Scales>", "<SelfRepairConfig>", "<SelfRepairProb>",
            "<StatsMean>", "<StatsVar>",
        ),
        KaldiReader.float_vector,
    ),
    **dict.fromkeys(
        (
            "<FilterParams>", "<LinearParams>", "<Params>", "<PosteriorStats>", "<w_h>",
        ),
        KaldiReader.float_matrix,
    ),
    **dict.fromkeys(("<DerivAvg>", "<ValueAvg>"), _vector_or_matrix),
    **dict.fromkeys(("<ColumnMap>", "<Sizes>"), _sizes),
    "<TimeOffsets>": KaldiReader.int_vector,
    "<AlphaInOut>": _two(KaldiReader.float32),
    "<RankInOut>": _two(KaldiReader.int32),
    "<Model>": _convolution_model,
    "<NumComponents>": _parts,
}  # fmt: skip

#: Where a class has another value behind a token.
_READ_OF: dict[tuple[str, str], Callable[[KaldiReader], Any]] = {
    ("PerElementScaleComponent", "<Params>"): KaldiReader.float_vector,
    ("NaturalGradientPerElementScaleComponent", "<Params>"): KaldiReader.float_vector,
}
#: Tokens that end a component, where Kaldi wrote a wrong one for some time.
_ENDS = {
    "SumGroupComponent": ("</SumGroupComponent>", "<SumGroupComponent>"),
    "NaturalGradientAffineComponent": (
        "</NaturalGradientAffineComponent>",
        "<NaturalGradientAffineComponent>",
    ),
    "NaturalGradientPerElementScaleComponent": (
        "</NaturalGradientPerElementScaleComponent>",
        "</PerElementScaleComponent>",
    ),
}

#: Classes that a network of ours computes, and the tokens whose values are needed.
COMPUTED: dict[str, tuple[str, ...]] = {
    "AffineComponent": ("LinearParams", "BiasParams"),
    "NaturalGradientAffineComponent": ("LinearParams", "BiasParams"),
    "FixedAffineComponent": ("LinearParams", "BiasParams"),
    "LinearComponent": ("Params",),
    "TdnnComponent": ("TimeOffsets", "LinearParams", "BiasParams"),
    "FixedScaleComponent": ("Scales",),
    "FixedBiasComponent": ("Bias",),
    "PerElementScaleComponent": ("Params",),
    "NaturalGradientPerElementScaleComponent": ("Params",),
    "PerElementOffsetComponent": ("Offsets",),
    "ScaleAndOffsetComponent": ("Dim", "Scales", "Offsets"),
    "PermuteComponent": ("ColumnMap",),
    "SumGroupComponent": ("Sizes",),
    "SumBlockComponent": ("InputDim", "OutputDim", "Scale"),
    "BlockAffineComponent": ("NumBlocks", "LinearParams", "BiasParams"),
    "RepeatedAffineComponent": ("NumRepeats", "LinearParams", "BiasParams"),
    "NaturalGradientRepeatedAffineComponent": (
        "NumRepeats", "LinearParams", "BiasParams",
    ),
    "BatchNormComponent": (
        "Dim", "Epsilon", "TargetRms", "Count", "StatsMean", "StatsVar",
    ),
    "TimeHeightConvolutionComponent": ("Model", "LinearParams", "BiasParams"),
    "RectifiedLinearComponent": ("Dim",),
    "SigmoidComponent": ("Dim",),
    "TanhComponent": ("Dim",),
    "LogSoftmaxComponent": ("Dim",),
    "NoOpComponent": ("Dim",),
    "ClipGradientComponent": ("Dim",),
    "BackpropTruncationComponent": ("Dim",),
    "DropoutComponent": ("Dim", "DropoutProportion"),
    "GeneralDropoutComponent": ("Dim",),
    "SpecAugmentTimeMaskComponent": ("Dim",),
}  # fmt: skip
#: Classes that are read and not computed.
_STORED = frozenset((
    "CompositeComponent", "ConstantComponent", "ConstantFunctionComponent",
    "ConvolutionComponent", "DistributeComponent", "DropoutMaskComponent",
    "ElementwiseProductComponent", "GruNonlinearityComponent",
    "LstmNonlinearityComponent", "MaxpoolingComponent", "NormalizeComponent",
    "OutputGruNonlinearityComponent", "PnormComponent", "RestrictedAttentionComponent",
    "SoftmaxComponent", "StatisticsExtractionComponent", "StatisticsPoolingComponent",
))  # fmt: skip
