"""The lexicon transducer L with silence that depends on the words around it.

Plain L (`latflow.lang.lexicon_fst`) expects silence after every word alike. Speakers
pause after some words and before others, and hardly ever within `going to`. Here a word
knows how likely silence follows it, and how much more (or less) often than that it
stands after silence, or after none, itself:

    cost of `w` after silence        -ln P(pronunciation) - ln F(silence | w)
    cost of `w` after another word   -ln P(pronunciation) - ln F(none | w)
    then, on its last phone          -ln P(silence | w)  or  -ln (1 - P(silence | w))

L has a state for *after a word without silence* and one for *after silence*; every word
leaves both. The factors F are not probabilities: they correct what the word before has
already paid for, and are 1 on average.

Public: `SilenceModel`, `WordSilence`, `silence_lexicon_fst`.

Source: Chen, Xu, Wang, Povey and Khudanpur 2015, "Pronunciation and silence probability
modeling for ASR"; Kaldi `utils/lang/make_lexicon_fst_silprob.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import kaldifst

from latflow.lang.lexicon import EPSILON, Pronunciation

_AFTER_WORD, _AFTER_SILENCE, _BEFORE_SILENCE = 1, 2, 3


class WordSilence(NamedTuple):
    """Silence around a pronunciation.

    Attributes:
        after: P(silence | w), in (0, 1).
        correction_silence: F(silence | w), of standing after silence; above 0.
        correction_none: F(none | w), of standing right after another word; above 0.
    """

    after: float
    correction_silence: float
    correction_none: float


@dataclass(frozen=True)
class SilenceModel:
    """Silence of a whole lexicon.

    Attributes:
        overall: P(silence) between any two words.
        at_start: P(silence | start of the sentence).
        end_correction_silence: F(silence | end of the sentence).
        end_correction_none: F(none | end of the sentence).
        words: one for each entry of the lexicon, in its order.
    """

    overall: float
    at_start: float
    end_correction_silence: float
    end_correction_none: float
    words: tuple[WordSilence, ...]


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
