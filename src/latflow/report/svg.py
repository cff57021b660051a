"""Drawings as inline SVG that takes its colours and fonts from the page.

matplotlib draws with marker colours which are then replaced by the page's CSS
variables, so the same drawing suits light and dark pages. The output is deterministic.

Public: `canvas`, `render`, `bare`, `INK`, `MUTED`, `LINE`, `series_colour`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, LINE = "#010203", "#020304", "#030405"
NUM_SERIES = 6
_VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line"} | {
    f"#0a0b0{i}": f"c{i}" for i in range(NUM_SERIES)
}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "latflow",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "lines.linewidth": 1.8,
    "image.composite_image": False,
}


def series_colour(index: int) -> str:
    """Marker colour of the index-th series."""
    return f"#0a0b0{index % NUM_SERIES}"


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure in the report's style; draw and `render` inside the block.

    Args:
        width: inches; the page scales the drawing to its own width.
        height: inches.
    """
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The page's fonts draw the text; matplotlib's only measure it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=(width, height), layout="constrained")


def render(figure: Figure, label: str) -> str:
    """Turn a figure into an `<svg>` element.

    Args:
        figure: drawn inside `canvas`.
        label: what it shows, for those who do not see it.
    """
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<=<svg) width="[^"]*" height="[^"]*"', "", text, count=1)
    text = re.sub(r"font-family: [^;\"]+", "font-family: var(--sans)", text)
    text = re.sub(r"<[^>]*>", _with_short_coordinates, text)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    label = label.replace("&", "and").replace('"', "'").replace("<", "")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _with_short_coordinates(tag: re.Match[str]) -> str:
    """A tag with two decimals in its numbers; text between tags is not touched."""
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0])


def bare(axes: Axes, *, grid: Literal["x", "y"] | None = None) -> None:
    """Take the frame off a plot; keep grid lines across one axis only."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    if grid is not None:
        axes.grid(visible=True, axis=grid)
