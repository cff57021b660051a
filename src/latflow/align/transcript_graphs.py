"""Graphs of whole transcripts, one an utterance: what flat start and CTC learn from.

They have no times: states have self-loops, and a path of any length may be taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from latflow.errors import UserError
from latflow.features.source import open_frames
from latflow.files import atomic_directory
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, STATE
from latflow.jit import njit
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.ragged import RaggedStore, RaggedWriter, factor

log = logging.getLogger(__name__)

#: Makes the graph of a transcript for this many frames of the output, or a reason.
Make = Callable[[str, int], Graph | str]


class GraphStore(RaggedStore):
    """Graphs, the base of the kinds of their stores."""

    COLUMNS: ClassVar = {"arcs": (ARC, 1), "states": (STATE, 1)}

    @cached_property
    def _starts(self) -> list[int]:
        """Start state of each graph."""
        return self.index("starts").tolist()

    def graph(self, index: int) -> Graph:
        """Return a graph, safe to call from several threads.

        Raises:
            UserError: it is damaged.
        """
        arrays = self["states"][index], self["arcs"][index]
        graph = Graph(self._starts[index], *arrays)
        graph.check(name=self.folder)
        return graph


class TranscriptGraphs(GraphStore):
    """The graphs of whole utterances; labels are pdf-id + 1."""

    KIND = "store of graphs"
    FACTS: ClassVar = {"subsampling": factor}

    @cached_property
    def num_frames(self) -> np.ndarray:
        """Frames of the output of each utterance, int64[N]."""
        return self.index("num_frames")

    @property
    def subsampling(self) -> int:
        """Input frames per output frame."""
        return int(self.meta["subsampling"])


@dataclass(frozen=True)
class Compilation:
    """Compilation of the graphs of a store: what they are made of."""

    kind: type[TranscriptGraphs]
    """Of the store."""
    make: Make
    """Called by several threads."""
    meta: Mapping[str, Any]
    """Of the store; `subsampling` says how many frames of the output there are."""
    ledger: Ledger
    """Gets the utterances that have no graph."""
    more_meta: Callable[[], Mapping[str, Any]] = dict
    """Facts of all graphs, known in the end."""


def write_transcript_graphs(
    compilation: Compilation,
    frames_dir: Path,
    out_dir: Path,
    *,
    max_skipped_fraction: float = 1.0,
    threads: int = 1,
) -> None:
    """Write the graph of every transcribed utterance, and the ledger beside them.

    Args:
        compilation: how they are made.
        frames_dir: features of a split, for transcripts and lengths.
        out_dir: the store, replaced as a whole.
        max_skipped_fraction: share of the utterances that may have none.
        threads: utterances at a time.

    Raises:
        UserError: more utterances than that are skipped, or all; the disk is full.
    """
    frames, ledger = open_frames(frames_dir), compilation.ledger
    lengths = -(-np.diff(frames.begin) // compilation.meta["subsampling"])
    texts = zip(frames.utt_ids, frames.texts, lengths.tolist(), strict=True)

    def made(item: tuple[str, str, int]) -> tuple[str, int, Graph | str]:
        utterance, text, num_frames = item
        return utterance, num_frames, compilation.make(text, num_frames)

    starts: list[int] = []
    kept: list[int] = []
    with (
        atomic_directory(out_dir) as folder,
        worker_pool(threads) as pool,
        RaggedWriter(folder, compilation.kind, meta=compilation.meta) as writer,
    ):
        items = progress(texts, "supervisions", len(lengths))
        for utterance, num_frames, found in in_order(pool, made, items):
            if isinstance(found, str):
                ledger.record(utterance, found)
            else:
                writer.write(utterance, found.arcs, found.states)
                starts.append(found.start)
                kept.append(num_frames)
        writer.index["starts"] = np.array(starts, np.int64)
        writer.index["num_frames"] = np.array(kept, np.int64)
        writer.meta.update(compilation.more_meta())
        ledger.check(len(lengths), max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")
        if not kept:
            raise UserError(
                "no utterance has a supervision",
                file=frames_dir,
                remedy="see the ledger of the stage, and the transcripts",
            )
    log.info("supervisions of %d out of %d utterances", len(kept), len(lengths))


def fewest_frames(graph: Graph) -> float:
    """Return the fewest arcs of a path to a final state; inf without one."""
    if not graph.num_states:
        return np.inf
    is_final = np.isfinite(graph.final)
    return _fewest_arcs(graph.start, graph.arc_begin, graph.next_state, is_final)


@njit(cache=True, nogil=True)
def _fewest_arcs(
    start: int, arc_begin: np.ndarray, next_state: np.ndarray, is_final: np.ndarray
) -> float:
    """Search breadth first."""
    depth = np.full(len(is_final), -1, np.int64)
    queue = np.empty(len(is_final), np.int64)
    queue[0], depth[start] = start, 0
    at, end = 0, 1
    while at < end:
        state = queue[at]
        at += 1
        if is_final[state]:
            return float(depth[state])
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            target = next_state[arc]
            if depth[target] < 0:
                depth[target] = depth[state] + 1
                queue[end] = target
                end += 1
    return np.inf
