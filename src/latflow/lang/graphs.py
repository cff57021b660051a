"""Training graphs: what an utterance of known words may sound like.

`TrainingGraphCompiler` makes for a word sequence the graph that Kaldi's
`compile-train-graphs` makes: all pronunciations, optional silences, phones in context,
HMM states; determinised, minimised, with self-loops. Each step is a Numba kernel
without Python's lock, so that threads compile utterances at the same time.

Public: `TrainingGraphCompiler`.

Source: Kaldi `decoder/training-graph-compiler.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.fst.determinise import LINK, by_source, determinise
from latflow.fst.graph import Graph
from latflow.fst.minimise import minimise
from latflow.hmm.transducer import HmmCache, add_self_loops
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.expansion import compose_words, expand_context, expand_hmms
from latflow.parallel import map_in_order

_MAX_WINDOW = 2**62  # windows are numbers of 64 bits


class TrainingGraphCompiler:
    """Compiles word sequences to graphs of transition-ids.

    For training, compile with both scales 0 and add the costs of transitions later
    (`latflow.hmm.transducer.add_transition_probs`): the graphs then serve all
    iterations, as in Kaldi.

    Args:
        lang: a lang directory, or its path; `L.fst` is used.
        tree: the tree; gives the context width.
        model: the transition model of the same system.
        self_loop_scale: factor on the log-probabilities of staying and of leaving.
        transition_scale: factor on those of the arcs that leave.

    Raises:
        UserError: a file is missing or garbled.
    """

    def __init__(
        self,
        lang: Lang | str | Path,
        tree: ContextDependency,
        model: TransitionModel,
        *,
        self_loop_scale: float = 0.1,
        transition_scale: float = 1.0,
    ) -> None:
        self.lang = lang if isinstance(lang, Lang) else Lang.load(lang)
        self.model = model
        self.self_loop_scale = self_loop_scale
        self._context = (tree.context_width, tree.central_position)
        self._lexicon = _sorted_lexicon(self.lang.folder / "L.fst")
        self._disambig = np.zeros(max(self.lang.phone_ids.values()) + 1, np.int64)
        for number, symbol in enumerate(sorted(self.lang.disambig_phones), start=1):
            self._disambig[symbol] = number
        if len(self._disambig) ** (tree.context_width + 1) > _MAX_WINDOW:
            raise UserError(
                f"a context of {tree.context_width} phones out of "
                f"{len(self._disambig)} is too wide",
                remedy="use a tree of smaller context width",
            )
        self._hmms = _HmmTable(HmmCache(tree, model, transition_scale))

    def compile(
        self, word_ids: Sequence[int], *, utterance: str | None = None
    ) -> Graph:
        """Make the graph of one utterance.

        Args:
            word_ids: ids of `words.txt`, as from `Lang.words_to_ids`.
            utterance: its id, for messages.

        Returns:
            Input labels are transition-ids, output labels words; states are numbered
            from the start, 0.

        Raises:
            UserError: there are no words, or one of them has no pronunciation.
        """
        words = np.asarray(word_ids, np.int64)
        lexicon = self._lexicon
        if not len(words):
            raise UserError(
                "the transcript is empty",
                utterance=utterance,
                remedy="remove the utterance, or transcribe it with the word for noise",
            )
        links, position, final, spelt = compose_words(
            lexicon.start, lexicon.arc_begin, lexicon.arcs, lexicon.final, words
        )
        if not len(links):
            raise self._no_pronunciation(
                int(words[min(spelt, len(words) - 1)]), utterance
            )
        links, position, final = expand_context(
            links, position, final, self._disambig, self._context
        )
        self._hmms.replace_windows(links, len(self._disambig))
        num_ids = self.model.num_transition_ids
        links, position, final = expand_hmms(
            (links, position, final), *self._hmms.tables, num_ids + 1
        )
        begin, links = by_source(links, len(final))
        arcs, costs = determinise(begin, links, position, final, words)
        arcs["ilabel"][arcs["ilabel"] > num_ids] = 0
        arc_begin, arcs, costs = minimise(arcs, costs)
        graph = Graph.from_arrays(
            0,
            arc_begin,
            arcs["ilabel"],
            arcs["olabel"],
            arcs["weight"],
            arcs["target"],
            costs,
        )
        return add_self_loops(graph, self.model, self_loop_scale=self.self_loop_scale)

    def compile_all(
        self, utterances: Iterable[tuple[str, Sequence[int]]], *, threads: int = 1
    ) -> Iterator[tuple[str, Graph | UserError]]:
        """Compile many utterances, in order; no more than a few are held at a time.

        Args:
            utterances: (utterance id, word ids) of each.
            threads: how many to compile at the same time.

        Yields:
            (utterance id, graph); instead of the graph the `UserError` of an utterance
            that has none, for the caller's ledger.
        """
        yield from map_in_order(self._try, utterances, threads)

    def _try(self, item: tuple[str, Sequence[int]]) -> tuple[str, Graph | UserError]:
        """Compile one utterance, or say why not."""
        utterance, words = item
        try:
            return utterance, self.compile(words, utterance=utterance)
        except UserError as error:
            return utterance, error

    def _no_pronunciation(self, word_id: int, utterance: str | None) -> UserError:
        word = self.lang.words.get(word_id, f"with id {word_id}")
        return UserError(
            f"word {word} has no pronunciation",
            file=self.lang.folder / "L.fst",
            utterance=utterance,
            remedy="add it to the lexicon and make the lang directory again",
        )


def _sorted_lexicon(path: Path) -> Graph:
    """L, its arcs sorted by output label."""
    lexicon = Graph.load(path)
    if lexicon.properties.is_olabel_sorted:
        return lexicon
    fst = lexicon.to_fst()
    kaldifst.arcsort(fst, "olabel")
    return Graph.from_fst(fst)


class _HmmTable:
    """The HMMs of a cache as flat arrays, and their numbers by window."""

    def __init__(self, cache: HmmCache) -> None:
        self._cache = cache
        self._label_of: dict[int, int] = {}
        self._lock = Lock()
        self._tables: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """hmm_begin, hmm_arcs, hmm_states of `expand_hmms`."""
        tables = self._tables
        hmms = self._cache.hmms
        if tables is None or len(tables[2]) < len(hmms):
            hmms = list(hmms)
            begin = np.cumsum([0, *(len(hmm.arcs) for hmm in hmms)])
            rows = [
                (source, label, target, cost)
                for hmm in hmms
                for source, label, cost, target in hmm.arcs
            ]
            sizes = [-h.num_states if h.shares_start else h.num_states for h in hmms]
            tables = (begin, np.array(rows, LINK), np.array(sizes, np.int64))
            self._tables = tables
        return tables

    def replace_windows(self, links: np.ndarray, base: int) -> None:
        """Replace windows in the labels (> 0) by 1 + the HMM's number, in place."""
        labels = links["label"]
        is_window = labels > 0
        windows, inverse = np.unique(labels[is_window], return_inverse=True)
        known = self._label_of
        numbers = [
            known.get(window) or self._find(window, base) for window in windows.tolist()
        ]
        labels[is_window] = np.array(numbers, np.int64)[inverse]

    def _find(self, window: int, base: int) -> int:
        width = self._cache.tree.context_width
        phones = [window // base ** (width - 1 - n) % base for n in range(width)]
        with self._lock:
            label = self._cache.index(phones) + 1
        self._label_of[window] = label
        return label
