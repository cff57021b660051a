"""Section on sequence training: what it asks for, and whether it got it.

Public: `sequence_section`, `CRITERIA`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from latflow.report import sequence_figures
from latflow.report.comparisons import compare
from latflow.report.inputs import Log, Results, read_json, read_log, read_table
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
from latflow.report.sequence_costs import costs, drift, failures, totals
from latflow.report.sequence_curves import curves
from latflow.report.sequence_figures import DevErrors

_LEAD = (
    "A network that is trained frame by frame learns to name frames; sequence training "
    "goes on from it with whole utterances, and asks what recognition asks: that the "
    "words that were said score better than all that might have been said instead. In "
    "each step the network as it is at that moment decodes a batch of training "
    "utterances into lattices, which hold the likely ways through each utterance; the "
    "criterion compares what was said with the rest of the lattice, and the network "
    "moves towards the one and away from the other."
)
#: Criterion -> what it raises.
CRITERIA = {
    "mmi": "maximum mutual information: the log probability of what was said, among "
    "all paths of the lattice",
    "smbr": "state-level minimum Bayes risk: the share of frames expected to be in "
    "the right tied state, if paths are drawn by their probability",
    "mpfe": "minimum phone frame error: the share of frames expected to be in the "
    "right phone, if paths are drawn by their probability",
    "phone_mpe": "minimum phone error: how many phones are expected to be right, if "
    "paths are drawn by their probability; phones, not frames, are counted",
    "teacher": "teacher-student training: how well the probabilities that the network "
    "gives to the paths of the lattice agree with those of another network, the "
    "teacher; what was really said does not matter",
    "mwe": "minimum word error: how few word errors are expected over the best word "
    "sequences of the lattice",
}
_OPTIONS = {
    "seed": "Network that training starts from.",
    "criterion": "What is raised; see above.",
    "teacher": "Network whose probabilities of paths are learnt.",
    "boost": "What each wrong frame adds to the log score of a path (nats). Wrong "
    "paths look likelier than they are, and must be beaten by a margin.",
    "acoustic scale": "Weight of the network's scores against language model and "
    "lexicon, where paths are compared.",
    "cross-entropy weight": "How much the frame-by-frame goal still counts, beside "
    "the criterion; it keeps the network near its seed.",
    "lattice beam": "How much worse than the best path (negated log probability) a "
    "path may be to stay in the lattice.",
    "wanted depth": "Arcs a frame that the lattice beam is steered to; arcs are the "
    "links that paths are made of.",
    "alignments": "What says which state each frame of the spoken words belongs to: "
    "static, those that the seed learnt; or on the fly, made anew in each step by the "
    "network as it is.",
    "learning rate": "How far the parameters move in a step.",
    "batch": "Utterances that a step learns from.",
    "epoch": "What training goes through between two looks at dev. Where it is a part "
    "of the training data, the parts take turns, and the curves below may swing with "
    "them.",
}
CRITERIA["mpe"] = f"another name of mpfe, {CRITERIA['mpfe']}"
_LANGUAGE_MODELS = {
    1: "words of the training transcripts by how frequent they are (1-grams)",
    2: "pairs of words of the training transcripts (2-grams)",
}


def sequence_section(results: Results) -> Section | None:
    """How networks were trained on lattices; None where there are none of them."""
    names = results.networks_of("sequence")
    if not names:
        return None
    section = Section("sequence", "Sequence training", _LEAD)
    section.blocks += [
        _criteria(results, names),
        *_options(results, names),
        *_outcome(results, names),
    ]
    logs = {name: read_log(results / f"nnet/{name}/log.jsonl") for name in names}
    trained = {name: log for name, log in logs.items() if log and totals(log)}
    if trained:
        section.blocks += [
            *_dev(results, trained),
            *curves(results, trained),
            *_denominators(results, names),
            *costs(results, trained),
            *failures(trained),
            *drift(results, trained),
        ]
    else:
        section.blocks.append(missing("sequence training", f"nnet_{names[0]}"))
    return section


def _criteria(results: Results, names: list[str]) -> Table:
    """What each criterion of the experiment asks for."""
    types = dict.fromkeys(results.options_of(n)["criterion"]["type"] for n in names)
    rows = [[kind, CRITERIA[kind]] for kind in types]
    return Table([text_column("criterion"), text_column("what is raised")], rows)


def _options(results: Results, names: list[str]) -> Iterator[Block]:
    """What was chosen for each training, and what the choice means."""
    found = {name: _chosen(results, name) for name in names}
    rows = [
        [option, *(facts.get(option, "") for facts in found.values()), meaning]
        for option, meaning in _OPTIONS.items()
        if any(option in facts for facts in found.values())
    ]
    columns = [text_column("option"), *map(Column, found), text_column("what it is")]
    yield Heading("Options")
    yield Table(columns, rows)


def _chosen(results: Results, name: str) -> dict[str, str]:
    """Options of a training, by their names in `_OPTIONS`."""
    options = results.options_of(name)
    criterion, sequence = options["criterion"], options["sequence"]
    lattices, training = sequence["lattices"], options["training"]
    target = lattices["depth"]["target"]
    is_static = sequence["alignments"]["source"] == "static"
    parts = options["data"]["partition_epoch"]
    facts = {
        "seed": options["parent"],
        "criterion": criterion["type"],
        "acoustic scale": f"{criterion['acoustic_scale']:g}",
        "cross-entropy weight": f"{criterion['ce_weight']:g}",
        "lattice beam": f"{lattices['lattice_beam']:g}",
        "alignments": "static" if is_static else "on the fly",
        "learning rate": f"{training['learning_rate']:g}",
        "batch": str(options["data"]["max_sequences"]),
        "epoch": "all data" if parts == 1 else f"1/{parts} of the data",
    }
    if criterion["type"] == "mmi":
        facts["boost"] = f"{criterion['boost']:g}"
    if criterion["type"] == "teacher":
        facts["teacher"] = criterion["teacher"]
    if target is not None:
        facts["wanted depth"] = f"{target:g}"
    return facts


def _outcome(results: Results, names: list[str]) -> Iterator[Block]:
    """Word error rates of the networks and of their seeds."""
    rates = {
        (row["system"], row["set"]): row["wer"]
        for row in read_table(results / "wer.tsv") or ()
    }
    rows = []
    for name in names:
        seed = results.options_of(name)["parent"]
        for where in results.evaluation_sets:
            verdict = compare(results, name, where)
            if (name, where) in rates and verdict is not None:
                both = [rates.get((seed, where), "nan"), rates[name, where]]
                judged = [verdict.change, verdict.interval, verdict.reading]
                rows.append([name, seed, where, *both, _relative(*both), *judged])
    if not rows:
        yield missing("word error rates of seeds and networks", "score")
        return
    yield Heading("Outcome")
    yield Note(
        "Word error rates of each network beside those of its seed. Dev chose the "
        "epoch and the scales and flatters them; only test sets judge. A change could "
        "be chance where the paired bootstrap (see Word error rates) cannot tell it "
        "from none. Relative is the change as a share of the seed's errors."
    )
    columns = [text_column("network"), text_column("seed"), text_column("set")]
    columns += [Column("WER of the seed (%)"), Column("WER (%)")]
    columns += [Column("change (relative %)"), Column("change (absolute %)")]
    columns += [Column("interval (absolute %)"), text_column("reading")]
    yield Table(columns, rows)


def _relative(old: str, new: str) -> str:
    """The change of a rate as a share of what it was, per cent; nothing from zero."""
    before, after = float(old), float(new)
    return f"{100 * (after / before - 1):+.1f}" if before > 0 else ""


def _dev(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """Word error rates on dev over epochs."""
    found, words = {}, 0.0
    for name, log in trained.items():
        lines = sorted([*log.dev, *log.epochs], key=log.place)
        parent = results.options_of(name)["parent"]
        scales = read_json(results / f"tune/{parent}/scales.json") or {}
        start = [(0.0, scales["wer"])] if scales.get("wer") is not None else []
        points = [(log.place(line), 100 * line["dev"]["loss"]) for line in lines]
        if points:
            found[name] = DevErrors([*start, *points], log.chosen)
            words = lines[-1]["dev"]["frames"]
    if found:
        yield Heading("Word errors on dev over training")
        yield Figure(
            sequence_figures.dev_errors(found),
            "After each epoch dev is decoded with the network as it is then, with the "
            "scales that were chosen for the seed. Circles mark the epochs whose "
            f"parameters the network has. Dev has {words:,.0f} words: one error is "
            f"{100 / max(1.0, words):.2f} %.",
        )


def _denominators(results: Results, names: list[str]) -> Iterator[Block]:
    """Sizes of the graphs that lattices were made with, beside those of decoding."""
    systems = dict.fromkeys(results.gmm_behind(name) for name in names)
    rows = []
    for system in systems:
        for use, folder in (("training", "denominator"), ("decoding", "graph")):
            facts = read_json(results / f"{folder}/{system}/HCLG.json")
            if facts is None:
                continue
            row = [system, use, f"{facts['states']:,}", f"{facts['arcs']:,}"]
            if use == "training":
                row += [
                    _LANGUAGE_MODELS[facts["lm_order"]],
                    f"{facts['lm_words']:,}",
                    ", ".join(f"{number:,}" for number in facts["lm_ngrams"]),
                    f"{facts['train_perplexity']:.1f}",
                ]
            else:
                row += ["that of the experiment", "", "", ""]
            rows.append(row)
    if not rows:
        return
    yield Heading("The graph of what might have been said")
    yield Note(
        "Lattices in training are made with a decoding graph of their own, the "
        "denominator. Its language model is weak on purpose: a strong one would know "
        "the training sentences by heart and leave few rivals to learn from. Its "
        "perplexity is how many words, on average, it hesitates between; states and "
        "arcs are the points and links of the graph."
    )
    columns = [text_column("system"), text_column("used in")]
    columns += [Column("states"), Column("arcs"), text_column("language model")]
    columns += [Column("words"), Column("n-grams by length")]
    columns += [Column("perplexity on training transcripts")]
    yield Table(columns, rows)
