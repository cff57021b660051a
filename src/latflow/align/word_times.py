"""Times of recognized words: the words of a best path matched to its phones.

On a decoding graph the word label may stand on any arc of its word (or near it), since
determinization and weight pushing move labels; the phones under the transition-ids are
exact. So the words' times come from the phones: the phone sequence is split into
pronunciations of the words, with silence phones between them.

Source: the problem that Kaldi's `lattice-align-words-lexicon` solves on whole lattices;
here on one path, by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from latflow.hmm.alignment import check_ids, segments
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.phones import POSITIONS

Entry = tuple[str, ...]


class Pronunciations:
    """The pronunciations of a lexicon, comparable with the phones of a path.

    Args:
        lexicon: word -> phone sequences, without position markers.
        silence_phones: names of the phones that may stand between words.
        is_position_dependent: whether phones of a path carry `_B _I _E _S`.
    """

    def __init__(
        self,
        lexicon: Mapping[str, Sequence[Entry]],
        silence_phones: Sequence[str],
        *,
        is_position_dependent: bool,
    ) -> None:
        self._strips = is_position_dependent
        self.silence = frozenset(self.base(phone) for phone in silence_phones)
        self._lexicon = {
            word: tuple(dict.fromkeys(tuple(map(self.base, e)) for e in entries))
            for word, entries in lexicon.items()
        }

    def base(self, phone: str) -> str:
        """Return a phone without its position in the word."""
        return phone[:-2] if self._strips and phone.endswith(POSITIONS) else phone

    def of(self, word: str) -> tuple[Entry, ...]:
        """Return the phone sequences of a word; empty if the lexicon has none."""
        return self._lexicon.get(word, ())


def split_phones(
    phones: Sequence[str],
    words: Sequence[str],
    pronunciations: Pronunciations,
    *,
    is_partial: bool = False,
) -> list[tuple[int, int]] | None:
    """Find the phones of each word.

    Args:
        phones: phone sequence of the whole utterance, silences included.
        pronunciations: of the lexicon that the graph was made of.
        is_partial: whether the last word may be cut off by the end (a search that did
            not reach a final state).

    Returns:
        (first phone, one past the last) of each word, or None where the phones cannot
        be split into pronunciations of these words. Of several divisions, the one
        in which earlier words start earlier, with longer pronunciations, is taken.
    """
    base = [pronunciations.base(phone) for phone in phones]
    options = [sorted(pronunciations.of(word), key=len, reverse=True) for word in words]

    def ends(w: int, p: int) -> list[int]:
        """Return the ends of word w's pronunciations that start at phone p."""
        found = [
            p + len(entry)
            for entry in options[w]
            if tuple(base[p : p + len(entry)]) == entry
        ]
        if is_partial and w == len(words) - 1 and not found:
            rest = tuple(base[p:])
            found = [len(base) for entry in options[w] if entry[: len(rest)] == rest]
        return found

    def successors(w: int, p: int) -> Iterator[tuple[int, int]]:
        """Yield where to continue from phone p, when word w is next."""
        if w < len(words):
            yield from ((w + 1, end) for end in ends(w, p))
        if p < len(base) and base[p] in pronunciations.silence:
            yield w, p + 1

    # Depth first, the preferred successor first; no state is left in vain twice.
    path, open_states = [(0, 0)], [successors(0, 0)]
    dead: set[tuple[int, int]] = set()
    while path[-1] != (len(words), len(base)):
        onward = next((state for state in open_states[-1] if state not in dead), None)
        if onward is not None:
            path.append(onward)
            open_states.append(successors(*onward))
            continue
        dead.add(path.pop())
        open_states.pop()
        if not path:
            return None
    return [
        (first, last)
        for (w, first), (after, last) in pairwise(path)
        if after > w  # a word; else a silence was passed
    ]


def phone_segments(
    transition_ids: np.ndarray, model: TransitionModel
) -> tuple[list[int], list[int], bool]:
    """Split a path into phones, also one that stops in the middle of a phone.

    Args:
        transition_ids: int32 [T].
        model: what they are ids of.

    Returns:
        (phone of each segment, first frame of each segment and T at the end, whether
        the last phone is cut off). A search that did not reach a final state of the
        graph leaves such a path.

    Raises:
        UserError: an id is out of range, or the ids before the last phone do not make
            whole phones.
    """
    ids = np.asarray(transition_ids)
    check_ids(ids, model)
    last = np.flatnonzero(model.is_final[ids])
    whole = int(last[-1]) + 1 if len(last) else 0
    # Self-loops that follow the last arc of a phone (reordered graphs) belong to it.
    while (
        0 < whole < len(ids)
        and model.is_self_loop[ids[whole]]
        and model.state[ids[whole]] == model.state[ids[whole - 1]]
    ):
        whole += 1
    phones, starts, _ = segments(ids[:whole], model)
    is_cut_off = whole < len(ids)
    names, bounds = phones.tolist(), starts.tolist()
    if is_cut_off:
        names.append(int(model.phone[ids[whole]]))
        bounds.append(whole)
    return names, [*bounds, len(ids)], is_cut_off
