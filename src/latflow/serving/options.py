"""Options of streaming sessions and servers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from latflow.decode.options import EndpointOptions, SegmentationOptions
from latflow.options import (
    SWITCH,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
)

MOST_BOOST = 1000.0  # no cost of a hypothesis that matters is larger

_Boost = Annotated[float, Field(ge=0, le=MOST_BOOST)]


class LanguageOptions(Options):
    """Words, phrases and language model that a session brings.

    `grammar`, `phrase_list` and `lm` each take the place of the package's language
    model; at most one of them is given.
    """

    phrases: tuple[Text, ...] = ()
    """Phrases that are favoured: in the search where the package's graph is composed
    (`decode.composition: lookahead`), else among the hypotheses of final results. A
    phrase may end with its own boost, `new york :3`."""
    phrase_boost: _Boost = 4.0
    """Discount on the cost of a hypothesis for each word of a phrase (negated log, in
    units of the language model's costs)."""
    prompt: str = ""
    """Text like the speech: words of it that are among the rarer half of those of the
    language model are favoured, where the graph is composed."""
    prompt_boost: _Boost = 1.0
    """Discount on the cost of each of these words."""
    new_words: tuple[Text, ...] = ()
    """Words that the package lacks, each with its phones: `WORD PHONE PHONE ...`, maybe
    with a probability before these. `WORD` alone is pronounced by the package's G2P
    model. They are searched for from the first frame."""
    word_boost: Annotated[float, Field(ge=-MOST_BOOST, le=MOST_BOOST)] = -1.0
    """Discount on the cost of each of these words (negated log), where the language
    model is the package's. Negative: they are less probable than words like them."""
    words_like: tuple[Text, ...] = ()
    """Words of the package that new words are like, and expected where they are:
    `PARIS` for all, `KAZOO=TRUMPET` for one. None for the word itself, where it gets
    another pronunciation, and `word_boost` does nothing then; else for unknown words,
    where the language model knows where these stand, or the mean of all words."""
    grammar: str = ""
    """A grammar: a list of phrases in JSON, or JSGF (docs/serving.md)."""
    phrase_list: tuple[str, ...] = ()
    """Phrases whose bigrams are the language model, as Vosk takes such a list."""
    lm: str = ""
    """File of another language model, in ARPA form."""

    @model_validator(mode="after")
    def _check_one_model(self) -> Self:
        given = [n for n in ("grammar", "phrase_list", "lm") if getattr(self, n)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one language model only")
        return self

    @property
    def has_own_model(self) -> bool:
        """Whether another language model takes the place of the package's."""
        return bool(self.grammar or self.phrase_list or self.lm)

    @property
    def brings_anything(self) -> bool:
        """Whether it is more than the package has."""
        return bool(self.has_own_model or self.phrases or self.new_words or self.prompt)


class SessionOptions(LanguageOptions):
    """One stream of audio and its answers."""

    sample_rate: Annotated[int, Field(ge=1000, le=192000)] | None = None
    """Of the samples, Hz; they are resampled to the model's. null for the model's."""
    partials: bool = True
    """Tell of the words so far of a segment that continues, whenever they change."""
    partial_interval: NonNegativeFloat = 0.0
    """Least speech between two partial results, seconds."""
    max_alternatives: Annotated[int, Field(ge=1, le=100)] = 1
    """Hypotheses of a final result, at most."""
    endpoint: EndpointOptions | Annotated[Literal["model", "off"], SWITCH] = "model"
    """Rules that end a segment; `model` for those of the model's package, `off` for one
    segment up to the end of the audio."""
    vad: SegmentationOptions | None = None
    """Speech is found by a voice activity detector first, as by `transcribe`, so that
    nothing is recognized in silence; `endpoint` divides what it finds. null for
    segments by `endpoint` alone."""
    lattices: bool = False
    """Give the lattice with final results."""
    chunk_length: PositiveFloat = 0.24
    """Speech that is scored at a time, seconds; cut to whole frames of the scores.
    Longer chunks take less work, shorter ones answer sooner."""


class LoadOptions(Options):
    """Settings of a load client."""

    sessions: PositiveInt = 1
    """Clients at the same time."""
    real_time: bool = False
    """Send at the speed of speech; else as fast as the server takes it."""
    seconds: PositiveFloat = 20.0
    """Duration of a run in real time."""
    iterations: PositiveInt = 1
    """Number of times that the set is sent by a run that is not in real time."""
    chunk: PositiveFloat = 0.1
    """Speech in a message, seconds; servers that take messages of one size only ignore
    it."""
    patience: PositiveFloat = 30.0
    """Greatest wait for a final, seconds; then it counts as lost."""
    seed: NonNegativeInt = 0
    """Of the moments at which the clients begin."""


class ServerOptions(Options):
    """A server, and what it lets clients do."""

    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: Annotated[int, Field(ge=0, le=65535)] = 2700
    """Port to listen on; 0 for one that is free."""
    workers: NonNegativeInt = 0
    """Processes that recognize; 0 for one, and with a GPU for three quarters of the
    cores."""
    threads: NonNegativeInt = 0
    """Searches at a time in a process; 0 for the cores divided by the processes."""
    network_threads: PositiveInt = 1
    """Cores that a call of the network takes."""
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Device of the network; `auto` for a GPU where there is one."""
    scorer: Annotated[Literal["auto", "on", "off"], SWITCH] = "auto"
    """Network in its own process, for all workers, one for each GPU; `auto` for where
    it is on a GPU, `off` for a network in each worker."""
    max_batch: PositiveInt = 64
    """Chunks of sessions that go through the network at a time."""
    max_sessions: PositiveInt = 200
    """Sessions at a time in a process; more are refused."""
    max_message: PositiveInt = 1 << 20
    """Bytes of a message of a websocket."""
    max_queue: PositiveInt = 1 << 20
    """Bytes of a session's messages that wait; then no more is read from the client."""
    max_connections: PositiveInt = 1000
    """Connections at a time in a process, as far as it may open files; those that have
    asked for nothing yet go first."""
    max_session: PositiveFloat = 14400.0
    """Audio of a session, or of a file, seconds."""
    max_upload: PositiveInt = 1 << 28
    """Bytes of an HTTP request."""
    max_uploads: PositiveInt = 1 << 30
    """Bytes of all HTTP requests of a process that arrive or are worked on; more are
    refused."""
    reserve: NonNegativeInt = 1 << 28
    """Bytes that sessions leave free of address space that is limited (`ulimit -v`): no
    more are begun then, and those that need more are ended."""
    upload_time: PositiveFloat = 600.0
    """Time that an HTTP request has to arrive as a whole, seconds."""
    patience: PositiveFloat = 10.0
    """Time that a connection has to say what it wants, the handshake of TLS and the
    head of each HTTP request, seconds."""
    idle: PositiveFloat = 60.0
    """Time without a message, or without reading an answer, after which a client is
    sent away, seconds."""
    grace: PositiveFloat = 10.0
    """Time that sessions have to end when the server does, seconds."""
    token_file: str = ""
    """File with the bearer token that clients must show; none if empty."""
    certificate: str = ""
    """File of the certificate (PEM) for TLS; none if empty."""
    key: str = ""
    """File of the certificate's private key (PEM)."""
    trust_code: bool = False
    """Run code that the package names: layers and extractors that are not latflow's."""
    origins: str = ""
    """Origins (scheme://host:port, with commas between them) of pages that browsers may
    connect from, beside the server's own; any if empty."""
    cors_origin: str = ""
    """Origins, with commas between them, whose pages may read the answers of HTTP
    requests (CORS), and connect; `*` for all, none if empty."""
    evaluate: bool = False
    """Offer /v1/evaluate: posteriors of frames, and their loss."""

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Those of `cors_origin`, one by one."""
        return _origins(self.cors_origin)

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Those of `origins`, and of `cors_origin` beside them; none for any."""
        return (*_origins(self.origins), *self.cors_origins) if self.origins else ()


def _origins(text: str) -> tuple[str, ...]:
    """Return the origins that a text holds, with commas between them."""
    return tuple(one for part in text.split(",") if (one := part.strip().rstrip("/")))


class TritonOptions(Options):
    """A model in a repository of Triton's."""

    chunk: PositiveInt = 8160
    """Samples of a message, the size of WAV_DATA; the last one may have fewer."""
    max_batch: PositiveInt = 64
    """Sequences whose messages Triton hands over together."""
    max_sequences: PositiveInt = 1000
    """Sequences at a time, of each instance; Triton lets others wait."""
    queue_delay: NonNegativeFloat = 0.001
    """Greatest wait for others to be handed over together, seconds."""
    idle: PositiveFloat = 5.0
    """A sequence without a message for so long is given up, seconds."""
    trust_code: bool = False
    """Run code that the package names: layers and extractors that are not latflow's."""
    instances: PositiveInt = 1
    """Processes with the model, on each GPU or on the CPU."""
    gpus: tuple[NonNegativeInt, ...] = ()
    """Numbers of the GPUs; none for the CPU."""
    threads: PositiveInt = 2
    """Searches at a time, of each instance."""
    partials: bool = True
    """Send the words so far of a sequence that continues, whenever they change."""
    endpoint: Annotated[Literal["model", "off"], SWITCH] = "off"
    """Rules that divide a sequence into segments: `model` for those of the model's
    package, `off` for one segment."""
