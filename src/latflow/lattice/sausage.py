"""Sausages (confusion networks): a row of bins, each with words and their posteriors.

A *bin* is a place in the utterance at which words compete; its posteriors add up to 1.
Word 0 stands for "no word here". Made by `latflow.lattice.mbr`.

Public: `Sausage`.

Source: Kaldi `lat/sausages.h` (`GetSausageStats`, `GetSausageTimes`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Sausage:
    """Q bins with E entries in all; the likeliest word of a bin comes first.

    Attributes:
        begin: int64[Q + 1]; entries of bin q are begin[q] ... begin[q + 1] - 1.
        word: int32[E], word ids; 0 for no word.
        posterior: float64[E]; those of a bin add up to 1.
        start: float64[E], mean first frame of the entry, over the paths that have it.
        end: float64[E], mean frame behind its last one.
        bin_start: float64[Q], mean over the entries of each bin.
        bin_end: float64[Q]; bins do not overlap.
    """

    begin: np.ndarray
    word: np.ndarray
    posterior: np.ndarray
    start: np.ndarray
    end: np.ndarray
    bin_start: np.ndarray
    bin_end: np.ndarray

    @property
    def num_bins(self) -> int:
        """Q."""
        return len(self.begin) - 1

    def bin(self, q: int) -> list[tuple[int, float]]:
        """(word, posterior) of a bin, likeliest first."""
        span = slice(self.begin[q], self.begin[q + 1])
        words, posteriors = self.word[span].tolist(), self.posterior[span].tolist()
        return list(zip(words, posteriors, strict=True))

    def best_entries(self) -> np.ndarray:
        """The likeliest entry of each bin, int64[Q]."""
        return self.begin[:-1]

    def entries_of(self, words: np.ndarray) -> np.ndarray:
        """Find a given word in each bin.

        Args:
            words: int32[Q], a word for each bin.

        Returns:
            int64[Q], entry of that word; -1 where the bin does not have it.
        """
        bins = np.repeat(np.arange(self.num_bins), np.diff(self.begin))
        found = np.full(self.num_bins, -1, np.int64)
        entries = np.flatnonzero(self.word == np.asarray(words)[bins])
        found[bins[entries]] = entries
        return found

    @classmethod
    def from_events(
        cls, key: np.ndarray, sums: np.ndarray, words: np.ndarray, num_bins: int
    ) -> Sausage:
        """Add up what paths contribute to the entries.

        Args:
            key: int64[M], bin * number of words + index of the word.
            sums: float64[3, M]: posterior, and posterior times first frame and times
                the frame behind the last one.
            words: int32[W], word ids.
            num_bins: Q.
        """
        entries, slot = np.unique(key, return_inverse=True)
        size = len(entries)
        posterior, start, end = (np.bincount(slot, row, size) for row in sums)
        bins, word = entries // len(words), words[entries % len(words)]
        bin_start = np.bincount(bins, start, num_bins)
        bin_end = np.bincount(bins, end, num_bins)
        # Neighbours that overlap meet half-way.
        for q in range(1, num_bins):
            if bin_end[q - 1] > bin_start[q]:
                bin_end[q - 1] = bin_start[q] = (bin_end[q - 1] + bin_start[q]) / 2
        order = np.lexsort((-word, -posterior, bins))
        counts = np.bincount(bins, minlength=num_bins)
        return cls(
            begin=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            word=word[order].astype(np.int32),
            posterior=posterior[order],
            start=(start / posterior)[order],
            end=(end / posterior)[order],
            bin_start=bin_start,
            bin_end=bin_end,
        )
