"""The report's drawings; each takes plain numbers and returns inline SVG.

matplotlib draws with marker colours which are then replaced by the page's CSS
variables, so the same drawing suits light and dark pages. The output is deterministic.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH = 8.0  # inches; the page scales drawings to its own width
_PANELS = 3  # most panels side by side
Point = tuple[float, float]
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
    """Return the marker colour of the index-th series."""
    return f"#0a0b0{index % NUM_SERIES}"


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure in the report's style; draw and `render` inside the block.

    Args:
        width: inches; the page scales the drawing to its own width.
        height: inches.
    """
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The page's fonts draw the text; matplotlib's only measure it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Said of any figure whose legend took a second: a busy machine is enough.
        warnings.filterwarnings("ignore", message="Creating legend with loc")
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
    """Return a tag with two decimals in its numbers; text is not touched."""
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0])


def bare(axes: Axes, *, grid: Literal["x", "y"] | None = None) -> None:
    """Take the frame off a plot; keep grid lines across one axis only."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    if grid is not None:
        axes.grid(visible=True, axis=grid)


def legend_beside(axes: Axes, title: str | None = None) -> None:
    """Put the legend of a plot to its right, where no curve runs."""
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        title=title,
        fontsize=8.5,
        title_fontsize=8.5,
    )


def error_rates(
    rates: Mapping[str, Mapping[str, tuple[float, float, float]]],
) -> str:
    """Draw word error rates with intervals, one panel a set.

    Args:
        rates: set -> system -> (rate, lower bound, upper bound), per cent.
    """
    known = list(dict.fromkeys(name for each in rates.values() for name in each))
    most = max(map(len, rates.values()))
    # Names stand once where all sets have the same; else each panel has its own.
    shares = most == min(map(len, rates.values())) == len(known)
    num_columns = min(_PANELS, len(rates))
    num_rows = -(-len(rates) // num_columns)
    with canvas(WIDTH, num_rows * (0.85 + 0.33 * most)) as figure:
        panels = figure.subplots(num_rows, num_columns, sharey=shares, squeeze=False)
        for axes in panels.flatten()[len(rates) :]:
            axes.set_visible(False)
        for axes, (name, systems) in zip(panels.flat, rates.items(), strict=False):
            names = [system for system in known if system in systems]
            for i, system in enumerate(names):
                rate, low, high = systems[system]
                colour = series_colour(known.index(system))
                axes.barh(i, rate, color=colour, height=0.55, alpha=0.85)
                axes.plot([low, high], [i, i], color=INK, linewidth=1.4)
                axes.annotate(
                    f"{rate:.2f}",
                    (max(rate, high), i),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                )
            top = max(max(values[2], values[0]) for values in systems.values())
            axes.set_xlim(0, 1.22 * top if top > 0 else 1)
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(most - 0.5, -0.5)  # bars of one width in all panels
            axes.set_title(name)
            axes.set_xlabel("word error rate (%)")
            bare(axes, grid="x")
        return render(figure, "Word error rates of all systems and sets")


def training_curves(curves: Mapping[str, pd.DataFrame]) -> str:
    """Draw likelihood and number of Gaussians over the iterations of all systems.

    Args:
        curves: system -> its iterations.tsv: `iter`, `log_like_per_frame` (nats),
            `num_gaussians`, `phase` (`keep`: without a new alignment, not marked).
    """
    with canvas(WIDTH, 4.6) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
        for i, (system, curve) in enumerate(curves.items()):
            numbers = curve["iter"].astype(float)
            log_likes = curve["log_like_per_frame"].astype(float)
            style = {"color": series_colour(i), "label": system}
            marks = [k for k, phase in enumerate(curve["phase"]) if phase != "keep"]
            upper.plot(
                numbers, log_likes, marker="o", markersize=4, markevery=marks, **style
            )
            gaussians = curve["num_gaussians"].astype(float)
            lower.step(numbers, gaussians, where="post", **style)
        upper.set_ylabel("log-likelihood per frame (nats)")
        lower.set_ylabel("Gaussians")
        lower.set_xlabel("iteration")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
        lower.set_ylim(bottom=0)
        legend_beside(upper)
        for axes in (upper, lower):
            bare(axes, grid="y")
        return render(figure, "Log-likelihood per frame and Gaussians over iterations")


def scale_sweep(
    sweeps: Mapping[str, pd.DataFrame],
    chosen: Mapping[str, tuple[float, float]],
) -> str:
    """Draw word error rates on dev over language model weights, one panel a system.

    Args:
        sweeps: system -> table of `lmwt`, `wip` and `wer` (per cent).
        chosen: system -> (weight, penalty) that was taken.
    """
    num_rows = -(-len(sweeps) // 2)
    num_columns = min(2, len(sweeps))
    with canvas(WIDTH, 2.9 * num_rows) as figure:
        panels = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
        for axes, (system, sweep) in zip(panels, sweeps.items(), strict=False):
            _draw_sweep(axes, sweep, chosen.get(system))
            axes.set_title(system)
        for axes in panels[len(sweeps) :]:
            axes.set_visible(False)
        return render(figure, "Word error rate on dev over language model weights")


def _draw_sweep(
    axes: Axes, sweep: pd.DataFrame, chosen: tuple[float, float] | None
) -> None:
    """Draw one system's sweep, its chosen point circled.

    Of many penalties those nearest to the chosen one are drawn.
    """
    centre = 0.0 if chosen is None else chosen[1]
    nearest = sorted(set(sweep["wip"]), key=lambda wip: abs(wip - centre))
    drawn = sweep[sweep["wip"].isin(nearest[:NUM_SERIES])]
    for i, (penalty, rows) in enumerate(drawn.groupby("wip")):
        rates = rows.set_index("lmwt")["wer"].sort_index()
        axes.plot(rates.index, rates, color=series_colour(i), label=f"{penalty:g}")
        if chosen is not None and chosen[1] == penalty and chosen[0] in rates.index:
            rate = rates[chosen[0]]
            axes.plot(
                chosen[0],
                rate,
                "o",
                markersize=9,
                color=INK,
                fillstyle="none",
                zorder=5,
            )
            axes.annotate(
                f"chosen: {chosen[0]:g}, {chosen[1]:g}",
                (chosen[0], rate),
                xytext=(0, -17),
                textcoords="offset points",
                ha=_side(chosen[0], sweep["lmwt"]),
            )
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high)
    axes.set_xlabel("language model weight")
    axes.set_ylabel("word error rate (%)")
    legend_beside(axes, title="penalty")
    bare(axes, grid="y")


def _side(value: float, values: pd.Series) -> Literal["left", "center", "right"]:
    """Return how a label at a value is set so that it stays in the plot."""
    share = (value - values.min()) / max(values.max() - values.min(), 1e-9)
    return "left" if share < 0.25 else "right" if share > 0.75 else "center"


def _stacked(places: np.ndarray) -> list[int]:
    """Return how high labels are set, by rows, so that near ones do not overlap."""
    heights, row, before = [0] * len(places), 0, -np.inf
    nearest = 0.06 * max(np.ptp(places), 1e-9)
    for i in np.argsort(places, kind="stable").tolist():
        row = row + 1 if places[i] - before < nearest else 0
        heights[i], before = row, places[i]
    return heights


def beam_sweep(sweeps: Mapping[str, pd.DataFrame]) -> str:
    """Draw word error rate and lattice depth over real-time factor.

    Args:
        sweeps: system -> table of `beam`, `rtf`, `wer` (per cent) and `depth`.
    """
    with canvas(WIDTH, 3.2) as figure:
        rates, depths = figure.subplots(1, 2)
        for i, (system, sweep) in enumerate(sweeps.items()):
            ordered = sweep.sort_values("beam")
            style = {"color": series_colour(i), "marker": "o", "label": system}
            rates.plot(ordered["rtf"], ordered["wer"], **style)
            depths.plot(ordered["rtf"], ordered["depth"], **style)
            columns = ordered[["beam", "rtf", "wer"]].to_numpy()
            heights = _stacked(ordered["rtf"].to_numpy())
            for (beam, factor, rate), height in zip(columns, heights, strict=True):
                rates.annotate(
                    f"{beam:g}",
                    (factor, rate),
                    xytext=(4, 5 + 9 * height),
                    textcoords="offset points",
                    fontsize=8.5,
                )
        rates.set_ylabel("word error rate on dev (%)")
        depths.set_ylabel("lattice depth (arcs a frame)")
        legend_beside(depths)
        for axes in (rates, depths):
            axes.set_xlabel("real-time factor a core")
            axes.margins(0.08)
            bare(axes, grid="y")
        return render(figure, "Word error rate and lattice depth over real-time factor")


def speaker_rates(rates: Mapping[str, float], mean: float) -> str:
    """Draw the word error rate of each speaker, worst first, and that of the set.

    Args:
        rates: speaker -> per cent.
        mean: rate of the whole set, per cent.
    """
    ordered = sorted(rates.items(), key=lambda item: (-item[1], item[0]))
    with canvas(WIDTH, 2.9) as figure:
        axes = figure.subplots()
        positions = range(len(ordered))
        axes.bar(positions, [rate for _, rate in ordered], color=series_colour(0))
        axes.axhline(mean, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"all speakers {mean:.1f}",
            (1, mean),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
        )
        axes.set_ylabel("word error rate (%)")
        if len(ordered) <= 40:
            crowded = len(ordered) > 12
            names = [name for name, _ in ordered]
            axes.set_xticks(positions, names, rotation=60 if crowded else 0)
            axes.set_xlabel("speaker")
        else:
            axes.set_xticks([])
            axes.set_xlabel(f"{len(ordered)} speakers, from worst to best")
        axes.margins(x=0.01)
        bare(axes, grid="y")
        return render(figure, "Word error rate of each speaker")


def slice_rates(
    rates: Mapping[str, tuple[float, float, float]],
    names: tuple[str, str],
    before: Sequence[float] | None,
) -> str:
    """Draw the word error rate of each slice of a set, in their order.

    Args:
        rates: slice -> (rate, lower bound, upper bound), per cent.
        names: of the system and of its baseline.
        before: rates of the baseline; None without one.
    """
    with canvas(WIDTH, 0.9 + 0.3 * len(rates)) as figure:
        axes = figure.subplots()
        places = np.arange(len(rates))
        middle, low, high = np.array(list(rates.values()), dtype=float).T
        bounds = np.maximum(0.0, [middle - low, high - middle])
        colour = series_colour(0)
        axes.errorbar(
            middle, places, xerr=bounds, fmt="o", color=colour, label=names[0]
        )
        if before is not None:
            axes.scatter(
                before, places, 18, series_colour(1), marker="D", label=names[1]
            )
            legend_beside(axes)
        axes.set_yticks(places, list(rates))
        axes.set_ylim(len(rates) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("word error rate (%)")
        bare(axes, grid="x")
        return render(figure, "Word error rate of each slice")


def phone_durations(
    durations: Mapping[str, Sequence[float]], *, shift_ms: float
) -> str:
    """Draw range and median of each phone's duration, longest median first.

    Args:
        durations: phone -> (5th, 50th, 95th percentile) in frames.
        shift_ms: frame shift in milliseconds.
    """
    ordered = sorted(durations.items(), key=lambda item: (-item[1][1], item[0]))
    with canvas(WIDTH, 3.1) as figure:
        axes = figure.subplots()
        for i, (_, frames) in enumerate(ordered):
            low, middle, high = (shift_ms * value for value in frames)
            axes.plot(
                [i, i],
                [low, high],
                color=series_colour(0),
                linewidth=5,
                alpha=0.35,
                solid_capstyle="round",
            )
            axes.plot(i, middle, "o", color=series_colour(0), markersize=5)
        names = [name for name, _ in ordered]
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 24 else 0)
        axes.set_yscale("log")
        ticks = [t for t in (30, 50, 100, 200, 500, 1000, 2000) if _inside(axes, t)]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_ylabel("duration (ms)")
        axes.set_xlabel("phone")
        axes.margins(x=0.01)
        bare(axes, grid="y")
        return render(figure, "Phone durations: 5th to 95th percentile and median")


def _inside(axes: Axes, value: float) -> bool:
    """Return whether a value lies within the vertical range of a plot."""
    low, high = axes.get_ylim()
    return low <= value <= high


def rule_costs(rules: Mapping[str, tuple[float, float]]) -> str:
    """Draw wall time and peak memory of each rule.

    Args:
        rules: rule -> (seconds over all jobs, largest job in MiB), in the order wanted.
    """
    with canvas(WIDTH, 0.9 + 0.24 * len(rules)) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        units = (("wall time, all jobs (s)", 0), ("memory of the largest job (MiB)", 1))
        for axes, (label, index) in zip(panels, units, strict=True):
            values = [costs[index] for costs in rules.values()]
            axes.barh(
                range(len(rules)), values, color=series_colour(index), height=0.62
            )
            for i, value in enumerate(values):
                axes.annotate(
                    f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
                    (value, i),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    color=MUTED,
                    fontsize=8.5,
                )
            axes.set_xlim(0, 1.16 * max(values, default=1) or 1)
            axes.set_xlabel(label)
            axes.set_yticks(range(len(rules)), list(rules))
            bare(axes, grid="x")
        panels[0].invert_yaxis()
        return render(figure, "Time and memory of each rule")


def latencies(tables: Mapping[str, pd.DataFrame], limit: float) -> str:
    """Draw the 95th percentile of the latency over the number of sessions.

    Args:
        tables: system -> its trials, cells as text.
        limit: greatest latency, seconds.
    """
    with canvas(WIDTH, 3.2) as figure:
        axes = figure.subplots()
        for i, (system, table) in enumerate(tables.items()):
            good = table[(table["errors"] == "0") & (table["p95"] != "")]
            axes.plot(
                good["sessions"].astype(float),
                1000 * good["p95"].astype(float),
                marker="o",
                color=series_colour(i),
                label=system,
            )
        axes.axhline(1000 * limit, linestyle=":", color=MUTED)
        axes.set_xlabel("sessions")
        axes.set_ylabel("latency, p95 (ms)")
        axes.set_ylim(bottom=0)
        legend_beside(axes)
        bare(axes, grid="y")
        return render(figure, "Latency of finals over the number of sessions")
