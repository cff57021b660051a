"""Options of the lexicon and of language models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from latflow.options import (
    Fraction,
    Free,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
    Text,
    Unique,
)

Symbol = Annotated[str, Field(pattern="^\\S+$")]


class G2pOptions(Options):
    """Pronunciations for words that the lexicon lacks, see docs/lexicon.md."""

    model: Text | None = None
    """Model that `latflow g2p train` wrote; null trains one on the lexicon."""
    order: Annotated[int, Field(ge=1, le=15)] = 8
    """Length of the longest n-grams, in graphones; without effect on a given model."""
    num_pronunciations: Annotated[int, Field(ge=0, le=100)] = 0
    """Greatest number of pronunciations that a word gets; 0 generates none."""
    min_probability: Fraction = 0.1
    """Pronunciations but the best are left out if they have a smaller share of the
    word's probability."""
    min_count: PositiveInt = 1
    """How often transcripts and text of the language model together must have a word; a
    word of an ARPA file needs no count."""
    sources: Annotated[
        tuple[Literal["transcripts", "lm"], ...], Field(min_length=1), Unique
    ] = ("transcripts", "lm")
    """Where words are taken from: the transcripts of the training set, and text or ARPA
    file of the first language model."""


class LangOptions(Options):
    """The lexicon, and what is made of it: phones, HMM topologies, and L."""

    lexicon: str | None = None
    """Pronunciation lexicon, `WORD PHONE PHONE ...` or `WORD PROBABILITY PHONE PHONE
    ...` lines, or another form that docs/lexicon.md lists (`.gz` too); or, where speech
    is aligned only, MFA's YAML with dictionaries of speakers (docs/align.md). null
    takes the one that a synthetic corpus brings."""
    g2p: G2pOptions = G2pOptions()
    """Pronunciations for words that the lexicon lacks, see docs/lexicon.md."""
    has_probabilities: bool | None = None
    """Whether every word of the lexicon is followed by a probability (and, where four
    numbers stand there, by those of silence around it). false takes no number for a
    probability; null finds out, also line by line, see docs/lexicon.md."""
    max_normalize: bool = True
    """Divide the pronunciation probabilities of a word by the largest of them, so that
    its best pronunciation costs nothing."""
    strip_stress: bool = False
    """Take the digits off the ends of phones (`AH0` becomes `AH`) and merge what
    becomes equal."""
    group_stress: bool = True
    """Let phones that differ in nothing but digits at their ends share the root of a
    tree, which may then ask about stress or tone. Without effect where
    `nonsilence_phones` is given."""
    position_dependent_phones: bool = True
    """Tell apart phones that begin, end, or are inside a word, or are the whole word.
    """
    silence_phone: Symbol | None = None
    """Phone of silence; null takes that of a word for silence in the lexicon (`!SIL
    sil`), else `SIL`."""
    spoken_noise_phone: Symbol | None = None
    """Phone of unintelligible speech; the pronunciation of the unknown word. null takes
    that of a word for unknown words in the lexicon (`<unk> spn`), else `SPN`."""
    other_silence_phones: Annotated[tuple[Symbol, ...], Unique] | None = None
    """Further phones that are modelled like silence (laughter, noise). null takes those
    of words in brackets (`[laughter] lau`) that no other word has."""
    optional_silence: str | None = None
    """Silence phone that may stand between words; null takes `silence_phone`."""
    nonsilence_phones: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """The speech phones, each item one group that shares a tree root (`AH0 AH1 AH2`). A
    phone of the lexicon that is not here is an error. null takes those of the lexicon.
    """
    silence_word: Annotated[str, Field(pattern="^\\S*$")] | None = None
    """Word for silence, added to the lexicon where it is missing; an empty string adds
    none. null takes that of the lexicon, else `<SIL>`."""
    oov_word: Symbol | None = None
    """Word that stands for every word outside the lexicon, added where it is missing.
    null takes that of the lexicon, else `<UNK>`."""
    silence_probability: ProperFraction = 0.5
    """Probability of silence before the first and after every word, where the lexicon
    does not have it; 0 allows none."""
    num_silence_states: Annotated[int, Field(ge=1, le=20)] = 5
    """Emitting HMM states of a silence phone."""
    num_nonsilence_states: Annotated[int, Field(ge=1, le=20)] = 3
    """Emitting HMM states of a speech phone."""
    share_silence_phones: bool = False
    """Let all silence phones share one set of pdfs and differ in transitions only.
    """
    share_state_roots: bool = True
    """Let the HMM states of a phone share one tree root; false gives each state its
    own."""


class ArpaLm(Options):
    """An ARPA file is given."""

    type: Literal["arpa"] = "arpa"
    path: Text
    """The ARPA file, of any order; gzip, bzip2 and xz are unpacked."""


class UniformLm(Options):
    """Every word of the lexicon, and the sentence end, are equally likely.

    Words without a speech phone are left out.
    """

    type: Literal["uniform"] = "uniform"


class NgramOptions(Options):
    """Estimation of an n-gram model."""

    order: Annotated[int, Field(ge=1, le=9)] = 3
    """Length of the longest n-grams, in words."""
    vocabulary: Literal["lexicon", "text"] = "lexicon"
    """Words that the model knows. `lexicon` takes the words of the lexicon that have a
    speech phone (those that the text lacks get the probability of unseen words) and
    other words of the lexicon that the text has; `text` takes those of the text."""
    unknown_word: Annotated[str, Field(pattern="^\\S+$")] | None = None
    """Name of a word that stands for all words outside the vocabulary and gets their
    probability. With null n-grams that have such words are not counted, or, where
    graphs are composed (`decode.composition: lookahead`), for words alone that
    sessions bring."""
    min_counts: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1,)
    """For n-grams of length 1, 2, ...: how often the text must have one that is kept;
    the last value holds for all longer ones. Values must not fall. The first is about
    words and has an effect with the vocabulary `text` only."""


class TextLm(NgramOptions):
    """An n-gram model is estimated from a text.

    By interpolated modified Kneser-Ney smoothing.
    """

    type: Literal["text"] = "text"
    path: Text | None = None
    """The text, one sentence a line (`.gz` too). null takes the one that a synthetic
    corpus brings."""


class TranscriptsLm(NgramOptions):
    """An n-gram model is estimated from the transcripts of the training set."""

    type: Literal["transcripts"] = "transcripts"


LmOptions = Annotated[
    ArpaLm | UniformLm | TextLm | TranscriptsLm, Field(discriminator="type")
]


class LstmLmOptions(Options):
    """Layers of a neural language model."""

    size: PositiveInt = 256
    """Numbers of an embedding, and cells of a layer."""
    num_layers: PositiveInt = 1
    """LSTM layers."""
    dropout: ProperFraction = 0.3
    """Share of numbers dropped in training behind embedding and layers."""
    untied: bool = False
    """Give the output weights of its own; else they are the embeddings."""


class LmTrainingOptions(LstmLmOptions):
    """Layers of a neural language model, and its training."""

    epochs: PositiveInt = 20
    """Passes over the text, at most."""
    patience: PositiveInt = 3
    """Epochs without a better held-out text after which training ends."""
    batch_words: PositiveInt = 2000
    """Words of a batch, at most, sentence ends and padding counted."""
    learning_rate: PositiveFloat = 0.002
    """Learning rate of Adam at first; it is halved after each epoch in which the loss
    of the held-out text fell by less than 1 percent."""
    clip_norm: PositiveFloat = 1.0
    """Gradients (mean over words) longer than this are shortened to it."""
    checkpoint_minutes: Free[PositiveFloat] = 10.0
    """Minutes between checkpoints within an epoch."""


class LmRunOptions(LmTrainingOptions):
    """Everything that the training of a neural language model depends on."""

    seed: NonNegativeInt = 1
    """Seed of parameters, order and dropout."""
    device: Free[Literal["auto", "cpu", "cuda"]] = "auto"
    """Device: `auto` for a GPU where there is one."""


class NeuralLmOptions(LmTrainingOptions):
    """An LSTM is trained on a text, and mixed with the first language model.

    It rescores the n best word sequences of a lattice. See docs/language_models.md.
    """

    type: Literal["neural"] = "neural"
    path: Text | None = None
    """The text, one sentence a line (`.gz` too). null takes that of the first language
    model, whose type must be `text` or `transcripts`."""
    held_out: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """Share of the sentences that are not trained on, and choose learning rate and
    epoch."""
    weight: ProperFraction | None = None
    """Share of the network in the mixture with the first model; null for the share that
    makes the transcripts of dev most probable. It is below 1, since words that the
    network lacks have the first model's share alone."""
    n_best: PositiveInt = 100
    """Word sequences of a lattice that are rescored, at most."""


RescoringLmOptions = Annotated[
    ArpaLm | UniformLm | TextLm | TranscriptsLm | NeuralLmOptions,
    Field(discriminator="type"),
]
