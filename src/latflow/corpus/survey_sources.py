"""Looking over the sources of a corpus before anything is prepared, for the doctor.

Reads text files, manifests and the headers of audio files; decodes none, and runs none
of the commands that `wav.scp` may hold.

Public: `survey_source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latflow.corpus.audio import AudioFacts, BadAudio, examine
from latflow.corpus.kaldi_dir import KaldiDir
from latflow.corpus.kaldi_tables import split_fields
from latflow.corpus.manifests import read_supervisions
from latflow.corpus.survey import Finding, Survey, finding_of, some
from latflow.errors import UserError


def survey_source(source: Mapping[str, Any], survey: Survey) -> list[Finding]:
    """Survey the utterances of a source.

    Args:
        source: source description (schema `corpus.yaml`), complete.
        survey: is told of every utterance that can be read.

    Returns:
        What is wrong with the source's files.
    """
    findings: list[Finding] = []
    try:
        findings.extend(_READERS[source["type"]](source, survey))
    except UserError as error:
        findings.append(finding_of(error))
    return findings


def _read_kaldi(source: Mapping[str, Any], survey: Survey) -> Iterator[Finding]:
    """Read the text files of a Kaldi directory, and look for its audio."""
    has_speakers = source["speaker"] == "given"
    with KaldiDir(source["path"], has_speakers=has_speakers) as kaldi:
        strangers: dict[Path, list[str]] = {}
        for file, utt_id in kaldi.strangers():
            strangers.setdefault(file, []).append(utt_id)
        for file, ids in strangers.items():
            yield Finding(
                "error",
                str(file),
                f"{len(ids)} utterances are not in {kaldi.utterances.path.name}: "
                f"{some(ids)}",
                "remove the lines, or add the audio",
            )
        facts: dict[str, AudioFacts] = {}
        allow_commands = source["allow_commands"]
        yield from _look_at_audio(kaldi, facts, allow_commands=allow_commands)
        yield from _read_utterances(kaldi, facts, survey)


def _read_utterances(
    kaldi: KaldiDir, facts: Mapping[str, AudioFacts], survey: Survey
) -> Iterator[Finding]:
    """Survey the utterances; those without a transcript or a speaker are findings."""
    silent, speakerless = [], []
    for utt_id in kaldi.utterances:
        words = split_fields(kaldi.text.get(utt_id) or "")
        speaker = kaldi.utt2spk.get(utt_id) if kaldi.utt2spk else None
        if not words:
            silent.append(utt_id)
        if kaldi.utt2spk is not None and not speaker:
            speakerless.append(utt_id)
        recording_id, start, end, _ = kaldi.place(utt_id)
        audio = facts.get(recording_id)
        if audio is None:
            survey.add(utt_id, speaker, words)
            continue
        last = audio.num_samples / audio.sample_rate
        duration = (last if end < 0 else min(last, float(end))) - float(start)
        rate = audio.sample_rate
        survey.add(utt_id, speaker, words, duration=duration, sample_rate=rate)
    if silent:
        yield Finding(
            "error",
            str(kaldi.text.path),
            f"{len(silent)} utterances have no transcript: {some(silent)}",
            "add the words, remove the utterances, or set on_bad_utterance: skip",
        )
    if speakerless:
        yield Finding(
            "error",
            str(kaldi.folder / "utt2spk"),
            f"{len(speakerless)} utterances have no speaker: {some(speakerless)}",
            "add their lines, or set speaker: utterance",
        )


def _look_at_audio(
    kaldi: KaldiDir, facts: dict[str, AudioFacts], *, allow_commands: bool
) -> Iterator[Finding]:
    """Read the headers; recordings whose file is missing, empty or no audio."""
    faults: dict[str, list[str]] = {}
    for recording_id in kaldi.wav:
        try:
            source = kaldi.source(recording_id, allow_commands=allow_commands)
            if source.type == "file":
                facts[recording_id] = examine(source, verify=False)
        except BadAudio as fault:
            path = kaldi.folder / str(kaldi.wav[recording_id])
            reason = fault.reason.replace(f"audio file {path}", "audio file")
            faults.setdefault(reason, []).append(recording_id)
    for what, ids in faults.items():
        yield Finding(
            "error",
            str(kaldi.wav.path),
            f"{what} ({len(ids)}): {some(ids)}",
            "restore the files, or mend their paths",
        )


def _read_manifests(source: Mapping[str, Any], survey: Survey) -> Iterator[Finding]:
    """Read the transcripts of a Lhotse manifest."""
    for supervision in read_supervisions(source["supervisions"]):
        words = split_fields(supervision.text or "")
        duration = supervision.duration
        survey.add(supervision.id, supervision.speaker, words, duration=duration)
    if not Path(source["recordings"]).is_file():
        yield finding_of(
            UserError(
                "no such file", file=source["recordings"], remedy="check the path"
            )
        )


def _look_for_recipe(source: Mapping[str, Any], survey: Survey) -> Iterator[Finding]:
    """Whether the corpus of a Lhotse recipe is there."""
    root = Path(source["root"])
    if not root.is_dir() and not source["download"]:
        yield Finding(
            "error",
            str(root),
            f"{survey.split}: no corpus {source['recipe']} here",
            "set root to the folder that holds it, or set download: true",
        )


def _nothing(source: Mapping[str, Any], survey: Survey) -> Iterator[Finding]:  # noqa: ARG001
    """A source that is made by the workflow itself."""
    return iter(())


_READERS = {
    "kaldi": _read_kaldi,
    "manifests": _read_manifests,
    "lhotse": _look_for_recipe,
    "synthetic": _nothing,
    "hold_out": _nothing,
}
