"""Quality of alignments, an utterance a row: the columns of MFA's table.

Source: Montreal Forced Aligner, "Analyzing alignment quality" (alignment_analysis.csv).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from latflow.align.phone_sums import PhoneSums
from latflow.align.timing import AlignedUtterance, TimedPhone

COLUMNS = (
    *("file", "begin", "end", "speaker", "overall_log_likelihood"),
    *("speech_log_likelihood", "phone_duration_deviation", "snr"),
)
_FRAME = 0.025  # seconds of a piece of signal that stands for noise where no silence is


class AlignmentAnalysis:
    """Measures utterances, and writes the table when all are known.

    Durations wait in a file: how unusual they are is known at the end.

    Args:
        scratch: the file.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._stream = scratch.open("w", encoding="utf-8")
        self._durations = PhoneSums()  # their logarithms

    def add(
        self,
        place: Sequence[str | float],
        timed: AlignedUtterance,
        samples: np.ndarray | None,
        sample_rate: float,
    ) -> None:
        """Measure an utterance.

        Args:
            place: file, begin and end in seconds, speaker.
            timed: its phones.
            samples: its signal, float[N]; None where it can't be read.
            sample_rate: of the signal, Hz.
        """
        # A phone at the very end may be cut off where the recording ends.
        lengths = [(p.phone, p.end - p.start) for p in timed.spoken]
        spoken = [(phone, math.log(time)) for phone, time in lengths if time > 0]
        for phone, duration in spoken:
            self._durations.add(phone, duration)
        snr = None if samples is None else signal_to_noise(timed, samples, sample_rate)
        row = [*place, _overall(timed.phones), _mean(timed.spoken), spoken, snr]
        self._stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write(self, path: Path) -> None:
        """Write the table, utterances with the most unusual phones first."""
        self._stream.close()
        rows = sorted(self._rows(), key=lambda row: -(row[6] or 0.0))
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(
                [_rounded(v) if isinstance(v, float) else v for v in row]
                for row in rows
            )
        self._scratch.unlink()

    def _rows(self) -> Iterator[list]:
        """Yield the rows, deviations in place of durations."""
        with self._scratch.open(encoding="utf-8") as stream:
            for *head, spoken, snr in map(json.loads, stream):
                found = (self._deviation(*each) for each in spoken)
                known = [deviation for deviation in found if deviation is not None]
                yield [*head, max(known, default=None), snr]

    def _deviation(self, phone: str, duration: float) -> float | None:
        """Return how unusual a duration is, in standard deviations of its phone.

        None where the phone occurs once, or is always as long.
        """
        count, mean, variance = self._durations.of(phone)
        scale = math.sqrt(variance * count / (count - 1)) if count > 1 else 0.0
        return abs(duration - mean) / scale if scale > 1e-6 else None


def signal_to_noise(
    timed: AlignedUtterance, samples: np.ndarray, sample_rate: float
) -> float | None:
    """Return the power of speech over that of the rest of an utterance, dB.

    Where there is no rest its quietest 25 ms stand for it.

    Args:
        timed: phones of the utterance.
        samples: its signal, float[N].
        sample_rate: Hz.

    Returns:
        None where one of the two has no sound at all.
    """
    power = np.square(samples, dtype=np.float64)
    is_speech = np.zeros(len(power), bool)
    for phone in timed.spoken:
        is_speech[round(phone.start * sample_rate) : round(phone.end * sample_rate)] = 1
    if not is_speech.any():
        return None
    speech = float(power[is_speech].mean())
    if is_speech.all():
        size = max(1, round(_FRAME * sample_rate))
        whole = power[: len(power) // size * size].reshape(-1, size)
        noise = float((whole.mean(axis=1) if len(whole) else power).min())
    else:
        noise = float(power[~is_speech].mean())
    return 10 * math.log10(speech / noise) if speech > 0 and noise > 0 else None


def _overall(phones: Sequence[TimedPhone]) -> float | None:
    """Return the mean log-likelihood of frames; None where it is not known."""
    if not phones or any(phone.score is None for phone in phones):
        return None
    lengths = [phone.end - phone.start for phone in phones]
    if sum(lengths) <= 0:
        return None
    return float(np.average([phone.score or 0.0 for phone in phones], weights=lengths))


def _mean(phones: Sequence[TimedPhone]) -> float | None:
    """Return the mean score of phones; None where it is not known."""
    scores = [phone.score for phone in phones]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _rounded(value: float) -> float:
    return round(value, 4)
