"""Maximum mutual information (MMI): plain, boosted, and with a teacher.

    F = log p(numerator) - log of the sum over all paths of the lattice,

where the numerator is an alignment (its acoustic score) or a numerator lattice (the sum
over its paths), and each path counts with its scaled acoustic and graph scores. Graph
scores of an alignment are a constant, and left out. The gradient to the scaled
log-likelihood of a pdf at a frame is its numerator occupancy minus its posterior in the
lattice.

A lattice has the reference words with many alignments. With one of them as the
numerator, most of what is learnt can be to prefer it to the others, as cross-entropy
does. The option `numerator: words` takes all paths with the words of the transcript: F
is then the log posterior of the words, at most 0. Where the lattice has no such path,
the alignment is the numerator.

Boosted MMI adds b times the number of its wrong frames to the score of each path of the
lattice: it asks for a margin that grows with the errors.

A lattice that lacks the reference has no path to take the probability to. It is treated
by one of three options:

* `keep`: nothing is done. F is not bounded by 0 then, and gradients of frames where the
  aligned pdf does not occur are as large as they get.
* `drop` (frame rejection; what Kaldi's recipes and PyKaldi2 do): frames at which no
  path has the aligned pdf get no gradient. F is the same number, taken as a function of
  the log-likelihoods of the other frames; those of dropped frames are constants.
  PyKaldi2 compares transition-ids (it converts to pdfs later), which drops a few frames
  more: `drop_by: transition_id`.
* `add`: where the alignment is not a path of the lattice (pdf by pdf), it is added as
  one more path, with the graph cost of the lattice's best path. F <= 0 then, and no
  frame is dropped. This is what HTK's tools do (they merge
  numerator and denominator lattices); Kaldi does not.

Kaldi's option `cancel` decides whether the numerator and the denominator weight of an
id are listed apart or as their sum. A matrix of derivatives holds the sum either way:
there is no such option here (`latflow.lattice.posteriors.mmi_posteriors` has it).

Teacher-student MMI puts a teacher's path posteriors into the numerator's place:

    F = sum over paths of P_teacher(path) * log P_student(path)

over the paths of one lattice (commonly made with the teacher's scores), P being
normalized over it. F is minus the cross-entropy of the two distributions: at most 0,
and greatest where they agree. Since a path's score is a sum over its arcs,

    F = sum over arcs of P_teacher(arc) * student's score(arc) - student's total,

and the gradient to a scaled log-likelihood is the teacher's posterior minus the
student's.

Source: Bahl et al. 1986, "Maximum mutual information estimation of hidden Markov model
parameters"; Povey et al. 2008, "Boosted MMI for model and feature-space discriminative
training"; Vesely et al. 2013, "Sequence-discriminative training of deep neural
networks"; Kaldi `lat/lattice-functions.cc` (`LatticeForwardBackwardMmi`); Wong, Gales
2016, "Sequence student-teacher training of deep neural networks"; the class
`TeacherStudent` in PyKaldi2's `ops/ops.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latflow.criteria.arc_scores import (
    add_arcs,
    alignment_score,
    frames_in_lattice,
    scored,
)
from latflow.criteria.criterion import Evaluation, PathCriterion, Utterance
from latflow.criteria.options import MmiOptions, TeacherOptions
from latflow.errors import UserError
from latflow.lattice.best_path import best_path
from latflow.lattice.discriminative import boost
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.path_sums import ForwardBackward, forward_backward
from latflow.lattice.word_paths import word_paths


class Mmi(PathCriterion):
    """MMI, in nats; see the module's description and `LatticeCriterion`.

    With a numerator lattice boosting and dropping still go by the alignment.

    Statistics: frames whose aligned pdf (or transition-id) is in the lattice, frames
    dropped; T or 0 as the numerator was added or not, and as paths with the words of
    the transcript were the numerator or not.
    """

    name = "mmi"
    statistics = (
        *("held_frames", "dropped_frames"),
        *("added_numerators", "numerators_of_words"),
    )
    options: MmiOptions

    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return the value; see `LatticeCriterion.evaluate`."""
        alignment, options, model = utterance.alignment, self.options, self.model
        boosts = self._boosts(utterance) if options.boost else None
        arcs = self.arcs(utterance, boosts)
        sums = forward_backward(arcs)
        held = frames_in_lattice(arcs, self._labels(), alignment, sums.arc_posterior)
        numerator, is_inside = utterance.numerator, False
        if numerator is None and options.numerator == "words":
            numerator = word_paths(utterance.raw, utterance.words)
            is_inside = numerator is not None
        reference = self._numerator(utterance, numerator, gradient)
        total, share = sums.log_like, 0.0
        adds = options.absent_numerator == "add" and numerator is None
        if adds and not _is_path(arcs, alignment, model.pdf, sums.arc_posterior):
            path = reference - options.lm_scale * _graph_cost(arcs, utterance.raw)
            total = float(np.logaddexp(total, path))
            share = float(np.exp(path - total))
            gradient *= 1.0 - share
        denominator = -options.acoustic_scale * (1.0 - share)
        add_arcs(arcs, sums.arc_posterior, model, denominator, gradient)
        dropped = 0
        if options.absent_numerator == "drop" and not is_inside:
            gradient[~held] = 0.0
            dropped = int(np.count_nonzero(~held))
        added, inside = len(held) * float(share > 0.0), len(held) * float(is_inside)
        values = float(held.sum()), float(dropped), added, inside
        return self.evaluation(reference - total, len(held), *values)

    def _labels(self) -> np.ndarray:
        """Return what frames are compared by, int32[ids + 1]."""
        if self.options.drop_by == "pdf":
            return self.model.pdf
        return np.arange(self.model.num_transition_ids + 1, dtype=np.int32)

    def _boosts(self, utterance: Utterance) -> np.ndarray:
        """Return what is added to the score of each arc, float64[A]."""
        lattice = utterance.raw
        free = replace(lattice, graph_cost=np.zeros(lattice.num_arcs, np.float32))
        errors = boost(
            free,
            utterance.alignment,
            self.model,
            b=1.0,
            silence_phones=self.silence_phones,
            max_silence_error=self.options.max_silence_error,
        )
        return -self.options.boost * errors.graph_cost.astype(np.float64)

    def _numerator(
        self,
        utterance: Utterance,
        numerator: Lattice | CompactLattice | None,
        gradient: np.ndarray,
    ) -> float:
        """Return the numerator's score; add its occupancies, scaled, to gradient.

        Args:
            utterance: log-likelihoods and alignment.
            numerator: the numerator lattice; None for the alignment.
            gradient: [T, P].
        """
        scale, model = self.options.acoustic_scale, self.model
        log_likes, alignment = utterance.log_likes, utterance.alignment
        if numerator is None:
            gradient[np.arange(len(alignment)), model.pdf[alignment]] += scale
            return scale * alignment_score(log_likes, alignment, model)
        arcs = scored(
            numerator,
            log_likes,
            model,
            acoustic_scale=scale,
            lm_scale=self.options.lm_scale,
        )
        sums = forward_backward(arcs)
        add_arcs(arcs, sums.arc_posterior, model, scale, gradient)
        return sums.log_like


def _graph_cost(arcs: Lattice, lattice: Lattice) -> float:
    """Return the best path's unscaled graph cost, in place of the alignment's."""
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
    """Return whether some possible path has the alignment's pdfs."""
    # Arcs that have them; is there a path over them alone?
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


class TeacherStudent(PathCriterion):
    """Teacher-student MMI, in nats, at most 0; see `LatticeCriterion`.

    Statistic: the entropy of the teacher's paths, minus the value that no student can
    exceed.
    """

    name = "teacher"
    statistics = ("teacher_entropy",)
    options: TeacherOptions

    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return the value; alignment and words are not used.

        Raises:
            UserError: see `LatticeCriterion.evaluate`.
            ValueError: there are no log-likelihoods of a teacher.
        """
        if utterance.teacher is None:
            raise ValueError("no log-likelihoods of a teacher")
        options, lattice = self.options, utterance.raw
        student, teacher = utterance.log_likes, utterance.teacher
        arcs, of_student = self._sums(lattice, student, options.acoustic_scale)
        guide, of_teacher = self._sums(lattice, teacher, options.teacher_scale)
        value = _mean_score(arcs, of_teacher) - of_student.log_like
        entropy = of_teacher.log_like - _mean_score(guide, of_teacher)
        weights = of_teacher.arc_posterior - of_student.arc_posterior
        add_arcs(arcs, weights, self.model, options.acoustic_scale, gradient)
        return self.evaluation(value, arcs.num_frames, entropy)

    def _sums(
        self, lattice: Lattice, log_likes: np.ndarray, acoustic_scale: float
    ) -> tuple[Lattice, ForwardBackward]:
        """Return the lattice with scores, and sums over its paths."""
        arcs = scored(
            lattice,
            log_likes,
            self.model,
            acoustic_scale=acoustic_scale,
            lm_scale=self.options.lm_scale,
        )
        return arcs, forward_backward(arcs)


def _mean_score(arcs: Lattice, of: ForwardBackward) -> float:
    """Compute the mean score of a path, with the posteriors of `of`."""
    score = _weighted(of.arc_posterior, arcs.graph_cost)
    return -(score + _weighted(of.final_posterior, arcs.final_graph_cost))


def _weighted(weights: np.ndarray, costs: np.ndarray) -> float:
    """Sum weights times costs, where 0 times inf is 0."""
    used = weights > 0.0
    return float(weights[used] @ costs[used])
