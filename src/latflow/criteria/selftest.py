"""Proofs of the criteria that anyone can run in seconds: `latflow selftest`.

Small random lattices with parallel arcs, arcs without a frame, dead ends and several
final states; for LF-MMI a batch of a small random denominator and supervisions, one of
them cyclic; for each criterion

* `paths`: value and gradient against all paths, one by one, with torch's derivatives;
* `differences`: the gradient against central differences of the value;
* `network`: derivative to a small network's parameters, along random directions,
  against central differences through the network;
* `incoming`: an incoming gradient of 3.7 gives 3.7 times the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.denominator import Denominator
from latflow.criteria.enumeration import (
    lfmmi_over_paths,
    list_paths,
    value_over_paths,
)
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.options import (
    CriterionOptions,
    LfmmiOptions,
    MbrOptions,
    MmiOptions,
    MweOptions,
    PhoneMpeOptions,
    TeacherOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lattice.lattice import Lattice

_SILENCE = (1,)
_FACTOR = 3.7
_STEP = 1e-4
#: Greatest deviation that passes: rounding of float64, or that of differences of it.
LIMITS = {"paths": 1e-9, "differences": 1e-6, "network": 1e-6, "incoming": 1e-12}


class Trial(NamedTuple):
    """A function of scores, and what it is held to.

    Attributes:
        scores: float64 [T, P], where it is tried.
        value: the criterion, differentiable.
        over_paths: the same, path by path.
        constants: bool [T], frames that it gives no gradient though its value depends
            on them.
    """

    scores: Tensor
    value: Callable[[Tensor], Tensor]
    over_paths: Callable[[Tensor], Tensor]
    constants: Tensor


class Task(NamedTuple):
    """Lattice, reference and scores that a criterion is tried on.

    Attributes:
        lattice: T frames.
        alignment: int32[T].
        words: int32[N].
        log_likes: float64 [T, P].
        teacher: float64 [T, P].
    """

    lattice: Lattice
    alignment: np.ndarray
    words: np.ndarray
    log_likes: Tensor
    teacher: Tensor


#: Name -> options of the criterion.
CASES: dict[str, CriterionOptions | LfmmiOptions] = {
    "mmi": MmiOptions(acoustic_scale=0.5, absent_numerator="keep", lm_scale=0.8),
    "mmi, frames dropped": MmiOptions(acoustic_scale=0.5),
    "mmi, by transition-id": MmiOptions(acoustic_scale=0.5, drop_by="transition_id"),
    "mmi, numerator added": MmiOptions(acoustic_scale=0.5, absent_numerator="add"),
    "mmi, boosted": MmiOptions(
        acoustic_scale=0.5, absent_numerator="keep", boost=0.3, max_silence_error=0.5
    ),
    "mmi, of words": MmiOptions(acoustic_scale=0.5, numerator="words", lm_scale=0.8),
    "smbr": MbrOptions(type="smbr", acoustic_scale=0.5),
    "smbr, silence is wrong": MbrOptions(
        type="smbr", acoustic_scale=0.5, one_silence_class=False
    ),
    "mpfe": MbrOptions(type="mpfe", acoustic_scale=0.5, lm_scale=0.8),
    "phone_mpe": PhoneMpeOptions(acoustic_scale=0.5, lm_scale=0.8),
    "phone_mpe, with silence": PhoneMpeOptions(
        acoustic_scale=0.5, ignore_silence=False
    ),
    "mwe": MweOptions(num_paths=4, acoustic_scale=0.5),
    "teacher": TeacherOptions(
        teacher="any", acoustic_scale=0.5, teacher_scale=0.3, lm_scale=0.7
    ),
    "lfmmi": LfmmiOptions(),
    "lfmmi, does not leak": LfmmiOptions(leaky_hmm=0.0),
    "lfmmi, with penalties": LfmmiOptions(l2=0.1, out_of_range=0.5),
}


@dataclass(frozen=True)
class Proof:
    """The result of a proof.

    Attributes:
        case: of `CASES`.
        proof: of `LIMITS`.
        deviation: the greatest, over all trials; NaN if anything was.
        trials: lattices tried.
    """

    case: str
    proof: str
    deviation: float
    trials: int

    @property
    def holds(self) -> bool:
        """Return whether the deviation is within the limit."""
        return self.deviation <= LIMITS[self.proof]


def run(criterion: str | None = None, *, trials: int = 5) -> Iterator[Proof]:
    """Run the proofs.

    Args:
        criterion: those whose name begins so; None for all.
        trials: lattices of each proof.

    Raises:
        UserError: there is no such criterion.
    """
    chosen = [name for name in CASES if name.startswith(criterion or "")]
    if not chosen:
        raise UserError(
            f"no criterion {criterion}", remedy=f"choose one of: {'; '.join(CASES)}"
        )
    proofs: dict[str, Callable[[Trial], float]] = {
        "paths": _against_paths,
        "differences": _against_differences,
        "network": _through_network,
        "incoming": _incoming,
    }
    for name in chosen:
        made = [_make_trial(CASES[name], seed) for seed in range(trials)]
        for proof, deviation in proofs.items():
            worst = float(np.max([deviation(trial) for trial in made]))  # NaN stays NaN
            yield Proof(name, proof, worst, trials)


def make_task(seed: int) -> Task:
    """Make a lattice with at least three paths, and scores."""
    model = _model()
    rng = np.random.default_rng([seed, 17])
    while True:
        lattice = random_lattice(rng, 4, model.num_transition_ids)
        paths = list_paths(lattice)
        if len(paths) >= 3:
            break
    shape = lattice.num_frames, model.num_pdfs
    alignment = np.array(paths[int(rng.integers(len(paths)))].ids, np.int32)
    for t in np.flatnonzero(rng.random(len(alignment)) < 0.3):
        alignment[t] = rng.integers(1, model.num_transition_ids + 1)
    return Task(
        lattice,
        alignment,
        rng.integers(1, 3, 2).astype(np.int32),
        torch.from_numpy(rng.normal(size=shape)),
        torch.from_numpy(rng.normal(size=shape)),
    )


def random_lattice(
    rng: np.random.Generator, num_frames: int, num_ids: int, *, width: int = 3
) -> Lattice:
    """Make a small lattice; a path through it is likely, but not sure.

    Args:
        rng: where chance comes from.
        num_frames: T.
        num_ids: transition-ids are 1 ... num_ids.
        width: states at a frame, at most.
    """
    sizes = [1, *rng.integers(1, width + 1, num_frames).tolist()]
    first = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    arcs: list[tuple[int, int, int, int]] = []
    for t, size in enumerate(sizes):
        for state in range(first[t], first[t] + size):
            if t < num_frames:
                for target in rng.integers(
                    first[t + 1], first[t + 2], 3 if t == 0 else rng.integers(0, 4)
                ):
                    id_ = int(rng.integers(1, num_ids + 1))
                    arcs.append((state, int(target), id_, int(rng.integers(3))))
            if state + 1 < first[t] + size and rng.random() < 0.4:
                arcs.append((state, state + 1, 0, int(rng.integers(3))))
    table = np.array(arcs, np.int32)
    costs = rng.normal(size=(len(table), 2)).astype(np.float32)
    finals = np.full((first[-1], 2), np.inf, np.float32)
    finals[first[-2] :] = rng.normal(size=(sizes[-1], 2))
    return Lattice.from_arcs(table, costs, finals)


def _model() -> TransitionModel:
    """Make a model: silence (1) of one state; phones 2 and 3 share two states."""
    topology = Topology.standard([2, 3], _SILENCE, 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    return TransitionModel.from_tree(tree, topology)


def _make_trial(options: CriterionOptions | LfmmiOptions, seed: int) -> Trial:
    if isinstance(options, LfmmiOptions):
        return _make_lfmmi_trial(options, seed)
    task = make_task(seed)
    criterion = make_criterion(options, _model(), _SILENCE)
    given = task.lattice, task.alignment

    def value(scores: Tensor) -> Tensor:
        return criterion(scores, *given, task.words, teacher=task.teacher.numpy())

    def over_paths(scores: Tensor) -> Tensor:
        words = task.words.tolist()
        return value_over_paths(criterion, scores, *given, words, teacher=task.teacher)

    trial = Trial(task.log_likes, value, over_paths, torch.zeros(0))
    drops = getattr(options, "absent_numerator", None) == "drop"
    is_still = _gradient(trial)[1].abs().sum(1) == 0.0
    return trial._replace(constants=is_still & drops)


def _make_lfmmi_trial(options: LfmmiOptions, seed: int) -> Trial:
    """Make a trial of LF-MMI; the scores are those of two sequences, one after another.

    The sequences have 3 and 2 frames, the second a cyclic supervision.
    """
    rng = np.random.default_rng([seed, 18])
    lengths, num_pdfs = [3, 2], 3
    graph = _random_graph(rng, [(0, 1), (1, 2), (2, 0), (1, 1), (2, 1)], num_pdfs)
    initial = rng.dirichlet(np.ones(3))
    acyclic = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3), (3, 4)]
    supervisions = [
        _random_graph(rng, acyclic, num_pdfs),
        _random_graph(rng, [(0, 0), (0, 1), (1, 1), (1, 0)], num_pdfs),
    ]
    denominator = Denominator(graph, initial, num_pdfs)
    weights = torch.from_numpy(rng.uniform(0.5, 2.0, 2))

    def value(scores: Tensor) -> Tensor:
        batch = torch.nn.utils.rnn.pad_sequence(
            list(scores.split(lengths)), batch_first=True
        )
        return evaluate_lfmmi(
            batch, supervisions, denominator, options, weights, lengths=lengths
        ).value.sum()

    def over_paths(scores: Tensor) -> Tensor:
        values = [
            lfmmi_over_paths(part, supervision, graph, initial, options, float(weight))
            for part, supervision, weight in zip(
                scores.split(lengths), supervisions, weights, strict=True
            )
        ]
        return torch.stack(values).sum()

    scores = torch.from_numpy(rng.normal(size=(sum(lengths), num_pdfs)))
    scores[0, 0], scores[4, 1] = 31.0, -31.0  # out of range
    return Trial(scores, value, over_paths, torch.zeros(sum(lengths), dtype=torch.bool))


def _random_graph(
    rng: np.random.Generator, pairs: list[tuple[int, int]], num_pdfs: int
) -> Graph:
    """Make a graph of arcs between pairs of states; the last state is final."""
    source, target = np.array(pairs, np.int32).T
    arcs = np.empty(len(pairs), ARC)
    arcs["ilabel"] = arcs["olabel"] = rng.integers(1, num_pdfs + 1, len(pairs))
    arcs["weight"], arcs["next_state"] = rng.normal(size=len(pairs)), target
    final = np.full(int(target.max()) + 1, np.inf, np.float32)
    final[-1] = rng.normal()
    return Graph.from_arc_list(0, source, arcs, final)


def _gradient(trial: Trial) -> tuple[float, Tensor]:
    """Compute the criterion's value, and the derivative that torch gets."""
    scores = trial.scores.clone().requires_grad_()
    value = trial.value(scores)
    (gradient,) = torch.autograd.grad(value, scores)
    return value.item(), gradient


def _against_paths(trial: Trial) -> float:
    """Return the deviation of value and gradient from those over paths."""
    value, gradient = _gradient(trial)
    scores = trial.scores.clone().requires_grad_()
    expected = trial.over_paths(scores)
    (derivative,) = torch.autograd.grad(expected, scores)
    worst = float((gradient - derivative).abs().max())
    return max(abs(value - expected.item()), worst)


def _against_differences(trial: Trial) -> float:
    """Return the gradient's deviation from central differences of the value."""
    _, gradient = _gradient(trial)
    worst = 0.0
    for t in torch.nonzero(~trial.constants).flatten().tolist():
        for p in range(gradient.shape[1]):
            values = []
            for step in (_STEP, -_STEP):
                moved = trial.scores.clone()
                moved[t, p] += step
                values.append(float(trial.value(moved)))
            slope = (values[0] - values[1]) / (2.0 * _STEP)
            worst = max(worst, abs(slope - float(gradient[t, p])))
    return worst


def _through_network(trial: Trial) -> float:
    """Return the deviation along random directions of a network's parameters."""
    generator = torch.Generator().manual_seed(5)
    num_frames, num_pdfs = trial.scores.shape
    inputs = torch.randn(num_frames, 3, generator=generator, dtype=torch.float64)
    weights = [
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 6), (6, num_pdfs))
    ]
    dropped = trial.constants.unsqueeze(1)

    def objective(parameters: list[Tensor]) -> Tensor:
        hidden = torch.tanh(inputs @ parameters[0])
        scores = torch.log_softmax(hidden @ parameters[1], 1) + trial.scores
        return trial.value(torch.where(dropped, trial.scores, scores))

    leaves = [weight.clone().requires_grad_() for weight in weights]
    derivative = torch.autograd.grad(objective(leaves), leaves)
    worst = 0.0
    for _ in range(3):
        direction = [
            torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights
        ]
        ends = []
        for step in (_STEP, -_STEP):
            moved = [w + step * d for w, d in zip(weights, direction, strict=True)]
            ends.append(float(objective(moved)))
        slope = (ends[0] - ends[1]) / (2.0 * _STEP)
        pairs = zip(derivative, direction, strict=True)
        ours = sum(float((g * d).sum()) for g, d in pairs)
        worst = max(worst, abs(slope - ours))
    return worst


def _incoming(trial: Trial) -> float:
    """Return the deviation of the gradient for an incoming gradient."""
    _, gradient = _gradient(trial)
    scores = trial.scores.clone().requires_grad_()
    value = trial.value(scores)
    value.backward(torch.tensor(_FACTOR, dtype=torch.float64))
    if scores.grad is None:
        return float("nan")
    return float((scores.grad - _FACTOR * gradient).abs().max())
