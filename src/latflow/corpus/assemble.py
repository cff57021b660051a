"""From recordings and supervisions of any origin to a corpus folder.

Every source of speech (Kaldi directories, Lhotse recipes, manifests, synthesis) hands
recordings, then utterances, to one `CorpusWriter`, which checks them the same way and
writes the manifests. A fault of one utterance either stops the preparation with one
clear line or, where the source says `on_bad_utterance: skip`, goes to the ledger.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from lhotse import Recording, SupervisionSegment
from lhotse.utils import fastcopy

from latflow.corpus.audio import (
    RESTORE,
    SILENT_BELOW,
    AudioFacts,
    BadAudio,
    Found,
    can_resample,
)
from latflow.corpus.ids import Ids
from latflow.corpus.json_lines import JsonItem, ManifestWriter, Spool
from latflow.corpus.options import CutSource, GivenSource, KaldiSource, ManifestSource
from latflow.corpus.words import RESERVED_WORDS, WordForms, no_word_known
from latflow.errors import UserError
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

RecordingJob = tuple[str, Callable[[], Found]]
SKIP = "or set on_bad_utterance: skip"
MAX_OVERSHOOT_S = 0.5  # as Kaldi's extract-segments --max-overshoot
NOTED_OVERSHOOT_S = 0.01  # less is the rounding of segments to two decimals
TIME_EPSILON_S = 1e-9
SEVERAL_CHANNELS = "several channels, of which none is named: one is taken"


class CorpusWriter:
    """Checks and writes a corpus: first all recordings, then all utterances, sorted.

    Use as a context manager around `add_recordings`, `add_utterances` and `finish`.

    Args:
        folder: folder to write to; it exists.
        origin: file or folder that error messages name where no closer one is known.
        checks: how strictly utterances are taken.
        ledger: where skipped utterances are noted.
        forms: spells the words of transcripts; None leaves them unchanged.

    Attributes:
        recordings: the good ones, by id, as they will be used (resampled if asked).
        named: ids of recordings, the channels of whose utterances are named; filled by
            the source before it yields their utterances.
        num_utterances: accepted so far.
    """

    def __init__(
        self,
        folder: str | Path,
        origin: str | Path,
        checks: GivenSource,
        ledger: Ledger,
        forms: WordForms | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._origin = origin
        self._checks = checks
        self._ledger = ledger
        self._forms = forms
        self._speakers = Ids("speaker", ledger)
        self._excluded = _ids(checks.exclude)  # raises: before files are open
        self._stack = ExitStack()
        self.recordings: Spool[Recording] = self._stack.enter_context(
            Spool(folder, Recording.from_dict)
        )
        self.named: set[str] = set()
        self._bad: dict[str, BadAudio] = {}
        self._notes: Counter[str] = Counter()
        # Of recordings with several channels only.
        self._levels: dict[str, dict[int, float]] = {}
        self._taken: dict[str, set[int]] = {}
        self._last_id = ""
        self.num_utterances = 0
        self._supervisions = self._open("supervisions")
        self._cuts = self._open("cuts")

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    _bar = staticmethod(progress)

    def _open(self, name: str) -> ManifestWriter:
        """Open a manifest of the folder, closed with this object."""
        writer = ManifestWriter(self._folder / f"{name}.jsonl.gz")
        return self._stack.enter_context(writer)

    def add_recordings(
        self, jobs: Iterable[RecordingJob], *, threads: int, total: int | None = None
    ) -> None:
        """Make, check and write the recordings.

        Args:
            jobs: (id, function that makes the recording or raises `BadAudio`), sorted
                by id.

        Raises:
            UserError: a recording is bad and bad utterances are not to be skipped.
        """
        writer = self._open("recordings")
        with worker_pool(threads) as pool:
            results = in_order(pool, _attempt, jobs, ahead=2 * threads)
            for recording_id, result in self._bar(results, "recordings", total):
                if isinstance(result, BadAudio):
                    self._refuse_recording(recording_id, result)
                    continue
                found = self._resampled(result.recording)
                if isinstance(found, BadAudio):
                    self._refuse_recording(recording_id, found)
                    continue
                self._take_note(found, result.facts)
                writer.write(found)
                self.recordings.add(found, file=self._origin)
        self._count_notes()

    def add_utterances(
        self, supervisions: Iterable[SupervisionSegment], *, total: int | None = None
    ) -> None:
        """Check and write the utterances.

        Args:
            supervisions: sorted by id, without two of the same id.

        Raises:
            UserError: an utterance is bad and bad utterances are not to be skipped.
        """
        for supervision in self._bar(supervisions, "utterances", total):
            assert self._last_id < supervision.id, "utterances are not sorted"
            self._last_id = supervision.id
            if supervision.id in self._excluded:
                self._excluded.remove(supervision.id)
                reason = f"is listed in {self._checks.exclude}"
                self._ledger.record(supervision.id, reason, action="excluded")
                continue
            checked = self._check(supervision)
            if checked is not None:
                self._take(*checked)
                self._write(*checked)

    def finish(self, *, max_skipped_fraction: float) -> None:
        """Write the ledger.

        Raises:
            UserError: no utterance is left, more were skipped than allowed, or the
                lexicon has no word of the transcripts.
        """
        if self._excluded:
            log.warning(
                "%s: %d ids that no utterance has; first: %s",
                self._checks.exclude,
                len(self._excluded),
                min(self._excluded),
            )
        self._note_channels()
        if not self.num_utterances:
            skipped = (e for e in self._ledger.entries if e.action == "skipped")
            first = next((f"; {e.utterance}: {e.reason}" for e in skipped), "")
            raise UserError(
                f"no utterance is left to use{first}",
                file=self._origin,
                remedy="check the paths and the options of this source",
            )
        total = self.num_utterances + self._ledger.num_skipped()
        self._ledger.check(total, max_skipped_fraction=max_skipped_fraction)
        if self._forms is not None:
            self._report_words(self._forms)
        self._ledger.write(self._folder / "ledger.jsonl")

    def _report_words(self, forms: WordForms) -> None:
        """Log how transcripts were changed; refuse them if no word is known."""
        if changes := forms.summary():
            log.info("words of %d in transcripts: %s", forms.num_words, changes)
        if unknown := forms.num_words - forms.num_known:
            log.info("%d words are not in the lexicon", unknown)
        if error := no_word_known(forms, self._origin):
            raise error

    def reject(
        self, utterance: str, reason: str, *, file: str | Path | None, remedy: str
    ) -> None:
        """Stop for a bad utterance, or note in the ledger that it is skipped.

        Raises:
            UserError: unless bad utterances are to be skipped.
        """
        if self._checks.on_bad_utterance == "skip":
            self._ledger.record(utterance, reason)
            return
        raise UserError(
            reason,
            file=file or self._origin,
            utterance=utterance,
            remedy=f"{remedy}, {SKIP}",
        )

    def is_bad(self, recording_id: str) -> bool:
        """Return whether a recording was refused."""
        return recording_id in self._bad

    def reject_with_recording(self, utterance: str, recording_id: str) -> None:
        """Reject an utterance because its recording was refused."""
        fault = self._bad[recording_id]
        self.reject(utterance, fault.reason, file=None, remedy=fault.remedy)

    def _take_note(self, recording: Recording, facts: Sequence[AudioFacts]) -> None:
        """Remember the notes on a recording, and how loud its channels are."""
        for note in dict.fromkeys(note for one in facts for note in one.notes):
            self._note(recording.id, note)
        levels: dict[int, float] = {}
        for source, one in zip(recording.sources, facts, strict=False):
            levels |= zip(source.channels, one.levels, strict=False)
        if levels:
            self._levels[recording.id] = levels

    def _note(self, recording_id: str, note: str) -> None:
        """Write a line in the ledger about a recording that is taken all the same."""
        self._notes[note] += 1
        self._ledger.record(recording_id, note, action="noted")

    def _count_notes(self) -> None:
        """Log how many recordings have which notes."""
        for note, number in self._notes.items():
            log.warning("%s: recordings (%d) with %s", self._origin, number, note)
        self._notes.clear()

    def _note_channels(self) -> None:
        """Note the recordings of which a channel is taken that nothing names."""
        for recording_id, channels in self._taken.items():
            if recording_id not in self.named and self._checks.channel is None:
                self._note(recording_id, f"{SEVERAL_CHANNELS} ({min(channels)})")
        self._count_notes()

    def _refuse_recording(self, recording_id: str, fault: BadAudio) -> None:
        """Remember a bad recording; its utterances are skipped when they come."""
        self._bad[recording_id] = fault
        if self._checks.on_bad_utterance != "skip":
            self.reject_with_recording(recording_id, recording_id)

    def _resampled(self, recording: Recording) -> Recording | BadAudio:
        """Return the recording at the wanted sample rate; resampled when it is read."""
        wanted = self._checks.sample_rate
        if wanted is None or wanted == recording.sampling_rate:
            return recording
        if not can_resample(recording.sampling_rate, wanted):
            rate = recording.sampling_rate
            what = f"sample rate {rate} Hz cannot be resampled to {wanted} Hz"
            return BadAudio(what, RESTORE)
        return recording.resample(wanted)

    def _check(
        self, supervision: SupervisionSegment
    ) -> tuple[SupervisionSegment, Recording] | None:
        """Return the utterance and its recording, or None if it was rejected."""
        if self.is_bad(supervision.recording_id):
            self.reject_with_recording(supervision.id, supervision.recording_id)
            return None
        if supervision.recording_id not in self.recordings:
            self.reject(
                supervision.id,
                f"unknown recording {supervision.recording_id}",
                file=None,
                remedy="add the recording, remove the utterance",
            )
            return None
        recording = self.recordings[supervision.recording_id]
        supervision, fault = self._read(supervision)
        if fault is None:
            supervision = self._on_channel(supervision, recording)
            supervision = self._clipped(supervision, recording)
            fault = self._fault(supervision, recording)
        if fault is None:
            return self._with_speaker(supervision), recording
        self.reject(supervision.id, fault[0], file=None, remedy=fault[1])
        return None

    def _read(
        self, supervision: SupervisionSegment
    ) -> tuple[SupervisionSegment, tuple[str, str] | None]:
        """Return an utterance with its words as the lexicon spells them.

        The second is what is wrong with transcript or speaker, and the remedy.
        """
        words = (supervision.text or "").split()
        if reserved := next((w for w in words if w in RESERVED_WORDS), None):
            what = f"the transcript has the reserved symbol {reserved}"
            return supervision, (what, "remove it from the transcript")
        if self._forms is not None:
            words = self._forms.words(supervision.text or "", supervision.speaker)
        supervision = replace(supervision, text=" ".join(words))
        if self._checks.transcripts and not words:
            remedy = "add the words, remove the utterance"
            return supervision, ("the transcript is empty", remedy)
        if self._checks.speaker == "given" and not (supervision.speaker or "").strip():
            remedy = "add it, set speaker: utterance"
            return supervision, ("the speaker is not known", remedy)
        return supervision, None

    def _on_channel(
        self, supervision: SupervisionSegment, recording: Recording
    ) -> SupervisionSegment:
        """Let an utterance be on the channel of the configuration if none is named."""
        channel = self._checks.channel
        is_open = recording.num_channels > 1 and recording.id not in self.named
        if channel is None or not is_open:
            return supervision
        return replace(supervision, channel=channel)

    def _silence(self, supervision: SupervisionSegment) -> tuple[str, str] | None:
        """Refuse a channel that is silent while another one of its recording is not."""
        recording_id, channel = supervision.recording_id, supervision.channel
        levels = self._levels.get(recording_id)
        if levels is None or not isinstance(channel, int):
            return None
        is_named = recording_id in self.named or self._checks.channel is not None
        loudest = max(levels.values())
        floor = 0.0 if is_named else loudest * SILENT_BELOW
        if not loudest > 0 or not levels[channel] <= floor:
            return None
        what = f"is on channel {channel}, which is silent; another one is not"
        return what, channel_remedy(self._checks)

    def _clipped(
        self, supervision: SupervisionSegment, recording: Recording
    ) -> SupervisionSegment:
        """Let an utterance end with its recording if it overshoots by a little."""
        overshoot = supervision.start + supervision.duration - recording.duration
        if not TIME_EPSILON_S < overshoot <= MAX_OVERSHOOT_S:
            return supervision
        if overshoot > NOTED_OVERSHOOT_S:
            reason = f"ends {overshoot:.3f} s after its recording"
            self._ledger.record(supervision.id, reason, action="truncated")
        # Down, not to the nearest: at 22050 Hz durations are not decimal numbers.
        duration = math.floor(1e8 * (recording.duration - supervision.start)) / 1e8
        return replace(supervision, duration=duration)

    def _fault(
        self, supervision: SupervisionSegment, recording: Recording
    ) -> tuple[str, str] | None:
        """Return what is wrong with an utterance in its recording, and the remedy."""
        end = supervision.start + supervision.duration
        if supervision.start < 0 or end > recording.duration + TIME_EPSILON_S:
            return (
                f"goes from {supervision.start:g} s to {end:g} s, but its recording "
                f"lasts {recording.duration:g} s",
                "fix the times, remove the utterance",
            )
        if supervision.duration < self._checks.min_duration:
            return (
                f"lasts {supervision.duration:g} s only (min_duration is "
                f"{self._checks.min_duration:g} s)",
                "fix the times, remove the utterance",
            )
        return self._channel_fault(supervision, recording)

    def _channel_fault(
        self, supervision: SupervisionSegment, recording: Recording
    ) -> tuple[str, str] | None:
        """Return what is wrong with the channel of an utterance, and the remedy."""
        channel = supervision.channel
        if not isinstance(channel, int) or channel not in (recording.channel_ids or ()):
            return (
                f"is on channel {channel}, its recording has channels "
                f"{recording.channel_ids}",
                "name the one channel to use",
            )
        return self._silence(supervision)

    def _with_speaker(self, supervision: SupervisionSegment) -> SupervisionSegment:
        """Name the speaker as the configuration says."""
        choices = {"utterance": supervision.id, "single": "single"}
        speaker = choices.get(self._checks.speaker, supervision.speaker)
        if self._checks.speaker == "given" and speaker:
            speaker = self._speakers.name(speaker)
        return fastcopy(supervision, speaker=speaker)

    def _take(self, supervision: SupervisionSegment, recording: Recording) -> None:
        """Count an utterance, and remember its channel where there are several."""
        self.num_utterances += 1
        if recording.num_channels > 1 and isinstance(supervision.channel, int):
            self._taken.setdefault(recording.id, set()).add(supervision.channel)

    def _write(self, supervision: SupervisionSegment, recording: Recording) -> None:
        """Write the supervision and its cut."""
        values = supervision.to_dict()
        self._supervisions.write(JsonItem(supervision.id, values))
        # What `MonoCut.to_dict` gives, which would take both apart once more.
        cut = {
            "id": supervision.id,
            "start": supervision.start,
            "duration": supervision.duration,
            "channel": supervision.channel,
            "supervisions": [{**values, "start": 0.0}],
            "recording": recording.to_dict(),
            "type": "MonoCut",
        }
        self._cuts.write(JsonItem(supervision.id, cut))


def channel_remedy(source: GivenSource) -> str:
    """Return how a source can name the channel that is to be taken."""
    where = ""
    if isinstance(source, KaldiSource):
        where = " in segments or reco2file_and_channel,"
    elif isinstance(source, ManifestSource | CutSource):
        where = " in the manifest,"
    return f"name the channel{where} with the option channel, or mix the channels"


def _ids(path: str | None) -> set[str]:
    """Return the ids that a file lists, one a line; none without a file."""
    if path is None:
        return set()
    return {line.split()[0] for _, line in read_lines(path) if line.strip()}


def _attempt(job: RecordingJob) -> tuple[str, Found | BadAudio]:
    """Make a recording; a fault is returned, not raised, to keep the order."""
    recording_id, make = job
    try:
        return recording_id, make()
    except BadAudio as fault:
        return recording_id, fault
