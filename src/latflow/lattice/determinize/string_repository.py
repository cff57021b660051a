"""A repository of strings of transition-ids that grow at the end, in flat arrays.

Determinization carries a string with each path through the lattice. Two facts keep them
cheap. *Tokens* form trees: a token is its predecessor and at most one more symbol. A
*string* is another string with the symbols of one token behind it, so that to
concatenate two long strings takes one entry. And each token and string has a
*fingerprint*, its value as a polynomial modulo 2^64,

    fingerprint(s_1 ... s_n) = sum_k mix(s_k) BASE^(n - k),

from which the fingerprint of any piece follows; strings are taken as equal if their
fingerprints are (two different ones among a million agree with a probability below
10^-7). A position in a string is a pair (string, token): all that lies before that
string's token, and the symbols of that token.

Arrays: token_link int32[N, 3] previous, symbol (0 for none), tree; token_print
uint64[N]; string_link int32[M, 3] previous, token, length; string_print uint64[M];
powers uint64[L + 1] of BASE. String 0 is the empty string. A token without predecessor
says -1.

Source: the strings' purpose is that of Kaldi's `LatticeStringRepository`
(`fstext/determinize-lattice-inl.h`); polynomial fingerprints after Karp and Rabin
(1987).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latflow.jit import njit

# Inside kernels: an int, or what an array gives; unsigned for fingerprints.
Number = Any

_BASE = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@njit(cache=True, nogil=True)
def powers_of_base(count: Number) -> np.ndarray:
    """Return BASE^0 ... BASE^(count - 1) modulo 2^64, uint64[count]."""
    powers = np.ones(count, np.uint64)
    for k in range(1, count):
        powers[k] = powers[k - 1] * _BASE
    return powers


@njit(cache=True, nogil=True)
def mix(number: Number) -> Number:
    """Spread the bits of a number over 64 (the end of the generator splitmix64)."""
    value = np.uint64(number) + _BASE
    value = (value ^ (value >> _SHIFTS[0])) * _FIRST
    value = (value ^ (value >> _SHIFTS[1])) * _SECOND
    return value ^ (value >> _SHIFTS[2])


@njit(cache=True, nogil=True)
def mix_all(numbers: np.ndarray) -> np.ndarray:
    """Return `mix` of each number, uint64[N]: fingerprints of single symbols."""
    mixed = np.empty(len(numbers), np.uint64)
    for k in range(len(numbers)):
        mixed[k] = mix(numbers[k])
    return mixed


@njit(cache=True, nogil=True)
def concatenated(first: Number, second: Number, power: Number) -> Number:
    """Fingerprint two strings concatenated, given BASE^(length of the second)."""
    return np.uint64(first) * np.uint64(power) + np.uint64(second)


@njit(cache=True, nogil=True)
def seek(
    token_link: np.ndarray, string_link: np.ndarray, string: Number, length: Number
) -> tuple[Number, Number]:
    """Return the position in a string behind its first `length` symbols."""
    while string != 0 and string_link[string_link[string, 0], 2] >= length:
        string = string_link[string, 0]
    token, here = string_link[string, 1], string_link[string, 2]
    while here > length:
        if token_link[token, 1] != 0:
            here -= 1
        token = token_link[token, 0]
    return string, token


@njit(cache=True, nogil=True)
def step(
    token_link: np.ndarray, string_link: np.ndarray, string: Number, token: Number
) -> tuple[Number, Number, Number]:
    """Go back by one symbol: (it, or 0 if nothing is left; string and token)."""
    while True:
        if token < 0:
            string = string_link[string, 0]
            if string == 0:
                return 0, 0, -1
            token = string_link[string, 1]
        else:
            symbol = token_link[token, 1]
            token = token_link[token, 0]
            if symbol != 0:
                return symbol, string, token


@njit(cache=True, nogil=True)
def fingerprint(
    prints: tuple[np.ndarray, np.ndarray, np.ndarray],
    string_link: np.ndarray,
    position: tuple[Number, Number],
    length: Number,
) -> Number:
    """Return the fingerprint of the `length` symbols before a position.

    Args:
        prints: token_print, string_print, powers.
        string_link: the strings.
        position: string and token.
        length: symbols before the position.
    """
    token_print, string_print, powers = prints
    string, token = position
    before = string_link[string, 0]
    if token < 0:
        return string_print[before]
    power = powers[length - string_link[before, 2]]
    return concatenated(string_print[before], token_print[token], power)


@njit(cache=True, nogil=True)
def compare_strings(
    token_link: np.ndarray,
    string_link: np.ndarray,
    first: tuple[Number, Number],
    second: tuple[Number, Number],
) -> tuple[Number, Number]:
    """Compare strings of one length by their first difference.

    Args:
        token_link: the tokens.
        string_link: the strings.
        first: a position, string and token; the string is all that lies before it.
        second: the same of the other string.

    Returns:
        Below 0, 0 or above 0 as the first is lower, equal or higher; how many symbols
        were compared.
    """
    order, count = 0, 0
    string, token = first
    other_string, other_token = second
    while string != other_string or token != other_token:
        count += 1
        symbol, string, token = step(token_link, string_link, string, token)
        other, other_string, other_token = step(
            token_link, string_link, other_string, other_token
        )
        if symbol != other:
            order = symbol - other
        if symbol == 0 and other == 0:
            break
    return order, count


@njit(cache=True, nogil=True)
def copy_piece(
    token_link: np.ndarray, string_link: np.ndarray, piece: np.ndarray, out: np.ndarray
) -> Number:
    """Write out a piece of a string; return its length.

    Args:
        token_link: the tokens.
        string_link: the strings.
        piece: string, first and last symbol (from 0, the last not included).
        out: int32, filled from its start.
    """
    string, begin, end = piece[0], piece[1], piece[2]
    string, token = seek(token_link, string_link, string, end)
    for k in range(end - begin - 1, -1, -1):
        out[k], string, token = step(token_link, string_link, string, token)
    return end - begin
