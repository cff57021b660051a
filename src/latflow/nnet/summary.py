"""A network told: as a table for the terminal, as a graph for the report's drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from latflow.nnet.description import DATA, LayerDescription
from latflow.nnet.graph import LayerGraph
from latflow.nnet.layer import Context


@dataclass(frozen=True)
class Node:
    """A layer of the drawing.

    Attributes:
        name, class_name: as in the description (`data` for the features).
        inputs: the names of its inputs.
        dim: numbers a frame that it gives.
        num_parameters: its own; 0 where it reuses another layer's.
        context: features' frames that a frame of it sees.
        reuse: the layer whose parameters it shares, or None.
        loss: `ce of pdf` and the like for an output, else empty.
        options: the options that are not the class's defaults, `heads 4, kernel 3`.
    """

    name: str
    class_name: str
    inputs: tuple[str, ...]
    dim: int
    num_parameters: int
    context: Context
    reuse: str | None = None
    loss: str = ""
    options: str = ""


@dataclass(frozen=True)
class NetworkGraph:
    """A network to draw.

    Attributes:
        nodes: `data` first, each layer after its inputs.
        edges: (from, to), in the order of the inputs.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]


class Countable(Protocol):
    """What the table's last line tells of."""

    @property
    def num_parameters(self) -> int:
        """Numbers that training changes."""
        ...

    subsampling: int


def draw(body: LayerGraph, dim_in: int) -> NetworkGraph:
    """The nodes and edges of a network's layers."""
    nodes = [Node(DATA, "features", (), dim_in, 0, Context())]
    edges = []
    for layer in body.plan.layers:
        parameters = () if layer.reuse else body.module_of(layer).parameters()
        loss = layer.loss
        factor = "" if loss is None or loss.scale == 1.0 else f"{loss.scale:g} x "
        nodes.append(
            Node(
                layer.name,
                layer.class_name,
                layer.inputs,
                body.shapes[layer.name].dim,
                sum(p.numel() for p in parameters if p.requires_grad),
                body.contexts[layer.name],
                layer.reuse,
                f"{factor}{loss.name} of {loss.target}" if loss else "",
                _told(layer),
            )
        )
        edges += [(source, layer.name) for source in layer.inputs]
    return NetworkGraph(tuple(nodes), tuple(edges))


def _told(layer: LayerDescription) -> str:
    """The options of a layer that are not its class's defaults, but for its size."""
    told = []
    for name, option in layer.layer_class.OPTIONS.items():
        value = layer.options.get(name, option.default)
        if value == option.default or name == "size" or option.kind == "layers":
            continue
        if isinstance(value, tuple):
            value = f"({', '.join(map(str, value))})"
        told.append(f"{name} {str(value).lower()}")
    return ", ".join(told)


def format_table(graph: NetworkGraph, network: Countable) -> str:
    """Layers as lines of a table, and the sums below."""
    rows = [("layer", "class", "from", "size", "parameters", "frames seen", "loss")]
    rows += [
        (
            node.name,
            node.class_name,
            ", ".join(node.inputs),
            str(node.dim),
            f"as {node.reuse}" if node.reuse else f"{node.num_parameters:,}",
            format_context(node.context),
            node.loss,
        )
        for node in graph.nodes
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if index in {3, 4} else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    rate = network.subsampling
    lines += ["", f"{network.num_parameters:,} parameters"]
    if rate > 1:
        lines[-1] += f", one output frame for {rate} frames of features"
    return "\n".join(lines)


def format_context(context: Context) -> str:
    """A receptive field in short: `-3..+2`, `all`, `itself`, `-all..+0 /3` (thirds)."""
    if context == Context():
        return "itself"
    left = "all" if context.left is None else str(context.left)
    right = "all" if context.right is None else str(context.right)
    field = "all" if left == right == "all" else f"-{left}..+{right}"
    return field if context.stride == 1 else f"{field} /{context.stride}"
