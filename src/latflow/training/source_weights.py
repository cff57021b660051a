"""How often a pass over the data takes the utterances of each source of a corpus.

A source of weight w gives each of its utterances w times a pass on average: floor(w) or
ceil(w) times, and after any number of passes at most one time more or less than the sum
of the weights. For this the n utterances of a source have places x in [0, 1), drawn
once and evenly spaced; with W the sum of the weights before a pass, the pass takes

    floor(W + w + x) - floor(W + x)

copies of an utterance: n w in all, up to rounding. All is a function of (ids, options,
seed, pass).

Public: `SourceWeights`, `final_weights`.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from latflow.corpus.combine import source_of
from latflow.errors import UserError
from latflow.training.data_options import BatchOptions

log = logging.getLogger(__name__)

_PLACES_KEY = zlib.crc32(b"places of the utterances of a source")


class SourceWeights:
    """Weights of the utterances of a combined corpus.

    Args:
        source: int [N], number of each utterance's source; -1 for one without weights.
        weights: of each source, those of the first, second, ... pass; the last holds
            for all passes behind.
        seed: of the places.
    """

    def __init__(
        self, source: np.ndarray, weights: Sequence[Sequence[float]], seed: int
    ) -> None:
        self._source, self._weights = source, [*weights, (1.0,)]  # at -1: once
        self._place = np.zeros(len(source))
        for number in range(len(weights)):
            (its,) = np.nonzero(source == number)
            generator = np.random.default_rng([seed, _PLACES_KEY, number])
            ranks = generator.permutation(len(its))
            self._place[its] = (ranks + 0.5) / max(1, len(its))

    @classmethod
    def of(
        cls,
        utt_ids: Sequence[str],
        used: np.ndarray,
        options: BatchOptions,
        seed: int,
    ) -> SourceWeights | None:
        """Return the weights that options give to utterances; None where they do not.

        Args:
            utt_ids: of a corpus.
            used: int64 [N], numbers of the utterances that are trained on.
            options: `source_weights`.
            seed: of the places.

        Raises:
            UserError: a source has no utterance.
        """
        if not options.source_weights:
            return None
        numbers = {name: i for i, name in enumerate(sorted(options.source_weights))}
        found = [numbers.get(source_of(utt_ids[int(i)]), -1) for i in used]
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
        return cls(source, [options.source_weights[name] for name in numbers], seed)

    def copies(self, whole_pass: int) -> np.ndarray:
        """Return how often a pass (from 0) takes each utterance, int64 [N].

        Raises:
            UserError: it takes none.
        """
        before = np.floor(self._sums(whole_pass)[self._source] + self._place)
        after = np.floor(self._sums(whole_pass + 1)[self._source] + self._place)
        copies = (after - before).astype(np.int64)
        if not copies.any():
            raise UserError(
                f"data.source_weights: pass {whole_pass + 1} takes no utterance",
                remedy="raise a weight",
            )
        return copies

    def _sums(self, whole_pass: int) -> np.ndarray:
        """Return the sums of the weights before a pass, by source."""
        return np.array(
            [
                math.fsum(its[:whole_pass]) + its[-1] * max(0, whole_pass - len(its))
                for its in self._weights
            ]
        )


def final_weights(utt_ids: Iterable[str], options: BatchOptions) -> np.ndarray | None:
    """Return the weights of utterances in the last passes, float64 [N]; None for 1."""
    if not options.source_weights:
        return None
    last = {name: weights[-1] for name, weights in options.source_weights.items()}
    return np.array([last.get(source_of(u), 1.0) for u in utt_ids], np.float64)
