"""Back-off language models to walk through word by word.

An `LmTrie` is an n-gram model of any order, or a grammar acceptor such as `lm/G.fst`,
as flat arrays (`latflow.lang.lm_arrays`) together with how the word ids of lattices
become the labels of its arcs. `save` writes an n-gram model to a file that `load` maps
into memory: a large ARPA file is parsed once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output, require_file
from latflow.fst.graph import Graph
from latflow.fst.openfst import map_file
from latflow.lang.arpa import NgramModel, read_arpa
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START
from latflow.lang.lm_arrays import LmArrays, lay_out, of_grammar, sentence_costs

_UNKNOWN_WORDS = ("<unk>", "<UNK>")
_NOT_LISTED = np.iinfo(np.int32).min  # label of a word that no arc can have
_MAGIC = b"latflow back-off model 1\n"
_ALIGNMENT = 64  # of the arrays in the file, a cache line


@dataclass(frozen=True, eq=False)
class LmTrie:
    """A back-off model, and how the word ids of lattices become its labels.

    Attributes:
        arrays: states and arcs.
        order: length of the longest n-grams; 0 if it is not known (a grammar).
        start: state at the start of a sentence.
        end: label of the end of a sentence.
        words: label -> word; empty for a grammar, whose labels are word ids.
        label_of: int32[largest word id + 1], label of each word id; ~u for one that the
            model does not list, where u is the label of the model's unknown word.
        names: word id -> word, for messages.
    """

    arrays: LmArrays
    order: int
    start: int
    end: int
    words: list[str]
    label_of: np.ndarray
    names: Mapping[int, str]

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.arrays.backoff_state)

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.arrays.label)

    # -- making ---------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, word_ids: Mapping[str, int]) -> LmTrie:
        """Read an ARPA file, or map what `save` wrote.

        Args:
            path: of either; the content shows which it is.
            word_ids: words.txt, word -> id: the words of lattices.

        Raises:
            UserError: the file is missing or faulty, or its model cannot begin or end
                sentences.
        """
        file = Path(path)
        require_file(file)
        with file.open("rb") as stream:
            is_saved = stream.read(len(_MAGIC)) == _MAGIC
        if is_saved:
            return _open(file, word_ids)
        return cls.from_model(read_arpa(file), word_ids, file=file)

    @classmethod
    def from_model(
        cls,
        model: NgramModel,
        word_ids: Mapping[str, int],
        *,
        file: str | Path | None = None,
    ) -> LmTrie:
        """Lay out a model; takes time in proportion to its n-grams.

        Args:
            model: of any order.
            word_ids: words.txt, word -> id.
            file: where the model comes from, for messages.

        Raises:
            UserError: the model lacks `<s>` or `</s>`.
        """
        for word in (SENTENCE_START, SENTENCE_END):
            if word not in model.word_ids:
                raise UserError(
                    f"the language model has no {word}",
                    file=file,
                    remedy="estimate it on sentences framed by <s> and </s>",
                )
        arrays = lay_out(model.levels)
        start = int(arrays.next_state[model.word_ids[SENTENCE_START]])
        return _with_words(arrays, model.order, start, model.words, word_ids)

    @classmethod
    def from_graph(
        cls,
        grammar: Graph,
        word_ids: Mapping[str, int] | None = None,
        *,
        file: str | Path | None = None,
    ) -> LmTrie:
        """Take a grammar acceptor such as `lm/G.fst`.

        Its output labels are words; an arc without one (`#0:<eps>`) is a back-off arc.

        Args:
            grammar: deterministic, with at most one back-off arc a state.
            word_ids: words.txt, for messages; None leaves words without names.
            file: where it comes from, for messages.

        Raises:
            UserError: a word is not in words.txt; a state has two arcs with a word, or
                two back-off arcs, or back-off arcs form a cycle.
        """
        highest = int(np.max(grammar.olabel, initial=0))
        if word_ids is not None and highest > max(word_ids.values()):
            raise UserError(
                f"the grammar has word {highest}, which words.txt lacks",
                file=file,
                remedy="take the lang directory that it was made with",
            )
        arrays, end = of_grammar(grammar, file)
        label_of = np.full(end, _NOT_LISTED, np.int32)
        listed = arrays.label[arrays.label < end]
        label_of[listed] = listed
        names = {} if word_ids is None else {i: word for word, i in word_ids.items()}
        return cls(arrays, 0, grammar.start, end, [], label_of, names)

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load` maps into memory.

        Raises:
            UserError: the model is a grammar; the disk is full.
        """
        if not self.words:
            raise UserError(
                "a grammar has no words to be written",
                file=path,
                remedy="keep it as the FST that it is",
            )
        head = {
            "order": self.order,
            "start": self.start,
            "num_states": self.num_states,
            "num_arcs": self.num_arcs,
            "words": self.words,
        }
        header = json.dumps(head, ensure_ascii=False).encode()
        with atomic_output(path) as temporary, temporary.open("wb") as stream:
            stream.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            for array in self.arrays:
                stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
                stream.write(np.ascontiguousarray(array).data)

    # -- asking ---------------------------------------------------------------------

    def labels(self, words: np.ndarray) -> np.ndarray:
        """Return the labels of word ids, as `walk` takes them, int32[N].

        A word that the model lacks takes the place of the model's unknown word, as in
        Kaldi's `ConstArpaLm`; 0, no word, gets a label that no arc has.

        Args:
            words: int32[N], word ids.

        Raises:
            UserError: the model lacks a word, and has no unknown word.
        """
        is_word = words != 0
        is_beyond = (words < 0) | (words >= len(self.label_of))
        labels = self.label_of[np.where(is_word & ~is_beyond, words, 0)]
        labels[is_beyond] = self._unknown
        labels[~is_word] = _NOT_LISTED
        missing = is_word & (labels == _NOT_LISTED)
        if missing.any():
            word = int(words[missing][0])
            raise UserError(
                f"the language model lacks the word {self.names.get(word, word)!r}",
                remedy="take a model with that word, or with <unk>",
            )
        return labels

    def lacks(self, words: np.ndarray) -> np.ndarray:
        """Return which word ids the model does not list, bool[N]."""
        inside = np.clip(words, 0, len(self.label_of) - 1)
        return (words != inside) | (self.label_of[inside] < 0)

    def sentence_costs(self, words: np.ndarray) -> np.ndarray:
        """Return the cost of each word of a sentence, and of its end, float64[N + 1].

        Args:
            words: int32[N], word ids.

        Raises:
            UserError: as `labels`.
        """
        labels = np.append(self.labels(np.asarray(words, np.int32)), self.end)
        return sentence_costs(self.arrays, self.start, labels.astype(np.int32))

    @cached_property
    def _unknown(self) -> int:
        """Label of words that the model does not list."""
        return _unknown_label(self.words)


def _unknown_label(words: list[str]) -> int:
    """Return ~ label of the unknown word; `_NOT_LISTED` if there is none."""
    for word in _UNKNOWN_WORDS:
        if word in words:
            return ~words.index(word)
    return int(_NOT_LISTED)


def _with_words(
    arrays: LmArrays,
    order: int,
    start: int,
    words: list[str],
    word_ids: Mapping[str, int],
) -> LmTrie:
    """Match the words of a model with words.txt."""
    label_by_word = {word: label for label, word in enumerate(words)}
    size = max(word_ids.values(), default=0) + 1
    label_of = np.full(size, _unknown_label(words), np.int32)
    for word, word_id in word_ids.items():
        label = label_by_word.get(word)
        if label is not None:
            label_of[word_id] = label
    end = label_by_word[SENTENCE_END]
    names = {word_id: word for word, word_id in word_ids.items()}
    return LmTrie(arrays, order, start, end, words, label_of, names)


# -- files --------------------------------------------------------------------------


def _open(file: Path, word_ids: Mapping[str, int]) -> LmTrie:
    """Map a file that `LmTrie.save` wrote.

    Raises:
        UserError: it is cut off or damaged, so that a walk could leave the arrays.
    """
    content = map_file(file)
    at = len(_MAGIC) + 8
    length = int.from_bytes(content[at - 8 : at], "little")
    arrays: list[np.ndarray] = []
    try:
        head = json.loads(bytes(content[at : at + length]))
        at += length
        num_states, num_arcs = int(head["num_states"]), int(head["num_arcs"])
        order, start = int(head["order"]), int(head["start"])
        words = [str(word) for word in head["words"]]
        sizes = (num_states + 1, *[num_arcs] * 3, *[num_states] * 2)
        for size, dtype in zip(sizes, ("q", "i", "f", "i", "i", "f"), strict=True):
            at += -at % _ALIGNMENT
            arrays.append(np.frombuffer(content, np.dtype(dtype), size, at))
            at += arrays[-1].nbytes
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise UserError(
            "the language model's file is cut off", file=file, remedy="make it again"
        ) from None
    found = LmArrays(*arrays)
    if not (_is_whole(found) and 0 <= start < num_states and SENTENCE_END in words):
        raise UserError(
            "the language model's file is damaged", file=file, remedy="make it again"
        )
    return _with_words(found, order, start, words, word_ids)


def _is_whole(lm: LmArrays) -> bool:
    """Return whether a walk through the arrays stays in them, and ends."""
    num_states, num_arcs = len(lm.backoff_state), len(lm.label)
    begin, states = lm.arc_begin, lm.next_state
    return bool(
        num_states
        and begin[0] == 0
        and begin[-1] == num_arcs
        and (np.diff(begin) >= 0).all()
        and (not num_arcs or (states.min() >= 0 and states.max() < num_states))
        and lm.backoff_state.min() >= -1
        and (lm.backoff_state < np.arange(num_states)).all()  # shorter ones come first
    )
