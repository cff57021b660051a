"""Figures of runs of the load client."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from latflow.files import atomic_output
from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.serving.options import LoadOptions

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Exchange:
    """Result of one utterance.

    Attributes:
        utterance: its name.
        seconds: length of its audio.
        latency: seconds to the final text; None where none came.
        first_partial: seconds from the first samples to the first text that is not
            empty, a partial or the final; None where none came.
        text: the finals, joined.
        late: most seconds that a message was sent after its time, the client's own
            fault or the server's that takes no more.
        error: what went wrong; None if nothing.
    """

    utterance: str
    seconds: float
    latency: float | None = None
    first_partial: float | None = None
    text: str = ""
    late: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class LoadReport:
    """A run of the load client.

    Attributes:
        sessions: clients at the same time.
        real_time: whether they sent at the speed of speech.
        utterances: that were sent to their end, or failed.
        errors: utterances without a final text.
        messages: what went wrong, and how often.
        audio_seconds: length of the utterances with a final.
        wall_seconds: duration of the run.
        rtfx: audio_seconds over wall_seconds.
        latency: seconds, by percentile, `max` and `mean`.
        first_partial: likewise.
        wer: word error rate in per cent; None without transcripts.
        words: words of the transcripts.
        late: most seconds that a message was sent after its time.
        client_load: processor time of the client over wall_seconds; near 1, the client
            is what was measured.
    """

    sessions: int
    real_time: bool
    utterances: int
    errors: int
    messages: dict[str, int]
    audio_seconds: float
    wall_seconds: float
    rtfx: float
    latency: dict[str, float]
    first_partial: dict[str, float]
    wer: float | None
    words: int
    late: float
    client_load: float

    def holds(self, p95: float) -> bool:
        """Return whether nothing was lost, and the latency's p95 is within a limit."""
        return not self.errors and self.latency.get("p95", np.inf) <= p95

    def __str__(self) -> str:
        if not self.utterances:
            return f"{self.sessions} sessions: no utterance ended in time"
        latency = _milliseconds(self.latency.get("p95"))
        finals = self.utterances - self.errors
        return (
            f"{self.sessions} sessions: {finals} finals, {self.errors} errors, p95 "
            f"{latency} ms"
        )


def summarize(
    done: Sequence[Exchange],
    references: Mapping[str, Sequence[str] | None],
    options: LoadOptions,
    *,
    wall: float,
    client_load: float,
) -> LoadReport:
    """Return the figures of a run.

    Args:
        done: its exchanges.
        references: words of the utterances, where there are transcripts. Case does not
            count: transcripts beside recordings may not be in the model's case.
        options: of the clients.
        wall: duration of the run, seconds.
        client_load: see `LoadReport`.
    """
    good = [one for one in done if one.error is None]
    messages: dict[str, int] = {}
    for one in done:
        if one.error is not None:
            messages[one.error] = messages.get(one.error, 0) + 1
    counts = ErrorCounts()
    for one in good:
        if (words := references[one.utterance]) is not None:
            reference = [word.casefold() for word in words]
            counts += count_errors(reference, one.text.casefold().split())
    seconds = sum(one.seconds for one in good)
    return LoadReport(
        sessions=options.sessions,
        real_time=options.real_time,
        utterances=len(done),
        errors=len(done) - len(good),
        messages=messages,
        audio_seconds=seconds,
        wall_seconds=wall,
        rtfx=seconds / wall,
        latency=_spread([one.latency for one in good]),
        first_partial=_spread([one.first_partial for one in good]),
        wer=counts.wer if counts.words else None,
        words=counts.words,
        late=max((one.late for one in done), default=0.0),
        client_load=client_load,
    )


def _spread(values: Sequence[float | None]) -> dict[str, float]:
    """Return percentiles, the greatest, and the mean; nothing of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return {}
    found = np.percentile(known, PERCENTILES)
    return {
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)},
        "max": max(known),
        "mean": float(np.mean(known)),
    }


_LATENCIES = ("mean", *(f"p{p}" for p in PERCENTILES))
_HEADINGS = (
    *("sessions", "finals", "errors", "RTFX", *(f"{name} ms" for name in _LATENCIES)),
    *("first partial p50 ms", "WER %", "late ms", "client load"),
)


def format_reports(reports: Sequence[LoadReport]) -> str:
    """Return a table of runs, one a line, and what went wrong in them."""
    rows = [_HEADINGS, *map(_row, reports)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    wrong = [
        f"{count} x {message} ({report.sessions} sessions)"
        for report in reports
        for message, count in report.messages.items()
    ]
    return "\n".join([*lines, *wrong]) + "\n"


def _row(report: LoadReport) -> tuple[str, ...]:
    """Return the cells of a run."""
    return (
        str(report.sessions),
        str(report.utterances - report.errors),
        str(report.errors),
        f"{report.rtfx:.1f}",
        *(_milliseconds(report.latency.get(name)) for name in _LATENCIES),
        _milliseconds(report.first_partial.get("p50")),
        "-" if report.wer is None else f"{report.wer:.2f}",
        _milliseconds(report.late),
        f"{report.client_load:.2f}",
    )


def _milliseconds(seconds: float | None) -> str:
    """Return seconds as whole milliseconds."""
    return "-" if seconds is None else f"{1000 * seconds:.0f}"


def write_csv(path: str | Path, exchanges: Sequence[Exchange]) -> None:
    """Write all exchanges, one a row."""
    names = [field.name for field in fields(Exchange)]
    with (
        atomic_output(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        writer.writerows([asdict(one) for one in exchanges])
