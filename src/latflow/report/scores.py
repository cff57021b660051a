"""Sections on word error rates: the main table, comparisons, scales, errors in detail.

Public: `headline`, `rates_section`, `scales_section`, `errors_section`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latflow.report import figures
from latflow.report.comparisons import comparisons
from latflow.report.inputs import Results, Row, read_json, read_table
from latflow.report.page import (
    Block,
    Column,
    Fact,
    Figure,
    Heading,
    Note,
    Section,
    Table,
    Words,
    missing,
    text_column,
)
from latflow.scoring.results import (
    UtteranceScore,
    by_speaker,
    confusions,
    read_utterance_scores,
    total,
)


@dataclass(frozen=True)
class Headline:
    """The report in a sentence, and the numbers for the top of the page."""

    sentence: str
    facts: list[Fact]


def headline(results: Results) -> Headline:
    """Sum the outcome up: the system that dev is best with, beside the first."""
    rows = _rates(results)
    if not rows:
        return Headline("No system has been scored yet.", [])
    known = [row for row in rows if row["wer"] != "nan"]
    on_dev = {row["system"]: float(row["wer"]) for row in known if row["set"] == "dev"}
    parts, facts = [], []
    for name in results.test_sets or ["dev"]:
        own = [row for row in known if row["set"] == name]
        if not own:
            continue
        first, latest_first = own[0], reversed(own)
        best = min(latest_first, key=lambda row: on_dev.get(row["system"], math.inf))
        part = (
            f"{best['system']} gets {best['wer']} % of the {best['words']} words of "
            f"{name} wrong ({_interval(best)})"
        )
        if first is not best:
            part += f", where {first['system']} gets {first['wer']} %"
        parts.append(part)
        facts.append(
            Fact(
                f"{best['wer']} %",
                f"word error rate, {name}",
                f"{best['system']}, {_interval(best)}",
            )
        )
    if parts and len(on_dev) > 1:
        parts[-1] += "; dev chose the system"
    sentence = "; ".join(parts) + "." if parts else "No test set has been scored yet."
    return Headline(sentence, facts)


def rates_section(results: Results) -> Section:
    """Word error rates of all systems and sets, and whether they differ."""
    bootstrap = results.config["score"]["bootstrap"]
    lead = (
        "The word error rate is the number of wrongly inserted, deleted and "
        "substituted words per 100 words that were said; lower is better. The interval "
        f"says how far chance in the choice of the {bootstrap['by']}s moves it: "
        f"{100 * bootstrap['confidence']:g} % of {bootstrap['samples']} sets drawn "
        "anew from the same recordings fall inside. The set dev chose the scales, so "
        "only test sets judge a system."
    )
    section = Section("wer", "Word error rates", lead)
    rows = _rates(results)
    if not rows:
        section.blocks.append(missing("word error rates", "score"))
        return section
    rates: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        if row["wer"] != "nan":
            bounds = float(row["wer"]), float(row["ci_low"]), float(row["ci_high"])
            rates.setdefault(row["set"], {})[row["system"]] = bounds
    if rates:
        caption = "Word error rates; the lines across the ends are the intervals."
        section.blocks.append(Figure(figures.error_rates(rates), caption))
    section.blocks.append(_rates_table(rows))
    section.blocks += comparisons(results)
    return section


def scales_section(results: Results) -> Section:
    """The sweep that chose language model weight and word insertion penalty."""
    lead = (
        "Decoding weighs the acoustic model against the language model. The weight and "
        "a penalty for each inserted word are chosen where dev has the fewest errors, "
        "and then used on the test sets. A best point at the edge of the sweep would "
        "mean that the sweep is too narrow."
    )
    section = Section("scales", "Choice of scales", lead)
    sweeps: dict[str, dict[float, list[tuple[float, float]]]] = {}
    chosen: dict[str, tuple[float, float]] = {}
    for system in results.decodings:
        rows = read_table(results / f"tune/{system}/sweep.tsv")
        scales = read_json(results / f"tune/{system}/scales.json")
        for row in rows or ():
            lines = sweeps.setdefault(system, {})
            point = float(row["lmwt"]), float(row["wer"])
            lines.setdefault(float(row["wip"]), []).append(point)
        if scales is not None:
            chosen[system] = float(scales["lmwt"]), float(scales["wip"])
    if not sweeps:
        section.blocks.append(missing("sweep of scales", "score"))
        return section
    caption = "Word error rate on dev over the language model weight."
    section.blocks.append(Figure(figures.scale_sweep(sweeps, chosen), caption))
    section.blocks += [
        Note(f"{system}: the chosen weight {weight:g} is at the edge of the sweep.")
        for system, (weight, _) in chosen.items()
        if system in sweeps and _is_at_edge(weight, sweeps[system])
    ]
    return section


def errors_section(results: Results) -> Section:
    """Speakers, confusions and the worst utterances of one system on one set."""
    system, name = results.shown_system, results.shown_set
    lead = (
        f"Where {system} goes wrong on {name}: by speaker, by word, and utterance by "
        "utterance."
    )
    section = Section("errors", "Errors in detail", lead)
    path = results.score_folder(system, name) / "per_utterance.tsv"
    if not path.is_file():
        section.blocks.append(missing(f"scores of {system} on {name}", "score"))
        return section
    scores = read_utterance_scores(path)
    section.blocks += _speakers(scores)
    section.blocks += _confusion_tables(scores, results.config["report"])
    section.blocks += _worst(scores, results.config["report"]["num_utterances"])
    return section


def aligned(score: UtteranceScore) -> tuple[Words, Words]:
    """Both sides of an utterance, each word with what became of it."""
    reference, hypothesis = [], []
    for word, heard in score.pairs:
        kind = (
            "ok"
            if word == heard
            else "ins"
            if word is None
            else "del"
            if heard is None
            else "sub"
        )
        width = max(len(word or ""), len(heard or ""))
        reference.append((word or "·" * width, kind if word else "gap"))
        hypothesis.append((heard or "·" * width, kind if heard else "gap"))
    return Words(tuple(reference)), Words(tuple(hypothesis))


def _rates(results: Results) -> list[Row]:
    """Rows of `wer.tsv`; none if it is not there."""
    return read_table(results / "wer.tsv") or []


def _rates_table(rows: Sequence[Row]) -> Table:
    """The main table."""
    columns = [
        text_column("system"),
        text_column("set"),
        Column("WER (%)"),
        Column("interval (%)"),
        *map(Column, ("ins", "del", "sub", "words", "utterances")),
        Column("wrong (%)"),
        Column("weight"),
        Column("penalty"),
    ]
    cells = [
        [
            row["system"],
            row["set"],
            row["wer"],
            f"{row['ci_low']} – {row['ci_high']}",
            *(row[key] for key in ("ins", "del", "sub", "words", "sentences")),
            f"{100 * int(row['sentence_errors']) / max(1, int(row['sentences'])):.1f}",
            row["lmwt"],
            row["wip"],
        ]
        for row in rows
    ]
    caption = (
        "Utterances with any error are wrong; weight and penalty are the scales of the "
        "language model and of each inserted word."
    )
    return Table(columns, cells, caption)


def _interval(row: Row) -> str:
    """The interval of a row in words."""
    return f"interval {row['ci_low']} to {row['ci_high']} %"


def _is_at_edge(
    weight: float, lines: Mapping[float, Iterable[tuple[float, float]]]
) -> bool:
    """Whether a weight is the least or greatest of a sweep of more than one."""
    weights = {w for points in lines.values() for w, _ in points}
    return len(weights) > 1 and weight in {min(weights), max(weights)}


def _speakers(scores: Sequence[UtteranceScore]) -> list[Block]:
    """Bars of the speakers' rates."""
    counts = {name: total(own) for name, own in by_speaker(scores).items()}
    rates = {name: c.wer for name, c in counts.items() if c.words}
    if len(rates) < 2:
        return []
    svg = figures.speaker_rates(rates, total(scores).wer)
    spread = f"from {min(rates.values()):.1f} to {max(rates.values()):.1f} %"
    caption = f"Word error rate of the {len(rates)} speakers, {spread}."
    return [Heading("By speaker"), Figure(svg, caption)]


def _confusion_tables(
    scores: Sequence[UtteranceScore], options: Mapping[str, Any]
) -> list[Block]:
    """The most frequent substitutions, deletions and insertions."""
    counts = confusions(scores)
    said: Counter[str] = Counter(a for s in scores for a, _ in s.pairs if a)
    found: list[Block] = []
    for title in ("Substituted", "Deleted", "Inserted"):
        own = [(pair, n) for pair, n in counts.items() if _kind(*pair) == title]
        own.sort(key=lambda item: (-item[1], str(item[0])))
        rows = [
            [a or "", b or "", str(n), str(said[a]) if a else ""]
            for (a, b), n in own[: options["num_confusions"]]
        ]
        keep = [i for i in range(4) if any(row[i] for row in rows)]
        columns = [text_column("said"), text_column("recognised")]
        columns += [Column("times"), Column("times said")]
        if rows:
            caption = f"{title}: the {len(rows)} most frequent of {len(own)}."
            cells = [[row[i] for i in keep] for row in rows]
            found.append(Table([columns[i] for i in keep], cells, caption))
    heading: Block = Heading("Most frequent confusions")
    return [heading, *found] if found else [Note("There is no word error.")]


def _kind(word: str | None, heard: str | None) -> str:
    """Name of an error."""
    return "Inserted" if word is None else "Deleted" if heard is None else "Substituted"


def _worst(scores: Sequence[UtteranceScore], limit: int) -> list[Block]:
    """Utterances with the most errors, word by word."""
    wrong = [score for score in scores if score.counts.errors]
    wrong.sort(key=lambda s: (-s.counts.errors, _rate_key(s), s.utterance))
    if not wrong:
        return []
    rows = []
    for score in wrong[:limit]:
        reference, hypothesis = aligned(score)
        counts = score.counts
        rate = "" if math.isnan(counts.wer) else f"{counts.wer:.0f}"
        numbers = (counts.words, counts.errors, rate)
        rows.append(
            [score.utterance, score.speaker, *map(str, numbers), reference, hypothesis]
        )
    columns = [text_column("utterance"), text_column("speaker")]
    columns += [Column("words"), Column("errors"), Column("WER (%)")]
    columns += [text_column("said"), text_column("recognised")]
    caption = (
        f"The {len(rows)} worst of {len(wrong)} utterances with errors; click a "
        "heading to sort. Deleted words are struck through, inserted ones underlined, "
        "substituted ones coloured."
    )
    return [Heading("Utterances with the most errors"), Table(columns, rows, caption)]


def _rate_key(score: UtteranceScore) -> float:
    """Order by rate, highest first, references without words before all."""
    return -math.inf if math.isnan(score.counts.wer) else -score.counts.wer
