"""Sections on training: GMM systems, alignments, networks trained frame by frame.

Networks that continue with lattices are in `latflow.report.sequence`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from latflow.nnet.description import NetworkDescription
from latflow.nnet.drawing import network_svg
from latflow.nnet.network import Network
from latflow.report import figures
from latflow.report.figures import (
    bare,
    canvas,
    legend_beside,
    render,
    series_colour,
)
from latflow.report.inputs import (
    Line,
    Log,
    Results,
    read_iterations,
    read_json,
    read_log,
)
from latflow.report.page import Block, Figure, Heading, Note, Section, Table, missing
from latflow.report.records import (
    Alignment,
    Decoding,
    NetworkMeta,
    Scales,
    Supervisions,
)
from latflow.training.options import SequenceSystemOptions

# Keys of `info.json` and `statistics.json` -> titles in the report.
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
    "num_retried": "of them with a wider beam",
    "num_rescued": "of these with one beyond the retry beam",
    "num_failed": "utterances not aligned",
    "frame_shift": "frame shift (s)",
    "silence_share": "share of silence",
}
_MOST_PHONES_DRAWN = 60


_OBJECTIVE_CAPTION = (
    "Lattice-free MMI: log of the share that the right phone sequences have of all, "
    "0 at best; above it where the phone language model of the training transcripts "
    "lacks the phone sequences of utterances, as it may those of dev, which then have "
    "no weights in the share's numerator. Lines are means over training batches, dots "
    "dev at the end of each epoch; cross-entropy is the second output's, with the "
    "numerator's posteriors."
)
_ATTENTION_CAPTION = (
    "Decoders with attention: minus the log probability of the transcript's units, and "
    "the share of units that are not the best guess after the true ones before."
)
_NETWORKS_LEAD = (
    "Networks learn to predict which tied state each frame (a short slice of sound) "
    "belongs to; a tied state is a part of a phone, shared by phones in similar "
    "surroundings. By cross-entropy they learn it from alignments: the loss is minus "
    "the log probability that the network gives to the aligned state, in nats "
    "(natural logarithm) per frame, and the frame error rate is the share of frames "
    "whose best state is not the aligned one. By lattice-free MMI they learn to prefer "
    "the phones of the reference over all other phone sequences, at whatever frames "
    "near the aligned ones, or anywhere where there is no alignment. By CTC "
    "(connectionist temporal classification) they learn to predict the phones of the "
    "transcript in order, each whenever the network sees it, with blanks between; the "
    "loss is minus the log probability of all ways to do so. A decoder with attention "
    "predicts them one by one, each from all frames and those before. Dev getting "
    "worse while training gets better is over-fitting; both still getting better at "
    "the end asks for more epochs (passes over the training data)."
)
# Losses that networks with outputs of several kinds log beside their sum.
_LOSSES = {
    "attention": "decoder with attention",
    "ce": "cross-entropy",
    "ctc": "CTC",
    "mse": "squared error",
}
_PARTS = {
    "data": "reading batches",
    "forward": "forward pass",
    "criterion": "criterion",
    "backward": "backward pass",
    "reduce": "exchange between processes",
    "update": "update of the parameters",
}


def training_section(results: Results) -> Section:
    """Show likelihood and Gaussians over the iterations, and sizes of the models."""
    lead = (
        "Each iteration assigns frames to states and re-estimates the Gaussians. The "
        "log-likelihood per frame should rise and level off; it jumps where Gaussians "
        "are split or frames newly aligned. Systems with other features or more "
        "Gaussians are not comparable by likelihood, only by word error rate."
    )
    section = Section("training", "Training of the acoustic models", lead)
    systems = list(results.recipe.gmms)
    tables = {s: read_iterations(results / f"gmm/{s}") for s in systems}
    curves = {s: t for s, t in tables.items() if t is not None and len(t)}
    if curves:
        caption = (
            "Log-likelihood per frame and number of Gaussians; dots mark iterations "
            "with a new alignment."
        )
        section.blocks.append(Figure(figures.training_curves(curves), caption))
    else:
        section.blocks.append(missing("training curve", "gmm"))
    found = {
        s: read_json(results / f"gmm/{s}/info.json", dict[str, Any]) for s in systems
    }
    sizes = {system: _scalars(info) for system, info in found.items() if info}
    if any(sizes.values()):
        section.blocks += [Heading("Sizes"), _columns(sizes, "of the model")]
    return section


def _columns(facts: Mapping[str, Mapping[str, str]], title: str) -> Table:
    """Return a table of facts, a column each system."""
    keys = dict.fromkeys(key for own in facts.values() for key in own)
    rows = [
        {title: key, **{system: own.get(key, "") for system, own in facts.items()}}
        for key in keys
    ]
    return Table(rows, {title})


def _scalars(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the plain values of an object as text, by their titles."""
    return {
        _NAMES.get(key, key.replace("_", " ")): f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
        for key, value in info.items()
        if isinstance(value, str | int | float)
    }


def alignment_section(results: Results) -> Section:
    """Show phone durations and the share of silence in the alignments."""
    lead = (
        "The alignment says which phone each frame of the training speech belongs to. "
        "Durations near the shortest possible (one frame a state), or much silence, "
        "point to wrong transcripts, missing pronunciations or a poor model."
    )
    section = Section("alignment", "Alignments", lead)
    for system in reversed(list(results.recipe.gmms)):
        found = read_json(results / f"align/{system}/train/statistics.json", Alignment)
        if found is not None:
            section.blocks += _alignment_blocks(system, found)
            return section
    section.blocks.append(missing("alignment", "align"))
    return section


def _alignment_blocks(system: str, found: Alignment) -> list[Block]:
    """Draw and list one alignment."""
    phones = found.phones
    often = sorted(phones.items(), key=lambda item: -item[1].frames)
    drawn = {
        phone: (stats.p5_frames, stats.median_frames, stats.p95_frames)
        for phone, stats in often[:_MOST_PHONES_DRAWN]
    }
    caption = (
        "Duration of each phone: the bar from the 5th to the 95th percentile, the dot "
        "the median."
    )
    if len(drawn) < len(phones):
        caption += f" The {len(drawn)} phones with the most frames of {len(phones)}."
    svg = figures.phone_durations(drawn, shift_ms=1000 * found.frame_shift)
    facts = [
        {"of the alignment": name, "value": value}
        for name, value in _scalars(found.model_dump()).items()
    ]
    total = sum(stats.frames for stats in phones.values())
    rows = [
        {
            "phone": phone,
            "times": str(stats.occurrences),
            "of all frames (%)": f"{100 * stats.frames / max(1, total):.2f}",
            "mean (frames)": f"{stats.mean_frames:.1f}",
            "5 % (frames)": f"{stats.p5_frames:g}",
            "median (frames)": f"{stats.median_frames:g}",
            "95 % (frames)": f"{stats.p95_frames:g}",
        }
        for phone, stats in phones.items()
    ]
    return [
        Note(f"Training speech, aligned by {system}."),
        Table(facts, {"of the alignment"}),
        Figure(svg, caption),
        Table(rows, {"phone"}, "Phones; click a heading to sort."),
    ]


def networks_section(results: Results) -> Section | None:
    """Show networks, and how they were trained; None without any."""
    all_kinds = ("ce", "ctc", "attention", "lfmmi")
    kinds = {kind: results.recipe.networks_of(kind) for kind in all_kinds}
    names = [name for own in kinds.values() for name in own]
    if not names:
        return None
    section = Section("networks", "Networks", _NETWORKS_LEAD)
    logs = {name: read_log(results / f"nnet/{name}/log.jsonl") for name in names}
    trained = {name: log for name, log in logs.items() if log is not None}
    if not trained:
        section.blocks.append(missing("trained network", f"nnet_{names[0]}"))
        return section
    caption = (
        "Lines are means over training batches, dots dev at the end of each epoch; of "
        "frame errors, dotted lines are training."
    )
    facts = {name: _network_facts(results, name, log) for name, log in trained.items()}
    by_frame, by_ctc, by_attention, by_lfmmi = (
        {name: trained[name] for name in own if name in trained}
        for own in kinds.values()
    )
    if by_frame:
        section.blocks.append(Figure(_loss_curves(by_frame), caption))
    if by_ctc:
        section.blocks.append(Figure(_loss_curves(by_ctc), f"CTC. {caption}"))
    if by_attention:
        curves = _loss_curves(by_attention, "unit errors (%)")
        section.blocks.append(Figure(curves, f"{_ATTENTION_CAPTION} {caption}"))
    if by_lfmmi:
        section.blocks.append(Figure(_objective_curves(by_lfmmi), _OBJECTIVE_CAPTION))
    section.blocks += [
        _columns(facts, "of the network"),
        *time_shares(trained),
        *_scale_card(results),
        *_drawings(results, list(trained)),
    ]
    return section


def _scale_card(results: Results) -> Iterator[Block]:
    """List what weighs the parts of each criterion, and of the decoding after it."""
    cards = {}
    for name in results.recipe.networks:
        meta = read_json(results / f"nnet/{name}/meta.json", NetworkMeta)
        if meta is None or not meta.scales:
            continue
        scales = dict(meta.scales)
        searched = read_json(results / f"decode/{name}/dev/decode.json", Decoding)
        if searched is not None and searched.acoustic_scale is not None:
            scales["decoding.acoustic_scale"] = searched.acoustic_scale
        chosen = read_json(results / f"tune/{name}/scales.json", Scales)
        if chosen is not None:
            scales["decoding.lmwt"] = chosen.lmwt
            scales["decoding.word_insertion_penalty"] = chosen.wip
        cards[name] = _scalars(scales)
    if cards:
        caption = (
            "Effective scales: of the criterion, of the denominator that its lattices "
            "come from, and of decoding. Where acoustic scales differ much, training "
            "weighs the language model otherwise than decoding does."
        )
        yield Heading("Scales")
        yield replace(_columns(cards, "scale"), caption=caption)


def time_shares(trained: Mapping[str, Log]) -> Iterator[Block]:
    """List the shares of the time of training; nothing where no step is logged.

    Args:
        trained: network -> its log.
    """
    rows = []
    for name, log in trained.items():
        if log.steps:
            shares = {
                f"{title} (%)": statistics.fmean(s["time"][part] for s in log.steps)
                for part, title in _PARTS.items()
            }
            cells = {title: f"{100 * share:.1f}" for title, share in shares.items()}
            rows.append({"network": name, **cells})
    if rows:
        yield Heading("Where the time of training goes")
        yield Table(rows, {"network"})


def _loss_curves(
    trained: Mapping[str, Log], of_errors: str = "frame errors (%)"
) -> str:
    """Draw losses, errors and learning rates over epochs."""
    with canvas(figures.WIDTH, 6.4) as figure:
        loss, errors, rate = figure.subplots(
            3, 1, sharex=True, height_ratios=[1.6, 1.2, 0.6]
        )
        for i, (name, log) in enumerate(trained.items()):
            colour = series_colour(i)
            if log.steps:
                places = [log.epochs_at(line) for line in log.steps]
                values = [line["loss"] for line in log.steps]
                loss.plot(places, values, color=colour, alpha=0.5)
            numbers = [epoch["epoch"] for epoch in log.epochs]
            losses = [epoch["dev"]["loss"] for epoch in log.epochs]
            loss.plot(numbers, losses, marker="o", color=colour, label=name)
            _draw_errors(errors, log.epochs, colour)
            rates = [epoch["learning_rate"] for epoch in log.epochs]
            rate.plot(numbers, rates, marker=".", color=colour)
        loss.set_ylabel("loss (nats per frame)")
        errors.set_ylabel(of_errors)
        rate.set_ylabel("learning rate")
        rate.set_yscale("log")
        rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        rate.yaxis.set_minor_formatter(NullFormatter())
        rate.set_xlabel("epoch")
        rate.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_beside(loss)
        for axes in (loss, errors, rate):
            bare(axes, grid="y")
        return render(figure, "Loss, errors and learning rate over epochs")


def _objective_curves(trained: Mapping[str, Log]) -> str:
    """Draw the objective of LF-MMI, cross-entropy and learning rates over epochs."""
    with canvas(figures.WIDTH, 6.4) as figure:
        objective, xent, rate = figure.subplots(
            3, 1, sharex=True, height_ratios=[1.6, 1.2, 0.6]
        )
        for i, (name, log) in enumerate(trained.items()):
            colour = series_colour(i)
            places = [log.epochs_at(line) for line in log.steps]
            for axes, key in ((objective, "objective"), (xent, "xent")):
                values = [line[key] for line in log.steps]
                axes.plot(places, values, color=colour, alpha=0.5)
            numbers = [epoch["epoch"] for epoch in log.epochs]
            found = [epoch["dev"]["objective"] for epoch in log.epochs]
            objective.plot(numbers, found, marker="o", color=colour, label=name)
            rates = [epoch["learning_rate"] for epoch in log.epochs]
            rate.plot(numbers, rates, marker=".", color=colour)
        objective.set_ylabel("LF-MMI objective\n(nats per frame of the output)")
        xent.set_ylabel("cross-entropy")
        rate.set_ylabel("learning rate")
        rate.set_xlabel("epoch")
        rate.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_beside(objective)
        for axes in (objective, xent, rate):
            bare(axes, grid="y")
        return render(figure, "LF-MMI objective and learning rate over epochs")


def _draw_errors(axes: Axes, epochs: Sequence[Line], colour: str) -> None:
    """Draw errors of frames, or of units, of dev (dots) and of training (line)."""
    for marker, style, part in (("o", "-", "dev"), ("", ":", "train")):
        known = [
            (epoch["epoch"], 100 * share)
            for epoch in epochs
            if (share := _share_of_errors(epoch[part])) is not None
        ]
        if known:
            axes.plot(
                *zip(*known, strict=True), marker=marker, linestyle=style, color=colour
            )


def _share_of_errors(means: Mapping[str, float]) -> float | None:
    """Return the share of wrong frames, or of wrong units; None where neither is."""
    if "units" in means:
        return means["unit_errors"] / means["units"]
    return means.get("frame_errors")


def training_facts(meta: NetworkMeta | None) -> dict[str, str]:
    """Return what few trainings have: several networks, steps that were skipped.

    Args:
        meta: of the model; None while there is none.
    """
    if meta is None:
        return {}
    training = meta.options.training
    facts, networks = {}, training.ensemble
    if networks > 1:
        facts["networks"] = f"{networks}, fused; curves and losses are of the first"
    if training.outliers is not None:
        done = {"skip": "skipped", "clip": "clipped"}[training.outliers.action]
        facts[f"steps {done} as outliers"] = str(len(meta.outliers))
    return facts


def _unknown_sequences(results: Results, name: str, part: str) -> dict[str, str]:
    """Count supervisions of LF-MMI that the phone language model gives no weights."""
    trained_on = results.recipe.networks[name].training_set
    split = trained_on if part == "train" else part
    folder = results / f"chain/{name}/supervisions/{split}"
    meta = read_json(folder / "meta.json", Supervisions)
    if meta is None or not meta.refused:
        return {}
    what = f"{part} utterances with phone sequences unknown to the phone language model"
    return {what: f"{meta.refused} of {meta.num_utterances}"}


def _network_facts(results: Results, name: str, log: Log) -> dict[str, str]:
    options = results.options.nnet.systems[name]
    # others have their own section
    assert not isinstance(options, SequenceSystemOptions)
    last = log.epochs[-1] if log.epochs else None
    meta = read_json(results / f"nnet/{name}/meta.json", NetworkMeta)
    parameters = None if meta is None else meta.num_parameters
    facts = {
        "description": Path(options.network).stem
        if isinstance(options.network, str)
        else "in the recipe",
        "learns": f"alignments of {options.alignments}"
        if options.alignments
        else "transcripts",
        "features": options.features or "those of the GMM systems",
        "parameters": "" if parameters is None else f"{parameters:,}",
        "epochs": str(len(log.epochs)),
        "steps": str(last["step"]) if last else "0",
        **training_facts(meta),
    }
    for part in ("train", "dev"):
        if last is not None:
            loss = f"{last[part]['loss']:.4f}"
            facts[f"{part} loss (nats per frame), last epoch"] = loss
            for key, title in _LOSSES.items():
                if key in last[part]:
                    value = f"{last[part][key]:.4f}"
                    facts[f"of it {part} {title}, last epoch"] = value
            if "objective" in last[part]:
                objective = f"{last[part]['objective']:.4f}"
                facts[f"{part} LF-MMI objective, last epoch"] = objective
                facts |= _unknown_sequences(results, name, part)
            if "frame_errors" in last[part]:
                rate = 100 * last[part]["frame_errors"]
                facts[f"{part} frame errors (%), last epoch"] = f"{rate:.2f}"
    if log.steps:
        speeds = sorted(line["frames_per_second"] for line in log.steps)
        facts["frames per second (median)"] = f"{speeds[len(speeds) // 2]:,.0f}"
    return facts


def _drawings(results: Results, names: Sequence[str]) -> Iterator[Block]:
    """Draw the layers of the networks, once where several are made alike."""
    alike: dict[str, list[str]] = {}
    made: dict[str, NetworkMeta] = {}
    for name in names:
        folder = results / f"nnet/{name}"
        meta = read_json(folder / "meta.json", NetworkMeta)
        if meta is not None:
            text = (folder / "network.yaml").read_text(encoding="utf-8")
            key = f"{meta.dim_in} {meta.classes} {text}"
            alike.setdefault(key, []).append(name)
            made[key] = meta
    for key, own in alike.items():
        yield from _drawing(results, own, made[key])


def _drawing(
    results: Results, names: Sequence[str], meta: NetworkMeta
) -> Iterator[Block]:
    """Draw the layers of networks that are made alike."""
    folder = results / f"nnet/{names[0]}"
    description = NetworkDescription.load(folder / "network.yaml")
    network = Network(description, meta.dim_in, meta.classes)
    title = f"Layers of {', '.join(names)}"
    yield Heading(title)
    yield Figure(
        network_svg(network.graph(), title),
        "Layers, numbers a frame, and parameters.",
    )
    field = network.receptive_field
    sides = ["all" if side is None else str(side) for side in field]
    yield Note(
        f"An output frame sees {sides[0]} frames before it and {sides[1]} after it."
    )
