"""Components of an nnet3 that are affine maps, each as its matrix and its vector.

A convolution over time and height becomes the matrix of all heights: the same numbers,
with more multiplications by zero than the convolution has.

Source: Kaldi `nnet3/nnet-{simple,tdnn,convolutional}-component.cc` (`Propagate`),
`nnet3/convolution.h` (`ConvolutionModel`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latflow.nnet.nnet3_operations import Affine
from latflow.nnet.nnet3_tokens import Component

_MOST_NUMBERS = 1 << 28  # of a matrix: one GB
_Map = tuple[Affine, int]


def time_offsets(component: Component) -> list[int] | None:
    """Return the frames that a component puts side by side before its map, if any."""
    if component.type == "TdnnComponent":
        return component.values["TimeOffsets"].tolist()
    if component.type == "TimeHeightConvolutionComponent":
        return np.unique(component.values["Model"]["Offsets"][:, 0]).tolist()
    return None


def _map_of(matrix: np.ndarray, bias: np.ndarray | None, *, semi: bool = False) -> _Map:
    """Return the map and the size of its result, -1 where the vector does not fit."""
    if bias is not None and len(bias) not in {len(matrix), 0}:
        return Affine(matrix, None), -1
    if bias is not None and not np.any(bias):
        bias = None
    return Affine(matrix, bias, semi_orthogonal=semi and bias is None), len(matrix)


def _affine(component: Component) -> _Map:
    values = component.values
    matrix = values["Params" if "Params" in values else "LinearParams"]
    semi = bool(values.get("OrthonormalConstraint", 0.0))
    return _map_of(matrix, values.get("BiasParams"), semi=semi)


def _block_affine(component: Component) -> _Map:
    """Return a matrix of blocks: the rows are of the blocks, one after the other."""
    matrix, blocks = component.values["LinearParams"], component.values["NumBlocks"]
    if blocks < 1 or len(matrix) % blocks:
        raise ValueError(f"{len(matrix)} rows in {blocks} blocks")
    return _map_of(_diagonal(np.split(matrix, blocks)), component.values["BiasParams"])


def _repeated_affine(component: Component) -> _Map:
    values, times = component.values, component.values["NumRepeats"]
    if not 1 <= times <= 1 << 16:
        raise ValueError(f"{times} repeats")
    matrix = _diagonal([values["LinearParams"]] * times)
    return _map_of(matrix, np.tile(values["BiasParams"], times))


def _diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """Return a matrix with blocks of one shape on its diagonal."""
    rows, columns = blocks[0].shape
    matrix = _zeros(rows * len(blocks), columns * len(blocks))
    for n, block in enumerate(blocks):
        matrix[n * rows : (n + 1) * rows, n * columns : (n + 1) * columns] = block
    return matrix


def _zeros(rows: int, columns: int) -> np.ndarray:
    if rows * columns > _MOST_NUMBERS:
        raise ValueError(f"a matrix of {rows} x {columns} numbers")
    return np.zeros((rows, columns), np.float32)


def _permute(component: Component) -> _Map:
    columns = component.values["ColumnMap"]
    if sorted(columns.tolist()) != list(range(len(columns))):
        raise ValueError("<ColumnMap> is not a permutation")
    matrix = _zeros(len(columns), len(columns))
    matrix[np.arange(len(columns)), columns] = 1.0
    return _map_of(matrix, None)


def _sum_group(component: Component) -> _Map:
    sizes = component.values["Sizes"]
    if not len(sizes) or sizes.min() < 1:
        raise ValueError("<Sizes> has a group without numbers")
    matrix = _zeros(len(sizes), int(sizes.sum()))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    matrix[groups, np.arange(len(groups))] = 1.0
    return _map_of(matrix, None)


def _sum_block(component: Component) -> _Map:
    values = component.values
    size, num_inputs = values["OutputDim"], values["InputDim"]
    if size < 1 or num_inputs < size or num_inputs % size:
        raise ValueError(f"blocks of {size} numbers in {num_inputs}")
    matrix = _zeros(size, num_inputs)
    matrix[np.arange(num_inputs) % size, np.arange(num_inputs)] = values["Scale"]
    return _map_of(matrix, None)


def _convolution(component: Component) -> _Map:
    """Return the matrix of a convolution: a frame has the filters of each height."""
    values, model = component.values, component.values["Model"]
    filters_in, filters_out = model["NumFiltersIn"], model["NumFiltersOut"]
    height_in, height_out = model["HeightIn"], model["HeightOut"]
    offsets, weights = model["Offsets"], values["LinearParams"]
    shape = filters_in, filters_out, height_in, height_out, model["HeightSubsampleOut"]
    if min(shape) < 1 or weights.shape != (filters_out, len(offsets) * filters_in):
        raise ValueError("the shape of the convolution is not that of its weights")
    times = np.unique(offsets[:, 0])
    if set(times.tolist()) != set(model["RequiredTimeOffsets"].tolist()):
        raise ValueError("<RequiredTimeOffsets> are not all time offsets")
    matrix = _zeros(height_out * filters_out, len(times) * height_in * filters_in)
    found = matrix.reshape(height_out, filters_out, len(times), height_in, filters_in)
    parts = weights.reshape(filters_out, len(offsets), filters_in)
    for n, (time, height) in enumerate(offsets.tolist()):
        at = int(np.searchsorted(times, time))
        for out in range(height_out):
            source = out * model["HeightSubsampleOut"] + height
            if 0 <= source < height_in:
                found[out, :, at, source] += parts[:, n]
    return _map_of(matrix, np.tile(values["BiasParams"], height_out))


#: Classes that are affine maps, and the function that makes the map; it raises
#: ValueError where a component contradicts itself.
AFFINE: dict[str, Callable[[Component], _Map]] = {
    "AffineComponent": _affine,
    "NaturalGradientAffineComponent": _affine,
    "FixedAffineComponent": _affine,
    "LinearComponent": _affine,
    "TdnnComponent": _affine,
    "BlockAffineComponent": _block_affine,
    "RepeatedAffineComponent": _repeated_affine,
    "NaturalGradientRepeatedAffineComponent": _repeated_affine,
    "PermuteComponent": _permute,
    "SumGroupComponent": _sum_group,
    "SumBlockComponent": _sum_block,
    "TimeHeightConvolutionComponent": _convolution,
}
