"""The graphs of a batch in arrays of one shape each, for kernels on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from latflow.fst.graph import Graph
from latflow.jit import njit

INTO, OUT_OF, OF_PDF = range(3)  # orders of the arcs, by what they are summed into
SOURCE, TARGET, PDF = range(3)  # columns of an arc
_KEYS = (TARGET, SOURCE, PDF)  # of the orders
_LEAST, _COMMON, _MOST = 32, 512, 4096  # arcs of a tile
_NONE = -1


class PackedGraphs(NamedTuple):
    """Graphs of a batch, each one's arcs in three orders.

    Arcs lie in tiles, those of a sum in one of them; there are places without an arc.

    Attributes:
        arcs: int32 [B, 3, 3, N], by order and column; -1 where there is no arc.
        weights: float32 [B, 3, N], costs.
        final: float32 [B, S], costs; inf for states that are not final, or not there.
        start: int64 [B]; -1 of a graph without states.
        tile: arcs of a tile, a power of two that divides N.
        labels: the least and the greatest label; None without arcs.
    """

    arcs: Tensor
    weights: Tensor
    final: Tensor
    start: Tensor
    tile: int
    labels: tuple[int, int] | None

    @classmethod
    def of(cls, graphs: Sequence[Graph], *, pin: bool = False) -> Self | None:
        """Pack graphs.

        Args:
            graphs: labels are pdf-id + 1, no epsilons; `labels` names others.
            pin: into page-locked memory, for fast copies to a GPU.

        Returns:
            None where more arcs belong to a sum than a tile may have.
        """
        arc_begin = np.cumsum([0, *(graph.num_arcs for graph in graphs)])
        state_begin = np.cumsum([0, *(graph.num_states for graph in graphs)])
        none = np.empty(0, np.int32)
        labels = np.concatenate([none, *(graph.ilabel for graph in graphs)])
        columns = np.stack(
            (
                np.concatenate([none, *(graph.sources() for graph in graphs)]),
                np.concatenate([none, *(graph.next_state for graph in graphs)]),
                labels.clip(min=1) - 1,  # an index, even where there is no pdf
            )
        ).astype(np.int32)
        costs = [np.empty(0, np.float32), *(graph.weight for graph in graphs)]
        num_states = int(np.diff(state_begin).max(initial=1))
        size = max(num_states, int(columns[PDF].max(initial=0)) + 1)
        counts = _counts(columns, arc_begin, size)
        tile = max(
            _LEAST,
            counts.max(initial=0),
            min(np.diff(arc_begin).max(initial=0), _COMMON),
        )
        tile = 1 << (int(tile) - 1).bit_length()
        if tile > _MOST:
            return None
        width = max(1, -(-_width(counts, tile) // tile)) * tile
        shape = (len(graphs), 3, 3, width)
        packed = cls(
            torch.empty(shape, dtype=torch.int32, pin_memory=pin),
            torch.empty(len(graphs), 3, width, pin_memory=pin),
            torch.empty(len(graphs), num_states, pin_memory=pin),
            torch.empty(len(graphs), dtype=torch.int64, pin_memory=pin),
            tile,
            (int(labels.min()), int(labels.max())) if labels.size else None,
        )
        arcs, weights, final, start = (tensor.numpy() for tensor in packed[:4])
        _pack_arcs(
            columns, np.concatenate(costs), arc_begin, counts, tile, arcs, weights
        )
        final.fill(np.inf)
        for b, graph in enumerate(graphs):
            final[b, : graph.num_states] = graph.final
            start[b] = graph.start if graph.num_states else _NONE
        return packed

    def select(self, rows: Tensor) -> Self:
        """Return some of the graphs.

        Args:
            rows: int64 [N], their positions, on the CPU.
        """
        there = rows.to(self.arcs.device)
        return self._replace(
            arcs=self.arcs[there],
            weights=self.weights[there],
            final=self.final[there],
            start=self.start[there],
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the graphs on a device."""
        moved = [x.to(device, non_blocking=non_blocking) for x in self[:4]]
        return self._replace(
            arcs=moved[0], weights=moved[1], final=moved[2], start=moved[3]
        )


@njit(cache=True, nogil=True)
def _counts(columns: np.ndarray, arc_begin: np.ndarray, size: int) -> np.ndarray:
    """Count the arcs of each sum.

    Args:
        columns: int32 [3, A], of all graphs.
        arc_begin: int64 [B + 1], where each graph's arcs begin.
        size: K, numbers of sums are below it.

    Returns:
        int64 [B, 3, K], by graph and order.
    """
    counts = np.zeros((len(arc_begin) - 1, 3, size), np.int64)
    for b in range(len(counts)):
        for order in range(3):
            for arc in range(arc_begin[b], arc_begin[b + 1]):
                counts[b, order, columns[_KEYS[order], arc]] += 1
    return counts


@njit(cache=True, nogil=True)
def _width(counts: np.ndarray, tile: int) -> int:
    """Return the places that the arcs of a graph need in any order, at most.

    Args:
        counts: int64 [B, 3, K], of `_counts`.
        tile: arcs of a tile.
    """
    width = 0
    for own in counts:
        for order in range(3):
            width = max(width, _places(own[order], tile)[-1])
    return width


@njit(cache=True, nogil=True)
def _places(counts: np.ndarray, tile: int) -> np.ndarray:
    """Find where the arcs of each sum begin, so that none crosses the end of a tile.

    Args:
        counts: int64 [K], arcs of each sum, at most `tile`.
        tile: arcs of a tile.

    Returns:
        int64 [K + 1]; the last one is where the last sum ends.
    """
    places = np.empty(len(counts) + 1, np.int64)
    at = 0
    for key in range(len(counts)):
        if at % tile + counts[key] > tile:
            at += tile - at % tile
        places[key] = at
        at += counts[key]
    places[-1] = at
    return places


@njit(cache=True, nogil=True)
def _pack_arcs(
    columns: np.ndarray,
    weight: np.ndarray,
    arc_begin: np.ndarray,
    counts: np.ndarray,
    tile: int,
    arcs: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Put the arcs of all graphs into their places.

    Args:
        columns: int32 [3, A].
        weight: float32 [A].
        arc_begin: int64 [B + 1], where each graph's arcs begin.
        counts: int64 [B, 3, K], of `_counts`.
        tile: arcs of a tile.
        arcs: int32 [B, 3, 3, N], receives them.
        weights: float32 [B, 3, N], receives theirs.
    """
    arcs[:], weights[:] = _NONE, 0.0
    for b in range(len(arc_begin) - 1):
        for order in range(3):
            keys = columns[_KEYS[order]]
            places = _places(counts[b, order], tile)
            for arc in range(arc_begin[b], arc_begin[b + 1]):
                at = places[keys[arc]]
                places[keys[arc]] += 1
                for column in range(3):
                    arcs[b, order, column, at] = columns[column, arc]
                weights[b, order, at] = weight[arc]
