"""The components of an nnet3 as operations: `operations_of`.

Nodes that do nothing in recognition are passed over; nodes that the output does not
need are left out. A node is refused by its name, and its component's.

A frame has all that a network of ours reads: the features, and behind them the i-vector
if there are any, an input of its own in Kaldi.

Source: Kaldi `nnet3/nnet-{simple,tdnn,normalize,general}-component.cc` (`Propagate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from latflow.errors import UserError
from latflow.nnet.nnet3_affine import AFFINE, time_offsets
from latflow.nnet.nnet3_file import Nnet3File, Node, Part, Term
from latflow.nnet.nnet3_operations import (
    FRAME,
    Affine,
    Function,
    Join,
    Normalization,
    Operation,
    Range,
    What,
    put_together,
    readers_of,
)
from latflow.nnet.nnet3_tokens import COMPUTED, Component

REMEDY = "import a network of cnn, tdnn and tdnnf layers"
_INPUT, _IVECTOR, _OUTPUT = "input", "ivector", "output"
_WHOLE = ((Term(_INPUT),), (Term(_IVECTOR),))
_FAR = 1000  # frames that no layer looks away
_FUNCTIONS = {
    "RectifiedLinearComponent": "relu",
    "SigmoidComponent": "sigmoid",
    "TanhComponent": "tanh",
    "LogSoftmaxComponent": "log_softmax",
}


def operations_of(
    file: Nnet3File,
) -> tuple[dict[str, Operation], str, tuple[int, int]]:
    """Return the operations behind the output, each after those that it reads.

    Returns:
        (operations by their node, node of the output, numbers of the features and of
        the i-vector in a frame).

    Raises:
        UserError: there is no output or no features; a node reads what is not there,
            i-vectors of several times, or what has another size; or nodes feed each
            other in a circle.
    """
    return _Builder(file).operations()


def _refuse(node: str, component: str, what: str) -> UserError:
    where = f"node {node}" + (f", component {component}" if component else "")
    return UserError(f"{where}: {what}", remedy=REMEDY)


class _Builder:
    """Makes operations of nodes."""

    def __init__(self, file: Nnet3File) -> None:
        self._file = file
        self._made: dict[str, Operation] = {}
        self._same: dict[str, Term] = {}  # nodes that are others, shifted and scaled
        self._dims: dict[str, int] = {}

    def operations(self) -> tuple[dict[str, Operation], str, tuple[int, int]]:
        """Return what `operations_of` does."""
        nodes = self._file.nodes
        if nodes.get(_OUTPUT) is None or nodes[_OUTPUT].kind != "output":
            raise UserError("there is no output-node named output", remedy=REMEDY)
        if nodes.get(_INPUT) is None or nodes[_INPUT].kind != "input":
            raise UserError("there is no input-node named input", remedy=REMEDY)
        sizes = self._make_inputs()
        for node in self._sources_first(nodes[_OUTPUT], ()):
            self._make(node)
        end = self._operation(nodes[_OUTPUT], Join())
        if end.single is None:
            self._made[_OUTPUT] = end
            last = _OUTPUT
        else:
            last = end.single
        readers = readers_of(self._made)  # a part of the frame may have none
        made = {n: o for n, o in self._made.items() if readers[n] or n == last}
        return put_together(made), last, sizes

    def _sources_first(self, node: Node, path: tuple[str, ...]) -> Iterator[Node]:
        """Yield what a node needs, however deep, and then the node, if not yet made."""
        if node.name in path:
            raise _refuse(node.name, "", "nodes feed each other in a circle")
        if node.fault:
            raise _refuse(node.name, node.component, node.fault)
        for part in node.parts:
            for term in part:
                source = self._file.nodes.get(term.node)
                if source is None or source.kind == "output":
                    raise _refuse(node.name, "", f"there is no node {term.node[:60]}")
                is_ivector = (source.kind, source.name) == ("input", _IVECTOR)
                if term.is_fixed != is_ivector:
                    raise _refuse(
                        node.name,
                        node.component,
                        f"i-vectors are read as ReplaceIndex({_IVECTOR}, t, 0), and "
                        "nothing else is",
                    )
                if source.name not in self._dims:
                    yield from self._sources_first(source, (*path, node.name))
        if node.name not in self._dims and node.kind != "output":
            yield node

    def _make(self, node: Node) -> None:
        """Make the operation of a node."""
        if node.kind == "input":
            raise _refuse(node.name, "", f"an input that is no {_INPUT} or {_IVECTOR}")
        operation = self._operation(node, Join())
        if node.kind == "range":
            if node.begin + node.dim > operation.dim or node.dim < 1:
                raise _refuse(node.name, "", "it takes numbers that are not there")
            if node.dim < operation.dim:
                operation = replace(operation, what=Range(node.begin), dim=node.dim)
        else:
            operation = self._applied(node, operation)
        terms = list(operation.terms)
        if isinstance(operation.what, Join) and len(terms) == 1:
            self._same[node.name], self._dims[node.name] = terms[0], operation.dim
            return
        if not isinstance(operation.what, Affine | Join) and operation.single is None:
            source, size = f"{node.name}.input", self._size(operation)
            self._add(replace(operation, node=source, what=Join(), dim=size))
            operation = replace(operation, parts=((Term(source),),))
        self._add(operation)

    def _make_inputs(self) -> tuple[int, int]:
        """Make the parts of a frame: the features, and the i-vector if it is read."""
        nodes = self._file.nodes
        names = [_INPUT, _IVECTOR] if self._has_ivectors() else [_INPUT]
        for name in names:
            if not 0 < nodes[name].dim <= 1 << 16:
                raise _refuse(name, "", f"{nodes[name].dim} numbers a frame")
        dim = nodes[_INPUT].dim
        self._dims[FRAME] = sum(nodes[name].dim for name in names)
        if len(names) == 1:
            self._same[_INPUT], self._dims[_INPUT] = Term(FRAME), dim
        else:
            for name, begin in zip(names, (0, dim), strict=True):
                what, parts = Range(begin), ((Term(FRAME),),)
                self._add(Operation(name, what, parts, nodes[name].dim))
        return dim, self._dims[FRAME] - dim

    def _has_ivectors(self) -> bool:
        """Return whether a node reads i-vectors."""
        nodes = self._file.nodes
        if nodes.get(_IVECTOR) is None or nodes[_IVECTOR].kind != "input":
            return False
        parts = (part for node in nodes.values() for part in node.parts)
        return any(term.node == _IVECTOR for part in parts for term in part)

    def _applied(self, node: Node, operation: Operation) -> Operation:
        """Return the operation of a component on what its node reads."""
        component = self._file.components[node.component]
        what, dim = _what(node, component, operation)
        offsets = time_offsets(component)
        if offsets is not None:
            operation = _spliced(operation, offsets)
            self._check_offsets(node, operation)
        size, wanted = self._size(operation), dim
        if isinstance(what, Affine):
            wanted = what.matrix.shape[1]
        if dim < 1 or wanted != size:
            raise _refuse(
                node.name, node.component, f"it does not take the {size} numbers read"
            )
        return replace(operation, what=what, dim=dim)

    def _add(self, operation: Operation) -> None:
        self._made[operation.node] = operation
        self._dims[operation.node] = operation.dim

    def _operation(self, node: Node, what: What) -> Operation:
        """Return an operation on what a node reads, as wide as that."""
        parts = _with_whole_frames(
            tuple(tuple(map(self._resolved, part)) for part in node.parts)
        )
        for part in parts:
            if len({self._dims[term.node] for term in part}) > 1:
                raise _refuse(node.name, node.component, "a sum of different sizes")
        found = Operation(node.name, what, parts, 0)
        self._check_offsets(node, found)
        return replace(found, dim=self._size(found))

    def _check_offsets(self, node: Node, operation: Operation) -> None:
        """Refuse what reads nothing, or frames so far away that it must be a fault."""
        if max(map(abs, operation.offsets), default=_FAR + 1) > _FAR:
            raise _refuse(
                node.name, node.component, f"it reads frames more than {_FAR} away"
            )

    def _resolved(self, term: Term) -> Term:
        """Return what a term is where its node is another."""
        same = self._same.get(term.node)
        found = term if same is None else same.moved(term.offset, term.scale)
        return replace(found, is_fixed=False)  # a frame has its i-vector

    def _size(self, operation: Operation) -> int:
        return sum(self._dims[part[0].node] for part in operation.parts)


def _with_whole_frames(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Take features with the i-vector behind them as the frame that they are."""
    found: list[Part] = []
    for part in parts:
        if (*found[-1:], part) == _WHOLE:
            found[-1] = (Term(FRAME),)
        else:
            found.append(part)
    return tuple(found)


def _spliced(operation: Operation, offsets: list[int]) -> Operation:
    """Return an operation that reads its parts at several offsets."""
    parts = tuple(
        tuple(term.moved(offset, 1.0) for term in part)
        for offset in offsets
        for part in operation.parts
    )
    return replace(operation, parts=parts)


def _what(node: Node, component: Component, operation: Operation) -> tuple[What, int]:
    """Return what a component does, and the size of its result (-1: wrong)."""
    kind, values = component.type, component.values
    if kind not in COMPUTED:
        raise _refuse(node.name, component.name, f"{kind} is read, and not computed")
    if values.get("Dim", operation.dim) != operation.dim:
        return Join(), -1
    if kind in AFFINE:
        try:
            return AFFINE[kind](component)
        except ValueError as error:
            raise _refuse(node.name, component.name, str(error)) from None
    if kind == "BatchNormComponent":
        return _batch_norm(node, component)
    scale, offset = _scale_and_offset(component)
    if len(scale):
        if len(scale) != len(offset) or operation.dim % len(scale):
            return Join(), -1
        times = operation.dim // len(scale)
        what = Normalization.plain(np.tile(scale, times), np.tile(offset, times))
        return what, operation.dim
    function = _FUNCTIONS.get(kind)
    return Join() if function is None else Function(function), values.get("Dim", -1)


def _scale_and_offset(component: Component) -> tuple[np.ndarray, np.ndarray]:
    """Return what a component multiplies by and adds; empty for other components."""
    kind, values = component.type, component.values
    if kind == "FixedScaleComponent":
        scale = values["Scales"]
    elif kind.endswith("PerElementScaleComponent"):
        scale = values["Params"]
    elif kind == "BackpropTruncationComponent" and values.get("Scale", 1.0) != 1.0:
        scale = np.full(values["Dim"], values["Scale"], np.float32)
    elif kind == "DropoutComponent" and values["DropoutProportion"]:
        # Kaldi scales in recognition, not in training.
        rate = values["DropoutProportion"]
        scale = np.full(values["Dim"], 1.0 - rate, np.float32)
    elif kind == "FixedBiasComponent":
        return np.ones_like(values["Bias"]), values["Bias"]
    elif kind == "PerElementOffsetComponent":
        return np.ones_like(values["Offsets"]), values["Offsets"]
    elif kind == "ScaleAndOffsetComponent":
        scale, offset = values["Scales"], values["Offsets"]
        return scale, offset
    else:
        scale = np.zeros(0)
    return scale, np.zeros_like(scale)


def _batch_norm(node: Node, component: Component) -> tuple[What, int]:
    """Return batch normalization with the statistics of training."""
    values = component.values
    mean, variance = values["StatsMean"], values["StatsVar"]
    dim, rms = values["Dim"], values["TargetRms"]
    if not values["Count"] > 0:
        raise _refuse(node.name, component.name, "batch normalization without counts")
    if not values["Epsilon"] >= 0 or not np.all(variance + values["Epsilon"] > 0):
        raise _refuse(node.name, component.name, "variances that are not positive")
    if len(mean) != len(variance) or not len(mean) or dim % len(mean):
        return Join(), -1
    blocks = dim // len(mean)
    mean = np.tile(mean, blocks)
    variance = np.tile(np.maximum(variance, 0.0), blocks)
    scale = None if rms == 1.0 else np.full(dim, rms, np.float32)
    offset = None if scale is None else np.zeros_like(scale)
    return Normalization(mean, variance, values["Epsilon"], scale, offset), dim
