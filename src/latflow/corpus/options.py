"""Options of corpora: where recordings and transcripts come from."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from latflow.corpus.derived_options import (
    CleanedSetOptions,
    PausedSetOptions,
    PerturbationOptions,
)
from latflow.corpus.tokenizers import check_tokenizer
from latflow.corpus.words import APOSTROPHES, COMPOUNDS, TextRules
from latflow.options import (
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    Text,
    Unique,
)
from latflow.user_code import LOCATION, file_of


class SyntheticSource(Options):
    """Speech synthesized with eSpeak NG, orders to a kitchen robot.

    Brings its own lexicon and language model text. Voices and sentences of train, dev
    and test sets are disjoint.
    """

    type: Literal["synthetic"] = "synthetic"
    speakers: Annotated[int, Field(ge=1, le=999)] = 48
    """Number of speakers (voices times accents, pitches and rates)."""
    utterances: Annotated[int, Field(ge=1, le=1000000)] = 576
    """Number of utterances, about 2.5 seconds each, shared equally by the speakers."""
    sample_rate: Literal[8000, 11025, 16000, 22050] = 16000
    """Samples per second of the files, Hz."""
    rate: tuple[
        Annotated[float, Field(ge=90, le=350)], Annotated[float, Field(ge=90, le=350)]
    ] = (140.0, 210.0)
    """Speaking rates of the speakers, words per minute, from and to."""
    pitch: tuple[
        Annotated[float, Field(ge=0, le=99)], Annotated[float, Field(ge=0, le=99)]
    ] = (30.0, 70.0)
    """Pitches of the speakers relative to their voice (50 is the voice's own), from and
    to."""
    snr_db: tuple[
        Annotated[float, Field(ge=-20, le=100)], Annotated[float, Field(ge=-20, le=100)]
    ] = (0.0, 15.0)
    """Power of an utterance over that of the pink noise added to it, dB, from and to.
    """
    silence_s: tuple[
        Annotated[float, Field(ge=0, le=10)], Annotated[float, Field(ge=0, le=10)]
    ] = (0.1, 0.4)
    """Silence (noise alone) before and after the speech, seconds, from and to."""
    lm_sentences: Annotated[int, Field(ge=1, le=10000000)] = 5000
    """Number of sentences drawn for the language model's text (of the training set's
    source only)."""


class GivenSource(Options):
    """Options of every source of recordings from outside."""

    speaker: Literal["given", "utterance", "single"] = "given"
    """Speaker: `given` (utt2spk or the manifest says so), `utterance` (each
    utterance is its own speaker) or `single` (all are one speaker)."""
    transcripts: bool = True
    """Existence of transcripts. A test set without them (`false`; its
    Kaldi directory needs no `text`) is decoded, not scored."""
    verify_audio: bool = True
    """Decode every file once, to find damaged ones now and not in the middle of
    training; without it headers are believed."""
    on_bad_utterance: Literal["fail", "skip"] = "fail"
    """Treatment of missing or damaged audio, an empty or missing transcript, an
    utterance without audio or too short: `fail` stops with one line, `skip` notes it in
    the ledger (see ledger.max_skipped_fraction)."""
    min_duration: NonNegativeFloat = 0.1
    """Shortest utterance that is not bad, seconds."""
    channel: NonNegativeInt | None = None
    """Channel that is taken of recordings with several where nothing else (segments, a
    supervision, a cut) names one, from 0; null takes the first, and notes it. A channel
    that is silent beside another one makes an utterance bad."""
    exclude: Text | None = None
    """File with the ids of utterances to leave out, one a line (what follows an id is
    not read). They are noted in the ledger and do not count as skipped."""
    sample_rate: Annotated[int, Field(ge=1000)] | None = None
    """Rate to resample to when audio is read, Hz; null keeps that of the files."""
    case: Literal["auto", "keep", "lower", "upper"] = "auto"
    """Letters of words that the lexicon lacks: `auto`, as a word of the lexicon has
    them that differs in nothing else; `lower`, `upper`; or `keep`, unchanged."""
    punctuation: str | None = None
    """Characters that are not part of a word at whose end they stand; null for
    Unicode's punctuation and symbols but `&`, `@` and currencies. Dashes, commas,
    quotation marks and the like also part words. Never of words that the lexicon has,
    or in `<>` or `[]`."""
    clitics: str = APOSTROPHES
    """Characters that are read as apostrophes: `don’t` as `don't`. A word with one that
    the lexicon lacks is divided there, where it has both parts."""
    compounds: str = COMPOUNDS
    """Characters at which words are divided that the lexicon lacks."""
    tokenizer: Annotated[str, AfterValidator(check_tokenizer)] = "blanks"
    """Words of a transcript: between `blanks`; also `characters`, each letter of a
    script without case; as `icu` divides it (PyICU); or as a custom function does,
    `module:function` or `folder/file.py:function`."""

    @property
    def text_rules(self) -> TextRules:
        """How transcripts are read."""
        return TextRules(
            *(self.case, self.punctuation, self.clitics, self.compounds),
            tokenizer=self.tokenizer,
        )


class KaldiSource(GivenSource):
    """A Kaldi data directory.

    wav.scp, text, utt2spk, and maybe segments, spk2gender, spk2age and the like.
    """

    type: Literal["kaldi"] = "kaldi"
    path: Text
    """Folder that holds wav.scp; paths in wav.scp are relative to it, or to the nearest
    folder above it where the file is, as Kaldi's recipes have them."""
    allow_commands: bool = False
    """Run the entries of wav.scp that end in `|` (they can do anything that you can),
    once each; what they print is written to `audio/`."""


class LhotseSource(GivenSource):
    """A corpus that Lhotse has a recipe for, such as librispeech."""

    type: Literal["lhotse"] = "lhotse"
    recipe: Name
    """Name of the recipe, as in `lhotse prepare <name>` with `_` for `-`; also
    mini_librispeech."""
    parts: Annotated[tuple[Text, ...], Unique] = ()
    """Parts of the corpus to take together, e.g. train-clean-100; empty where it has
    none."""
    arguments: dict[Name, str | bool | int | float] = Field(default_factory=dict)
    """Further arguments of Lhotse's download_<recipe> and prepare_<recipe>, by name,
    such as transcript_dir; the folder `root` is the first one that is not named."""
    root: Text
    """Folder that holds the corpus, or that it is downloaded to."""
    download: bool = False
    """Fetch the parts first where they are not there."""


class ManifestSource(GivenSource):
    """Manifests that Lhotse wrote."""

    type: Literal["manifests"] = "manifests"
    recordings: Text
    """RecordingSet, .jsonl or .jsonl.gz."""
    supervisions: Text
    """SupervisionSet, .jsonl or .jsonl.gz; one supervision an utterance."""
    allow_commands: bool = False
    """Run the commands of recordings whose source is of type `command` (they can do
    anything that you can), once each; what they print is written to `audio/`."""


class CutSource(GivenSource):
    """A CutSet that Lhotse wrote; each of its cuts is an utterance.

    Mixed and padded cuts, and those with effects, are written as audio of their own.
    """

    type: Literal["cuts"] = "cuts"
    path: Text
    """CutSet, .jsonl or .jsonl.gz; cuts have one supervision with a transcript each
    (`cuts.trim_to_supervisions()`)."""
    allow_commands: bool = False
    """Run the commands of recordings whose source is of type `command` (they can do
    anything that you can); what they print is written to `audio/`."""


class FileSource(GivenSource):
    """Options of sources whose transcripts are running text beside the audio."""

    on_bad_utterance: Literal["fail", "skip"] = "skip"
    """Treatment of audio without transcript, transcripts without audio, damaged audio
    and the like: `skip` notes them in the ledger (see ledger.max_skipped_fraction),
    `fail` stops at the first."""


class FolderSource(FileSource):
    """A folder of audio, with a transcript beside each file.

    A transcript has its audio's name and ends in `.lab`, `.txt`, `.TextGrid`, `.srt` or
    `.vtt`; each interval of a TextGrid that has a label is an utterance, and so is each
    cue of subtitles.
    """

    type: Literal["folder"] = "folder"
    path: Text
    """The folder; files may lie in folders below it."""
    transcript_suffixes: Annotated[
        tuple[Literal["lab", "txt", "TextGrid", "srt", "vtt"], ...],
        Field(min_length=1),
        Unique,
    ] = ("lab", "txt", "TextGrid", "srt", "vtt")
    """Ends of the names of transcripts; where a file has several, the first one counts.
    """
    speaker_by: Literal["folder", "tier", "prefix"] = "folder"
    """Speaker, where `speaker` is `given`: `folder`, the folder that the audio is in
    (and the tier, where a TextGrid has several, or WebVTT's voice); `tier`, the tier of
    the TextGrid, or the voice; `prefix`, the file's name up to `prefix_end`."""
    prefix_end: Text = "-"
    """Characters that end the speaker's part of a file's name."""
    tiers: Annotated[tuple[Text, ...], Unique] = ()
    """Tiers of TextGrids to take; empty for all interval tiers but those of phones, as
    aligners write them, by their names."""


class TableSource(FileSource):
    """A table with a line for each utterance: CSV, TSV or JSONL.

    As exported from Common Voice, or from Hugging Face's datasets.
    """

    type: Literal["table"] = "table"
    path: Text
    """The table: `.csv`, `.tsv` (both with names of columns in the first line) or
    `.jsonl`, each maybe `.gz`."""
    audio: Text | None = None
    """Folder that paths of audio are relative to; null for the table's own."""
    path_column: Text | None = None
    """Column of the audio file; null for `path`, `audio`, `file_name`, `file` or
    `audio_path`, whichever is there first."""
    text_column: Text | None = None
    """Column of the transcript; null for `text`, `sentence`, `transcription` or
    `transcript`."""
    speaker_column: Text | None = None
    """Column of the speaker; null for `speaker`, `speaker_id` or `client_id`."""


class CustomSource(FileSource):
    """Utterances that a custom function gives, see docs/development.md.

    Each is a mapping: `audio`, the path of a file; `text`; and maybe `speaker`, `start`
    and `end` in seconds, `id`.
    """

    type: Literal["custom"] = "custom"
    path: Annotated[str, Field(pattern=LOCATION)]
    """The function: `module:function`, or `folder/file.py:function`."""
    arguments: dict[Name, str | bool | int | float] = Field(default_factory=dict)
    """Its arguments, by name."""
    files: tuple[Text, ...] = ()
    """Files that it reads, whose change prepares the set again, as that of its own file
    does."""

    @property
    def inputs(self) -> list[str]:
        """Files whose change prepares the set again."""
        return [*self.files, *map(str, file_of(self.path))]


class Hdf5Source(Options):
    """Sequences of HDF5 files in RETURNN's layout, such as images with their texts.

    There is no audio: all systems are networks that read features of `nnet.hdf5`. Each
    sequence is its own speaker.
    """

    type: Literal["hdf5"] = "hdf5"
    files: Annotated[tuple[Text, ...], Field(min_length=1), Unique]
    """The files; `seqTags` are the ids of the utterances, with `_` instead of
    blanks. Labels may lie in their own files, see `nnet.hdf5.<name>.files`."""
    target: Name = "classes"
    """Target, in `targets/data`, whose labels are the transcript of a sequence: the
    words are the names of its classes, in `targets/labels`."""
    frame_shift_ms: PositiveFloat = 10.0
    """Time that a frame, or a column of an image, stands for, milliseconds."""
    on_bad_utterance: Literal["fail", "skip"] = "fail"
    """Treatment of a sequence without labels: `fail` stops with one line, `skip` notes
    it in the ledger (see ledger.max_skipped_fraction)."""


GivenCorpus = Annotated[
    KaldiSource
    | LhotseSource
    | ManifestSource
    | CutSource
    | FolderSource
    | TableSource
    | CustomSource,
    Field(discriminator="type"),
]


def _not_a_speed(name: str) -> str:
    """Return the name of a source; refuse one that looks like that of a speed."""
    if re.match("sp[0-9]", name):
        raise ValueError(f"{name} is how ids of utterances at another speed begin")
    return name


SourceName = Annotated[Name, AfterValidator(_not_a_speed)]


class CombinedSource(Options):
    """Several sources as one set, as Kaldi's `combine_data.sh` makes it.

    Ids of utterances, recordings and speakers begin with `<name>-`, the name of their
    source. GMM systems learn from all of them alike; networks as often as
    `data.source_weights` says.
    """

    type: Literal["combined"] = "combined"
    sources: Annotated[dict[SourceName, GivenCorpus], Field(min_length=1)]
    """The sources, by their own names."""

    @property
    def transcripts(self) -> bool:
        """Whether the utterances have transcripts."""
        return all(source.transcripts for source in self.sources.values())

    @model_validator(mode="after")
    def _check_transcripts(self) -> Self:
        """Refuse sources of which some have transcripts, and some have none."""
        found = {source.transcripts for source in self.sources.values()}
        if len(found) > 1:
            raise ValueError("sources: some have transcripts, and some have none")
        return self


class HoldOutSource(Options):
    """A part of the training set, kept out of training."""

    type: Literal["hold_out"] = "hold_out"
    by: Literal["speaker", "utterance"] = "speaker"
    """Unit that is kept together; with a single speaker, `utterance` is the only way.
    """
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training speech (in seconds) to hold out, at least."""


class NoSource(Options):
    """No dev set: nothing is decoded; systems are trained, and align."""

    type: Literal["none"] = "none"


# Names of splits that the workflow makes, and of a folder beside them.
RESERVED = frozenset({"train", "dev", "full", "language"})


def _not_reserved(name: str) -> str:
    """Return the name of a set; refuse one that is taken."""
    if name in RESERVED:
        raise ValueError(f"{name} is not a name for a custom set")
    return name


SetName = Annotated[
    str, Field(pattern="^[a-z0-9][a-z0-9_-]*$"), AfterValidator(_not_reserved)
]
Source = Annotated[
    SyntheticSource
    | KaldiSource
    | LhotseSource
    | ManifestSource
    | CutSource
    | FolderSource
    | TableSource
    | CustomSource
    | Hdf5Source
    | CombinedSource,
    Field(discriminator="type"),
]
DevSource = Annotated[HoldOutSource | NoSource | Source, Field(discriminator="type")]


def has_transcripts(source: DevSource) -> bool:
    """Return whether the utterances of a source have transcripts."""
    is_given = isinstance(source, GivenSource | CombinedSource)
    return not is_given or source.transcripts


class CorpusOptions(Options):
    """Sources of recordings and transcripts.

    A training set, a dev set (its own source, or held out of train) and named test
    sets. Without a dev set nothing is decoded: systems are trained, and align.
    """

    train: Source
    """Source of the training set."""
    dev: DevSource = HoldOutSource()
    """Source of the dev set, on which the LM scale and the insertion penalty are
    chosen; or how it is held out of train; or `{type: none}`, where nothing is to be
    decoded."""
    test: dict[SetName, Source] = Field(default_factory=dict)
    """Sources of the test sets, by name."""
    perturbed: dict[SetName, PerturbationOptions] = Field(default_factory=dict)
    """Training sets for networks, by name, that are made of the training set: every
    utterance at several speeds and volumes. Networks name them in `training_set`; GMM
    systems are trained on the training set itself, and align these too."""
    cleaned: dict[SetName, CleanedSetOptions] = Field(default_factory=dict)
    """Training sets for networks, by name: the parts of the training set that are what
    their transcripts say (see docs/suspects.md). GMM systems are trained on the
    training set itself, and align these too."""
    paused: dict[SetName, PausedSetOptions] = Field(default_factory=dict)
    """Sets, by name, of the utterances of others, joined with pauses between them, so
    that a network learns, and the report knows, what a served model hears (see
    docs/serving.md): training sets where they are made of the training set, else test
    sets."""

    @property
    def paused_training(self) -> list[str]:
        """Names of the sets of `paused` that are training sets."""
        made_of = {"train", *self.cleaned}
        return [name for name, made in self.paused.items() if made.of in made_of]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Refuse two sets of one name, and sets that are made of none."""
        for name in self.perturbed.keys() & self.test.keys():
            raise ValueError(f"perturbed.{name}: a test set has this name")
        for name in self.cleaned.keys() & {*self.test, *self.perturbed}:
            raise ValueError(f"cleaned.{name}: another set has this name")
        for name in self.paused.keys() & {*self.test, *self.perturbed, *self.cleaned}:
            raise ValueError(f"paused.{name}: another set has this name")
        dev = [] if isinstance(self.dev, NoSource) else ["dev"]
        made_of_train = ["train", *self.cleaned]
        for kind, made, known in (
            ("perturbed", self.perturbed, [*made_of_train, *self.paused_training]),
            ("paused", self.paused, [*made_of_train, *dev, *self.test]),
        ):
            for name, options in made.items():
                if options.of not in known:
                    raise ValueError(
                        f"{kind}.{name}.of: no {options.of!r}; there are "
                        f"{', '.join(known)}"
                    )
        if isinstance(self.dev, NoSource) and self.test:
            raise ValueError("dev: test sets cannot be scored without one")
        for name, source in {"train": self.train, "dev": self.dev}.items():
            if not has_transcripts(source):
                raise ValueError(
                    f"{name}.transcripts: only test sets can do without transcripts"
                )
        return self
