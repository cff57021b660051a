"""Training graphs: all state sequences of an utterance of known words.

`TrainingGraphCompiler` makes for a word sequence the graph that Kaldi's
`compile-train-graphs` makes: all pronunciations, optional silences, phones in context,
HMM states; determinized, minimized, with self-loops. Each step is a Numba kernel
without Python's lock, so that threads compile utterances at the same time.

Source: Kaldi `decoder/training-graph-compiler.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.fst.determinize import LINK, by_source, determinize
from latflow.fst.graph import Graph
from latflow.fst.minimize_acyclic import minimize_acyclic
from latflow.graphs.expansion import compose_words, expand_context, expand_hmms
from latflow.hmm.transducer import HmmCache, add_self_loops
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang

_MAX_WINDOW = 2**62  # windows are numbers of 64 bits


class TrainingGraphCompiler:
    """Compiles word sequences to graphs of transition-ids.

    With both scales 0 graphs hold no transition probabilities, which are added when
    they are searched (`latflow.align.aligner`): they then serve all iterations of a
    training, as in Kaldi.

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
        self_loop_scale: float = 0.0,
        transition_scale: float = 0.0,
    ) -> None:
        self.lang = lang if isinstance(lang, Lang) else Lang.load(lang)
        self._lexicon = _sorted_lexicon(self.lang.folder / "L.fst")
        disambig = np.zeros(max(self.lang.phone_ids.values()) + 1, np.int64)
        for number, symbol in enumerate(sorted(self.lang.disambig_phones), start=1):
            disambig[symbol] = number
        self._expansion = PhoneExpansion(
            tree,
            model,
            disambig,
            self_loop_scale=self_loop_scale,
            transition_scale=transition_scale,
        )

    def compile(
        self, word_ids: Sequence[int] | np.ndarray, *, utterance: str | None = None
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
        links, position, final = self.spell(words, utterance=utterance)
        return self._expansion.expand(links, position, final, words)

    def spell(
        self, word_ids: Sequence[int] | np.ndarray, *, utterance: str | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the machine of an utterance's phones: pronunciations and silences.

        Args:
            word_ids: ids of `words.txt`.
            utterance: its id, for messages.

        Returns:
            (LINK, labels are phones, state 0 is the start; int64[S], words emitted in
            a state; float64[S], cost, +inf where not final). All states are on a path.

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
        links, position, final, spelled = compose_words(
            lexicon.start, lexicon.arc_begin, lexicon.arcs, lexicon.final, words
        )
        if not len(links):
            raise self._no_pronunciation(
                int(words[min(spelled, len(words) - 1)]), utterance
            )
        return links, position, final

    def graph_or_reason(self, word_ids: Sequence[int] | np.ndarray) -> Graph | str:
        """Return the graph of a transcript, or the reason why it has none."""
        try:
            graph = self.compile(word_ids)
        except UserError as error:
            return error.what
        return graph if graph.num_states else "no path through the training graph"

    def _no_pronunciation(self, word_id: int, utterance: str | None) -> UserError:
        word = self.lang.words.get(word_id, f"with id {word_id}")
        return UserError(
            f"word {word} has no pronunciation",
            file=self.lang.folder / "L.fst",
            utterance=utterance,
            remedy="add it to the lexicon and make the lang directory again",
        )


class PhoneExpansion:
    """Expands machines of phones to graphs of transition-ids; safe to share.

    Args:
        tree: the tree; gives the context width.
        model: the transition model of the same system.
        disambig: int64[P]; for each phone symbol 1, 2 ... if it is a disambiguation
            symbol, else 0.
        self_loop_scale: factor on the log-probabilities of staying and of leaving.
        transition_scale: factor on those of the arcs that leave.

    Raises:
        UserError: the context is too wide for so many phones.
    """

    def __init__(
        self,
        tree: ContextDependency,
        model: TransitionModel,
        disambig: np.ndarray,
        *,
        self_loop_scale: float = 0.0,
        transition_scale: float = 0.0,
    ) -> None:
        self.model = model
        self.self_loop_scale = self_loop_scale
        self._context = (tree.context_width, tree.central_position)
        self._disambig = disambig
        if len(disambig) ** (tree.context_width + 1) > _MAX_WINDOW:
            raise UserError(
                f"a context of {tree.context_width} phones out of {len(disambig)} is "
                "too wide",
                remedy="use a tree of smaller context width",
            )
        self._hmms = _HmmTable(HmmCache(tree, model, transition_scale))

    def expand(
        self,
        links: np.ndarray,
        position: np.ndarray,
        final: np.ndarray,
        words: np.ndarray,
    ) -> Graph:
        """Expand a machine of phones: context, HMMs, determinized, with self-loops.

        Args:
            links: LINK; labels are phones and disambiguation symbols, state 0 is the
                start.
            position: int64[S]; how many of the words have been emitted in a state.
            final: float64[S], cost, +inf where not final; all words are out there.
            words: int64[N].

        Returns:
            Input labels are transition-ids, output labels words; states are numbered
            from the start, 0.

        Raises:
            UserError: the tree or the model does not know a phone in context.
        """
        links, position, final = expand_context(
            links, position, final, self._disambig, self._context
        )
        self._hmms.replace_windows(links, len(self._disambig))
        num_ids = self.model.num_transition_ids
        links, position, final = expand_hmms(
            (links, position, final), *self._hmms.tables, num_ids + 1
        )
        begin, links = by_source(links, len(final))
        arcs, costs = determinize(begin, links, position, final, words)
        arcs["ilabel"][arcs["ilabel"] > num_ids] = 0
        arc_begin, arcs, costs = minimize_acyclic(arcs, costs)
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


def _sorted_lexicon(path: Path) -> Graph:
    """Read L, its arcs sorted by output label."""
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
        """The arguments hmm_begin, hmm_arcs, hmm_states of `expand_hmms`."""
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
