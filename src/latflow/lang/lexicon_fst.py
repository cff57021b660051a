"""The lexicon transducer L: phones in, words out.

L loops: a word leaves the loop state with its first phone, which also carries the word,
and comes back with its last. Where optional silence is allowed the last phone has two
arcs, one back to the loop state and one to a state from which a silence phone leads
back.

Decoding determinizes L composed with the grammar, which fails where two words sound
alike, or one begins like the other. `L_disambig.fst` therefore ends such pronunciations
with *disambiguation symbols* `#1`, `#2`, ..., and silence with one of its own.

Such an L expects silence after every word alike. Speakers pause after some words and
before others, and hardly ever within `going to`. In `silence_lexicon_fst` a word knows
how likely silence follows it, and how much more (or less) often than that it stands
after silence, or after none, itself:

    cost of `w` after silence        -ln P(pronunciation) - ln F(silence | w)
    cost of `w` after another word   -ln P(pronunciation) - ln F(none | w)
    then, on its last phone          -ln P(silence | w)  or  -ln (1 - P(silence | w))

It has a state for *after a word without silence* and one for *after silence*; every
word leaves both. The factors F are not probabilities: they correct what the word before
has already paid for, and are 1 on average.

Source: Kaldi `utils/lang/make_lexicon_fst.py` (same states and arcs in the same order),
`utils/add_lex_disambig.pl`, `fstbin/fstaddselfloops.cc`; Mohri, Pereira and Riley 2008,
"Speech recognition with weighted finite-state transducers", section 4; Chen, Xu, Wang,
Povey and Khudanpur 2015, "Pronunciation and silence probability modeling for ASR";
Kaldi `utils/lang/make_lexicon_fst_silprob.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import kaldifst

from latflow.errors import UserError
from latflow.lang.lexicon import EPSILON, GRAMMAR_DISAMBIG, Pronunciation
from latflow.lang.silence import SilenceModel

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


_AFTER_WORD, _AFTER_SILENCE, _BEFORE_SILENCE = 1, 2, 3


def silence_lexicon_fst(
    entries: Sequence[Pronunciation],
    model: SilenceModel,
    phone_ids: Mapping[str, int],
    word_ids: Mapping[str, int],
    *,
    silence_phone: str,
    silence_disambig: str | None = None,
    pass_through: tuple[int, int] | None = None,
) -> kaldifst.StdVectorFst:
    """Build L, its arcs sorted by output label.

    Args:
        entries: pronunciations, with position markers and disambiguation symbols.
        model: silence around each of them.
        phone_ids: ids of phones and disambiguation symbols.
        word_ids: ids of words.
        silence_phone: the phone of optional silence.
        silence_disambig: symbol that follows optional silence, for `L_disambig.fst`.
        pass_through: (phone id, word id) of `#0`, for `L_disambig.fst`: loops that let
            the backoff arcs of the grammar pass.
    """
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    for _ in (_AFTER_WORD, _AFTER_SILENCE, _BEFORE_SILENCE):
        fst.add_state()

    def arc(source: int, target: int, phone: str, word: str, cost: float) -> None:
        label = phone_ids[phone]
        fst.add_arc(source, kaldifst.StdArc(label, word_ids[word], cost, target))

    arc(0, _AFTER_WORD, EPSILON, EPSILON, -math.log(1.0 - model.at_start))
    arc(0, _BEFORE_SILENCE, EPSILON, EPSILON, -math.log(model.at_start))
    if silence_disambig is None:
        arc(_BEFORE_SILENCE, _AFTER_SILENCE, silence_phone, EPSILON, 0.0)
    else:
        between = fst.add_state()
        arc(_BEFORE_SILENCE, between, silence_phone, EPSILON, 0.0)
        arc(between, _AFTER_SILENCE, silence_disambig, EPSILON, 0.0)
    for entry, silence in zip(entries, model.words, strict=True):
        cost = -math.log(entry.probability)
        heads = [
            (_AFTER_WORD, cost - math.log(silence.correction_none), entry.word),
            (_AFTER_SILENCE, cost - math.log(silence.correction_silence), entry.word),
        ]
        tails = [
            (_AFTER_WORD, -math.log(1.0 - silence.after)),
            (_BEFORE_SILENCE, -math.log(silence.after)),
        ]
        for phone in entry.phones[:-1]:
            target = fst.add_state()
            for source, head_cost, word in heads:
                arc(source, target, phone, word, head_cost)
            heads = [(target, 0.0, EPSILON)]
        for source, head_cost, word in heads:
            for target, tail_cost in tails:
                arc(source, target, entry.phones[-1], word, head_cost + tail_cost)
    fst.set_final(_AFTER_WORD, -math.log(model.end_correction_none))
    fst.set_final(_AFTER_SILENCE, -math.log(model.end_correction_silence))
    if pass_through is not None:
        kaldifst.add_self_loops(fst, [pass_through[0]], [pass_through[1]])
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst


def write_transducers(
    folder: Path,
    entries: Sequence[Pronunciation],
    tables: tuple[Mapping[str, int], Mapping[str, int]],
    *,
    silence_phone: str,
    silence: float | SilenceModel,
    silence_disambig: str | None,
) -> None:
    """Write `L.fst` for training, and `L_disambig.fst` for decoding graphs.

    Args:
        folder: where to.
        entries: pronunciations, with position markers if phones have them.
        tables: ids of phones and disambiguation symbols, and ids of words.
        silence_phone: the phone of optional silence.
        silence: its probability, see `lexicon_fst`, or the model of it.
        silence_disambig: symbol that follows optional silence; None writes no
            `L_disambig.fst`.

    Raises:
        UserError: a file could not be written.
    """

    def build(entries: Sequence[Pronunciation], **more: Any) -> kaldifst.StdVectorFst:
        more["silence_phone"] = silence_phone
        if isinstance(silence, SilenceModel):
            return silence_lexicon_fst(entries, silence, *tables, **more)
        return lexicon_fst(entries, *tables, silence_probability=silence, **more)

    save_fst(build(entries), folder / "L.fst")
    if silence_disambig is not None:
        zero = (tables[0][GRAMMAR_DISAMBIG], tables[1][GRAMMAR_DISAMBIG])
        more = {"silence_disambig": silence_disambig, "pass_through": zero}
        marked, _ = add_disambiguation(entries)
        save_fst(build(marked, **more), folder / "L_disambig.fst")
