"""Section that answers which system to ship: how much better, at what cost, what next.

Dev chooses the system; the first test set tells how much better it is than each of the
others, on the same redrawn utterances. What to try next comes of findings in the
experiment's files, each with its evidence.

Public: `decide`, `decision_section`, `Decision`, `headline`, `Headline`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from latflow.ledger import read_ledger
from latflow.report.costs import read_costs
from latflow.report.inputs import Results, read_json, read_log, read_table
from latflow.report.page import Block, Fact, Heading, Note, Row, Section, Table, missing
from latflow.report.scores import (
    COULD_BE_CHANCE,
    compare,
    compare_systems,
    reading,
    real_time_factor,
)
from latflow.scoring.bootstrap import holm
from latflow.sequence.options import SequenceSystemOptions

# Rules that make a system, as opposed to using it; their jobs begin with its name.
_MAKING = ("train_", "build_", "make_supervisions", "supervise_", "align_")

_MISMATCH = 1.5  # test over dev
_HIGH_ORACLE = 0.5  # of the best path's errors
_HIGH_OOV = 1.0  # per cent of the words
_HIGH_SKIPPED = 0.01  # of the utterances of a stage
_OVERFITTING = 1.02  # last loss over the least


@dataclass(frozen=True)
class Decision:
    """The system to ship.

    Attributes:
        system: its name.
        test: the set that judges it.
        rates: word error rates in per cent by (system, set); systems in their order.
    """

    system: str
    test: str
    rates: dict[tuple[str, str], float]

    @property
    def others(self) -> list[str]:
        """The other systems that are scored on dev and test, in their order."""
        names = dict.fromkeys(system for system, _ in self.rates)
        pairs = ((name, name_set) for name in names for name_set in ("dev", self.test))
        scored = {name for name, name_set in pairs if (name, name_set) in self.rates}
        return [name for name in names if name in scored - {self.system}]


def rates_of(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the word error rates of `wer.tsv`, per cent, by (system, set)."""
    known = table[table["wer"] != "nan"]
    keys = zip(known["system"], known["set"], strict=True)
    return dict(zip(keys, known["wer"].astype(float), strict=True))


def chosen_on_dev(rates: dict[tuple[str, str], float], name: str) -> str | None:
    """Choose, among the systems scored on a set, the one that dev is best with.

    Args:
        rates: of `rates_of`.
        name: the set.

    Returns:
        Of equal systems the later; those that dev has not scored come last. None where
        no system is scored on the set.
    """
    systems = [system for system, each in reversed(rates) if each == name]
    dev = {system: rates.get((system, "dev"), math.inf) for system in systems}
    return min(systems, key=dev.__getitem__, default=None)


def decide(results: Results) -> Decision | None:
    """Choose the system to ship, see `chosen_on_dev`.

    Returns:
        None where no system is scored on dev and on a test set.
    """
    table = read_table(results / "wer.tsv")
    if table is None or not results.recipe.test_sets:
        return None
    rates = rates_of(table)
    test = results.recipe.test_sets[0]
    system = chosen_on_dev(rates, test)
    if system is None or (system, "dev") not in rates:
        return None
    return Decision(system, test, rates)


@dataclass(frozen=True)
class Headline:
    """The report in a sentence, and the numbers for the top of the page."""

    sentence: str
    facts: list[Fact]


def headline(results: Results) -> Headline:
    """Sum the outcome up: the system that dev is best with, beside the first."""
    table = read_table(results / "wer.tsv")
    if table is None or table.empty:
        return Headline("No system has been scored yet.", [])
    rates = rates_of(table)
    rows = {(row["system"], row["set"]): row for row in table.to_dict("records")}
    parts, facts = [], []
    for name in results.recipe.test_sets or ["dev"]:
        chosen = chosen_on_dev(rates, name)
        if chosen is None:
            continue
        first = next(rows[key] for key in rates if key[1] == name)
        best = rows[chosen, name]
        interval = f"interval {best['ci_low']} to {best['ci_high']} %"
        part = (
            f"{best['system']} gets {best['wer']} % of the {best['words']} words of "
            f"{name} wrong ({interval})"
        )
        if first is not best:
            part += f", where {first['system']} gets {first['wer']} %"
        parts.append(part)
        detail = f"{best['system']}, {interval}"
        facts.append(Fact(f"{best['wer']} %", f"word error rate, {name}", detail))
    if parts and sum(each == "dev" for _, each in rates) > 1:
        parts[-1] += "; dev chose the system"
    sentence = "; ".join(parts) + "." if parts else "No test set has been scored yet."
    return Headline(sentence, facts)


def decision_section(results: Results) -> Section:
    """Say which system to ship, and what to try next."""
    section = Section("decision", "Which system to ship", "")
    decision = decide(results)
    if decision is None:
        section.lead = "The system that dev is best with, and what it costs."
        section.blocks.append(missing("scores of dev and a test set", "score"))
        return section
    rows = list(_rows(results, decision))
    section.lead = _lead(decision, rows)
    caption = (
        f"{decision.system} against each system on the same redrawn {decision.test} "
        "utterances; p is two-sided and corrected for the number of comparisons "
        "(Holm). Training time is that of all jobs that the system is built on."
    )
    words = {"system", "reading"}
    section.blocks.append(Table(rows, words, caption))
    section.blocks += _advice(results, decision)
    return section


def _lead(decision: Decision, rows: list[Row]) -> str:
    """Say the answer in a sentence or two."""
    system, test = decision.system, decision.test
    rate = decision.rates[system, test]
    lead = f"{system}: dev chose it, and it gets {rate:.2f} % of {test}'s words wrong."
    unsure = [row["system"] for row in rows if row.get("reading") == COULD_BE_CHANCE]
    worse = [row["system"] for row in rows if row.get("reading") == "worse"]
    if unsure:
        lead += (
            f" Its difference from {', '.join(map(str, unsure))} could be chance: the "
            "cheapest of them is as good a choice."
        )
    if worse:
        lead += f" On {test} {', '.join(map(str, worse))} did better: dev misled."
    return lead


def _rows(results: Results, decision: Decision) -> Iterator[Row]:
    """Yield a row a system: rates, the chosen one against it, costs."""
    costs = read_costs(results.folder)
    found = {
        other: compare_systems(results, other, decision.system, decision.test)
        for other in decision.others
    }
    known = {other: each for other, each in found.items() if each is not None}
    corrected = holm([each.p_value for each in known.values()])
    p_values = dict(zip(known, corrected, strict=True))
    for system in dict.fromkeys(name for name, _ in decision.rates):
        if system != decision.system and system not in decision.others:
            continue
        rate = decision.rates[system, decision.test]
        row: dict[str, str | int] = {
            "system": system,
            "dev WER (%)": f"{decision.rates.get((system, 'dev'), math.nan):.2f}",
            f"{decision.test} WER (%)": f"{rate:.2f}",
        }
        if system in known:
            p, difference = p_values[system], known[system].difference
            row["change (absolute %)"] = f"{difference:+.2f}"
            before = decision.rates[decision.system, decision.test] - difference
            if before > 0:
                row["change (relative %)"] = f"{100 * difference / before:+.1f}"
            row["p"] = f"{p:.3f}" if p >= 0.001 else "< 0.001"
            row["reading"] = reading(difference, p)
        elif system == decision.system:
            row["reading"] = "ship this"
        yield {**row, **_costs(results, costs, system, decision.test)}


def _costs(
    results: Results, costs: pd.DataFrame, system: str, test: str
) -> dict[str, str]:
    """Return what a system costs in use and in training, where it was measured."""
    shown: dict[str, str] = {}
    acoustic = results.recipe.system_of(system)
    shown["passes"] = str(_passes(results, acoustic))
    summary = read_json(results / f"decode/{system}/{test}/decode.json")
    factor = None if summary is None else real_time_factor(summary)
    if factor is not None:
        shown["real-time factor a core"] = f"{factor:.3f}"
    # Of the whole set, or of the largest part of it.
    jobs = costs[(costs["job"] + ".").str.startswith(f"{acoustic}.{test}.")]
    memory = jobs.loc[jobs["rule"].str.startswith("decode_"), "peak_memory_mib"].max()
    if not math.isnan(memory):
        shown["decoding memory (MiB)"] = f"{memory:.0f}"
    makers = results.recipe.lineage_of(acoustic)
    seconds = sum(_making_seconds(costs, name) for name in makers)
    if seconds:
        shown["training (min)"] = f"{seconds / 60:.1f}"
    return shown


def _passes(results: Results, system: str) -> int:
    """Return how often an utterance is decoded: twice where speakers are adapted to."""
    recipe = results.recipe
    reads = recipe.stream_of(system) if recipe.is_network(system) else system
    return 2 if reads in recipe.adapted_systems else 1


def _making_seconds(costs: pd.DataFrame, system: str) -> float:
    """Return the wall time of the jobs that made a system."""
    own = costs["job"].str.split(".").str[0] == system
    return float(
        costs.loc[own & costs["rule"].str.startswith(_MAKING), "wall_seconds"].sum()
    )


def _advice(results: Results, decision: Decision) -> Iterator[Block]:
    """List the findings that ask for something."""
    rows = [
        {"finding": finding, "try": remedy}
        for rule in _RULES
        for finding, remedy in rule(results, decision)
    ]
    yield Heading("What to try next")
    if rows:
        yield Table(rows, {"finding", "try"})
    else:
        yield Note("Nothing in the experiment's files asks for a change.")


Findings = Iterator[tuple[str, str]]  # what was found, what to try


def _mismatch(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find a dev set that is much easier than the test set."""
    dev, test = (decision.rates[decision.system, s] for s in ("dev", decision.test))
    if test > _MISMATCH * dev and test - dev > 1:
        yield (
            f"{decision.test} has {test:.2f} % errors, dev {dev:.2f} %",
            "make dev more like the test set: speakers that no one trains on, "
            "sentences that the language model has not seen",
        )


def _edges(results: Results, decision: Decision) -> Findings:
    """Find a best language model weight at the edge of the sweep."""
    folder = results / f"tune/{decision.system}"
    sweep, scales = read_table(folder / "sweep.tsv"), read_json(folder / "scales.json")
    if sweep is None or scales is None:
        return
    weights = sweep["lmwt"].astype(float)
    if weights.nunique() > 1 and scales["lmwt"] in {weights.min(), weights.max()}:
        yield (
            f"the best language model weight, {scales['lmwt']:g}, lies at the edge of "
            f"the sweep from {weights.min():g} to {weights.max():g}",
            "widen tune.lmwt",
        )


def _oracle(results: Results, decision: Decision) -> Findings:
    """Find lattices that lack the right words."""
    path = results.score_folder(decision.system, decision.test) / "lattices.json"
    measured = read_json(path)
    if measured is None or measured["oracle_wer"] is None:
        return
    best, oracle = measured["best_wer"], measured["oracle_wer"]
    if oracle > _HIGH_ORACLE * best and oracle > 1:
        yield (
            f"even the least wrong path of the lattices has {oracle:.2f} % errors, the "
            f"best path {best:.2f} %",
            "widen decode.lattice_beam and decode.beam; if nothing changes, the "
            "language model or the lexicon lacks what was said",
        )


def _oov(results: Results, decision: Decision) -> Findings:
    """Find words that cannot be recognized."""
    size = results.split_sizes.get(decision.test)
    if size is None or size.oov is None or not size.words:
        return
    share = 100 * size.oov / size.words
    if share > _HIGH_OOV:
        yield (
            f"{share:.1f} % of {decision.test}'s words are not in the lexicon",
            "add their pronunciations to the lexicon, and the words to the language "
            "model's text",
        )


def _skipped(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find stages that left many training utterances out."""
    size = results.split_sizes.get("train")
    if size is None or not size.utterances:
        return
    for path in sorted(results.folder.glob("align/*/train/ledger.jsonl")):
        skipped = {e.utterance for e in read_ledger(path) if e.action == "skipped"}
        if len(skipped) > _HIGH_SKIPPED * size.utterances:
            yield (
                f"{path.parent.parent.name} could not align {len(skipped)} of "
                f"{size.utterances} training utterances",
                "listen to them: wrong transcripts, cut audio or silence; a wider "
                "align.retry_beam takes the hard ones in",
            )


def _overfitting(results: Results, decision: Decision) -> Findings:
    """Find a dev loss that rose again."""
    system = results.recipe.system_of(decision.system)
    log = read_log(results / f"nnet/{system}/log.jsonl")
    if log is None:
        return
    losses = [
        line["dev"]["loss"] for line in log.epochs if "loss" in line.get("dev", {})
    ]
    if len(losses) > 2 and min(losses) > 0 and losses[-1] > _OVERFITTING * min(losses):
        epoch = 1 + losses.index(min(losses))
        yield (
            f"dev loss of {system} was least after epoch {epoch} of {len(losses)} and "
            "has risen since",
            "fewer epochs, dropout, augmentation (speed, SpecAugment) or more speech",
        )


def _worse_than_seed(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find networks that training on lattices made worse on dev."""
    for system, options in results.options.nnet.systems.items():
        if not isinstance(options, SequenceSystemOptions):
            continue
        verdict = compare(results, system, "dev")
        if verdict is None or verdict.found.difference <= 0:
            continue
        yield (
            f"{system} has {verdict.found.difference:.2f} % (absolute) more errors on "
            f"dev than {verdict.old}, which it started from: {verdict.reading} "
            f"(p {verdict.found.p_value:.3f})",
            "more speech in dev tells what is chance; other learning rates, more passes"
            if verdict.reading == COULD_BE_CHANCE
            else "a smaller learning rate, or parts of epochs to choose among "
            "(data.partition_epoch)",
        )


_RULES = (
    *(_mismatch, _edges, _oracle, _oov, _skipped),
    *(_overfitting, _worse_than_seed),
)
