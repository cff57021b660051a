"""The oracle path: of all paths of a lattice, the one with the fewest word errors.

The number of errors is the edit distance between the words of a path and the reference.
It is found without listing paths: `edits[s, j]` is the least number of errors of any
path from the start to state s against the first j words of the reference,

    edits[t, j] = min over arcs (s, w, t) of  edits[s, j - 1] + (w != reference[j]),
                                              edits[s, j] + 1          (w is inserted),
                                              edits[s, j] (w is not a word),
                  and of                      edits[t, j - 1] + 1  (a word is deleted),

in time and memory proportional to arcs, or states, times words of the reference. Of
equally wrong paths the cheapest one is taken; of equally cheap ones, one that does not
depend on anything but the lattice.

Source: Kaldi `latbin/lattice-oracle.cc`, which composes the lattice with an edit
transducer; here the same minimum by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from latflow.jit import njit
from latflow.lattice.best_path import BestPath
from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.word_graph import WordGraph

_FAR = np.int32(1 << 30)  # more errors than any path has


@dataclass(frozen=True, eq=False)
class Oracle:
    """The least wrong path of a lattice.

    Attributes:
        counts: its errors, split as Kaldi's `compute-wer` splits them.
        words: int32[N], its words, without those that do not count.
        path: the path itself.
    """

    counts: ErrorCounts
    words: np.ndarray
    path: BestPath


def oracle(
    lattice: Lattice | CompactLattice,
    reference: np.ndarray,
    *,
    ignore: Collection[int] = (),
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> Oracle:
    """Find the path with the least edit distance to a reference.

    Args:
        lattice: raw or compact.
        reference: int32[N], word ids; may be empty.
        ignore: ids of words that do not count, neither in the lattice nor in the
            reference (noises, hesitations).
        lm_scale: factor on graph costs, which matter between equally wrong paths only.
        acoustic_scale: factor on acoustic costs, likewise.

    Raises:
        UserError: no path leads to a final state, or a cost is NaN.
    """
    graph = WordGraph.of(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    skipped = np.array(sorted({0, *ignore}), np.int32)
    wanted = np.asarray(reference, np.int32)
    wanted = wanted[~np.isin(wanted, skipped)]
    word = np.where(np.isin(graph.word, skipped), 0, graph.word).astype(np.int32)
    arcs = (graph.source, graph.target, word, graph.cost)
    edits, least_cost = _edits(*arcs, graph.num_states, wanted)
    path = graph.path(_trace(*arcs, wanted, edits, least_cost))
    words = path.words[~np.isin(path.words, skipped)]
    counts = count_errors(wanted.tolist(), words.tolist())
    return Oracle(counts, words, path)


@njit(cache=True, nogil=True)
def _edits(
    source: np.ndarray,
    target: np.ndarray,
    word: np.ndarray,
    cost: np.ndarray,
    num_states: int,
    reference: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Fill the table of the module's description.

    Args:
        source: int32[A], ascending; arcs lead to higher states.
        target: int32[A].
        word: int32[A], 0 where an arc has no word that counts.
        cost: float64[A]; inf where an arc cannot be taken.
        num_states: S; the last is the end.
        reference: int32[N].

    Returns:
        (int32[S, N + 1], least errors; float64[S, N + 1], least cost with as many).
    """
    num_words = len(reference)
    edits = np.full((num_states, num_words + 1), _FAR, np.int32)
    least = np.full((num_states, num_words + 1), np.inf)
    edits[0, 0] = 0
    least[0, 0] = 0.0
    complete = -1  # the state to which deletions were added last
    for arc in range(len(source)):
        here, there, label = source[arc], target[arc], word[arc]
        if here != complete:
            _delete(edits[here], least[here])
            complete = here
        if cost[arc] == np.inf:
            continue
        for j in range(num_words + 1):
            errors = edits[here, j] + (1 if label != 0 else 0)
            score = least[here, j] + cost[arc]
            if j > 0 and label != 0:
                replaced = edits[here, j - 1] + (1 if label != reference[j - 1] else 0)
                through = least[here, j - 1] + cost[arc]
                if replaced < errors or (replaced == errors and through < score):
                    errors, score = replaced, through
            if errors < edits[there, j] or (
                errors == edits[there, j] and score < least[there, j]
            ):
                edits[there, j] = errors
                least[there, j] = score
    _delete(edits[num_states - 1], least[num_states - 1])
    return edits, least


@njit(cache=True, nogil=True)
def _delete(edits: np.ndarray, least: np.ndarray) -> None:
    """Let words of the reference be deleted at a state to which all arcs are done."""
    for j in range(1, len(edits)):
        errors = edits[j - 1] + 1
        if errors < edits[j] or (errors == edits[j] and least[j - 1] < least[j]):
            edits[j] = errors
            least[j] = least[j - 1]


@njit(cache=True, nogil=True)
def _trace(
    source: np.ndarray,
    target: np.ndarray,
    word: np.ndarray,
    cost: np.ndarray,
    reference: np.ndarray,
    edits: np.ndarray,
    least: np.ndarray,
) -> np.ndarray:
    """Find the arcs of the least wrong path, int64[L], in one pass from the end."""
    state, j = len(edits) - 1, len(reference)
    path = np.empty(len(edits), np.int64)
    length = 0
    for arc in range(len(source) - 1, -1, -1):
        # Arcs into a state stand before the arcs that leave it.
        if target[arc] != state or cost[arc] == np.inf:
            continue
        while (
            j > 0
            and edits[state, j - 1] + 1 == edits[state, j]
            and least[state, j - 1] == least[state, j]
        ):
            j -= 1
        here, label = source[arc], word[arc]
        if (
            edits[here, j] + (1 if label != 0 else 0) == edits[state, j]
            and least[here, j] + cost[arc] == least[state, j]
        ):
            taken = j
        elif (
            j > 0
            and label != 0
            and edits[here, j - 1] + (1 if label != reference[j - 1] else 0)
            == edits[state, j]
            and least[here, j - 1] + cost[arc] == least[state, j]
        ):
            taken = j - 1
        else:
            continue
        path[length] = arc
        length += 1
        state, j = here, taken
    return path[:length][::-1].copy()
