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
from latflow.fst.archive import GraphArchive, GraphWriter
from latflow.fst.graph import Graph
from latflow.gmm.source import FrameSource
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.graphs import TrainingGraphCompiler
from latflow.parallel import in_order

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

    Safe to use from several threads.

    Args:
        path: the file, a `GraphArchive` written here; nobody else needs it.
        graphs: makes the graphs.
        count: for utterances 0 ... count - 1.
        pool: threads that make them.
    """

    def __init__(self, path: Path, graphs: Graphs, count: int, pool: Executor) -> None:
        self._reason: dict[int, str] = {}
        self._number = np.full(count, -1, np.int64)
        written = 0
        with GraphWriter.open(path) as writer:
            for u, graph in enumerate(in_order(pool, graphs, range(count))):
                if isinstance(graph, str):
                    self._reason[u] = graph
                    continue
                writer.append(str(u), graph)
                self._number[u] = written
                written += 1
        self._archive = GraphArchive(path)

    def __call__(self, u: int) -> Graph | str:
        """The graph of utterance u, or the reason why it has none."""
        number = int(self._number[u])
        return self._reason[u] if number < 0 else self._archive[number]
