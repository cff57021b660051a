"""Count how often a pass over the data takes each utterance.

An utterance u has a weight in each pass: that of its source in a combined corpus, times
a share by its speaker and length,

    share(u) ~ T^b (sum of T^b over the utterances of its speaker)^(a - 1)

with T frames, a `speaker_power` and b `length_power`, scaled so that the mean over the
source is 1. (With b = 0 and n utterances of the speaker this is n^(a - 1).)

An utterance of weight w is taken floor(w) or ceil(w) times a pass, and after any number
of passes at most one time more or less than the sum of its weights. For this the n
utterances of a speaker (of a source, where speakers do not count) have positions x in
[0, 1), evenly spaced in a random order; with W the sum of an utterance's weights before
a pass, the pass takes

    floor(W + w + x) - floor(W + x)

copies of it: of n utterances with one weight n w in all, up to rounding. All is a
function of (ids, speakers, lengths, options, seed, pass).

Sources: Lhotse's `WeightedSimpleCutSampler`; PyKaldi2's `SpeechDataStream` (speakers
first, then their utterances); Conneau & Lample 2019, "Cross-lingual language model
pretraining", section 3.1 (shares to a power).
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence

import numpy as np

from latflow.corpus.combine import source_of
from latflow.errors import UserError
from latflow.training.data_options import BatchOptions, SamplingOptions
from latflow.training.readers import FrameReader

log = logging.getLogger(__name__)

_POSITIONS_KEY = zlib.crc32(b"places of the utterances of a source")


class UtteranceWeights:
    """Weights of the utterances that are trained on.

    Args:
        source: int [N], number of each utterance's source; -1 for one without weights.
        weights: of each source, those of the first, second, ... pass; the last holds
            for all passes behind.
        seed: of the positions.
        share: float64 [N], factors on the weights by speaker and length; None for 1.
        speaker: int [N], number of each utterance's speaker, whose utterances are
            spread over the passes together; None for those of a source.
    """

    def __init__(
        self,
        source: np.ndarray,
        weights: Sequence[Sequence[float]],
        seed: int,
        *,
        share: np.ndarray | None = None,
        speaker: np.ndarray | None = None,
    ) -> None:
        self._source, self._weights = source, [*weights, (1.0,)]  # at -1: once
        self._share = np.ones(len(source)) if share is None else share
        self._place = _places(source, speaker, seed)

    @classmethod
    def of(
        cls, reader: FrameReader, used: np.ndarray, options: BatchOptions, seed: int
    ) -> UtteranceWeights | None:
        """Return the weights that options give to utterances; None where they do not.

        Args:
            reader: of a corpus: ids, speakers, lengths.
            used: int64 [N], numbers of the utterances that are trained on.
            options: `source_weights` and `sampling`.
            seed: of the positions.

        Raises:
            UserError: a source has no utterance.
        """
        sampling = options.sampling
        if not options.source_weights and sampling.is_even:
            return None
        source = _sources([reader.utt_ids[i] for i in used], options)
        weights = [its for _, its in sorted(options.source_weights.items())]
        if sampling.is_even:
            return cls(source, weights, seed)
        speaker = reader.speakers[used]
        share = shares(speaker, reader.lengths[used], sampling, source)
        log.info(
            "sampling: utterances come %.3g to %.3g times a pass, before the weights "
            "of sources",
            share.min(),
            share.max(),
        )
        by_speaker = speaker if sampling.speaker_power < 1 else None
        return cls(source, weights, seed, share=share, speaker=by_speaker)

    def copies(self, whole_pass: int) -> np.ndarray:
        """Return how often a pass (from 0) takes each utterance, int64 [N].

        Raises:
            UserError: it takes none.
        """
        before = np.floor(self._sums(whole_pass) + self._place)
        after = np.floor(self._sums(whole_pass + 1) + self._place)
        copies = (after - before).astype(np.int64)
        if not copies.any():
            raise UserError(
                f"data.source_weights: pass {whole_pass + 1} takes no utterance",
                remedy="raise a weight",
            )
        return copies

    def final(self) -> np.ndarray:
        """Return the weights of the utterances in the last passes, float64 [N]."""
        last = np.array([its[-1] for its in self._weights], np.float64)
        return last[self._source] * self._share

    def _sums(self, whole_pass: int) -> np.ndarray:
        """Return the sums of the utterances' weights before a pass."""
        by_source = [
            math.fsum(its[:whole_pass]) + its[-1] * max(0, whole_pass - len(its))
            for its in self._weights
        ]
        return np.array(by_source)[self._source] * self._share


def _sources(utt_ids: Sequence[str], options: BatchOptions) -> np.ndarray:
    """Return the number of each utterance's source with weights, or -1: int16 [N].

    Raises:
        UserError: a source has no utterance.
    """
    numbers = {name: i for i, name in enumerate(sorted(options.source_weights))}
    if not numbers:
        return np.full(len(utt_ids), -1, np.int16)
    found = [numbers.get(source_of(utt_id), -1) for utt_id in utt_ids]
    source = np.array(found, np.int16)
    for name, number in numbers.items():
        total = int((source == number).sum())
        weights = ", ".join(f"{w:g}" for w in options.source_weights[name])
        log.info("source %s: %d utterances, weight %s", name, total, weights)
        if not total:
            raise UserError(
                f"data.source_weights: no utterance of {name} can be trained on",
                remedy="leave it out, or see the ledgers for its utterances",
            )
    return source


def shares(
    speakers: np.ndarray,
    lengths: np.ndarray,
    options: SamplingOptions,
    source: np.ndarray,
) -> np.ndarray:
    """Return the shares of utterances in a pass over their source, with mean 1.

    Args:
        speakers: int [N], numbers of the speakers.
        lengths: integers [N], frames, all above 0.
        options: of sampling.
        source: int [N], number of each utterance's source.

    Returns:
        float64 [N].
    """
    power = lengths.astype(np.float64) ** options.length_power
    _, speaker = np.unique(_pairs(source, speakers), return_inverse=True)
    of_speaker = np.bincount(speaker, power)[speaker]
    share = power * of_speaker ** (options.speaker_power - 1)
    _, number = np.unique(source, return_inverse=True)
    mean = np.bincount(number, share) / np.bincount(number)
    return share / mean[number]


def _places(source: np.ndarray, speaker: np.ndarray | None, seed: int) -> np.ndarray:
    """Return positions in [0, 1), evenly spaced over each source or speaker: [N].

    Each source, or speaker, has its own start: those of one utterance each would
    otherwise all come in the same passes.
    """
    number, generator = len(source), np.random.default_rng([seed, _POSITIONS_KEY])
    group = source if speaker is None else _pairs(source, speaker)
    order = np.lexsort((generator.random(number), group))
    ordered = group[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[:number]
    begin = np.flatnonzero(is_first)
    sizes = np.diff(np.append(begin, number))
    rank = np.arange(number) - np.repeat(begin, sizes)
    start = np.repeat(generator.random(len(begin)), sizes)
    positions = np.empty(number)
    positions[order] = (rank + start) / np.repeat(sizes, sizes)
    return positions


def _pairs(source: np.ndarray, speaker: np.ndarray) -> np.ndarray:
    """Return a number for each pair of source and speaker, int64 [N]."""
    return ((source.astype(np.int64) + 1) << 32) + speaker
