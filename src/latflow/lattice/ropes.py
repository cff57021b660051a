"""Strings of transition-ids that grow at the end, in flat arrays.

Determinisation carries a string with each way through the lattice. Two facts keep them
cheap. *Tokens* form trees: a token is its predecessor and at most one more symbol. A
*rope* is another rope with the chain of one token behind it, so that joining two long
strings takes one entry. And each token and rope has a *fingerprint*, the value of its
string as a polynomial modulo 2^64,

    fingerprint(s_1 ... s_n) = sum_k mix(s_k) BASE^(n - k),

from which the fingerprint of any part follows; strings are taken as equal if their
fingerprints are (two different ones among a million agree with a probability below
10^-7). A position in a rope is a pair (rope, token): all that lies before that rope,
and the chain of that token.

Arrays: token_link int32[N, 3] previous, symbol (0 for none), tree; token_print
uint64[N]; rope_link int32[M, 3] previous, token, length; rope_print uint64[M]; powers
uint64[L + 1] of BASE. Rope 0 is the empty string. A token without predecessor says -1.

Public: `powers_of_base`, `mix`, `mix_all`, `joined`, `seek`, `step`, `fingerprint`,
`compare_strings`, `copy_part`.

Source: the strings' purpose is that of Kaldi's `LatticeStringRepository`
(`fstext/determinize-lattice-inl.h`); polynomial fingerprints after Karp and Rabin
(1987).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Inside kernels: an int, or what an array gives; unsigned for fingerprints.
Number = Any

_BASE = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@njit(cache=True, nogil=True)
def powers_of_base(count: Number) -> np.ndarray:
    """BASE^0 ... BASE^(count - 1) modulo 2^64, uint64[count]."""
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
    """`mix` of each number, uint64[N]; these are the fingerprints of single symbols."""
    mixed = np.empty(len(numbers), np.uint64)
    for k in range(len(numbers)):
        mixed[k] = mix(numbers[k])
    return mixed


@njit(cache=True, nogil=True)
def joined(first: Number, second: Number, power: Number) -> Number:
    """The fingerprint of two strings joined, given BASE^(length of the second)."""
    return np.uint64(first) * np.uint64(power) + np.uint64(second)


@njit(cache=True, nogil=True)
def seek(
    token_link: np.ndarray, rope_link: np.ndarray, rope: Number, length: Number
) -> tuple[Number, Number]:
    """The position in a rope behind its first `length` symbols."""
    while rope != 0 and rope_link[rope_link[rope, 0], 2] >= length:
        rope = rope_link[rope, 0]
    token, here = rope_link[rope, 1], rope_link[rope, 2]
    while here > length:
        if token_link[token, 1] != 0:
            here -= 1
        token = token_link[token, 0]
    return rope, token


@njit(cache=True, nogil=True)
def step(
    token_link: np.ndarray, rope_link: np.ndarray, rope: Number, token: Number
) -> tuple[Number, Number, Number]:
    """Go back by one symbol: (it, or 0 if nothing is left; rope and token)."""
    while True:
        if token < 0:
            rope = rope_link[rope, 0]
            if rope == 0:
                return 0, 0, -1
            token = rope_link[rope, 1]
        else:
            symbol = token_link[token, 1]
            token = token_link[token, 0]
            if symbol != 0:
                return symbol, rope, token


@njit(cache=True, nogil=True)
def fingerprint(
    prints: tuple[np.ndarray, np.ndarray, np.ndarray],
    rope_link: np.ndarray,
    position: tuple[Number, Number],
    length: Number,
) -> Number:
    """The fingerprint of the `length` symbols before a position.

    Args:
        prints: token_print, rope_print, powers.
        rope_link: the ropes.
        position: rope and token.
        length: symbols before the position.
    """
    token_print, rope_print, powers = prints
    rope, token = position
    before = rope_link[rope, 0]
    if token < 0:
        return rope_print[before]
    power = powers[length - rope_link[before, 2]]
    return joined(rope_print[before], token_print[token], power)


@njit(cache=True, nogil=True)
def compare_strings(
    token_link: np.ndarray,
    rope_link: np.ndarray,
    first: tuple[Number, Number],
    second: tuple[Number, Number],
) -> Number:
    """Compare strings of one length by their first difference.

    Args:
        token_link: the tokens.
        rope_link: the ropes.
        first: a position, rope and token; the string is all that lies before it.
        second: the same of the other string.

    Returns:
        Below 0, 0 or above 0 as the first is lower, equal or higher.
    """
    order = 0
    rope, token = first
    other_rope, other_token = second
    while rope != other_rope or token != other_token:
        symbol, rope, token = step(token_link, rope_link, rope, token)
        other, other_rope, other_token = step(
            token_link, rope_link, other_rope, other_token
        )
        if symbol != other:
            order = symbol - other
        if symbol == 0 and other == 0:
            break
    return order


@njit(cache=True, nogil=True)
def copy_part(
    token_link: np.ndarray, rope_link: np.ndarray, part: np.ndarray, out: np.ndarray
) -> Number:
    """Write out a part of a rope, and tell its length.

    Args:
        token_link: the tokens.
        rope_link: the ropes.
        part: rope, first and last symbol (from 0, the last not included).
        out: int32, filled from its start.
    """
    rope, begin, end = part[0], part[1], part[2]
    rope, token = seek(token_link, rope_link, rope, end)
    for k in range(end - begin - 1, -1, -1):
        out[k], rope, token = step(token_link, rope_link, rope, token)
    return end - begin
