"""Pronunciations of words that no lexicon has, by a joint n-gram model.

A lexicon is cut into graphones (`latflow.lang.graphones`), pairs of letters and phones;
an n-gram model of graphones, estimated like one of words (`latflow.lang.ngram`), gives
a word and a phone sequence their joint probability, the sum over the ways to cut them.
The probability of a pronunciation is that sum, divided by the sum over all
pronunciations of the word that the search has found.

A model is one file, as `LmTrie.save` writes n-gram models; its words are graphones.

Source: Bisani and Ney 2008, "Joint-sequence models for grapheme-to-phoneme conversion";
Novak, Minematsu and Hirose 2016, "Phonetisaurus: exploring grapheme-to-phoneme
conversion with joint n-gram models in the WFST framework".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from latflow.corpus.dictionaries import plain_word
from latflow.errors import UserError
from latflow.lang.g2p_search import Candidates, search
from latflow.lang.graphones import (
    RESERVED,
    align_graphones,
    from_token,
    to_token,
)
from latflow.lang.lexicon import Lexicon
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import estimate

log = logging.getLogger(__name__)

ORDER = 8  # length of the longest n-grams
MAX_HYPOTHESES = 300  # kept behind each letter
BEAM = 10.0  # in nats


class Guess(NamedTuple):
    """A pronunciation of a word.

    Attributes:
        probability: among the pronunciations of the word that were found, in (0, 1].
        phones: at least one.
    """

    probability: float
    phones: tuple[str, ...]


@dataclass(frozen=True)
class G2p:
    """A trained model.

    Attributes:
        trie: the n-gram model, whose words are graphones.
    """

    trie: LmTrie

    @classmethod
    def load(cls, path: str | Path) -> G2p:
        """Map a file that `train_g2p` wrote.

        Raises:
            UserError: the file is missing, or has no graphones.
        """
        model = cls(LmTrie.load(path, {}))
        if not model._graphones:
            raise UserError(
                "no model of graphones", file=path, remedy="latflow g2p train makes one"
            )
        return model

    def pronounce(
        self,
        word: str,
        number: int,
        *,
        max_hypotheses: int = MAX_HYPOTHESES,
        beam: float = BEAM,
    ) -> list[Guess]:
        """Return the likeliest pronunciations of a word, best first.

        Safe to call from several threads.

        Args:
            word: as the lexicon would spell it.
            number: how many at most.
            max_hypotheses: see `latflow.lang.g2p_search.search`.
            beam: likewise.

        Returns:
            Nothing if the training lexicon lacks one of the letters.
        """
        candidates = self._candidates(word)
        costs, begin, phones = search(
            self.trie.arrays,
            self.trie.start,
            self.trie.end,
            candidates,
            max_hypotheses,
            beam,
        )
        if not len(costs):
            return []
        shares = np.exp(costs[0] - costs)
        shares /= shares.sum()
        return [
            Guess(
                float(shares[n]),
                tuple(self.phones[p] for p in phones[begin[n] : begin[n + 1]]),
            )
            for n in range(min(number, len(costs)))
        ]

    @cached_property
    def _graphones(self) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
        """One or two letters -> labels and phones of the graphones that have them."""
        found: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for label, token in enumerate(self.trie.words):
            graphone = from_token(token)
            if graphone is not None:
                entry = (label, graphone.phones)
                found.setdefault(graphone.letters, []).append(entry)
        return found

    @cached_property
    def letters(self) -> frozenset[str]:
        """The distinct letters of words."""
        return frozenset("".join(self._graphones))

    @cached_property
    def phones(self) -> list[str]:
        """The distinct phones."""
        entries = (entry for each in self._graphones.values() for entry in each)
        return sorted({phone for _, phones in entries for phone in phones})

    @cached_property
    def _arrays(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Letters -> labels int32[C] and phones int32[C, 2] of their graphones."""
        ids = {phone: number for number, phone in enumerate(self.phones)}
        arrays = {}
        for letters, entries in self._graphones.items():
            phones = np.full((len(entries), 2), -1, dtype=np.int32)
            for row, (_, spoken) in zip(phones, entries, strict=True):
                row[: len(spoken)] = [ids[phone] for phone in spoken]
            labels = np.array([label for label, _ in entries], dtype=np.int32)
            arrays[letters] = labels, phones
        return arrays

    def _candidates(self, word: str) -> Candidates:
        """Return the graphones that fit the letters of a word."""
        none = np.zeros(0, np.int32), np.zeros((0, 2), np.int32)
        parts = [
            self._arrays.get(piece, none) if len(piece) == length else none
            for i in range(len(word))
            for length, piece in ((1, word[i : i + 1]), (2, word[i : i + 2]))
        ]
        sizes = [len(labels) for labels, _ in parts]
        return Candidates(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate([none[0], *(labels for labels, _ in parts)]),
            np.concatenate([none[1], *(phones for _, phones in parts)]),
        )


def train_g2p(
    entries: Sequence[tuple[str, tuple[str, ...]]], *, order: int = ORDER
) -> G2p:
    """Train a model on a lexicon.

    Args:
        entries: words and their phones.
        order: length of the longest n-grams, in graphones.

    Raises:
        UserError: no entry can be cut into graphones.
    """
    usable = [entry for entry in entries if not _is_reserved(*entry)]
    cut = align_graphones(usable)
    sentences = [[to_token(g) for g in each] for each in cut if each is not None]
    log.info(
        "%d pronunciations to learn from; left out: %d with one of %s, %d with more "
        "than two phones for each letter",
        len(sentences),
        len(entries) - len(usable),
        " ".join(RESERVED),
        len(usable) - len(sentences),
    )
    if not sentences:
        raise UserError(
            "no pronunciation to learn from",
            remedy="give a lexicon whose words have at most two phones for each letter",
        )
    return G2p(LmTrie.from_model(estimate(sentences, order), {}))


def spoken_entries(
    lexicon: Lexicon, other_phones: Iterable[str] = ()
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the entries of a lexicon to learn from.

    Args:
        lexicon: any.
        other_phones: of silence and noise; entries with one are left out.
    """
    others = set(other_phones)
    return [
        (plain_word(entry.word), entry.phones)
        for entry in lexicon.entries
        if others.isdisjoint(entry.phones)
    ]


def _is_reserved(word: str, phones: tuple[str, ...]) -> bool:
    """Return whether an entry has what the names of graphones are written with."""
    parts = (word, *phones)
    return any(mark in part for mark in RESERVED for part in parts) or "_" in phones
