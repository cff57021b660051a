"""A stream of speech as a state machine: samples in, events out.

A stream is cut into segments: those of speech that a voice activity detector finds in
it, or by endpoint rules, where each begins at the sample after the last frame of the
one before. A segment has a front end, a context of the network and a search of its own,
and does not depend on what came before it. In it

    samples at the client's rate -> samples at the model's -> features, in blocks that
    end at fixed samples -> chunks of frames at fixed positions -> log-likelihoods ->
    search -> partial results, endpoints, final results,

so that the events are the same to the last bit for any cutting of the samples into
pieces. A segment that ends with the audio has the words of the whole search over its
frames; one that ends by a rule has those of a search that is ended there, whose last
frames have seen a little of what follows, as their context.

A `Session` has no thread and does no input or output; it is for one thread at a time.
`accept` and `finish` do all. A server that scores the chunks of many sessions together
calls `feed` (or `end`), then, as long as there is one, `take_chunk`, scores it, and
calls `advance` with its scores.

Phrases are favoured in the search where the graph is composed; else in the lattices of
final results: what is not in the lattice is not found, and partial results don't know
of them.

Source: Kaldi `online2bin/online2-wav-nnet3-latgen-faster.cc`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from types import TracebackType

import numpy as np

from latflow.corpus.ctm import TimedWord
from latflow.decode.options import EndpointOptions
from latflow.errors import UserError
from latflow.features.resampling import StreamingResampler
from latflow.lang.lm_trie import LmTrie
from latflow.lang.phrases import phrase_model, plain_model
from latflow.lattice.lattice import Lattice
from latflow.lattice.rescore import rescore
from latflow.serving.acoustics import Chunk
from latflow.serving.endpoint import EndpointDetector
from latflow.serving.features import Adaptation
from latflow.serving.options import LanguageOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import (
    SILENCE,
    Event,
    Final,
    Hypothesis,
    Partial,
    Segment,
)
from latflow.serving.segment_search import Samples, SegmentSearch, one_channel
from latflow.serving.segmentation import SpeechGate, Stretch
from latflow.serving.session_search import favoured

_log = logging.getLogger(__name__)
# Times full scale, beyond which floats are of another scale, not loud.
_NO_FLOAT = 64.0
_BEYOND = (
    "float samples far beyond full scale, which is 1: divide those of 16 bits by "
    "32768, or give them as int16"
)


class Session:
    """One stream; close it, or use it in a `with` statement.

    Attributes:
        warnings: about options that have no effect, and samples that are too large,
            a sentence each.
        time: seconds of audio that have come.
        adaptation: to the speaker, by the segments so far that had words; None where
            there are none, or the model does not adapt.

    Args:
        model: shared by all sessions.
        options: of the stream.
        name: of the audio, in the words' `utterance`.
        adaptation: by segments before the stream, of the same model.

    Raises:
        UserError: an option does not fit the model.
    """

    def __init__(
        self,
        model: Model,
        options: SessionOptions | None = None,
        name: str = "audio",
        adaptation: Adaptation | None = None,
    ) -> None:
        self._options = options or SessionOptions()
        model, warnings = model.for_session(self._options.part(LanguageOptions))
        self._model = model
        self._name = name
        self._rate = self._options.sample_rate or model.sample_rate
        self.warnings = list(warnings)
        if self._rate < model.sample_rate:
            self.warnings.append(
                f"audio of {self._rate} Hz for a model of {model.sample_rate} Hz: its "
                "upper frequencies are missing, and words are recognized less well"
            )
        self._endpoints = self._detector()
        self._phrases = self._phrase_models()
        self._chunk_frames = model.info.chunk_frames(self._options.chunk_length)
        self._segment: SegmentSearch | None = None
        self._begin_stream(adaptation)

    @property
    def time(self) -> float:
        """Seconds of audio that have come."""
        return self._num_samples_in / self._rate

    @property
    def num_bytes(self) -> int:
        """Bytes that the search holds."""
        return 0 if self._segment is None else self._segment.search.num_bytes

    def limit(self, most: int) -> None:
        """Have the next step fail by a MemoryError where its search has more bytes."""
        if self._segment is not None and self._segment.search.num_bytes:
            self._segment.search.limit(most)

    @property
    def is_finished(self) -> bool:
        """Return whether the audio has ended and the last final result was returned."""
        return self._has_ended and not self._is_open

    # -- all in one -----------------------------------------------------------------

    def accept(self, samples: np.ndarray) -> list[Event]:
        """Take the next samples; return what has come of them.

        Args:
            samples: [L], int16, or float in [-1, 1]; [L, 1] and [1, L] are one channel,
                too.

        Raises:
            UserError: they are of several channels, of another type, or not finite.
        """
        self.feed(samples)
        return self._work()

    def finish(self) -> list[Event]:
        """End the audio; the last event is always a final result."""
        events = self.end()
        return events + self._work()

    def _work(self) -> list[Event]:
        """Score and search all chunks that are there."""
        acoustics = self._model.acoustics
        events: list[Event] = []
        while (chunk := self.take_chunk()) is not None:
            if None in acoustics.context:
                events += self.advance(acoustics.log_likes(chunk.frames))
            else:
                events += self.advance(acoustics.score([chunk])[0])
        return events

    # -- in steps, for batches --------------------------------------------------------

    def feed(self, samples: np.ndarray) -> list[Event]:
        """Take the next samples, see `accept`; features are computed as needed."""
        if self._has_ended:
            raise RuntimeError("the audio of this session has ended")
        wave = one_channel(samples)
        if _BEYOND not in self.warnings and np.abs(wave).max(initial=0.0) > _NO_FLOAT:
            self.warnings.append(_BEYOND)
            _log.warning("%s: %s", self._name, _BEYOND)
        self._num_samples_in += len(wave)
        self._audio.add(self._resampler.accept(wave))
        if self._gate is not None:
            self._gate.accept(wave)
        return self._go_on()

    def end(self) -> list[Event]:
        """Note that the audio ends here; a final result, if no chunk is left."""
        if self._has_ended:
            raise RuntimeError("the audio of this session has ended")
        self._audio.add(self._resampler.finish())
        if self._gate is not None:
            self._gate.finish()
        self._has_ended = True
        return self._go_on()

    def take_chunk(self) -> Chunk | None:
        """Return the next frames to be scored; None if there are none.

        The next one is to be had when `advance` has taken the scores of this one.
        """
        if self._chunk is not None or self._segment is None:
            return None
        self._chunk = self._segment.chunks.take()
        return self._chunk

    def advance(self, log_likes: np.ndarray) -> list[Event]:
        """Search on with the scores of the chunk that was taken.

        Args:
            log_likes: float32[n, P], see `Acoustics.score`.
        """
        chunk, segment = self._chunk, self._segment
        if chunk is None or segment is None:
            raise RuntimeError("there is no chunk to be scored")
        self._chunk = None
        segment.num_frames += chunk.num_frames
        try:
            segment.advance(log_likes)
        except UserError as error:
            return self._next_segment(rule=0, warning=str(error)) + self._go_on()
        stretch = self._stretch
        assert stretch is not None
        self._drop(segment)
        segment.accept(self._audio, stretch.end, is_all=stretch.is_ended)
        # Of speech it may be known already, or not yet, that this was its last chunk.
        if segment.chunks.is_done and self._gate is None:
            return [self._last()]
        return self._look(segment) + self._go_on()

    def reset(self) -> None:
        """Begin a new stream, at time 0."""
        self.close()
        self._begin_stream()

    def close(self) -> None:
        """Give up what the session holds."""
        if self._segment is not None:
            self._segment.search.close()
            self._segment = None
        self._has_ended, self._is_open, self._chunk = True, False, None

    def __enter__(self) -> Session:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # -- parts ------------------------------------------------------------------------

    def _detector(self) -> EndpointDetector | None:
        """Return what finds the ends of segments, if something shall."""
        rules = self._options.endpoint
        if rules == "model":
            rules = self._model.info.endpoint
        if not isinstance(rules, EndpointOptions):
            return None
        model = self._model
        shift = model.frame_shift * model.subsampling
        return EndpointDetector(rules, model.is_silence, shift)

    def _phrase_models(self) -> tuple[LmTrie, LmTrie] | None:
        """Return models without and with the phrases, if lattices are to have them."""
        if self._model.decoder.is_composing:
            return None
        found = favoured(self._options, self._model.lang, self.warnings)
        size = max(self._model.lang.word_ids.values()) + 1
        return (plain_model(size), phrase_model(found, size)) if found else None

    def _begin_stream(self, adaptation: Adaptation | None = None) -> None:
        """Begin at time 0."""
        rate, options = self._model.sample_rate, self._options
        self._resampler = StreamingResampler(self._rate, rate)
        self._gate = options.vad and SpeechGate(self._rate, rate, options.vad)
        self._audio = Samples()
        self._num_samples_in = 0
        self._has_ended, self._is_open = False, True
        self._chunk: Chunk | None = None
        self._told_to = 0  # end of the last segment
        self.adaptation = adaptation
        self._go_on()

    @property
    def _stretch(self) -> Stretch | None:
        """The part of the stream that segments are in now; None if there is none yet.

        Samples may be late, where the rate is changed.
        """
        there = self._audio.end
        if self._gate is None:
            return Stretch(0, there, self._has_ended)
        found = self._gate.current
        if found is None:
            return None
        is_there = found.end <= there or self._has_ended
        return Stretch(found.start, min(found.end, there), found.is_ended and is_there)

    def _go_on(self) -> list[Event]:
        """Go on until a chunk is ready, or more samples are needed."""
        events: list[Event] = []
        while self._is_open and self._chunk is None:
            stretch = self._stretch
            if stretch is None:
                if self._has_ended:
                    events.append(self._rest())
                break
            if self._segment is None:
                self._begin_segment(stretch.start)
            segment = self._segment
            assert segment is not None
            self._drop(segment)
            segment.accept(self._audio, stretch.end, is_all=stretch.is_ended)
            if not segment.chunks.is_done:
                break
            events += self._end_stretch()
        if self._is_open and self._segment is None and self._gate is not None:
            self._audio.drop(self._gate.needed_from)
        return events

    def _end_stretch(self) -> list[Event]:
        """End the segment with the stretch that it is in."""
        if self._gate is None:
            return [self._last()]
        self._gate.next()
        is_last = self._has_ended and self._gate.current is None
        return [self._last() if is_last else self._final(rule=SILENCE)]

    def _last(self) -> Final:
        """End the segment with the audio."""
        self._is_open = False
        return self._final(rule=0)

    def _rest(self) -> Final:
        """Tell of the silence at the end of the audio."""
        self._is_open = False
        bounds = self._seconds(self._told_to), self._seconds(self._audio.end)
        return Final(Segment(*bounds, (Hypothesis((), 1.0),)))

    def _drop(self, segment: SegmentSearch) -> None:
        """Forget samples that no segment needs."""
        self._audio.drop(min(segment.end, segment.accepted))

    def _begin_segment(self, begin: int) -> None:
        """Begin a segment at a sample."""
        self._segment = SegmentSearch(
            self._model, begin, self._chunk_frames, self.adaptation
        )
        self._partial, self._partial_frame = "", 0

    def _look(self, segment: SegmentSearch) -> list[Event]:
        """Look at the best path of a segment: has it ended, are there other words?"""
        passed = segment.num_frames - self._partial_frame
        wants = self._options.partials and (
            passed * self._model.frame_shift >= self._options.partial_interval
        )
        if self._endpoints is None and not wants:
            return []
        path = segment.search.best_path()
        if self._endpoints is not None:
            rule = self._endpoints.rule(segment.search, path.transition_ids)
            if rule:
                return self._next_segment(rule=rule)
        if not wants:
            return []
        text = " ".join(self._model.lang.words[word] for word in path.words.tolist())
        if text == self._partial:
            return []
        self._partial, self._partial_frame = text, segment.num_frames
        return [Partial(self._seconds(segment.begin), text)]

    def _next_segment(self, *, rule: int, warning: str | None = None) -> list[Event]:
        """End the segment and begin the next one behind it."""
        assert self._segment is not None
        begin = self._segment.end
        final = self._final(rule=rule, warning=warning)
        self._audio.drop(begin)
        self._begin_segment(min(max(begin, self._audio.begin), self._audio.end))
        return [final]

    def _final(self, *, rule: int, warning: str | None = None) -> Final:
        """End the segment."""
        segment = self._segment
        assert segment is not None
        self._segment = None
        is_whole = segment.chunks.is_done and warning is None and rule in (0, SILENCE)
        end = segment.accepted if is_whole else min(segment.end, self._audio.end)
        self._told_to = end
        bounds = self._seconds(segment.begin), self._seconds(end)
        no_speech = 1.0
        hypotheses, lattice = (Hypothesis((), 1.0),), None
        try:
            if segment.num_frames and warning is None:
                lattice = self._rescored(segment.search.finalise().lattice)
                hypotheses = self._hypotheses(lattice, bounds[0])
                no_speech = self._model.transcriber.no_words(lattice)
                if hypotheses[0].words:  # noise shows nothing of the speaker
                    self.adaptation = segment.adaptation
        except UserError as error:
            warning = str(error)
        finally:
            segment.search.close()
        kept = lattice if self._options.lattices else None
        return Final(Segment(*bounds, hypotheses, rule, kept, warning, no_speech))

    def _rescored(self, lattice: Lattice) -> Lattice:
        """Return a lattice with the costs that words are found by."""
        scale = np.float32(self._model.lattice_scale)
        scaled = replace(lattice, acoustic_cost=scale * lattice.acoustic_cost)
        return self._model.rescore(scaled)

    def _hypotheses(self, lattice: Lattice, start: float) -> tuple[Hypothesis, ...]:
        """Recognize the words of a segment's lattice."""
        if self._phrases is not None:
            lattice = rescore(lattice, *self._phrases)
        found = self._model.transcriber.alternatives(
            self._name, lattice, self._options.max_alternatives
        )
        return tuple(
            Hypothesis(tuple(_moved(word, start) for word in words), confidence)
            for words, confidence in found
        )

    def _seconds(self, sample: int) -> float:
        """Return the time of a sample at the model's rate."""
        return sample / self._model.sample_rate


def _moved(word: TimedWord, start: float) -> TimedWord:
    """Return a word of a segment with its time from the beginning of the audio."""
    return replace(word, start=word.start + start)
