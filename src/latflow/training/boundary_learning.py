"""Learns from boundaries set by hand where an alignment's boundaries should be.

The phones of an alignment and labels set by hand are matched utterance by utterance.
Each boundary that both have is an example for the `BoundaryModel`. It is trained once
for each fold without a part of the speakers (or recordings, of fewer than three
speakers), which shows how well it does on unseen speech and how wide its intervals have
to be, and once with all examples.

Source: Stolcke et al. 2014, "Highly accurate phonetic segmentation using boundary
correction models and system fusion", corrects boundaries by regression for each pair of
phone classes; here one network knows both phones. Intervals: split conformal
prediction, Lei et al. 2018, "Distribution-free predictive inference for regression".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lhotse import MonoCut

from latflow.align.boundary_model import (
    LIMIT,
    SHARES,
    BoundaryModel,
    inputs,
    windows_around,
)
from latflow.align.corpus import AlignmentArchive
from latflow.align.short_windows import ShortWindows, phones_of
from latflow.align.timing import AlignedSet
from latflow.corpus.manifests import at_rate, read_cuts
from latflow.corpus.textgrid import Interval
from latflow.errors import UserError
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.scoring.boundaries import (
    SILENCES,
    Labels,
    matched_labels,
    read_labels,
    summary,
)

log = logging.getLogger(__name__)

FEWEST = 200  # boundaries that can be learnt from
_FOLDS = 5
_HIDDEN = 128
_DROPOUT = 0.2
_BATCH = 128
_EPOCHS = 60
_STEPS = (600, 8000)  # fewest and most of a training
_RATE = 4e-3  # of learning, at its highest
_DECAY = 0.01
_NEAR = 0.01  # seconds around true boundaries where the second look begins
_COPIES = 3  # of each example: as it is aligned, and two near the true boundary


@dataclass(frozen=True, eq=False)
class Utterance:
    """An utterance with boundaries set by hand.

    Attributes:
        speaker: who speaks.
        recording: that it is of.
        names: of its N phones.
        times: of the alignment, float64[N + 1].
        truth: set by hand, float64[N + 1], NaN without one.
        frames: cepstra in short windows, float64[T, D].
    """

    speaker: str
    recording: str
    names: Sequence[str]
    times: np.ndarray
    truth: np.ndarray
    frames: np.ndarray


def read_utterances(
    aligned: AlignedSet, labels: Labels, names: Mapping[str, str], windows: ShortWindows
) -> Iterator[Utterance]:
    """Yield the utterances of a split that have labels set by hand.

    Args:
        aligned: the split.
        labels: set by hand, by name of the recording.
        names: names of recordings by id.
        windows: compute the cepstra.
    """
    archive, timer = AlignmentArchive(aligned.alignments), aligned.timer()
    rate = windows.sample_rate
    for cut in at_rate(read_cuts(aligned.cuts), rate, may_resample=True):
        found = _labels_of(cut, labels, names)
        if cut.id not in archive or not found:
            continue
        frames = windows.of_cut(cut)
        if isinstance(frames, str):
            log.warning("%s: left out: %s", cut.id, frames)
            continue
        phones, times = phones_of(cut, archive, timer)
        truth = true_boundaries(phones, times, found)
        speaker = cut.supervisions[0].speaker or ""
        yield Utterance(speaker, recording_of(cut), phones, times, truth, frames)


def recording_of(cut: MonoCut) -> str:
    """Return the id of the recording of a cut."""
    return cut.supervisions[0].recording_id


def _labels_of(
    cut: MonoCut, labels: Labels, names: Mapping[str, str]
) -> list[Interval]:
    """Return the labels within an utterance, from its beginning on."""
    name = names[recording_of(cut)]
    speaker = cut.supervisions[0].speaker
    found = labels.get(f"{name} {speaker}", labels.get(name, ()))
    return [
        Interval(label.start - cut.start, label.end - cut.start, label.text)
        for label in found
        if cut.start <= (label.start + label.end) / 2 <= cut.end
    ]


def true_boundaries(
    names: Sequence[str], times: np.ndarray, labels: Sequence[Interval]
) -> np.ndarray:
    """Return the boundaries that labels have of the phones of an alignment.

    A phone and a label are the same if they are so by edit distance, whatever they are
    called, and overlap.

    Args:
        names: of N phones.
        times: float64[N + 1].
        labels: set by hand, in order of time, silences left out.

    Returns:
        float64[N + 1], NaN without one.
    """
    truth = np.full(len(times), np.nan)
    spoken = [i for i, name in enumerate(names) if name.lower() not in SILENCES]
    phones = [Interval(times[i], times[i + 1], names[i]) for i in spoken]
    pairs = [
        (i, j)
        for i, j in matched_labels(labels, phones, with_others=True)
        if labels[i].start < phones[j].end and phones[j].start < labels[i].end
    ]
    known = set(pairs)
    for i, j in pairs:
        truth[spoken[j]] = labels[i].start
        follows = i + 1 < len(labels) and labels[i + 1].start - labels[i].end < 1e-3
        if not follows or (i + 1, j + 1) not in known:
            truth[spoken[j] + 1] = labels[i].end if not follows else np.nan
    return truth


@dataclass(frozen=True)
class Learnt:
    """What was learnt, and how well that does on speech it was not learnt from.

    Attributes:
        model: of all examples.
        before: errors of the boundaries of the alignment, see `summary`.
        after: of those that the models of the folds have set.
        coverage: share of the true boundaries within the intervals, of each of
            `SHARES`, with widths from the other folds.
        held_out: what folds are made of, speakers or recordings.
    """

    model: BoundaryModel
    before: Mapping[str, float]
    after: Mapping[str, float]
    coverage: tuple[float, ...]
    held_out: str

    def values(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        shares = zip(SHARES, self.coverage, strict=True)
        return {
            "before": self.before,
            "after": self.after,
            "coverage": {f"{share:.0%}": found for share, found in shares},
            "held_out": self.held_out,
        }


def learn_boundaries(
    aligned: AlignedSet,
    grids: Path,
    names: Mapping[str, str],
    *,
    tier: str,
    sample_rate: int,
    threads: int = 1,
) -> Learnt:
    """Learn from TextGrids set by hand.

    Args:
        aligned: alignments of the same recordings.
        grids: a TextGrid, or a folder of them.
        names: names of TextGrids, below the folder and without suffix, by id of the
            recording.
        tier: name of the tiers of phones, or what their names end in.
        sample_rate: of the package, Hz.
        threads: to use; their number changes nothing of the result.

    Raises:
        UserError: too few boundaries are in both.
    """
    labels = read_labels(grids, tier)
    windows = ShortWindows(sample_rate)
    found = read_utterances(aligned, labels, names, windows)
    utterances = list(progress(found, "measure boundaries"))
    if not utterances:
        known = ", ".join(sorted(names.values())[:3])
        raise UserError(
            "no utterance that is aligned has labels",
            file=grids,
            remedy=f"TextGrids need the names of those aligned ({known}, ...)",
        )
    return learn_from(utterances, windows, threads=threads)


def learn_from(
    utterances: Sequence[Utterance], windows: ShortWindows, *, threads: int = 1
) -> Learnt:
    """Train the models of the folds and that of all.

    Args:
        utterances: with boundaries set by hand.
        windows: that made their cepstra.
        threads: to use; their number changes nothing of the result.

    Raises:
        UserError: the boundaries are too few.
    """
    known = sum(int(np.isfinite(u.truth[1:-1]).sum()) for u in utterances)
    if known < FEWEST:
        raise UserError(
            f"{known} manual boundaries that the alignment has, too, where "
            f"{FEWEST} are needed",
            remedy="5 minutes of speech have 3,000; their phones are in a tier that "
            "--tier names",
        )
    held_out, groups = _groups(utterances)
    folds = np.unique(groups, return_inverse=True)[1] % _FOLDS
    phones = np.array(sorted({name for u in utterances for name in u.names}))
    errors, ratios, fold_of, before = [], [], [], []

    def without(fold: int) -> BoundaryModel:
        learning = [u for u, f in zip(utterances, folds, strict=True) if f != fold]
        return train(learning, phones, windows, seed=fold)

    count = int(folds.max()) + 1
    with worker_pool(threads) as pool:  # where torch has a thread for each of them
        # Without none of the folds: with all examples.
        found = in_order(pool, without, range(count + 1), ahead=count)
        *models, model = progress(found, "learn", count + 1)
    for fold, of_others in enumerate(models):
        for u in (u for u, f in zip(utterances, folds, strict=True) if f == fold):
            moved, scale = of_others.corrected(
                u.names, u.times, u.frames, windows.frame_shift
            )
            is_known = np.isfinite(u.truth)
            is_known[[0, -1]] = False
            error = (moved - u.truth)[is_known]
            errors.append(error)
            before.append((u.times - u.truth)[is_known])
            ratios.append(np.abs(error) / scale[is_known, 0])
            fold_of.append(np.full(len(error), fold))
    ratio, of_fold = np.concatenate(ratios), np.concatenate(fold_of)
    hits = np.zeros(len(SHARES))
    for fold in range(count):
        width = conformal_factors(ratio[of_fold != fold])
        hits += (ratio[of_fold == fold][:, None] <= width).sum(0)
    return Learnt(
        replace(model, factors=conformal_factors(ratio)),
        summary(1000 * np.concatenate(before)),
        summary(1000 * np.concatenate(errors)),
        tuple((hits / len(ratio)).tolist()),
        held_out,
    )


def _groups(utterances: Sequence[Utterance]) -> tuple[str, list[str]]:
    """Return what is held out at a time, and that of each utterance."""
    speakers = [u.speaker for u in utterances]
    if len(set(speakers)) > 2:
        return "speakers", speakers
    recordings = [u.recording for u in utterances]
    if len(set(recordings)) > 2:
        return "recordings", recordings
    return "utterances", [str(number) for number in range(len(utterances))]


def conformal_factors(ratios: np.ndarray) -> np.ndarray:
    """Return factors of predicted scales that errors stay within, by `SHARES`.

    Args:
        ratios: absolute errors over their predicted scales, float64[B], of examples
            that the model was not trained on.
    """
    count = max(1, len(ratios))
    shares = [min(1.0, np.ceil((count + 1) * share) / count) for share in SHARES]
    return np.quantile(ratios, shares, method="higher")


def train(
    utterances: Sequence[Utterance],
    phones: np.ndarray,
    windows: ShortWindows,
    *,
    seed: int,
) -> BoundaryModel:
    """Train a model; its intervals are scales yet, of a Laplace distribution.

    Args:
        utterances: to learn from.
        phones: names of all phones.
        windows: that made their cepstra.
        seed: of all draws.
    """
    rng = np.random.default_rng(seed)
    empty = _empty_model(phones, windows.sample_rate)
    seen = [_examples(u, empty, windows.frame_shift, rng) for u in utterances]
    around, codes, moves = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    mean = around.mean(0)
    scale = 1 / (3 * around.std(0) + 1e-3)
    x = torch.from_numpy(inputs(around, codes, mean, scale, len(phones)))
    y = torch.from_numpy((100 * np.clip(moves, -LIMIT, LIMIT)).astype(np.float32))
    weights = _fit(x, y, torch.Generator().manual_seed(seed))
    layers = ("weight1", "bias1", "weight2", "bias2", "weight3", "bias3")
    held = {n: w.detach().numpy() for n, w in zip(layers, weights, strict=True)}
    return replace(empty, mean=mean, scale=scale, **held)


def _fit(
    x: torch.Tensor, y: torch.Tensor, generator: torch.Generator
) -> list[torch.Tensor]:
    """Maximize the likelihood of moves y with Laplace distributions.

    Returns:
        Weights and biases, by layer.
    """
    weights: list[torch.Tensor] = []
    for rows, columns in ((x.shape[1], _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, 2)):
        drawn = torch.rand(rows, columns, generator=generator)
        weights += [(2 * drawn - 1) / rows**0.5, torch.zeros(columns)]
    for weight in weights:
        weight.requires_grad_()

    def layer(x: torch.Tensor, number: int) -> torch.Tensor:
        return torch.addmm(weights[2 * number + 1], x, weights[2 * number])

    def dropped(x: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(x.shape, generator=generator) >= _DROPOUT
        return torch.relu(x) * kept / (1 - _DROPOUT)

    steps = int(np.clip(_EPOCHS * len(x) // (_COPIES * _BATCH), *_STEPS))
    optimizer = torch.optim.AdamW(weights, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(x), (_BATCH,), generator=generator)
        hidden = dropped(layer(x[chosen], 0))
        move, log_scale = layer(dropped(layer(hidden, 1)), 2).unbind(1)
        error = (move - y[chosen]).abs()
        loss = (error * torch.exp(-log_scale) + log_scale).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return weights


def _examples(
    u: Utterance, model: BoundaryModel, frame_shift: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return windows, phones and moves of the examples of an utterance."""
    known = np.flatnonzero(np.isfinite(u.truth[1:-1]))
    truth = u.truth[1:-1][known]
    begin = [u.times[1:-1][known]]
    begin += [truth + rng.uniform(-_NEAR, _NEAR, len(truth)) for _ in range(1, _COPIES)]
    times = np.concatenate(begin)
    codes = model.codes(u.names)[known] if len(u.names) > 1 else np.zeros((0, 2), int)
    return (
        windows_around(times, u.frames, frame_shift),
        np.tile(codes, (_COPIES, 1)),
        np.tile(truth, _COPIES) - times,
    )


def _empty_model(phones: np.ndarray, sample_rate: int) -> BoundaryModel:
    """Return a model that knows its phones alone."""
    none = np.zeros(0, np.float32)
    held = ("mean", "scale", "weight1", "bias1", "weight2", "bias2", "weight3", "bias3")
    return BoundaryModel(
        phones=phones,
        **dict.fromkeys(held, none),
        factors=np.ones(len(SHARES)),
        sample_rate=np.array(sample_rate),
    )


def render(learnt: Learnt) -> str:
    """Return the figures as a reader wants them."""
    rows = [("as aligned", learnt.before), ("as learnt", learnt.after)]
    lines = [
        f"{learnt.before['count']} manual boundaries, each judged by a model that "
        f"was learnt without its {learnt.held_out[:-1]}:\n"
    ]
    for name, row in rows:
        within = ", ".join(
            f"{100 * row[f'within_{limit}_ms']:.1f} % within {limit} ms"
            for limit in (10, 20, 50)
        )
        lines.append(
            f"{name:<11} median {row['median_ms']:.1f} ms, mean {row['mean_ms']:.1f}, "
            f"bias {row['bias_ms']:.1f}; {within}\n"
        )
    pairs = zip(SHARES, learnt.coverage, strict=True)
    held = ", ".join(f"of {share:.0%}: {100 * found:.1f} %" for share, found in pairs)
    lines.append(f"true boundaries within the intervals {held}\n")
    return "".join(lines)
