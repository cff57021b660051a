"""The section of utterances to hear and see: audio, spectrogram, phones and words."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import soundfile
from lhotse.audio.utils import AudioLoadingError, DurationMismatchError
from lhotse.cut import Cut, MonoCut
from matplotlib.axes import Axes

from latflow.corpus.ctm import read_ctm
from latflow.corpus.manifests import read_cuts
from latflow.report.figures import INK, LINE, MUTED, canvas, render, series_colour
from latflow.report.inputs import Results
from latflow.report.page import (
    ERROR_KINDS,
    ErrorFilter,
    Example,
    Note,
    Section,
    missing,
    rows_of,
)
from latflow.report.scores import aligned
from latflow.scoring.results import read_scores

LEAD = (
    "Some utterances, those with most errors first: the reference, what was "
    "recognized, and the times of each phone and word. Play one and "
    "follow the line; the buttons leave those with one kind of error."
)
# The time axis, in per cent of the picture's width.
AXIS_LEFT, AXIS_WIDTH = 8.5, 90.0
WINDOW_S, SHIFT_S, RANGE_DB = 0.025, 0.010, 65.0
_SIZE_PT = 8.5

Span = tuple[float, float, str]


class Tier(NamedTuple):
    """One row of labels: what they are, and (start, end, label) of each, seconds."""

    name: str
    spans: Sequence[Span]


def examples_section(results: Results) -> Section:
    """Return a few utterances with audio, spectrogram, phones and words."""
    section = Section("examples", "Listen and look", LEAD)
    options = results.options.report
    system = results.shown_system
    if options.num_examples == 0:
        section.blocks.append(Note("Switched off: report.num_examples is 0."))
        return section
    name = _set_to_hear(results)
    folder = results.score_folder(system, name)
    if not (folder / "hyp.ctm").is_file() or not _cuts_of(results, name).is_file():
        section.blocks.append(missing("recognized words with times", "score"))
        return section
    candidates = _candidates(results, name)
    if not candidates:
        longest = options.max_example_duration
        why = f"no audio to play, or none of at most {longest:g} s"
        section.blocks.append(Note(f"The set {name} has {why}."))
        return section
    scores = read_scores(results.scores_of(system, name))
    scores = scores[scores["utterance"].isin(candidates)]
    chosen = _spread(scores, options.num_examples)
    spans = [
        _spans(folder / f, set(chosen["utterance"]))
        for f in ("hyp_phones.ctm", "hyp.ctm")
    ]
    section.blocks.append(Note(f"System {system}, set {name}."))
    kinds = [_error_kinds(score) for score in rows_of(chosen)]
    counts = {kind: sum(kind in own for own in kinds) for kind in ERROR_KINDS}
    present = {kind: count for kind, count in counts.items() if count}
    if len(present) > 1:
        section.blocks.append(ErrorFilter(present, len(chosen)))
    for score in rows_of(chosen):
        utt = score["utterance"]
        named = zip(("phones", "words"), spans, strict=True)
        tiers = [Tier(label, found[utt]) for label, found in named if found.get(utt)]
        try:
            section.blocks.append(_example(candidates[utt], score, tiers))
        except (OSError, AudioLoadingError, DurationMismatchError) as error:
            reason = str(error).partition("\n")[0]
            note = f"The recording of {utt} cannot be read any more: {reason}"
            section.blocks.append(Note(note, is_missing=True))
    return section


def _cuts_of(results: Results, name: str) -> Path:
    """Return the manifest of a set."""
    return results / f"corpus/{name}/cuts.jsonl.gz"


def _set_to_hear(results: Results) -> str:
    """Return the set whose utterances are shown.

    That of the recipe, else the first test set, or dev, that has some short enough:
    those joined with pauses are seldom.
    """
    shown = results.shown_set
    if results.options.report.example_set is not None:
        return shown
    others = (shown, *results.recipe.test_sets, "dev")
    return next((name for name in others if _candidates(results, name)), shown)


def _candidates(results: Results, name: str) -> dict[str, Cut]:
    """Return the short utterances of a set whose audio is there, by id."""
    path, longest = _cuts_of(results, name), results.options.report.max_example_duration
    if not path.is_file():
        return {}
    return {
        cut.id: cut
        for cut in read_cuts(path)
        if cut.duration <= longest and _has_audio(cut)
    }


def _has_audio(cut: Cut) -> bool:
    """Return whether a cut has audio, and is not of a corpus of HDF5 files."""
    recording = cut.recording if isinstance(cut, MonoCut) else None
    return recording is None or bool(recording.sources)


def _error_kinds(score: Mapping[str, Any]) -> list[str]:
    """Return the kinds of an utterance's errors, or that it has none."""
    kinds = [kind for kind in ("sub", "del", "ins") if score[kind]]
    return kinds or ["ok"]


def _spread(scores: pd.DataFrame, number: int) -> pd.DataFrame:
    """Choose utterances evenly, the worst first; the choice is fixed.

    Each kind of error that there is has an utterance, as far as the number allows, that
    with the fewest errors. Utterances of few words say little, so of equal ones the
    longer come first.
    """
    ordered = scores[scores["words"] > 0].sort_values(
        ["errors", "words", "utterance"], ascending=[True, False, True]
    )
    if len(ordered) <= number:
        return ordered.iloc[::-1]
    places = np.linspace(0, len(ordered) - 1, number).round().astype(int)
    chosen = dict.fromkeys(places.tolist())
    kinds = [_error_kinds(score) for score in rows_of(ordered)]
    for kind in ERROR_KINDS:
        having = [place for place, own in enumerate(kinds) if kind in own]
        if not having or not chosen.keys().isdisjoint(having):
            continue
        # one that is of no kind alone makes room
        for place in list(chosen):
            others = [own for p in chosen if p != place for own in kinds[p]]
            if set(kinds[place]) <= set(others):
                del chosen[place]
                chosen[having[0]] = None
                break
    return ordered.iloc[sorted(chosen, reverse=True)]


def _spans(path: Path, utterances: Collection[str]) -> dict[str, list[Span]]:
    """Read labels with times of some utterances."""
    spans: dict[str, list[Span]] = {}
    for timed in read_ctm(path) if path.is_file() else ():
        if timed.utterance in utterances:
            span = (timed.start, timed.start + timed.duration, timed.word)
            spans.setdefault(timed.utterance, []).append(span)
    return spans


def sound_and_picture(cut: Cut, tiers: Sequence[Tier]) -> tuple[str, str]:
    """Return an utterance's sound as a data address, and its drawing.

    Raises:
        OSError: the recording is not there; or Lhotse's error, it cannot be read.
    """
    samples = np.asarray(cut.load_audio(), dtype=np.float32)[0]
    return heard_and_seen(samples, int(cut.sampling_rate), tiers)


def heard_and_seen(
    samples: np.ndarray, rate: int, tiers: Sequence[Tier]
) -> tuple[str, str]:
    """Return samples, float32 [L], as a data address, and their drawing."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="FLAC", subtype="PCM_16")
    audio = base64.b64encode(stream.getvalue()).decode()
    return f"data:audio/flac;base64,{audio}", draw(samples, rate, tiers)


def _example(cut: Cut, score: Mapping[str, Any], tiers: Sequence[Tier]) -> Example:
    """Read the audio of an utterance and draw it."""
    audio, svg = sound_and_picture(cut, tiers)
    reference, hypothesis = aligned(score["reference"], score["hypothesis"])
    words, errors = score["words"], score["errors"]
    summary = f"{cut.duration:.1f} s, {words} words, {errors} errors"
    return Example(
        utterance=score["utterance"],
        speaker=score["speaker"],
        summary=summary.replace(" 1 errors", " 1 error").replace(" 1 words", " 1 word"),
        audio=audio,
        svg=svg,
        left=AXIS_LEFT,
        width=AXIS_WIDTH,
        reference=reference,
        hypothesis=hypothesis,
        errors=_error_kinds(score),
    )


def log_spectrum(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Compute a short-time log power spectrum for looking at.

    Args:
        samples: float [L], one channel.
        sample_rate: Hz.

    Returns:
        float32 [F, T], decibels below the loudest point, floored at `-RANGE_DB`; Hann
        windows of 25 ms every 10 ms.
    """
    length = max(2, round(WINDOW_S * sample_rate))
    shift = max(1, round(SHIFT_S * sample_rate))
    padded = np.pad(samples, (length // 2, length // 2 + 1))
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::shift]
    power = np.abs(np.fft.rfft(frames * np.hanning(length), axis=1)) ** 2
    decibels = 10.0 * np.log10(np.maximum(power, 1e-12))
    return np.maximum(decibels - decibels.max(), -RANGE_DB).T.astype(np.float32)


def draw(samples: np.ndarray, sample_rate: int, tiers: Sequence[Tier]) -> str:
    """Draw one utterance.

    Args:
        samples: float [L], one channel.
        sample_rate: Hz.
        tiers: rows of labels below the spectrogram.

    Returns:
        Inline SVG whose time axis starts at `AXIS_LEFT` and is `AXIS_WIDTH` wide.
    """
    duration = len(samples) / sample_rate
    with canvas(9.0, 2.3 + 0.3 * len(tiers)) as figure:
        figure.set_layout_engine("none")
        row = 0.3 / (2.3 + 0.3 * len(tiers))
        bottom = 0.5 / (2.3 + 0.3 * len(tiers))
        tiers_height = row * len(tiers)
        left, width = AXIS_LEFT / 100, AXIS_WIDTH / 100
        labels = figure.add_axes((left, bottom, width, tiers_height))
        image = figure.add_axes(
            (left, bottom + tiers_height, width, 0.97 - bottom - tiers_height)
        )
        image.imshow(
            log_spectrum(samples, sample_rate),
            origin="lower",
            aspect="auto",
            cmap="magma",
            extent=(0, duration, 0, sample_rate / 2000),
            interpolation="nearest",
        )
        image.set_ylabel("frequency (kHz)")
        image.set_xlim(0, duration)
        image.tick_params(labelbottom=False, length=0)
        image.grid(visible=False)
        _draw_tiers(labels, tiers, duration)
        return render(figure, "Spectrogram with phones and words")


def _draw_tiers(axes: Axes, tiers: Sequence[Tier], duration: float) -> None:
    """Draw rows of labels between thin walls, the first row on top."""
    points_per_second = 9.0 * 72 * AXIS_WIDTH / 100 / duration
    for i, tier in enumerate(tiers):
        bottom = len(tiers) - 1 - i
        for start, end, label in tier.spans:
            axes.plot([start, start], [bottom, bottom + 1], color=MUTED, linewidth=0.7)
            axes.plot([end, end], [bottom, bottom + 1], color=MUTED, linewidth=0.7)
            width = (end - start) * points_per_second
            size = min(_SIZE_PT, width / (0.62 * max(1, len(label))))
            if size < 4.5:
                continue
            axes.text(
                (start + end) / 2,
                bottom + 0.47,
                label,
                ha="center",
                va="center",
                fontsize=size,
                color=series_colour(0) if i else INK,
            )
        axes.axhline(bottom, color=LINE, linewidth=0.8)
    positions = [len(tiers) - 0.5 - i for i in range(len(tiers))]
    axes.set_yticks(positions, [tier.name for tier in tiers])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, max(1, len(tiers)))
    axes.set_xlim(0, duration)
    axes.set_xlabel("time (s)")
    axes.grid(visible=False)
    for name in ("top", "right", "left"):
        axes.spines[name].set_visible(False)
