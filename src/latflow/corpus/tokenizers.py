"""Words of running text: between blanks, single letters, or as a tokenizer finds them.

Chinese, Japanese, Thai and others are written without blanks between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from latflow.errors import UserError
from latflow.user_code import LOCATION, load_object

TOKENIZERS = ("blanks", "characters", "icu")  # beside functions of the user's own
Tokenizer = Callable[[str], list[str]]

_REMEDY = "see docs/texts.md on tokenizers"
_LONG = "ーｰ"
# How names of letters begin that ICU has dictionaries for.
_DIVIDED = ("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "IDEOGRAPHIC", "THAI")
_DIVIDED += ("LAO", "KHMER", "MYANMAR")
_BRACKETED = re.compile(r"(<[^\s>]+>|\[[^\s\]]+\]|\{[^\s}]+\})")


def make_tokenizer(name: str) -> Tokenizer:
    """Return what divides a text into words.

    Args:
        name: `blanks`, `characters`, `icu`, or the location of a function that takes
            a text and returns its words.

    Raises:
        UserError: there is no such tokenizer, or it cannot be loaded.
    """
    try:
        check_tokenizer(name)
    except ValueError as error:
        raise UserError(f"tokenizer {name} {error}", remedy=_REMEDY) from None
    if name == "blanks":
        return str.split
    if name == "characters":
        return _within_tokens(split_characters)
    return _within_tokens(_icu()) if name == "icu" else _of_user(name)


def check_tokenizer(name: str) -> str:
    """Return the name of a tokenizer, see `make_tokenizer`.

    Raises:
        ValueError: there is no such tokenizer.
    """
    if name not in TOKENIZERS and not re.fullmatch(LOCATION, name):
        known = ", ".join(TOKENIZERS)
        raise ValueError(f"is not one of {known}, nor file.py:function")
    return name


def _within_tokens(divide: Tokenizer) -> Tokenizer:
    """Return what divides texts between blanks, but for noises and the like."""

    def words(text: str) -> list[str]:
        # What stands in brackets has every second place.
        return [
            word
            for token in text.split()
            for place, part in enumerate(_BRACKETED.split(token))
            for word in ([part] if place % 2 else divide(part))
        ]

    return words


def split_characters(token: str) -> list[str]:
    """Return each letter of scripts without case as a word, and what is between them.

    Letters keep the marks that follow them: accents, vowels, the length of kana.
    """
    found: list[str] = []
    was_letter = False
    for character in token:
        category = unicodedata.category(character)
        is_mark = category.startswith("M") or character in _LONG
        is_letter = not is_mark and category in {"Lo", "Lm"}
        if found and (is_mark or not (was_letter or is_letter)):
            found[-1] += character
        else:
            found.append(character)
        was_letter = is_letter or (was_letter and is_mark)
    return found


def _icu() -> Tokenizer:
    """Return ICU's division of a token, by its dictionaries of several scripts."""
    if find_spec("icu") is None:
        raise UserError(
            "tokenizer icu needs the Python package PyICU",
            remedy="install it (pip install PyICU), or take another tokenizer",
        )
    icu: Any = import_module("icu")
    breaks = icu.BreakIterator.createWordInstance(icu.Locale.getRoot())

    def divide(token: str) -> list[str]:
        breaks.setText(token)
        found: list[str] = []
        units, first = token.encode("utf-16-le"), 0  # in which ICU counts
        for last in breaks:
            found.append(units[2 * first : 2 * last].decode("utf-16-le"))
            first = last
        return join_pieces(found)

    return divide


def join_pieces(pieces: Iterable[str]) -> list[str]:
    """Return pieces of a token, those together that are of scripts with blanks.

    ICU parts `well-known` and `Mr.`, too, which a lexicon may have whole.
    """
    found: list[str] = []
    was_parted = True
    for piece in pieces:
        is_parted = any(unicodedata.name(c, "").startswith(_DIVIDED) for c in piece)
        if was_parted or is_parted:
            found.append(piece)
        else:
            found[-1] += piece
        was_parted = is_parted
    return found


@cache
def _of_user(location: str) -> Tokenizer:
    """Return a function of the user's own, whose results are checked."""
    try:
        function = load_object(location)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        what = f"tokenizer cannot be loaded: {error}"
        raise UserError(what, file=location, remedy=_REMEDY) from error

    def words(text: str) -> list[str]:
        try:
            found = list(function(text))
        except Exception as error:  # of the user's own code it may be any
            what = f"tokenizer fails: {type(error).__name__}: {error}"
            raise UserError(what, file=location, remedy=_REMEDY) from error
        for word in found:
            if not isinstance(word, str) or word.split() != [word]:
                what = f"tokenizer gives {word!r}, which is not a word"
                raise UserError(what, file=location, remedy=_REMEDY)
        return found

    return words
