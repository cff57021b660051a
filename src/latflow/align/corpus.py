"""Alignments of whole splits: made in parallel, with an account of those that fail.

They are kept as Kaldi's archive of transition-ids, `ali.ark`, which `AlignmentArchive`
reads through a memory map: opening it finds where each utterance begins, and an
alignment is copied out when it is asked for. Ranks and threads that read the same
archive share its pages. `LogLikes` has the acoustic log-likelihood of each frame of
them.

Source: Kaldi `steps/align_si.sh`, `steps/diagnostic/analyze_alignments.sh`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from latflow.align.aligner import Aligner, Alignment, AlignmentFailure, Scores
from latflow.align.options import AlignOptions
from latflow.archive_sizes import Entries, archive_sizes, checked_entries
from latflow.errors import UserError
from latflow.files import atomic_directory, require_file, write_json
from latflow.fst.graph import Graph
from latflow.hmm.alignment import PhoneDurations
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import BINARY_MARK, write_int_vectors
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order
from latflow.ragged import RaggedStore, RaggedWriter

Item = TypeVar("Item")
LOG_LIKES = "log_likes"  # folder of a `LogLikes`
_LENGTH = struct.Struct("<bi")  # width in bytes of the number that follows, number
_ITEM = np.dtype([("width", "i1"), ("value", "<i4")])


def align_all(
    aligner: Aligner,
    utterances: Iterable[Item],
    graph_of: Callable[[Item], Graph | str],
    scores_of: Callable[[Item], Scores | str],
    pool: Executor,
    *,
    ahead: int = 256,
) -> Iterator[Alignment | AlignmentFailure]:
    """Yield the alignments of utterances, in their order.

    Args:
        aligner: the model and its scales.
        utterances: their numbers, or whatever else the functions know them by.
        graph_of: gives the training graph of an utterance, or the reason why it has
            none.
        scores_of: gives its scores, or the reason why it has none.
        ahead: see `latflow.parallel.in_order`.
    """
    widest = max(aligner.beams)

    def align(u: Item) -> Alignment | AlignmentFailure:
        graph = graph_of(u)
        if isinstance(graph, str):
            return AlignmentFailure(graph, widest)
        scores = scores_of(u)
        if isinstance(scores, str):
            return AlignmentFailure(scores, widest)
        return aligner.align(graph, scores)

    return in_order(pool, align, utterances, ahead=ahead)


@dataclass
class AlignmentSummary:
    """Sums over the alignments of a corpus.

    Attributes:
        options: of the search.
        log_like: of all aligned frames, acoustic, unscaled.
        num_frames: how many frames were aligned.
        num_aligned: how many utterances were.
        failures: by number of the utterance.
        retried: beam that utterances were aligned with which needed a wider one, by
            number of the utterance.
    """

    options: AlignOptions
    log_like: float = 0.0
    num_frames: int = 0
    num_aligned: int = 0
    failures: dict[int, AlignmentFailure] = field(default_factory=dict)
    retried: dict[int, float] = field(default_factory=dict)

    def add(self, utterance: int, found: Alignment | AlignmentFailure) -> None:
        """Count one utterance."""
        if isinstance(found, AlignmentFailure):
            self.failures[utterance] = found
            return
        self.num_aligned += 1
        self.num_frames += len(found.transition_ids)
        self.log_like += float(found.frame_log_likes.sum(dtype=np.float64))
        if found.beam != self.options.beam:
            self.retried[utterance] = found.beam

    def as_dict(self) -> dict[str, float]:
        """Return counts for a report; the log-likelihood is acoustic and unscaled."""
        frames = self.num_frames
        return {
            "log_like_per_frame": self.log_like / frames if frames else 0.0,
            "num_frames": frames,
            "num_aligned": self.num_aligned,
            "num_retried": len(self.retried),
            "num_rescued": sum(
                beam > self.options.retry_beam for beam in self.retried.values()
            ),
            "num_failed": len(self.failures),
        }

    def record(self, ledger: Ledger, name: Callable[[int], str]) -> None:
        """Enter failed and retried utterances into a ledger.

        Args:
            name: gives the id of an utterance.
        """
        for u, failure in sorted(self.failures.items()):
            ledger.record(name(u), failure.reason, beam=failure.beam)
        for u, beam in sorted(self.retried.items()):
            how = "without a beam" if np.isinf(beam) else f"with beam {beam:g}"
            ledger.record(
                name(u),
                f"no final state at beam {self.options.beam:g}, aligned {how}",
                action="retried",
                beam=None if np.isinf(beam) else beam,
            )


@dataclass(frozen=True, eq=False)
class Split:
    """A split of the corpus to align, or a part of it, and the folder of the results.

    Attributes:
        lang: the lang directory.
        system: that aligns; names the ledger.
        out_dir: for `ali.ark` (transition-ids), `log_likes/` (a `LogLikes`),
            `ledger.jsonl` and `statistics.json`.
        num_utterances: of the whole split.
        max_skipped_fraction: share of them that may fail; a part alone ends the run
            where it has too many for the whole split.
        frame_shift: seconds from frame to frame of the alignments.
    """

    lang: Lang
    system: str
    out_dir: Path
    num_utterances: int
    max_skipped_fraction: float
    frame_shift: float

    def write(
        self,
        alignments: Iterable[tuple[str, Alignment | AlignmentFailure]],
        summary: AlignmentSummary,
        model: TransitionModel,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write alignments, ledger and statistics.

        Args:
            alignments: of all utterances, or those of a part: (id, alignment), sorted.
            summary: empty.
            model: gives the meaning of transition-ids.
            facts: further keys of the statistics.

        Raises:
            UserError: too many utterances failed.
        """
        durations = PhoneDurations(max(self.lang.topology.phones))
        ledger, total = Ledger(f"align_{self.system}"), self.num_utterances
        names: list[str] = []
        written = Entries()
        self.out_dir.mkdir(parents=True, exist_ok=True)

        def paths(scores: RaggedWriter) -> Iterator[tuple[str, np.ndarray]]:
            for name, found in progress(alignments, "align", total):
                summary.add(len(names), found)
                names.append(name)
                if isinstance(found, Alignment):
                    durations.add(found.transition_ids, model)
                    scores.write(name, found.frame_log_likes)
                    written.add(name)
                    yield name, found.transition_ids
            # Before the archive gets its name: a failed stage leaves none.
            summary.record(ledger, names.__getitem__)
            ledger.write(self.out_dir / "ledger.jsonl")
            ledger.check(total, max_skipped_fraction=self.max_skipped_fraction)

        with (
            atomic_directory(self.out_dir / LOG_LIKES) as folder,
            RaggedWriter(folder, LogLikes) as scores,
        ):
            write_int_vectors(self.out_dir / "ali.ark", paths(scores))
        statistics = {
            **summary.as_dict(),
            **(facts or {}),
            "frame_shift": self.frame_shift,
            **durations.summary(self.lang.phones, self.lang.silence_phones),
        }
        statistics |= archive_sizes(self.out_dir, {"ali.ark": written})
        write_json(self.out_dir / "statistics.json", statistics)


class LogLikes(RaggedStore):
    """Acoustic log-likelihoods of aligned utterances by frame, unscaled, natural log.

    As Kaldi's `gmm-align-compiled --write-per-frame-acoustic-loglikes`.
    """

    FORMAT = "latflow-frame-log-likes-1"
    KIND = "store of log-likelihoods"
    REMEDY = "align the data again"
    COLUMNS: ClassVar = {"log_like": ("<f4", 1)}

    def get(self, utterance: str) -> np.ndarray | None:
        """Return those of an utterance, float32[T]; None without it."""
        if utterance not in self:
            return None
        return self["log_like"][self.position(utterance)]


class AlignmentArchive:
    """Transition-ids by utterance; safe to share between threads.

    Args:
        paths: binary Kaldi archives of integer vectors; where two have an utterance,
            the later one's counts.

    Raises:
        UserError: no such file, or it is something else or truncated.
    """

    def __init__(self, *paths: str | Path) -> None:
        self._index: dict[str, tuple[mmap.mmap, int, int]] = {}
        for path in map(Path, paths):
            require_file(path, "align the data first")
            self._index.update(checked_entries(path, _vectors(path)))

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, utterance: str) -> bool:
        return utterance in self._index

    def get(self, utterance: str) -> np.ndarray | None:
        """Return the transition-ids of an utterance, int32[T]; None without it."""
        found = self._index.get(utterance)
        if found is None:
            return None
        mapped, begin, count = found
        items = np.frombuffer(mapped, _ITEM, count, begin)
        return items["value"].astype(np.int32)


def _vectors(path: Path) -> Iterator[tuple[str, tuple[mmap.mmap, int, int]]]:
    """Find the vectors of an archive: its bytes, where each begins, its length."""
    if not path.stat().st_size:
        return  # which cannot be mapped
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    at = 0
    while at < len(mapped):
        blank = mapped.find(b" ", at)
        begin = blank + 1 + len(BINARY_MARK)
        key = mapped[at:blank]
        is_binary = key.split() == [key] and mapped[blank + 1 : begin] == BINARY_MARK
        if not is_binary or begin + _LENGTH.size > len(mapped):
            _refuse(path)
        width, count = _LENGTH.unpack_from(mapped, begin)
        begin += _LENGTH.size
        end = begin + count * _ITEM.itemsize
        if width != 4 or count < 0 or end > len(mapped):
            _refuse(path)
        try:
            utterance = key.decode()
        except UnicodeDecodeError:
            _refuse(path)
        yield utterance, (mapped, begin, count)
        at = end


def _refuse(path: Path) -> NoReturn:
    raise UserError(
        "not a binary archive of integer vectors, or truncated",
        file=path,
        remedy="make it with latflow's alignment stage, or with Kaldi's "
        "copy-int-vector ark:... ark:...",
    )
