"""A network as a table for the terminal, and drawn for the report.

The drawing is one SVG with a row a layer and its connections on the left. Colours are
the report's CSS variables, with the values of its light page where the drawing stands
alone. The same network gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from latflow.nnet.graph import DATA, LayerDescription, LayerGraph
from latflow.nnet.layer import Context

INK, MUTED, LINE = (
    "var(--ink, #1d2327)",
    "var(--muted, #5d6870)",
    "var(--line, #dfe3e6)",
)
BLUE, ORANGE = "var(--c0, #2f6db3)", "var(--c1, #d9822b)"
FONT = "var(--sans, system-ui, sans-serif)"
ROW, HEAD = 46, 30  # heights, in pixels
LANE, NAMES, BAR = 16, 330, 120  # widths
_TEXT = 56  # characters of a layer's second line


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


def network_svg(graph: NetworkGraph, label: str = "") -> str:
    """Draw a network.

    Every row is a layer, after its inputs: class and options, numbers a frame,
    parameters (the bar is their share of the greatest), and the frames of the features
    that a frame of it sees (the bar is to scale; an open end means all).

    Args:
        graph: `Network.graph()`.
        label: what it shows, for those who do not see it.

    Returns:
        An `<svg>` element.
    """
    rows = {node.name: index for index, node in enumerate(graph.nodes)}
    spans = [(rows[source], rows[target]) for source, target in graph.edges]
    lanes = _lanes(spans)
    dots = 14 + LANE * (1 + max(lanes, default=-1))
    left = dots + 18
    columns = (left, left + NAMES + 40, left + NAMES + 60, left + NAMES + 80 + 2 * BAR)
    width, height = columns[3] + BAR + 10, HEAD + ROW * len(graph.nodes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label or "network", quote=True)}" '
        f'font-family="{FONT}" font-size="13">',
        *_heads(columns),
    ]
    straight = [s for s in spans if s[1] == s[0] + 1]
    bent = [s for s in spans if s[1] > s[0] + 1]
    parts += [_straight(span, dots) for span in straight]
    parts += [_bent(s, dots, lane) for s, lane in zip(bent, lanes, strict=True)]
    most = max(1, *(node.num_parameters for node in graph.nodes))
    widest = _widest(graph.nodes)
    for index, node in enumerate(graph.nodes):
        parts += _row(node, HEAD + ROW * index, dots, columns, most)
        parts += _field(node.context, HEAD + ROW * index, columns[3], widest)
    return "\n".join([*parts, "</svg>"])


def _lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return a lane for each connection over several rows; none overlap.

    Args:
        spans: (first row, last row) of all connections.

    Returns:
        Numbers from 0, nearest the rows, of those longer than one row, in order.
    """
    bent = [span for span in spans if span[1] > span[0] + 1]
    taken: list[list[tuple[int, int]]] = []
    chosen = {}
    for span in sorted(set(bent), key=lambda s: (s[1] - s[0], s)):
        free = (
            lane
            for lane, others in enumerate(taken)
            if all(span[1] <= a or b <= span[0] for a, b in others)
        )
        lane = next(free, len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append(span)
        chosen[span] = lane
    return [chosen[span] for span in bent]


def _middle(row: int) -> float:
    """Return the height of the dot of a row."""
    return HEAD + ROW * row + ROW / 2


def _straight(span: tuple[int, int], x: float) -> str:
    """Return a connection to the next row."""
    return _path(f"M{x} {_middle(span[0])}V{_middle(span[1])}")


def _bent(span: tuple[int, int], x: float, lane: int) -> str:
    """Return a connection to a later row, through its lane on the left."""
    start, end, turn = _middle(span[0]), _middle(span[1]), x - LANE * (lane + 1)
    down = f"Q{turn} {start} {turn} {start + 12}V{end - 12}"
    return _path(f"M{x} {start}H{turn + 12}{down}Q{turn} {end} {turn + 12} {end}H{x}")


def _path(steps: str) -> str:
    """Return a line of a connection."""
    return f'<path d="{steps}" fill="none" stroke="{MUTED}" stroke-width="1.6"/>'


def _heads(columns: Sequence[float]) -> list[str]:
    names = ("layer", "size", "parameters", "frames seen")
    anchors = ("start", "end", "start", "start")
    return [
        _text(x, 18, name, size=11, colour=MUTED, anchor=anchor)
        for x, name, anchor in zip(columns, names, anchors, strict=True)
    ]


def _row(
    node: Node, top: float, dots: float, columns: Sequence[float], most: int
) -> list[str]:
    """Return dot, name, class, size and parameters of a layer."""
    middle = top + ROW / 2
    colour = ORANGE if node.loss else BLUE
    label = (
        node.class_name if not node.options else f"{node.class_name}: {node.options}"
    )
    if node.reuse:
        label += f", parameters of {node.reuse}"
    parts = [
        f'<line x1="{columns[0]}" x2="{columns[3] + BAR}" y1="{top}" y2="{top}" '
        f'stroke="{LINE}"/>',
        f'<circle cx="{dots}" cy="{middle}" r="5.5" fill="{colour}"/>',
        _text(columns[0], middle - 3, node.name, weight=600),
        _text(
            columns[0], middle + 12, _short(label), size=11, colour=MUTED, hint=label
        ),
        _text(columns[1], middle + 4, f"{node.dim:,}", anchor="end"),
    ]
    if node.loss:
        x = columns[0] + 8.2 * len(node.name) + 10
        parts.append(_text(x, middle - 3, node.loss, size=11, colour=ORANGE))
    if node.num_parameters:
        wide = max(1.5, BAR * node.num_parameters / most)
        parts.append(_bar(columns[2], middle - 5, wide, BLUE))
        count = f"{node.num_parameters:,}"
        parts.append(_text(columns[2] + wide + 6, middle + 4, count, size=11))
    return parts


def _widest(nodes: Sequence[Node]) -> int:
    """Return the most frames that a layer with bounded context sees on one side."""
    sides = [side for node in nodes for side in (node.context.left, node.context.right)]
    # a few frames do not fill the column
    return max(10, *(side for side in sides if side is not None))


def _field(context: Context, top: float, x: float, widest: int) -> list[str]:
    """Return the receptive field as a bar around the present frame, and in words."""
    half, middle = BAR / 2, top + ROW / 2
    sides = (context.left, context.right)
    left, right = (half if s is None else 0.8 * half * s / widest for s in sides)
    wide = max(2.0, left + right)
    return [
        _bar(x + half - left, middle - 12, wide, BLUE),
        f'<line x1="{x + half}" x2="{x + half}" y1="{middle - 15}" y2="{middle + 1}" '
        f'stroke="{INK}"/>',
        _text(
            x + half,
            middle + 14,
            format_context(context),
            size=11,
            colour=MUTED,
            anchor="middle",
        ),
    ]


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="10" rx="2" '
        f'fill="{colour}" opacity="0.75"/>'
    )


def _short(text: str) -> str:
    """Return a text that fits its column."""
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    colour: str = INK,
    anchor: str = "start",
    weight: int = 400,
    hint: str = "",
) -> str:
    """Return a text, with a hint under the pointer where it was shortened."""
    title = f"<title>{escape(hint)}</title>" if hint and hint != text else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{title}{escape(text)}</text>'
    )


class Countable(Protocol):
    """A network's figures for the table's last line."""

    @property
    def num_parameters(self) -> int:
        """Numbers that training changes."""
        ...

    subsampling: int


def network_graph(body: LayerGraph, dim_in: int) -> NetworkGraph:
    """Return the nodes and edges of a network's layers."""
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
                _options_text(layer),
            )
        )
        states = () if layer.initial_state is None else (layer.initial_state,)
        edges += [(source, layer.name) for source in (*layer.inputs, *states)]
    return NetworkGraph(tuple(nodes), tuple(edges))


def _options_text(layer: LayerDescription) -> str:
    """Return the options of a layer that are not defaults, but for its size."""
    settings, defaults = [], type(layer.options).model_fields
    if layer.initial_state is not None:
        settings.append(f"initial state of {layer.initial_state}")
    for name, value in layer.options:
        if name in {"size", "layers"} or value == defaults[name].default:
            continue
        is_list = isinstance(value, tuple)
        text = f"({', '.join(map(str, value))})" if is_list else str(value).lower()
        settings.append(f"{name} {text}")
    return ", ".join(settings)


def format_table(graph: NetworkGraph, network: Countable) -> str:
    """Return the layers as lines of a table, and the sums below."""
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
    """Return a receptive field in short: `-3..+2`, `all`, `-all..+0 /3` (thirds).

    Of chunks of 8 frames, which see 16 before them: `-16..+0 of 8`.
    """
    if context == Context():
        return "itself"
    left = "all" if context.left is None else str(context.left)
    right = "all" if context.right is None else str(context.right)
    field = "all" if left == right == "all" else f"-{left}..+{right}"
    if context.period > 1:
        field += f" of {context.period}"
    return field if context.stride == 1 else f"{field} /{context.stride}"
