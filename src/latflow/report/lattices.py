"""Section on lattices: what they hold, what they cost, and the beam's price.

Public: `lattices_section`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latflow.report import figures
from latflow.report.inputs import Results, read_json, read_table
from latflow.report.page import (
    Column,
    Figure,
    Heading,
    Section,
    Table,
    missing,
    text_column,
)

_COLUMNS = (
    "best path, WER (%)",
    "oracle WER (%)",
    "arcs a frame",
    "5 % of utterances below",
    "95 % below",
    "real-time factor a core",
)


def lattices_section(results: Results) -> Section:
    """Depth, oracle error and real-time factor of each set; error over time."""
    lead = (
        "A lattice holds the likely ways through an utterance. Its oracle error rate "
        "is that of the least wrong path in it: no rescoring can do better, so a large "
        "gap to the best path is room for a better language model, and a high oracle "
        "rate asks for wider beams. Arcs a frame are what a lattice costs later on."
    )
    section = Section("lattices", "Lattices", lead)
    rows = [*_rows(results)]
    if rows:
        columns = [text_column("system"), text_column("set"), *map(Column, _COLUMNS)]
        section.blocks.append(Table(columns, rows))
    else:
        section.blocks.append(missing("measured lattices", "report"))
    sweeps = {
        system: [
            figures.BeamPoint(*(float(row[k]) for k in ("beam", "rtf", "wer", "depth")))
            for row in table
        ]
        for system in results.swept_systems
        if (table := read_table(results / f"tune/{system}/beams.tsv"))
    }
    if sweeps:
        caption = (
            "Word error rate on dev over the real-time factor of log-likelihoods and "
            "search on one core, at the beams written beside the points, with the "
            "scales chosen above."
        )
        section.blocks += [
            Heading("What a wider beam buys"),
            Figure(figures.beam_sweep(sweeps), caption),
        ]
    return section


def _rows(results: Results) -> Iterator[list[str]]:
    """One row a decoding and set that was measured."""
    for decoding in results.decodings:
        for name in results.evaluation_sets:
            path = results.score_folder(decoding, name) / "lattices.json"
            measured = read_json(path)
            if measured is None:
                continue
            summary = read_json(results / f"decode/{decoding}/{name}/decode.json") or {}
            factor = _real_time_factor(summary)
            depths = measured["depth_percentiles"]
            yield [
                decoding,
                name,
                _percent(measured["best_wer"]),
                _percent(measured["oracle_wer"]),
                f"{measured['depth']:.1f}",
                f"{depths['5']:.1f}",
                f"{depths['95']:.1f}",
                "" if factor is None else f"{factor:.3f}",
            ]


def _real_time_factor(summary: Mapping[str, Any]) -> float | None:
    """Processor time over the duration of the speech, all passes; None if not known."""
    factor = summary.get("real_time_factor_per_core", {}).get("both")
    if factor is None:
        return None
    other = sum(summary.get("other_cpu_seconds", {}).values())
    return factor + other / max(summary["audio_seconds"], 1e-9)


def _percent(rate: float | None) -> str:
    """A rate, or nothing where the set has no words."""
    return "" if rate is None else f"{rate:.2f}"
