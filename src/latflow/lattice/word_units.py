"""Words and silences in a string of transition-ids: where they end.

Word alignment reads a path arc by arc. What has been read and not yet been output is a
`ComputationState`: a string of transition-ids that begins where a phone begins, and the
words whose labels have been met. A rule says which units (words, silences) its front
may be output as.

* `BoundaryRule`: phones say whether they begin, end or are inside a word. There is
  never a choice.
* `LexiconRule`: a word ends where its phones have been one of its pronunciations. There
  may be several choices, and so several sequences of units for one path.

In graphs made with `reorder` (latflow's and Kaldi's default) the self-loops of a state
follow the arc that leaves it. A phone then ends behind the self-loops that follow its
last arc, and that it ends is known only when the next phone has begun.

Source: Kaldi `lat/word-align-lattice.cc`, `lat/word-align-lattice-lexicon.cc`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.jit import njit

_KINDS = ("nonword", "begin", "end", "internal", "singleton")
_NONWORD, _BEGIN, _END, _INTERNAL, _SINGLETON = range(len(_KINDS))
_UNKNOWN = 255

_WAIT, _CHANGED, _STRANGE, _MIDDLE = 0, -1, -2, -3
_FAULTS = {
    _CHANGED: "a phone that changes before its last transition",
    _STRANGE: "a phone inside a word that is not word-internal",
    _MIDDLE: "a word that begins with a phone from inside a word",
}


class ComputationState(NamedTuple):
    """The part of a path that has been read and not yet been output.

    Attributes:
        ids: transition-ids, as the bytes of an int32 array.
        words: labels of words to come, in order.
        tried: phones at the front that `LexiconRule` has offered and that were read on
            from.
        is_word_new: whether the first word was not there then.
    """

    ids: bytes = b""
    words: tuple[int, ...] = ()
    tried: int = 0
    is_word_new: bool = True

    def after(self, unit: Unit) -> ComputationState:
        """Return what is left when a unit is output."""
        words = self.words[1:] if unit.uses_word else self.words
        return ComputationState(self.ids[4 * unit.num_ids :], words)


class Unit(NamedTuple):
    """A word or silence at the front.

    Attributes:
        word: its label.
        num_ids: its transition-ids.
        uses_word: whether it takes the first of the words to come.
    """

    word: int
    num_ids: int
    uses_word: bool


class _Phones(NamedTuple):
    """Phones of I transition-ids, for kernels: int32[I + 1], and flags, bool[I + 1]."""

    phone: np.ndarray
    is_final: np.ndarray  # ends its phone
    is_loop: np.ndarray  # is a self-loop
    reorder: bool  # whether self-loops follow the arc that leaves their state


class Rule(ABC):
    """Decide what may be output; see the module's description.

    Args:
        model: what the transition-ids are ids of.
        silence_label: label of a silence.
        partial_label: label of part of a word at the end of a path that breaks off.
        reorder: whether self-loops follow the arc that leaves their state.
    """

    def __init__(
        self,
        model: TransitionModel,
        *,
        silence_label: int = 0,
        partial_label: int = 0,
        reorder: bool = True,
    ) -> None:
        self._phones = _Phones(model.phone, model.is_final, model.is_self_loop, reorder)
        self._silence_label = silence_label
        self._partial_label = partial_label

    @abstractmethod
    def units(self, state: ComputationState, *, is_end: bool) -> list[Unit]:
        """Return the units that the front may be output as.

        Args:
            state: what has been read.
            is_end: whether the path ends behind it.

        Raises:
            UserError: the transition-ids are not a sequence of phones.
        """

    @abstractmethod
    def may_advance(self, state: ComputationState, units: list[Unit]) -> bool:
        """Return whether to read on though these units could be output."""

    @abstractmethod
    def advance(
        self, state: ComputationState, ids: bytes, word: int
    ) -> ComputationState:
        """Read an arc: its transition-ids and its word (0 for none)."""

    @abstractmethod
    def is_silence(self, phone: int) -> bool:
        """Return whether a phone belongs to no word."""

    def forced(self, state: ComputationState) -> list[Unit]:
        """Return the rest at the end of a path as one unit; none if no frame is left.

        That is the last phone or word, or, where the search did not reach a final
        state, part of a word.
        """
        if not state.ids:
            return []
        num_ids = len(state.ids) // 4
        if state.words:
            return [Unit(state.words[0], num_ids, uses_word=True)]
        phone = self._phones.phone[np.frombuffer(state.ids, np.int32, 1)[0]]
        is_silence = self.is_silence(int(phone))
        label = self._silence_label if is_silence else self._partial_label
        return [Unit(label, num_ids, uses_word=False)]


class BoundaryRule(Rule):
    """Words end with word-ending phones.

    Args:
        model: as for `Rule`, and so are `labels`.
        word_boundary: phone -> begin, end, internal, singleton or nonword.

    Raises:
        UserError: a phone of the model has no kind.
    """

    def __init__(
        self, model: TransitionModel, word_boundary: Mapping[int, str], **labels: Any
    ) -> None:
        super().__init__(model, **labels)
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

    def units(self, state: ComputationState, *, is_end: bool) -> list[Unit]:
        """Return the word or silence at the front, if it is whole."""
        del is_end  # a unit with nothing behind it is for `forced`
        if not state.ids:
            return []
        kind, length = _front(
            np.frombuffer(state.ids, np.int32), self._kind, self._phones
        )
        if length < 0:
            raise _fault(length)
        if length == _WAIT or (kind != _NONWORD and not state.words):
            return []
        if kind == _NONWORD:
            return [Unit(self._silence_label, length, uses_word=False)]
        return [Unit(state.words[0], length, uses_word=True)]

    def may_advance(self, state: ComputationState, units: list[Unit]) -> bool:
        """Return False if there is a unit: it is output."""
        del state
        return not units

    def advance(
        self, state: ComputationState, ids: bytes, word: int
    ) -> ComputationState:
        """Read an arc."""
        words = (*state.words, word) if word else state.words
        return ComputationState(state.ids + ids, words)

    def is_silence(self, phone: int) -> bool:
        """Return whether it is a nonword phone."""
        return phone in self._silences


class LexiconRule(Rule):
    """Words end where the lexicon says that they may.

    A unit is output as soon as it can be, or never: what was read on from once (because
    the unit may be longer) is not offered again.

    Args:
        model: as for `Rule`, and so are `labels`.
        lexicon: word id -> sequences of phone ids.
        silence: phone that may stand between words.
    """

    def __init__(
        self,
        model: TransitionModel,
        lexicon: Mapping[int, Sequence[tuple[int, ...]]],
        silence: int,
        **labels: Any,
    ) -> None:
        super().__init__(model, **labels)
        self._lexicon = {word: set(entries) for word, entries in lexicon.items()}
        self._silence = silence

    def units(self, state: ComputationState, *, is_end: bool) -> list[Unit]:
        """Return silence and all pronunciations of the first word that fit."""
        phones, ends = self._whole_phones(state.ids, is_end=is_end)
        found = []
        if phones and phones[0] == self._silence and state.tried < 1:
            found.append(Unit(self._silence_label, ends[0], uses_word=False))
        for count in range(1, len(phones) + 1) if state.words else ():
            is_new = state.is_word_new or count > state.tried
            if is_new and tuple(phones[:count]) in self._entries(state.words[0]):
                found.append(Unit(state.words[0], ends[count - 1], uses_word=True))
        return found

    def may_advance(self, state: ComputationState, units: list[Unit]) -> bool:
        """Return whether the phones may be the beginning of the first word."""
        del units
        if not state.words or not state.ids:
            return True
        phones, _ = self._whole_phones(state.ids, is_end=False)
        so_far = tuple(phones)
        return any(
            len(entry) > len(so_far) and entry[: len(so_far)] == so_far
            for entry in self._entries(state.words[0])
        )

    def advance(
        self, state: ComputationState, ids: bytes, word: int
    ) -> ComputationState:
        """Read an arc."""
        phones, _ = self._whole_phones(state.ids, is_end=False)
        words = (*state.words, word) if word else state.words
        return ComputationState(state.ids + ids, words, len(phones), not state.words)

    def is_silence(self, phone: int) -> bool:
        """Return whether it is the phone between words."""
        return phone == self._silence

    def _entries(self, word: int) -> set[tuple[int, ...]]:
        """Return the pronunciations of a word."""
        entries = self._lexicon.get(word)
        if not entries:
            raise UserError(
                f"word {word} of the lattice has no pronunciation in the lexicon",
                remedy="use the lang directory that the graph was made of",
            )
        return entries

    def _whole_phones(self, ids: bytes, *, is_end: bool) -> tuple[list[int], list[int]]:
        """Return phones that are known to be whole, and where each ends."""
        array = np.frombuffer(ids, np.int32)
        ends = _phone_ends(array, self._phones, is_end)
        if len(ends) and ends[-1] < 0:
            raise _fault(_CHANGED)
        return self._phones.phone[array[ends - 1]].tolist(), ends.tolist()


def _fault(fault: int) -> UserError:
    """Return the error that says why transition-ids are not words."""
    return UserError(
        _FAULTS[fault],
        remedy="align with the model, the lang directory and the setting of reorder "
        "that the lattice was made with",
    )


@njit(cache=True, nogil=True)
def _phone_end(ids: np.ndarray, first: int, phones: _Phones) -> int:
    """Find the end of a phone.

    Args:
        ids: int32[T], transition-ids.
        first: where the phone begins.
        phones: of the model.

    Returns:
        One past its last transition-id; -1 if the phone changes before its end; 0 if
        `ids` stops before its last arc.
    """
    phone = phones.phone[ids[first]]
    at = first
    while at < len(ids) and not phones.is_final[ids[at]]:
        if phones.phone[ids[at]] != phone:
            return -1
        at += 1
    if at == len(ids):
        return 0
    if phones.phone[ids[at]] != phone:
        return -1
    at += 1
    while phones.reorder and at < len(ids) and phones.is_loop[ids[at]]:
        if phones.phone[ids[at]] != phone:
            return -1
        at += 1
    return at


@njit(cache=True, nogil=True)
def _front(ids: np.ndarray, kind: np.ndarray, phones: _Phones) -> tuple[int, int]:
    """Find the word or silence at the front.

    Args:
        ids: int32[T], transition-ids, T > 0.
        kind: uint8[I + 1], what the phone of each transition-id is in a word.
        phones: of the model.

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
        end = _phone_end(ids, at, phones)
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
    phones: _Phones,
    is_end: bool,  # noqa: FBT001 (Numba kernels take positional arguments)
) -> np.ndarray:
    """Find the ends of all phones that are known to be whole.

    Args:
        ids: int32[T], transition-ids.
        phones: of the model.
        is_end: whether the path ends behind `ids`.

    Returns:
        int64[K], one past the last transition-id of each; the last entry is -1 if a
        phone changes before its end.
    """
    ends = np.empty(len(ids), np.int64)
    count = at = 0
    while at < len(ids):
        end = _phone_end(ids, at, phones)
        if end == 0 or (end == len(ids) and not is_end):
            break
        ends[count] = end
        count += 1
        if end < 0:
            break
        at = end
    return ends[:count]
