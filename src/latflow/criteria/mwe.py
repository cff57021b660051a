"""Minimum word error (MWE) over a list of paths of the lattice.

    F = - sum over the list of p(path) * word errors(path),
    p(path) = exp(score of the path) / sum of the same over the list,

the expected number of word errors, negated so that it is maximised like all criteria
here. The list is either the n best distinct word sequences, each by its best path, or
paths drawn by their posterior (equal ones once). It is a constant: value and gradient
are those of this list, the gradient to the score of a path being

    p(path) * (expected errors - errors(path)).

With `unit: phone` errors are counted on the phones of the paths (silence left out)
against those of the alignment.

PyKaldi2's option `equal_weight` (drawn paths that all count the same) is not offered:
its value does not depend on the scores, and what it trains by is the gradient of
another function.

Public: `MweOptions`, `evaluate_mwe`, `mwe`, `PathList`, `paths_of`.

Source: Povey, Woodland 2002, "Minimum phone error and I-smoothing" (MWE); Shannon 2017,
"Optimizing expected word error rate via sampling for speech recognition"; Prabhavalkar
et al. 2018, "Minimum word error rate training for attention-based
sequence-to-sequence models" (n-best lists).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from latflow.criteria.evaluation import Evaluation, raw_lattice, scored
from latflow.criteria.function import CriterionResult, differentiable
from latflow.criteria.phone_arcs import phones_of_alignment
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import BestPath, Lattice
from latflow.lattice.n_best import n_best, random_paths
from latflow.lattice.posteriors import check_alignment
from latflow.scoring.alignment import CORRECT, align_ids

STATISTICS = ("word_errors", "reference_words", "paths")


@dataclass(frozen=True)
class MweOptions:
    """How expected word errors are computed.

    Attributes:
        num_paths: n.
        draw: "best" = the n best word sequences, "random" = n drawn paths.
        unit: what errors are counted on.
        silence_phones: phone ids that do not count as phones.
        acoustic_scale: factor on log-likelihoods.
        lm_scale: factor on graph costs.
        seed: of random paths, with the alignment.
    """

    num_paths: int = 10
    draw: Literal["best", "random"] = "best"
    unit: Literal["word", "phone"] = "word"
    silence_phones: Sequence[int] = ()
    acoustic_scale: float = 0.1
    lm_scale: float = 1.0
    seed: int = 0


class PathList(NamedTuple):
    """What the expectation runs over; N paths.

    Attributes:
        pdfs: int32 [N, T].
        graph_score: float64 [N], scaled.
        errors: float64 [N].
        num_words: of the reference.
    """

    pdfs: np.ndarray
    graph_score: np.ndarray
    errors: np.ndarray
    num_words: int


def mwe(
    log_likes: Tensor,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    words: np.ndarray,
    model: TransitionModel,
    options: MweOptions,
) -> CriterionResult:
    """MWE of one utterance, differentiable; see `evaluate_mwe`.

    Args:
        log_likes: [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        words: word ids of what was said, int32[N].
        model: what transition-ids mean.
        options: see there.
    """
    return differentiable(
        lambda scores: evaluate_mwe(scores, lattice, alignment, words, model, options),
        log_likes,
    )


def evaluate_mwe(
    log_likes: np.ndarray,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    words: np.ndarray,
    model: TransitionModel,
    options: MweOptions,
    *,
    paths: PathList | None = None,
    gradient: np.ndarray | None = None,
) -> Evaluation:
    """Value and gradient of MWE.

    Args:
        log_likes: float32 or float64 [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T]; of use for phones.
        words: word ids of what was said, int32[N]; of use for words.
        model: what transition-ids mean.
        options: scales and so on.
        paths: the list; found in the lattice if None.
        gradient: [T, P] zeros of the type of `log_likes`, to be filled; made if None.

    Returns:
        Minus the expected errors, its gradient, and as statistics the expected errors,
        words (or phones) of the reference and paths of the list.

    Raises:
        UserError: the lattice has no path, scores are NaN, or sizes differ.
    """
    if paths is None:
        paths = paths_of(log_likes, lattice, alignment, words, model, options)
    rows = np.arange(paths.pdfs.shape[1])
    acoustic = log_likes[rows, paths.pdfs].sum(axis=1, dtype=np.float64)
    score = options.acoustic_scale * acoustic + paths.graph_score
    share = np.exp(score - score.max())
    share /= share.sum()
    expected = float(share @ paths.errors)
    weight = options.acoustic_scale * share * (expected - paths.errors)
    sums = np.zeros(log_likes.shape)
    for pdfs, of_path in zip(paths.pdfs, weight, strict=True):
        sums[rows, pdfs] += of_path
    gradient = np.zeros_like(log_likes) if gradient is None else gradient
    gradient += sums
    values = expected, float(paths.num_words), float(len(paths.errors))
    statistics: dict[str, float] = dict(zip(STATISTICS, values, strict=True))
    return Evaluation(-expected, gradient, len(rows), statistics)


def paths_of(
    log_likes: np.ndarray,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    words: np.ndarray,
    model: TransitionModel,
    options: MweOptions,
) -> PathList:
    """Pick paths of the lattice and count their errors; see `evaluate_mwe`.

    Args:
        log_likes: float32 or float64 [T, P].
        lattice: of T frames.
        alignment: transition-ids of what was said.
        words: word ids of what was said.
        model: what transition-ids mean.
        options: how many, and so on.
    """
    lattice = raw_lattice(lattice)
    check_alignment(lattice, alignment, model)
    arcs = scored(
        lattice,
        log_likes,
        model,
        acoustic_scale=options.acoustic_scale,
        lm_scale=options.lm_scale,
    )
    if options.draw == "best":
        found = n_best(arcs, options.num_paths)
    else:
        key = zlib.crc32(np.ascontiguousarray(alignment, np.int32).tobytes())
        generator = np.random.default_rng([options.seed, key])
        drawn = random_paths(arcs, options.num_paths, generator)
        found = list({_identity(path): path for path in drawn}.values())
    pdfs = np.stack([model.pdf[path.transition_ids] for path in found])
    rows = np.arange(pdfs.shape[1])
    acoustic = log_likes[rows, pdfs].sum(axis=1, dtype=np.float64)
    cost = np.array([path.graph_cost for path in found])  # scaled, acoustics included
    return PathList(
        pdfs,
        -cost - options.acoustic_scale * acoustic,
        *_errors(found, alignment, words, model, options),
    )


def _identity(path: BestPath) -> tuple[bytes, bytes]:
    """What tells drawn paths apart."""
    return path.words.tobytes(), path.transition_ids.tobytes()


def _errors(
    paths: Sequence[BestPath],
    alignment: np.ndarray,
    words: np.ndarray,
    model: TransitionModel,
    options: MweOptions,
) -> tuple[np.ndarray, int]:
    """Errors of each path, float64 [N], and units of the reference."""
    if options.unit == "word":
        said, heard = np.asarray(words, np.int32), [path.words for path in paths]
    else:
        said = _phones(alignment, model, options)
        heard = [_phones(path.transition_ids, model, options) for path in paths]
    errors = [np.count_nonzero(align_ids(said, each) != CORRECT) for each in heard]
    return np.array(errors, np.float64), len(said)


def _phones(ids: np.ndarray, model: TransitionModel, options: MweOptions) -> np.ndarray:
    """Phones of a path without silence, int32[N]."""
    phones = phones_of_alignment(ids, model)[0]
    return phones[~np.isin(phones, list(options.silence_phones))]
