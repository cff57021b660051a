"""Maximum mutual information (MMI), plain and boosted.

    F = log p(numerator) - log of the sum over all paths of the lattice,

where the numerator is an alignment (its acoustic score) or a numerator lattice (the sum
over its paths), and each path counts with its scaled acoustic and graph scores. Graph
scores of an alignment are a constant, and left out. The gradient to the scaled
log-likelihood of a pdf at a frame is its numerator occupancy minus its posterior in the
lattice.

Boosted MMI adds b times the number of its wrong frames to the score of each path of the
lattice: it asks for a margin that grows with the errors.

A lattice that lacks what was said has no path to take the probability to; three ways to
treat it:

* `keep`: nothing is done. F is not bounded by 0 then, and gradients of frames where the
  said pdf does not occur are as large as they get.
* `drop` (frame rejection; what Kaldi's recipes and PyKaldi2 do): frames at which no
  path has the said pdf get no gradient. F is the same number, taken as a function of
  the log-likelihoods of the other frames; those of dropped frames are constants.
  PyKaldi2 compares transition-ids (it converts to pdfs later), which drops a few frames
  more: `drop_by: transition_id`.
* `add`: where the alignment is not a path of the lattice (pdf by pdf), it is added as
  one more path. It gets the graph cost of the lattice's best path, unless its own is
  given. F <= 0 then, and no frame is dropped. This is what HTK's tools do (they merge
  numerator and denominator lattices); Kaldi does not.

Kaldi's option `cancel` decides whether the numerator and the denominator weight of an
id are listed apart or as their sum. A matrix of derivatives holds the sum either way:
there is no such option here (`latflow.lattice.posteriors.mmi_posteriors` has it).

Public: `MmiOptions`, `evaluate_mmi`, `mmi`.

Source: Bahl et al. 1986, "Maximum mutual information estimation of hidden Markov model
parameters"; Povey et al. 2008, "Boosted MMI for model and feature-space discriminative
training"; Vesely et al. 2013, "Sequence-discriminative training of deep neural
networks"; Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackwardMmi`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from latflow.criteria.evaluation import (
    Evaluation,
    add_arcs,
    alignment_score,
    held_frames,
    raw_lattice,
    scored,
)
from latflow.criteria.function import CriterionResult, differentiable
from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.best_path import best_path
from latflow.lattice.boost import boost
from latflow.lattice.compact import CompactLattice
from latflow.lattice.forward_backward import forward_backward
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import check_alignment

STATISTICS = ("held_frames", "dropped_frames", "added_numerators")


@dataclass(frozen=True)
class MmiOptions:
    """How MMI is computed.

    Attributes:
        acoustic_scale: factor on log-likelihoods.
        lm_scale: factor on graph costs.
        boost: b, in nats for a wrong frame of a path; 0 = plain MMI. Not scaled.
        max_silence_error: share of b for wrong frames that are silence in the lattice.
        silence_phones: phone ids, for `max_silence_error`.
        absent: what is done where the lattice lacks the alignment, see above.
        drop_by: what `absent="drop"` compares.
    """

    acoustic_scale: float = 0.1
    lm_scale: float = 1.0
    boost: float = 0.0
    max_silence_error: float = 0.0
    silence_phones: Sequence[int] = ()
    absent: Literal["keep", "drop", "add"] = "drop"
    drop_by: Literal["pdf", "transition_id"] = "pdf"


def mmi(
    log_likes: Tensor,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MmiOptions,
    *,
    numerator: Lattice | CompactLattice | None = None,
) -> CriterionResult:
    """MMI of one utterance, differentiable; see `evaluate_mmi`.

    Args:
        log_likes: [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: see there.
        numerator: a lattice of what was said, in place of the alignment.
    """
    return differentiable(
        lambda scores: evaluate_mmi(
            scores, lattice, alignment, model, options, numerator=numerator
        ),
        log_likes,
    )


def evaluate_mmi(
    log_likes: np.ndarray,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MmiOptions,
    *,
    numerator: Lattice | CompactLattice | None = None,
    numerator_graph_cost: float | None = None,
    gradient: np.ndarray | None = None,
) -> Evaluation:
    """Value and gradient of MMI.

    Args:
        log_likes: float32 or float64 [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T]; with `numerator`, it is
            still what boosting and dropping go by.
        model: what they mean.
        options: scales and so on.
        numerator: a lattice of what was said, in place of the alignment.
        numerator_graph_cost: unscaled, of the alignment, for `absent="add"`.
        gradient: [T, P] zeros of the type of `log_likes`, to be filled; made if None.

    Returns:
        The value in nats, its gradient, and as statistics the frames whose said pdf (or
        transition-id) is in the lattice, dropped frames, and whether the numerator was
        added, as T or 0 frames.

    Raises:
        UserError: the lattice has no path, scores are NaN, or sizes differ.
    """
    lattice = raw_lattice(lattice)
    check_alignment(lattice, alignment, model)
    extra = _boosts(lattice, alignment, model, options) if options.boost else None
    scales = {"acoustic_scale": options.acoustic_scale, "lm_scale": options.lm_scale}
    arcs = scored(lattice, log_likes, model, **scales, extra=extra)
    sums = forward_backward(arcs)
    labels = _labels(options, model)
    held = held_frames(arcs, sums.arc_posterior, labels, alignment)
    gradient = np.zeros_like(log_likes) if gradient is None else gradient
    said = _numerator(log_likes, alignment, numerator, model, options, gradient)
    total, share = sums.log_like, 0.0
    adds = options.absent == "add" and numerator is None
    if adds and not _is_path(arcs, alignment, model.pdf, sums.arc_posterior):
        cost = (
            _graph_cost(arcs, lattice)
            if numerator_graph_cost is None
            else (numerator_graph_cost)
        )
        path = said - options.lm_scale * cost
        total = float(np.logaddexp(total, path))
        share = float(np.exp(path - total))
        gradient *= 1.0 - share
    denominator = -options.acoustic_scale * (1.0 - share)
    add_arcs(arcs, sums.arc_posterior, model, denominator, gradient)
    dropped = 0
    if options.absent == "drop":
        gradient[~held] = 0.0
        dropped = int(np.count_nonzero(~held))
    values = float(held.sum()), float(dropped), len(held) * float(share > 0.0)
    return Evaluation(
        said - total, gradient, len(held), dict(zip(STATISTICS, values, strict=True))
    )


def _labels(options: MmiOptions, model: TransitionModel) -> np.ndarray:
    """What frames are compared by, int32[ids + 1]."""
    if options.drop_by == "pdf":
        return model.pdf
    return np.arange(model.num_transition_ids + 1, dtype=np.int32)


def _boosts(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MmiOptions,
) -> np.ndarray:
    """What is added to the score of each arc, float64[A]."""
    free = replace(lattice, graph_cost=np.zeros(lattice.num_arcs, np.float32))
    errors = boost(
        free,
        alignment,
        model,
        b=1.0,
        silence_phones=options.silence_phones,
        max_silence_error=options.max_silence_error,
    )
    return -options.boost * errors.graph_cost.astype(np.float64)


def _numerator(
    log_likes: np.ndarray,
    alignment: np.ndarray,
    numerator: Lattice | CompactLattice | None,
    model: TransitionModel,
    options: MmiOptions,
    gradient: np.ndarray,
) -> float:
    """Score of the numerator; adds its occupancies, scaled, to the gradient."""
    scale = options.acoustic_scale
    if numerator is None:
        gradient[np.arange(len(alignment)), model.pdf[alignment]] += scale
        return scale * alignment_score(log_likes, alignment, model)
    arcs = scored(
        numerator, log_likes, model, acoustic_scale=scale, lm_scale=options.lm_scale
    )
    sums = forward_backward(arcs)
    add_arcs(arcs, sums.arc_posterior, model, scale, gradient)
    return sums.log_like


def _graph_cost(arcs: Lattice, lattice: Lattice) -> float:
    """Unscaled graph cost of the best path, a stand-in for the alignment's."""
    # Costs of `arcs` lead the search, those of the lattice are summed along its path.
    path = best_path(
        replace(
            lattice,
            acoustic_cost=arcs.graph_cost,
            final_acoustic_cost=arcs.final_graph_cost,
        ),
        lm_scale=0.0,
    )
    return path.graph_cost


def _is_path(
    lattice: Lattice, alignment: np.ndarray, pdf: np.ndarray, posterior: np.ndarray
) -> bool:
    """Whether some possible path has the alignment's pdfs."""
    # Arcs that have them; is there a way over them alone?
    source = lattice.source()
    frame = np.minimum(lattice.frame[source], lattice.num_frames - 1)
    fits = pdf[lattice.transition_id] == pdf[alignment[frame]]
    usable = ((lattice.transition_id == 0) | fits) & (posterior > 0.0)
    cost = np.where(usable, 0.0, np.inf)
    final = np.where(lattice.final_graph_cost < np.inf, 0.0, np.inf)
    try:
        forward_backward(replace(lattice, graph_cost=cost, final_graph_cost=final))
    except UserError:
        return False
    return True
