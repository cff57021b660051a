"""Numerator of LF-MMI, and CTC: forward-backward over a graph of the reference.

The graph is walked frame by frame, one arc a frame, so that it may have cycles (graphs
of flat start) or hold each state to one frame (supervision from alignments); only
states that can be reached at a frame are looked at. Scores are logarithms in float64.

Source: Kaldi `chain/chain-numerator.cc` and `chain/chain-generic-numerator.cc`, which
are the acyclic and the cyclic case of the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.packed_graphs import PackedGraphs
from latflow.device_copies import sent
from latflow.errors import UserError
from latflow.fst.determinize import enlarged
from latflow.fst.graph import Graph
from latflow.gpu_kernels import runs_kernels
from latflow.jit import njit


def numerator_posteriors(
    log_likes: np.ndarray, graph: Graph, posteriors: np.ndarray | None = None
) -> float:
    """Return the log-likelihood of all paths of T arcs, and write their posteriors.

    Args:
        log_likes: float32 or float64 [T, P], the outputs of the network.
        graph: labels are pdf-id + 1, no epsilons; weights and final weights are costs.
        posteriors: [T, P], zeros; receives the probability of each pdf at each frame,
            which is the derivative of the log-likelihood. None: not computed.

    Returns:
        -inf where no path of T arcs ends in a final state; then, and where it is NaN,
        the posteriors stay zero.

    Raises:
        UserError: a label is epsilon, or of a pdf that the network does not have.
    """
    num_frames, num_pdfs = log_likes.shape
    if graph.num_arcs:
        _check_labels(graph.ilabel.min(), graph.ilabel.max(), num_pdfs)
    if not graph.num_states:
        return -math.inf
    arcs = graph.arc_begin, graph.ilabel, graph.next_state, graph.weight
    begin, states, alphas = _forward(log_likes, graph.start, *arcs)
    last = slice(begin[num_frames], begin[num_frames + 1])
    ending = alphas[last] - graph.final[states[last]]
    with np.errstate(invalid="ignore"):  # NaN in outputs of the network
        total = float(np.logaddexp.reduce(ending)) if len(ending) else -math.inf
    if posteriors is not None and math.isfinite(total):
        _backward(
            log_likes, *arcs, graph.final, begin, states, alphas, total, posteriors
        )
    return total


def numerators(
    scores: Tensor,
    supervisions: Sequence[Graph] | PackedGraphs,
    lengths: Sequence[int],
    *,
    need_posteriors: bool,
    pool: Executor | None,
    there: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute what `numerator_posteriors` does for a batch.

    On a GPU, where Triton and a C compiler are there, its kernels do the same
    (`numerator_triton`), and nothing waits for them.

    Args:
        scores: [B, T, P], detached, on any device.
        supervisions: B graphs; for a GPU they may be packed, and there already.
        lengths: frames of each sequence.
        need_posteriors: whether posteriors are computed.
        pool: threads for sequences; None = the calling thread.
        there: int64 [B], the lengths on the device, where they are there already.

    Returns:
        (float64 [B], log-likelihoods; [B, T, P], posteriors, 0 beyond the ends).
    """
    if runs_kernels(scores):
        # Imported here: Triton is where torch is made for GPUs.
        from latflow.criteria.numerator_triton import path_sums

        packed = supervisions
        if not isinstance(packed, PackedGraphs):
            packed = PackedGraphs.of(packed, pin=scores.is_cuda)
        if packed is not None:
            if packed.labels is not None:
                _check_labels(*packed.labels, scores.shape[2])
            packed = packed.to(scores.device, non_blocking=True)
            if there is None:
                there = sent(np.array(lengths, np.int64), scores.device)
            return path_sums(
                scores.contiguous(), packed, there, need_posteriors=need_posteriors
            )
    assert not isinstance(supervisions, PackedGraphs)
    host = scores.cpu().contiguous().numpy()
    posteriors = np.zeros_like(host) if need_posteriors else None

    def total_of(i: int) -> float:
        part = slice(lengths[i])
        into = None if posteriors is None else posteriors[i, part]
        return numerator_posteriors(host[i, part], supervisions[i], into)

    totals = list((pool.map if pool else map)(total_of, range(len(host))))
    found = torch.tensor(totals, dtype=torch.float64, device=scores.device)
    if posteriors is None:
        return found, None
    return found, torch.from_numpy(posteriors).to(scores.device)


def _check_labels(least: int, greatest: int, num_pdfs: int) -> None:
    """Refuse labels of supervision graphs that are epsilon, or of no pdf."""
    if not 1 <= least <= greatest <= num_pdfs:
        raise UserError(
            f"a supervision graph has labels {least} to {greatest}, where 1 to "
            f"{num_pdfs} are expected",
            remedy="make the supervision with the tree that the network was made for",
        )


@njit(cache=True, nogil=True)
def _forward(
    log_likes: np.ndarray,
    start: int,
    arc_begin: np.ndarray,
    label: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum the paths from the start to each state that is reached at each frame.

    Returns:
        int64[T + 2], where each frame's states begin (frame T: after the last arc);
        int32[N], states; float64[N], their forward scores.
    """
    num_frames = len(log_likes)
    num_states = len(arc_begin) - 1
    begin = np.zeros(num_frames + 2, np.int64)
    states = np.empty(num_states + num_frames + 1, np.int32)
    alphas = np.empty(len(states))
    reached = np.full(num_states, -1, np.int64)  # the last frame that reached it
    greatest, total = np.empty(num_states), np.empty(num_states)
    states[0], alphas[0] = start, 0.0
    begin[1] = 1
    for t in range(num_frames):
        end = begin[t + 1]
        states = enlarged(states, end + num_states)
        alphas = enlarged(alphas, end + num_states)
        for at in range(begin[t], begin[t + 1]):
            for arc in range(arc_begin[states[at]], arc_begin[states[at] + 1]):
                target = next_state[arc]
                score = alphas[at] - weight[arc] + log_likes[t, label[arc] - 1]
                if reached[target] != t:
                    reached[target] = t
                    greatest[target], total[target] = -np.inf, 0.0
                    states[end] = target
                    end += 1
                _add_term(greatest, total, target, score)
        begin[t + 2] = end
        for at in range(begin[t + 1], end):
            alphas[at] = _log_sum(greatest, total, states[at])
    return begin, states, alphas


@njit(cache=True, nogil=True)
def _backward(
    log_likes: np.ndarray,
    arc_begin: np.ndarray,
    label: np.ndarray,
    next_state: np.ndarray,
    weight: np.ndarray,
    final: np.ndarray,
    begin: np.ndarray,
    states: np.ndarray,
    alphas: np.ndarray,
    log_like: float,
    posteriors: np.ndarray,
) -> None:
    """Sum the paths from each state that is reached to the end; write posteriors."""
    num_frames = len(log_likes)
    beta, after = np.empty(len(final)), np.empty(len(final))
    greatest, total = np.empty(len(final)), np.empty(len(final))
    for at in range(begin[num_frames], begin[num_frames + 1]):
        after[states[at]] = -final[states[at]]
    for t in range(num_frames - 1, -1, -1):
        for at in range(begin[t], begin[t + 1]):
            state = states[at]
            greatest[state], total[state] = -np.inf, 0.0
            for arc in range(arc_begin[state], arc_begin[state + 1]):
                pdf = label[arc] - 1
                # A target of a state that is reached is reached, too.
                score = after[next_state[arc]] - weight[arc] + log_likes[t, pdf]
                _add_term(greatest, total, state, score)
                posteriors[t, pdf] += math.exp(alphas[at] + score - log_like)
            beta[state] = _log_sum(greatest, total, state)
        beta, after = after, beta


@njit(cache=True, nogil=True)
def _add_term(greatest: np.ndarray, total: np.ndarray, at: int, term: float) -> None:
    """Add exp(term) to the sum exp(greatest[at]) * total[at]; -inf, 0 is none."""
    if term > greatest[at]:
        total[at] = total[at] * math.exp(greatest[at] - term) + 1.0
        greatest[at] = term
    elif term != -np.inf:
        total[at] += math.exp(term - greatest[at])


@njit(cache=True, nogil=True)
def _log_sum(greatest: np.ndarray, total: np.ndarray, at: int) -> float:
    """Return the logarithm of such a sum."""
    return -np.inf if total[at] == 0.0 else greatest[at] + math.log(total[at])
