"""Words and phones of silence and noise: by configuration, or as a lexicon names them.

Lexica of Kaldi's recipes, Montreal Forced Aligner and CMU Sphinx bring entries such as
`!SIL sil`, `<unk> spn` or `[laughter] lau`. `special_names` is the one place that
decides what they are: options that are set win; what is not set is taken from the
lexicon; what the lexicon does not have either gets the names `SIL`, `SPN`, `<SIL>`,
`<UNK>`.

* Words for silence are `<SIL>`, `!SIL`, `[sil]`, `<silence>` and the like, and `SIL`
  itself where its phone has the same name.
* Words for everything unknown are `<UNK>`, `[unk]`, `<OOV>`, `<SPOKEN_NOISE>`, `<spn>`
  and the like, if all their phones are one that no ordinary word has. Where there is
  none, `spn` of another noise is their phone.
* Any other word in brackets, or like `nsn nsn`, whose one phone no ordinary word has is
  a noise; its phone is modelled like silence.

Source: the `local/prepare_dict.sh` of Kaldi's recipes (the names).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from latflow.errors import UserError
from latflow.lang.lexicon import RESERVED_WORDS, Lexicon, Pronunciation
from latflow.lang.options import LangOptions

log = logging.getLogger(__name__)

_BRACKETED = re.compile(r"<(.+)>|\[(.+)\]|\{(.+)\}|\((.+)\)|\+\+?(.+?)\+\+?|!(.+)")
_SILENCE = ("sil", "silence")
_UNKNOWN = ("unk", "unknown", "oov", "spoken_noise", "spn")  # the best first
_NOISES = ("nsn", "noise", "lau", "laughter", "brth", "breath", "ns", "nse", "gbg")


@dataclass(frozen=True)
class SpecialNames:
    """Names of silence and noise.

    Attributes:
        silence_phone: phone of silence.
        spoken_noise_phone: phone of unintelligible speech and of the unknown word.
        other_silence_phones: further phones that are modelled like silence.
        silence_word: word for silence; empty if none is added.
        oov_word: word that stands for every word outside the lexicon.
    """

    silence_phone: str = "SIL"
    spoken_noise_phone: str = "SPN"
    other_silence_phones: tuple[str, ...] = ()
    silence_word: str = "<SIL>"
    oov_word: str = "<UNK>"

    @property
    def silence_phones(self) -> list[str]:
        """All phones that are modelled like silence, each once."""
        named = (self.silence_phone, self.spoken_noise_phone)
        return list(dict.fromkeys((*named, *self.other_silence_phones)))

    def added_words(self) -> list[tuple[str, str]]:
        """Return (word, phone) of what a lexicon gets if it lacks it."""
        unknown = (self.oov_word, self.spoken_noise_phone)
        silence = (self.silence_word, self.silence_phone)
        return [silence, unknown] if self.silence_word else [unknown]


def special_names(lexicon: Lexicon, options: LangOptions) -> SpecialNames:
    """Return the names of silence and noise, see the head of this module.

    Args:
        lexicon: as it was read.
        options: those that are None are found out.

    Raises:
        UserError: the lexicon contradicts the options, or itself.
    """
    names = _Finder(lexicon, options).find()
    if names != _stated(options):
        log.info(
            "%s: by its words, silence is %s (%s), unknown words are %s (%s)%s",
            lexicon.file,
            names.silence_phone,
            names.silence_word or "no word",
            names.spoken_noise_phone,
            names.oov_word,
            "".join(f", noise is {phone}" for phone in names.other_silence_phones),
        )
    return names


def _stated(options: LangOptions) -> SpecialNames:
    """Return the names by the options, and the usual ones where they are None."""
    fields = SpecialNames.__dataclass_fields__
    given = {name: getattr(options, name) for name in fields}
    return SpecialNames(**{k: v for k, v in given.items() if v is not None})


class _Finder:
    """What a lexicon says about silence and noise."""

    def __init__(self, lexicon: Lexicon, options: LangOptions) -> None:
        self.lexicon = lexicon
        self.options = options
        self.stated = _stated(options)
        self.special = [e for e in lexicon.entries if self._may_be_special(e)]
        chosen = set(map(id, self.special))
        self.speech = {
            phone for e in lexicon.entries if id(e) not in chosen for phone in e.phones
        }
        listed = options.nonsilence_phones or ()
        self.listed = {phone for line in listed for phone in line.split()}
        self.listed.update(options.other_silence_phones or ())

    def find(self) -> SpecialNames:
        """Return the names."""
        silence_phone, silence_word = self._silence()
        noise_phone, oov_word = self._unknown(silence_phone)
        other = self.options.other_silence_phones
        if other is None:
            known = {silence_phone, noise_phone, *self.listed, *self.speech}
            phones = (entry.phones[0] for entry in self.special)
            other = tuple(dict.fromkeys(p for p in phones if p not in known))
        return SpecialNames(silence_phone, noise_phone, other, silence_word, oov_word)

    def _may_be_special(self, entry: Pronunciation) -> bool:
        """Return whether an entry has one phone, and looks or is named as no speech."""
        named = (self.options.silence_word, self.options.oov_word)
        return is_special(entry) or (entry.word in named and _has_one_phone(entry))

    def _silence(self) -> tuple[str, str]:
        """Return phone and word of silence."""
        options, stated = self.options, self.stated
        words = [
            e
            for e in (*self.special, *self.lexicon.edges)
            if e.word in (*RESERVED_WORDS, options.silence_word) or _kind(e) in _SILENCE
        ]
        phone = options.silence_phone
        if phone is None and words:
            phone = words[0].phones[0]
        phone = phone or stated.silence_phone
        self._refuse_others(words, phone, "silence_phone")
        names = [e.word for e in words if e.word not in RESERVED_WORDS]
        if options.silence_word is not None:
            return phone, options.silence_word
        if not names or stated.silence_word in names:
            return phone, stated.silence_word
        return phone, names[0]

    def _unknown(self, silence_phone: str) -> tuple[str, str]:
        """Return phone and word of what is unknown."""
        options, stated = self.options, self.stated
        named = [e for e in self.special if e.word == options.oov_word]
        found = [
            entry
            for entry in self.special
            if (_kind(entry) in _UNKNOWN or _is_spoken_noise(entry))
            and not self.speech.intersection(entry.phones)
            and entry.phones[0] != silence_phone
        ]
        found.sort(key=lambda e: (e.word != "<UNK>", _rank(e)))
        words = [e for e in found if _bracketed(e.word) in _UNKNOWN]
        best = named or words[:1]
        if options.oov_word is not None:
            word = options.oov_word
        else:
            word = words[0].word if words else stated.oov_word
        if options.spoken_noise_phone is not None:
            self._refuse_others(best, options.spoken_noise_phone, "spoken_noise_phone")
            return options.spoken_noise_phone, word
        if self.speech.intersection(p for e in best for p in e.phones):
            best = []
        phones = [e.phones[0] for e in best or found]
        return (phones[0] if phones else stated.spoken_noise_phone), word

    def _refuse_others(
        self, words: Iterable[Pronunciation], phone: str, option: str
    ) -> None:
        """Refuse words of one kind with another phone than that of the kind."""
        entries = list(words)
        for entry in entries:
            other = entry.phones[0]
            if other != phone and other not in self.listed:
                first = next((e for e in entries if e.phones[0] == phone), None)
                where = f"lang.{option} is"
                if first is not None:
                    where = f"word {first.word} in line {first.line} has"
                raise UserError(
                    f"line {entry.line}: word {entry.word} has the phone {other}, but "
                    f"{where} {phone}",
                    file=self.lexicon.file,
                    remedy=f"correct the line, set lang.{option} to {other}, or list "
                    "the phone that is something else in lang.other_silence_phones",
                )


def _rank(entry: Pronunciation) -> int:
    """Return how well a word names what is unknown; 0 is best."""
    kind = _kind(entry)
    return _UNKNOWN.index(kind) if kind in _UNKNOWN else len(_UNKNOWN)


def _is_spoken_noise(entry: Pronunciation) -> bool:
    """Return whether the phone of an entry is named for unintelligible speech."""
    phone = entry.phones[0]
    return (_bracketed(phone) or phone.casefold()) == "spn"


def is_special(entry: Pronunciation) -> bool:
    """Return whether an entry is silence or noise by its word, with one phone."""
    if not _has_one_phone(entry):
        return False
    inner = _bracketed(entry.word)
    if entry.word.startswith("!"):
        return inner in (*_SILENCE, *_UNKNOWN, *_NOISES)
    return bool(inner) or bool(_kind(entry))


def _has_one_phone(entry: Pronunciation) -> bool:
    """Return whether all phones of an entry are the same."""
    return len(set(entry.phones)) == 1


def _bracketed(word: str) -> str:
    """Return what is in the brackets of a word, in small letters; empty without."""
    match = _BRACKETED.fullmatch(word)
    if match is None:
        return ""
    inner = next(group for group in match.groups() if group)
    return inner.casefold().replace("-", "_")


def _kind(entry: Pronunciation) -> str:
    """Return the name of a special word: `sil`, `unk` and so on; empty for others."""
    inner = _bracketed(entry.word)
    if inner:
        return inner
    bare = entry.word.casefold()
    is_own = bare == entry.phones[0].casefold()
    return bare if is_own and bare in ("sil", "spn", "oov", *_NOISES) else ""
