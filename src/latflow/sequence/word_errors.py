"""Word errors of a network on a set: what sequence training is judged by.

To the trainer this is a criterion like any other: its "frames" are the words of the
references and its loss their errors, so that the mean of a set is its word error rate
and the best epoch is the one with the fewest errors.

Public: `WordErrors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latflow.criteria.base import Criterion, Loss
from latflow.decode.retry import RetryPolicy
from latflow.decode.search import LatticeDecoder
from latflow.decode.search_graph import GraphFile
from latflow.decode.tune import read_scales, words_of
from latflow.features.live import open_frames
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.nnet.network import Output
from latflow.scoring.alignment import ErrorCounts, Rule, count_errors
from latflow.scoring.text import WordFilter
from latflow.training.batches import Batch


@dataclass(frozen=True)
class Scorecard:
    """How words are found and counted.

    Attributes:
        lang: names of the words.
        references: words by utterance.
        scale: language model weight and insertion penalty.
        keep: words that count.
        rule: of the alignment of words.
    """

    lang: Lang
    references: Mapping[str, Sequence[str]]
    scale: Scales
    keep: WordFilter
    rule: Rule

    @classmethod
    def of(
        cls,
        frames_dir: str | Path,
        lang: Lang,
        scales: str | Path,
        options: Mapping[str, Any],
    ) -> Scorecard:
        """Read references and scales.

        Args:
            frames_dir: features of the set.
            lang: of the decoding graph.
            scales: `scales.json` of the network that training starts from.
            options: section `score`: how words are compared.
        """
        store = open_frames(frames_dir)
        texts = zip(store.utt_ids, store.texts, strict=True)
        chosen = read_scales(scales)
        return cls(
            lang,
            {utterance: text.split() for utterance, text in texts},
            Scales.from_lmwt(chosen["lmwt"], chosen["wip"]),
            WordFilter.from_options(options),
            options["alignment"],
        )


class WordErrors(Criterion):
    """Words that decoding gets wrong; it has no gradient.

    Args:
        graph: the decoding graph's file.
        model: its transition model.
        scorecard: how words are found and counted.
        log_priors: float32 [P], scaled, taken off the log posteriors.
        options: `dev_search` of `workflow/schemas/sequence.yaml`.
        threads: utterances decoded at a time.
    """

    name = "word_errors"

    def __init__(
        self,
        graph: str | Path,
        model: TransitionModel,
        scorecard: Scorecard,
        log_priors: Tensor,
        *,
        options: Mapping[str, Any],
        threads: int,
    ) -> None:
        self._scorecard, self._graph = scorecard, graph
        self._priors = log_priors
        self._scale = options["acoustic_scale"]
        beam, factor = options["beam"], options["retry_beam_factor"]
        self._policy = RetryPolicy((beam, beam * factor) if factor > 1 else (beam,))
        self._decoder = LatticeDecoder(
            GraphFile(Graph.load(graph), graph),
            model.pdf,
            beam=options["beam"],
            lattice_beam=options["lattice_beam"],
            max_active=options["max_active"],
            min_active=options["min_active"],
        )
        self._pool = ThreadPoolExecutor(max(1, threads), "word-errors")

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> PendingErrors:
        """Start decoding; see `Criterion.begin`."""
        logits, lengths = next(iter(outputs.values()))
        scores = functional.log_softmax(logits.detach().float(), -1)
        log_likes = (scores - self._priors.to(scores.device)).cpu().numpy()
        futures = [
            self._pool.submit(self._count, name, log_likes[b, :length])
            for b, (name, length) in enumerate(
                zip(batch.utterances, lengths.tolist(), strict=True)
            )
        ]
        return PendingErrors(futures)

    def _count(self, utterance: str, log_likes: np.ndarray) -> ErrorCounts:
        """Decode an utterance and count; one that gives nothing is all deleted."""
        card = self._scorecard
        attempt = self._policy.run(
            lambda beam: self._decoder.decode(
                np.ascontiguousarray(log_likes),
                acoustic_scale=self._scale,
                utterance=utterance,
                beam=beam,
            ),
            utterance=utterance,
        )
        heard: list[str] = []
        if attempt.decoded is not None:
            path = best_paths(attempt.decoded.lattice, [card.scale])[0]
            heard = card.keep(words_of(path, card.lang, self._graph, utterance))
        reference = card.keep(card.references[utterance])
        return count_errors(reference, heard, rule=card.rule)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class PendingErrors:
    """Utterances that are being decoded."""

    futures: Sequence[Future[ErrorCounts]]

    def finish(self) -> Loss:
        """Wait, and sum up: errors over words."""
        counts = [future.result() for future in self.futures]
        by_sequence = torch.tensor([c.errors for c in counts], dtype=torch.float64)
        return Loss(by_sequence.sum(), sum(c.words for c in counts), {}, by_sequence)
