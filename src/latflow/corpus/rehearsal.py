"""A corpus that is prepared without being written, for those who want to know before.

`latflow doctor`, `plan` and `align` ask what a source holds and what is wrong with it.
The answer is that of `prepare_corpus` itself: the same readers and checks, with a
writer that writes nothing, continues behind a fault, and believes the headers of audio.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from lhotse import AudioSource, Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter
from latflow.corpus.audio import (
    BadAudio,
    Found,
    confirm,
    may_have_silent_channel,
    probe,
    refuse_others,
)
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.json_lines import Item, ManifestWriter
from latflow.corpus.options import GivenSource
from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.ledger import Ledger
from latflow.logs import progress

Observer = Callable[[SupervisionSegment, Recording | None], None]
_RATE, _ENDLESS_S = 16000, 10**9  # of commands' recordings, which are not read
# What differs between faults of one kind: paths, and numbers.
_DETAIL = re.compile(r"\S*/\S*|'[^']*'|\d[\d.]*")


@dataclass
class Fault:
    """What is wrong with some utterances or recordings.

    Attributes:
        reason: of the first one.
        remedy: likewise.
        file: likewise; None where no closer one than the source is known.
        names: of all.
    """

    reason: str
    remedy: str
    file: str | None
    names: list[str] = field(default_factory=list)


class HeadersAlone(AudioFolder):
    """Looks at headers of audio, and runs no command.

    Only recordings with a channel that seems to be silent are decoded.
    """

    def probe(self, recording_id: str, source: AudioSource, *, verify: bool) -> Found:
        """Make a recording of a source; that of a command has no end."""
        refuse_others(source.type, allow_commands=self.allow_commands)
        if source.type != "command":
            found = probe(recording_id, source, verify=False)
            if not (verify and _seems_silent(found.recording)):
                return found
            return probe(recording_id, source, verify=True)
        return Found(
            Recording(recording_id, [source], _RATE, _RATE * _ENDLESS_S, _ENDLESS_S)
        )

    def confirm(self, recording: Recording, *, verify: bool) -> Found:
        """Check a recording of a manifest; what commands print is not looked at."""
        for source in recording.sources:
            refuse_others(source.type, allow_commands=self.allow_commands)
        if any(source.type == "command" for source in recording.sources):
            return Found(recording)
        found = confirm(recording, verify=False)
        if not (verify and _seems_silent(recording)):
            return found
        return confirm(recording, verify=True)


def _seems_silent(recording: Recording) -> bool:
    """Return whether a channel of a file may be silent beside others."""
    return any(
        len(source.channels) > 1 and may_have_silent_channel(str(source.source))
        for source in recording.sources
        if source.type == "file"
    )


class _NoManifest(ManifestWriter):
    """A manifest that is not written."""

    def __init__(self) -> None:
        pass

    def write(self, item: Item) -> None:
        """Forget an item."""

    def __exit__(self, *_: object) -> None:
        """Close nothing."""


class Rehearsal(CorpusWriter):
    """Checks a corpus as `CorpusWriter` does; collects faults, and writes nothing.

    Args:
        folder: for temporary files.
        origin: see `CorpusWriter`.
        checks: likewise.
        ledger: likewise; gets what does not stop the preparation.
        forms: likewise.
        observe: gets each utterance with a transcript, and its recording; None
            where that is bad.

    Attributes:
        faults: of utterances and recordings, by kind.
        error: what would stop the preparation in the end.
    """

    def __init__(
        self,
        folder: str | Path,
        origin: str | Path,
        checks: GivenSource,
        ledger: Ledger,
        forms: WordForms | None = None,
        *,
        observe: Observer,
    ) -> None:
        super().__init__(folder, origin, checks, ledger, forms)
        self.forms = forms
        self.faults: dict[str, Fault] = {}
        self.error: UserError | None = None
        self._observe = observe
        self._asked: set[str] = set()  # bad recordings of which utterances came

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Return whether a fault stops the preparation."""
        return "warning" if self._checks.on_bad_utterance == "skip" else "error"

    _bar = staticmethod(partial(progress, delay=1.0))

    def _open(self, name: str) -> ManifestWriter:  # noqa: ARG002 - it has none
        """Open no manifest."""
        return _NoManifest()

    def reject(
        self, utterance: str, reason: str, *, file: str | Path | None, remedy: str
    ) -> None:
        """Collect a fault."""
        if self.severity == "warning":
            self._ledger.record(utterance, reason)
        kind = f"{_DETAIL.sub('', reason)} {remedy}"
        name = None if file is None else str(file)
        fault = self.faults.setdefault(kind, Fault(reason, remedy, name))
        if utterance not in fault.names[-1:]:
            fault.names.append(utterance)

    def reject_with_recording(self, utterance: str, recording_id: str) -> None:
        """Collect the fault of the recording of an utterance."""
        self._asked.add(recording_id)
        super().reject_with_recording(utterance, recording_id)

    def _refuse_recording(self, recording_id: str, fault: BadAudio) -> None:
        """Remember a bad recording, whose utterances are rejected when they come."""
        self._bad[recording_id] = fault

    def _check(
        self, supervision: SupervisionSegment
    ) -> tuple[SupervisionSegment, Recording] | None:
        """Look at the transcript of an utterance of a bad recording, too."""
        if supervision.recording_id in self.recordings:
            return super()._check(supervision)
        super()._check(supervision)
        read, fault = self._read(supervision)
        if fault is None:
            self._observe(read, None)
        else:
            self.reject(read.id, fault[0], file=None, remedy=fault[1])
        return None

    def _channel_fault(
        self, supervision: SupervisionSegment, recording: Recording
    ) -> tuple[str, str] | None:
        """Return what is wrong with the channel; what commands print is not known."""
        if any(source.type == "command" for source in recording.sources):
            return None
        return super()._channel_fault(supervision, recording)

    def _write(self, supervision: SupervisionSegment, recording: Recording) -> None:
        """Tell of an utterance."""
        self._observe(supervision, recording)

    def finish(self, *, max_skipped_fraction: float) -> None:
        """Note what would stop the preparation in the end."""
        if self.severity == "error":
            for name in sorted(self._bad.keys() - self._asked):
                self.reject_with_recording(name, name)
            if self.faults:
                return
        try:
            super().finish(max_skipped_fraction=max_skipped_fraction)
        except UserError as error:
            self.error = error


class Script:
    """Begins the rehearsal of a source.

    Args:
        observe: see `Rehearsal`.

    Attributes:
        writer: the rehearsal; None before it has begun.
    """

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self.writer: Rehearsal | None = None

    def begin(
        self,
        folder: Path,
        origin: str | Path,
        checks: GivenSource,
        ledger: Ledger,
        forms: WordForms,
    ) -> Rehearsal:
        """Return the writer of the source."""
        self.writer = Rehearsal(
            folder, origin, checks, ledger, forms, observe=self._observe
        )
        return self.writer
