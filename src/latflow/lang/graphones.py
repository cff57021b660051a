"""Graphones: pieces of words that pair letters with phones, found by alignment.

A graphone is one letter with none, one or two phones, or two letters with one phone
(`SPANS`). A pronunciation of a word can be cut into graphones in many ways; expectation
maximization of

    p(letters, phones) = sum over ways to cut of the product of p(graphone)

learns from a lexicon how likely each graphone is, without regard to what stands beside
it, and the best way to cut each pronunciation is what n-gram models are estimated from
(`latflow.lang.g2p`). In the choice of the best way the log-probability of a graphone of
two letters or two phones counts three times (`LARGE`): the likeliest way has the fewest
graphones, but large ones are rare, which leaves an n-gram model less to learn from. On
a tenth of the CMU dictionary word error is 26.6 % with a factor of 1, 26.2 % with 2 and
26.0 % with 3.

Letters and phones are numbered from 1. A graphone becomes one integer (its key), and
keys lie in a hash table with open addressing, so that memory is that of the distinct
graphones and not of the ways to cut.

Source: Bisani and Ney 2008, "Joint-sequence models for grapheme-to-phoneme conversion",
section 3; Jiampojamarn, Kondrak and Sherif 2007, "Applying many-to-many alignments and
hidden Markov models to letter-to-phoneme conversion", algorithm 1. The spans are those
that Phonetisaurus allows by default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from latflow.jit import njit

log = logging.getLogger(__name__)

#: Numbers of letters and of phones that a graphone may have.
SPANS = ((1, 0), (1, 1), (1, 2), (2, 1))
LARGE = 3.0  # weight of large graphones in the choice of the best way
FLOOR = 1e-30  # of the probability of a graphone: no entry loses all its ways
_SPANS = np.array(SPANS, dtype=np.int64)
_EMPTY = -1  # slot of the hash table without a key
_JOIN, _PAIR, _NO_PHONE = "|", "}", "_"  # in tokens, as Phonetisaurus writes them
RESERVED = (_JOIN, _PAIR)


class Graphone(NamedTuple):
    """Letters, and the phones that they stand for."""

    letters: str
    phones: tuple[str, ...]


def to_token(graphone: Graphone) -> str:
    """Write a graphone as one word of an n-gram model: `x}K|S`, `p|h}F`, `e}_`."""
    phones = _JOIN.join(graphone.phones) or _NO_PHONE
    return f"{_JOIN.join(graphone.letters)}{_PAIR}{phones}"


def from_token(token: str) -> Graphone | None:
    """Read what `to_token` writes; None if it is nothing of the kind."""
    letters, pair, phones = token.partition(_PAIR)
    parts = letters.split(_JOIN)
    if not pair or not phones or any(len(part) != 1 for part in parts):
        return None
    spoken = () if phones == _NO_PHONE else tuple(phones.split(_JOIN))
    return Graphone("".join(parts), spoken)


def align_graphones(
    entries: Sequence[tuple[str, tuple[str, ...]]],
    *,
    max_iterations: int = 30,
    tolerance: float = 0.01,
) -> Iterator[list[Graphone] | None]:
    """Cut pronunciations into graphones.

    Args:
        entries: words and their phones.
        max_iterations: of expectation maximization, which starts with all graphones
            equally likely.
        tolerance: it ends when the log-likelihood of an entry grows by less, on
            average.

    Yields:
        The best graphones of each entry; None where it has more phones than
        graphones can hold (two for each letter), or no letters.
    """
    table = Table.of_entries(entries)
    before = -np.inf
    for iteration in range(1, max_iterations + 1):
        log_like, used = table.step()
        mean = log_like / max(1, used)
        log.debug("iteration %d: log-likelihood of an entry %.4f", iteration, mean)
        if mean - before < tolerance:
            break
        before = mean
    return table.best(entries)


class Table(NamedTuple):
    """Entries as integers, and the graphones that they may be cut into.

    Attributes:
        letters: int64[N], of all entries.
        letter_begin: int64[E + 1], where those of each entry begin.
        phones: int64[M].
        phone_begin: int64[E + 1].
        radix: int64[2], one more than the number of distinct letters and phones.
        keys: int64[H], graphones in a hash table of size H, a power of two; -1: none.
        prob: float64[H], of the graphones; changed by `step`.
    """

    letters: np.ndarray
    letter_begin: np.ndarray
    phones: np.ndarray
    phone_begin: np.ndarray
    radix: np.ndarray
    keys: np.ndarray
    prob: np.ndarray

    @classmethod
    def of_entries(cls, entries: Sequence[tuple[str, tuple[str, ...]]]) -> Table:
        """Number letters and phones, and list the possible graphones."""
        letters, letter_begin, num_letters = _numbered([word for word, _ in entries])
        phones, phone_begin, num_phones = _numbered([phones for _, phones in entries])
        radix = np.array([num_letters + 1, num_phones + 1], dtype=np.int64)
        keys = _list_keys(letters, letter_begin, phones, phone_begin, radix, _SPANS)
        number = max(1, int((keys != _EMPTY).sum()))
        prob = np.full(len(keys), 1.0 / number)
        return cls(letters, letter_begin, phones, phone_begin, radix, keys, prob)

    def step(self) -> tuple[float, int]:
        """Do one iteration.

        Returns:
            (log-likelihood of the entries before it, number of entries that have a way
            to be cut).
        """
        counts = np.zeros(len(self.keys))
        log_like, used = _expect(self, _SPANS, counts)
        if used:
            self.prob[:] = np.maximum(counts / counts.sum(), FLOOR)
        return log_like, used

    def best(
        self, entries: Sequence[tuple[str, tuple[str, ...]]]
    ) -> Iterator[list[Graphone] | None]:
        """Yield the best graphones of each entry, see `align_graphones`."""
        spans, begin = _best_spans(self, _SPANS)
        for number, (word, phones) in enumerate(entries):
            graphones, i, j = [], 0, 0
            for span in spans[begin[number] : begin[number + 1]].tolist():
                a, b = SPANS[span]
                graphones.append(Graphone(word[i : i + a], tuple(phones[j : j + b])))
                i, j = i + a, j + b
            yield graphones or None


def _numbered(
    sequences: Sequence[Sequence[str]],
) -> tuple[np.ndarray, np.ndarray, int]:
    """Number symbols from 1, in sorted order: (flat, where each begins, how many)."""
    symbols = sorted(set(chain.from_iterable(sequences)))
    ids = {symbol: number for number, symbol in enumerate(symbols, start=1)}
    flat = [ids[symbol] for symbol in chain.from_iterable(sequences)]
    lengths = [len(sequence) for sequence in sequences]
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.array(flat, dtype=np.int64), begin, len(symbols)


# -- the hash table -----------------------------------------------------------------


@njit(cache=True, nogil=True)
def _find(keys: np.ndarray, key: int) -> int:
    """Return the slot of a key, or the empty one where it belongs."""
    mask = np.uint64(len(keys) - 1)
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(29))) & mask
    while keys[slot] != key and keys[slot] != _EMPTY:
        slot = (slot + np.uint64(1)) & mask
    return int(np.int64(slot))


@njit(cache=True, nogil=True)
def _key(
    letters: np.ndarray, phones: np.ndarray, radix: np.ndarray, i: int, j: int,
    a: int, b: int,
) -> int:  # fmt: skip
    """Return the key of letters[i:i+a] with phones[j:j+b]."""
    key = letters[i]
    key = key * radix[0] + (letters[i + 1] if a > 1 else 0)
    key = key * radix[1] + (phones[j] if b > 0 else 0)
    return key * radix[1] + (phones[j + 1] if b > 1 else 0)


@njit(cache=True, nogil=True)
def _list_keys(
    letters: np.ndarray, letter_begin: np.ndarray, phones: np.ndarray,
    phone_begin: np.ndarray, radix: np.ndarray, spans: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Put the graphones of all ways to cut all entries into a hash table."""
    keys = np.full(1024, _EMPTY, dtype=np.int64)
    filled = 0
    for n in range(len(letter_begin) - 1):
        x = letters[letter_begin[n] : letter_begin[n + 1]]
        y = phones[phone_begin[n] : phone_begin[n + 1]]
        for i in range(len(x)):
            for j in range(len(y) + 1):
                for k in range(len(spans)):
                    a, b = spans[k]
                    if not _is_between(i, j, i + a, j + b, len(x), len(y)):
                        continue
                    key = _key(x, y, radix, i, j, a, b)
                    slot = _find(keys, key)
                    if keys[slot] == key:
                        continue
                    keys[slot] = key
                    filled += 1
                    if 2 * filled > len(keys):
                        keys = _doubled(keys)
    return keys


@njit(cache=True, nogil=True)
def _doubled(keys: np.ndarray) -> np.ndarray:
    """Return the hash table with twice the size."""
    larger = np.full(2 * len(keys), _EMPTY, dtype=np.int64)
    for key in keys:
        if key != _EMPTY:
            larger[_find(larger, key)] = key
    return larger


@njit(cache=True, nogil=True)
def _is_between(i: int, j: int, to_i: int, to_j: int, L: int, P: int) -> bool:
    """Return whether a step lies on a way from the start to the end.

    Two phones a letter are the most that graphones hold, none the least.
    """
    return j <= 2 * i and to_i <= L and to_j <= P and P - to_j <= 2 * (L - to_i)


# -- expectation and the best way ---------------------------------------------------


@njit(cache=True, nogil=True)
def _expect(table: Table, spans: np.ndarray, counts: np.ndarray) -> tuple[float, int]:
    """Add the expected number of each graphone to `counts`, float64[H].

    Forward and backward probabilities are divided by the largest forward probability
    so far, letter by letter, so that no word is too long.

    Returns:
        (log-likelihood of the entries, number of entries with a way to be cut).

    Source: Rabiner 1989, "A tutorial on hidden Markov models", section V.A (scaling).
    """
    total = 0.0
    used = 0
    for n in range(len(table.letter_begin) - 1):
        x = table.letters[table.letter_begin[n] : table.letter_begin[n + 1]]
        y = table.phones[table.phone_begin[n] : table.phone_begin[n + 1]]
        L, P = len(x), len(y)
        if L == 0 or P > 2 * L:
            continue
        slots, alpha, scale = _forward(table, spans, x, y)
        if alpha[L, P] > 0.0:
            total += np.log(alpha[L, P]) + np.log(scale).sum()
            used += 1
            _add_counts(table, spans, slots, alpha, scale, counts)
    return total, used


@njit(cache=True, nogil=True)
def _forward(
    table: Table, spans: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Do the forward pass of an entry; returns slots, alpha, scale of `_add_counts`."""
    L, P = len(x), len(y)
    slots = np.full((L, P + 1, len(spans)), -1, dtype=np.int64)
    alpha = np.zeros((L + 1, P + 1))
    scale = np.ones(L + 1)
    alpha[0, 0] = 1.0
    for i in range(L + 1):
        # The next letter has what two letters have brought there: all ways are either
        # here or there.
        largest = alpha[i : i + 2].max()
        scale[i] = largest
        alpha[i : i + 2] /= largest
        if i == L:
            break
        for j in range(P + 1):
            if alpha[i, j] == 0.0:
                continue
            for k in range(len(spans)):
                a, b = spans[k]
                if _is_between(i, j, i + a, j + b, L, P):
                    key = _key(x, y, table.radix, i, j, a, b)
                    slot = _find(table.keys, key)
                    slots[i, j, k] = slot
                    alpha[i + a, j + b] += alpha[i, j] * table.prob[slot]
    return slots, alpha, scale


@njit(cache=True, nogil=True)
def _add_counts(
    table: Table, spans: np.ndarray, slots: np.ndarray, alpha: np.ndarray,
    scale: np.ndarray, counts: np.ndarray,
) -> None:  # fmt: skip
    """Do the backward pass of an entry, and add what its graphones are expected.

    Args:
        table: the entries.
        spans: int64[K, 2].
        slots: int64[L, P + 1, K], graphones that begin at each place; -1 for none.
        alpha: float64[L + 1, P + 1], forward probabilities.
        scale: float64[L + 1], what they were divided by.
        counts: float64[H], to be added to.
    """
    L, P = len(scale) - 1, alpha.shape[1] - 1
    beta = np.zeros((L + 1, P + 1))
    beta[L, P] = 1.0
    for i in range(L - 1, -1, -1):
        for j in range(P, -1, -1):
            for k in range(len(spans)):
                slot = slots[i, j, k]
                if slot < 0:
                    continue
                a, b = spans[k]
                onward = table.prob[slot] * beta[i + a, j + b] / scale[i + 1]
                if a > 1:
                    onward /= scale[i + 2]
                counts[slot] += alpha[i, j] * onward / alpha[L, P]
                beta[i, j] += onward


@njit(cache=True, nogil=True)
def _best_spans(table: Table, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans of the best graphones of all entries.

    Of equally good ways, the one whose last graphone comes first in `SPANS` is taken,
    then the last but one, and so on.

    Returns:
        (int8 of one entry behind the other, int64[E + 1] where they begin); entries
        without a way have none.
    """
    num_entries = len(table.letter_begin) - 1
    begin = np.zeros(num_entries + 1, dtype=np.int64)
    found = np.zeros(len(table.letters), dtype=np.int8)
    for n in range(num_entries):
        x = table.letters[table.letter_begin[n] : table.letter_begin[n + 1]]
        y = table.phones[table.phone_begin[n] : table.phone_begin[n + 1]]
        taken = _viterbi(table, spans, x, y)
        i, j = len(x), len(y)
        end = begin[n]
        while i > 0 and taken[i, j] >= 0:
            k = taken[i, j]
            found[end] = k
            end += 1
            i, j = i - spans[k, 0], j - spans[k, 1]
        found[begin[n] : end] = found[begin[n] : end][::-1].copy()
        begin[n + 1] = end
    return found, begin


@njit(cache=True, nogil=True)
def _viterbi(
    table: Table, spans: np.ndarray, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Return the last span of the best way to each place of an entry, -1 for none.

    The score of a way is the sum of log p(graphone), `LARGE` times that of graphones
    with two letters or phones.
    """
    L, P = len(x), len(y)
    best = np.full((L + 1, P + 1), -np.inf)
    taken = np.full((L + 1, P + 1), -1, dtype=np.int8)
    best[0, 0] = 0.0
    for i in range(1, L + 1):
        for j in range(P + 1):
            for k in range(len(spans)):
                a, b = i - spans[k, 0], j - spans[k, 1]
                if a < 0 or b < 0 or not _is_between(a, b, i, j, L, P):
                    continue
                key = _key(x, y, table.radix, a, b, i - a, j - b)
                score = np.log(table.prob[_find(table.keys, key)])
                if i - a > 1 or j - b > 1:
                    score *= LARGE
                score += best[a, b]
                if score > best[i, j]:
                    best[i, j] = score
                    taken[i, j] = k
    return taken
