"""One pass over the utterances of a split, for the doctor.

`survey_source` reads text files, manifests and the headers of audio files; it decodes
none, and runs none of the commands that `wav.scp` may hold.

Public: `Dictionary`, `Survey`, `survey_source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lhotse import AudioSource

from latflow.corpus.audio import AudioFacts, BadAudio, examine, refuse_others
from latflow.corpus.cut_set import supervisions_of
from latflow.corpus.folder import list_folder
from latflow.corpus.hdf5 import read_sequences
from latflow.corpus.kaldi_dir import KaldiDir
from latflow.corpus.listing import Listing
from latflow.corpus.manifests import read_recordings, read_supervisions
from latflow.corpus.options import (
    CombinedSource,
    CutSource,
    DevSource,
    FolderSource,
    GivenSource,
    Hdf5Source,
    KaldiSource,
    LhotseSource,
    ManifestSource,
    TableSource,
)
from latflow.corpus.table import list_table
from latflow.corpus.words import TextRules, WordForms, no_word_known
from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.features.options import Extraction
from latflow.lang.lexicon import Lexicon
from latflow.lang.options import LangOptions
from latflow.lang.special_words import SpecialNames
from latflow.workflow.audio_findings import (
    Faults,
    ManifestChannels,
    channels_of_kaldi,
    several_channels,
)
from latflow.workflow.findings import MAX_EXAMPLES, Finding, finding_of, some

OOV_WARNING_SHARE = 0.01  # of the running words of a training set
# Frames that Kaldi's silence topologies need at least (the middle states are ergodic).
MIN_SILENCE_FRAMES = 3


@dataclass(frozen=True)
class Dictionary:
    """A lexicon, as far as the doctor needs it."""

    lexicon: Lexicon
    file: str
    lang: LangOptions
    names: SpecialNames
    phones: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, lexicon: Lexicon, file: str, lang: LangOptions, names: SpecialNames
    ) -> Dictionary:
        """Count the phones of each word's shortest pronunciation."""
        shortest: dict[str, int] = {}
        for entry in lexicon.entries:
            known = shortest.get(entry.word, len(entry.phones))
            shortest[entry.word] = min(known, len(entry.phones))
        return cls(lexicon, file, lang, names, shortest)

    def knows(self, word: str) -> bool:
        """Tell whether a word has a pronunciation, or the lang stage adds it."""
        made = (self.names.oov_word, self.names.silence_word)
        return word in self.phones or word in made

    def min_frames(self, words: Iterable[str]) -> int:
        """Return the fewest frames of a path through the HMMs of the words."""
        states = self.lang.num_nonsilence_states
        unknown = min(MIN_SILENCE_FRAMES, self.lang.num_silence_states)
        return sum(
            states * self.phones[word] if word in self.phones else unknown
            for word in words
        )


class Survey:
    """Counts what one pass over the utterances of a split brings to light.

    Args:
        file: the file or folder that findings name.
        dictionary: the lexicon, if there is one.
        features: how frames lie in the audio.
    """

    def __init__(
        self,
        split: str,
        file: str,
        dictionary: Dictionary | None,
        features: Extraction,
    ) -> None:
        self.split = split
        self.file = file
        self._dictionary = dictionary
        self._times = FrameTimes.of(features, features.sample_rate)
        self.num_utterances = 0
        self.num_words = 0
        self.seconds = 0.0
        self.oov: Counter[str] = Counter()
        self.words: set[str] = set()
        self.speakers: set[str] = set()
        self.ids: set[str] = set()
        self.sample_rates: Counter[int] = Counter()
        self.too_short: list[str] = []
        self.num_too_short = 0
        self._forms: dict[TextRules, WordForms] = {}

    def words_of(self, text: str | None, source: GivenSource) -> list[str]:
        """Return the words of a transcript as the lexicon spells them."""
        rules = source.text_rules
        if rules not in self._forms:
            vocabulary = self._dictionary.phones if self._dictionary else ()
            self._forms[rules] = WordForms(vocabulary, rules)
        return self._forms[rules].words(text or "")

    def add(
        self,
        utt_id: str,
        speaker: str | None,
        words: list[str],
        *,
        duration: float | None = None,
        sample_rate: int | None = None,
    ) -> None:
        """Take note of one utterance.

        Args:
            duration: seconds, if known.
            sample_rate: Hz, if known.
        """
        self.num_utterances += 1
        self.num_words += len(words)
        self.ids.add(utt_id)
        self.words.update(words)
        if speaker:
            self.speakers.add(speaker)
        if sample_rate is not None:
            self.sample_rates[sample_rate] += 1
        if self._dictionary is not None:
            self.oov.update(w for w in words if not self._dictionary.knows(w))
        if duration is not None:
            self.seconds += duration
            self._note_if_short(utt_id, words, duration)

    def _note_if_short(self, utt_id: str, words: list[str], duration: float) -> None:
        """Keep utterances that hold fewer frames than their transcript needs."""
        frames = self._times.num_frames(duration)
        needed = 1 if self._dictionary is None else self._dictionary.min_frames(words)
        if frames < max(needed, 1):
            self.num_too_short += 1
            if len(self.too_short) < MAX_EXAMPLES:
                self.too_short.append(f"{utt_id} ({frames} of {needed} frames)")

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with this split by itself."""
        for forms in self._forms.values():
            if error := no_word_known(forms, self.file):
                yield finding_of(error)
            if changed := forms.summary():
                what = f"{self.split}: words are changed: {changed}"
                remedy = "see case, punctuation, clitics, compounds of the source"
                yield Finding("note", self.file, what, remedy)
        if self.num_too_short:
            yield Finding(
                "warning",
                self.file,
                f"{self.split}: {self.num_too_short} utterances are shorter than their "
                f"shortest pronunciation: {some(self.too_short)}",
                "check transcripts and segment times; training skips these",
            )
        if self.oov:
            tokens = self.oov.total()
            share = tokens / self.num_words
            frequent = [f"{word} ({n})" for word, n in self.oov.most_common(5)]
            is_train = self.split == "train"
            remedy = "each is one error or more; add them to lexicon and LM"
            if is_train and self._gets_pronunciations:
                remedy = "they get generated ones (lang.g2p)"
            elif is_train:
                remedy = (
                    "add them to the lexicon, or set lang.g2p.num_pronunciations "
                    "(latflow align: --g2p)"
                )
            is_lost = is_train and not self._gets_pronunciations
            yield Finding(
                "warning" if is_lost and share > OOV_WARNING_SHARE else "note",
                self.file,
                f"{self.split}: {len(self.oov)} words without pronunciation, {tokens} "
                f"of {self.num_words} running words ({100 * share:.2f} %), most "
                f"frequent: {some(frequent, len(self.oov))}",
                remedy,
            )

    @property
    def _gets_pronunciations(self) -> bool:
        """Return whether words that the lexicon lacks get generated pronunciations."""
        dictionary = self._dictionary
        return dictionary is not None and dictionary.lang.g2p.num_pronunciations > 0


def survey_source(source: DevSource, survey: Survey) -> list[Finding]:
    """Survey the utterances of a source.

    Args:
        source: source of recordings and transcripts.
        survey: is told of every utterance that can be read.

    Returns:
        Findings of what is wrong with the source's files.
    """
    findings: list[Finding] = []
    try:
        if isinstance(source, KaldiSource):
            findings.extend(_read_kaldi(source, survey))
        elif isinstance(source, ManifestSource):
            findings.extend(_read_manifests(source, survey))
        elif isinstance(source, CutSource):
            findings.extend(_read_cuts(source, survey))
        elif isinstance(source, FolderSource | TableSource):
            findings.extend(_read_listing(source, survey))
        elif isinstance(source, Hdf5Source):
            _read_sequences(source, survey)
        elif isinstance(source, LhotseSource):
            findings.extend(_look_for_recipe(source, survey))
        elif isinstance(source, CombinedSource):
            for part in source.sources.values():
                findings.extend(survey_source(part, survey))
    except UserError as error:
        findings.append(finding_of(error))
    return findings


def _read_sequences(source: Hdf5Source, survey: Survey) -> None:
    """Read the transcripts of HDF5 files."""
    for utt_id, duration, text in read_sequences(source):
        survey.add(utt_id, None, text.split(), duration=duration)


def _read_cuts(source: CutSource, survey: Survey) -> Iterator[Finding]:
    """Read the transcripts of a CutSet."""
    faults = Faults()
    allow_commands = source.allow_commands
    for cut, told, fault in supervisions_of(source.path, allow_commands=allow_commands):
        if fault is not None:
            faults.add(fault.reason, fault.remedy, cut.id)
        speaker, text = (told.speaker, told.text) if told else (None, None)
        words = survey.words_of(text, source)
        survey.add(cut.id, speaker, words, duration=cut.duration)
    yield from faults.findings(source.path, survey.split)


def _read_kaldi(source: KaldiSource, survey: Survey) -> Iterator[Finding]:
    """Read the text files of a Kaldi directory, and look for its audio."""
    has_speakers = source.speaker == "given"
    has_text = source.transcripts
    with KaldiDir(source.path, has_speakers=has_speakers, has_text=has_text) as kaldi:
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
        yield from _look_at_audio(kaldi, facts, source)
        yield from _read_utterances(kaldi, facts, survey, source)
        yield from channels_of_kaldi(kaldi, facts, survey, source)


def _read_utterances(
    kaldi: KaldiDir,
    facts: Mapping[str, AudioFacts],
    survey: Survey,
    source: KaldiSource,
) -> Iterator[Finding]:
    """Survey the utterances; those without a transcript or a speaker are findings."""
    silent, speakerless = [], []
    for utt_id in kaldi.utterances:
        words = survey.words_of(kaldi.transcript(utt_id), source)
        speaker = kaldi.utt2spk.get(utt_id) if kaldi.utt2spk else None
        if source.transcripts and not words:
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
            str(kaldi.folder / "text"),
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
    kaldi: KaldiDir, facts: dict[str, AudioFacts], source: KaldiSource
) -> Iterator[Finding]:
    """Read the headers; recordings whose file is missing, empty or no audio."""
    faults, notes = Faults(), Faults("warning")
    for recording_id in kaldi.wav:
        try:
            audio = kaldi.source(recording_id)
            refuse_others(audio.type, allow_commands=source.allow_commands)
            if audio.type == "file":
                facts[recording_id] = examine(audio, verify=False)
                notes.add_notes(facts[recording_id], recording_id)
        except BadAudio as fault:
            path = kaldi.folder / str(kaldi.wav[recording_id])
            reason = fault.reason.replace(f"audio file {path}", "audio file")
            faults.add(reason, fault.remedy, recording_id)
    yield from faults.findings(str(kaldi.wav.path))
    yield from notes.findings(str(kaldi.wav.path))


def _read_manifests(source: ManifestSource, survey: Survey) -> Iterator[Finding]:
    """Read the transcripts of Lhotse manifests, and what these say of the audio."""
    channels = ManifestChannels(source)
    if Path(source.recordings).is_file():
        channels.add_recordings(read_recordings(source.recordings))
    else:
        yield finding_of(
            UserError("no such file", file=source.recordings, remedy="check the path")
        )
    for supervision in read_supervisions(source.supervisions):
        words = survey.words_of(supervision.text, source)
        duration = supervision.duration
        survey.add(supervision.id, supervision.speaker, words, duration=duration)
        channels.add_utterance(supervision)
    yield from channels.findings(survey)


def _read_listing(
    source: FolderSource | TableSource, survey: Survey
) -> Iterator[Finding]:
    """Read the transcripts beside audio files, and the headers of these."""
    with Listing() as listing:
        if isinstance(source, FolderSource):
            list_folder(source, listing)
        else:
            list_table(source, listing)
        yield from _renamed(listing, source.path)
        faults: dict[tuple[str, str], list[str]] = {}
        for fault in listing.faults:
            reason = fault.reason.partition(" (")[0]
            faults.setdefault((reason, fault.remedy), []).append(fault.utterance)
        facts: dict[str, AudioFacts] = {}
        notes = Faults("warning")
        for file in listing.files:
            try:
                source_of = AudioSource("file", [0], file.path)
                facts[file.id] = examine(source_of, verify=False)
                notes.add_notes(facts[file.id], file.path)
            except BadAudio as fault:
                reason = fault.reason.replace(f"audio file {file.path}", "audio file")
                faults.setdefault((reason, fault.remedy), []).append(file.path)
        for part in listing.parts:
            audio, duration, rate = facts.get(part.recording_id), None, None
            if audio is not None:
                end, rate = part.end, audio.sample_rate
                last = audio.num_samples / rate
                duration = (last if end is None else min(end, last)) - part.start
            speaker = part.speaker if source.speaker == "given" else None
            words = survey.words_of(part.text, source)
            if source.transcripts and not words:
                key = "utterance without words", "add the words, or remove the files"
                faults.setdefault(key, []).append(part.id)
            survey.add(part.id, speaker, words, duration=duration, sample_rate=rate)
    severity = "error" if source.on_bad_utterance == "fail" else "warning"
    for (reason, remedy), where in faults.items():
        what = f"{survey.split}: {reason} ({len(where)}): {some(where)}"
        yield Finding(severity, source.path, what, remedy)
    yield from notes.findings(source.path, survey.split)
    several = (name for name, audio in facts.items() if audio.num_channels > 1)
    yield from several_channels(several, survey, source)
    if source.transcripts and not survey.num_words and severity == "warning":
        what = f"{survey.split}: no utterance with words is left"
        yield Finding("error", source.path, what, "mend what the warnings name")


def _renamed(listing: Listing, file: str) -> Iterator[Finding]:
    """Find files whose ids are not what they are called."""
    for note in listing.notes.entries:
        yield Finding("note", file, note.reason, "rename the file for another id")


def _look_for_recipe(source: LhotseSource, survey: Survey) -> Iterator[Finding]:
    """Look whether the corpus of a Lhotse recipe is there."""
    root = Path(source.root)
    if not root.is_dir() and not source.download:
        yield Finding(
            "error",
            str(root),
            f"{survey.split}: no corpus {source.recipe} here",
            "set root to the folder that holds it, or set download: true",
        )
