"""Spellings of one word: letters' case as languages have it, marks that many leave out.

Source: The Unicode Standard 15.0, section 5.18 (case of Turkish and Azeri letters),
9.1, 9.2 (points of Hebrew and Arabic), SpecialCasing.txt.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

_DOTLESS_SHARE = 0.01  # of words; English lexica have some Turkish names
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])+")
# Points of vowels, which Hebrew and Arabic texts have or lack; joiners within a word.
_POINTS = [*range(0x0591, 0x05BE), 0x05BF, 0x05C1, 0x05C2, 0x05C4, 0x05C5, 0x05C7]
_POINTS += [*range(0x064B, 0x0653), 0x0670, 0x200C, 0x200D]
_LOOSE = dict.fromkeys(_POINTS) | str.maketrans(
    # Letters that keyboards mix up: Persian and Arabic yeh and kaf, Russian yo without
    # its dots, Romanian commas below as cedillas; Hebrew gershayim; Catalan l·l.
    "يكёşţ״•‧⋅∙・",
    'یکеșț"·····',
)


def has_dotless_i(vocabulary: Collection[str]) -> bool:
    """Return whether words are of a language in which I is the capital of ı."""
    number = sum("ı" in word or "İ" in word for word in vocabulary)
    return number > _DOTLESS_SHARE * len(vocabulary)


def lower(word: str, *, dotless: bool) -> str:
    """Return a word in small letters, `dotless`: as in Turkish."""
    if dotless:
        word = unicodedata.normalize("NFC", word).replace("I", "ı").replace("İ", "i")
    return word.lower()


def upper(word: str, *, dotless: bool) -> str:
    """Return a word in capital letters, `dotless`: as in Turkish."""
    return (word.replace("i", "İ") if dotless else word).upper()


def folded(word: str, *, dotless: bool) -> str:
    """Return what a word's spellings in capital and small letters have in common."""
    return lower(word, dotless=dotless).casefold().replace("i\u0307", "i")


def loose_key(key: str) -> str:
    """Return what spellings have in common that differ in what many leave out."""
    return key.translate(_LOOSE).replace("l.l", "l·l")


def initials(word: str) -> list[str]:
    """Return the letters of `U.S.A`; none of other words."""
    return word.split(".") if _INITIALS.fullmatch(word) else []
