"""Section that answers which system to ship: how much better, at what cost, what next.

Dev chooses the system; the first test set tells how much better it is than each of the
others, on the same redrawn utterances. What to try next comes of findings in the
experiment's files, each with its evidence.

Public: `decide`, `decision_section`, `Decision`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from latflow.ledger import read_ledger
from latflow.report.costs import read_costs
from latflow.report.data import split_size, vocabulary
from latflow.report.inputs import Results, read_json, read_log, read_table
from latflow.report.page import Block, Heading, Note, Row, Section, Table, missing
from latflow.report.scores import compare_systems, reading, real_time_factor
from latflow.scoring.bootstrap import holm

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


def decide(results: Results) -> Decision | None:
    """Choose the system that dev is best with; of equal ones the later.

    Returns:
        None where no system is scored on dev and on a test set.
    """
    table = read_table(results / "wer.tsv")
    if table is None or not results.recipe.test_sets:
        return None
    rates = {
        (row["system"], row["set"]): float(row["wer"])
        for row in table.to_dict("records")
        if row["wer"] != "nan"
    }
    test = results.recipe.test_sets[0]
    dev = [(rate, name) for (name, each), rate in rates.items() if each == "dev"]
    scored = [(rate, name) for rate, name in dev if (name, test) in rates]
    if not scored:
        return None
    _, system = min(reversed(scored), key=lambda pair: pair[0])
    return Decision(system, test, rates)


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
    unsure = [row["system"] for row in rows if row.get("reading") == "could be chance"]
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
    jobs = costs[costs["job"] == f"{acoustic}.{test}"]
    memory = jobs.loc[jobs["rule"].str.startswith("decode_"), "peak_memory_mib"].max()
    if not math.isnan(memory):
        shown["decoding memory (MiB)"] = f"{memory:.0f}"
    minutes = sum(_making_seconds(costs, name) for name in _lineage(results, acoustic))
    if minutes:
        shown["training (min)"] = f"{minutes / 60:.1f}"
    return shown


def _passes(results: Results, system: str) -> int:
    """Return how often an utterance is decoded: twice where speakers are adapted to."""
    recipe = results.recipe
    reads = recipe.stream_of(system) if recipe.is_network(system) else system
    return 2 if reads in recipe.adapted_systems else 1


def _lineage(results: Results, system: str) -> Iterator[str]:
    """Yield a system and all that it was built on."""
    name: str | None = system
    while name is not None:
        yield name
        name = results.baseline_of(name)


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
        for rule in (_mismatch, _edges, _oracle, _oov, _skipped, _overfitting)
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
    words = vocabulary(results / "lang/words.txt")
    size = split_size(results / f"corpus/{decision.test}/cuts.jsonl.gz", words)
    if words is None or size is None or not size.words:
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
    size = split_size(results / "corpus/train/cuts.jsonl.gz", None)
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
