"""Utterances whose transcript, audio or speaker looks wrong.

Each utterance is measured in ways that need nothing but its samples, its alignment and
its frames. Some measures have their own bound (digital silence, clipping); others are
judged by how far they are from what is usual: the deviation from the median, in units
of the median absolute deviation times 1.4826, which is the standard deviation if the
values are normal, and which a few wrong utterances do not move.

| reason | measure |
|---|---|
| `unreadable` | the audio is damaged |
| `silence`, `clipping`, `offset` | see `latflow.corpus.signal_faults` |
| `duplicate` | another utterance has the same samples and fits them better |
| `cut` | level of the first or last 30 ms, where the alignment has speech there |
| `not aligned`, `beam` | no alignment, or a wider beam than the first |
| `likelihood` | log-likelihood of a frame of speech, against the speaker's utterances |
| `phones` | mean log-posterior of the aligned phones, a Gaussian a phone |
| `duration` | mean absolute deviation of the phones' log-durations |
| `rate` | logarithm of phones of speech a second |
| `speaker` | distance of the frames, less the mean of their phone, from the speaker's |
| `words` | errors of what a biased decoding has recognized, over transcribed words |

Gaussians, durations and means of phones come from the same alignments. Memory is that
of a few numbers an utterance.

Source: Kaldi's `steps/cleanup/find_bad_utts.sh` (`words`); for
`phones` Witt and Young 2000, "Phone-level pronunciation scoring and assessment",
equation 1, with a sum instead of the maximum.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lhotse import MonoCut

from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.options import SuspectOptions
from latflow.corpus.manifests import read_cuts, samples_or_reason
from latflow.corpus.signal_faults import SignalMeasures, measure_signal
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import write_text
from latflow.hmm.alignment import segments
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.edit_distance import WordAlignment, align_words
from latflow.ledger import read_ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.parts import SetJob
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

TITLES = ("utterance", "reason", "score", "details")
_SCALE = 1.4826  # of the median absolute deviation, for normal values
_MEAN_SCALE = 1.2533  # of the mean absolute deviation, for normal values
_NOTHING = "*"  # instead of a word that was inserted or left out
_MAX_DIFFERENCES = 20  # words of an utterance that are listed
_MIN_GROUP = 8  # utterances of a speaker whose own median is taken


class Suspect(NamedTuple):
    """Something about an utterance that looks wrong.

    Attributes:
        utterance: its id.
        reason: see above.
        score: the larger, the worse; comparable within a reason.
        details: for people.
    """

    utterance: str
    reason: str
    score: float
    details: str


def find_suspects(
    job: SetJob,
    cuts: Path,
    alignments_dir: Path,
    *,
    options: SuspectOptions,
    hypotheses: Path | None = None,
) -> None:
    """List the utterances of a set that look wrong (stage).

    Args:
        job: the set with its frames of GMM systems, and the system that aligned;
            gets `suspects.tsv`, a row for each reason (`TITLES`), and `suspects.txt`,
            the utterances, one a line, as `corpus.<set>.exclude` reads.
        cuts: manifest of the set.
        alignments_dir: what its alignment stage has written.
        options: bounds.
        hypotheses: `hyp.txt` of `latflow.decode.biased`, if the set was decoded.

    Raises:
        UserError: files are missing or do not fit together.
    """
    frames = FrameStore.load(job.frames_dir)
    names = frames.utt_ids
    aligned = _Aligned.load(
        frames, job.lang_dir, job.model_dir / "final.mdl", alignments_dir
    )
    measured = _Measured.of_set(aligned)
    found = list(_signal_suspects(cuts, aligned, measured, options, job.threads))
    found += _ledger_suspects(alignments_dir, names)
    found += _unusual(measured, options)
    if hypotheses is not None:
        lang = Lang.load(job.lang_dir)
        found += _misheard(frames, hypotheses, lang, options.max_word_errors)
    found.sort(key=lambda each: (each.utterance, each.reason))
    rows = [f"{s.utterance}\t{s.reason}\t{s.score:.3f}\t{s.details}\n" for s in found]
    utterances = sorted({each.utterance for each in found}, key=str.encode)
    write_text(job.out_dir / "suspects.tsv", "\t".join(TITLES) + "\n" + "".join(rows))
    write_text(
        job.out_dir / "suspects.txt", "".join(f"{name}\n" for name in utterances)
    )
    log.info("%d of %d utterances look wrong", len(utterances), len(names))


@dataclass(frozen=True)
class _Phones:
    """Phones of an alignment: which, from where, how many frames; int64[N] each."""

    phone: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @property
    def by_frame(self) -> np.ndarray:
        """Phone of each frame, int64[T]."""
        return np.repeat(self.phone, self.length)


@dataclass(frozen=True)
class _Aligned:
    """A set with its alignments.

    Attributes:
        frames: features of the set.
        transitions: what the alignments are made of.
        archive: the alignments.
        log_likes: of each frame of them.
        phone_of: int64[largest phone id + 1], phones without position markers,
            numbered from 0.
        is_speech: bool[Q], by that number.
    """

    frames: FrameStore
    transitions: TransitionModel
    archive: AlignmentArchive
    log_likes: LogLikes
    phone_of: np.ndarray
    is_speech: np.ndarray

    @classmethod
    def load(
        cls, frames: FrameStore, lang_dir: Path, model: Path, alignments_dir: Path
    ) -> _Aligned:
        """Open the files."""
        lang = Lang.load(lang_dir)
        bases = {number: lang.base_phone(number) for number in lang.phones}
        numbers = {name: n for n, name in enumerate(sorted(set(bases.values())))}
        phone_of = np.zeros(max(bases) + 1, np.int64)
        is_speech = np.ones(len(numbers), np.bool_)
        for number, base in bases.items():
            phone_of[number] = numbers[base]
        is_speech[phone_of[list(lang.silence_phones)]] = False
        return cls(
            frames,
            TransitionModel.load(model),
            AlignmentArchive(alignments_dir / "ali.ark"),
            LogLikes.load(alignments_dir / "log_likes"),
            phone_of,
            is_speech,
        )

    def phones(self, u: int) -> _Phones | None:
        """Return the phones of an utterance; None if it is not aligned.

        Raises:
            UserError: frames and alignment differ in length.
        """
        name = self.frames.utt_ids[u]
        ids = self.archive.get(name)
        if ids is None or not len(ids):
            return None
        if len(ids) != len(self.frames.frames(u)):
            raise UserError(
                f"{len(ids)} aligned frames, but {len(self.frames.frames(u))} features",
                utterance=name,
                remedy="align the set again",
            )
        phone, start, length = segments(ids, self.transitions)
        return _Phones(self.phone_of[phone], start.astype(np.int64), length)


# -- signals ------------------------------------------------------------------------


def _signal_suspects(
    cuts: Path,
    aligned: _Aligned,
    measured: _Measured,
    options: SuspectOptions,
    threads: int,
) -> Iterator[Suspect]:
    """Yield what samples show."""
    alike: dict[int, list[str]] = {}
    edges: dict[str, SignalMeasures] = {}

    def measure(cut: MonoCut) -> tuple[str, SignalMeasures | str]:
        samples = samples_or_reason(cut)
        if isinstance(samples, str):
            return cut.id, samples
        return cut.id, measure_signal(samples, int(cut.sampling_rate))

    with worker_pool(threads) as pool:
        signals = in_order(pool, measure, read_cuts(cuts))
        for name, found in progress(signals, "signals", len(aligned.frames)):
            if isinstance(found, str):
                yield Suspect(name, "unreadable", 1.0, found)
                continue
            for reason in ("silence", "clipping", "offset"):
                value = getattr(found, reason)
                if value > getattr(options, f"max_{reason}"):
                    yield Suspect(name, reason, value, f"{value:.3g}")
            alike.setdefault(found.digest, []).append(name)
            edges[name] = found
    yield from _duplicates(alike.values(), measured)
    yield from _cut_suspects(edges, aligned, options)


def _duplicates(alike: Iterable[list[str]], measured: _Measured) -> Iterator[Suspect]:
    """Yield utterances with equal samples, but for the one whose phones fit best."""
    fits = dict(zip(measured.names, measured.measures[:, 1].tolist(), strict=True))
    for names in alike:
        best = max(names, key=lambda name: fits.get(name, -math.inf))
        for name in names:
            if name != best:
                yield Suspect(name, "duplicate", 1.0, f"same samples as {best}")


def _cut_suspects(
    edges: dict[str, SignalMeasures], aligned: _Aligned, options: SuspectOptions
) -> Iterator[Suspect]:
    """Yield utterances that begin or end loud, in the middle of speech."""
    names = [name for name in aligned.frames.utt_ids if name in edges]
    for side, index in (("start", 0), ("end", -1)):
        levels = np.array([getattr(edges[name], f"{side}_db") for name in names])
        for n, deviation in enumerate(deviations(levels)):
            if deviation <= options.max_deviation or levels[n] <= options.cut_db:
                continue
            found = aligned.phones(aligned.frames.position(names[n]))
            if found is None or aligned.is_speech[found.phone[index]]:
                details = f"{side} at {levels[n]:.0f} dB of its loud parts"
                yield Suspect(names[n], "cut", float(deviation), details)


# -- alignments ---------------------------------------------------------------------


def _ledger_suspects(alignments_dir: Path, names: list[str]) -> Iterator[Suspect]:
    """Yield utterances that could not be aligned, or with a wider beam only."""
    known = set(names)
    for entry in read_ledger(alignments_dir / "ledger.jsonl"):
        if entry.utterance not in known:
            continue
        if entry.action == "skipped":
            yield Suspect(entry.utterance, "not aligned", 1.0, entry.reason)
        elif entry.action == "retried":
            yield Suspect(entry.utterance, "beam", entry.beam or 0.0, entry.reason)


class _Gaussians(NamedTuple):
    """Frames and durations of each phone; float64[Q, ...], Q phones.

    Attributes:
        mean: [Q, D].
        variance: [Q, D].
        log_length: [Q, 2], mean and standard deviation of the logarithm of frames.
        is_seen: bool[Q], of phones with frames enough.
    """

    mean: np.ndarray
    variance: np.ndarray
    log_length: np.ndarray
    is_seen: np.ndarray

    @classmethod
    def of_set(cls, aligned: _Aligned) -> _Gaussians:
        """Estimate them from all alignments."""
        Q, D = len(aligned.is_speech), aligned.frames.dim
        count, sums = np.zeros(Q), np.zeros((2, Q, D))
        lengths = np.zeros((3, Q))  # number, sum, sum of squares of logarithms
        for u in range(len(aligned.frames)):
            found = aligned.phones(u)
            if found is None:
                continue
            x, own = aligned.frames.frames(u).astype(np.float64), found.by_frame
            count += np.bincount(own, minlength=Q)
            np.add.at(sums[0], own, x)
            np.add.at(sums[1], own, x * x)
            logs = np.log(found.length)
            for power in range(3):
                np.add.at(lengths[power], found.phone, logs**power)
        safe = np.maximum(count, 1.0)[:, None]
        mean = sums[0] / safe
        floor = 1e-3 * sums[1].sum(0) / max(1.0, count.sum()) + 1e-10
        variance = np.maximum(sums[1] / safe - mean**2, floor)
        number = np.maximum(lengths[0], 1.0)
        middle = lengths[1] / number
        spread = np.sqrt(np.maximum(lengths[2] / number - middle**2, 0.01))
        return cls(mean, variance, np.stack([middle, spread], 1), count > 2 * D)

    def log_posteriors(self, x: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return the log-posterior of the own phone of each frame, equal priors, [T].

        Args:
            x: float64[T, D].
            own: int64[T], phones.
        """
        seen = self.is_seen.copy()
        seen[own] = True
        rows = np.flatnonzero(seen)
        inverse = 1.0 / self.variance[rows]
        constant = np.log(self.variance[rows]).sum(1)
        constant += (self.mean[rows] ** 2 * inverse).sum(1)
        scores = x @ (self.mean[rows] * inverse).T - 0.5 * (x**2 @ inverse.T + constant)
        best = scores.max(1)
        total = best + np.log(np.exp(scores - best[:, None]).sum(1))
        place = np.searchsorted(rows, own)
        return scores[np.arange(len(x)), place] - total


@dataclass(frozen=True)
class _Measured:
    """Measures of the N utterances that are aligned and have speech.

    Attributes:
        names: of the utterances.
        speakers: int[N], codes of their speakers.
        measures: float64[N, 4]: log-likelihood, log-posterior, duration, log-rate.
        residuals: float64[N, D], mean of the frames less that of their phone.
    """

    names: list[str]
    speakers: np.ndarray
    measures: np.ndarray
    residuals: np.ndarray

    @classmethod
    def of_set(cls, aligned: _Aligned) -> _Measured:
        """Measure all utterances."""
        gaussians = _Gaussians.of_set(aligned)
        names, speakers = [], array("i")
        measures, residuals = array("d"), array("d")
        for u, name in enumerate(progress(aligned.frames.utt_ids, "alignments")):
            found = aligned.phones(u)
            if found is None or not aligned.is_speech[found.phone].any():
                continue
            measure, residual = _measure(u, found, aligned, gaussians)
            names.append(name)
            speakers.append(int(aligned.frames.speaker_codes[u]))
            measures.extend(measure)
            residuals.extend(residual)
        return cls(
            names,
            np.array(speakers),
            np.array(measures).reshape(-1, 4),
            np.array(residuals).reshape(-1, aligned.frames.dim),
        )


def _measure(
    u: int, found: _Phones, aligned: _Aligned, gaussians: _Gaussians
) -> tuple[tuple[float, ...], list[float]]:
    """Return the measures and the residual of one utterance."""
    own = found.by_frame
    spoken = aligned.is_speech[own]
    x, own = aligned.frames.frames(u)[spoken].astype(np.float64), own[spoken]
    is_phone = aligned.is_speech[found.phone]
    middle, spread = gaussians.log_length[found.phone[is_phone]].T
    away = np.abs(np.log(found.length[is_phone]) - middle) / spread
    log_likes = aligned.log_likes.get(aligned.frames.utt_ids[u])
    likelihood = math.nan if log_likes is None else float(log_likes[spoken].mean())
    rate = int(is_phone.sum()) / (len(own) * aligned.frames.frame_shift)
    posterior = float(gaussians.log_posteriors(x, own).mean())
    residual = (x - gaussians.mean[own]) / np.sqrt(gaussians.variance[own])
    measure = (likelihood, posterior, float(away.mean()), math.log(rate))
    return measure, residual.mean(0).tolist()


def _unusual(measured: _Measured, options: SuspectOptions) -> Iterator[Suspect]:
    """Yield utterances whose measures are far from what is usual."""
    likelihood, posterior, duration, rate = measured.measures.T
    groups = measured.speakers
    columns = [deviations(column, groups) for column in measured.residuals.T]
    distance = np.sqrt(np.mean(np.square(columns), axis=0))
    judged = {
        "likelihood": (-deviations(likelihood, groups), likelihood, "per frame"),
        "phones": (-deviations(posterior), posterior, "mean log-posterior"),
        "duration": (deviations(duration), duration, "standard deviations"),
        "rate": (np.abs(deviations(rate)), np.exp(rate), "phones a second"),
        "speaker": (deviations(distance), distance, "from the speaker"),
    }
    for reason, (score, value, unit) in judged.items():
        for n in np.flatnonzero(score > options.max_deviation).tolist():
            details = f"{value[n]:.3g} {unit}, usual {np.nanmedian(value):.3g}"
            yield Suspect(measured.names[n], reason, float(score[n]), details)


# -- words --------------------------------------------------------------------------


def _misheard(
    frames: FrameStore, hypotheses: Path, lang: Lang, bound: float
) -> Iterator[Suspect]:
    """Yield utterances whose recognized words differ from their transcripts."""
    is_decoded = np.zeros(len(frames), np.bool_)
    for number, line in read_lines(hypotheses):
        name, *recognized = line.split() or [""]
        if name not in frames:
            raise UserError(
                f"line {number}: an utterance that is not in the set",
                file=hypotheses,
                utterance=name,
                remedy="decode the set again",
            )
        u = frames.position(name)
        is_decoded[u] = True
        words = frames.texts[u].split()
        reference = [word if lang.is_known(word) else lang.oov_word for word in words]
        aligned = align_words(reference, recognized)
        score = aligned.counts.errors / max(1, len(reference))
        if score > bound:
            yield Suspect(name, "words", score, _differences(aligned, words))
    for u in np.flatnonzero(~is_decoded).tolist():
        yield Suspect(frames.utt_ids[u], "words", 1.0, "could not be decoded")


def _differences(aligned: WordAlignment, words: list[str]) -> str:
    """Return the errors of an alignment, in the transcript's own words."""
    own = iter(words)
    texts = []
    for reference, recognized in aligned.pairs:
        word = None if reference is None else next(own)
        if reference != recognized:
            texts.append(f"{word or _NOTHING}>{recognized or _NOTHING}")
    more = len(texts) - _MAX_DIFFERENCES
    ending = [f"and {more} more"] if more > 0 else []
    return ", ".join([*texts[:_MAX_DIFFERENCES], *ending])


def deviations(values: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return how far each value is from the median, in robust standard deviations.

    Args:
        values: float[N]; NaN stays NaN.
        groups: int[N]; the median is that of the value's group, if the group has
            `_MIN_GROUP` members; the deviation is that of all.

    Where over half of the values are at their median, the mean absolute deviation times
    1.2533 takes the place of the median one; 0 for values that are all there.

    Source: Iglewicz and Hoaglin 1993, "How to detect and handle outliers"; for the mean
    absolute deviation IBM SPSS, "Modified z score".
    """
    centre = np.full(len(values), np.nanmedian(values) if len(values) else 0.0)
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        bounds = np.flatnonzero(np.diff(groups[order])) + 1
        for members in np.split(order, bounds):
            if len(members) >= _MIN_GROUP:
                centre[members] = np.nanmedian(values[members])
    away = values - centre
    if not len(values):
        return away
    spread = _SCALE * np.nanmedian(np.abs(away))
    if spread == 0.0:
        spread = _MEAN_SCALE * np.nanmean(np.abs(away))
    return away / spread if spread > 0.0 else away
