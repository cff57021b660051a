"""Kaldi's nnet3 as a network of ours: the way back from `latflow.nnet.nnet3`.

The operations that the output needs (`latflow.nnet.nnet3_components`) become layers of
the classes `tdnnf`, `tdnn`, `linear`, `batch_norm`, `activation`, `splice`, `concat`,
`add`, `slice` and `subsample`, named after the nodes. Kaldi counts all times in frames
of the features and computes those that are needed; here a layer whose readers want one
frame in three alone computes no other, and its times are counted in these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.graph import DATA
from latflow.nnet.network import Network
from latflow.nnet.nnet3_components import REMEDY, operations_of
from latflow.nnet.nnet3_file import Nnet3File, Part, Term
from latflow.nnet.nnet3_operations import (
    FRAME,
    Affine,
    Factorized,
    Function,
    Join,
    Normalization,
    Operation,
    Range,
    neighbours,
    readers_of,
)
from latflow.nnet.normalization import Normalizer

_CONTAINER = nn.ModuleDict()  # what will hold the layers, by name


@dataclass(frozen=True)
class ImportedNetwork:
    """A network, and how its features are normalized before it.

    Attributes:
        network: in evaluation mode; its output has the loss `lfmmi`.
        normalizer: `global` or `none`.
        ivector_dim: how many of the last numbers of a frame are an i-vector.
    """

    network: Network
    normalizer: Normalizer
    ivector_dim: int


def import_nnet3(file: Nnet3File, subsampling: int) -> ImportedNetwork:
    """Make a network of what stands in a file.

    Args:
        file: the nnet3.
        subsampling: frames of the features for one of the output.

    Raises:
        UserError: no layers of ours compute it; names node and component.
    """
    operations, last, (num_features, ivector_dim) = operations_of(file)
    dim = num_features + ivector_dim
    normalizer = _normalizer(operations)
    if normalizer.kind != "none":
        last = FRAME if last == _NORMALIZED else last
        operations = _without_normalization(operations)
    if last not in operations:
        raise UserError("the output is the input: no layers", remedy=REMEDY)
    layers = _Layers(operations, last, dim, subsampling)
    config = {
        "description": "imported from Kaldi's nnet3",
        "edges": "repeat",
        "layers": layers.config,
    }
    description = NetworkDescription.from_config(config)
    network = Network(description, dim, {"pdf": operations[last].dim})
    network.load_state_dict(
        {**network.state_dict(), **{f"body.layers.{k}": v for k, v in layers.state()}}
    )
    return ImportedNetwork(network.eval(), normalizer, ivector_dim)


# -- normalization of the features ---------------------------------------------------

_NORMALIZED = "normalized.offset"  # as our export names it


def _normalizer(operations: dict[str, Operation]) -> Normalizer:
    """Return the normalization of the features that an export of ours has written."""
    found = operations.get(_NORMALIZED)
    is_first = found is not None and found.single == FRAME
    if not is_first or len(readers_of(operations)[FRAME]) > 1:
        return Normalizer()
    what = found.what if found else None
    if not isinstance(what, Normalization) or not what.is_plain:
        return Normalizer()
    assert what.scale is not None
    assert what.offset is not None
    if not np.all(what.scale > 0):
        return Normalizer()
    scale = what.scale.astype(np.float64)
    mean = (-what.offset / scale).astype(np.float32)
    for near in neighbours(mean):
        is_exact = (-near * scale).astype(np.float32) == what.offset
        mean = np.where(is_exact, near, mean)
    return Normalizer("global", mean, what.scale.astype(np.float32))


def _without_normalization(operations: dict[str, Operation]) -> dict[str, Operation]:
    """Let the operations read the features where they read normalized ones."""

    def renamed(part: Part) -> Part:
        return tuple(
            replace(term, node=FRAME) if term.node == _NORMALIZED else term
            for term in part
        )

    return {
        node: replace(operation, parts=tuple(map(renamed, operation.parts)))
        for node, operation in operations.items()
        if node != _NORMALIZED
    }


# -- layers --------------------------------------------------------------------------


@dataclass
class _Made:
    """A layer that gives a node: its name, and the features' frames for one of it."""

    layer: str
    stride: int
    by_stride: dict[int, str] = field(default_factory=dict)


class _Layers:
    """Makes layers of operations.

    Attributes:
        config: the layers of the description.
    """

    def __init__(
        self,
        operations: dict[str, Operation],
        last: str,
        dim: int,
        subsampling: int,
    ) -> None:
        self.config: dict[str, dict[str, Any]] = {}
        self._state: dict[str, np.ndarray] = {}
        self._operations, self._factor = operations, subsampling
        self._dims = {FRAME: dim, **{n: o.dim for n, o in operations.items()}}
        self._readers = readers_of(operations)
        self._strides = self._wanted_strides(last)
        self._made = {FRAME: _Made(DATA, 1)}
        self._joined: dict[str, list[str]] = {}  # joins that their readers do
        self._stacks: dict[str, tuple[str, int]] = {}  # node: its stack, its number
        for operation in operations.values():
            self._add(operation)
        self._end(last)

    def state(self) -> Iterable[tuple[str, Tensor]]:
        """Return the parameters and statistics by their names below the layers."""
        for name, values in self._state.items():
            yield name, torch.from_numpy(np.ascontiguousarray(values, np.float32))

    def _wanted_strides(self, last: str) -> dict[str, int]:
        """Return the features' frames for one of each node that its readers want."""
        factor, strides = self._factor, {last: self._factor}
        is_sparse = {}
        for operation in reversed(list(self._operations.values())):
            node = operation.node
            readers = self._readers[node]
            if node not in strides:
                all_sparse = all(is_sparse[reader] for reader in readers)
                strides[node] = factor if all_sparse else 1
            is_multiple = all(offset % factor == 0 for offset in operation.offsets)
            is_sparse[node] = strides[node] == factor and is_multiple
        return strides

    # -- names and places --------------------------------------------------------------

    def _name(self, operation: Operation) -> str:
        """Return a name for a layer that is not taken."""
        for name in (operation.base, operation.node):
            clean = name.replace(".", "_")
            if not self._is_taken(clean):
                return clean
        return self._free(operation.node.replace(".", "_"))

    def _free(self, name: str) -> str:
        """Return a name, with a number behind it where it is taken."""
        number = 2
        found = name
        while self._is_taken(found):
            found, number = f"{name}_{number}", number + 1
        return found

    def _is_taken(self, name: str) -> bool:
        return name == DATA or name in self.config or hasattr(_CONTAINER, name)

    def _at(self, node: str, stride: int) -> str:
        """Return the layer that gives a node's frames at a stride."""
        made = self._made[node]
        if made.stride == stride:
            return made.layer
        assert made.stride == 1
        if stride not in made.by_stride:
            name = self._free(f"{made.layer}_every_{stride}")
            layer = {"class": "subsample", "from": made.layer, "factor": stride}
            self.config[name] = layer
            made.by_stride[stride] = name
        return made.by_stride[stride]

    def _stride(self, operation: Operation) -> int:
        """Return the stride that an operation can be computed at."""
        stride = self._strides[operation.node]
        is_multiple = all(offset % stride == 0 for offset in operation.offsets)
        return stride if is_multiple else 1

    def _put(self, operation: Operation, stride: int, name: str, **layer: Any) -> None:
        self.config[name] = layer
        self._made[operation.node] = _Made(name, stride)

    def _end(self, last: str) -> None:
        """Make the layer of the output one."""
        name = self._at(last, self._factor)
        layer = self.config[name]
        if layer["class"] == "linear":
            layer["class"] = "output"
            del layer["size"]
        layer["loss"] = "lfmmi"

    # -- operations --------------------------------------------------------------------

    def _add(self, operation: Operation) -> None:
        what = operation.what
        if isinstance(what, Factorized):
            self._add_factorized(operation, what)
        elif isinstance(what, Affine):
            self._add_affine(operation, what)
        elif isinstance(what, Join):
            self._add_join(operation)
        else:
            self._add_of_one(operation, what)

    def _add_of_one(
        self, operation: Operation, what: Normalization | Function | Range
    ) -> None:
        """Add a layer on one node as it is."""
        stride, name = self._stride(operation), self._name(operation)
        (term,) = operation.terms
        source = self._sources([term.node], stride)
        if isinstance(what, Function):
            layer = {"class": "activation", "from": source, "function": what.name}
        elif isinstance(what, Range):
            layer = {"class": "slice", "from": source, "begin": what.begin}
            layer["size"] = operation.dim
        else:
            has_scale = what.scale is not None
            layer = {"class": "batch_norm", "from": source, "affine": has_scale}
            layer["epsilon"] = float(f"{what.epsilon:.7g}")
            for key in ("mean", "variance", "scale", "offset"):
                values = getattr(what, key)
                if values is not None:
                    self._state[f"{name}.norm.{key}"] = values
        self._put(operation, stride, name, **layer)

    def _add_affine(self, operation: Operation, what: Affine) -> None:
        """Add an affine map of frames side by side."""
        stride, name = self._stride(operation), self._name(operation)
        nodes = list(dict.fromkeys(term.node for term in operation.terms))
        offsets = sorted({term.offset for term in operation.terms})
        starts = np.cumsum([0, *[self._dims[node] for node in nodes]]).tolist()
        matrix = np.zeros((operation.dim, starts[-1] * len(offsets)), np.float32)
        column = 0
        for part in operation.parts:
            dim = self._dims[part[0].node]
            piece = what.matrix[:, column : column + dim].astype(np.float32)
            column += dim
            for term in part:
                at = starts[-1] * offsets.index(term.offset)
                at += starts[nodes.index(term.node)]
                matrix[:, at : at + dim] += piece * np.float32(term.scale)
        layer: dict[str, Any] = {
            "class": "linear",
            "from": self._sources(nodes, stride),
        }
        layer |= {"size": operation.dim, "activation": what.function}
        if offsets != [0]:
            layer |= {"class": "tdnn", "offsets": [o // stride for o in offsets]}
        elif what.semi_orthogonal:
            layer["semi_orthogonal"] = True
        self._state[f"{name}.map.weight"] = matrix
        if what.bias is None:
            layer["bias"] = False
        else:
            self._state[f"{name}.map.bias"] = what.bias
        self._put(operation, stride, name, **layer)

    def _sources(self, nodes: Sequence[str], stride: int) -> str | list[str]:
        joined = [n for node in nodes for n in self._joined.get(node, [node])]
        names = [self._at(node, stride) for node in joined]
        return names[0] if len(names) == 1 else names

    def _add_join(self, operation: Operation) -> None:
        """Add nodes side by side, a sum, or neighbouring frames; else a matrix."""
        stride = self._stride(operation)
        terms = list(operation.terms)
        nodes = [term.node for term in terms]
        is_single = len(operation.parts) == len(terms)
        present = all(term == Term(term.node) for term in terms)
        offsets = [term.offset // stride for term in terms]
        around = list(range(offsets[0], offsets[-1] + 1))
        if present and is_single and self._is_of_reader(operation):
            self._joined[operation.node] = nodes
            return
        if present and (is_single or len(operation.parts) == 1):
            kind = "concat" if is_single else "add"
            name, sources = self._name(operation), self._sources(nodes, stride)
            self._put(operation, stride, name, **{"class": kind, "from": sources})
            return
        is_splice = is_single and offsets == around and 0 in around
        if is_splice and all(t.scale == 1.0 and t.node == nodes[0] for t in terms):
            layer = {"class": "splice", "from": self._sources(nodes[:1], stride)}
            layer |= {"left": -offsets[0], "right": offsets[-1]}
            self._put(operation, stride, self._name(operation), **layer)
            return
        matrix = np.eye(operation.dim, dtype=np.float32)
        self._add_affine(operation, Affine(matrix, None))

    def _is_of_reader(self, operation: Operation) -> bool:
        """Tell if our export joined the inputs of one layer."""
        readers = self._readers[operation.node]
        if len(readers) != 1 or operation.node != f"{operation.base}.append":
            return False
        reader = self._operations[next(iter(readers))]
        name = reader.base
        if isinstance(reader.what, Factorized):
            name = name.removesuffix("1")
        is_layer = not isinstance(reader.what, Join) or reader.node.endswith(".splice")
        return name == operation.base and is_layer

    def _add_factorized(self, operation: Operation, what: Factorized) -> None:
        """Add a factorized layer, or one more to a stack of them."""
        (term,) = operation.terms
        wanted, source_stride = self._strides[operation.node], self._stride(operation)
        options = {
            "class": "tdnnf",
            "size": operation.dim,
            "bottleneck": len(what.narrow),
            "time_stride": what.reach // source_stride,
            "bypass": what.bypass,
        }
        steps = wanted // source_stride
        stack = self._stacks.get(term.node) if what.is_ours else None
        name, number = stack or ("", 0)
        before = self.config.get(name, {})
        is_next = (
            stack is not None
            and operation.base == f"{name}{number + 1}"
            and len(self._readers[term.node]) == 1
            and self._made[term.node].stride == source_stride
            and all(before.get(key) == value for key, value in options.items())
            and "stride" not in before
        )
        if is_next:
            before["num_layers"] = number + 1
            self._made[operation.node] = _Made(name, wanted)
        else:
            name, number = self._name(operation), 0
            if what.is_ours and operation.base.endswith("1"):
                stem = operation.base[:-1].replace(".", "_")
                name = stem if stem and not self._is_taken(stem) else name
            source = self._sources([term.node], source_stride)
            self._put(operation, wanted, name, **{"from": source, **options})
        if steps > 1:
            self.config[name]["stride"] = steps
        self._stacks[operation.node] = name, number + 1
        inside = f"{name}.blocks.{number}"
        self._state[f"{inside}.narrow.weight"] = what.narrow
        self._state[f"{inside}.widen.weight"] = what.widen.matrix
        bias = what.widen.bias
        self._state[f"{inside}.widen.bias"] = (
            np.zeros(operation.dim) if bias is None else bias
        )
        self._state[f"{inside}.norm.mean"] = what.mean
        self._state[f"{inside}.norm.variance"] = what.variance
