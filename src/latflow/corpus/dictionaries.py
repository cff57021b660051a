"""Words of speakers who have their own dictionaries.

One lexicon holds the words of all dictionaries. Those of the default dictionary stand
as they are, those of another one with its name behind them: `tomato⧼british⧽`. So a
transcript determines the pronunciations of each word, and alignment works as with one
dictionary; what is written for people has the words alone (`plain_word`). Words in
brackets, and those that begin with `!`, are noises and belong to everyone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_OPEN, _CLOSE = "⧼⧽"
_BRACKETS = {"<": ">", "[": "]", "{": "}"}


def named_word(word: str, dictionary: str) -> str:
    """Return a word with the name of its dictionary."""
    return word if is_noise(word) else f"{word}{_OPEN}{dictionary}{_CLOSE}"


def is_noise(word: str) -> bool:
    """Return whether a word belongs to all dictionaries."""
    return word.startswith("!") or _BRACKETS.get(word[0]) == word[-1]


def parted_word(word: str) -> tuple[str, str]:
    """Return a word and the name of its dictionary, empty for the default one."""
    if not word.endswith(_CLOSE):
        return word, ""
    plain, mark, dictionary = word[:-1].partition(_OPEN)
    return (plain, dictionary) if plain and mark else (word, "")


def plain_word(word: str) -> str:
    """Return a word as it is written."""
    return parted_word(word)[0]


def is_marked(word: str) -> bool:
    """Return whether a word looks as if it had the name of a dictionary."""
    return _OPEN in word or _CLOSE in word


def by_dictionary(
    words: Iterable[str], dictionaries: Collection[str]
) -> dict[str, frozenset[str]]:
    """Return the plain words of each dictionary; those of the default one by "".

    Args:
        words: of all dictionaries.
        dictionaries: names of those but the default one.
    """
    found: dict[str, set[str]] = {name: set() for name in ("", *dictionaries)}
    for word in words:
        plain, name = parted_word(word)
        found[name].add(plain)
    noises = set(filter(is_noise, found[""]))
    return {name: frozenset(each | noises) for name, each in found.items()}
