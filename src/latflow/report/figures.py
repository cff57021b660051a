"""The report's drawings; each takes plain numbers and returns inline SVG.

Public: `error_rates`, `training_curves`, `scale_sweep`, `beam_sweep`, `speaker_rates`,
`phone_durations`, `rule_costs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from latflow.report.svg import (
    INK,
    MUTED,
    bare,
    canvas,
    render,
    series_colour,
)

WIDTH = 8.0
_PANELS = 3  # most panels side by side
Point = tuple[float, float]


def error_rates(
    rates: Mapping[str, Mapping[str, tuple[float, float, float]]],
) -> str:
    """Word error rates with intervals, one panel a set.

    Args:
        rates: set -> system -> (rate, lower bound, upper bound), per cent.
    """
    num_systems = max(len(systems) for systems in rates.values())
    num_columns = min(_PANELS, len(rates))
    num_rows = -(-len(rates) // num_columns)
    with canvas(WIDTH, num_rows * (0.85 + 0.33 * num_systems)) as figure:
        panels = figure.subplots(num_rows, num_columns, sharey=True, squeeze=False)
        for axes in panels.flatten()[len(rates) :]:
            axes.set_visible(False)
        for axes, (name, systems) in zip(panels.flat, rates.items(), strict=False):
            for i, (rate, low, high) in enumerate(systems.values()):
                colour = series_colour(i)
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
            axes.set_yticks(range(len(systems)), list(systems))
            axes.set_title(name)
            axes.set_xlabel("word error rate (%)")
            bare(axes, grid="x")
        panels[0, 0].invert_yaxis()
        return render(figure, "Word error rates of all systems and sets")


class Iteration(NamedTuple):
    """A point of a training curve."""

    number: int
    log_like_per_frame: float
    num_gaussians: int
    is_realigned: bool


def training_curves(curves: Mapping[str, Sequence[Iteration]]) -> str:
    """Likelihood and number of Gaussians over the iterations of all systems.

    Args:
        curves: system -> its iterations, in order; nats per frame.
    """
    with canvas(WIDTH, 4.6) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
        for i, (system, points) in enumerate(curves.items()):
            numbers = [p.number for p in points]
            log_likes = [p.log_like_per_frame for p in points]
            style = {"color": series_colour(i), "label": system}
            marks = [k for k, p in enumerate(points) if p.is_realigned]
            upper.plot(
                numbers, log_likes, marker="o", markersize=4, markevery=marks, **style
            )
            gaussians = [p.num_gaussians for p in points]
            lower.step(numbers, gaussians, where="post", **style)
        upper.set_ylabel("log-likelihood per frame (nats)")
        lower.set_ylabel("Gaussians")
        lower.set_xlabel("iteration")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
        lower.set_ylim(bottom=0)
        upper.legend(loc="lower right")
        for axes in (upper, lower):
            bare(axes, grid="y")
        return render(figure, "Log-likelihood per frame and Gaussians over iterations")


def scale_sweep(
    sweeps: Mapping[str, Mapping[float, Sequence[Point]]],
    chosen: Mapping[str, tuple[float, float]],
) -> str:
    """Word error rate on dev over language model weights, one panel a system.

    Args:
        sweeps: system -> word insertion penalty -> (weight, rate in per cent) points.
        chosen: system -> (weight, penalty) that was taken.
    """
    num_rows = -(-len(sweeps) // 2)
    num_columns = min(2, len(sweeps))
    with canvas(WIDTH, 2.9 * num_rows) as figure:
        panels = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
        for axes, (system, lines) in zip(panels, sweeps.items(), strict=False):
            _draw_sweep(axes, lines, chosen.get(system))
            axes.set_title(system)
        for axes in panels[len(sweeps) :]:
            axes.set_visible(False)
        return render(figure, "Word error rate on dev over language model weights")


def _draw_sweep(
    axes: Axes,
    lines: Mapping[float, Sequence[Point]],
    chosen: tuple[float, float] | None,
) -> None:
    """One system's sweep, its chosen point circled."""
    for i, (penalty, points) in enumerate(sorted(lines.items())):
        ordered = sorted(points)
        weights, rates = zip(*ordered, strict=True)
        axes.plot(weights, rates, color=series_colour(i), label=f"{penalty:g}")
        if chosen is not None and chosen[1] == penalty and chosen[0] in weights:
            rate = rates[weights.index(chosen[0])]
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
                ha="center",
            )
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high)
    axes.set_xlabel("language model weight")
    axes.set_ylabel("word error rate (%)")
    axes.legend(title="insertion penalty", fontsize=8.5, title_fontsize=8.5)
    bare(axes, grid="y")


class BeamPoint(NamedTuple):
    """A decoding of dev with one beam."""

    beam: float
    real_time_factor: float
    error_rate: float
    depth: float


def beam_sweep(sweeps: Mapping[str, Sequence[BeamPoint]]) -> str:
    """Word error rate and lattice depth over real-time factor.

    Args:
        sweeps: system -> its decodings.
    """
    with canvas(WIDTH, 3.2) as figure:
        rates, depths = figure.subplots(1, 2)
        for i, (system, points) in enumerate(sweeps.items()):
            ordered = sorted(points)
            times = [p.real_time_factor for p in ordered]
            style = {"color": series_colour(i), "marker": "o", "label": system}
            rates.plot(times, [p.error_rate for p in ordered], **style)
            depths.plot(times, [p.depth for p in ordered], **style)
            for p in ordered:
                rates.annotate(
                    f"{p.beam:g}",
                    (p.real_time_factor, p.error_rate),
                    xytext=(4, 5),
                    textcoords="offset points",
                    fontsize=8.5,
                )
        rates.set_ylabel("word error rate on dev (%)")
        depths.set_ylabel("lattice arcs a frame")
        rates.legend(fontsize=8.5)
        for axes in (rates, depths):
            axes.set_xlabel("real-time factor a core")
            axes.margins(0.08)
            bare(axes, grid="y")
        return render(figure, "Word error rate and lattice depth over real-time factor")


def speaker_rates(rates: Mapping[str, float], mean: float) -> str:
    """Word error rate of each speaker, worst first, with the rate of the whole set.

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


def phone_durations(
    durations: Mapping[str, Sequence[float]], *, shift_ms: float
) -> str:
    """Range and median of each phone's duration, longest median first.

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
    """Whether a value lies within the vertical range of a plot."""
    low, high = axes.get_ylim()
    return low <= value <= high


def rule_costs(rules: Mapping[str, tuple[float, float]]) -> str:
    """Wall time and peak memory of each rule.

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
