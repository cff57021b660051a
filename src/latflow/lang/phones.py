"""The phones of a language: their groups, their variants and their names.

Phones are either silence phones (silence, noises, unknown words: modelled without
context) or speech phones. With position-dependent phones every phone has variants by
its place in the word: `AH_B` begins it, `AH_E` ends it, `AH_I` is inside, `AH_S` is the
whole word; silence phones also keep the bare form, which stands between words.

A *group* is a set of phones that share the root of a decision tree: all stress or tone
variants of one base phone, in all word positions (a line of `phones/sets.txt`).

Source: Kaldi `utils/prepare_lang.sh` (phone_map, sets, roots, extra_questions),
`utils/validate_dict_dir.pl`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from latflow.errors import UserError
from latflow.lang.lexicon import Lexicon, Pronunciation, base_phone, mark_of
from latflow.lang.options import LangOptions
from latflow.lang.special_words import SpecialNames, special_names

POSITIONS = ("_B", "_E", "_I", "_S")
_KINDS = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}
_MARKED = re.compile(r".*_[BEIS]")


@dataclass(frozen=True)
class PhoneInventory:
    """All phones, without position markers, in the order of their ids.

    Attributes:
        silence: groups of silence phones.
        nonsilence: groups of speech phones.
        optional_silence: the phone that may stand between words.
        names: of silence and noise.
        options: of the lexicon.
    """

    silence: tuple[tuple[str, ...], ...]
    nonsilence: tuple[tuple[str, ...], ...]
    optional_silence: str
    names: SpecialNames
    options: LangOptions

    @classmethod
    def of_lexicon(cls, lexicon: Lexicon, options: LangOptions) -> PhoneInventory:
        """Find the phones of a lexicon and check them.

        Args:
            lexicon: the lexicon, without added silence and unknown words.
            options: the phones and what they share.

        Raises:
            UserError: a phone is not in the configured set, has a name that would
                collide with a position marker, or is a silence phone inside a word;
                see also `special_names`.
        """
        names = special_names(lexicon, options)
        silence = names.silence_phones
        given = options.nonsilence_phones
        if given is None:
            found = [p for p in lexicon.phones if p not in set(silence)]
            nonsilence = _grouped(found) if options.group_stress else _single(found)
        else:
            nonsilence = tuple(tuple(line.split()) for line in given)
        optional = options.optional_silence or names.silence_phone
        if optional not in silence:
            raise UserError(
                f"configuration lang.optional_silence: {optional} is not a silence "
                "phone",
                remedy=f"choose one of: {', '.join(silence)}",
            )
        inventory = cls(
            _single(silence),
            nonsilence,
            optional,
            names,
            options,
        )
        inventory.check(lexicon)
        return inventory

    def check(self, lexicon: Lexicon) -> None:
        """Refuse a lexicon that does not fit these phones.

        Raises:
            UserError: see `of_lexicon`.
        """
        silence = {phone for group in self.silence for phone in group}
        nonsilence = [phone for group in self.nonsilence for phone in group]
        self._check_names(silence, nonsilence, lexicon.file)
        self._check_markers(lexicon, [*sorted(silence), *nonsilence])
        known = silence | set(nonsilence)
        for entry in lexicon.entries:
            for phone in entry.phones:
                if phone not in known:
                    raise _unknown_phone(lexicon, entry, phone, known)
            kinds = {phone in silence for phone in entry.phones}
            if len(kinds) > 1:
                phone = next(p for p in entry.phones if p in silence)
                raise _fault(
                    lexicon,
                    entry,
                    f"{phone} is the name of a silence phone, but stands among speech "
                    "phones",
                    "rename the phone in the lexicon, or set lang.silence_phone and "
                    "lang.spoken_noise_phone to names that it does not use",
                )

    def _check_names(
        self, silence: set[str], nonsilence: Sequence[str], file: Path | None
    ) -> None:
        """Refuse names that are used twice."""
        if not nonsilence:
            raise UserError(
                "the lexicon has no speech phones, only silence phones",
                file=file,
                remedy="check the lexicon and lang.nonsilence_phones",
            )
        twice = sorted({p for p in nonsilence if nonsilence.count(p) > 1})
        both = sorted(silence & set(nonsilence))
        for phone in (*both, *twice):
            where = (
                "lang.nonsilence_phones and the silence phones" if both else "a list"
            )
            raise UserError(
                f"configuration lang: phone {phone} is named twice, in {where}",
                remedy="name each phone once",
            )

    def _check_markers(self, lexicon: Lexicon, phones: Iterable[str]) -> None:
        """Refuse phones that look like marked ones, with the first word that has it."""
        if not self.options.position_dependent_phones:
            return
        for phone in phones:
            if _MARKED.fullmatch(phone):
                entry = next((e for e in lexicon.entries if phone in e.phones), None)
                what = (
                    f"phone {phone} ends like a marker of word position "
                    f"({', '.join(POSITIONS)})"
                )
                remedy = (
                    "rename the phone, or set lang.position_dependent_phones to false"
                )
                if entry is None:
                    raise UserError(what, remedy=remedy)
                raise _fault(lexicon, entry, what, remedy)

    # -- the lists of lang/phones/ --------------------------------------------------

    def silence_variants(self, phone: str) -> list[str]:
        """Return a silence phone and its marked forms."""
        is_dependent = self.options.position_dependent_phones
        return [phone, *self.variants(phone)] if is_dependent else [phone]

    def variants(self, phone: str) -> list[str]:
        """Return the marked forms of a speech phone."""
        if not self.options.position_dependent_phones:
            return [phone]
        return [phone + position for position in POSITIONS]

    def silence_list(self) -> list[str]:
        """Return silence phones with their variants, in the order of ids."""
        return [v for group in self._silence_sets() for v in group]

    def nonsilence_list(self) -> list[str]:
        """Return speech phones with their variants, in the order of ids."""
        return [v for group in self._speech_sets() for v in group]

    def sets(self) -> list[list[str]]:
        """Return groups of phones that monophones do not distinguish by position."""
        silence = self._silence_sets()
        if self.options.share_silence_phones:
            silence = [[phone for group in silence for phone in group]]
        return [*silence, *self._speech_sets()]

    def roots(self) -> list[list[str]]:
        """Return the lines of roots.txt: sharing of tree roots by states and phones."""
        shared = "shared" if self.options.share_state_roots else "not-shared"
        lines = [[shared, "split", *phones] for phones in self.sets()]
        if self.options.share_silence_phones:
            lines[0][:2] = ["not-shared", "not-split"]
        return lines

    def extra_questions(self) -> list[list[str]]:
        """Return questions for the tree that clustering would not ask.

        The first are about stress or tone, if phones with such marks are grouped; the
        others are about the position in the word, for speech and silence apart.
        """
        questions = self._mark_questions()
        if not self.options.position_dependent_phones:
            return questions
        speech = [phone for group in self.nonsilence for phone in group]
        silence = [phone for group in self.silence for phone in group]
        questions += [[p + position for p in speech] for position in POSITIONS]
        questions += [[p + position for p in silence] for position in ("", *POSITIONS)]
        return questions

    def _mark_questions(self) -> list[list[str]]:
        """Return one question for each mark: all its phones, in all positions."""
        if all(len(group) == 1 for group in self.nonsilence):
            return []
        by_mark: dict[str, list[str]] = {}
        for group in self.nonsilence:
            for phone in group:
                by_mark.setdefault(mark_of(phone), []).extend(self.variants(phone))
        return [by_mark[mark] for mark in sorted(by_mark)]

    def _silence_sets(self) -> list[list[str]]:
        return [
            [v for phone in group for v in self.silence_variants(phone)]
            for group in self.silence
        ]

    def _speech_sets(self) -> list[list[str]]:
        return [
            [v for phone in group for v in self.variants(phone)]
            for group in self.nonsilence
        ]


def place_markers(phones: Sequence[str]) -> tuple[str, ...]:
    """Mark the phones of a word by their place: `("T", "UW")` -> `("T_B", "UW_E")`."""
    if len(phones) == 1:
        return (phones[0] + "_S",)
    inner = (phone + "_I" for phone in phones[1:-1])
    return (phones[0] + "_B", *inner, phones[-1] + "_E")


def word_boundary_kind(phone: str) -> str:
    """Return `begin`, `end`, `internal`, `singleton`, or `nonword` if unmarked."""
    return _KINDS.get(phone[-2:], "nonword")


def _single(phones: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return a group for each phone."""
    return tuple((phone,) for phone in phones)


def _grouped(phones: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return groups of phones that differ in the digits at their ends only."""
    groups: dict[str, list[str]] = {}
    for phone in phones:
        groups.setdefault(base_phone(phone), []).append(phone)
    return tuple(tuple(group) for group in groups.values())


def _unknown_phone(
    lexicon: Lexicon, entry: Pronunciation, phone: str, known: set[str]
) -> UserError:
    """Return the error about a phone that no set lists."""
    near = difflib.get_close_matches(phone, sorted(known), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return _fault(
        lexicon,
        entry,
        f"unknown phone {phone}",
        f"{hint}correct the line, or add the phone to lang.nonsilence_phones",
    )


def _fault(lexicon: Lexicon, entry: Pronunciation, what: str, remedy: str) -> UserError:
    """Return an error about one line of the lexicon."""
    return UserError(
        f"line {entry.line}: word {entry.word}: {what}",
        file=lexicon.file,
        remedy=remedy,
    )
