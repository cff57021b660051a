"""Operations that layers of ours have, made of the nodes of an nnet3.

What stands together in a layer of ours is put together: an affine map and its function,
a scale and its offset, and the four to six nodes of a factorized layer (`tdnnf-layer`
of Kaldi's xconfig, or what `latflow.nnet.nnet3` writes of one).

Batch normalization of `tdnnf` has no scale of its own: one that our export folded is
taken apart into mean and variance, such that the export gives the same bits again.

Source: Kaldi `steps/libs/nnet3/xconfig/{basic,composite}_layers.py`; Povey et al. 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from latflow.nnet.nnet3_file import Part, Term

FRAME = "<frame>"  # all that a network of ours reads: no name of a node
FACTORIZED_EPSILON = 1e-3  # of the batch normalization in `tdnnf`
PLAIN_EPSILON = 1e-5  # of normalizations that are a scale and an offset
_SHORTEST, _LONGEST = 4, 6  # nodes of a factorized layer without what does nothing


@dataclass(frozen=True)
class Affine:
    """A matrix [R, C], an offset [R] or None, and a function behind them."""

    matrix: np.ndarray = field(repr=False)
    bias: np.ndarray | None = field(repr=False)
    function: str = "none"
    semi_orthogonal: bool = False


@dataclass(frozen=True)
class Normalization:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset.

    Attributes:
        scale, offset: [D]; None without any.
        is_plain: whether it is a scale and an offset alone.
    """

    mean: np.ndarray = field(repr=False)
    variance: np.ndarray = field(repr=False)
    epsilon: float
    scale: np.ndarray | None = field(default=None, repr=False)
    offset: np.ndarray | None = field(default=None, repr=False)
    is_plain: bool = False

    @classmethod
    def plain(cls, scale: np.ndarray, offset: np.ndarray) -> Normalization:
        """Return x * scale + offset."""
        dim = len(scale)
        mean, variance = np.zeros(dim), np.full(dim, 1.0 - PLAIN_EPSILON)
        return cls(mean, variance, PLAIN_EPSILON, scale, offset, is_plain=True)


@dataclass(frozen=True)
class Function:
    """A function of each number, or of the frame."""

    name: str


@dataclass(frozen=True)
class Join:
    """What the parts say, and nothing else."""


@dataclass(frozen=True)
class Range:
    """Some of the numbers of a frame."""

    begin: int


@dataclass(frozen=True)
class Factorized:
    """A factorized layer.

    Attributes:
        narrow: frames t - reach and t (reach 0: t) to the bottleneck.
        widen: frames t and t + reach of the bottleneck to the result.
        mean, variance: of batch normalization with `FACTORIZED_EPSILON`.
        reach: frames of the features.
        bypass: factor of the input in the sum.
        is_ours: whether its nodes are those of our export.
    """

    narrow: np.ndarray = field(repr=False)
    widen: Affine
    mean: np.ndarray = field(repr=False)
    variance: np.ndarray = field(repr=False)
    reach: int
    bypass: float
    is_ours: bool


What = Affine | Normalization | Function | Join | Range | Factorized


@dataclass(frozen=True)
class Operation:
    """An operation on parts side by side; `dim` numbers a frame of its result."""

    node: str
    what: What
    parts: tuple[Part, ...]
    dim: int

    @property
    def base(self) -> str:
        """Name without what xconfig and our export put behind its last dot."""
        return self.node.rpartition(".")[0] or self.node

    @property
    def terms(self) -> Iterator[Term]:
        """All terms."""
        return (term for part in self.parts for term in part)

    @property
    def single(self) -> str | None:
        """The node that it reads, if it is one as it is."""
        terms = list(self.terms)
        if len(terms) == 1 and terms[0] == Term(terms[0].node):
            return terms[0].node
        return None

    @property
    def offsets(self) -> set[int]:
        """Frames that are looked at."""
        found = {term.offset for term in self.terms}
        if isinstance(self.what, Factorized):
            found |= {-self.what.reach, self.what.reach}
        return found


def _moments(norm: Normalization) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and variance of a normalization in `tdnnf`; None: there are none.

    Of several whose scale and offset have the same bits, any one.
    """
    if norm.scale is None and np.float32(norm.epsilon) == np.float32(
        FACTORIZED_EPSILON
    ):
        return norm.mean, norm.variance
    scale = 1.0 / np.sqrt(norm.variance.astype(np.float64) + norm.epsilon)
    offset = -norm.mean * scale
    if norm.scale is not None and norm.offset is not None:
        scale, offset = scale * norm.scale, offset * norm.scale + norm.offset
    if norm.is_plain:
        assert norm.scale is not None
        scale = norm.scale.astype(np.float64)
    if not np.all(scale > 0) or np.any(scale > FACTORIZED_EPSILON**-0.5 * (1 + 1e-6)):
        return None
    bits = scale.astype(np.float32), offset.astype(np.float32)
    found = np.zeros(len(scale), bool)
    mean = variance = np.zeros(len(scale), np.float32)
    for step in sorted(range(-8, 9), key=abs):
        near = scale * (1.0 + step * 2.0**-27)
        tried = np.maximum(near**-2 - FACTORIZED_EPSILON, 0.0).astype(np.float32)
        made = (torch.from_numpy(tried).double() + FACTORIZED_EPSILON).rsqrt().numpy()
        for centre in neighbours((-offset / made).astype(np.float32)):
            is_same = made.astype(np.float32) == bits[0]
            is_same &= (-centre.astype(np.float64) * made).astype(np.float32) == bits[1]
            is_new = (is_same | (step == 0)) & ~found
            mean = np.where(is_new, centre, mean)
            variance = np.where(is_new, tried, variance)
            found |= is_same
    return mean, variance


def neighbours(values: np.ndarray) -> Iterable[np.ndarray]:
    """Return the values, and the nearest float32 above and below them."""
    yield values
    for end in (np.inf, -np.inf):
        yield np.nextafter(values, np.float32(end))


# -- what stands together ------------------------------------------------------------


def readers_of(operations: dict[str, Operation]) -> dict[str, set[str]]:
    """Return the nodes that read each node."""
    found: dict[str, set[str]] = {FRAME: set(), **{node: set() for node in operations}}
    for operation in operations.values():
        for term in operation.terms:
            found[term.node].add(operation.node)
    return found


def put_together(operations: dict[str, Operation]) -> dict[str, Operation]:
    """Put together what is one layer of ours."""
    return _fused(_without_scales(_factorized(operations)))


def _factorized(operations: dict[str, Operation]) -> dict[str, Operation]:
    """Put together the nodes of factorized layers."""
    readers = readers_of(operations)
    found = dict(operations)
    for operation in operations.values():
        if operation.node.endswith(".linear"):
            nodes = _block(operation, operations, readers)
            if nodes is not None:
                block, inner = nodes
                for node in inner:
                    del found[node]
                found[block.node] = block
    return {node: found[node] for node in operations if node in found}


def _block(
    first: Operation, operations: dict[str, Operation], readers: dict[str, set[str]]
) -> tuple[Operation, list[str]] | None:
    """Return a factorized layer that begins with an operation, and its nodes."""
    chain = [first]  # each the only reader of the one before
    while len(chain) < _LONGEST and len(readers[chain[-1].node]) == 1:
        chain.append(operations[next(iter(readers[chain[-1].node]))])
    if len(chain) < _SHORTEST:
        return None
    second, relu, last = chain[1:_SHORTEST]
    narrow, widen, norm = first.what, second.what, last.what
    source, reach = _taps(first, before=True)
    if not (
        isinstance(narrow, Affine)
        and isinstance(widen, Affine)
        and isinstance(norm, Normalization)
        and source is not None
        and narrow.bias is None
        and second.base == first.base
        and _taps(second, before=False) == (first.node, reach)
        and relu.what == Function("relu")
    ):
        return None
    after, bypass = _SHORTEST, 0.0
    if len(chain) > after and chain[after].base == last.base:
        both = _scale_and_offset(last, chain[after])
        if both is not None:
            norm, after = both, after + 1
    if len(chain) > after and chain[after].base == first.base:
        factor = _bypass(chain[after], chain[after - 1].node, source)
        if factor is not None:
            bypass, after = factor, after + 1
    moments = _moments(norm)
    if moments is None:
        return None
    last = chain[after - 1]
    what = Factorized(
        narrow.matrix, widen, *moments, reach, bypass, is_ours=norm.is_plain
    )
    nodes = [operation.node for operation in chain[:after]]
    return Operation(last.node, what, ((Term(source),),), last.dim), nodes


def _taps(operation: Operation, *, before: bool) -> tuple[str | None, int]:
    """Return the node that is read at one frame or at two, and their distance."""
    terms = list(operation.terms)
    is_plain = all(len(part) == 1 for part in operation.parts)
    if not is_plain or len({term.node for term in terms}) != 1:
        return None, 0
    offsets = [term.offset for term in terms if term.scale == 1.0]
    reach = max(map(abs, offsets), default=0)
    wanted = [0] if not reach else [-reach, 0] if before else [0, reach]
    return (terms[0].node, reach) if offsets == wanted else (None, 0)


def _bypass(operation: Operation, result: str, source: str) -> float | None:
    """Return the factor of `source` in its sum with `result`; None: it is no such."""
    if not isinstance(operation.what, Join) or len(operation.parts) != 1:
        return None
    terms = {term.node: term for term in operation.terms}
    if len(operation.parts[0]) != 2 or terms.keys() != {result, source}:
        return None
    factor = terms[source].scale
    is_one = terms[result] == Term(result) and terms[source].offset == 0
    return factor if is_one and factor > 0 else None


def _scale_and_offset(first: Operation, second: Operation) -> Normalization | None:
    """Return a scale and the offset behind it as one; None: they are not."""
    one, other = first.what, second.what
    if not isinstance(one, Normalization) or not isinstance(other, Normalization):
        return None
    if one.scale is None or other.scale is None or one.offset is None:
        return None
    if not one.is_plain or not other.is_plain or other.offset is None:
        return None
    if np.any(one.offset) or np.any(other.scale != 1.0):
        return None
    return Normalization.plain(one.scale, other.offset)


def _without_scales(operations: dict[str, Operation]) -> dict[str, Operation]:
    """Give scaled nodes in joins of present frames operations of their own."""
    dims, found = {n: o.dim for n, o in operations.items()}, {}
    for operation in operations.values():
        scaled = [term for term in operation.terms if term.scale != 1.0]
        is_join = isinstance(operation.what, Join) and operation.offsets == {0}
        if not is_join or any(term.node == FRAME for term in scaled):
            found[operation.node] = operation
            continue
        names = {term: f"{operation.node}.scale{n}" for n, term in enumerate(scaled, 1)}
        for term, name in names.items():
            scale = np.full(dims[term.node], term.scale, np.float32)
            what = Normalization.plain(scale, np.zeros_like(scale))
            parts = ((Term(term.node),),)
            found[name] = Operation(name, what, parts, len(scale))
        parts = tuple(
            tuple(Term(names[term]) if term in names else term for term in part)
            for part in operation.parts
        )
        found[operation.node] = replace(operation, parts=parts)
    return found


def _fused(operations: dict[str, Operation]) -> dict[str, Operation]:
    """Put functions to their affine maps, and offsets to their scales."""
    readers, found = readers_of(operations), dict(operations)
    for operation in operations.values():
        source = found.get(operation.single or "")
        if source is None or len(readers[source.node]) > 1:
            continue
        if source.base != operation.base:
            continue
        what, both = operation.what, None
        if isinstance(what, Function) and isinstance(source.what, Affine):
            if source.what.function == "none":
                both = replace(source.what, function=what.name)
        elif isinstance(what, Normalization):
            both = _scale_and_offset(source, operation)
        if both is not None:
            del found[source.node]
            fused = replace(operation, what=both, parts=source.parts)
            found[operation.node] = fused
    return found
