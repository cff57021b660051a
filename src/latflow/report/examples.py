"""The section of utterances to hear and see.

Public: `examples_section`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import soundfile
from lhotse import CutSet
from lhotse.audio.utils import AudioLoadingError, DurationMismatchError
from lhotse.cut import Cut

from latflow.report import spectrogram
from latflow.report.inputs import Results
from latflow.report.page import Example, Note, Section, missing
from latflow.report.scores import aligned
from latflow.report.spectrogram import Span, Tier
from latflow.scoring.ctm import read_ctm
from latflow.scoring.results import UtteranceScore, read_utterance_scores

LEAD = (
    "Some utterances, from recognised without error to worst: what was said, what was "
    "recognised, and when the recogniser heard each phone and word. Play one and "
    "follow the line."
)


def examples_section(results: Results) -> Section:
    """A few utterances with audio, spectrogram, phones and words."""
    section = Section("examples", "Listen and look", LEAD)
    options = results.config["report"]
    system, name = results.shown_system, results.shown_set
    folder = results.score_folder(system, name)
    cuts = results / f"corpus/{name}/cuts.jsonl.gz"
    if options["num_examples"] == 0:
        section.blocks.append(Note("Switched off: report.num_examples is 0."))
        return section
    if not (folder / "hyp.ctm").is_file() or not cuts.is_file():
        section.blocks.append(missing("recognised words with times", "score"))
        return section
    scores = {
        s.utterance: s for s in read_utterance_scores(folder / "per_utterance.tsv")
    }
    candidates = {
        cut.id: cut
        for cut in CutSet.from_jsonl_lazy(cuts)
        if isinstance(cut, Cut)
        and cut.id in scores
        and cut.duration <= options["max_example_duration"]
    }
    chosen = _spread([scores[utt] for utt in candidates], options["num_examples"])
    words = _spans(folder / "hyp.ctm", chosen)
    phones = _spans(folder / "hyp_phones.ctm", chosen)
    section.blocks.append(Note(f"System {system}, set {name}."))
    for score in chosen:
        utt = score.utterance
        tiers = [Tier("phones", phones[utt]), Tier("words", words[utt])]
        try:
            section.blocks.append(_example(candidates[utt], score, tiers))
        except (OSError, AudioLoadingError, DurationMismatchError) as error:
            reason = str(error).partition("\n")[0]
            note = f"The recording of {utt} cannot be read any more: {reason}"
            section.blocks.append(Note(note, is_missing=True))
    return section


def _spread(scores: Sequence[UtteranceScore], number: int) -> list[UtteranceScore]:
    """Choose utterances evenly from the best to the worst; the choice is fixed.

    Utterances of few words say little, so of equal ones the longer come first.
    """
    ordered = sorted(
        (score for score in scores if score.counts.words),
        key=lambda s: (s.counts.errors, -s.counts.words, s.utterance),
    )
    if len(ordered) <= number:
        return ordered
    places = np.unique(np.linspace(0, len(ordered) - 1, number).round().astype(int))
    return [ordered[place] for place in places.tolist()]


def _spans(path: Path, chosen: Iterable[UtteranceScore]) -> dict[str, list[Span]]:
    """Labels with times of the chosen utterances."""
    spans: dict[str, list[Span]] = {score.utterance: [] for score in chosen}
    if path.is_file():
        for timed in read_ctm(path):
            if timed.utterance in spans:
                end = timed.start + timed.duration
                spans[timed.utterance].append((timed.start, end, timed.word))
    return spans


def _example(cut: Cut, score: UtteranceScore, tiers: Sequence[Tier]) -> Example:
    """Read the audio of an utterance and draw it."""
    samples = np.asarray(cut.load_audio(), dtype=np.float32)[0]
    rate = int(cut.sampling_rate)
    reference, hypothesis = aligned(score)
    counts = score.counts
    summary = f"{cut.duration:.1f} s, {counts.words} words, {counts.errors} errors"
    return Example(
        utterance=score.utterance,
        speaker=score.speaker,
        summary=summary.replace(" 1 errors", " 1 error").replace(" 1 words", " 1 word"),
        audio=_audio_address(samples, rate),
        svg=spectrogram.draw(samples, rate, [t for t in tiers if t.spans]),
        left=spectrogram.AXIS_LEFT,
        width=spectrogram.AXIS_WIDTH,
        reference=reference,
        hypothesis=hypothesis,
    )


def _audio_address(samples: np.ndarray, sample_rate: int) -> str:
    """The sound as FLAC inside a data address."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, sample_rate, format="FLAC", subtype="PCM_16")
    return "data:audio/flac;base64," + base64.b64encode(stream.getvalue()).decode()
