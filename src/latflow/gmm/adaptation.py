"""Speaker transforms of a whole set: statistics by speaker, estimated when complete.

Each utterance's statistics are made by a thread and added, in the order of utterances,
to those of its speaker. A speaker whose last utterance is in is estimated and closed,
so that what is in memory depends on how utterances mix the speakers, not on their
number; utterances sorted by their ids mostly come speaker by speaker.

Source: Kaldi `gmmbin/gmm-est-fmllr.cc`, `gmmbin/gmm-est-fmllr-gpost.cc`,
`gmmbin/gmm-post-to-gpost.cc`, `bin/weight-silence-post.cc`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from latflow.gmm.fmllr import FmllrEstimate, FmllrStatistics, estimate_fmllr
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.options import FmllrOptions
from latflow.gmm.source import FrameSource, SpeakerTransforms
from latflow.gmm.speaker_gains import SpeakerGain, summarize_gains
from latflow.lattice.posteriors import FramePosteriors, alignment_posteriors
from latflow.parallel import in_order

Item = TypeVar("Item")
log = logging.getLogger(__name__)

#: Transforms of speakers, in the folder of a system, an alignment or a decoding.
SPEAKER_TRANSFORMS = "trans.ark"
#: Utterances whose statistics may wait for their turn (about 0.3 MB each).
WAITING = 16


@dataclass(frozen=True, eq=False)
class FmllrAccumulator:
    """Make statistics of frames with posteriors of transition-ids.

    Attributes:
        model: shares a pdf's posterior out among its Gaussians.
        target: mixtures of the same Gaussians whose means and variances the features
            are to fit.
        weight: float64[I + 1], factor of the posteriors of each transition-id.
    """

    model: AcousticModel
    target: DiagGmms
    weight: np.ndarray

    @classmethod
    def of(
        cls,
        model: AcousticModel,
        silence_phones: Sequence[int],
        silence_weight: float,
        *,
        target: DiagGmms | None = None,
    ) -> FmllrAccumulator:
        """Weigh silence down, in which speakers hardly differ.

        Args:
            model: gives the posteriors of Gaussians.
            silence_phones: phones whose frames are weighted.
            silence_weight: their weight; 0 leaves them out.
            target: mixtures to fit; None for the model's.
        """
        is_silence = np.isin(model.transitions.phone, silence_phones)
        weight = np.where(is_silence, silence_weight, 1.0)
        return cls(model, model.gmms if target is None else target, weight)

    def statistics(
        self, frames: np.ndarray, posteriors: FramePosteriors
    ) -> FmllrStatistics:
        """Return statistics of one utterance.

        Args:
            frames: float32[T, D], features as `model` takes them.
            posteriors: of transition-ids, T frames.

        Raises:
            UserError: frames, posteriors and models do not fit.
        """
        weighted = FramePosteriors(
            posteriors.frame_begin,
            posteriors.ids,
            posteriors.weights * self.weight[posteriors.ids],
        )
        statistics = FmllrStatistics.zeros(self.model.gmms.dim)
        statistics.accumulate(
            frames,
            weighted.to_pdfs(self.model.transitions),
            self.model.gmms,
            target=self.target,
        )
        return statistics


@dataclass(frozen=True, eq=False)
class Adaptation:
    """Transforms of all speakers of a set.

    Attributes:
        transforms: of every speaker, the identity where there were too few frames.
        gains: of the speakers, in the order of the transforms.
    """

    transforms: SpeakerTransforms
    gains: Sequence[SpeakerGain]

    @property
    def num_unadapted(self) -> int:
        """Speakers that keep their features."""
        return sum(not gain.is_estimated for gain in self.gains)

    @property
    def gain_per_frame(self) -> float:
        """Increase of the objective over the present features, mean over frames."""
        return self.as_dict()["gain_per_frame"]

    def as_dict(self) -> dict[str, float]:
        """Return counts for a report."""
        return summarize_gains(self.gains)


class SpeakerEstimates:
    """Adds statistics up by speaker, and estimates each speaker in the end.

    Args:
        speakers: speaker of each utterance that is going to come.
    """

    def __init__(
        self, speakers: Iterable[str], options: FmllrOptions, pool: Executor
    ) -> None:
        self._missing = Counter(speakers)
        self._options = options
        self._pool = pool
        self._open: dict[str, FmllrStatistics] = {}
        self._closed: dict[str, Future[FmllrEstimate]] = {}

    def add(self, speaker: str, statistics: FmllrStatistics | None) -> None:
        """Take an utterance in, and close its speaker if it is the last one.

        Args:
            statistics: of the utterance; None without any.
        """
        if statistics is not None:
            present = self._open.get(speaker)
            if present is None:
                self._open[speaker] = statistics
            else:
                present += statistics
        self._missing[speaker] -= 1
        if not self._missing[speaker]:
            self._close(speaker)

    def finish(self, what: str) -> Adaptation:
        """Estimate the speakers that are still open, and gather all transforms.

        Args:
            what: names the estimates in the log.
        """
        for speaker in sorted(self._open):
            self._close(speaker)
        found = {s: self._closed[s].result() for s in sorted(self._closed)}
        unadapted = [s for s, e in found.items() if not e.is_estimated]
        adaptation = Adaptation(
            SpeakerTransforms({s: e.matrix for s, e in found.items()}),
            [SpeakerGain(e.count, e.gain, e.is_estimated) for e in found.values()],
        )
        log.info(
            "%s: fMLLR of %d speakers gains %.4f in log-likelihood a frame, over %.0f "
            "frames; %d speakers have no more than %g and stay as they are%s",
            what,
            len(found),
            adaptation.gain_per_frame,
            adaptation.as_dict()["num_frames"],
            len(unadapted),
            self._options.min_count,
            f" ({', '.join(unadapted[:5])}{', ...' * (len(unadapted) > 5)})"
            if unadapted
            else "",
        )
        return adaptation

    def _close(self, speaker: str) -> None:
        """Estimate a speaker and forget the statistics."""
        statistics = self._open.pop(speaker, None)
        if statistics is not None:
            self._closed[speaker] = self._pool.submit(
                estimate_fmllr, statistics, self._options
            )


def adapt_to_alignments(
    source: FrameSource,
    alignments: Iterable[tuple[int, np.ndarray | None]],
    accumulator: FmllrAccumulator,
    options: FmllrOptions,
    pool: Executor,
    *,
    what: str,
) -> Adaptation:
    """Estimate the transforms of all speakers of a source from its alignments.

    Args:
        source: the frames as they are now.
        alignments: (utterance, transition-ids int32[T]; None where not aligned).
        accumulator: makes statistics of them.
        pool: threads to use; their number does not change a bit of the result.
        what: names the estimates in the log.
    """

    def do(item: tuple[int, np.ndarray | None]) -> FmllrStatistics | None:
        u, ids = item
        if ids is None:
            return None
        return accumulator.statistics(source.frames(u), alignment_posteriors(ids))

    speakers = [source.speaker(u) for u in range(len(source))]
    estimates = SpeakerEstimates(speakers, options, pool)
    for (u, _), statistics in with_items(pool, do, alignments):
        estimates.add(speakers[u], statistics)
    return estimates.finish(what)


Result = TypeVar("Result")


def with_items(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, work(item)) in the items' order, few of them waiting."""
    yield from in_order(pool, lambda item: (item, work(item)), items, ahead=WAITING)
