"""One pass over the utterances of a split, for the doctor.

`survey_source` prepares a corpus without writing it (`latflow.corpus.rehearsal`): it
reads text files, manifests and the headers of audio files, decodes none, and runs none
of the commands that `wav.scp` may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import SEVERAL_CHANNELS, SKIP, channel_remedy
from latflow.corpus.cut_set import supervisions_of
from latflow.corpus.hdf5 import read_sequences
from latflow.corpus.ids import plain_id
from latflow.corpus.options import (
    CombinedSource,
    CutSource,
    DevSource,
    Hdf5Source,
    LhotseSource,
)
from latflow.corpus.prepare import Rehearsable, rehearse_corpus
from latflow.corpus.words import WordForms, no_word_known
from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.features.options import Extraction
from latflow.lang.lexicon import Lexicon
from latflow.lang.options import LangOptions
from latflow.lang.special_words import SpecialNames
from latflow.ledger import Ledger
from latflow.workflow.findings import MAX_EXAMPLES, Finding, finding_of, some

OOV_WARNING_SHARE = 0.01  # of the running words of a training set
TAIL_S = 15.0  # seconds without a transcript at the end of a recording
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
        """Return whether a word has a pronunciation, or the lang stage adds it."""
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
        self.num_unheard = 0
        self.oov: Counter[str] = Counter()
        self.oov_utterances: dict[str, list[str]] = {}
        self.words: set[str] = set()
        self.speakers: set[str] = set()
        self.heard: set[str] = set()
        self.ids: set[str] = set()
        self.sample_rates: Counter[int] = Counter()
        self.too_short: list[str] = []
        self.num_too_short = 0

    @property
    def vocabulary(self) -> Collection[str]:
        """Words of the lexicon; none where there is none."""
        return self._dictionary.phones.keys() if self._dictionary else ()

    @property
    def dictionaries(self) -> Mapping[str, str]:
        """Dictionaries of speakers who have one of their own."""
        return self._dictionary.lexicon.speakers if self._dictionary else {}

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
            unknown = [w for w in words if not self._dictionary.knows(w)]
            self.oov.update(unknown)
            for word in dict.fromkeys(unknown):
                self.oov_utterances.setdefault(word, []).append(utt_id)
        if duration is None:
            self.num_unheard += 1
        else:
            self.seconds += duration
            self._note_if_short(utt_id, words, duration)

    def hours_text(self) -> str:
        """Return the hours of speech, as far as they are known; no pipe is run."""
        if not self.num_unheard:
            return f"{self.seconds / 3600:.2f} hours"
        if self.num_unheard == self.num_utterances:
            return "hours unknown, since commands (pipes) are not run"
        known = f"{self.seconds / 3600:.2f} hours without those of"
        return f"{known} {self.num_unheard} utterances whose commands are not run"

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
        if self.num_too_short:
            yield Finding(
                "warning",
                self.file,
                f"{self.split}: {self.num_too_short} utterances are shorter than their "
                f"shortest pronunciation: {some(self.too_short)}",
                "check transcripts and segment times; training skips these",
            )
        absent = sorted(self.dictionaries.keys() - self.heard)
        if absent and self.split == "train" and self._dictionary is not None:
            yield Finding(
                "warning",
                self._dictionary.file,
                f"speakers with a dictionary who are not in {self.split} "
                f"({len(absent)}): {some(absent)}",
                "speakers are " + (some(sorted(self.heard)) or "not named"),
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


def survey_source(
    source: DevSource, survey: Survey, *, max_skipped_fraction: float = 1.0
) -> list[Finding]:
    """Survey the utterances of a source.

    Args:
        source: source of recordings and transcripts.
        survey: gets every utterance that can be read.
        max_skipped_fraction: share of the utterances that may be skipped.

    Returns:
        Findings of what is wrong with the source's files.
    """
    findings: list[Finding] = []
    try:
        if isinstance(source, Rehearsable):
            findings.extend(_rehearse(source, survey, max_skipped_fraction))
        elif isinstance(source, CutSource):
            findings.extend(_read_cuts(source, survey))
        elif isinstance(source, Hdf5Source):
            _read_sequences(source, survey)
        elif isinstance(source, LhotseSource):
            findings.extend(_look_for_recipe(source, survey))
        elif isinstance(source, CombinedSource):
            for part in source.sources.values():
                findings.extend(
                    survey_source(
                        part, survey, max_skipped_fraction=max_skipped_fraction
                    )
                )
    except UserError as error:
        findings.append(finding_of(error))
    return findings


def _rehearse(
    source: Rehearsable,
    survey: Survey,
    max_skipped_fraction: float,
) -> Iterator[Finding]:
    """Prepare the corpus without writing it; find what is refused and noted."""
    tails: dict[str, float] = {}

    def observe(supervision: SupervisionSegment, recording: Recording | None) -> None:
        duration = rate = None
        if recording is not None:
            is_heard = all(one.type != "command" for one in recording.sources)
            is_part = supervision.duration < recording.duration
            duration = supervision.duration if is_heard or is_part else None
            rate = recording.sampling_rate if is_heard else None
            if is_heard and is_part:
                after = recording.duration - supervision.start - supervision.duration
                known = tails.get(recording.id, after)
                tails[recording.id] = min(known, after)
        speaker = supervision.speaker if source.speaker == "given" else None
        survey.heard.add(plain_id(supervision.speaker or ""))
        words = (supervision.text or "").split()
        survey.add(supervision.id, speaker, words, duration=duration, sample_rate=rate)

    rehearsal, ledger = rehearse_corpus(
        source,
        observe,
        vocabulary=survey.vocabulary,
        speakers=survey.dictionaries,
        max_skipped_fraction=max_skipped_fraction,
    )
    for fault in rehearsal.faults.values():
        what = f"{fault.reason} ({len(fault.names)}): {some(fault.names)}"
        remedy = fault.remedy
        if rehearsal.severity == "error":
            remedy = f"{remedy}, {SKIP}"
        what = f"{survey.split}: {what}"
        yield Finding(rehearsal.severity, fault.file or survey.file, what, remedy)
    if rehearsal.error is not None:
        found = finding_of(rehearsal.error)
        yield replace(found, file=found.file or survey.file)
    yield from _noted(ledger, survey, channel_remedy(source))
    yield from _tails(tails, survey)
    if rehearsal.forms is not None and (changed := rehearsal.forms.summary()):
        what = f"{survey.split}: words are changed: {changed}"
        remedy = "see case, punctuation, clitics, compounds of the source"
        yield Finding("note", survey.file, what, remedy)


def _tails(tails: Mapping[str, float], survey: Survey) -> Iterator[Finding]:
    """Find recordings that continue for long after their last utterance.

    Args:
        tails: seconds that are left, by recording.
    """
    long = [f"{name} ({left:.0f} s)" for name, left in tails.items() if left > TAIL_S]
    if long:
        what = f"recordings go on for long after their last utterance ({len(long)})"
        remedy = "is there speech? write it into the transcripts"
        yield Finding(
            "note", survey.file, f"{survey.split}: {what}: {some(long)}", remedy
        )


def _noted(ledger: Ledger, survey: Survey, remedy: str) -> Iterator[Finding]:
    """Find what is taken otherwise than it stands there."""
    found: dict[str, list[str]] = {}
    for entry in ledger.entries:
        if entry.action in {"noted", "truncated"}:
            kind = entry.reason.partition(" (")[0] if entry.action == "noted" else ""
            kind = kind or "utterances end after their recordings, and are cut"
            found.setdefault(kind, []).append(entry.utterance)
    for reason, names in found.items():
        what = f"{survey.split}: {reason} ({len(names)}): {some(names)}"
        advice = remedy if reason == SEVERAL_CHANNELS else "fix the files if you can"
        yield Finding("warning", survey.file, what, advice)
    renamed = [e.reason for e in ledger.entries if e.action == "renamed"]
    if renamed:
        what = f"{survey.split}: ids are changed ({len(renamed)}): {some(renamed)}"
        yield Finding("note", survey.file, what, "rename them for other ids")


def _read_sequences(source: Hdf5Source, survey: Survey) -> None:
    """Read the transcripts of HDF5 files."""
    for utt_id, duration, text in read_sequences(source):
        survey.add(utt_id, None, text.split(), duration=duration)


def _read_cuts(source: CutSource, survey: Survey) -> Iterator[Finding]:
    """Read the transcripts of a CutSet."""
    faults: dict[tuple[str, str], list[str]] = {}
    forms = WordForms(survey.vocabulary, source.text_rules, survey.dictionaries)
    allow_commands = source.allow_commands
    found = supervisions_of(source.path, allow_commands=allow_commands)
    for cut, one, fault in found:
        if fault is not None:
            faults.setdefault((fault.reason, fault.remedy), []).append(cut.id)
        speaker, text = (one.speaker, one.text) if one else (None, None)
        survey.heard.add(plain_id(speaker or ""))
        survey.add(
            cut.id, speaker, forms.words(text or "", speaker), duration=cut.duration
        )
    for (reason, remedy), names in faults.items():
        what = f"{survey.split}: {reason} ({len(names)}): {some(names)}"
        yield Finding("error", source.path, what, remedy)
    if error := no_word_known(forms, source.path):
        yield finding_of(error)


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
