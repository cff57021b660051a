"""Another language model's costs in a lattice: the old ones out, the new ones in.

The graph costs of a lattice hold the costs of the language model that it was decoded
with, mixed with those of lexicon and transitions. The cost of a word under a model
depends on the words before it, so that a state of the result is a state of the lattice
with the histories that the two models keep: an arc with a word w leads

    (s, old, new)  ->  (t, old after w, new after w),
    graph cost + lm_scale * (new cost of w - old cost of w),

an arc without a word leaves both histories unchanged, and at a final state both models
end the sentence. Only the states that are reached are made.

Of each model the path is taken that it gives to a sentence: back-off arcs count only
where a word is not listed. (A search in a graph made of `G.fst` may also take a
back-off arc that is cheaper than the listed word. In models that are interpolated with
those of shorter histories, such as Kneser-Ney ones, there are none; in others, what
such a short cut saved stays in the cost.)

Source: Kaldi `latbin/lattice-lmrescore-pruned.cc`, without the pruning;
`latbin/lattice-lmrescore-const-arpa.cc`, `fstext/lattice-utils-inl.h`,
`lat/lattice-functions.cc` (`ComposeCompactLatticeDeterministic`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, walk
from latflow.lang.lm_trie import LmTrie
from latflow.lattice.lattice import CompactLattice, Lattice

Kind = TypeVar("Kind", Lattice, CompactLattice)

_CAPACITY = 1024  # nodes and arcs that the tables hold at first
# Columns of a node: what it is, the next node of the same lattice state, the number of
# nodes that are done before it, and of the arcs that leave these.
_STATE, _OLD, _NEW, _NEXT, _RANK, _FIRST_ARC = range(6)


def rescore(
    lattice: Kind, old: LmTrie | Graph, new: LmTrie, *, lm_scale: float = 1.0
) -> Kind:
    """Take a language model's costs out of a lattice and put another one's in.

    Args:
        lattice: raw or compact.
        old: the model that the lattice was decoded with, or its grammar acceptor.
        new: the model to use instead.
        lm_scale: share of the costs that is exchanged: 1 for all; -1 undoes it, were
            the models exchanged.

    Returns:
        A lattice of the same kind without dead ends; acoustic costs, words and
        transition-ids of each path are as they were.

    Raises:
        UserError: a word of the lattice is not in the old model, or not in the new one,
            which has no unknown word either; no path is left.
    """
    if isinstance(old, Graph):
        old = LmTrie.from_graph(old)
    _check_old(old, lattice.word)
    lattice = lattice.connected()
    labels = np.stack([old.labels(lattice.word), new.labels(lattice.word)])
    is_final = lattice.is_final
    arrays = (old.arrays, new.arrays)
    nodes, arcs, change = _expand(
        (lattice.arc_begin, lattice.next_state, lattice.word),
        labels,
        arrays,
        (old.start, new.start),
    )
    nodes = nodes[np.argsort(nodes[:, _RANK])]
    state, arc = nodes[:, _STATE], arcs[:, 0]
    final_change = _ends(nodes, arrays, (old.end, new.end))
    is_end = is_final[state] & np.isfinite(final_change)
    begin = np.append(nodes[:, _FIRST_ARC], len(arcs))
    product = lattice.selected(state, arc, begin, arcs[:, 1].astype(np.int32), is_end)
    final_change = np.where(is_end, lm_scale * final_change, np.inf)
    graph_cost = lattice.graph_cost[arc] + lm_scale * change
    final_cost = lattice.final_graph_cost[state] + final_change
    result = replace(
        product,
        graph_cost=graph_cost.astype(np.float32),
        final_graph_cost=final_cost.astype(np.float32),
    ).connected()
    if not result.num_states:
        raise UserError(
            "no path of the lattice is a sentence of both language models",
            remedy="decode it again, or take the grammar that it was decoded with",
        )
    return result


def _check_old(old: LmTrie, word: np.ndarray) -> None:
    """Refuse a lattice that does not come from the old model."""
    lacking = (word != 0) & old.lacks(word)
    if lacking.any():
        number = int(word[lacking][0])
        raise UserError(
            f"the old language model lacks the word {old.names.get(number, number)!r} "
            "of the lattice",
            remedy="take the grammar that the lattice was decoded with",
        )


# -- the product of lattice and models ----------------------------------------------
#
# A *node* is a state of the lattice with the histories of both models; nodes are found
# in a hash table of node numbers. Lattice states are done in their order, so that all
# nodes of a state are known when its turn comes. Targets of arcs are node numbers at
# first, and ranks (numbers in the order in which nodes are done) in the end.


@njit(cache=True, nogil=True)
def _expand(
    arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
    labels: np.ndarray,
    models: tuple[LmArrays, LmArrays],
    starts: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow all paths of a lattice through both models.

    Args:
        arcs: arc_begin int64[S + 1], next_state int32[A], word int32[A].
        labels: int32[2, A], of the words in the old and the new model.
        models: old and new.
        starts: their states at the start of a sentence.

    Returns:
        (nodes int64[N, 6]; int64[M, 2], arc of the lattice and rank of the node that it
        leads to; float64[M], new cost less old cost).
    """
    arc_begin = arcs[0]
    num_states = len(arc_begin) - 1
    head = np.full(num_states, -1, np.int64)  # first node of each lattice state
    nodes = np.empty((_CAPACITY, 6), np.int64)
    made = np.empty((_CAPACITY, 2), np.int64)
    change = np.empty((_CAPACITY, 1), np.float64)
    table = _table(nodes, 0)
    num_nodes, num_arcs, num_done = 0, 0, 0
    if num_states > 0:
        _, num_nodes = _node(nodes, table, head, num_nodes, (0, starts[0], starts[1]))
    for state in range(num_states):
        node = head[state]
        while node >= 0:
            degree = arc_begin[state + 1] - arc_begin[state]
            if num_nodes + degree > len(nodes):
                nodes = _grown(nodes, num_nodes + degree)
                table = _table(nodes, num_nodes)
            if num_arcs + degree > len(made):
                made = _grown(made, num_arcs + degree)
                change = _grown(change, num_arcs + degree)
            nodes[node, _RANK], nodes[node, _FIRST_ARC] = num_done, num_arcs
            num_done += 1
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                target = arcs[1][arc]
                histories = nodes[node, _OLD], nodes[node, _NEW]
                difference = 0.0
                if arcs[2][arc] != 0:
                    label = labels[0, arc], labels[1, arc]
                    difference, histories = _step(models, histories, label)
                if difference < np.inf:
                    key = target, histories[0], histories[1]
                    found, num_nodes = _node(nodes, table, head, num_nodes, key)
                    made[num_arcs] = arc, found
                    change[num_arcs, 0] = difference
                    num_arcs += 1
            node = nodes[node, _NEXT]
    for arc in range(num_arcs):
        made[arc, 1] = nodes[made[arc, 1], _RANK]
    return nodes[:num_nodes].copy(), made[:num_arcs].copy(), change[:num_arcs, 0].copy()


@njit(cache=True, nogil=True)
def _step(
    models: tuple[LmArrays, LmArrays],
    histories: tuple[int, int],
    label: tuple[int, int],
) -> tuple[float, tuple[int, int]]:
    """Take a word in both models: (new cost less old cost, histories after it).

    The difference is inf if one of them has no path with the word.
    """
    old_cost, old = walk(models[0], histories[0], label[0])
    new_cost, new = walk(models[1], histories[1], label[1])
    if old_cost == np.inf:
        new_cost, old_cost = np.inf, 0.0
    return new_cost - old_cost, (old, new)


@njit(cache=True, nogil=True)
def _ends(
    nodes: np.ndarray, models: tuple[LmArrays, LmArrays], labels: tuple[int, int]
) -> np.ndarray:
    """Return new less old cost of ending at each node, float64[N]; inf: impossible."""
    change = np.empty(len(nodes))
    for k in range(len(nodes)):
        change[k], _ = _step(models, (nodes[k, _OLD], nodes[k, _NEW]), labels)
    return change


@njit(cache=True, nogil=True)
def _node(
    nodes: np.ndarray,
    table: np.ndarray,
    head: np.ndarray,
    num_nodes: int,
    key: tuple[int, int, int],
) -> tuple[int, int]:
    """Find a node, or add it.

    Args:
        nodes: int64[., 6], with a free row.
        table: int64[2^k], see `_slot`.
        head: int64[S], first node of each lattice state.
        num_nodes: that there are.
        key: lattice state, old and new history.

    Returns:
        (its number, how many nodes there are now).
    """
    slot = _slot(nodes, table, key)
    if table[slot] < 0:
        table[slot] = num_nodes
        nodes[num_nodes, _STATE] = key[0]
        nodes[num_nodes, _OLD] = key[1]
        nodes[num_nodes, _NEW] = key[2]
        nodes[num_nodes, _NEXT] = head[key[0]]
        head[key[0]] = num_nodes
        num_nodes += 1
    return table[slot], num_nodes


@njit(cache=True, nogil=True)
def _slot(nodes: np.ndarray, table: np.ndarray, key: tuple[int, int, int]) -> int:
    """Find where a node stands in the table, or the free slot that it would take.

    Args:
        nodes: int64[., 6].
        table: int64[2^k], number of a node, -1 without one.
        key: lattice state, old and new history.
    """
    mixed = np.uint64(key[0]) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ np.uint64(key[1])) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ np.uint64(key[2])) * np.uint64(0x165667B19E3779F9)
    mask = len(table) - 1
    slot = int(mixed >> np.uint64(33)) & mask
    while table[slot] >= 0:
        node = nodes[table[slot]]
        if node[_STATE] == key[0] and node[_OLD] == key[1] and node[_NEW] == key[2]:
            break
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _table(nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Make a hash table of the nodes, at most half full when their array is full."""
    size = 1
    while size < 2 * len(nodes):
        size *= 2
    table = np.full(size, -1, np.int64)
    for k in range(num_nodes):
        key = nodes[k, _STATE], nodes[k, _OLD], nodes[k, _NEW]
        table[_slot(nodes, table, key)] = k
    return table


@njit(cache=True, nogil=True)
def _grown(rows: np.ndarray, wanted: int) -> np.ndarray:
    """Return the rows in an array of twice as many rows, or as many as are wanted."""
    larger = np.empty((max(2 * len(rows), wanted), rows.shape[1]), rows.dtype)
    larger[: len(rows)] = rows
    return larger
