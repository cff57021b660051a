"""What the doctor finds of channels and damaged audio, without decoding any.

Public: `Faults`, `several_channels`, `channels_of_kaldi`, `ManifestChannels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import SEVERAL_CHANNELS, channel_remedy
from latflow.corpus.audio import AudioFacts, BadAudio, refuse_others
from latflow.corpus.kaldi_dir import KaldiDir
from latflow.corpus.options import GivenSource, KaldiSource, ManifestSource
from latflow.workflow.findings import Finding, Severity, some

if TYPE_CHECKING:
    from latflow.workflow.survey import Survey

_NO_CHANNEL = "utterances on a channel that their recording does not have"
_NO_RECORDING = "utterances of an unknown recording"


class Faults:
    """What is wrong with which items, one finding for each reason.

    Args:
        severity: of the findings.
    """

    def __init__(self, severity: Severity = "error") -> None:
        self._severity: Severity = severity
        self._found: dict[tuple[str, str], list[str]] = {}

    def add(self, reason: str, remedy: str, name: str) -> None:
        """Take note of one item."""
        self._found.setdefault((reason, remedy), []).append(name)

    def add_notes(self, facts: AudioFacts, name: str) -> None:
        """Take note of what was mended in a file, or is damaged."""
        for note in facts.notes:
            self.add(note, "write the file anew if you can", name)

    def findings(self, file: str, split: str = "") -> Iterator[Finding]:
        """Yield the findings about a file, and a split where the file tells none."""
        split = split and f"{split}: "
        for (reason, remedy), names in self._found.items():
            what = f"{split}{reason} ({len(names)}): {some(names)}"
            yield Finding(self._severity, file, what, remedy)


def several_channels(
    recordings: Iterable[str], survey: Survey, source: GivenSource
) -> Iterator[Finding]:
    """Find recordings with several channels, of which none is named."""
    if source.channel is not None:
        return
    faults = Faults("warning")
    for name in recordings:
        faults.add(SEVERAL_CHANNELS, channel_remedy(source), name)
    yield from faults.findings(survey.file, survey.split)


def channels_of_kaldi(
    kaldi: KaldiDir,
    facts: Mapping[str, AudioFacts],
    survey: Survey,
    source: KaldiSource,
) -> Iterator[Finding]:
    """Find utterances on channels that are not there, or not named."""
    faults, unnamed = Faults(), dict[str, None]()
    for utt_id in kaldi.utterances:
        recording_id, _, _, channel = kaldi.place(utt_id)
        if recording_id not in kaldi.wav:
            faults.add(_NO_RECORDING, "add them to wav.scp", utt_id)
        if (audio := facts.get(recording_id)) is None:
            continue
        if channel is None and audio.num_channels > 1:
            side = kaldi.side(recording_id)
            channel = source.channel if side is None else side
            if channel is None:
                unnamed[recording_id] = None
        if (channel or 0) >= audio.num_channels:
            faults.add(_NO_CHANNEL, "name one that it has", utt_id)
    yield from faults.findings(str(kaldi.utterances.path))
    yield from several_channels(unnamed, survey, source)


class ManifestChannels:
    """Channels of the recordings of a manifest, and of its utterances.

    Args:
        source: of the manifests.
    """

    def __init__(self, source: ManifestSource) -> None:
        self._source = source
        self._channels: dict[str, tuple[int, ...]] = {}
        self._has_recordings = False
        self._taken: dict[str, set[int]] = {}
        self._recordings, self._utterances = Faults(), Faults()

    def add_recordings(self, recordings: Iterable[Recording]) -> None:
        """Take note of the recordings, before the utterances."""
        self._has_recordings = True
        for recording in recordings:
            self._channels[recording.id] = tuple(recording.channel_ids or ())
            for source in recording.sources:
                try:
                    allowed = self._source.allow_commands
                    refuse_others(source.type, allow_commands=allowed)
                except BadAudio as fault:
                    self._recordings.add(fault.reason, fault.remedy, recording.id)

    def add_utterance(self, supervision: SupervisionSegment) -> None:
        """Take note of an utterance."""
        if not self._has_recordings:
            return
        channels = self._channels.get(supervision.recording_id)
        if channels is None:
            remedy = "add it to the recordings, remove the utterances"
            self._utterances.add(_NO_RECORDING, remedy, supervision.id)
            return
        channel = supervision.channel
        if not isinstance(channel, int) or channel not in channels:
            self._utterances.add(
                _NO_CHANNEL, "name the one channel to use", supervision.id
            )
        elif len(channels) > 1:
            self._taken.setdefault(supervision.recording_id, set()).add(channel)

    def findings(self, survey: Survey) -> Iterator[Finding]:
        """Yield what is wrong."""
        yield from self._recordings.findings(self._source.recordings)
        yield from self._utterances.findings(self._source.supervisions)
        unnamed = (name for name, taken in self._taken.items() if taken == {0})
        yield from several_channels(unnamed, survey, self._source)
