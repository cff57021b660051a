"""Align all utterances of a source with one model, and account for those that fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from latflow.fst.graph import Graph
from latflow.gmm.source import FrameSource
from latflow.gmm.training_graphs import Graphs
from latflow.gmm.viterbi import Aligned, Aligner
from latflow.ledger import Ledger
from latflow.parallel import in_order


@dataclass(frozen=True)
class Beams:
    """Widths of the search, in scaled log-likelihood; `retry` 0 tries once only."""

    first: float
    retry: float


@dataclass(frozen=True)
class Outcome:
    """What became of one utterance.

    Attributes:
        utterance: its number in the source.
        aligned: its best path, or None.
        reason: why there is none.
    """

    utterance: int
    aligned: Aligned | None
    reason: str = ""


@dataclass
class PassSummary:
    """Sums over one pass of alignment.

    Attributes:
        log_like: of all aligned frames, acoustic, unscaled.
        num_frames: how many frames were aligned.
        num_aligned: how many utterances were.
        failed: reason by utterance number.
        retried: utterances that needed the wider beam.
    """

    log_like: float = 0.0
    num_frames: int = 0
    num_aligned: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    retried: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome, beams: Beams) -> None:
        """Count one utterance."""
        if outcome.aligned is None:
            self.failed[outcome.utterance] = outcome.reason
            return
        self.num_aligned += 1
        self.num_frames += len(outcome.aligned.transition_ids)
        self.log_like += float(outcome.aligned.frame_log_likes.sum(dtype=np.float64))
        if outcome.aligned.beam != beams.first:
            self.retried.append(outcome.utterance)

    def as_dict(self) -> dict[str, float]:
        """Counts for a report; the log-likelihood is acoustic and unscaled."""
        frames = self.num_frames
        return {
            "log_like_per_frame": self.log_like / frames if frames else 0.0,
            "num_frames": frames,
            "num_aligned": self.num_aligned,
            "num_retried": len(self.retried),
            "num_failed": len(self.failed),
        }

    def record(self, ledger: Ledger, source: FrameSource, beams: Beams) -> None:
        """Enter failed and retried utterances into a ledger."""
        widest = max(beams.first, beams.retry)
        for u, reason in sorted(self.failed.items()):
            ledger.record(source.utt_id(u), reason, beam=widest)
        for u in sorted(self.retried):
            ledger.record(
                source.utt_id(u),
                f"no final state at beam {beams.first:g}, aligned with the retry beam",
                action="retried",
                beam=beams.retry,
            )


def align_all(
    aligner: Aligner,
    source: FrameSource,
    graphs: Graphs,
    beams: Beams,
    pool: Executor,
) -> Iterator[Outcome]:
    """Align every utterance of a source; outcomes come in the order of utterances.

    Args:
        aligner: the model and its scales.
        source: the frames.
        graphs: gives the training graph of an utterance.
        beams: widths of the search.
        pool: threads to use.
    """
    aligner.model.gmms.check_dim(source.dim)

    def do(u: int) -> Outcome:
        graph = graphs(u)
        if isinstance(graph, str):
            return Outcome(u, None, graph)
        frames = source.frames(u)
        if not np.isfinite(frames).all():
            return Outcome(u, None, "features that are not finite")
        found = aligner.align(graph, frames, beam=beams.first, retry_beam=beams.retry)
        reason = "" if found else why_not(graph, len(frames))
        return Outcome(u, found, reason)

    return in_order(pool, do, range(len(source)))


def realign(
    aligner: Aligner,
    source: FrameSource,
    graphs: Graphs,
    beams: Beams,
    pool: Executor,
    *,
    alignment: np.ndarray,
) -> PassSummary:
    """Align every utterance of a source, into one long array.

    Args:
        aligner: the model and its scales.
        source: the frames.
        graphs: gives the training graph of an utterance.
        beams: widths of the search.
        pool: threads to use.
        alignment: int32[sum T], written; 0 for utterances that fail.
    """
    summary = PassSummary()
    for outcome in align_all(aligner, source, graphs, beams, pool):
        summary.add(outcome, beams)
        u, aligned = outcome.utterance, outcome.aligned
        mine = alignment[source.begin[u] : source.begin[u + 1]]
        mine[:] = 0 if aligned is None else aligned.transition_ids
    return summary


def why_not(graph: Graph, num_frames: int) -> str:
    """Say why an utterance could not be aligned."""
    least = least_frames(graph)
    if least is None:
        return "no path through the training graph"
    if least > num_frames:
        return f"too short: {num_frames} frames, its transcript needs at least {least}"
    return "no final state was reached within the beam"


def least_frames(graph: Graph) -> int | None:
    """Number of frames on the shortest path through a graph; None if there is none."""
    distance = np.full(graph.num_states, -1, np.int64)
    queue = deque([(graph.start, 0)])
    while queue:
        state, frames = queue.popleft()
        if distance[state] >= 0:
            continue
        distance[state] = frames
        if np.isfinite(graph.final[state]):
            return frames
        for arc in range(int(graph.arc_begin[state]), int(graph.arc_begin[state + 1])):
            target = int(graph.next_state[arc])
            if graph.ilabel[arc] > 0:
                queue.append((target, frames + 1))
            else:
                queue.appendleft((target, frames))
    return None
