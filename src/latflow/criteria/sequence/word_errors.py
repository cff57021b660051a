"""Word errors of a network on a set, by which sequence training is judged.

To the trainer this is a criterion like any other: its "frames" are the words of the
references and its loss their errors, so that the mean of a set is its word error rate
and the best epoch is the one with the fewest errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.batch import Batch
from latflow.criteria.protocol import Criterion, Loss, Pending
from latflow.criteria.sequence.generation import LatticeMaker
from latflow.criteria.sequence.options import DevSearchOptions
from latflow.decode.search_graph import GraphFile
from latflow.features.source import open_frames
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import ErrorCounts, Rule, count_errors
from latflow.nnet.network import Output, log_likelihoods_of
from latflow.scoring.options import ComparisonOptions
from latflow.scoring.transcripts import names_of
from latflow.scoring.tune import read_scales


@dataclass(frozen=True)
class Scorecard:
    """Search and counting of words.

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
    keep: Callable[[Iterable[str]], list[str]]
    rule: Rule

    @classmethod
    def of(
        cls,
        frames_dir: str | Path,
        lang: Lang,
        scales: str | Path,
        options: ComparisonOptions,
        *,
        lattice_scale: float = 1.0,
    ) -> Scorecard:
        """Read references and scales.

        Args:
            frames_dir: features of the set.
            lang: of the decoding graph.
            scales: `scales.json` of the network that training starts from.
            options: section `score`: how words are compared.
            lattice_scale: factor of acoustic costs in the lattices that the scales
                were chosen on.
        """
        store = open_frames(frames_dir)
        texts = zip(store.utt_ids, store.texts, strict=True)
        chosen = read_scales(scales)
        scale = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
        return cls(
            lang,
            {utterance: text.split() for utterance, text in texts},
            scale._replace(acoustic_scale=lattice_scale * scale.acoustic_scale),
            options.filter,
            options.alignment,
        )


class WordErrors(Criterion):
    """Words that decoding gets wrong; it has no gradient.

    Args:
        graph: the decoding graph's file.
        model: its transition model.
        scorecard: how words are found and counted.
        log_priors: scaled, float32 [P]; None where they are not taken off.
        options: of the search.
        threads: utterances decoded at a time.
    """

    name = "word_errors"

    def __init__(
        self,
        graph: str | Path,
        model: TransitionModel,
        scorecard: Scorecard,
        log_priors: Tensor | None,
        *,
        options: DevSearchOptions,
        threads: int,
    ) -> None:
        self._scorecard, self._graph = scorecard, graph
        self._log_priors = log_priors
        self._lattice_beam = options.lattice_beam
        self._maker = LatticeMaker(
            GraphFile(Graph.load(graph), graph), model, options, allow_partial=True
        )
        self._pool = ThreadPoolExecutor(max(1, threads), "word-errors")

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Start decoding; see `Criterion.begin`."""
        logits, lengths = next(iter(outputs.values()))
        scores = log_likelihoods_of(logits.detach().float(), self._log_priors)
        log_likes = scores.cpu().numpy()
        futures = [
            self._pool.submit(self._count, name, log_likes[b, :length])
            for b, (name, length) in enumerate(
                zip(batch.utterances, lengths.tolist(), strict=True)
            )
        ]
        return partial(_sum_up, futures)

    def _count(self, utterance: str, log_likes: np.ndarray) -> ErrorCounts:
        """Decode an utterance and count; one that gives nothing is all deleted."""
        card = self._scorecard
        attempt = self._maker.make(utterance, log_likes, self._lattice_beam)
        hypothesis: list[str] = []
        if attempt.decoded is not None:
            path = best_paths(attempt.decoded.lattice, [card.scale])[0]
            names, file = card.lang.words, self._graph
            words = names_of(path.words, names, file=file, utterance=utterance)
            hypothesis = card.keep(words)
        reference = card.keep(card.references[utterance])
        return count_errors(reference, hypothesis, rule=card.rule)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


def _sum_up(futures: Sequence[Future[ErrorCounts]]) -> Loss:
    """Wait, and sum up: errors over words."""
    counts = [future.result() for future in futures]
    by_sequence = torch.tensor([c.errors for c in counts], dtype=torch.float64)
    return Loss(by_sequence.sum(), sum(c.words for c in counts), {}, by_sequence)
