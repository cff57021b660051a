"""Sections on the acoustic models: training curves, sizes, alignments.

Public: `training_section`, `alignment_section`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latflow.report import figures
from latflow.report.figures import Iteration
from latflow.report.inputs import Results, read_json, read_table
from latflow.report.page import (
    Block,
    Column,
    Figure,
    Heading,
    Note,
    Section,
    Table,
    missing,
    text_column,
)

# What the keys of `info.json` and `statistics.json` are called in the report.
_NAMES = {
    "num_phones": "phones",
    "num_pdfs": "leaves (tied states, pdfs)",
    "num_gaussians": "Gaussians",
    "num_transition_ids": "transition-ids",
    "dim": "feature dimension",
    "log_like_per_frame": "log-likelihood per frame (nats)",
    "num_utterances": "utterances",
    "num_frames": "frames",
    "seconds": "training time (s)",
    "frames": "frames aligned",
    "num_aligned": "utterances aligned",
    "num_retried": "of them with the wider retry beam",
    "num_failed": "utterances not aligned",
    "frame_shift": "frame shift (s)",
    "silence_share": "share of silence",
}
_MOST_PHONES_DRAWN = 60
_QUANTILES = ("p5_frames", "median_frames", "p95_frames")


def training_section(results: Results) -> Section:
    """Likelihood and Gaussians over the iterations, and sizes of the models."""
    lead = (
        "Each iteration assigns frames to states and re-estimates the Gaussians. The "
        "log-likelihood per frame should rise and level off; it jumps where Gaussians "
        "are split or frames newly aligned. Systems with other features or more "
        "Gaussians are not comparable by likelihood, only by word error rate."
    )
    section = Section("training", "Training of the acoustic models", lead)
    curves: dict[str, list[Iteration]] = {}
    for system in results.gmm_systems:
        rows = read_table(results / f"gmm/{system}/iterations.tsv")
        if rows:
            curves[system] = [
                Iteration(
                    int(row["iter"]),
                    float(row["log_like_per_frame"]),
                    int(row["num_gaussians"]),
                    is_realigned=row["phase"] != "keep",
                )
                for row in rows
            ]
    if curves:
        caption = (
            "Log-likelihood per frame and number of Gaussians; dots mark iterations "
            "with a new alignment."
        )
        section.blocks.append(Figure(figures.training_curves(curves), caption))
    else:
        section.blocks.append(missing("training curve", "gmm"))
    section.blocks += _sizes(results)
    return section


def _sizes(results: Results) -> list[Block]:
    """Table of what each `info.json` says."""
    found = {s: read_json(results / f"gmm/{s}/info.json") for s in results.gmm_systems}
    flat = {system: _scalars(info) for system, info in found.items() if info}
    keys = list(dict.fromkeys(key for info in flat.values() for key in info))
    if not keys:
        return []
    rows = [[key, *(info.get(key, "") for info in flat.values())] for key in keys]
    readable = [
        [_NAMES.get(key, key.replace("_", " ")), *cells] for key, *cells in rows
    ]
    columns = [text_column("of the model"), *map(Column, flat)]
    return [Heading("Sizes"), Table(columns, readable)]


def _scalars(info: Mapping[str, Any]) -> dict[str, str]:
    """The plain values of an object, as text."""
    return {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in info.items()
        if isinstance(value, str | int | float)
    }


def alignment_section(results: Results) -> Section:
    """Phone durations and the share of silence in the alignments."""
    lead = (
        "The alignment says which phone each frame of the training speech belongs to. "
        "Durations near the shortest possible (one frame a state), or much silence, "
        "point to wrong transcripts, missing pronunciations or a poor model."
    )
    section = Section("alignment", "Alignments", lead)
    for system in reversed(results.gmm_systems):
        found = read_json(results / f"align/{system}/train/statistics.json")
        if found is not None:
            section.blocks += _alignment_blocks(system, found)
            return section
    section.blocks.append(missing("alignment", "align"))
    return section


def _alignment_blocks(system: str, found: Mapping[str, Any]) -> list[Block]:
    """Drawing and tables of one alignment."""
    phones = found["phones"]
    often = sorted(phones, key=lambda phone: -phones[phone]["frames"])
    drawn = {
        phone: tuple(phones[phone][key] for key in _QUANTILES)
        for phone in often[:_MOST_PHONES_DRAWN]
    }
    caption = (
        "Duration of each phone: the bar from the 5th to the 95th percentile, the dot "
        "the median."
    )
    if len(drawn) < len(phones):
        caption += f" The {len(drawn)} phones with the most frames of {len(phones)}."
    svg = figures.phone_durations(drawn, shift_ms=1000 * found["frame_shift"])
    facts = [
        [_NAMES.get(key, key.replace("_", " ")), value]
        for key, value in _scalars(found).items()
    ]
    return [
        Note(f"Training speech, aligned by {system}."),
        Table([text_column("of the alignment"), Column("value")], facts),
        Figure(svg, caption),
        _phone_table(phones),
    ]


def _phone_table(phones: Mapping[str, Mapping[str, float]]) -> Table:
    """How often and how long each phone was said."""
    columns = [text_column("phone"), Column("times"), Column("of all frames (%)")]
    columns += [
        Column(f"{name} (frames)") for name in ("mean", "5 %", "median", "95 %")
    ]
    total = sum(stats["frames"] for stats in phones.values())
    rows = [
        [
            phone,
            str(stats["occurrences"]),
            f"{100 * stats['frames'] / max(1, total):.2f}",
            f"{stats['mean_frames']:.1f}",
            *(f"{stats[key]:g}" for key in _QUANTILES),
        ]
        for phone, stats in phones.items()
    ]
    return Table(columns, rows, "Phones; click a heading to sort.")
