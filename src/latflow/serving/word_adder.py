"""Words that a package gets while it is used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock

from latflow.decode.added_words import pronounced
from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder, load_graph
from latflow.errors import UserError
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation

_MOST_LISTS = 8  # with all that searches have composed for them

Extended = tuple[Lang, LatticeDecoder]


class WordAdder:
    """Makes languages and decoders with more words; for many threads.

    Those of the last few lists are kept: who asks for one again gets the same.

    Args:
        folder: the package.
        lang: its language.
        transitions: its transition model.
        make: makes a decoder of a graph.
    """

    def __init__(
        self,
        folder: Path,
        lang: Lang,
        transitions: TransitionModel,
        make: Callable[[GraphParts], LatticeDecoder],
    ) -> None:
        self._folder, self._lang = folder, lang
        self._transitions, self._make = transitions, make
        self._known: OrderedDict[tuple[tuple[Pronunciation, ...], float], Extended]
        self._known = OrderedDict()
        self._lock = Lock()

    def add(self, entries: Sequence[Pronunciation], boost: float) -> Extended:
        """Return language and decoder with words, see `Model.with_words`."""
        key = tuple(entries), boost
        with self._lock:
            if key not in self._known:
                lang = self._lang.with_words(entries)
                words = pronounced(lang, entries, boost=boost)
                decoder, hmms = self._extensible
                self._known[key] = lang, decoder.with_words(words, hmms)
            self._known.move_to_end(key)
            while len(self._known) > _MOST_LISTS:
                self._known.popitem(last=False)
            return self._known[key]

    @cached_property
    def _extensible(self) -> tuple[LatticeDecoder, HmmCache]:
        """A decoder that words can be added to, and the model's HMMs.

        It is made for the first list: packages that get no words don't need it.
        """
        tree = self._folder / "model/tree"
        graph = load_graph(self._folder / "graph/HCLG.fst", self._lang)
        if not isinstance(graph, GraphParts):
            fault = "has a whole graph"
            remedy = "set decode.composition: lookahead, and package the system again"
        elif not tree.is_file():
            fault, remedy = "has no tree", "package a system that has one"
        else:
            hmms = HmmCache(ContextDependency.load(tree), self._transitions)
            return self._make(replace(graph, model=self._transitions)), hmms
        raise UserError(
            f"words can't be added: the package {fault}",
            file=self._folder,
            remedy=remedy,
        )
