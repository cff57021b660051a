"""Recordings aligned one by one with a package, without a workflow.

`latflow align-one` and `Recognizer.align` are made of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from lhotse import AudioSource, MonoCut, SupervisionSegment

from latflow.align.boundaries import refine_boundaries
from latflow.align.boundary_model import BoundaryModel
from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.export import export_alignments
from latflow.align.forms import ExportFormat
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet, AlignedUtterance, PhoneTimes, Timer
from latflow.corpus.audio import (
    SILENT_BELOW,
    BadAudio,
    check_channel,
    examine,
    probe,
)
from latflow.corpus.folder_files import is_audio_name
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import read_cuts, text_of
from latflow.corpus.options import FolderSource
from latflow.corpus.tokenizers import make_tokenizer
from latflow.corpus.words import TextRules, WordForms
from latflow.errors import UserError
from latflow.gmm.options import AlignAdaptedOptions
from latflow.lang.directory import Lang
from latflow.lang.extension import extend_lang, read_with_phones_of
from latflow.lang.options import LangOptions
from latflow.lang.vocabulary import prepare_corpus
from latflow.ledger import read_ledger
from latflow.serving.aligning import AlignmentTask, align_with
from latflow.serving.package import GmmPackage, Model

_TEXTS = (".txt", ".lab", ".TextGrid")


class RecordingAligner:
    """Aligns recordings with a package and a lexicon; shared by threads.

    Boundaries are those of frames, or, of a package that has learnt them, as it sets
    them: to refine them otherwise takes a corpus.

    Args:
        package: a GMM system or a network.
        lexicon: pronunciations in the phones of the package.
        search: beams; None for the usual ones.
        tokenizer: of texts, see `latflow.corpus.tokenizers`.

    Raises:
        UserError: the lexicon is faulty, or the tokenizer cannot be loaded.
    """

    def __init__(
        self,
        package: Model | GmmPackage,
        lexicon: Path,
        search: AlignAdaptedOptions | None = None,
        tokenizer: str = "blanks",
    ) -> None:
        self._package, self._lexicon = package, lexicon
        make_tokenizer(tokenizer)
        self._tokenizer = tokenizer
        self._search = search or AlignAdaptedOptions()
        self._scratch = tempfile.mkdtemp(prefix="latflow-align-")
        weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        folder = Path(self._scratch, "lang")
        # Needed are the words of texts, which come later.
        own = package.folder / "lang"
        extend_lang(own, lexicon, folder, options=LangOptions(), needed=())
        self._lang = Lang.load(folder)
        self._timer: Timer | None = None
        self._has_learnt = BoundaryModel.load(package.folder) is not None

    @cached_property
    def words(self) -> frozenset[str]:
        """Words that have a pronunciation."""
        return frozenset(self._lang.lexicon) - {self._lang.oov_word}

    def align(self, audio: Path, text: str, channel: int = 1) -> AlignedUtterance:
        """Find the words and phones of a recording.

        Args:
            audio: the file.
            text: the transcript.
            channel: of the file, from 1.

        Raises:
            UserError: a word has no pronunciation, the file is damaged or has no such
                channel, it is silent and another one is not, or the text does not fit
                the audio.
        """
        rules = TextRules(tokenizer=self._tokenizer)
        words = WordForms(self.words, rules).words(text)
        if unknown := [word for word in words if word not in self.words]:
            raise UserError(
                f"no pronunciation of {', '.join(dict.fromkeys(unknown))}",
                file=self._lexicon,
                remedy="name a lexicon that has one, with the package's phones",
            )
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            folder = Path(scratch)
            cut = _cut_of(audio, " ".join(words), channel)
            with ManifestWriter(folder / "cuts.jsonl.gz") as manifest:
                manifest.write(cut)
            with _naming(audio, "its text", folder):
                aligned, bounds = self._align(folder / "cuts.jsonl.gz", folder, audio)
            ids = AlignmentArchive(aligned.alignments).get(cut.id)
            assert ids is not None
            scores = LogLikes.load(folder / "align/log_likes").get(cut.id)
            times = None if bounds is None else PhoneTimes.load(bounds).get(cut.id)
            timer = self._timer or aligned.timer()  # the same for all recordings
            self._timer = timer
            return timer.time(" ".join(words), ids, cut.duration, scores, times)

    def write(
        self, audio: Path, text: Path, form: ExportFormat
    ) -> tuple[str, list[str]]:
        """Return the alignment of a recording as a file has it.

        Args:
            audio: the recording.
            text: its transcript, `.txt` or `.lab`, or a TextGrid whose labelled
                intervals are utterances of one speaker.
            form: of those with a file a recording.

        Returns:
            (the text of the file; words that the lexicon lacks, which are noise).

        Raises:
            UserError: a file is missing or faulty, the package lacks a phone of a word,
                or the text does not fit the audio.
        """
        _check_files(audio, text)
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            folder = Path(scratch)
            with _naming(audio, text, folder):
                cuts = self._prepare(audio, text, folder)
                texts = " ".join(text_of(cut) for cut in read_cuts(cuts))
                noise = sorted(set(texts.split()) - self.words)
                if noise:  # as in a corpus: not those that were left out
                    own = Lang.load(self._package.folder / "lang")
                    read_with_phones_of(own, self._lexicon, LangOptions(), noise)
                aligned, bounds = self._align(cuts, folder, audio)
            export_alignments(
                aligned,
                folder / "out",
                options=ExportOptions(formats=(form,)),
                log_likes_dir=folder / "align/log_likes",
                boundaries_dir=bounds,
            )
            (written,) = (p for p in (folder / "out" / form).rglob("*") if p.is_file())
            return written.read_text(encoding="utf-8"), noise

    def _prepare(self, audio: Path, text: Path, folder: Path) -> Path:
        """Write the manifests of a recording; return the path of its cuts."""
        corpus = folder / "recording"
        corpus.mkdir()
        # A file that is named is tried whatever its name.
        name = audio.name if is_audio_name(audio.name) else "recording.wav"
        (corpus / name).symlink_to(os.path.abspath(audio))
        shutil.copyfile(text, corpus / f"{Path(name).stem}{text.suffix}")
        prepare_corpus(
            FolderSource(
                path=str(corpus),
                speaker="single",
                tokenizer=self._tokenizer,
                on_bad_utterance="fail",  # a part alone is not an alignment of it
            ),
            "one",
            folder / "corpus",
            seed=0,
            threads=1,
            max_skipped_fraction=0.0,
            vocabulary=self._lexicon,
        )
        return folder / "corpus/cuts.jsonl.gz"

    def _align(
        self, cuts: Path, folder: Path, audio: Path
    ) -> tuple[AlignedSet, Path | None]:
        """Return the alignments of the utterances of a recording, and their times."""
        task = AlignmentTask(
            package_dir=self._package.folder,
            cuts=cuts,
            lexicon=self._lexicon,
            lang=LangOptions(),
            threads=1,
            max_skipped_fraction=1.0,  # one line below says why
            known=self._lang,
        )
        made = folder / "align"
        made.mkdir()
        align_with(self._package, task, made, self._search)
        failed = [
            e for e in read_ledger(made / "ledger.jsonl") if e.action == "skipped"
        ]
        if failed:
            raise UserError(
                f"cannot be aligned: {failed[0].reason}",
                file=audio,
                remedy="compare the text with the recording",
            )
        aligned = AlignedSet(
            alignments=made / "ali.ark",
            statistics=made / "statistics.json",
            cuts=cuts,
            lang_dir=self._lang.folder,
            model_dir=self._package.folder / "model",
        )
        if not self._has_learnt:
            return aligned, None
        bounds = folder / "boundaries"
        refine_boundaries(aligned, bounds, package_dir=self._package.folder)
        return aligned, bounds


@contextmanager
def _naming(audio: Path, text: object, folder: Path) -> Iterator[None]:
    """Name the files that were given where errors name copies in a folder."""
    try:
        yield
    except UserError as error:
        if error.file is not None and not error.file.startswith(str(folder)):
            raise
        copies = str(folder / "recording") + os.sep
        what, remedy = (
            error.what.replace(copies, ""),
            f"check the recording, and {text}",
        )
        raise UserError(what, file=audio, remedy=remedy) from None


def _cut_of(audio: Path, text: str, channel: int) -> MonoCut:
    """Return a channel of a recording, with its text.

    Raises:
        UserError: the file is damaged, or this channel is silent.
    """
    name = audio.stem
    source = AudioSource("file", [0], str(audio))
    try:
        recording, _ = probe(name, source, verify=False)
        check_channel(audio, recording.num_channels, channel)
        if recording.num_channels > 1:
            levels = examine(source, verify=True).levels
            if levels[channel - 1] <= max(levels) * SILENT_BELOW:
                raise BadAudio(
                    f"channel {channel} is silent",
                    f"name the one that speaks, from 1 to {len(levels)}",
                )
    except BadAudio as fault:
        raise UserError(fault.reason, file=audio, remedy=fault.remedy) from None
    duration = recording.duration
    supervision = SupervisionSegment(name, name, 0.0, duration, text=text, speaker=name)
    supervision.channel = channel - 1
    # Not `to_cut`, which takes all channels of the file.
    return MonoCut(name, 0.0, duration, channel - 1, [supervision], recording=recording)


def _check_files(audio: Path, text: Path) -> None:
    """Refuse files that are not there, and texts in other forms."""
    for path in (audio, text):
        if not path.is_file():
            raise UserError("no such file", file=path, remedy="check the path")
    if text.suffix not in _TEXTS:
        raise UserError(
            "a transcript ends in .txt, .lab or .TextGrid",
            file=text,
            remedy="rename it",
        )
