"""Minimum Bayes risk decoding: the words with the fewest errors to expect.

The best path of a lattice has the fewest *sentence* errors to expect. The word sequence
R with the fewest word errors to expect minimises

    L(R) = sum over paths of posterior(path) * edit distance(words of the path, R).

The sum is done on the lattice by a recursion that aligns each arc by the *mean* of the
distances of all the ways to it (an upper bound of L, exact where ways do not rejoin).
It also says how probable each word is at each place of R: a sausage. R is then replaced
by the likeliest word of each bin, and again, until it stays. Places for insertions are
had by writing R with an empty word (0) before, between and behind its words.

The arcs of the lattice should be whole words (`latflow.lattice.word_alignment`), or
the times are where labels stand. Raw lattices are better determinised before: their
many parallel paths cost time and blur the bound.

Public: `minimum_bayes_risk`, `MbrResult`.

Source: Xu, Povey, Mangu, Zhu 2011, "Minimum Bayes Risk decoding and system combination
based on a recursion for edit distance" (figures 4-6, appendix C); Kaldi
`lat/sausages.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice
from latflow.lattice.sausage import Sausage
from latflow.lattice.word_graph import WordGraph, log_sums

# An inserted word costs a little more than a replaced one, so that words go to bins.
_INSERTION = 1.0 + 1e-5
_TIE = 1e-9  # distances that differ by less are equal but for rounding
# Source int32[A], ascending, target int32[A], higher than the source, index of the word
# int32[A], 0 for none, and the share of each arc in the ways to its target, float64[A].
Arcs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_MAX_ITERATIONS = 100
_PAIR, _INSERT, _DELETE = range(3)


@dataclass(frozen=True, eq=False)
class MbrResult:
    """The words chosen, and what is known of their places; N words.

    Attributes:
        words: int32[N], word ids.
        confidence: float64[N], posterior of each word at its place, in [0, 1].
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
        print_silence: whether bins whose best entry is no word are listed, as word 0.
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
        places = _with_gaps(current)
        risk, sausage = risk_of(places)
        risks.append(risk)
        best = sausage.word[sausage.best_entries()]
        if not decode_mbr or _is_settled(sausage, places):
            break
        places, current = best, best[best != 0]
        if len(risks) > _MAX_ITERATIONS:
            break
    return _result(sausage, places, risks, print_silence=print_silence)


def _is_settled(sausage: Sausage, places: np.ndarray) -> bool:
    """Whether no place has a word that is likelier than the present one."""
    present = sausage.entries_of(places)
    best = sausage.posterior[sausage.best_entries()]
    return bool((present >= 0).all() and (sausage.posterior[present] == best).all())


def _with_gaps(words: np.ndarray) -> np.ndarray:
    """Put the empty word before, between and behind words, int32[2 N + 1]."""
    places = np.zeros(2 * len(words) + 1, np.int32)
    places[1::2] = words
    return places


def _best_words(graph: WordGraph) -> np.ndarray:
    """Words of the cheapest path, int32[N]; the first arc wins where two are equal."""
    to_end = graph.costs_to_end()
    rest = graph.cost + to_end[graph.target]
    found = []
    state = 0
    while state < graph.num_states - 1:
        first, last = graph.arc_begin[state], graph.arc_begin[state + 1]
        arc = first + int(np.argmin(rest[first:last]))
        found.append(graph.word[arc])
        state = graph.target[arc]
    words = np.array(found, np.int32)
    return words[words != 0]


def _result(
    sausage: Sausage, places: np.ndarray, risks: list[float], *, print_silence: bool
) -> MbrResult:
    """Collect the words chosen, with their confidences and times."""
    entry = sausage.entries_of(places)
    is_listed = np.full(len(places), print_silence) | (places != 0)
    words, entry = places[is_listed], entry[is_listed]
    is_found = entry >= 0  # a word that was given need not be in the lattice
    bins = np.flatnonzero(is_listed)
    confidence = np.where(is_found, sausage.posterior[entry], 0.0)
    begin = np.where(is_found, sausage.start[entry], sausage.bin_start[bins])
    end = np.where(is_found, sausage.end[entry], sausage.bin_end[bins])
    _part(begin, end)
    return MbrResult(
        words=words,
        confidence=np.clip(confidence, 0.0, 1.0),
        begin=begin,
        end=end,
        risk=risks[-1],
        sausage=sausage,
        risks=tuple(risks),
    )


def _part(begin: np.ndarray, end: np.ndarray) -> None:
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
    """Risk of word sequences on one lattice.

    Args:
        graph: the lattice.
    """

    def __init__(self, graph: WordGraph) -> None:
        ids, index = np.unique(np.append(graph.word, 0), return_inverse=True)
        self._ids = ids.astype(np.int32)  # 0 has index 0: word ids are not negative
        self._frame = graph.frame.astype(np.float64)
        arcs = (graph.source, graph.target, graph.cost)
        alpha = log_sums(0, *arcs, graph.num_states)
        # Share of each arc in the ways to the state it leads to.
        with np.errstate(invalid="ignore"):
            share = np.exp(alpha[graph.source] - graph.cost - alpha[graph.target])
        share = np.nan_to_num(share, nan=0.0)
        word = index[:-1].astype(np.int32)
        self._arcs = (graph.source, graph.target, word, share)

    def __call__(self, places: np.ndarray) -> tuple[float, Sausage]:
        """Find the risk of words at places (int32[Q], 0 for gaps), and their bins."""
        index = np.searchsorted(self._ids, places)
        index = np.minimum(index, len(self._ids) - 1)
        unknown = -1  # a word that the lattice does not have
        labels = np.where(self._ids[index] == places, index, unknown).astype(np.int32)
        distance = _distances(self._arcs, len(self._frame), labels)
        return float(distance[-1, -1]), self._sausage(labels, distance)

    def _sausage(self, labels: np.ndarray, distance: np.ndarray) -> Sausage:
        """Find the bins, one for each of the labels."""
        num_words = len(self._ids)
        key, sums, left = _events(self._arcs, self._frame, labels, distance, num_words)
        # Places that the start is left with are left out before the first arc, at
        # frame 0: such a place, and all before it.
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
        before: float64[Q + 1], mean distance of the ways to that state from the first
            q places.
        word: word of the arc, 0 for none.
        labels: int32[Q], words of the places, 0 for gaps.
        mean: float64[Q + 1], filled: the same behind the arc.
        by: int8[Q + 1], filled: how place q was aligned: _PAIR with the arc's word,
            _INSERT (the word is inserted behind place q) or _DELETE (place q is left
            out behind the word).
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
    """Mean edit distance of the ways to each state from the first places.

    Args:
        arcs: of the graph.
        num_states: S.
        labels: int32[Q], words of the places, 0 for gaps, -1 for words that no arc has.

    Returns:
        float64[S, Q + 1].

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
    """Go back along the alignments, and note what each arc gives to each place.

    Args:
        arcs: of the graph.
        frame: float64[S], of the states.
        labels: int32[Q].
        distance: float64[S, Q + 1], of `_distances`.
        num_words: number of words that arcs may have.

    Returns:
        (int64[M], (place - 1) * num_words + word; float64[3, M]: posterior, and
        posterior times first frame and times the frame behind the last one;
        float64[Q + 1], posterior of the number of places that the start is left with).

    Source: figure 5 and appendix C of the paper; Kaldi `lat/sausages.cc` (`AccStats`).
    """
    source, target, word, share = arcs
    num_places = len(labels)
    mass = np.zeros((len(frame), num_places + 1))  # posterior of state and place
    mass[-1, -1] = 1.0
    highest = np.full(len(frame), -1, np.int64)  # last place with mass, of each state
    highest[-1] = num_places
    mean = np.empty(num_places + 1)
    by = np.empty(num_places + 1, np.int8)
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
        carried = 0.0  # what comes down from the place above, left out behind the arc
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
    """Copies of twice the length."""
    more_keys = np.empty(2 * len(keys), np.int64)
    more_sums = np.empty((3, 2 * len(keys)))
    more_keys[: len(keys)] = keys
    more_sums[:, : len(keys)] = sums
    return more_keys, more_sums
