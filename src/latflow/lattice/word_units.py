"""Where words and silences end in a string of transition-ids.

A rule looks at what has been read of a path and not yet been given away, a string of
transition-ids that begins where a phone begins and the words whose labels have been
met, and says which units (words, silences) may be cut off its front.

* `BoundaryRule`: phones say whether they begin, end or are inside a word. There is
  never a choice.
* `LexiconRule`: a word ends where its phones have been one of its pronunciations. There
  may be several choices, and so there may be several rows of units for one path.

In graphs made with `reorder` (latflow's and Kaldi's default) the self-loops of a state
follow the arc that leaves it. A phone then ends behind the self-loops that follow its
last arc, and that it ends is known only when the next phone has begun.

Public: `Pending`, `Unit`, `Rule`, `BoundaryRule`, `LexiconRule`.

Source: Kaldi `lat/word-align-lattice.cc`, `lat/word-align-lattice-lexicon.cc`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel

_KINDS = ("nonword", "begin", "end", "internal", "singleton")
_NONWORD, _BEGIN, _END, _INTERNAL, _SINGLETON = range(len(_KINDS))
_UNKNOWN = 255

_WAIT, _CHANGED, _STRANGE, _MIDDLE = 0, -1, -2, -3
_FAULTS = {
    _CHANGED: "a phone that changes before its last transition",
    _STRANGE: "a phone inside a word that is not word-internal",
    _MIDDLE: "a word that begins with a phone from inside a word",
}


class Pending(NamedTuple):
    """What has been read of a path and not yet been given away.

    Attributes:
        ids: transition-ids, as the bytes of an int32 array.
        words: labels of words to come, in order.
        tried: phones at the front that cutting a unit was already given up for, by
            `LexiconRule`.
        is_word_new: whether the first word was not there then.
    """

    ids: bytes = b""
    words: tuple[int, ...] = ()
    tried: int = 0
    is_word_new: bool = True

    def without(self, unit: Unit) -> Pending:
        """What is left when a unit is cut off."""
        words = self.words[1:] if unit.uses_word else self.words
        return Pending(self.ids[4 * unit.num_ids :], words)


class Unit(NamedTuple):
    """A word or silence at the front.

    Attributes:
        word: its label.
        num_ids: its transition-ids.
        uses_word: whether it takes the first of the pending words away.
    """

    word: int
    num_ids: int
    uses_word: bool


class Rule(ABC):
    """What may be cut off; see the module's description.

    Args:
        model: what the transition-ids are ids of.
        silence_label: label of a silence.
        partial_label: label of what a path that is cut off leaves without a word.
        reorder: whether self-loops follow the arc that leaves their state.
    """

    def __init__(
        self,
        model: TransitionModel,
        *,
        silence_label: int,
        partial_label: int,
        reorder: bool,
    ) -> None:
        self._phone = model.phone
        self._is_final = model.is_final
        self._is_loop = model.is_self_loop
        self._reorder = reorder
        self._silence_label = silence_label
        self._partial_label = partial_label

    @abstractmethod
    def units(self, pending: Pending, *, is_end: bool) -> list[Unit]:
        """Units that may be cut off the front.

        Args:
            pending: what is left.
            is_end: whether the path ends behind it.

        Raises:
            UserError: the transition-ids are no sequence of phones.
        """

    @abstractmethod
    def may_advance(self, pending: Pending, units: list[Unit]) -> bool:
        """Whether more of the path may be read before a unit is cut off.

        Args:
            pending: what is left.
            units: those that could be cut off.
        """

    @abstractmethod
    def advanced(self, pending: Pending, ids: bytes, word: int) -> Pending:
        """Read an arc: its transition-ids and its word (0 for none)."""

    @abstractmethod
    def is_silence(self, phone: int) -> bool:
        """Whether a phone belongs to no word."""

    def forced(self, pending: Pending) -> list[Unit]:
        """The rest at the end of a path as one unit; none where no frame is left.

        That is the last phone or word, or, where the search did not reach a final
        state, part of a word.
        """
        if not pending.ids:
            return []
        num_ids = len(pending.ids) // 4
        if pending.words:
            return [Unit(pending.words[0], num_ids, uses_word=True)]
        phone = self._phone[np.frombuffer(pending.ids, np.int32, 1)[0]]
        is_silence = self.is_silence(int(phone))
        label = self._silence_label if is_silence else self._partial_label
        return [Unit(label, num_ids, uses_word=False)]


class BoundaryRule(Rule):
    """Words end with word-ending phones.

    Args:
        model: what the transition-ids are ids of.
        word_boundary: phone -> begin, end, internal, singleton or nonword.
        silence_label: label of phones that belong to no word.
        partial_label: label of part of a word at the end of a path.
        reorder: whether self-loops follow the arc that leaves their state.

    Raises:
        UserError: a phone of the model has no kind.
    """

    def __init__(
        self,
        model: TransitionModel,
        word_boundary: Mapping[int, str],
        *,
        silence_label: int = 0,
        partial_label: int = 0,
        reorder: bool = True,
    ) -> None:
        super().__init__(
            model,
            silence_label=silence_label,
            partial_label=partial_label,
            reorder=reorder,
        )
        top = max(int(model.phone.max()), *word_boundary)
        by_phone = np.full(top + 1, _UNKNOWN, np.uint8)
        for phone, kind in word_boundary.items():
            by_phone[phone] = _KINDS.index(kind)
        self._kind = np.full(len(model.phone), _UNKNOWN, np.uint8)
        self._kind[1:] = by_phone[model.phone[1:]]
        self._silences = {p for p, kind in word_boundary.items() if kind == "nonword"}
        if (self._kind[1:] == _UNKNOWN).any():
            missing = int(model.phone[1:][self._kind[1:] == _UNKNOWN][0])
            raise UserError(
                f"phone {missing} of the model is not in word_boundary.int",
                remedy="use the lang directory that the model was trained with",
            )

    def units(self, pending: Pending, *, is_end: bool) -> list[Unit]:
        """The word or silence at the front, if it is whole."""
        del is_end  # a unit with nothing behind it is for `forced`
        if not pending.ids:
            return []
        kind, length = _front(
            np.frombuffer(pending.ids, np.int32),
            self._phone,
            self._kind,
            self._is_final,
            self._is_loop,
            self._reorder,
        )
        if length < 0:
            raise UserError(
                _FAULTS[length],
                remedy="align with the model, the lang directory and the setting of "
                "reorder that the lattice was made with",
            )
        if length == _WAIT or (kind != _NONWORD and not pending.words):
            return []
        if kind == _NONWORD:
            return [Unit(self._silence_label, length, uses_word=False)]
        return [Unit(pending.words[0], length, uses_word=True)]

    def may_advance(self, pending: Pending, units: list[Unit]) -> bool:
        """A unit that can be cut off is cut off."""
        del pending
        return not units

    def advanced(self, pending: Pending, ids: bytes, word: int) -> Pending:
        """Read an arc."""
        words = (*pending.words, word) if word else pending.words
        return Pending(pending.ids + ids, words)

    def is_silence(self, phone: int) -> bool:
        """Whether it is a nonword phone."""
        return phone in self._silences


class LexiconRule(Rule):
    """Words end where the lexicon says that they may.

    A unit is cut off as soon as it can be, or never: what was given up once (because
    the unit may be longer) is not offered again.

    Args:
        model: what the transition-ids are ids of.
        lexicon: word id -> sequences of phone ids.
        silence: phone that may stand between words.
        silence_label: label of that phone.
        partial_label: label of part of a word at the end of a path.
        reorder: whether self-loops follow the arc that leaves their state.
    """

    def __init__(
        self,
        model: TransitionModel,
        lexicon: Mapping[int, Sequence[tuple[int, ...]]],
        silence: int,
        *,
        silence_label: int = 0,
        partial_label: int = 0,
        reorder: bool = True,
    ) -> None:
        super().__init__(
            model,
            silence_label=silence_label,
            partial_label=partial_label,
            reorder=reorder,
        )
        self._lexicon = {word: set(entries) for word, entries in lexicon.items()}
        self._silence = silence

    def units(self, pending: Pending, *, is_end: bool) -> list[Unit]:
        """Silence and all pronunciations of the first word that fit the front."""
        phones, ends = self._whole_phones(pending.ids, is_end=is_end)
        found = []
        if phones and phones[0] == self._silence and pending.tried < 1:
            found.append(Unit(self._silence_label, ends[0], uses_word=False))
        for count in range(1, len(phones) + 1) if pending.words else ():
            is_new = pending.is_word_new or count > pending.tried
            if is_new and tuple(phones[:count]) in self._entries(pending.words[0]):
                found.append(Unit(pending.words[0], ends[count - 1], uses_word=True))
        return found

    def may_advance(self, pending: Pending, units: list[Unit]) -> bool:
        """Whether the phones at the front may be the beginning of the first word."""
        del units
        if not pending.words or not pending.ids:
            return True
        phones, _ = self._whole_phones(pending.ids, is_end=False)
        so_far = tuple(phones)
        return any(
            len(entry) > len(so_far) and entry[: len(so_far)] == so_far
            for entry in self._entries(pending.words[0])
        )

    def advanced(self, pending: Pending, ids: bytes, word: int) -> Pending:
        """Read an arc."""
        phones, _ = self._whole_phones(pending.ids, is_end=False)
        words = (*pending.words, word) if word else pending.words
        return Pending(pending.ids + ids, words, len(phones), not pending.words)

    def is_silence(self, phone: int) -> bool:
        """Whether it is the phone between words."""
        return phone == self._silence

    def _entries(self, word: int) -> set[tuple[int, ...]]:
        """Pronunciations of a word."""
        entries = self._lexicon.get(word)
        if not entries:
            raise UserError(
                f"word {word} of the lattice has no pronunciation in the lexicon",
                remedy="use the lang directory that the graph was made of",
            )
        return entries

    def _whole_phones(self, ids: bytes, *, is_end: bool) -> tuple[list[int], list[int]]:
        """Phones that are known to be whole, and where each ends."""
        if not ids:
            return [], []
        array = np.frombuffer(ids, np.int32)
        ends = _phone_ends(
            array, self._phone, self._is_final, self._is_loop, self._reorder, is_end
        )
        if len(ends) and ends[-1] < 0:
            raise UserError(
                _FAULTS[_CHANGED],
                remedy="align with the model and the setting of reorder that the "
                "lattice was made with",
            )
        return self._phone[array[ends - 1]].tolist(), ends.tolist()


@njit(cache=True, nogil=True)
def _phone_end(
    ids: np.ndarray,
    first: int,
    phone: np.ndarray,
    is_final: np.ndarray,
    is_loop: np.ndarray,
    reorder: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
) -> int:
    """Find the end of a phone.

    Args:
        ids: int32[T], transition-ids.
        first: where the phone begins.
        phone: int32[I + 1], phone of each transition-id.
        is_final: bool[I + 1], whether it ends its phone.
        is_loop: bool[I + 1], whether it is a self-loop.
        reorder: whether self-loops follow the arc that leaves their state.

    Returns:
        One past its last transition-id; -1 if the phone changes before its end; 0 if
        `ids` stops before its last arc.
    """
    at = first
    while at < len(ids) and not is_final[ids[at]]:
        if phone[ids[at]] != phone[ids[first]]:
            return -1
        at += 1
    if at == len(ids):
        return 0
    if phone[ids[at]] != phone[ids[first]]:
        return -1
    at += 1
    while reorder and at < len(ids) and is_loop[ids[at]]:
        if phone[ids[at]] != phone[ids[first]]:
            return -1
        at += 1
    return at


@njit(cache=True, nogil=True)
def _front(
    ids: np.ndarray,
    phone: np.ndarray,
    kind: np.ndarray,
    is_final: np.ndarray,
    is_loop: np.ndarray,
    reorder: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
) -> tuple[int, int]:
    """Find the word or silence at the front.

    Args:
        ids: int32[T], transition-ids, T > 0.
        phone: int32[I + 1], phone of each transition-id.
        kind: uint8[I + 1], what that phone is in a word.
        is_final: bool[I + 1].
        is_loop: bool[I + 1].
        reorder: see the module's description.

    Returns:
        (kind of its first phone; its length, _WAIT if it is not known to be whole, or
        a negative fault).
    """
    first = int(kind[ids[0]])
    if first in (_END, _INTERNAL):
        return first, _MIDDLE
    at = 0
    while True:
        here = kind[ids[at]]
        if at > 0 and here not in (_END, _INTERNAL):
            return first, _STRANGE
        end = _phone_end(ids, at, phone, is_final, is_loop, reorder)
        if end < 0:
            return first, _CHANGED
        if end in (0, len(ids)):
            return first, _WAIT
        at = end
        if here in (_NONWORD, _SINGLETON, _END):
            return first, at


@njit(cache=True, nogil=True)
def _phone_ends(
    ids: np.ndarray,
    phone: np.ndarray,
    is_final: np.ndarray,
    is_loop: np.ndarray,
    reorder: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
    is_end: bool,  # noqa: FBT001
) -> np.ndarray:
    """Find the ends of all phones that are known to be whole.

    Args:
        ids: int32[T], transition-ids.
        phone: int32[I + 1], phone of each transition-id.
        is_final: bool[I + 1].
        is_loop: bool[I + 1].
        reorder: see the module's description.
        is_end: whether the path ends behind `ids`.

    Returns:
        int64[K], one past the last transition-id of each; the last entry is -1 if a
        phone changes before its end.
    """
    ends = np.empty(len(ids), np.int64)
    count = at = 0
    while at < len(ids):
        end = _phone_end(ids, at, phone, is_final, is_loop, reorder)
        if end == 0 or (end == len(ids) and not is_end):
            break
        ends[count] = end
        count += 1
        if end < 0:
            break
        at = end
    return ends[:count]
