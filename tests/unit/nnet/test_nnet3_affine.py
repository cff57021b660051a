"""Components of an nnet3 as matrices, against loops over their definitions."""

import io

import numpy as np
import pytest

from latflow.kaldi.io import KaldiReader, KaldiWriter
from latflow.nnet.nnet3_affine import AFFINE, time_offsets
from latflow.nnet.nnet3_tokens import COMPUTED, Component, read_component

RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def applied(kind, values, frame):
    what, dim = AFFINE[kind](Component("x", kind, values))
    assert dim == len(what.matrix)
    return what.matrix @ frame + (0 if what.bias is None else what.bias)


def test_blocks_are_applied_side_by_side():
    weights, bias, frame = normal(6, 4), normal(6), normal(12)
    found = applied(
        "BlockAffineComponent",
        {"NumBlocks": 3, "LinearParams": weights, "BiasParams": bias},
        frame,
    )
    for row in range(6):
        block = row // 2
        part = frame[4 * block : 4 * block + 4]
        assert found[row] == pytest.approx(weights[row] @ part + bias[row], abs=1e-5)


def test_a_repeated_map_is_applied_to_each_part():
    weights, bias, frame = normal(2, 3), normal(2), normal(9)
    values = {"NumRepeats": 3, "LinearParams": weights, "BiasParams": bias}
    found = applied("RepeatedAffineComponent", values, frame)
    wanted = [weights @ part + bias for part in frame.reshape(3, 3)]
    np.testing.assert_allclose(found, np.concatenate(wanted), atol=1e-5)


def test_sums_and_permutations():
    frame = normal(6)
    columns = np.array([2, 0, 1, 5, 3, 4], np.int32)
    found = applied("PermuteComponent", {"ColumnMap": columns}, frame)
    np.testing.assert_array_equal(found, frame[columns])
    sizes = np.array([1, 3, 2], np.int32)
    found = applied("SumGroupComponent", {"Sizes": sizes}, frame)
    wanted = [frame[0], frame[1:4].sum(), frame[4:].sum()]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    values = {"InputDim": 6, "OutputDim": 2, "Scale": 0.5}
    found = applied("SumBlockComponent", values, frame)
    wanted = 0.5 * (frame[:2] + frame[2:4] + frame[4:])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("step", [1, 2])
def test_a_convolution_sees_zeros_above_and_below(step):
    filters_in, filters_out, height = 2, 3, 4
    offsets = np.array([(t, h) for t in (-1, 0, 3) for h in (-1, 0, 1)], np.int32)
    weights, bias = normal(filters_out, 9 * filters_in), normal(filters_out)
    values = {
        "Model": {
            "NumFiltersIn": filters_in,
            "NumFiltersOut": filters_out,
            "HeightIn": height,
            "HeightOut": height // step,
            "HeightSubsampleOut": step,
            "Offsets": offsets,
            "RequiredTimeOffsets": np.array([-1, 0, 3], np.int32),
        },
        "LinearParams": weights,
        "BiasParams": bias,
    }
    kind = "TimeHeightConvolutionComponent"
    assert time_offsets(Component("x", kind, values)) == [-1, 0, 3]
    frames = {time: normal(height, filters_in) for time in (-1, 0, 3)}
    side_by_side = np.concatenate([frames[time].ravel() for time in (-1, 0, 3)])
    found = applied(kind, values, side_by_side).reshape(height // step, filters_out)
    for out in range(height // step):
        wanted = bias.copy()
        for n, (time, shift) in enumerate(offsets):
            source = out * step + shift
            if 0 <= source < height:
                columns = slice(n * filters_in, (n + 1) * filters_in)
                wanted += weights[:, columns] @ frames[time][source]
        np.testing.assert_allclose(found[out], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("PermuteComponent", {"ColumnMap": np.array([0, 0], np.int32)}),
        ("SumGroupComponent", {"Sizes": np.array([0, 2], np.int32)}),
        ("SumBlockComponent", {"InputDim": 5, "OutputDim": 2, "Scale": 1.0}),
        (
            "BlockAffineComponent",
            {"NumBlocks": 4, "LinearParams": normal(6, 4), "BiasParams": normal(6)},
        ),
    ],
)
def test_a_component_that_contradicts_itself_is_refused(kind, values):
    with pytest.raises(ValueError, match="."):
        AFFINE[kind](Component("x", kind, values))


def written(tmp_path, kind, *values):
    """Write tokens and values in Kaldi's binary form; give a reader of them."""
    path = tmp_path / "component"
    with KaldiWriter.open(path) as writer:
        writer.write_token(f"<{kind}>")
        for token, value in values:
            writer.write_token(f"<{token}>")
            if isinstance(value, bytes):
                writer.write_bytes(value)
            elif isinstance(value, int):
                writer.write_int32(value)
            elif isinstance(value, float):
                writer.write_float32(value)
            else:
                writer.write_float_vector(value)
        writer.write_token(f"</{kind}>")
    return KaldiReader(io.BytesIO(path.read_bytes().removeprefix(b"\0B")), binary=True)


def test_statistics_of_all_ages_are_read(tmp_path):
    double = b"\x08" + np.float64(12.0).tobytes()
    statistics = [
        ("Dim", 4), ("BlockDim", 2), ("ValueAvg", normal(4)), ("DerivAvg", normal(4)),
        ("Count", double), ("OderivRms", normal(4)), ("OderivCount", double),
        ("NumDimsSelfRepaired", double), ("NumDimsProcessed", double),
        ("SelfRepairScale", 1e-5),
    ]  # fmt: skip
    for values in (statistics, statistics[:1], [statistics[0], *statistics[2:5]]):
        reader = written(tmp_path, "RectifiedLinearComponent", *values)
        found = read_component(reader, "relu")
        assert (found.type, found.values["Dim"]) == ("RectifiedLinearComponent", 4)


def test_vectors_stand_where_other_classes_have_matrices(tmp_path):
    scales = normal(5)
    for kind in ("PerElementScaleComponent", "NaturalGradientPerElementScaleComponent"):
        found = read_component(written(tmp_path, kind, ("Params", scales)), "scale")
        np.testing.assert_array_equal(found.values["Params"], scales)
    assert set(AFFINE) < set(COMPUTED)
