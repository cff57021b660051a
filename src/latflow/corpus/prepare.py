"""Corpora of any origin become corpus folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter, RecordingJob
from latflow.corpus.audio import Found
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.combine import combine_corpora
from latflow.corpus.custom import list_custom
from latflow.corpus.cut_set import read_cut_set
from latflow.corpus.folder import list_folder
from latflow.corpus.hdf5 import read_hdf_corpus
from latflow.corpus.ids import Ids
from latflow.corpus.json_lines import Spool
from latflow.corpus.kaldi_dir import read_kaldi_dir
from latflow.corpus.listing import Listing, write_listing
from latflow.corpus.manifests import read_recordings, read_supervisions, spools
from latflow.corpus.options import (
    CombinedSource,
    CustomSource,
    CutSource,
    FolderSource,
    GivenSource,
    Hdf5Source,
    KaldiSource,
    LhotseSource,
    ManifestSource,
    Source,
    SyntheticSource,
    TableSource,
)
from latflow.corpus.recipes import missing_utterances, recipe_manifests
from latflow.corpus.rehearsal import HeadersAlone, Observer, Rehearsal, Script
from latflow.corpus.synthetic import synthesize
from latflow.corpus.table import list_table
from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.parallel import worker_pool

#: Sources that are looked over without writing anything.
Rehearsable = KaldiSource | ManifestSource | FolderSource | TableSource | CustomSource
_NO_AUDIO = "its audio file does not exist"


@dataclass(frozen=True)
class _Task:
    """One preparation.

    Attributes:
        split: name of the split.
        folder: where to write; becomes the corpus folder when all went well.
        audio: where audio is written to.
        final_audio: where that lies then.
        seed: of all draws.
        threads: jobs at the same time.
        max_skipped_fraction: largest share of utterances that may be skipped.
        ledger: where skipped utterances are noted.
        vocabulary: words of the lexicon.
        speakers: dictionaries of speakers, see `WordForms`.
        rehearsal: collects what would be written and refused, of a task that writes
            nothing; None of others.
    """

    split: str
    folder: Path
    audio: Path
    final_audio: Path
    seed: int
    threads: int
    max_skipped_fraction: float
    ledger: Ledger
    vocabulary: Collection[str]
    speakers: Mapping[str, str]
    rehearsal: Script | None = None

    def writer(self, origin: str | Path, checks: GivenSource) -> CorpusWriter:
        """Return the writer of a source's corpus folder.

        Args:
            origin: file or folder that errors name.
            checks: how strictly utterances are taken, and words are spelled.
        """
        forms = WordForms(self.vocabulary, checks.text_rules, self.speakers)
        given = (self.folder, origin, checks, self.ledger, forms)
        if self.rehearsal is None:
            return CorpusWriter(*given)
        return self.rehearsal.begin(*given)

    def audio_folder(self, source: GivenSource) -> AudioFolder:
        """Return the folder for audio of a source, and whether its commands are run."""
        may_run = isinstance(source, KaldiSource | ManifestSource | CutSource)
        allow_commands = may_run and source.allow_commands
        kind = AudioFolder if self.rehearsal is None else HeadersAlone
        return kind(self.audio, self.final_audio, allow_commands)


class _Fault(NamedTuple):
    """An utterance that cannot be used."""

    utterance: str
    reason: str
    file: str | Path
    remedy: str


def prepare_corpus(
    source: Source,
    split: str,
    out_dir: str | Path,
    *,
    seed: int,
    threads: int,
    max_skipped_fraction: float,
    vocabulary: Collection[str] = (),
    speakers: Mapping[str, str] | None = None,
) -> None:
    """Write the manifests of one split.

    Args:
        source: of recordings and transcripts.
        split: name of the split, e.g. `train`.
        out_dir: folder for `recordings.jsonl.gz`, `supervisions.jsonl.gz`,
            `cuts.jsonl.gz` and `ledger.jsonl` (synthetic speech, and cuts that are not
            parts of recordings: also `audio/`); replaced if it exists, untouched if
            anything fails.
        max_skipped_fraction: largest share of utterances that may be skipped.
        vocabulary: words of the lexicon, whose spelling transcripts take on; empty for
            none.
        speakers: dictionaries of speakers, see `WordForms`.

    Raises:
        UserError: the source or an utterance is faulty; names file and remedy.
    """
    final = Path(os.path.abspath(out_dir))
    with atomic_directory(out_dir) as folder:
        task = _Task(
            split=split,
            folder=folder,
            audio=folder / "audio",
            final_audio=final / "audio",
            seed=seed,
            threads=threads,
            max_skipped_fraction=max_skipped_fraction,
            ledger=Ledger("prepare_corpus"),
            vocabulary=vocabulary,
            speakers=speakers or {},
        )
        _prepare(task, source)


def rehearse_corpus(
    source: Rehearsable,
    observe: Observer,
    *,
    vocabulary: Collection[str],
    max_skipped_fraction: float,
    speakers: Mapping[str, str] | None = None,
    threads: int = 4,
) -> tuple[Rehearsal, Ledger]:
    """Look what `prepare_corpus` would write and refuse; audio is not decoded.

    Args:
        source: of recordings and transcripts.
        observe: gets each good utterance, and its recording.
        vocabulary: words of the lexicon; empty for none.
        max_skipped_fraction: largest share of utterances that may be skipped.
        speakers: dictionaries of speakers, see `WordForms`.
        threads: files looked at at a time.

    Returns:
        (what was refused, what was noted).

    Raises:
        UserError: the source cannot be read at all.
    """
    script = Script(observe)
    with tempfile.TemporaryDirectory() as scratch:
        task = _Task(
            split="",
            folder=Path(scratch),
            audio=Path(scratch),
            final_audio=Path(scratch),
            seed=0,
            threads=threads,
            max_skipped_fraction=max_skipped_fraction,
            ledger=Ledger("prepare_corpus", is_quiet=True),
            vocabulary=vocabulary,
            speakers=speakers or {},
            rehearsal=script,
        )
        _prepare(task, source)
    assert script.writer is not None
    return script.writer, task.ledger


def _prepare(task: _Task, source: Source) -> None:
    """Write the manifests of a source."""
    match source:
        case SyntheticSource():
            _prepare_synthetic(task, source)
        case KaldiSource():
            read_kaldi_dir(
                source.path,
                lambda origin: task.writer(origin, source),
                checks=source,
                audio=task.audio_folder(source),
                threads=task.threads,
                max_skipped_fraction=task.max_skipped_fraction,
            )
        case LhotseSource():
            _prepare_lhotse(task, source)
        case ManifestSource():
            _prepare_manifests(task, source)
        case CutSource():
            _prepare_cuts(task, source)
        case FolderSource() | TableSource() | CustomSource():
            _prepare_listed(task, source)
        case Hdf5Source():
            read_hdf_corpus(
                source,
                task.folder,
                ledger=task.ledger,
                max_skipped_fraction=task.max_skipped_fraction,
            )
        case CombinedSource():
            _prepare_combined(task, source)


def _prepare_synthetic(task: _Task, source: SyntheticSource) -> None:
    """Speak the demo corpus."""
    with (
        CorpusWriter(
            task.folder, task.final_audio.parent, GivenSource(), task.ledger
        ) as writer,
        Spool(task.folder, SupervisionSegment.from_dict) as supervisions,
        worker_pool(task.threads) as pool,
    ):
        jobs = _synthetic_jobs(task, source, supervisions, pool)
        writer.add_recordings(jobs, threads=1, total=source.utterances)
        writer.add_utterances(iter(supervisions), total=len(supervisions))
        writer.finish(max_skipped_fraction=task.max_skipped_fraction)


def _synthetic_jobs(
    task: _Task,
    source: SyntheticSource,
    supervisions: Spool[SupervisionSegment],
    pool: Executor,
) -> Iterator[RecordingJob]:
    """Yield spoken recordings, and keep their supervisions."""
    for recording, supervision in synthesize(
        source,
        task.split,
        task.audio,
        task.final_audio,
        seed=task.seed,
        pool=pool,
    ):
        supervisions.add(supervision)
        yield recording.id, partial(Found, recording)  # just made


class _ManifestIds:
    """Fills the spools of a source's manifests; ids with blanks are changed.

    Attributes:
        named: recordings of which an utterance names a channel.

    Args:
        ledger: where changed ids are noted.
        recordings: to be filled.
        supervisions: likewise.
    """

    def __init__(
        self,
        ledger: Ledger,
        recordings: Spool[Recording],
        supervisions: Spool[SupervisionSegment],
    ) -> None:
        self._recordings = recordings
        self._supervisions = supervisions
        self.named: set[str] = set()
        self._names = Ids("recording", ledger, recordings)
        self._utterances = Ids("utterance", ledger, supervisions)

    def recording(self, given: str) -> str:
        """Return the id of a recording."""
        return self._names.name(given)

    def fill(self, recordings: Iterable[Recording], file: str | Path) -> None:
        """Add recordings."""
        for rec in recordings:
            name = self.recording(rec.id)
            renamed = rec if name == rec.id else replace(rec, id=name)
            self._recordings.add(renamed, file=file)

    def fill_utterances(
        self, supervisions: Iterable[SupervisionSegment], file: str | Path
    ) -> None:
        """Add utterances of recordings that have been added."""
        for sup in supervisions:
            name = self._utterances.name(sup.id)
            recording = self._names.known(sup.recording_id)
            if sup.channel != 0:  # which Lhotse gives to those that name none
                self.named.add(recording)
            if (name, recording) != (sup.id, sup.recording_id):
                sup = replace(sup, id=name, recording_id=recording)  # noqa: PLW2901
            self._supervisions.add(sup, file=file)


def _prepare_manifests(task: _Task, source: ManifestSource) -> None:
    """Read Lhotse manifests."""
    recordings, supervisions = source.recordings, source.supervisions
    with spools(task.folder) as (recs, sups):
        ids = _ManifestIds(task.ledger, recs, sups)
        ids.fill(read_recordings(recordings), recordings)
        ids.fill_utterances(read_supervisions(supervisions), supervisions)
        _write_checked(task, source, recs, sups, supervisions, [], ids.named)


def _prepare_cuts(task: _Task, source: CutSource) -> None:
    """Take the cuts of a CutSet as utterances; cuts may share recordings."""
    rejected: list[_Fault] = []
    with spools(task.folder) as (recs, sups), worker_pool(task.threads) as pool:
        ids = _ManifestIds(task.ledger, recs, sups)
        for one in read_cut_set(
            source.path,
            task.audio_folder(source),
            pool=pool,
            ahead=2 * task.threads,
        ):
            if one.fault is not None:
                fault = one.fault
                rejected.append(_Fault(one.id, fault.reason, source.path, fault.remedy))
                continue
            assert one.recording is not None
            assert one.supervision is not None
            recording_id = ids.recording(one.recording.id)
            if recording_id not in recs:
                ids.fill([one.recording], source.path)
            elif recs[recording_id].sources != one.recording.sources:
                raise UserError(
                    f"two recordings have the id {one.recording.id}",
                    file=source.path,
                    utterance=one.id,
                    remedy="give each its own id",
                )
            ids.fill_utterances([one.supervision], source.path)
        _write_checked(task, source, recs, sups, source.path, rejected, ids.named)


def _prepare_lhotse(task: _Task, source: LhotseSource) -> None:
    """Prepare a corpus by Lhotse's recipe."""
    lost: list[_Fault] = []
    with spools(task.folder) as (recs, sups):
        ids = _ManifestIds(task.ledger, recs, sups)
        for part, (recordings, supervisions) in recipe_manifests(
            source.recipe,
            source.root,
            source.parts,
            download=source.download,
            arguments=source.arguments,
        ):
            file = Path(source.root, part)
            ids.fill(recordings, file)
            ids.fill_utterances(supervisions, file)
            lost += [
                _Fault(utt_id, _NO_AUDIO, path, "restore the file, remove the line")
                for path, utt_id in missing_utterances(
                    source.recipe, source.root, part, recordings
                )
            ]
        _write_checked(task, source, recs, sups, source.root, lost, ids.named)


def _prepare_listed(
    task: _Task, source: FolderSource | TableSource | CustomSource
) -> None:
    """Prepare a corpus that is listed by file."""
    with Listing(task.folder) as listing:
        if isinstance(source, FolderSource):
            list_folder(source, listing)
        elif isinstance(source, TableSource):
            list_table(source, listing)
        else:
            list_custom(source, listing)
        with task.writer(source.path, source) as writer:
            write_listing(
                listing,
                writer,
                task.ledger,
                verify=source.verify_audio,
                threads=task.threads,
                max_skipped_fraction=task.max_skipped_fraction,
            )


def _prepare_combined(task: _Task, source: CombinedSource) -> None:
    """Prepare several sources, and write them as one."""
    with tempfile.TemporaryDirectory(dir=task.folder) as parts:
        folders = {name: Path(parts, name) for name in source.sources}
        for name, part in source.sources.items():
            folders[name].mkdir()
            one = replace(
                task,
                folder=folders[name],
                audio=task.audio / name,
                final_audio=task.final_audio / name,
                ledger=Ledger("prepare_corpus"),
            )
            _prepare(one, part)
        combine_corpora(folders, task.folder)


def _write_checked(
    task: _Task,
    checks: GivenSource,
    recordings: Spool[Recording],
    supervisions: Spool[SupervisionSegment],
    origin: str | Path,
    rejected: list[_Fault],
    named: set[str],
) -> None:
    """Check and write recordings and supervisions of a source.

    Args:
        checks: how strictly utterances are taken.
        origin: file or folder that errors name.
        rejected: utterances that cannot be used.
        named: see `CorpusWriter`.
    """
    audio = task.audio_folder(checks)
    jobs: Iterator[RecordingJob] = (
        (rec.id, partial(_confirmed, audio, rec, verify=checks.verify_audio))
        for rec in recordings
    )
    with task.writer(origin, checks) as writer:
        for fault in rejected:
            writer.reject(
                fault.utterance, fault.reason, file=fault.file, remedy=fault.remedy
            )
        writer.named |= named
        writer.add_recordings(jobs, threads=task.threads, total=len(recordings))
        writer.add_utterances(iter(supervisions), total=len(supervisions))
        writer.finish(max_skipped_fraction=task.max_skipped_fraction)


def _confirmed(audio: AudioFolder, recording: Recording, *, verify: bool) -> Found:
    """Check a recording, unless it was just made."""
    if any(Path(str(s.source)).is_relative_to(audio.final) for s in recording.sources):
        return Found(recording)
    return audio.confirm(_with_absolute_paths(recording), verify=verify)


def _with_absolute_paths(recording: Recording) -> Recording:
    """Return the recording with paths that hold from any working directory."""
    sources = [
        replace(s, source=os.path.abspath(str(s.source))) if s.type == "file" else s
        for s in recording.sources
    ]
    return replace(recording, sources=sources)
