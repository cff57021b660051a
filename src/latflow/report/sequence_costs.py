"""What lattices and alignments made on the fly cost, and where they failed.

Public: `costs`, `failures`, `drift`, `totals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from latflow.report.inputs import Log, Results, read_json
from latflow.report.networks import time_shares
from latflow.report.page import Block, Column, Heading, Note, Table, text_column

_PARTS = {"align": "alignments", "lattice": "lattices", "criterion": "criterion"}
_EVENTS = ("utterances", "retried", "partial", "fallbacks", "skipped")
_MOST_PHONES = 12


def totals(log: Log) -> dict[str, float]:
    """Sums over a training, of all that its log gives per frame; `frames` too.

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


def costs(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """Real-time factors of what is made on the fly, and the time waited for it.

    Args:
        results: the experiment.
        trained: network -> its log.
    """
    rows = []
    for name, log in trained.items():
        sums = totals(log)
        speech = sums["frames"] * results.frame_shift(name)
        if not speech:
            continue
        seconds = [sums[f"seconds_{part}"] for part in _PARTS]
        whole = sum(seconds)
        cells = [f"{each / speech:.4f}" for each in [*seconds, whole]]
        cells += [f"{100 * each / max(whole, 1e-12):.0f}" for each in seconds]
        cells.append(f"{sums['seconds_wait'] / speech:.4f}")
        rows.append([name, *cells, _training_factor(results, name, log)])
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
    columns = [text_column("network")]
    columns += [Column(f"{title} (RTF)") for title in _PARTS.values()]
    columns += [Column("together (RTF)")]
    columns += [Column(f"{title} (% of it)") for title in _PARTS.values()]
    columns += [Column("waiting (RTF)"), Column("whole training (RTF)")]
    yield Table(columns, rows)
    if any(log.steps for log in trained.values()):
        yield from time_shares(trained)
        yield Note("The share of the criterion includes the time waited for lattices.")


def _training_factor(results: Results, name: str, log: Log) -> str:
    """Time of training over the duration of the speech; nothing if not logged."""
    if not log.steps:
        return ""
    frames = sum(line["frames"] for line in log.steps)
    seconds = sum(line["frames"] / line["frames_per_second"] for line in log.steps)
    return f"{seconds / (frames * results.frame_shift(name)):.4f}"


def failures(trained: Mapping[str, Log]) -> Iterator[Block]:
    """How often a search failed, and what was done.

    Args:
        trained: network -> its log.
    """
    rows = []
    for name, log in trained.items():
        sums = totals(log)
        rows.append([name, *(f"{round(sums[event]):,}" for event in _EVENTS)])
    yield Heading("Searches that failed")
    yield Note(
        "Over all epochs. Retried: a search was repeated with a wider beam. Partial: "
        "the lattice did not reach the end of a sentence, and was used as it is. "
        "Fallbacks: an utterance could not be aligned anew and kept its static "
        "alignment. Skipped: an utterance taught nothing. "
        "The file sequence_ledger.jsonl beside each model names them."
    )
    yield Table([text_column("network"), *map(Column, _EVENTS)], rows)


def drift(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """Phones whose alignments on the fly left the static ones most.

    Args:
        results: the experiment.
        trained: network -> its log.
    """
    tables = []
    for name in trained:
        phones = read_json(results / f"nnet/{name}/drift.json")
        if phones:
            tables.append(_drift_table(name, phones))
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


def _drift_table(name: str, phones: Mapping[str, Mapping[str, float]]) -> Table:
    """The phones of a network that moved most."""
    ordered = sorted(phones.items(), key=lambda item: (-item[1]["pdf_changed"], item))
    rows = [
        [
            phone,
            f"{moved['frames']:,}",
            f"{100 * moved['pdf_changed']:.1f}",
            f"{100 * moved['phone_changed']:.1f}",
        ]
        for phone, moved in ordered[:_MOST_PHONES]
    ]
    columns = [text_column("phone"), Column("frames")]
    columns += [Column("other state (%)"), Column("other phone (%)")]
    caption = f"{name}: the {len(rows)} of {len(ordered)} phones that moved most."
    return Table(columns, rows, caption)
