"""From a lattice to the words that count, with times and confidences.

Two decisions are known. `best_path` takes the path of least cost, which has the fewest
*sentence* errors to expect; `mbr` takes the words with the fewest *word* errors to
expect. Either way a word's confidence is its posterior at its place in the lattice.

Public: `Transcriber`, `Transcript`.

Source: Kaldi `latbin/lattice-mbr-decode.cc`, `steps/get_ctm_conf.sh`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.gmm.model import AcousticModel
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.determinise import determinise
from latflow.lattice.lattice import BestPath, Lattice
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.lattice.word_alignment import WordAligner
from latflow.scoring.ctm import TimedWord, timed_words
from latflow.scoring.word_times import (
    Pronunciations,
    phone_segments,
    split_phones,
)

# Word sequences that cost this much more than the best have no say in confidences.
_BEAM = 6.0


@dataclass(frozen=True)
class Transcript:
    """What was recognised of one utterance.

    Attributes:
        utterance: its id.
        words: with times in seconds and confidences.
        phones: of the best path, with times.
    """

    utterance: str
    words: Sequence[TimedWord]
    phones: Sequence[TimedWord]


@dataclass(frozen=True)
class Transcriber:
    """Recognises words in lattices; may be called from many threads at once.

    Attributes:
        lang: the language directory.
        transitions: of the model that decoded.
        scales: of graph and acoustic costs, and the penalty of a word.
        frame_shift: seconds.
        decision: `best_path` or `mbr`.
    """

    lang: Lang
    transitions: TransitionModel
    scales: Scales
    frame_shift: float
    decision: str

    @classmethod
    def load(
        cls,
        lang_dir: str | Path,
        model_dir: str | Path,
        *,
        scales: Scales,
        frame_shift: float,
        decision: str,
    ) -> Transcriber:
        """Read the language directory and the model."""
        model = AcousticModel.load(Path(model_dir, "final.mdl"))
        lang = Lang.load(lang_dir)
        return cls(lang, model.transitions, scales, frame_shift, decision)

    def __call__(self, item: tuple[str, Lattice]) -> Transcript:
        """Recognise one utterance.

        Args:
            item: its id and lattice.

        Raises:
            UserError: the lattice has no path, or a word that the language directory
                has not.
        """
        utterance, lattice = item
        try:
            path = best_paths(lattice, [self.scales])[0]
            words, phones = self._of_path(utterance, path)
            return Transcript(utterance, self._sure(utterance, lattice, words), phones)
        except UserError as error:
            raise UserError(
                error.what,
                file=error.file,
                utterance=utterance,
                remedy=error.remedy,
            ) from None

    def _sure(
        self, utterance: str, lattice: Lattice, words: list[TimedWord]
    ) -> list[TimedWord]:
        """Words with confidences: those of the best path, or better ones."""
        lm_scale, acoustic_scale, penalty = self.scales
        penalties = np.where(lattice.word != 0, penalty / lm_scale, 0.0)
        graph_cost = (lattice.graph_cost + penalties).astype(np.float32)
        compact = determinise(
            replace(lattice, graph_cost=graph_cost),
            beam=_BEAM,
            lm_scale=lm_scale,
            acoustic_scale=acoustic_scale,
        )
        is_mbr = self.decision == "mbr"
        found = minimum_bayes_risk(
            self._aligner(compact) if is_mbr else compact,
            lm_scale=lm_scale,
            acoustic_scale=acoustic_scale,
            decode_mbr=is_mbr,
            words=None if is_mbr else [self.lang.word_ids[w.word] for w in words],
        )
        if is_mbr:
            return timed_words(
                utterance, found, self.lang.words, frame_shift=self.frame_shift
            )
        return [
            replace(word, confidence=float(confidence))
            for word, confidence in zip(words, found.confidence, strict=True)
        ]

    @cached_property
    def _aligner(self) -> WordAligner:
        """Gives words exact times."""
        return WordAligner(self.transitions, self.lang)

    @cached_property
    def _pronunciations(self) -> Pronunciations:
        """Of the language directory's lexicon."""
        return Pronunciations(
            {w: [entry for _, entry in es] for w, es in self.lang.lexicon.items()},
            [self.lang.phones[self.lang.optional_silence]],
            is_position_dependent=self.lang.word_boundary is not None,
        )

    def _of_path(
        self, utterance: str, path: BestPath
    ) -> tuple[list[TimedWord], list[TimedWord]]:
        """Words and phones of a path, with times in seconds."""
        unknown = [word for word in path.words.tolist() if word not in self.lang.words]
        if unknown:
            raise UserError(
                f"word id {unknown[0]} is not in words.txt of {self.lang.folder}",
                remedy="decode again with a graph made from this lang directory",
            )
        words = [self.lang.words[word] for word in path.words.tolist()]
        phones, bounds, is_cut_off = phone_segments(
            path.transition_ids, self.transitions
        )
        names = [self.lang.phones[phone] for phone in phones]
        spans = split_phones(names, words, self._pronunciations, is_partial=is_cut_off)
        if spans is None:
            frames = list(
                zip(map(int, path.word_begin), map(int, path.word_end), strict=True)
            )
        else:
            frames = [(bounds[first], bounds[last]) for first, last in spans]
        spoken = list(pairwise(bounds))
        return (
            list(self._timed(utterance, words, frames)),
            list(self._timed(utterance, names, spoken)),
        )

    def _timed(
        self, utterance: str, labels: list[str], frames: list[tuple[int, int]]
    ) -> Iterator[TimedWord]:
        """Labels with their frames turned to seconds."""
        for label, (begin, end) in zip(labels, frames, strict=True):
            start = begin * self.frame_shift
            yield TimedWord(utterance, start, (end - begin) * self.frame_shift, label)
