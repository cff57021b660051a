"""Kaldi data directories, read into a corpus folder and written from one.

A data directory holds `wav.scp` (recording, and a path or a command ending in `|`),
`text`, `utt2spk`, and, where utterances are parts of recordings, `segments` (utterance,
recording, start, end in seconds, with an optional channel, from 0). Without `segments`
each recording is one utterance of the same name. Where a file has several channels,
and `segments` names none, `reco2file_and_channel` may (recording, file, A or B, or a
number from 1); without it the first is taken, which the ledger notes. A path that is
not absolute is relative to the folder of `wav.scp`, or to the nearest one above where
the file is (Kaldi's recipes run two above `data/train`); commands run where the program
runs, as with Kaldi, and once a recording: what they print is kept as a file.

What Lhotse has no field for is kept under the name of its file: `spk2age` becomes
`supervision.custom["spk2age"]`; `spk2gender` and `utt2lang` become the fields `gender`
and `language`. Going in, out and in again gives the same manifests, and going out and
in gives back the manifests it began with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from pathlib import Path

from lhotse import AudioSource, Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter, RecordingJob
from latflow.corpus.audio import BadAudio, Found
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.json_lines import Spool
from latflow.corpus.kaldi_tables import (
    Table,
    check_field,
    find_file,
    write_table,
)
from latflow.corpus.manifests import read_recordings, read_supervisions, spools
from latflow.corpus.options import GivenSource
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger

# Files about speakers and utterances that other files or the audio already imply.
_IMPLIED = {"spk2utt", "utt2spk", "utt2dur", "utt2num_frames", "spk2gender", "utt2lang"}
_TO_END = Decimal(-1)  # end of a segment that goes to the end of its recording
# Sums of decimal numbers are exact here, so that start + duration - start = duration.
_EXACT = Context(prec=400)


class KaldiDir:
    """The tables of a Kaldi data directory.

    Use as a context manager. Only ids and file offsets stay in memory.

    Args:
        has_speakers: whether `utt2spk` is needed.
        has_text: whether `text` is needed.

    Raises:
        UserError: a file is missing or not UTF-8, an id occurs twice, or a line of
            `segments` is malformed.
    """

    def __init__(
        self, folder: str | Path, *, has_speakers: bool = True, has_text: bool = True
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        if not self.folder.is_dir():
            raise UserError(
                "no such folder", file=folder, remedy="check the path of the corpus"
            )
        self._stack = ExitStack()
        with ExitStack() as stack:
            self.wav = self._table("wav.scp", stack)
            table = self._table if has_text else self._table_if_present
            self.text = table("text", stack)
            self._has_text = has_text
            self.segments = self._table_if_present("segments", stack)
            self.utt2spk = self._speakers(stack, needed=has_speakers)
            self._sides = self._table_if_present("reco2file_and_channel", stack)
            self._gender = self._table_if_present("spk2gender", stack)
            self._language = self._table_if_present("utt2lang", stack)
            self._custom = self._custom_tables(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> KaldiDir:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _table(self, name: str, stack: ExitStack) -> Table:
        """Open a table that must be there."""
        table = Table(self.folder / name)
        stack.callback(table.close)
        return table

    def _table_if_present(self, name: str, stack: ExitStack) -> Table | None:
        """Open a table that may be there."""
        return self._table(name, stack) if (self.folder / name).is_file() else None

    def _speakers(self, stack: ExitStack, *, needed: bool) -> Table | None:
        """Open `utt2spk`, with a hint where it is absent."""
        table = self._table_if_present("utt2spk", stack)
        if table is None and needed:
            raise UserError(
                "no such file",
                file=self.folder / "utt2spk",
                remedy="write it, or set speaker: utterance (each utterance its own "
                "speaker) or speaker: single (all one speaker)",
            )
        return table

    def _custom_tables(self, stack: ExitStack) -> dict[str, Table]:
        """Open the files that Lhotse has no fields for."""
        names = sorted(
            path.name
            for pattern in ("spk2*", "utt2*")
            for path in self.folder.glob(pattern)
            if path.is_file() and path.name not in _IMPLIED and "." not in path.name
        )
        return {name: self._table(name, stack) for name in names}

    @property
    def utterances(self) -> Table:
        """The table that says which utterances there are."""
        return self.wav if self.segments is None else self.segments

    def strangers(self) -> Iterator[tuple[Path, str]]:
        """Yield (file, utterance) of lines whose utterance has no audio."""
        for table in (self.text, self.utt2spk):
            if table is not None:
                for utt_id in table:
                    if utt_id not in self.utterances:
                        yield table.path, utt_id

    def source(self, recording_id: str) -> AudioSource:
        """Return where the audio of a recording comes from.

        Raises:
            BadAudio: the entry is empty.
        """
        entry = self.wav[recording_id]
        if entry.endswith("|"):
            return AudioSource("command", [0], entry[:-1].strip())
        if not entry:
            raise BadAudio("wav.scp names no audio file", "add its path")
        return AudioSource("file", [0], find_file(self.folder, entry))

    def recording_jobs(
        self, audio: AudioFolder, *, verify: bool
    ) -> Iterator[RecordingJob]:
        """Yield (id, function that makes the Lhotse recording), sorted by id."""
        for recording_id in self.wav:
            try:
                source = self.source(recording_id)
            except BadAudio as fault:
                yield recording_id, partial(_raise, fault)
                continue
            yield (
                recording_id,
                partial(audio.probe, recording_id, source, verify=verify),
            )

    def supervisions(self, writer: CorpusWriter) -> Iterator[SupervisionSegment]:
        """Yield the utterances, sorted by id.

        Args:
            writer: holds the recordings; gets notes on unusable utterances.
        """
        for utt_id in self.utterances:
            recording_id, start, end, channel = self.place(utt_id)
            if self._has_text and not self.has_transcript(utt_id):
                writer.reject(
                    utt_id,
                    "this utterance has no transcript",
                    file=self.folder / "text",
                    remedy="add its line, remove it from the other files",
                )
                continue
            duration = 0.0
            is_there = recording_id in writer.recordings
            if not is_there and not writer.is_bad(recording_id):
                writer.reject(
                    utt_id,
                    f"unknown recording {recording_id}",
                    file=self.utterances.path,
                    remedy="add it to wav.scp, remove the utterance",
                )
                continue
            if is_there:  # else the writer rejects it
                recording = writer.recordings[recording_id]
                if channel is None and recording.num_channels > 1:
                    channel = self.side(recording_id)
                if channel is not None:
                    writer.named.add(recording_id)
                duration = _duration(start, end, recording.duration)
            yield self._supervision(utt_id, recording_id, channel or 0, start, duration)

    def has_transcript(self, utt_id: str) -> bool:
        """Return whether an utterance has a line in `text`."""
        return self.text is not None and utt_id in self.text

    def transcript(self, utt_id: str) -> str:
        """Return the transcript of an utterance; empty without one."""
        return (self.text.get(utt_id) or "") if self.text else ""

    def place(self, utt_id: str) -> tuple[str, Decimal, Decimal, int | None]:
        """Return the recording, start and end in seconds, and channel of an utterance.

        A negative end stands for the end of the recording. The channel is None where
        `segments` names none.

        Raises:
            UserError: its line in `segments` is malformed.
        """
        if self.segments is None:
            return utt_id, Decimal(0), _TO_END, None
        fields = self.segments[utt_id].split()
        try:
            recording_id, start, end, *rest = fields
            channel = int(rest[0]) if rest else None
            times = Decimal(start), Decimal(end)
            if len(rest) > 1 or not all(time.is_finite() for time in times):
                raise ValueError(fields)
        except (ValueError, InvalidOperation) as error:
            raise UserError(
                f"{' '.join(fields)!r} is not: recording, start, end [, channel]",
                file=self.segments.path,
                utterance=utt_id,
                remedy="give start and end in seconds",
            ) from error
        return recording_id, *times, channel

    def side(self, recording_id: str) -> int | None:
        """Return the channel that `reco2file_and_channel` names; None without one.

        Raises:
            UserError: it is neither A, B, nor a number from 1.
        """
        side = (self._sides.get(recording_id) or "").split() if self._sides else []
        if not side:
            return None
        name = side[-1]
        if len(side) == 2 and name in ("A", "B"):
            return "AB".index(name)
        if len(side) == 2 and name.isdecimal() and int(name) > 0:
            return int(name) - 1
        assert self._sides is not None
        raise UserError(
            f"{' '.join(side)!r} is not: file, channel (A, B, or a number from 1)",
            file=self._sides.path,
            utterance=recording_id,
            remedy="fix the line, or remove the file: only channels need it",
        )

    def _supervision(
        self,
        utt_id: str,
        recording_id: str,
        channel: int,
        start: Decimal,
        duration: float,
    ) -> SupervisionSegment:
        """Make the Lhotse supervision of an utterance."""
        speaker = None if self.utt2spk is None else self.utt2spk.get(utt_id)
        custom: dict[str, str] = {}
        for name, table in self._custom.items():
            value = table.get((speaker or "") if name.startswith("spk") else utt_id)
            if value is not None:
                custom[name] = value
        return SupervisionSegment(
            id=utt_id,
            recording_id=recording_id,
            start=float(start),
            duration=duration,
            channel=channel,
            text=self.transcript(utt_id),
            speaker=speaker or None,
            gender=self._gender.get(speaker or "") if self._gender else None,
            language=self._language.get(utt_id) if self._language else None,
            custom=custom or None,
        )


def import_kaldi_dir(
    data_dir: str | Path,
    out_dir: str | Path,
    *,
    checks: GivenSource | None = None,
    allow_commands: bool = False,
    threads: int = 1,
    max_skipped_fraction: float = 1.0,
) -> None:
    """Turn a Kaldi data directory into a corpus folder.

    Args:
        data_dir: folder with `wav.scp`, `text`, `utt2spk` and maybe `segments`.
        out_dir: corpus folder to write; replaced if it exists.
        checks: how strictly utterances are taken; by default everything is verified
            and the first fault stops.
        allow_commands: whether entries of `wav.scp` that end in `|` are run: once a
            recording; what they print is written to `audio/`.
        max_skipped_fraction: largest share of utterances that may be skipped.

    Raises:
        UserError: the directory or an utterance is faulty; names file and remedy.
    """
    ledger, final = Ledger("prepare_corpus"), Path(os.path.abspath(out_dir))
    source = checks or GivenSource()
    with atomic_directory(out_dir) as folder:
        read_kaldi_dir(
            data_dir,
            lambda origin: CorpusWriter(folder, origin, source, ledger),
            checks=source,
            audio=AudioFolder(folder / "audio", final / "audio", allow_commands),
            threads=threads,
            max_skipped_fraction=max_skipped_fraction,
        )


def read_kaldi_dir(
    data_dir: str | Path,
    writer_for: Callable[[Path], CorpusWriter],
    *,
    checks: GivenSource,
    audio: AudioFolder,
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Give a Kaldi data directory to a writer; see `import_kaldi_dir`.

    Args:
        data_dir: as there.
        writer_for: makes the writer, for the file that its errors name.
        checks: as there.
        audio: where the audio that commands print is written to, if they may run.
        threads: recordings looked at at a time.
        max_skipped_fraction: as there.
    """
    has_speakers = checks.speaker == "given"
    with (
        KaldiDir(
            data_dir, has_speakers=has_speakers, has_text=checks.transcripts
        ) as kaldi,
        writer_for(kaldi.wav.path) as writer,
    ):
        for file, utt_id in kaldi.strangers():
            writer.reject(
                utt_id,
                f"unknown utterance: it is not in {kaldi.utterances.path.name}",
                file=file,
                remedy="remove the line, add its audio",
            )
        jobs = kaldi.recording_jobs(audio, verify=checks.verify_audio)
        writer.add_recordings(jobs, threads=threads, total=len(kaldi.wav))
        writer.add_utterances(kaldi.supervisions(writer), total=len(kaldi.utterances))
        writer.finish(max_skipped_fraction=max_skipped_fraction)


def export_kaldi_dir(corpus_dir: str | Path, out_dir: str | Path) -> None:
    """Write a corpus folder as a Kaldi data directory.

    `segments` is written only where utterances are not whole recordings. Audio paths
    are absolute. Custom fields named like Kaldi's files (`spk2...`, `utt2...`) are
    written; other custom fields and alignments have no place there.

    Args:
        corpus_dir: folder with `recordings.jsonl.gz` and `supervisions.jsonl.gz`.
        out_dir: Kaldi data directory to write; replaced if it exists.

    Raises:
        UserError: an id holds a blank, or audio that no Kaldi directory can name
            (several files a recording, resampling on the fly).
    """
    corpus = Path(corpus_dir)
    recordings = corpus / "recordings.jsonl.gz"
    supervisions = corpus / "supervisions.jsonl.gz"
    with atomic_directory(out_dir) as folder, spools(folder) as (recs, sups):
        recs.extend(read_recordings(recordings), file=recordings)
        sups.extend(read_supervisions(supervisions), file=supervisions)
        write_table(
            folder / "wav.scp", ((rec.id, _wav_entry(rec, recordings)) for rec in recs)
        )
        if any(not _is_whole(sup, recs) for sup in sups):
            write_table(
                folder / "segments",
                ((sup.id, _segment(sup, recs, supervisions)) for sup in sups),
            )
        write_table(
            folder / "text",
            ((sup.id, " ".join((sup.text or "").split())) for sup in sups),
        )
        _write_speakers(folder, sups, supervisions)
        _write_custom(folder, sups)


def _wav_entry(recording: Recording, file: Path) -> str:
    check_field(recording.id, file, "recording id")
    if len(recording.sources) != 1 or recording.transforms:
        raise UserError(
            "a Kaldi directory cannot say that audio is resampled or in several files",
            file=file,
            utterance=recording.id,
            remedy="prepare the corpus without sample_rate, from single files",
        )
    source = recording.sources[0]
    if source.type == "command":
        return f"{source.source} |"
    if source.type != "file":
        raise UserError(
            f"audio of type {source.type} has no place in wav.scp",
            file=file,
            utterance=recording.id,
            remedy="store the audio in files",
        )
    return os.path.abspath(str(source.source))


def _is_whole(supervision: SupervisionSegment, recordings: Spool[Recording]) -> bool:
    if supervision.id != supervision.recording_id or supervision.start != 0.0:
        return False
    recording = recordings[supervision.recording_id]
    return supervision.duration == recording.duration and recording.num_channels == 1


def _segment(
    supervision: SupervisionSegment, recordings: Spool[Recording], file: Path
) -> str:
    """Return the entry of an utterance in `segments`; the end is exact."""
    check_field(supervision.id, file, "utterance id")
    start = Decimal(repr(supervision.start))
    end = _EXACT.add(start, Decimal(repr(supervision.duration)))
    entry = f"{supervision.recording_id} {start:f} {end:f}"
    if recordings[supervision.recording_id].num_channels == 1:
        return entry
    return f"{entry} {supervision.channel}"


def _write_speakers(
    folder: Path, supervisions: Spool[SupervisionSegment], file: Path
) -> None:
    """Write `utt2spk` and `spk2utt`."""
    utterances: dict[str, list[str]] = {}
    for supervision in supervisions:
        check_field(supervision.id, file, "utterance id")
        speaker = check_field(supervision.speaker or "", file, "speaker")
        utterances.setdefault(speaker, []).append(supervision.id)
    rows = ((sup.id, str(sup.speaker)) for sup in supervisions)
    write_table(folder / "utt2spk", rows)
    write_table(
        folder / "spk2utt", ((s, " ".join(utterances[s])) for s in sorted(utterances))
    )


def _write_custom(folder: Path, supervisions: Spool[SupervisionSegment]) -> None:
    """Write `spk2gender`, `utt2lang`, and the files kept as custom fields."""
    by_speaker: dict[str, dict[str, str]] = {}
    utterance_files: set[str] = set()
    for supervision in supervisions:
        for name, value in _facts(supervision).items():
            if name.startswith("spk2"):
                by_speaker.setdefault(name, {})[str(supervision.speaker)] = value
            elif name.startswith("utt2"):
                utterance_files.add(name)
    for name, rows in by_speaker.items():
        write_table(folder / name, sorted(rows.items()))
    for name in utterance_files:
        facts = ((sup.id, _facts(sup).get(name)) for sup in supervisions)
        write_table(folder / name, ((key, v) for key, v in facts if v is not None))


def _facts(supervision: SupervisionSegment) -> dict[str, str]:
    """Return what is known of an utterance and its speaker, by Kaldi file."""
    facts = {
        **(supervision.custom or {}),
        "spk2gender": supervision.gender,
        "utt2lang": supervision.language,
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _duration(start: Decimal, end: Decimal, last: float) -> float:
    """Return the seconds of an utterance; an end of -1 is that of the recording."""
    end = Decimal(repr(last)) if end == _TO_END else end
    return float(_EXACT.subtract(end, start))


def _raise(fault: BadAudio) -> Found:
    """Report a fault when its turn comes."""
    raise fault
