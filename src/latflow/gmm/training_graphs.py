"""Training graphs by utterance: compiled on demand, or once and kept in a file.

Graphs are compiled without transition probabilities, which change from iteration to
iteration; the aligner adds the present ones arc by arc.

Source: Kaldi `bin/compile-train-graphs.cc`, called with both scales 0.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, STATE
from latflow.gmm.source import FrameSource
from latflow.gmm.workers import in_order
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.graphs import TrainingGraphCompiler

#: The training graph of utterance u of a source, or the reason why it has none.
Graphs = Callable[[int], Graph | str]


def on_demand(
    source: FrameSource, lang: Lang, tree: ContextDependency, model: TransitionModel
) -> Graphs:
    """Compile the graph of an utterance whenever it is asked for.

    Args:
        source: the utterances, with their transcripts.
        lang: the lang directory.
        tree: the tree of the system.
        model: its transition model.
    """
    compiler = TrainingGraphCompiler(
        lang, tree, model, transition_scale=0.0, self_loop_scale=0.0
    )
    texts = source.store.texts

    def graph(u: int) -> Graph | str:
        words = lang.words_to_ids(texts[source.utterances[u]])
        try:
            found = compiler.compile(words)
        except UserError as error:
            return error.what
        return found if found.num_states else "no path through the training graph"

    return graph


class GraphFile:
    """Graphs of all utterances in one file, read through a memory map.

    Safe to use from several threads. The file holds the arcs and states of the graphs
    one after another; where each begins stays in memory.

    Args:
        path: the file, written here; nobody else needs it.
        graphs: makes the graphs.
        count: for utterances 0 ... count - 1.
        pool: threads that make them.
    """

    def __init__(self, path: Path, graphs: Graphs, count: int, pool: Executor) -> None:
        self._reason: dict[int, str] = {}
        self._start = np.zeros(count, np.int32)
        sizes = np.zeros((count, 2), np.int64)  # arcs, states
        with path.open("wb") as stream:
            for u, graph in enumerate(in_order(pool, graphs, count)):
                if isinstance(graph, str):
                    self._reason[u] = graph
                    continue
                self._start[u] = graph.start
                sizes[u] = graph.num_arcs, graph.num_states
                stream.write(np.ascontiguousarray(graph.arcs).data)
                stream.write(np.ascontiguousarray(graph.states).data)
        self._arcs, self._states = sizes.T.copy()
        lengths = sizes @ [ARC.itemsize, STATE.itemsize]
        self._begin = np.concatenate([[0], np.cumsum(lengths)])
        self._bytes = np.memmap(path, np.uint8, "r") if self._begin[-1] else None

    def __call__(self, u: int) -> Graph | str:
        """The graph of utterance u, or the reason why it has none."""
        if self._bytes is None or u in self._reason:
            return self._reason[u]
        raw = self._bytes[self._begin[u] : self._begin[u + 1]]
        middle = int(self._arcs[u]) * ARC.itemsize
        arcs = np.frombuffer(raw, ARC, self._arcs[u])
        states = np.frombuffer(raw, STATE, self._states[u], middle)
        return Graph(int(self._start[u]), states, arcs)
