"""Minimum Bayes risk decoding: the words with the fewest errors to expect.

The best path of a lattice has the fewest *sentence* errors to expect. The word sequence
R with the fewest word errors to expect minimizes

    L(R) = sum over paths of posterior(path) * edit distance(words of the path, R).

The sum is done on the lattice by a recursion that aligns each arc by the *mean* of the
distances of all the paths to it (an upper bound of L, exact where paths do not rejoin).
It also says how probable each word is at each position of R: a sausage. R is then
replaced by the likeliest word of each bin, and again, until it stays. Positions for
insertions are had by writing R with an empty word (0) before, between and behind its
words.

The arcs of the lattice should be whole words (`latflow.lattice.word_alignment`), or
the times are where labels stand. Raw lattices are better determinized before: their
many parallel paths cost time and blur the bound.

Source: Xu, Povey, Mangu, Zhu 2011, "Minimum Bayes Risk decoding and system combination
based on a recursion for edit distance" (figures 4-6, appendix C); Kaldi
`lat/sausages.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.path_sums import costs_to_end, forward_sums
from latflow.lattice.word_graph import WordGraph

# An inserted word costs a little more than a replaced one, so that words go to bins.
_INSERTION = 1.0 + 1e-5
_TIE = 1e-9  # distances that differ by less are equal but for rounding
# Source int32[A], ascending, target int32[A], higher than the source, index of the word
# int32[A], 0 for none, and each arc's share in the paths to its target, float64[A].
Arcs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_MAX_ITERATIONS = 100
_PAIR, _INSERT, _DELETE = range(3)


@dataclass(frozen=True, eq=False)
class Sausage:
    """A row of bins, each with words and their posteriors (a confusion network).

    A *bin* is a position in the utterance at which words compete; its posteriors add up
    to 1. Word 0 stands for "no word here". Q bins have E entries in all; the likeliest
    word of a bin comes first.

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
        """Return (word, posterior) of a bin, likeliest first."""
        span = slice(self.begin[q], self.begin[q + 1])
        words, posteriors = self.word[span].tolist(), self.posterior[span].tolist()
        return list(zip(words, posteriors, strict=True))

    def best_entries(self) -> np.ndarray:
        """Return the likeliest entry of each bin, int64[Q]."""
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
        # Neighbours that overlap meet in the middle.
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


@dataclass(frozen=True, eq=False)
class MbrResult:
    """The chosen words with confidences and times; N words.

    Attributes:
        words: int32[N], word ids.
        confidence: float64[N], posterior of each word at its position, in [0, 1].
        begin: float64[N], first frame of each word, a mean; words do not overlap.
        end: float64[N], frame behind its last one.
        risk: word errors to expect if the posteriors are right.
        sausage: all bins; words stand in every second one of the last iteration.
        risks: risk in each iteration; it falls but for `_INSERTION`'s last digits.
    """

    words: np.ndarray
    confidence: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    risk: float
    sausage: Sausage
    risks: tuple[float, ...]


def minimum_bayes_risk(
    lattice: CompactLattice | Lattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
    decode_mbr: bool = True,
    print_silence: bool = False,
    words: Sequence[int] | np.ndarray | None = None,
) -> MbrResult:
    """Find the words with the least risk, with confidences and times.

    Args:
        lattice: of words; see the module's description.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs; it decides how sharp the posteriors
            are (about 1 / LMWT).
        decode_mbr: whether to improve the words; if not, they stay those of the best
            path (or `words`), and get their confidences.
        print_silence: whether bins whose best entry is not a word are listed, as word
            0.
        words: the words to begin with; None for those of the best path.

    Raises:
        UserError: no path leads to a final state, a cost is NaN, or `words` has a 0.

    Source: Kaldi `lat/sausages.cc` (`MbrDecode`), `latbin/lattice-mbr-decode.cc`.
    """
    graph = WordGraph.of(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    risk_of = _Risk(graph)
    current = _best_words(graph) if words is None else np.asarray(words, np.int32)
    if (current == 0).any():
        raise UserError(
            "word 0 (no word) in a word sequence", remedy="leave it out of the words"
        )
    risks: list[float] = []
    while True:
        positions = _with_gaps(current)
        risk, sausage = risk_of(positions)
        risks.append(risk)
        best = sausage.word[sausage.best_entries()]
        if not decode_mbr or _is_settled(sausage, positions):
            break
        positions, current = best, best[best != 0]
        if len(risks) > _MAX_ITERATIONS:
            break
    return _result(sausage, positions, risks, print_silence=print_silence)


def _is_settled(sausage: Sausage, positions: np.ndarray) -> bool:
    """Return whether no position has a word that is likelier than the present one."""
    present = sausage.entries_of(positions)
    best = sausage.posterior[sausage.best_entries()]
    return bool((present >= 0).all() and (sausage.posterior[present] == best).all())


def _with_gaps(words: np.ndarray) -> np.ndarray:
    """Put the empty word before, between and behind words, int32[2 N + 1]."""
    positions = np.zeros(2 * len(words) + 1, np.int32)
    positions[1::2] = words
    return positions


def _best_words(graph: WordGraph) -> np.ndarray:
    """Return the words of the cheapest path, int32[N]; of equal arcs, of the first."""
    rest = graph.cost + costs_to_end(graph.arcs)[graph.target]
    found, state = [], 0
    while state < graph.num_states - 1:
        first, last = graph.arc_begin[state], graph.arc_begin[state + 1]
        arc = first + int(np.argmin(rest[first:last]))
        found.append(graph.word[arc])
        state = graph.target[arc]
    words = np.array(found, np.int32)
    return words[words != 0]


def _result(
    sausage: Sausage, positions: np.ndarray, risks: list[float], *, print_silence: bool
) -> MbrResult:
    """Collect the words chosen, with their confidences and times."""
    entry = sausage.entries_of(positions)
    is_listed = np.full(len(positions), print_silence) | (positions != 0)
    words, entry = positions[is_listed], entry[is_listed]
    is_found = entry >= 0  # a word that was given need not be in the lattice
    bins = np.flatnonzero(is_listed)
    confidence = np.where(is_found, sausage.posterior[entry], 0.0)
    begin = np.where(is_found, sausage.start[entry], sausage.bin_start[bins])
    end = np.where(is_found, sausage.end[entry], sausage.bin_end[bins])
    _separate(begin, end)
    return MbrResult(
        words=words,
        confidence=np.clip(confidence, 0.0, 1.0),
        begin=begin,
        end=end,
        risk=risks[-1],
        sausage=sausage,
        risks=tuple(risks),
    )


def _separate(begin: np.ndarray, end: np.ndarray) -> None:
    """Move the times of words that overlap their neighbours, in place.

    The time that two words cover together is shared out in proportion to their
    lengths, and does not reach back into the word before.

    Source: Kaldi `lat/sausages.cc` (`MbrDecode`).
    """
    for i in range(1, len(begin)):
        if end[i - 1] <= begin[i]:
            continue
        before = end[i - 2] if i > 1 else 0.0
        first, second = end[i - 1] - begin[i - 1], end[i] - begin[i]
        left = max(before, min(begin[i - 1], begin[i]))
        right = max(end[i - 1], end[i])
        share = first / (first + second) if first > 0 else 0.0
        middle = left + (right - left) * share
        begin[i - 1], end[i - 1], begin[i], end[i] = left, middle, middle, right


class _Risk:
    """Compute the risk of word sequences on one lattice.

    Args:
        graph: the lattice.
    """

    def __init__(self, graph: WordGraph) -> None:
        ids, index = np.unique(np.append(graph.word, 0), return_inverse=True)
        self._ids = ids.astype(np.int32)  # 0 has index 0: word ids are not negative
        self._frame = graph.frame.astype(np.float64)
        sums = forward_sums(graph.arcs)
        # Part of each arc in the sum of the paths to the state it leads to.
        part, total = sums.total[graph.source] * sums.weight, sums.total[graph.target]
        share = np.divide(part, total, out=np.zeros_like(part), where=total > 0.0)
        word = index[:-1].astype(np.int32)
        self._arcs = (graph.source, graph.target, word, share)

    def __call__(self, positions: np.ndarray) -> tuple[float, Sausage]:
        """Find the risk of words (int32[Q], 0 for gaps), and their bins."""
        index = np.searchsorted(self._ids, positions)
        index = np.minimum(index, len(self._ids) - 1)
        unknown = -1  # a word that the lattice does not have
        labels = np.where(self._ids[index] == positions, index, unknown).astype(
            np.int32
        )
        distance = _distances(self._arcs, len(self._frame), labels)
        return float(distance[-1, -1]), self._sausage(labels, distance)

    def _sausage(self, labels: np.ndarray, distance: np.ndarray) -> Sausage:
        """Find the bins, one for each of the labels."""
        num_words = len(self._ids)
        key, sums, left = _events(self._arcs, self._frame, labels, distance, num_words)
        # Positions that the start is left with are left out before the first arc, at
        # frame 0: such a position, and all before it.
        before = np.zeros((3, len(labels)))
        before[0] = np.cumsum(left[:0:-1])[::-1]
        bins = np.flatnonzero(before[0])
        return Sausage.from_events(
            np.concatenate([key, bins * num_words]),
            np.concatenate([sums, before[:, bins]], axis=1),
            self._ids,
            len(labels),
        )


@njit(cache=True, nogil=True)
def _align_arc(
    before: np.ndarray, word: int, labels: np.ndarray, mean: np.ndarray, by: np.ndarray
) -> None:
    """Align one more arc, given the mean distances at the state it leaves.

    Args:
        before: float64[Q + 1], mean distance of the paths to that state from the first
            q positions.
        word: word of the arc, 0 for none.
        labels: int32[Q], words of the positions, 0 for gaps.
        mean: float64[Q + 1], filled: the same behind the arc.
        by: int8[Q + 1], filled: how position q was aligned: _PAIR with the arc's word,
            _INSERT (the word is inserted behind position q) or _DELETE (position q is
            left out behind the word).
    """
    insertion = _INSERTION if word != 0 else 0.0
    mean[0] = before[0] + insertion
    by[0] = _INSERT
    for q in range(1, len(mean)):
        label = labels[q - 1]
        pair = before[q - 1] + (0.0 if word == label else 1.0)
        insert = before[q] + insertion
        delete = mean[q - 1] + (0.0 if label == 0 else 1.0)
        if pair <= insert + _TIE and pair <= delete + _TIE:
            mean[q] = pair
            by[q] = _PAIR
        elif insert <= delete + _TIE:
            mean[q] = insert
            by[q] = _INSERT
        else:
            mean[q] = delete
            by[q] = _DELETE


@njit(cache=True, nogil=True)
def _distances(arcs: Arcs, num_states: int, labels: np.ndarray) -> np.ndarray:
    """Compute the mean edit distance of the paths to each state.

    Args:
        arcs: of the graph.
        num_states: S.
        labels: int32[Q], words of the positions, 0 for gaps, -1 for unknown words.

    Returns:
        float64[S, Q + 1], from the first q positions.

    Source: figure 4 of the paper; Kaldi `lat/sausages.cc` (`EditDistance`).
    """
    source, target, word, share = arcs
    distance = np.zeros((num_states, len(labels) + 1))
    for q in range(1, len(labels) + 1):
        distance[0, q] = distance[0, q - 1] + (0.0 if labels[q - 1] == 0 else 1.0)
    mean = np.empty(len(labels) + 1)
    by = np.empty(len(labels) + 1, np.int8)
    for arc in range(len(source)):
        if share[arc] == 0.0:
            continue
        _align_arc(distance[source[arc]], word[arc], labels, mean, by)
        there = target[arc]
        for q in range(len(mean)):
            distance[there, q] += share[arc] * mean[q]
    return distance


@njit(cache=True, nogil=True)
def _events(
    arcs: Arcs,
    frame: np.ndarray,
    labels: np.ndarray,
    distance: np.ndarray,
    num_words: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Go back along the alignments, and note what each arc gives to each position.

    Args:
        arcs: of the graph.
        frame: float64[S], of the states.
        labels: int32[Q].
        distance: float64[S, Q + 1], of `_distances`.
        num_words: number of words that arcs may have.

    Returns:
        (int64[M], (position - 1) * num_words + word; float64[3, M]: posterior, and
        posterior times first frame and times the frame behind the last one;
        float64[Q + 1], posterior of the positions that the start is left with).

    Source: figure 5 and appendix C of the paper; Kaldi `lat/sausages.cc` (`AccStats`).
    """
    source, target, word, share = arcs
    num_positions = len(labels)
    mass = np.zeros((len(frame), num_positions + 1))  # posterior of state and position
    mass[-1, -1] = 1.0
    highest = np.full(
        len(frame), -1, np.int64
    )  # last position with mass, of each state
    highest[-1] = num_positions
    mean = np.empty(num_positions + 1)
    by = np.empty(num_positions + 1, np.int8)
    keys, sums = np.empty(1024, np.int64), np.empty((3, 1024))
    count = 0
    for arc in range(len(source) - 1, -1, -1):
        here, there = source[arc], target[arc]
        top = highest[there]
        if top < 0 or share[arc] == 0.0:
            continue
        while count + top >= len(keys):
            keys, sums = _grown(keys, sums)
        _align_arc(distance[here], word[arc], labels[:top], mean[: top + 1], by)
        highest[here] = max(highest[here], top)
        carried = (
            0.0  # what comes down from the position above, left out behind the arc
        )
        for q in range(top, -1, -1):
            part = carried + share[arc] * mass[there, q]
            carried = 0.0
            if part == 0.0:
                continue
            if by[q] == _INSERT:
                mass[here, q] += part
                continue
            begin, label = frame[there], 0
            if by[q] == _PAIR:
                mass[here, q - 1] += part
                begin, label = frame[here], word[arc]
            else:
                carried = part
            keys[count] = (q - 1) * num_words + label
            sums[0, count] = part
            sums[1, count] = part * begin
            sums[2, count] = part * frame[there]
            count += 1
    return keys[:count], sums[:, :count], mass[0]


@njit(cache=True, nogil=True)
def _grown(keys: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of twice the length."""
    more_keys = np.empty(2 * len(keys), np.int64)
    more_sums = np.empty((3, 2 * len(keys)))
    more_keys[: len(keys)] = keys
    more_sums[:, : len(keys)] = sums
    return more_keys, more_sums
