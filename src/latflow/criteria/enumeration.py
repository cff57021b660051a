"""The criteria path by path: slow, plain, and by another way.

All paths of a small lattice are listed; each criterion is written down as its formula
says, over paths, in torch. Values check the kernels' values, torch's own derivatives
their gradients. For `latflow selftest` and the tests.

Public: `Path`, `list_paths`, `naive_mmi`, `naive_mbr`, `naive_mpe`, `naive_mwe`,
`naive_teacher`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.mbr import MbrOptions
from latflow.criteria.mmi import MmiOptions
from latflow.criteria.mpe import MpeOptions
from latflow.criteria.mwe import MweOptions
from latflow.criteria.teacher import TeacherOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.lattice import Lattice

_Phone = tuple[int, int, int]  # phone, first frame, one past the last


@dataclass(frozen=True)
class Path:
    """One way through a lattice.

    Attributes:
        ids: its transition-ids, one a frame.
        words: its words.
        graph_cost: unscaled, with the final cost.
    """

    ids: tuple[int, ...]
    words: tuple[int, ...]
    graph_cost: float


def list_paths(lattice: Lattice) -> list[Path]:
    """All paths that end in a final state and whose cost is finite."""
    found: list[Path] = []

    def walk(state: int, path: Path) -> None:
        final = float(lattice.final_graph_cost[state])
        cost = path.graph_cost + final
        if np.isfinite(cost + lattice.final_acoustic_cost[state]):
            found.append(Path(path.ids, path.words, cost))
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
    return found


def naive_mmi(
    log_likes: Tensor,
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MmiOptions,
) -> Tensor:
    """MMI; see `latflow.criteria.mmi`."""
    paths = list_paths(lattice)
    said = model.pdf[alignment].tolist()
    if options.absent == "drop":
        label = model.pdf if options.drop_by == "pdf" else np.arange(len(model.pdf))
        held = [
            any(label[path.ids[t]] == label[alignment[t]] for path in paths)
            for t in range(len(alignment))
        ]
        is_held = torch.tensor(held).unsqueeze(1)
        log_likes = torch.where(is_held, log_likes, log_likes.detach())
    scores = _scores(log_likes, paths, model, options.acoustic_scale, options.lm_scale)
    wrong = [_boost_errors(path, alignment, model, options) for path in paths]
    scores = scores + options.boost * torch.tensor(wrong, dtype=scores.dtype)
    numerator = options.acoustic_scale * _acoustic(log_likes, said)
    is_there = any(model.pdf[list(path.ids)].tolist() == said for path in paths)
    if options.absent == "add" and not is_there:
        plain = _scores(
            log_likes, paths, model, options.acoustic_scale, options.lm_scale
        ) + options.boost * torch.tensor(wrong, dtype=scores.dtype)
        cost = paths[int(plain.argmax())].graph_cost
        extra = numerator - options.lm_scale * cost
        scores = torch.cat([scores, extra.unsqueeze(0)])
    return numerator - torch.logsumexp(scores, 0)


def naive_mbr(
    log_likes: Tensor,
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MbrOptions,
) -> Tensor:
    """Expected right frames; see `latflow.criteria.mbr`."""
    label = model.pdf if options.criterion == "smbr" else model.phone
    silence = set(options.silence_phones)

    def is_right(heard: int, said: int) -> bool:
        same = bool(label[heard] == label[said])
        silent = int(model.phone[heard]) in silence
        if options.one_silence_class:
            return same or (silent and int(model.phone[said]) in silence)
        return same and not silent

    def value(path: Path) -> float:
        return float(sum(map(is_right, path.ids, alignment.tolist())))

    return _expectation(log_likes, lattice, model, options, value)


def naive_mpe(
    log_likes: Tensor,
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MpeOptions,
) -> Tensor:
    """Expected raw phone accuracy; see `latflow.criteria.mpe`."""
    ignored = set(options.silence_phones) if options.ignore_silence else set()

    def phones(ids: Sequence[int]) -> list[_Phone]:
        return [phone for phone in phones_of(ids, model) if phone[0] not in ignored]

    said = phones(alignment.tolist())

    def value(path: Path) -> float:
        return sum(_raw_accuracy(heard, said) for heard in phones(path.ids))

    return _expectation(log_likes, lattice, model, options, value)


def naive_mwe(
    log_likes: Tensor,
    lattice: Lattice,
    words: Sequence[int],
    model: TransitionModel,
    options: MweOptions,
) -> Tensor:
    """Minus the expected word errors of the n best; see `latflow.criteria.mwe`."""
    paths = list_paths(lattice)
    scores = _scores(log_likes, paths, model, options.acoustic_scale, options.lm_scale)
    best: dict[tuple[int, ...], int] = {}
    for n in torch.argsort(scores, descending=True).tolist():
        best.setdefault(paths[n].words, n)
    chosen = list(best.values())[: options.num_paths]
    errors = [float(_edit_distance(words, paths[n].words)) for n in chosen]
    shares = torch.softmax(scores[chosen], 0)
    return -(shares * torch.tensor(errors, dtype=scores.dtype)).sum()


def naive_teacher(
    log_likes: Tensor,
    teacher: Tensor,
    lattice: Lattice,
    model: TransitionModel,
    options: TeacherOptions,
) -> Tensor:
    """Teacher-student MMI; see `latflow.criteria.teacher`."""
    paths = list_paths(lattice)
    student = _scores(log_likes, paths, model, options.acoustic_scale, options.lm_scale)
    taught = _scores(teacher, paths, model, options.teacher_scale, options.lm_scale)
    return (torch.softmax(taught, 0) * torch.log_softmax(student, 0)).sum()


def phones_of(ids: Sequence[int], model: TransitionModel) -> list[_Phone]:
    """Phones of a path: one ends once its last state is left and loops no more."""
    found: list[_Phone] = []
    left = first = 0
    for t, id_ in enumerate(ids):
        loops_on = model.is_self_loop[id_] and model.state[id_] == left
        if t and left and not loops_on:
            found.append((int(model.phone[ids[first]]), first, t))
            first, left = t, 0
        if model.is_final[id_]:
            left = int(model.state[id_])
    if ids:
        found.append((int(model.phone[ids[first]]), first, len(ids)))
    return found


def _acoustic(log_likes: Tensor, pdfs: Sequence[int]) -> Tensor:
    """Summed log-likelihood of one pdf a frame."""
    rows = torch.arange(len(pdfs))
    return log_likes[rows, torch.tensor(list(pdfs), dtype=torch.int64)].sum()


def _scores(
    log_likes: Tensor,
    paths: Sequence[Path],
    model: TransitionModel,
    acoustic_scale: float,
    lm_scale: float,
) -> Tensor:
    """Scaled scores of paths, [N]."""
    scores = []
    for path in paths:
        acoustic = _acoustic(log_likes, model.pdf[list(path.ids)].tolist())
        scores.append(acoustic_scale * acoustic - lm_scale * path.graph_cost)
    return torch.stack(scores)


def _expectation(
    log_likes: Tensor,
    lattice: Lattice,
    model: TransitionModel,
    options: MbrOptions | MpeOptions,
    value: Callable[[Path], float],
) -> Tensor:
    """Mean of a value of paths under their posteriors."""
    paths = list_paths(lattice)
    scores = _scores(log_likes, paths, model, options.acoustic_scale, options.lm_scale)
    values = torch.tensor([value(path) for path in paths], dtype=scores.dtype)
    return (torch.softmax(scores, 0) * values).sum()


def _boost_errors(
    path: Path, alignment: np.ndarray, model: TransitionModel, options: MmiOptions
) -> float:
    """Wrong frames of a path, those in silence weighted."""
    errors = 0.0
    for heard, said in zip(path.ids, alignment.tolist(), strict=True):
        if model.phone[heard] != model.phone[said]:
            is_silent = int(model.phone[heard]) in set(options.silence_phones)
            errors += options.max_silence_error if is_silent else 1.0
    return errors


def _raw_accuracy(heard: _Phone, said: Sequence[_Phone]) -> float:
    """A(q) of Povey's thesis."""
    best = -1.0
    for phone, first, last in said:
        shared = min(heard[2], last) - max(heard[1], first)
        if shared > 0:
            e = shared / (last - first)
            best = max(best, -1.0 + (2.0 if phone == heard[0] else 1.0) * e)
    return best


def _edit_distance(said: Sequence[int], heard: Sequence[int]) -> int:
    """Least number of words to insert, delete or exchange."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said):
        before, row[0] = row[0], i + 1
        for j, other in enumerate(heard):
            cost = before + (word != other)
            before = row[j + 1]
            row[j + 1] = min(cost, before + 1, row[j] + 1)
    return row[-1]
