"""Sections on word errors: rates, comparisons, scales, lattices, errors in detail."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from latflow.report import figures
from latflow.report.inputs import Results, read_json, read_numbers
from latflow.report.page import (
    Block,
    Figure,
    Heading,
    Note,
    Row,
    Section,
    Table,
    Words,
    missing,
    rows_of,
)
from latflow.report.records import Decoding, Lattices, Scales, WordErrors
from latflow.report.significance import p_text
from latflow.scoring.results import GAP, by_speaker, confusions, read_scores, totals
from latflow.scoring.transcripts import read_text
from latflow.scoring.tune import SCALES

_COMPARED = (
    "A network trained on lattices is compared with the network that it started from, "
    "another network with the GMM system whose alignments it learnt, and a GMM system "
    "with the one before it; what a second language model rescored, with what it was. "
    "Both are judged on the same redrawn utterances (paired bootstrap). A negative "
    "change is an improvement; p is how often chance alone would undo or reverse it "
    "(two-sided), corrected for all comparisons of the report (Holm)."
)
_WITH_PAUSES = (
    "Recordings with pauses between sentences ({}) are decoded as a whole here. "
    "Servers and latflow transcribe look for speech first: what packages make of "
    "them is under Serving."
)
# Columns of wer.tsv -> titles in the report.
_RATES = {
    "system": "system",
    "set": "set",
    "wer": "WER (%)",
    "interval": "interval (%)",
    "ins": "ins",
    "del": "del",
    "sub": "sub",
    "words": "words",
    "sentences": "utterances",
    "wrong": "wrong (%)",
    "lmwt": "weight",
    "wip": "penalty",
}
_KINDS = {"sub": "Substituted", "del": "Deleted", "ins": "Inserted"}


def rates_section(results: Results) -> Section:
    """Show the word error rates of all systems and sets, and whether they differ."""
    bootstrap = results.options.score.bootstrap
    lead = (
        "The word error rate is the number of wrongly inserted, deleted and "
        "substituted words per 100 words of the reference; lower is better. The "
        f"interval says how far chance in the choice of {_drawn(results)} moves it: "
        f"{100 * bootstrap.confidence:g} % of {bootstrap.samples} sets drawn "
        "again from the same recordings fall inside; with few errors it is at least "
        "the exact binomial interval. The set dev chose the scales, so "
        "only test sets judge a system."
    )
    section = Section("wer", "Word error rates", lead)
    table = results.wer
    if table is None or table.empty:
        section.blocks.append(missing("word error rates", "score"))
        section.blocks += _without_references(results)
        return section
    rates: dict[str, dict[str, tuple[float, float, float]]] = {}
    bounds = table[["wer", "ci_low", "ci_high"]].astype(float)
    names = zip(table["set"], table["system"], bounds.to_numpy(), strict=True)
    for name, system, (rate, low, high) in names:
        if not math.isnan(rate):
            rates.setdefault(name, {})[system] = rate, low, high
    if rates:
        caption = "Word error rates; the lines across the ends are the intervals."
        section.blocks.append(Figure(figures.error_rates(rates), caption))
    caption = (
        "Utterances with any error are wrong; weight and penalty are the scales of the "
        "language model and of each inserted word."
    )
    sentences = table["sentences"].astype(int).clip(lower=1)
    wrong = 100 * table["sentence_errors"].astype(int) / sentences
    shown = table.assign(
        interval=table["ci_low"] + " – " + table["ci_high"],
        wrong=wrong.map("{:.1f}".format),
    )[list(_RATES)].rename(columns=_RATES)
    section.blocks.append(Table(rows_of(shown), {"system", "set"}, caption))
    if paused := set(results.recipe.test_sets) & results.options.corpus.paused.keys():
        section.blocks.append(Note(_WITH_PAUSES.format(", ".join(sorted(paused)))))
    section.blocks += _comparisons(results)
    section.blocks += _without_references(results)
    return section


def _drawn(results: Results) -> str:
    """Return what the intervals are drawn by, by set where sets differ."""
    sets: dict[str, list[str]] = {}
    for name in results.recipe.evaluation_sets:
        folders = (results.score_folder(s, name) for s in results.recipe.decodings)
        found = (read_json(folder / "wer.json", WordErrors) for folder in folders)
        known = next((each for each in found if each is not None), None)
        if known is not None:
            unit = f"{known.confidence_interval.by}s"
            sets.setdefault(unit, []).append(name)
    if len(sets) == 1:
        return next(iter(sets))
    named = [f"{unit} ({', '.join(names)})" for unit, names in sets.items()]
    return " or ".join(named) or "utterances or speakers"


def _without_references(results: Results) -> Iterator[Block]:
    """List what was recognized of test sets without transcripts."""
    rows = []
    for name in results.recipe.untranscribed_sets:
        for system in results.recipe.decodings:
            path = results.score_folder(system, name) / "hyp.txt"
            if path.is_file():
                texts = read_text(path)
                rows.append(
                    {
                        "set": name,
                        "system": system,
                        "utterances": len(texts),
                        "words recognized": sum(map(len, texts.values())),
                        "file": path.relative_to(results.folder).as_posix(),
                    }
                )
    if rows:
        yield Heading("Recognized, not scored")
        yield Note("These test sets have no transcripts (`transcripts: false`).")
        yield Table(rows, {"set", "system", "file"})


def _comparisons(results: Results) -> Iterator[Block]:
    """Compare each system with its baseline."""
    rows = []
    for system in results.recipe.decodings:
        for name in results.recipe.evaluation_sets:
            verdict = results.verdict(system, name)
            if verdict is None:
                continue
            better = 100 * verdict.found.probability_of_improvement
            rows.append(
                {
                    "system": system,
                    "against": verdict.old,
                    "set": name,
                    "change (absolute %)": verdict.change,
                    "interval (%)": verdict.interval,
                    "better in (% of draws)": f"{better:.1f}",
                    "p": p_text(verdict.found.p_value),
                    "reading": verdict.reading,
                }
            )
    if rows:
        yield Heading("Is the difference real?")
        yield Note(_COMPARED)
        yield Table(rows, {"system", "against", "set", "reading"})


def scales_section(results: Results) -> Section:
    """Show the sweeps that chose language model weights and insertion penalties."""
    lead = (
        "Decoding weighs the acoustic model against the language model. The weight and "
        "a penalty for each inserted word are chosen where dev has the fewest errors, "
        "and then used on the test sets. The sweep goes on beyond the values of the "
        "recipe until the best are inside; one at the edge would mean that it was not "
        "let go on (`decode.tune.widen`)."
    )
    section = Section("scales", "Choice of scales", lead)
    sweeps: dict[str, pd.DataFrame] = {}
    chosen: dict[str, tuple[float, float]] = {}
    at_edge: list[Note] = []
    for system in results.recipe.decodings:
        sweep = results / f"tune/{system}/sweep.tsv"
        table = read_numbers(sweep, ["lmwt", "wip", "wer"])
        if table is not None:
            sweeps[system] = table
        scales = read_json(results / f"tune/{system}/scales.json", Scales)
        if scales is not None:
            chosen[system] = scales.lmwt, scales.wip
            at_edge += [
                Note(f"{system}: the {SCALES[name]}, {value:g}, is at the edge.")
                for name, value in scales.edges
            ]
    if not sweeps:
        section.blocks.append(missing("sweep of scales", "score"))
        return section
    caption = "Word error rate on dev over the language model weight."
    section.blocks.append(Figure(figures.scale_sweep(sweeps, chosen), caption))
    section.blocks += at_edge
    return section


def lattices_section(results: Results) -> Section:
    """Show depth, oracle error and real-time factor of each set; error over time."""
    lead = (
        "A lattice holds the likely ways through an utterance. Its oracle error rate "
        "is that of the least wrong path in it: no rescoring can do better, so a large "
        "gap to the best path is room for a better language model, and a high oracle "
        "rate asks for wider beams. The depth is what a lattice costs later on."
    )
    section = Section("lattices", "Lattices", lead)
    rows = [*_lattice_rows(results)]
    if rows:
        section.blocks.append(Table(rows, {"system", "set"}))
    else:
        section.blocks.append(missing("measured lattices", "report"))
    sweeps = {}
    for system in results.recipe.swept_systems:
        beams = results / f"tune/{system}/beams.tsv"
        table = read_numbers(beams, ["beam", "rtf", "wer", "depth"])
        if table is not None:
            sweeps[system] = table
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


def _lattice_rows(results: Results) -> Iterator[Row]:
    """Yield a row a decoding and set that was measured."""
    for decoding in results.recipe.decodings:
        for name in results.recipe.evaluation_sets:
            path = results.score_folder(decoding, name) / "lattices.json"
            measured = read_json(path, Lattices)
            if measured is None:
                continue
            folder = results / f"decode/{decoding}/{name}"
            summary = read_json(folder / "decode.json", Decoding)
            factor = None if summary is None else summary.real_time_factor
            depths = measured.depth_percentiles
            yield {
                "system": decoding,
                "set": name,
                "best path, WER (%)": _percent(measured.best_wer),
                "oracle WER (%)": _percent(measured.oracle_wer),
                "depth (arcs a frame)": f"{measured.depth:.1f}",
                "5 % of utterances below": f"{depths.low:.1f}",
                "95 % below": f"{depths.high:.1f}",
                "real-time factor a core": "" if factor is None else f"{factor:.3f}",
            }


def _percent(rate: float | None) -> str:
    """Return a rate, or nothing where the set has no words."""
    return "" if rate is None else f"{rate:.2f}"


def errors_section(results: Results) -> Section:
    """Show speakers, confusions and the worst utterances of one system on one set."""
    system, name = results.shown_system, results.shown_set
    lead = (
        f"Where {system} goes wrong on {name}: by speaker, by word, and utterance by "
        "utterance."
    )
    section = Section("errors", "Errors in detail", lead)
    path = results.scores_of(system, name)
    if not path.is_file():
        section.blocks.append(missing(f"scores of {system} on {name}", "score"))
        return section
    scores = read_scores(path)
    section.blocks += _speakers(scores)
    section.blocks += _confusions(scores, results.options.report.num_confusions)
    section.blocks += _worst(scores, results.options.report.num_utterances)
    return section


def aligned(reference: str, hypothesis: str) -> tuple[Words, Words]:
    """Return both sides of an aligned utterance, each word with what became of it."""
    sides: tuple[list[tuple[str, str]], ...] = ([], [])
    for word, recognized in zip(reference.split(), hypothesis.split(), strict=True):
        kind = "ins" if word == GAP else "del" if recognized == GAP else "sub"
        gap = "·" * max(len(each) for each in (word, recognized) if each != GAP)
        for side, each in zip(sides, (word, recognized), strict=True):
            what = "gap" if each == GAP else "ok" if word == recognized else kind
            side.append((gap if each == GAP else each, what))
    return Words(sides[0]), Words(sides[1])


def _speakers(scores: pd.DataFrame) -> list[Block]:
    """Draw the speakers' rates."""
    table = by_speaker(scores).dropna(subset="wer")
    if len(table) < 2:
        return []
    rates = dict(zip(table["speaker"], table["wer"], strict=True))
    svg = figures.speaker_rates(rates, totals(scores).wer)
    spread = f"from {table['wer'].min():.1f} to {table['wer'].max():.1f} %"
    caption = f"Word error rate of the {len(rates)} speakers, {spread}."
    return [Heading("By speaker"), Figure(svg, caption)]


def _confusions(scores: pd.DataFrame, limit: int) -> list[Block]:
    """List the most frequent substitutions, deletions and insertions."""
    counts = scores["reference"].str.split().explode().value_counts()
    pairs = confusions(scores).astype({"kind": str})
    pairs["spoken"] = pairs["reference"].map(counts).fillna(0).astype(int)
    titles = {"reference": "reference", "hypothesis": "recognized"}
    numbers = {"count": "times", "spoken": "times in references"}
    hidden = {"sub": [], "del": ["hypothesis"], "ins": ["reference", "spoken"]}
    found: list[Block] = []
    for kind, title in _KINDS.items():
        own = pairs[pairs["kind"] == kind]
        shown = own.head(limit).drop(columns=["kind", *hidden[kind]])
        if len(shown):
            caption = f"{title}: the {len(shown)} most frequent of {len(own)}."
            rows = rows_of(shown.rename(columns=titles | numbers))
            found.append(Table(rows, titles.values(), caption))
    heading: Block = Heading("Most frequent confusions")
    return [heading, *found] if found else [Note("There is no word error.")]


def _worst(scores: pd.DataFrame, limit: int) -> list[Block]:
    """List the utterances with the most errors, word by word."""
    wrong = scores[scores["errors"] > 0]
    if wrong.empty:
        return []
    order = ["errors", "wer", "utterance"]
    worst = wrong.sort_values(
        order, ascending=[False, False, True], na_position="first"
    ).head(limit)
    rows = []
    for row in worst.to_dict("records"):
        reference, recognized = aligned(row["reference"], row["hypothesis"])
        rows.append(
            {
                "utterance": row["utterance"],
                "speaker": row["speaker"],
                "words": str(row["words"]),
                "errors": str(row["errors"]),
                "WER (%)": "" if math.isnan(row["wer"]) else f"{row['wer']:.0f}",
                "reference": reference,
                "recognized": recognized,
            }
        )
    caption = (
        f"The {len(rows)} worst of {len(wrong)} utterances with errors; click a "
        "heading to sort. Deleted words are struck through, inserted ones underlined, "
        "substituted ones coloured."
    )
    text = {"utterance", "speaker", "reference", "recognized"}
    return [Heading("Utterances with the most errors"), Table(rows, text, caption)]
