"""Looking over the sources of a corpus before anything is prepared, for the doctor.

Reads text files and manifests, and looks whether audio files are there; decodes none.

Public: `survey_source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latflow.corpus.audio import BadAudio
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
        yield from _read_utterances(kaldi, survey)
        yield from _look_for_audio(kaldi, allow_commands=source["allow_commands"])


def _read_utterances(kaldi: KaldiDir, survey: Survey) -> Iterator[Finding]:
    """Survey the transcripts; utterances without one, or without a speaker."""
    silent, speakerless = [], []
    for utt_id in kaldi.utterances:
        words = split_fields(kaldi.text.get(utt_id) or "")
        speaker = kaldi.utt2spk.get(utt_id) if kaldi.utt2spk else None
        if not words:
            silent.append(utt_id)
        if kaldi.utt2spk is not None and not speaker:
            speakerless.append(utt_id)
        survey.add(utt_id, speaker, words)
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


def _look_for_audio(kaldi: KaldiDir, *, allow_commands: bool) -> Iterator[Finding]:
    """Recordings whose entry is unusable, or whose file is missing or empty."""
    faults: dict[str, list[str]] = {}
    for recording_id in kaldi.wav:
        try:
            source = kaldi.source(recording_id, allow_commands=allow_commands)
        except BadAudio as fault:
            faults.setdefault(str(fault), []).append(recording_id)
            continue
        if source.type == "file":
            path = Path(str(source.source))
            if not path.is_file():
                faults.setdefault("audio files do not exist", []).append(recording_id)
            elif path.stat().st_size == 0:
                faults.setdefault("audio files are empty", []).append(recording_id)
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
        survey.add(supervision.id, supervision.speaker, words)
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
