"""Section on sequence training: criteria, options, outcome, costs and failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from latflow.criteria.options import PathOptions
from latflow.report.inputs import Log, Results, read_json, read_log
from latflow.report.page import (
    Block,
    Figure,
    Heading,
    Note,
    Row,
    Section,
    Table,
    missing,
)
from latflow.report.records import (
    DenominatorSizes,
    Drift,
    GraphSizes,
    NetworkMeta,
    Scales,
)
from latflow.report.sequence_curves import curves, dev_errors
from latflow.report.training import time_shares, training_facts
from latflow.training.options import SequenceSystemOptions
from latflow.workflow.sequence_networks import SequenceNetwork

_LEAD = (
    "A network that is trained frame by frame learns to name frames; sequence training "
    "continues from it with whole utterances, and asks what recognition asks: that the "
    "words of the reference score better than all their rivals in the lattice. In "
    "each step the network as it is at that moment decodes a batch of training "
    "utterances into lattices, which hold the likely ways through each utterance; the "
    "criterion compares the reference with the rest of the lattice, and the network "
    "moves towards the one and away from the other."
)
#: Criterion -> the quantity that it raises.
CRITERIA = {
    "mmi": "maximum mutual information: the log probability of the reference, among "
    "all paths of the lattice",
    "smbr": "state-level minimum Bayes risk: the share of frames expected to be in "
    "the right tied state, if paths are drawn by their probability",
    "mpfe": "minimum phone frame error: the share of frames expected to be in the "
    "right phone, if paths are drawn by their probability",
    "phone_mpe": "minimum phone error: how many phones are expected to be right, if "
    "paths are drawn by their probability; phones, not frames, are counted",
    "teacher": "teacher-student training: how well the probabilities that the network "
    "gives to the paths of the lattice agree with those of another network, the "
    "teacher; the reference does not matter",
    "custom": "a criterion of the user's own, in Python",
    "external": "a criterion of the user's own, a program beside the training",
    "mwe": "minimum word error: how few word errors are expected over the best word "
    "sequences of the lattice",
}
_OPTIONS = {
    **dict.fromkeys(
        ("steps skipped as outliers", "steps clipped as outliers"),
        "Steps whose loss or gradient was far from those before.",
    ),
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
    "wanted lattice depth": "Arcs a frame that the lattice beam is steered to; arcs "
    "are the links that paths are made of.",
    "alignments": "What says which state each frame of the spoken words belongs to: "
    "static, those that the seed learnt; or on the fly, made again in each step by the "
    "network as it is.",
    "learning rate": "How far the parameters move in a step.",
    "batch": "Utterances that a step learns from.",
    "epoch": "What training goes through between two looks at dev. Where it is a part "
    "of the training data, the parts take turns, and the curves below may swing with "
    "them.",
}
CRITERIA["mpe"] = f"another name of mpfe, {CRITERIA['mpfe']}"
_PARTS = {"align": "alignments", "lattice": "lattices", "criterion": "criterion"}
_EVENTS = ("utterances", "retried", "partial", "fallbacks", "skipped")
_MOST_PHONES = 12
_LANGUAGE_MODELS = {
    1: "words of the training transcripts by how frequent they are (1-grams)",
    2: "pairs of words of the training transcripts (2-grams)",
}


def sequence_section(results: Results) -> Section | None:
    """Show the training of networks on lattices; None without one."""
    recipe = results.recipe
    systems = {
        name: network.options
        for name, network in recipe.networks.items()
        if isinstance(network, SequenceNetwork)
    }
    if not systems:
        return None
    section = Section("sequence", "Sequence training", _LEAD)
    types = dict.fromkeys(options.criterion.type for options in systems.values())
    criteria = [{"criterion": t, "what is raised": CRITERIA[t]} for t in types]
    section.blocks += [
        Table(criteria, {"criterion", "what is raised"}),
        *_options(results, systems),
        *_outcome(results, systems),
    ]
    logs = {name: read_log(results / f"nnet/{name}/log.jsonl") for name in systems}
    trained = {name: log for name, log in logs.items() if log and totals(log)}
    if trained:
        kinds = {name: systems[name].criterion.type for name in trained}
        section.blocks += [
            *_dev(results, systems, trained),
            *curves(kinds, trained),
            *_denominators(results, systems),
            *_costs(results, trained),
            *_failures(trained),
            *_drift(results, trained),
        ]
    else:
        section.blocks.append(
            missing("sequence training", f"nnet_{next(iter(systems))}")
        )
    return section


def totals(log: Log) -> dict[str, float]:
    """Sum all that a training's log gives per frame over the training; `frames` too.

    Epochs count where any is finished, else the steps so far.
    """
    lines = [line["train"] for line in log.epochs] or log.steps
    sums: dict[str, float] = {}
    for line in lines:
        sums["frames"] = sums.get("frames", 0.0) + line["frames"]
        for name, mean in line.items():
            if name != "frames" and isinstance(mean, int | float):
                sums[name] = sums.get(name, 0.0) + mean * line["frames"]
    return sums


def _options(
    results: Results, systems: Mapping[str, SequenceSystemOptions]
) -> Iterator[Block]:
    """List the options of each training, and their meanings."""
    found = {
        name: {
            **_chosen(options),
            **training_facts(
                read_json(results / f"nnet/{name}/meta.json", NetworkMeta)
            ),
        }
        for name, options in systems.items()
    }
    rows = [
        {
            "option": option,
            **{name: facts.get(option, "") for name, facts in found.items()},
            "what it is": meaning,
        }
        for option, meaning in _OPTIONS.items()
        if any(option in facts for facts in found.values())
    ]
    yield Heading("Options")
    yield Table(rows, {"option", "what it is"})


def _chosen(options: SequenceSystemOptions) -> dict[str, str]:
    """Return the options of a training by their names in `_OPTIONS`."""
    criterion, sequence = options.criterion, options.sequence
    parts = options.data.partition_epoch
    is_static = sequence.alignments.source == "static"
    facts = {
        "seed": options.parent,
        "criterion": criterion.type,
        "cross-entropy weight": f"{criterion.ce_weight:g}",
        "lattice beam": f"{sequence.lattices.lattice_beam:g}",
        "alignments": "static" if is_static else "on the fly",
        "learning rate": f"{options.training.learning_rate:g}",
        "batch": str(options.data.max_sequences),
        "epoch": "all data" if parts == 1 else f"1/{parts} of the data",
    }
    if isinstance(criterion, PathOptions):
        facts["acoustic scale"] = f"{criterion.acoustic_scale:g}"
    if criterion.type == "mmi":
        facts["boost"] = f"{criterion.boost:g}"
    if criterion.type == "teacher":
        facts["teacher"] = criterion.teacher
    target = sequence.lattices.depth.target
    if target is not None:
        facts["wanted lattice depth"] = f"{target:g}"
    return facts


def _outcome(
    results: Results, systems: Mapping[str, SequenceSystemOptions]
) -> Iterator[Block]:
    """List word error rates of the networks and of their seeds."""
    table = results.wer
    records = [] if table is None else table.to_dict("records")
    rates = {(row["system"], row["set"]): row["wer"] for row in records}
    rows = []
    for name, options in systems.items():
        for where in results.recipe.evaluation_sets:
            verdict = results.verdict(name, where)
            if (name, where) in rates and verdict is not None:
                both = rates.get((options.parent, where), "nan"), rates[name, where]
                before, after = map(float, both)
                change = f"{100 * (after / before - 1):+.1f}" if before > 0 else ""
                rows.append(
                    {
                        "network": name,
                        "seed": options.parent,
                        "set": where,
                        "WER of the seed (%)": both[0],
                        "WER (%)": both[1],
                        "change (relative %)": change,
                        "change (absolute %)": verdict.change,
                        "interval (absolute %)": verdict.interval,
                        "reading": verdict.reading,
                    }
                )
    if not rows:
        yield missing("word error rates of seeds and networks", "score")
        return
    yield Heading("Outcome")
    yield Note(
        "Word error rates of each network beside those of its seed. Dev chose the "
        "epoch and the scales and flatters them; only test sets judge. A change could "
        "be chance where the paired bootstrap (see Word error rates) can't separate it "
        "from none, corrected for all comparisons of the report. Relative is the "
        "change as a share of the seed's errors."
    )
    yield Table(rows, {"network", "seed", "set", "reading"})


def _dev(
    results: Results,
    systems: Mapping[str, SequenceSystemOptions],
    trained: Mapping[str, Log],
) -> Iterator[Block]:
    """Draw word error rates on dev over epochs."""
    found, words = {}, 0.0
    for name, log in trained.items():
        lines = sorted([*log.dev, *log.epochs], key=log.epochs_at)
        tuned = results / f"tune/{systems[name].parent}/scales.json"
        scales = read_json(tuned, Scales)
        before = None if scales is None else scales.wer
        start = [] if before is None else [(0.0, before)]
        points = [(log.epochs_at(line), 100 * line["dev"]["loss"]) for line in lines]
        if points:
            found[name] = [*start, *points]
            words = lines[-1]["dev"]["frames"]
    if found:
        yield Heading("Word errors on dev over training")
        yield Figure(
            dev_errors(found, {name: trained[name].chosen for name in found}),
            "After each epoch dev is decoded with the network as it is then, with the "
            "scales that were chosen for the seed. Circles mark the epochs whose "
            f"parameters the network has. Dev has {words:,.0f} words: one error is "
            f"{100 / max(1.0, words):.2f} %.",
        )


def _denominators(results: Results, names: Iterable[str]) -> Iterator[Block]:
    """List the sizes of the graphs of training lattices, and of those of decoding."""
    rows: list[Row] = []
    owners = (results.recipe.networks[name].tree_owner.name for name in names)
    for system in dict.fromkeys(owners):
        for use, folder in (("training", "denominator"), ("decoding", "graph")):
            kind = DenominatorSizes if use == "training" else GraphSizes
            facts = read_json(results / f"{folder}/{system}/HCLG.json", kind)
            if facts is None:
                continue
            sizes = {"states": f"{facts.states:,}", "arcs": f"{facts.arcs:,}"}
            row = {"system": system, "used in": use, **sizes}
            if isinstance(facts, DenominatorSizes):
                ngrams = ", ".join(f"{number:,}" for number in facts.lm_ngrams)
                row |= {
                    "language model": _LANGUAGE_MODELS[facts.lm_order],
                    "words": f"{facts.lm_words:,}",
                    "n-grams by length": ngrams,
                    "perplexity on training transcripts": (
                        f"{facts.train_perplexity:.1f}"
                    ),
                }
            else:
                row["language model"] = "that of the experiment"
            rows.append(row)
    if not rows:
        return
    yield Heading("The graph of all phone sequences")
    yield Note(
        "Lattices in training are made with a decoding graph of their own, the "
        "denominator. Its language model is weak on purpose: a strong one would know "
        "the training sentences by heart and leave few rivals to learn from. Its "
        "perplexity is how many words, on average, it hesitates between; states and "
        "arcs are the points and links of the graph."
    )
    yield Table(rows, {"system", "used in", "language model"})


def _costs(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """List real-time factors of what is made on the fly, and the time waited for it."""
    rows = []
    for name, log in trained.items():
        sums = totals(log)
        speech = sums["frames"] * results.frame_shift(name)
        if not speech:
            continue
        seconds = {title: sums[f"seconds_{part}"] for part, title in _PARTS.items()}
        whole = sum(seconds.values())
        rows.append(
            {
                "network": name,
                **{f"{t} (RTF)": f"{s / speech:.4f}" for t, s in seconds.items()},
                "together (RTF)": f"{whole / speech:.4f}",
                **{
                    f"{t} (% of it)": f"{100 * s / max(whole, 1e-12):.0f}"
                    for t, s in seconds.items()
                },
                "waiting (RTF)": f"{sums['seconds_wait'] / speech:.4f}",
                "whole training (RTF)": _training_factor(results, name, log),
            }
        )
    if not rows:
        return
    yield Heading("What making lattices costs")
    yield Note(
        "A real-time factor (RTF) is processor time over the duration of the speech: "
        "with 0.01, one core does a hundred seconds of speech in a second. Waiting is "
        "the time that the network stood still for lattices, in seconds per second of "
        "speech; it is less than the work done where several threads share the work, "
        "and where the network's own work goes on meanwhile. Whole training is time on "
        "the clock over the speech that went by in it."
    )
    yield Table(rows, {"network"})
    if any(log.steps for log in trained.values()):
        yield from time_shares(trained)
        yield Note("The share of the criterion includes the time waited for lattices.")


def _training_factor(results: Results, name: str, log: Log) -> str:
    """Return the time of training over the duration of the speech, if it is logged."""
    if not log.steps:
        return ""
    frames = sum(line["frames"] for line in log.steps)
    seconds = sum(line["frames"] / line["frames_per_second"] for line in log.steps)
    return f"{seconds / (frames * results.frame_shift(name)):.4f}"


def _failures(trained: Mapping[str, Log]) -> Iterator[Block]:
    """Count searches that failed, by what was done."""
    rows = []
    for name, log in trained.items():
        sums = totals(log)
        rows.append({"network": name, **{e: f"{round(sums[e]):,}" for e in _EVENTS}})
    yield Heading("Searches that failed")
    yield Note(
        "Over all epochs. Retried: a search was repeated with a wider beam. Partial: "
        "the lattice did not reach the end of a sentence, and was used as it is. "
        "Fallbacks: an utterance could not be aligned again and kept its static "
        "alignment. Skipped: an utterance gave no gradient. "
        "The file sequence_ledger.jsonl beside each model names them."
    )
    yield Table(rows, {"network"})


def _drift(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """List phones whose alignments on the fly left the static ones most."""
    kind = dict[str, Drift]
    files = {name: results / f"nnet/{name}/drift.json" for name in trained}
    found = {name: read_json(path, kind) for name, path in files.items()}
    tables = [_drift_table(name, phones) for name, phones in found.items() if phones]
    if tables:
        yield Heading("Phones whose alignment moved")
        yield Note(
            "Alignments made on the fly follow the network as it learns. Frames are "
            "counted by the phone that the static alignment gives them, over all "
            "epochs. A frame that changes its state but not its phone is a boundary "
            "within a phone that moved; a phone that loses many frames to others is "
            "one that the static alignment had wrong, or that the network gives up."
        )
        yield from tables


def _drift_table(name: str, phones: Mapping[str, Drift]) -> Table:
    """Return the phones of a network that moved most."""
    ordered = sorted(phones.items(), key=lambda item: (-item[1].pdf_changed, item[0]))
    rows = [
        {
            "phone": phone,
            "frames": f"{moved.frames:,}",
            "other state (%)": f"{100 * moved.pdf_changed:.1f}",
            "other phone (%)": f"{100 * moved.phone_changed:.1f}",
        }
        for phone, moved in ordered[:_MOST_PHONES]
    ]
    caption = f"{name}: the {len(rows)} of {len(ordered)} phones that moved most."
    return Table(rows, {"phone"}, caption)
