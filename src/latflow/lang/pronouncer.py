"""Pronunciations of words that sessions bring without phones, by a G2P model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from latflow.errors import UserError
from latflow.lang.completion import load_g2p
from latflow.lang.directory import Lang
from latflow.lang.g2p import G2p
from latflow.lang.lexicon import Pronunciation
from latflow.lang.transducer_g2p import TransducerG2p

_MOST = 3  # pronunciations of a word
_LEAST_SHARE = 0.1  # of a word's probability; the best one stays in any case
_EXAMPLES = 10


@dataclass(frozen=True)
class Pronouncer:
    """A G2P model whose phones are those of a language.

    Attributes:
        model: the model.
    """

    model: G2p | TransducerG2p

    @classmethod
    def load(cls, path: Path, lang: Lang) -> Pronouncer:
        """Read a model.

        Args:
            path: what `latflow g2p train` wrote, or a zip file or folder of MFA's.
            lang: whose phones it has to have.

        Raises:
            UserError: it is missing or damaged, or has other phones.
        """
        model = load_g2p(path)
        known = {lang.base_phone(number) for number in lang.nonsilence_phones}
        if strange := sorted(set(model.phones) - known):
            raise UserError(
                "the G2P model has phones that the system lacks: "
                + " ".join(strange[:_EXAMPLES]),
                file=path,
                remedy="train it on a lexicon with the system's phones "
                "(latflow g2p train)",
            )
        return cls(model)

    def pronounce(self, word: str) -> list[Pronunciation]:
        """Return the likeliest pronunciations of a word, the best with probability 1.

        A word that the model's lexicon would spell in capitals or small letters is
        looked at so, where it can't be pronounced as it is.

        Raises:
            UserError: the model can't pronounce it; names its unknown characters.
        """
        forms = list(dict.fromkeys((word, word.lower(), word.upper())))
        for form in forms:
            guesses = self.model.pronounce(form, _MOST)
            if guesses:
                best = guesses[0].probability
                return [
                    Pronunciation(word, guess.phones, guess.probability / best)
                    for guess in guesses
                    if guess is guesses[0] or guess.probability >= _LEAST_SHARE
                ]
        unknown = min((self._unknown(form) for form in forms), key=len)
        characters = " ".join(unknown)
        reason = f": it does not know {characters}" if unknown else ""
        raise UserError(
            f"word {word}: the G2P model can't pronounce it{reason}",
            remedy="give its phones (WORD PHONE PHONE ...), or spell it by its sound",
        )

    def _unknown(self, word: str) -> list[str]:
        """Return the characters of a word that the model does not know."""
        return [c for c in dict.fromkeys(word) if c not in self.model.letters]
