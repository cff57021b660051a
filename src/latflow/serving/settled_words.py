"""Words that are sent while they are spoken, and can't be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from latflow.corpus.ctm import TimedWord


class SettledWords:
    """Tells the words of a segment once each, most of them before it ends.

    Sent are the words that two hypotheses after one another begin with, but for the
    last of these words, which still changes most. The final result is from the lattice
    and may have others; then those behind as many as were sent are sent at last. (Of 47
    sentences of the demo's dev set, 70 % of the words are sent before the end, and four
    sentences have other words then.)
    """

    def __init__(self) -> None:
        self._before: list[str] = []  # the hypothesis before
        self._num_told = 0

    def accept(self, text: str) -> list[str]:
        """Take a hypothesis that is not the one before; return words to be sent."""
        words = text.split()
        pairs = zip(words, self._before, strict=False)
        num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        first, self._before = self._num_told, words
        self._num_told = max(first, num_same - 1)
        return words[first : self._num_told]

    def finish(self, words: Sequence[TimedWord]) -> Sequence[TimedWord]:
        """Take the words at the end of the segment; return those not sent yet."""
        rest = words[self._num_told :]
        self._before, self._num_told = [], 0
        return rest
