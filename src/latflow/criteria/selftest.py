"""Proofs of the criteria that anyone can run in seconds: `latflow selftest`.

Small random lattices with parallel arcs, arcs without a frame, dead ends and several
final states; for each criterion

* `paths`: value and gradient against all paths, one by one, with torch's derivatives;
* `differences`: the gradient against central differences of the value;
* `network`: derivative to a small network's parameters, along random directions,
  against central differences through the network;
* `incoming`: an incoming gradient of 3.7 gives 3.7 times the gradient.

Public: `run`, `Proof`, `CASES`, `LIMITS`; the command: `latflow.criteria.commands`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.enumeration import (
    list_paths,
    naive_mbr,
    naive_mmi,
    naive_mpe,
    naive_mwe,
    naive_teacher,
)
from latflow.criteria.mbr import MbrOptions, mbr
from latflow.criteria.mmi import MmiOptions, mmi
from latflow.criteria.mpe import MpeOptions, mpe
from latflow.criteria.mwe import MweOptions, mwe
from latflow.criteria.teacher import TeacherOptions, teacher_student
from latflow.errors import UserError
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lattice.lattice import Lattice

_SILENCE = (1,)
_FACTOR = 3.7
_STEP = 1e-4
#: Greatest deviation that passes: rounding of float64, or that of differences of it.
LIMITS = {"paths": 1e-9, "differences": 1e-6, "network": 1e-6, "incoming": 1e-12}


class Task(NamedTuple):
    """What a criterion is tried on.

    Attributes:
        model: silence and two phones.
        lattice: T frames.
        alignment: int32[T].
        words: int32[N].
        log_likes: float64 [T, P].
        teacher: float64 [T, P].
    """

    model: TransitionModel
    lattice: Lattice
    alignment: np.ndarray
    words: np.ndarray
    log_likes: Tensor
    teacher: Tensor


class Case(NamedTuple):
    """A criterion with options.

    Attributes:
        ours: from scores to a scalar.
        naive: its plain twin.
        drops: whether frames can be dropped; these are constants then.
    """

    ours: Callable[[Tensor, Task], Tensor]
    naive: Callable[[Tensor, Task], Tensor]
    drops: bool = False


def _mmi(**options: Any) -> Case:
    chosen = MmiOptions(acoustic_scale=0.5, silence_phones=_SILENCE, **options)
    return Case(
        lambda x, k: mmi(x, k.lattice, k.alignment, k.model, chosen).objective,
        lambda x, k: naive_mmi(x, k.lattice, k.alignment, k.model, chosen),
        chosen.absent == "drop",
    )


def _mbr(criterion: Any, **options: Any) -> Case:
    chosen = MbrOptions(criterion, _SILENCE, acoustic_scale=0.5, **options)
    return Case(
        lambda x, k: mbr(x, k.lattice, k.alignment, k.model, chosen).objective,
        lambda x, k: naive_mbr(x, k.lattice, k.alignment, k.model, chosen),
    )


def _mpe(**options: Any) -> Case:
    chosen = MpeOptions(_SILENCE, acoustic_scale=0.5, **options)
    return Case(
        lambda x, k: mpe(x, k.lattice, k.alignment, k.model, chosen).objective,
        lambda x, k: naive_mpe(x, k.lattice, k.alignment, k.model, chosen),
    )


def _mwe() -> Case:
    chosen = MweOptions(num_paths=4, acoustic_scale=0.5)
    return Case(
        lambda x, k: mwe(x, k.lattice, k.alignment, k.words, k.model, chosen).objective,
        lambda x, k: naive_mwe(x, k.lattice, k.words.tolist(), k.model, chosen),
    )


def _teacher() -> Case:
    chosen = TeacherOptions(acoustic_scale=0.5, teacher_scale=0.3, lm_scale=0.7)
    return Case(
        lambda x, k: (
            teacher_student(x, k.teacher, k.lattice, k.model, chosen).objective
        ),
        lambda x, k: naive_teacher(x, k.teacher, k.lattice, k.model, chosen),
    )


#: Name -> criterion and options.
CASES: dict[str, Case] = {
    "mmi": _mmi(absent="keep", lm_scale=0.8),
    "mmi, frames dropped": _mmi(absent="drop"),
    "mmi, by transition-id": _mmi(absent="drop", drop_by="transition_id"),
    "mmi, numerator added": _mmi(absent="add"),
    "mmi, boosted": _mmi(absent="keep", boost=0.3, max_silence_error=0.5),
    "smbr": _mbr("smbr"),
    "smbr, silence is wrong": _mbr("smbr", one_silence_class=False),
    "mpfe": _mbr("mpfe", lm_scale=0.8),
    "phone_mpe": _mpe(lm_scale=0.8),
    "phone_mpe, with silence": _mpe(ignore_silence=False),
    "mwe": _mwe(),
    "teacher": _teacher(),
}


@dataclass(frozen=True)
class Proof:
    """The outcome of a proof.

    Attributes:
        case: of `CASES`.
        proof: of `LIMITS`.
        deviation: the greatest, over all trials; NaN if something was no number.
        trials: lattices tried.
    """

    case: str
    proof: str
    deviation: float
    trials: int

    @property
    def holds(self) -> bool:
        """Whether the deviation is within the limit."""
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
    tasks = [make_task(seed) for seed in range(trials)]
    proofs = {
        "paths": _against_paths,
        "differences": _against_differences,
        "network": _through_network,
        "incoming": _incoming,
    }
    for name in chosen:
        for proof, deviation in proofs.items():
            found = [deviation(CASES[name], task) for task in tasks]
            worst = float(np.max(found))  # NaN stays NaN
            yield Proof(name, proof, worst, trials)


def make_task(seed: int) -> Task:
    """A lattice with at least three paths, and scores."""
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
        model,
        lattice,
        alignment,
        rng.integers(1, 3, 2).astype(np.int32),
        torch.from_numpy(rng.normal(size=shape)),
        torch.from_numpy(rng.normal(size=shape)),
    )


def random_lattice(
    rng: np.random.Generator, num_frames: int, num_ids: int, *, width: int = 3
) -> Lattice:
    """A small lattice; a path through it is likely, but not sure.

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
    """Silence (1) of one state; phones 2 and 3 of two states, of which they share."""
    topology = Topology.standard([2, 3], _SILENCE, 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    return TransitionModel.from_tree(tree, topology)


def _value_and_gradient(
    function: Callable[[Tensor, Task], Tensor], task: Task
) -> tuple[float, Tensor]:
    """A function's value and torch's derivative."""
    scores = task.log_likes.clone().requires_grad_()
    value = function(scores, task)
    (gradient,) = torch.autograd.grad(value, scores)
    return value.item(), gradient


def _against_paths(case: Case, task: Task) -> float:
    """Deviation of value and gradient from those over paths."""
    value, gradient = _value_and_gradient(case.ours, task)
    expected, derivative = _value_and_gradient(case.naive, task)
    return max(abs(value - expected), float((gradient - derivative).abs().max()))


def _against_differences(case: Case, task: Task) -> float:
    """Deviation of the gradient from central differences of the value."""
    _, gradient = _value_and_gradient(case.ours, task)
    worst = 0.0
    for t in torch.nonzero(~_constants(case, gradient)).flatten().tolist():
        for p in range(gradient.shape[1]):
            values = []
            for step in (_STEP, -_STEP):
                moved = task.log_likes.clone()
                moved[t, p] += step
                values.append(float(case.ours(moved, task)))
            slope = (values[0] - values[1]) / (2.0 * _STEP)
            worst = max(worst, abs(slope - float(gradient[t, p])))
    return worst


def _constants(case: Case, gradient: Tensor) -> Tensor:
    """Frames that are dropped, bool [T]: what they score is a constant."""
    return (gradient.abs().sum(1) == 0.0) & case.drops


def _through_network(case: Case, task: Task) -> float:
    """Deviation of derivatives along random directions of a network's parameters."""
    generator = torch.Generator().manual_seed(5)
    num_frames, num_pdfs = task.log_likes.shape
    inputs = torch.randn(num_frames, 3, generator=generator, dtype=torch.float64)
    weights = [
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 6), (6, num_pdfs))
    ]
    _, gradient = _value_and_gradient(case.ours, task)
    dropped = _constants(case, gradient).unsqueeze(1)

    def objective(parameters: list[Tensor]) -> Tensor:
        hidden = torch.tanh(inputs @ parameters[0])
        scores = torch.log_softmax(hidden @ parameters[1], 1) + task.log_likes
        return case.ours(torch.where(dropped, task.log_likes, scores), task)

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


def _incoming(case: Case, task: Task) -> float:
    """Deviation of the gradient for an incoming gradient."""
    _, gradient = _value_and_gradient(case.ours, task)
    scores = task.log_likes.clone().requires_grad_()
    case.ours(scores, task).backward(torch.tensor(_FACTOR, dtype=torch.float64))
    if scores.grad is None:
        return float("nan")
    return float((scores.grad - _FACTOR * gradient).abs().max())
