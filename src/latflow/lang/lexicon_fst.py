"""The lexicon transducer L: phones in, words out.

L loops: a word leaves the loop state with its first phone, which also carries the word,
and comes back with its last. Where optional silence is allowed the last phone has two
arcs, one back to the loop state and one to a state from which a silence phone leads
back.

Decoding determinises L composed with the grammar, which fails where two words sound
alike, or one begins like the other. `L_disambig.fst` therefore ends such pronunciations
with *disambiguation symbols* `#1`, `#2`, ..., and silence with one of its own.

Public: `add_disambiguation`, `lexicon_fst`, `save_fst`.
Source: Kaldi `utils/lang/make_lexicon_fst.py` (same states and arcs in the same order),
`utils/add_lex_disambig.pl`, `fstbin/fstaddselfloops.cc`; Mohri, Pereira and Riley 2008,
"Speech recognition with weighted finite-state transducers", section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import kaldifst

from latflow.errors import UserError
from latflow.lang.lexicon import EPSILON, Pronunciation

LOOP_STATE = 1  # where words leave and come back, if there is optional silence
SILENCE_STATE = 2


def add_disambiguation(
    entries: Sequence[Pronunciation],
) -> tuple[list[Pronunciation], int]:
    """End ambiguous pronunciations with disambiguation symbols.

    A pronunciation is ambiguous if another entry has the same phones, or longer ones
    that begin with it. Entries with the same phones get `#1`, `#2`, ... in their order.

    Args:
        entries: pronunciations, with position markers if phones have them.

    Returns:
        The entries with symbols added, and the largest number that was used (0 if none
        was needed).

    Source: Kaldi `utils/add_lex_disambig.pl`.
    """
    count = Counter(entry.phones for entry in entries)
    prefixes = {e.phones[:n] for e in entries for n in range(1, len(e.phones))}
    used: Counter[tuple[str, ...]] = Counter()
    result = []
    for entry in entries:
        phones = entry.phones
        if count[phones] > 1 or phones in prefixes:
            used[phones] += 1
            phones = (*phones, f"#{used[phones]}")
        result.append(replace(entry, phones=phones))
    return result, max(used.values(), default=0)


def lexicon_fst(
    entries: Sequence[Pronunciation],
    phone_ids: Mapping[str, int],
    word_ids: Mapping[str, int],
    *,
    silence_phone: str,
    silence_probability: float,
    silence_disambig: str | None = None,
    pass_through: tuple[int, int] | None = None,
) -> kaldifst.StdVectorFst:
    """Build L, its arcs sorted by output label.

    Costs are -ln of probabilities: of the pronunciation, on its first arc, and of
    silence or none, on its last arc.

    Args:
        entries: pronunciations, with position markers and disambiguation symbols.
        phone_ids: ids of phones and disambiguation symbols.
        word_ids: ids of words.
        silence_phone: the phone of optional silence.
        silence_probability: probability of silence at the start and after each word, in
            [0, 1); 0 allows none.
        silence_disambig: symbol that follows optional silence, for `L_disambig.fst`.
        pass_through: (phone id, word id) of `#0`, for `L_disambig.fst`: loops that let
            the backoff arcs of the grammar pass.
    """
    builder = _Builder(phone_ids, word_ids)
    if silence_probability > 0.0:
        builder.add_silence(silence_phone, silence_probability, silence_disambig)
    for entry in entries:
        builder.add_word(entry)
    fst = builder.fst
    fst.set_final(builder.loop_state, 0.0)
    if pass_through is not None:
        kaldifst.add_self_loops(fst, [pass_through[0]], [pass_through[1]])
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst


def save_fst(fst: kaldifst.StdVectorFst, path: Path) -> None:
    """Write a transducer in OpenFst's binary format.

    Raises:
        UserError: it could not be written (OpenFst does not say why).
    """
    if not fst.write(str(path)):
        raise UserError(
            "the transducer could not be written",
            file=path,
            remedy="check the free space on the disk and the folder's permissions",
        )


class _Builder:
    """Adds the arcs of L in Kaldi's order."""

    def __init__(
        self, phone_ids: Mapping[str, int], word_ids: Mapping[str, int]
    ) -> None:
        self.phone_ids = phone_ids
        self.word_ids = word_ids
        self.fst = kaldifst.StdVectorFst()
        self.fst.start = self.fst.add_state()
        self.loop_state = 0
        self.word_ends = [(0, 0.0)]  # (state, cost) that a word's last phone leads to

    def add_arc(
        self, source: int, target: int, phone: str, word: str, cost: float
    ) -> None:
        """Add one arc; labels as text."""
        label = self.phone_ids[phone]
        arc = kaldifst.StdArc(label, self.word_ids[word], cost, target)
        self.fst.add_arc(source, arc)

    def add_silence(self, phone: str, probability: float, disambig: str | None) -> None:
        """Add the choice of silence at the start, and the silence itself."""
        self.loop_state = LOOP_STATE
        for _ in (LOOP_STATE, SILENCE_STATE):
            self.fst.add_state()
        self.word_ends = [
            (LOOP_STATE, -math.log(1.0 - probability)),
            (SILENCE_STATE, -math.log(probability)),
        ]
        for state, cost in self.word_ends:
            self.add_arc(0, state, EPSILON, EPSILON, cost)
        if disambig is None:
            self.add_arc(SILENCE_STATE, LOOP_STATE, phone, EPSILON, 0.0)
            return
        between = self.fst.add_state()
        self.add_arc(SILENCE_STATE, between, phone, EPSILON, 0.0)
        self.add_arc(between, LOOP_STATE, disambig, EPSILON, 0.0)

    def add_word(self, entry: Pronunciation) -> None:
        """Add the arcs of one pronunciation."""
        state, word = self.loop_state, entry.word
        cost = -math.log(entry.probability)
        for phone in entry.phones[:-1]:
            target = self.fst.add_state()
            self.add_arc(state, target, phone, word, cost)
            state, word, cost = target, EPSILON, 0.0
        for target, end_cost in self.word_ends:
            self.add_arc(state, target, entry.phones[-1], word, end_cost + cost)
