"""The criteria path by path: slow, plain, and independent.

All paths of a small lattice (LF-MMI: graph) are listed; each criterion is written down
as its formula says, over paths, in torch. Its values check those of the kernels,
torch's own derivatives their gradients. For `latflow selftest` and the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.criterion import LatticeCriterion
from latflow.criteria.mmi import Mmi, TeacherStudent
from latflow.criteria.mpe import Mbr, PhoneMpe
from latflow.criteria.mwe import Mwe
from latflow.criteria.options import LfmmiOptions
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.lattice import Lattice

_Phone = tuple[int, int, int]  # phone, first frame, one past the last


@dataclass(frozen=True)
class Path:
    """A path of a lattice.

    Attributes:
        ids: its transition-ids, one a frame.
        words: its words.
        graph_cost: unscaled, with the final cost.
    """

    ids: tuple[int, ...]
    words: tuple[int, ...]
    graph_cost: float


def list_paths(lattice: Lattice) -> list[Path]:
    """List all paths that end in a final state and whose cost is finite."""
    paths: list[Path] = []

    def walk(state: int, path: Path) -> None:
        final = float(lattice.final_graph_cost[state])
        cost = path.graph_cost + final
        if np.isfinite(cost + lattice.final_acoustic_cost[state]):
            paths.append(Path(path.ids, path.words, cost))
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            id_, word = int(lattice.transition_id[arc]), int(lattice.word[arc])
            step = float(lattice.graph_cost[arc])
            if np.isfinite(step):
                longer = Path(
                    (*path.ids, id_) if id_ else path.ids,
                    (*path.words, word) if word else path.words,
                    path.graph_cost + step,
                )
                walk(int(lattice.next_state[arc]), longer)

    walk(0, Path((), (), 0.0))
    return paths


def value_over_paths(
    criterion: LatticeCriterion,
    log_likes: Tensor,
    lattice: Lattice,
    alignment: np.ndarray,
    words: Sequence[int] | np.ndarray,
    *,
    teacher: Tensor | None = None,
) -> Tensor:
    """Compute the value of one of latflow's criteria, over paths.

    Args:
        criterion: of `latflow.criteria.registry`.
        log_likes: float64 [T, P].
        lattice: T frames; few paths.
        alignment: int32[T].
        words: of the reference.
        teacher: [T, P], for `TeacherStudent`.

    Raises:
        TypeError: there is no such formula.
    """
    paths = list_paths(lattice)
    match criterion:
        case Mmi():
            return _mmi(criterion, log_likes, paths, alignment, tuple(map(int, words)))
        case Mbr():
            return _mbr(criterion, log_likes, paths, alignment)
        case PhoneMpe():
            return _phone_mpe(criterion, log_likes, paths, alignment)
        case Mwe():
            return _mwe(criterion, log_likes, paths, words)
        case TeacherStudent() if teacher is not None:
            return _teacher(criterion, log_likes, paths, teacher)
    raise TypeError(f"no formula over paths for {criterion!r}")


def _mmi(
    criterion: Mmi,
    log_likes: Tensor,
    paths: Sequence[Path],
    alignment: np.ndarray,
    words: tuple[int, ...],
) -> Tensor:
    """Compute MMI; see `latflow.criteria.mmi`."""
    options, model = criterion.options, criterion.model
    reference = model.pdf[alignment].tolist()
    correct = [path for path in paths if path.words == words]
    if options.numerator == "words" and correct:
        score = _scores(criterion, log_likes, correct, options.acoustic_scale)
        scores = _scores(criterion, log_likes, paths, options.acoustic_scale)
        wrong = [_boost_errors(criterion, path, alignment) for path in paths]
        boosts = options.boost * torch.tensor(wrong, dtype=scores.dtype)
        return torch.logsumexp(score, 0) - torch.logsumexp(scores + boosts, 0)
    if options.absent_numerator == "drop":
        label = model.pdf if options.drop_by == "pdf" else np.arange(len(model.pdf))
        held = [
            any(label[path.ids[t]] == label[alignment[t]] for path in paths)
            for t in range(len(alignment))
        ]
        is_held = torch.tensor(held).unsqueeze(1)
        log_likes = torch.where(is_held, log_likes, log_likes.detach())
    scores = _scores(criterion, log_likes, paths, options.acoustic_scale)
    wrong = [_boost_errors(criterion, path, alignment) for path in paths]
    scores = scores + options.boost * torch.tensor(wrong, dtype=scores.dtype)
    numerator = options.acoustic_scale * _acoustic(log_likes, reference)
    is_there = any(model.pdf[list(path.ids)].tolist() == reference for path in paths)
    if options.absent_numerator == "add" and not is_there:
        cost = paths[int(scores.argmax())].graph_cost
        extra = numerator - options.lm_scale * cost
        scores = torch.cat([scores, extra.unsqueeze(0)])
    return numerator - torch.logsumexp(scores, 0)


def _mbr(
    criterion: Mbr, log_likes: Tensor, paths: Sequence[Path], alignment: np.ndarray
) -> Tensor:
    """Compute the expected right frames; see `latflow.criteria.mpe`."""
    options, model = criterion.options, criterion.model
    label = model.pdf if options.type == "smbr" else model.phone
    silence = set(criterion.silence_phones)

    def is_right(hypothesis: int, reference: int) -> bool:
        same = bool(label[hypothesis] == label[reference])
        silent = int(model.phone[hypothesis]) in silence
        if options.one_silence_class:
            return same or (silent and int(model.phone[reference]) in silence)
        return same and not silent

    values = [sum(map(is_right, path.ids, alignment.tolist())) for path in paths]
    scores = _scores(criterion, log_likes, paths, options.acoustic_scale)
    return _expectation(scores, values)


def _phone_mpe(
    criterion: PhoneMpe, log_likes: Tensor, paths: Sequence[Path], alignment: np.ndarray
) -> Tensor:
    """Compute the expected raw phone accuracy; see `latflow.criteria.mpe`."""
    options, model = criterion.options, criterion.model
    ignored = set(criterion.silence_phones) if options.ignore_silence else set()

    def phones(ids: Sequence[int]) -> list[_Phone]:
        return [phone for phone in phones_of(ids, model) if phone[0] not in ignored]

    reference = phones(alignment.tolist())
    values = [
        sum(_raw_accuracy(phone, reference) for phone in phones(path.ids))
        for path in paths
    ]
    scores = _scores(criterion, log_likes, paths, options.acoustic_scale)
    return _expectation(scores, values)


def _mwe(
    criterion: Mwe,
    log_likes: Tensor,
    paths: Sequence[Path],
    words: Sequence[int] | np.ndarray,
) -> Tensor:
    """Compute minus the expected errors of the n best; see `latflow.criteria.mwe`."""
    options = criterion.options
    scores = _scores(criterion, log_likes, paths, options.acoustic_scale)
    best: dict[tuple[int, ...], int] = {}
    for n in torch.argsort(scores, descending=True).tolist():
        best.setdefault(paths[n].words, n)
    chosen = list(best.values())[: options.num_paths]
    errors = [_edit_distance(list(words), paths[n].words) for n in chosen]
    return -_expectation(scores[chosen], errors)


def _teacher(
    criterion: TeacherStudent,
    log_likes: Tensor,
    paths: Sequence[Path],
    teacher: Tensor,
) -> Tensor:
    """Compute teacher-student MMI; see `latflow.criteria.mmi`."""
    options = criterion.options
    student = _scores(criterion, log_likes, paths, options.acoustic_scale)
    guide = _scores(criterion, teacher, paths, options.teacher_scale)
    return (torch.softmax(guide, 0) * torch.log_softmax(student, 0)).sum()


def phones_of(ids: Sequence[int], model: TransitionModel) -> list[_Phone]:
    """List the phones of a path; one ends where its last state loops no more."""
    phones: list[_Phone] = []
    left = first = 0
    for t, id_ in enumerate(ids):
        loops_on = model.is_self_loop[id_] and model.state[id_] == left
        if t and left and not loops_on:
            phones.append((int(model.phone[ids[first]]), first, t))
            first, left = t, 0
        if model.is_final[id_]:
            left = int(model.state[id_])
    if ids:
        phones.append((int(model.phone[ids[first]]), first, len(ids)))
    return phones


def _acoustic(log_likes: Tensor, pdfs: Sequence[int]) -> Tensor:
    """Sum the log-likelihood of one pdf a frame."""
    rows = torch.arange(len(pdfs))
    return log_likes[rows, torch.tensor(list(pdfs), dtype=torch.int64)].sum()


def _scores(
    criterion: LatticeCriterion,
    log_likes: Tensor,
    paths: Sequence[Path],
    acoustic_scale: float,
) -> Tensor:
    """Compute the scaled scores of paths, [N]."""
    pdf, lm_scale = criterion.model.pdf, criterion.options.lm_scale
    scores = []
    for path in paths:
        acoustic = _acoustic(log_likes, pdf[list(path.ids)].tolist())
        scores.append(acoustic_scale * acoustic - lm_scale * path.graph_cost)
    return torch.stack(scores)


def _expectation(scores: Tensor, values: Sequence[float]) -> Tensor:
    """Return the mean of a value of paths under their posteriors."""
    return (torch.softmax(scores, 0) * torch.tensor(values, dtype=scores.dtype)).sum()


def _boost_errors(criterion: Mmi, path: Path, alignment: np.ndarray) -> float:
    """Count the wrong frames of a path, those in silence weighted."""
    phone, errors = criterion.model.phone, 0.0
    for hypothesis, reference in zip(path.ids, alignment.tolist(), strict=True):
        if phone[hypothesis] != phone[reference]:
            is_silent = int(phone[hypothesis]) in set(criterion.silence_phones)
            errors += criterion.options.max_silence_error if is_silent else 1.0
    return errors


def _raw_accuracy(phone: _Phone, reference: Sequence[_Phone]) -> float:
    """Compute A(q) of Povey's thesis."""
    best = -1.0
    for other, first, last in reference:
        shared = min(phone[2], last) - max(phone[1], first)
        if shared > 0:
            e = shared / (last - first)
            best = max(best, -1.0 + (2.0 if other == phone[0] else 1.0) * e)
    return best


def _edit_distance(reference: Sequence[int], hypothesis: Sequence[int]) -> int:
    """Return the least number of words to insert, delete or exchange."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference):
        before, row[0] = row[0], i + 1
        for j, other in enumerate(hypothesis):
            cost = before + (word != other)
            before = row[j + 1]
            row[j + 1] = min(cost, before + 1, row[j] + 1)
    return row[-1]


def lfmmi_over_paths(
    log_likes: Tensor,
    supervision: Graph,
    denominator: Graph,
    initial: np.ndarray,
    options: LfmmiOptions,
    weight: float,
) -> Tensor:
    """Compute the value of LF-MMI with its penalties, over paths.

    Args:
        log_likes: [T, P].
        supervision: its final costs count.
        denominator: all its states are final.
        initial: float64[S], probability to begin in, and leak to, each state.
        options: of the criterion.
        weight: of the sequence.
    """
    num_frames = len(log_likes)
    start = [
        float(state == supervision.start) for state in range(supervision.num_states)
    ]
    num = _log_sum(
        log_likes, _walk(supervision, num_frames, start, 0.0), supervision.final
    )
    paths = _walk(denominator, num_frames, initial.tolist(), options.leaky_hmm)
    den = _log_sum(log_likes, paths, np.zeros(denominator.num_states))
    beyond = torch.relu(log_likes.abs() - 30.0)
    l2 = 0.5 * options.l2 * (log_likes**2).sum()
    return weight * (num - den - l2) - 0.5 * options.out_of_range * (beyond**2).sum()


def _walk(
    graph: Graph, num_frames: int, initial: list[float], leaky: float
) -> list[tuple[int, tuple[int, ...], float]]:
    """List all paths of a number of arcs: (last state, pdfs, probability).

    Before each arc, and at the end, a path can leak from its state to any.
    """
    paths = [(state, (), p) for state, p in enumerate(initial) if p > 0.0]
    for t in range(num_frames + 1):
        if leaky > 0.0:
            paths += [
                (state, pdfs, probability * leaky * p)
                for _, pdfs, probability in paths
                for state, p in enumerate(initial)
            ]
        if t < num_frames:
            paths = [
                (
                    int(graph.next_state[arc]),
                    (*pdfs, int(graph.ilabel[arc]) - 1),
                    probability * float(np.exp(-float(graph.weight[arc]))),
                )
                for state, pdfs, probability in paths
                for arc in range(graph.arc_begin[state], graph.arc_begin[state + 1])
            ]
    return paths


def _log_sum(
    log_likes: Tensor,
    paths: list[tuple[int, tuple[int, ...], float]],
    final: np.ndarray,
) -> Tensor:
    """Sum the paths, with the final costs of their last states."""
    states, pdfs, probability = zip(*paths, strict=True)
    scores = log_likes[torch.arange(len(log_likes)), torch.tensor(pdfs)].sum(1)
    weights = torch.tensor(probability, dtype=torch.float64).log()
    costs = torch.from_numpy(final[list(states)].astype(np.float64))
    return torch.logsumexp(scores + weights - costs, 0)
