"""Words of transcripts and texts, spelled as the lexicon spells them.

People write `Don’t stop—now,` where a lexicon has `don't`, `stop`, `now`. A word that
the lexicon has is never changed. For one that it lacks these are tried in turn, and the
first that gives a word of the lexicon is taken:

1. its spelling but for letters' case, apostrophes (’ for '), hyphens, Unicode's normal
   form (NFC, full-width letters) and characters that nobody sees (soft hyphens);
2. the same of its parts between dashes, ellipses, commas, quotation marks and the like,
   without the marks around each;
3. without apostrophes around it, which may be quotation marks;
4. divided at an apostrophe, where the lexicon has both parts (`there`, `'s`);
5. as the only word of the lexicon that differs from it in what many writers leave out
   or mix up: points of Hebrew and Arabic, joiners, `ё` for `е`, `l·l`, a final `.`;
6. divided into letters (`U.S.A.`), or at other marks within, where the lexicon has all
   parts.

What is left is unknown: without marks, divided at hyphens, in the lexicon's case where
its words share one. Words in `<>`, `[]` or `{}` are left unchanged; marks that stand
alone are not words. All that was changed is counted.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from latflow.corpus.dictionaries import by_dictionary, named_word, plain_word
from latflow.corpus.ids import plain_id
from latflow.corpus.spelling import (
    folded,
    has_dotless_i,
    initials,
    loose_key,
    lower,
    upper,
)
from latflow.corpus.tokenizers import make_tokenizer
from latflow.errors import UserError

# Symbols of Kaldi's tables that are not words: epsilon, back-off, ends of sentences.
RESERVED_WORDS = ("<eps>", "#0", "<s>", "</s>")
Case = Literal["auto", "keep", "lower", "upper"]

APOSTROPHES = "'’ʼ‘‛`´＇′ꞌʻ׳"
HYPHENS = "-‐‑‒–−﹣－־"
COMPOUNDS = "-‐‑‒−﹣－־/"
# Marks that part words wherever they stand; others only end or begin them.
_PARTING = (
    '—–―‒…‥;!?¡¿"“”„‟«»‹›()|‖،؛؟۔।॥՝։፡።'
    "、。，！？；：・｡､｢｣「」『』【】〈〉《》〔〕（）［］｛｝〜～⁓"
)
_ZERO_WIDTH_SPACE = "\u200b"  # parts words in Thai and Khmer
# Marks of writing direction, joiners of words, soft hyphens, byte order marks, tatweel.
# The joiners of Persian and Indic letters (U+200C, U+200D) are spelling, and stay.
_INVISIBLE = dict.fromkeys(
    map(ord, "\u00ad\u034f\u061c\u0640\u200b\u200e\u200f\u2060\u2061\u2062\u2063\ufeff")
)
_INVISIBLE |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
# Categories of characters that are marks: punctuation, and symbols but for currencies.
_MARK_CATEGORIES = frozenset(
    ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sk", "Sm", "So", "Cf", "Cc")
)
_SPOKEN = frozenset("&@")  # marks that are read out
_WITHIN = ":_=*~^\\"  # marks that divide what is known in parts only
_SENTENCES = re.compile(r"(?<=\w\w)\.(?=\w\w)")
_BRACKETED = re.compile(r"<\S+>|\[\S+\]|\{\S+\}")
_EXAMPLES = 2
_MAX_DIVISIONS = 8  # at apostrophes of one word
# Of the words; `sil` may stand in a lexicon of capital letters, `I` in one of small.
_NEARLY_ALL = 0.9


class TextRules(NamedTuple):
    """How transcripts are read, see the options of the same names."""

    case: Case = "auto"
    punctuation: str | None = None
    clitics: str = APOSTROPHES
    compounds: str = COMPOUNDS
    tokenizer: str = "blanks"


class WordForms:
    """Gives words the lexicon's spelling, and counts what it changes.

    Args:
        vocabulary: words of the lexicon; empty where none is known.
        rules: how transcripts are read.
        speakers: the dictionary of each speaker who has one of his own; its words in
            the vocabulary, and those that come out, are named for it
            (`latflow.corpus.dictionaries`).

    Attributes:
        num_words: words so far, as they come out.
        num_known: how many of them the vocabulary has.
        changed: kind of change -> how many words were changed so.
    """

    def __init__(
        self,
        vocabulary: Collection[str] = (),
        rules: TextRules | None = None,
        speakers: Mapping[str, str] | None = None,
    ) -> None:
        rules = rules or TextRules()
        self._tokens = make_tokenizer(rules.tokenizer)
        self._speakers = speakers or {}
        parts = {"": frozenset(vocabulary)}
        if speakers:
            parts = by_dictionary(vocabulary, set(speakers.values()))
        self._vocabulary = frozenset(vocabulary)
        self._spellings = {
            name: _Spelling(words, rules, name) for name, words in parts.items()
        }
        self.num_words = 0
        self.num_known = 0
        self.changed: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._unknown: tuple[str, frozenset[str]] | None = None

    def words(self, text: str, speaker: str | None = None) -> list[str]:
        """Return the words of a transcript, and count them.

        Args:
            text: the transcript.
            speaker: who says it, where speakers have dictionaries.
        """
        spelling = self._spellings[self._speakers.get(plain_id(speaker or ""), "")]
        found: list[str] = []
        for token in self._tokens(text):
            forms = spelling.forms(token)
            if forms.plain != (token,):
                self._count_change(token, forms.plain)
            found += forms.named
        self.num_words += len(found)
        known = sum(map(self._vocabulary.__contains__, found))
        self.num_known += known
        if known < len(found) and self._unknown is None:
            unknown = next(w for w in found if w not in self._vocabulary)
            self._unknown = plain_word(unknown), spelling.vocabulary
        return found

    def summary(self) -> str:
        """Return what was changed, with examples; empty where nothing was."""
        return ", ".join(
            f"{number} {kind} ({'; '.join(self._examples[kind])})"
            for kind, number in self.changed.most_common()
        )

    def stranger(self) -> tuple[str, str | None] | None:
        """Return a word, and one of the vocabulary like it, if no word is known."""
        if not self._vocabulary or self.num_known or self._unknown is None:
            return None
        unknown, vocabulary = self._unknown
        folded = unknown.casefold()
        like = next((w for w in vocabulary if w.casefold() == folded), None)
        if like is None:
            near = difflib.get_close_matches(folded, vocabulary, 1, 0.8)
            like = near[0] if near else None
        return unknown, like

    def _count_change(self, token: str, forms: tuple[str, ...]) -> None:
        """Count a word that was changed, and keep it as an example."""
        if len(forms) != 1:
            kind = "divided" if forms else "marks dropped"
        elif "".join(forms).casefold() == token.casefold():
            kind = "in another case"
        else:
            kind = "spelled otherwise"
        self.changed[kind] += 1
        examples = self._examples.setdefault(kind, [])
        example = f"{token} -> {' '.join(forms)}" if forms else token
        if len(examples) < _EXAMPLES and example not in examples:
            examples.append(example)


class _Forms(NamedTuple):
    """The words that a token stands for."""

    plain: tuple[str, ...]
    """As they are spelled."""
    named: tuple[str, ...]
    """The same, with the name of their dictionary."""


class _Spelling:
    """Finds the words of one dictionary that tokens of transcripts stand for.

    Args:
        vocabulary: words of the dictionary.
        rules: how transcripts are read.
        name: of the dictionary; empty for the default one.
    """

    def __init__(self, vocabulary: frozenset[str], rules: TextRules, name: str) -> None:
        self.vocabulary = vocabulary
        self._rules, self._name = rules, name
        self._forms: dict[str, _Forms] = {}
        self._same = str.maketrans(
            dict.fromkeys(rules.clitics, "'") | dict.fromkeys(HYPHENS, "-")
        )

    def forms(self, token: str) -> _Forms:
        """Return the words of a token."""
        found = self._forms.get(token)
        if found is None:
            plain = named = self._resolve(token)
            if self._name:
                named = tuple(named_word(word, self._name) for word in plain)
            found = self._forms[token] = _Forms(plain, named)
        return found

    def _resolve(self, token: str) -> tuple[str, ...]:
        """Return the words that a token stands for."""
        if token in self.vocabulary:
            return (token,)
        whole = self._known(token)
        if whole is not None:
            return (whole,)
        if _BRACKETED.fullmatch(token):
            return (token,)
        pieces = (p for p in self._parting.split(token) if p)
        return tuple(word for piece in pieces for word in self._words_of(piece))

    def _words_of(self, piece: str) -> tuple[str, ...]:
        """Return the words of what stands between two marks that part words."""
        bare = self._strip(piece)
        unquoted = self._strip(bare, self._rules.clitics)
        for form in (bare, unquoted, f"{bare}."):
            if bare and (known := self._known(form)) is not None:
                return (known,)
        parts = [p for p in self._compound.split(unquoted) if self._strip(p)]
        if len(parts) > 1:
            return tuple(word for part in parts for word in self._words_of(part))
        if not any(c.isalnum() or c in _SPOKEN for c in unquoted):
            return () if not self._is_spoken(unquoted) else (unquoted,)
        return (
            self._clitic_parts(bare)
            or self._without_clitics(bare)
            or self._parts_within(bare)
            or (self._cased(self._strip(unquoted, "-")),)
        )

    @staticmethod
    def _is_spoken(text: str) -> bool:
        """Return whether a token without letters may be read out, such as `$`."""
        return bool(text) and any(unicodedata.category(c) == "Sc" for c in text)

    def _clitic_parts(self, word: str) -> tuple[str, ...]:
        """Return a word divided at an apostrophe, if both parts are known."""
        marks = [at for at, c in enumerate(word) if c in self._rules.clitics]
        # Each division looks at the whole word: time must stay linear in its length.
        for at in marks[:_MAX_DIVISIONS]:
            for end in (at, at + 1):
                first, second = self._known(word[:end]), self._known(word[end:])
                if first is not None and second is not None:
                    return first, second
        return ()

    def _without_clitics(self, word: str) -> tuple[str, ...]:
        """Return the clitics of a word and what is between them; () without any."""
        marks = self._rules.clitics
        before: list[str] = []
        behind: list[str] = []
        for _ in range(_MAX_DIVISIONS):
            first = next((at for at, c in enumerate(word) if c in marks), -1)
            last = max(map(word.rfind, marks), default=-1)
            if first > 0 and (found := self._clitic(word[: first + 1])):
                before, word = [*before, found], word[first + 1 :]
            elif last > 0 and (found := self._clitic(word[last:])):
                behind, word = [found, *behind], word[:last]
            else:
                break
        if not (before or behind):
            return ()
        rest = self._known(word) or self._cased(self._strip(word, marks + "-"))
        return (*before, *([rest] if rest else []), *behind)

    def _clitic(self, part: str) -> str | None:
        """Return how the vocabulary spells a part with its apostrophe."""
        found = self._known(part)
        return found if found and set(found) & set(self._rules.clitics) else None

    def _parts_within(self, word: str) -> tuple[str, ...]:
        """Return a word divided into initials or at marks, if all parts are known."""
        letters = initials(word)
        spelled = [self._known(f"{c}.") or self._known(c) for c in letters]
        if letters and None not in spelled:
            return tuple(filter(None, spelled))
        parts = [p for p in self._within.split(word) if p]
        sentences = _SENTENCES.split(word)
        if all(p[0].isupper() and p[1].islower() for p in sentences[1:]):
            parts = [p for part in sentences for p in self._within.split(part) if p]
        known = [self._known(part) for part in parts]
        return () if len(parts) < 2 or None in known else tuple(filter(None, known))

    def _known(self, word: str) -> str | None:
        """Return how the vocabulary spells a word; None if it lacks it."""
        if not word:
            return None
        if word in self.vocabulary:
            return word
        cased = self._in_case(word)
        if cased in self.vocabulary:
            return cased
        key = self._key(cased)
        return self._by_key.get(key) or self._by_key.get(self._by_loose_key(key))

    def _key(self, word: str) -> str:
        """Return what spellings of a word have in common."""
        plain = word.translate(_INVISIBLE).translate(self._same)
        plain = unicodedata.normalize("NFKC", plain)
        if self._rules.case != "auto":
            return plain
        return unicodedata.normalize("NFKC", folded(plain, dotless=self._dotless))

    def _by_loose_key(self, key: str) -> str:
        """Return the key of the only words that are like those of a key; else ""."""
        return self._loose.get(loose_key(key), "")

    def _in_case(self, word: str) -> str:
        """Return a word in the case that the rules name."""
        if self._rules.case == "lower":
            return lower(word, dotless=self._dotless)
        if self._rules.case == "upper":
            return upper(word, dotless=self._dotless)
        return word

    def _cased(self, word: str) -> str:
        """Return a word that the vocabulary lacks as it would spell it."""
        word = unicodedata.normalize("NFC", word.translate(_INVISIBLE))
        word = word.translate(self._apostrophe)
        if self._rules.case != "auto":
            return self._in_case(word)
        if self._shared_case is None:
            return word
        change = upper if self._shared_case == "upper" else lower
        return change(word, dotless=self._dotless)

    def _strip(self, text: str, more: str = "") -> str:
        """Return a text without the marks, or further characters, at its ends."""
        first, last = 0, len(text)
        while first < last and (self._is_mark(text[first]) or text[first] in more):
            first += 1
        while first < last and (
            self._is_mark(text[last - 1]) or text[last - 1] in more
        ):
            last -= 1
        return text[first:last]

    def _is_mark(self, character: str) -> bool:
        """Return whether a character is not part of a word at whose end it stands."""
        if character in self._rules.clitics:
            return False
        if self._rules.punctuation is not None:
            return character in self._rules.punctuation
        return _is_mark(character)

    # -- what follows from vocabulary and rules ---------------------------------------

    @cached_property
    def _by_key(self) -> dict[str, str]:
        """Key -> spelling; of several the one with the fewest capital letters."""
        found: dict[str, str] = {}
        for word in sorted(self.vocabulary, key=_capitals, reverse=True):
            found[self._key(word)] = word
        return found

    @cached_property
    def _loose(self) -> dict[str, str]:
        """Loose key -> key of the words that have it; "" if that isn't one.

        Words of ASCII alone are like no others.
        """
        found: dict[str, str] = {}
        for key in self._by_key:
            if not key.isascii():
                loose = loose_key(key)
                found[loose] = key if loose not in found else ""
        return found

    @cached_property
    def _dotless(self) -> bool:
        """Whether I is the capital letter of ı, as in Turkish."""
        return has_dotless_i(self.vocabulary)

    @cached_property
    def _apostrophe(self) -> dict[int, int]:
        """Table that turns apostrophes into the one that the vocabulary has."""
        kinds = Counter(c for w in self.vocabulary for c in w if c in APOSTROPHES)
        usual = max(kinds, key=kinds.__getitem__, default="'")
        return dict.fromkeys(map(ord, self._rules.clitics), ord(usual))

    @cached_property
    def _shared_case(self) -> Literal["lower", "upper"] | None:
        """Return the case of nearly all words of the vocabulary; None without one."""
        words = [w for w in self.vocabulary if not re.fullmatch(r"\W.*\W", w)]
        cased = [w for w in words if w.lower() != w.upper()]
        if sum(word == word.lower() for word in cased) > _NEARLY_ALL * len(cased):
            return "lower"
        if sum(word == word.upper() for word in cased) > _NEARLY_ALL * len(cased):
            return "upper"
        return None

    @cached_property
    def _parting(self) -> re.Pattern[str]:
        given = self._rules.punctuation
        marks = [c for c in _PARTING if given is None or c in given]
        marks = [c for c in marks if c not in self._rules.clitics]
        either = "".join(map(re.escape, [*marks, _ZERO_WIDTH_SPACE]))
        # Between Hebrew letters a quotation mark is typed for gershayim.
        several = [rf'(?:(?!(?<=[א-ת])"[א-ת])[{either}])+']
        if given is None or "." in given:
            several.append(r"\.{2,}")
        if given is None or "," in given:
            several.append(r"(?<!\d),|,(?!\d)")
        return re.compile("|".join([*several, "--+"]))

    @cached_property
    def _compound(self) -> re.Pattern[str]:
        """Pattern of what joins the parts of compounds; matches nowhere for none."""
        marks = "".join(map(re.escape, self._rules.compounds))
        return re.compile(rf"[{marks}]+" if marks else r"(?!)")

    @cached_property
    def _within(self) -> re.Pattern[str]:
        """Pattern of marks that may divide a word; matches nowhere for none."""
        given = self._rules.punctuation
        marks = [c for c in _WITHIN if given is None or c in given]
        return re.compile(rf"[{''.join(map(re.escape, marks))}]+" if marks else "(?!)")


def holds_word(text: str) -> bool:
    """Return whether a text is more than blanks and marks."""
    return any(not c.isspace() and not _is_mark(c) for c in text)


def no_word_known(forms: WordForms, file: str | Path) -> UserError | None:
    """Return an error if the lexicon has no word of the transcripts.

    Args:
        forms: has read them all.
        file: that they are of, for the message.
    """
    found = forms.stranger()
    if found is None:
        return None
    word, like = found
    pair = f"{word!r}; the lexicon has {like!r}" if like else repr(word)
    return UserError(
        f"the lexicon has none of the {forms.num_words} words of the transcripts, "
        f"e.g. {pair}",
        file=file,
        remedy="set `case` of this source to auto"
        if like and like.casefold() == word.casefold()
        else "check that lexicon (lang.lexicon) and transcripts are of one language, "
        "and that their words are written alike",
    )


def _capitals(word: str) -> tuple[int, str]:
    """Return what words of one key are sorted by."""
    return sum(c.isupper() for c in word), word


@cache
def _is_mark(character: str) -> bool:
    """Return whether a character is a mark by its category."""
    if character in _SPOKEN:
        return False
    return unicodedata.category(character) in _MARK_CATEGORIES
