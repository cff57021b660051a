"""What searches compose: HCL and G, and what a session has of its own.

G is the language model of the package, or one that a session brings. Where it is the
package's, it has none of the words that are *added* (`latflow.decode.added_words`):
they are of *classes*, which it expects behind a history as words of their kind
(`latflow.lang.word_class`). A G of the session's own (`latflow.lang.session_grammar`)
has their labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latflow.lang.lm_arrays import LmArrays

ARC = np.dtype([("code", "u4"), ("pdf", "u4"), ("weight", "f4")])
Records = Any  # a structured array; in Numba its items have their fields as attributes
STATE = np.dtype([("begin", "u4"), ("middle", "u4")])
HAS_EPSILON = np.uint32(1 << 31)  # in the code of a state: it has epsilon arcs
STATE_BITS = np.uint32((1 << 31) - 1)  # the rest of the code: its number

# Labels of arcs of HCL that are not words; words are 0, 1, ...
NOTHING, BACK_OFF, ADDED = -1, -2, -3
ADDED_ALONE = -1  # the set of a state that leads to added words alone, or less


class Transducer(NamedTuple):
    """HCL, or what is added to it, packed.

    Attributes:
        states: `STATE`[S + 1].
        arcs: `ARC`[A].
        label: int32[A], of each arc: a word's label, NOTHING, BACK_OFF or ADDED: where
            added words begin, behind the phone `word`.
        transition_id: int32[A].
        word: int32[A], the word that the label stands for.
        final: float32[S].
        set_of: int32[S], number of the set of labels that can come next, ADDED_ALONE
            for added words.
    """

    states: Records
    arcs: Records
    label: np.ndarray
    transition_id: np.ndarray
    word: np.ndarray
    final: np.ndarray
    set_of: np.ndarray


class AddedWords(NamedTuple):
    """Words that HCL lacks, or says otherwise.

    Attributes:
        transducer: its states are numbered behind those of HCL; arcs may lead to both.
        entry: int32[classes, phones], the state that words of a class begin in behind
            each phone; its set is ADDED_ALONE less the number of the class.
        label: int32[K], what G has for them: labels of the words, or of their classes.
        is_class: bool[1], whether G has classes; else all words are one class.
        cost: float32[classes], of the best word of a class.
    """

    transducer: Transducer
    entry: np.ndarray
    label: np.ndarray
    is_class: np.ndarray
    cost: np.ndarray


class Phrases(NamedTuple):
    """Phrases that are favoured, see `latflow.lang.phrases`; P states.

    Attributes:
        lm: their model.
        label_of: int32[largest word + 1], label of each word in it; of no length where
            there are no phrases.
        label: int32[words of phrases], ascending: the label in HCL and G of each one
            of the words, which the model numbers in this order.
        refund: float32[P], cost of a word that continues with no phrase.
    """

    lm: LmArrays
    label_of: np.ndarray
    label: np.ndarray
    refund: np.ndarray


class Parts(NamedTuple):
    """What is composed, for kernels; it never changes.

    Attributes:
        hcl: HCL.
        added: words added to it.
        set_begin: int64[sets + 1], where the ranges of each set begin.
        ranges: int32[ranges, 2], first and last label.
        can_back_off: bool[sets].
        can_add: bool[sets], whether ADDED comes next.
        span: int32[S, 2], of the states of HCL: first and last label that can come
            next; first -1 where something else can.
        lm: G; labels as those of HCL, and `end`.
        sums: float64[G's arcs], probabilities of the arcs of a state up to each one.
        any_word: float64[G's states], probability of all that may come next, backing
            off included.
        phrases: favoured on top of G.
        end: int64[1], the label that ends an utterance.
    """

    hcl: Transducer
    added: AddedWords
    set_begin: np.ndarray
    ranges: np.ndarray
    can_back_off: np.ndarray
    can_add: np.ndarray
    span: np.ndarray
    lm: LmArrays
    sums: np.ndarray
    any_word: np.ndarray
    phrases: Phrases
    end: np.ndarray


def read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return views that can't be written to: kernels are compiled for these."""
    views = tuple(np.ascontiguousarray(array).view() for array in arrays)
    for view in views:
        view.setflags(write=False)
    return views


_EMPTY = {
    np.dtype(kind): read_only(np.zeros(0, kind))[0]
    for kind in (STATE, ARC, np.int32, np.int64, np.float32, np.float64, np.bool_)
}


def no_words() -> AddedWords:
    """Return no added words."""
    ints = _EMPTY[np.dtype(np.int32)]
    transducer = Transducer(
        *(_EMPTY[STATE], _EMPTY[ARC], ints, ints, ints),
        *(_EMPTY[np.dtype(np.float32)], ints),
    )
    entry, flag, cost = read_only(
        np.zeros((0, 0), np.int32), np.zeros(1, np.bool_), np.zeros(0, np.float32)
    )
    return AddedWords(transducer, entry, ints, flag, cost)


def no_phrases() -> Phrases:
    """Return no phrases: one state, where no word costs anything."""
    ints = _EMPTY[np.dtype(np.int32)]
    begin, state, refund, cost = read_only(
        np.zeros(2, np.int64),
        np.full(1, -1, np.int32),
        *np.zeros((2, 1), np.float32),
    )
    lm = LmArrays(begin, ints, _EMPTY[np.dtype(np.float32)], ints, state, cost)
    return Phrases(lm, ints, ints, refund)


def no_parts() -> Parts:
    """Return the parts of a graph that isn't composed."""
    ints, longs = _EMPTY[np.dtype(np.int32)], _EMPTY[np.dtype(np.int64)]
    floats, doubles = _EMPTY[np.dtype(np.float32)], _EMPTY[np.dtype(np.float64)]
    flags, none = _EMPTY[np.dtype(np.bool_)], no_words()
    (ranges,) = read_only(np.zeros((0, 2), np.int32))
    lm = LmArrays(longs, ints, floats, ints, ints, floats)
    return Parts(
        *(none.transducer, none, longs, ranges, flags, flags, ranges),
        *(lm, doubles, doubles, no_phrases(), longs),
    )
