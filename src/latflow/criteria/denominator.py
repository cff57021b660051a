"""Denominator of LF-MMI: forward-backward over the graph of all phone sequences.

The leaky HMM: before each frame, and at the end, `leaky` times the probability of all
states goes to the states by their initial probabilities, so that a sequence can begin
and end anywhere. All states are final. The sums are of probabilities, those of each
frame relative to the sum of the one before; outputs of the network are exponentiated
once, relative to the greatest of their frame, so that none overflows, however large.

On a CPU, `LANES` sequences go through the graph side by side: an arc is read once for
them all, and what is done for it is one vector operation. Blocks of them run in the
threads of a pool. On a GPU, where Triton and a C compiler are there, its kernels do the
same (`denominator_triton`); other devices have the sums as torch operations over all
arcs.

Source: Kaldi `chain/chain-denominator.{h,cc}`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.denominator_kernels import (
    LANES,
    Layout,
    aligned_rows,
    backward,
    forward,
)
from latflow.device_copies import sent
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.gpu_kernels import runs_kernels


class DenominatorSums(NamedTuple):
    """Sums over all paths through the denominator graph.

    Attributes:
        log_likes: float64 [B]; NaN or -inf where the sum is not a positive number.
        posteriors: [B, T, P], probability of each pdf at each frame, 0 behind the end
            of a sequence; None if not asked for.
    """

    log_likes: Tensor
    posteriors: Tensor | None


class Denominator:
    """The denominator graph, its arcs by target state and pdf.

    Args:
        graph: labels are pdf-id + 1, no epsilons; weights are costs; final weights and
            the start state mean nothing.
        initial_probs: [S], probability to begin in each state, and to leak into it.
        num_pdfs: P.

    Raises:
        UserError: labels are not of these pdfs, or sizes differ.
    """

    def __init__(self, graph: Graph, initial_probs: np.ndarray, num_pdfs: int) -> None:
        _check(graph, initial_probs, num_pdfs)
        self.num_states, self.num_arcs = graph.num_states, graph.num_arcs
        self.num_pdfs = num_pdfs
        source, pdf, target = graph.sources(), graph.ilabel - 1, graph.next_state
        order = np.lexsort((source, pdf, target))
        self.source, self.pdf, self.target = source[order], pdf[order], target[order]
        self.probability = np.exp(-graph.weight[order].astype(np.float64))
        self.initial_probs = np.asarray(initial_probs, np.float64)
        self._layouts: dict[torch.dtype, Layout] = {}
        self._gpu_layouts: dict[tuple[torch.dtype, torch.device, int], Any] = {}

    def forward_backward(
        self,
        log_likes: Tensor,
        lengths: Sequence[int],
        *,
        leaky: float,
        need_posteriors: bool = True,
        pool: Executor | None = None,
        there: Tensor | None = None,
    ) -> DenominatorSums:
        """Sum over all paths.

        Args:
            log_likes: float32 or float64 [B, T, P], the outputs of the network. The
                sums are of that type, those over states and frames float64.
            lengths: [B], frames of each sequence.
            leaky: coefficient of the leaky HMM.
            need_posteriors: whether to go backward, too.
            pool: threads for blocks of sequences on a CPU; None = the calling thread.
            there: int64 [B], the lengths on the device, where they are there already.

        Raises:
            UserError: the network has another number of outputs.
        """
        if log_likes.shape[2] != self.num_pdfs:
            raise UserError(
                f"a network of {log_likes.shape[2]} outputs, a denominator graph for "
                f"{self.num_pdfs}",
                remedy="make the graph with the tree that the network was made for",
            )
        scores = log_likes.detach()
        posteriors = torch.zeros_like(scores) if need_posteriors else None
        totals = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
        if runs_kernels(scores):
            if there is None:
                there = sent(np.array(lengths, np.int64), scores.device)
            some = scores[:, : max(lengths)]
            self._run_kernels(some, there, leaky, totals, posteriors)
        elif scores.device.type == "cpu":
            self._run_blocks(scores, lengths, leaky, totals, posteriors, pool)
        else:
            self._run_operations(scores, lengths, leaky, totals, posteriors)
        return DenominatorSums(totals, posteriors)

    def _run_blocks(
        self,
        log_likes: Tensor,
        lengths: Sequence[int],
        leaky: float,
        totals: Tensor,
        posteriors: Tensor | None,
        pool: Executor | None,
    ) -> None:
        """Fill totals and posteriors, by blocks of sequences of like length."""
        layout = self._layout(log_likes.dtype)
        order = np.argsort(np.negative(lengths), kind="stable")
        blocks = [order[i : i + LANES] for i in range(0, len(order), LANES)]
        counts = np.asarray(lengths, np.int64)
        work = partial(_run_block, layout, log_likes, counts, leaky, totals, posteriors)
        for _ in (pool.map if pool else map)(work, blocks):
            pass

    def _layout(self, number: torch.dtype) -> Layout:
        """Return the graph laid out for the kernels, with a type of numbers."""
        if number not in self._layouts:
            kind = torch.empty(0, dtype=number).numpy().dtype
            self._layouts[number] = Layout.make(
                self.source,
                self.pdf,
                self.target,
                self.probability.astype(kind),
                self.initial_probs.astype(kind),
            )
        return self._layouts[number]

    def _run_kernels(
        self,
        log_likes: Tensor,
        counts: Tensor,
        leaky: float,
        totals: Tensor,
        posteriors: Tensor | None,
    ) -> None:
        """Fill totals and posteriors by the kernels for GPUs."""
        # Imported here: Triton is where torch is made for GPUs.
        from latflow.criteria import denominator_triton as kernels

        parts = kernels.num_programs(len(log_likes), log_likes.device)
        key = log_likes.dtype, log_likes.device, parts
        if key not in self._gpu_layouts:
            self._gpu_layouts[key] = kernels.DeviceLayout.make(
                (self.source, self.pdf, self.target),
                self.probability,
                self.initial_probs,
                self.num_pdfs,
                parts,
                log_likes,
            )
        layout = self._gpu_layouts[key]
        num_frames = log_likes.shape[1]
        values, greatest = _exponentiate(log_likes, counts)
        outputs = values.new_empty(num_frames + 1, self.num_pdfs, len(counts))
        outputs[:num_frames] = values.permute(1, 2, 0)
        alphas, sums = kernels.forward(layout, outputs, leaky)
        leaked = leaky * float(self.initial_probs.sum())
        totals[:] = _log_totals(sums, greatest, counts, leaked)
        if posteriors is not None:
            held = kernels.backward(layout, outputs, leaky, counts, alphas, sums)
            posteriors[:, :num_frames] = held.permute(2, 0, 1)

    def _run_operations(
        self,
        log_likes: Tensor,
        lengths: Sequence[int],
        leaky: float,
        totals: Tensor,
        posteriors: Tensor | None,
    ) -> None:
        """Fill totals and posteriors, all sequences at once, a frame at a time."""
        source, pdf, target = (
            torch.from_numpy(ids).to(log_likes.device, torch.int64)
            for ids in (self.source, self.pdf, self.target)
        )
        probability = torch.from_numpy(self.probability).to(log_likes)[:, None]
        initial = torch.from_numpy(self.initial_probs).to(log_likes)[:, None]
        counts = sent(np.array(lengths, np.int64), log_likes.device)
        values = log_likes[:, : max(lengths, default=0)]
        outputs, greatest = _exponentiate(values, counts)
        outputs = outputs.permute(1, 2, 0).contiguous()
        num_frames = len(outputs)
        alphas = initial.expand(num_frames + 1, -1, len(counts)).clone()
        sums = totals.new_empty(num_frames + 1, len(counts))
        for t in range(num_frames + 1):
            sums[t] = alphas[t].sum(0, dtype=torch.float64)
            alphas[t] += leaky * initial * sums[t].to(initial)
            if t < num_frames:
                outputs[t] /= sums[t].to(initial)
                terms = alphas[t][source] * probability * outputs[t][pdf]
                alphas[t + 1] = 0.0
                alphas[t + 1].index_add_(0, target, terms)
        leaked = leaky * float(self.initial_probs.sum())
        totals[:] = _log_totals(sums, greatest, counts, leaked)
        if posteriors is None:
            return
        beta = torch.zeros_like(alphas[0])
        for t in range(num_frames - 1, -1, -1):
            beta = torch.where(counts == t + 1, (1.0 / sums[t + 1]).to(beta), beta)
            terms = beta[target] * probability * outputs[t][pdf]
            beta = torch.zeros_like(beta).index_add_(0, source, terms)
            beta += leaky * (initial * beta).sum(0)
            held = torch.zeros_like(outputs[t])
            held.index_add_(0, pdf, terms.mul_(alphas[t][source]))
            posteriors[:, t] = torch.where(counts > t, held, 0.0).T


def _check(graph: Graph, initial_probs: np.ndarray, num_pdfs: int) -> None:
    """Make sure that kernels stay inside their arrays."""
    remedy = "make the denominator with the tree that the network was made for"
    low, high = (graph.ilabel.min(), graph.ilabel.max()) if graph.num_arcs else (0, 0)
    if not 1 <= low <= high <= num_pdfs:
        raise UserError(
            f"the denominator graph has labels {low} to {high}, where 1 to {num_pdfs} "
            "are expected",
            remedy=remedy,
        )
    if len(initial_probs) != graph.num_states:
        raise UserError(
            f"{len(initial_probs)} initial probabilities for a denominator graph of "
            f"{graph.num_states} states",
            remedy=remedy,
        )


def _run_block(
    layout: Layout,
    log_likes: Tensor,
    lengths: np.ndarray,
    leaky: float,
    totals: Tensor,
    posteriors: Tensor | None,
    block: np.ndarray,
) -> None:
    """Sum over the paths of up to `LANES` sequences.

    Args:
        layout: of the denominator.
        log_likes: [B, T, P].
        lengths: [B].
        leaky: coefficient of the leaky HMM.
        totals: float64 [B], receives log-likelihoods.
        posteriors: [B, T, P], zeros, receives posteriors of pdfs; or None.
        block: int[N], the sequences.
    """
    chosen, counts = torch.from_numpy(block), lengths[block]
    frames = torch.from_numpy(counts)
    values = log_likes[chosen, : int(frames.max())]
    values, greatest = _exponentiate(values, frames)
    outputs = aligned_rows(values[0].numel(), layout.initial)
    outputs = outputs.reshape(*values.shape[1:], LANES)
    outputs[:, :, len(block) :] = 1.0  # lanes without a sequence do no harm
    lanes = torch.from_numpy(outputs)[:, :, : len(block)].permute(2, 0, 1)
    lanes.copy_(values)
    alphas, sums = forward(layout, outputs, leaky)
    totals[chosen] = _log_totals(
        torch.from_numpy(sums)[:, : len(block)],
        greatest,
        frames,
        leaky * float(layout.initial.sum(dtype=np.float64)),
    )
    if posteriors is not None:
        counts = np.append(counts, np.zeros(LANES - len(block), np.int64))
        backward(layout, outputs, leaky, counts, alphas, sums)
        for lane, index in enumerate(block):
            posteriors[index, : counts[lane]] = lanes[lane, : counts[lane]]


def _exponentiate(log_likes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentiate outputs of the network, relative to the greatest of their frame.

    Args:
        log_likes: [N, L, P].
        counts: [N], frames of each sequence, at most L.

    Returns:
        [N, L, P], 1 behind the end of a sequence; [N, L], the greatest of each frame, 0
        behind the end of a sequence.
    """
    frames = torch.arange(log_likes.shape[1], device=counts.device)
    is_past = frames >= counts[:, None]
    values = log_likes.masked_fill(is_past[:, :, None], 0.0)
    greatest = values.amax(2)
    return values.sub_(greatest[:, :, None]).exp_(), greatest


def _log_totals(
    sums: Tensor, greatest: Tensor, counts: Tensor, leaked: float
) -> Tensor:
    """Put the sums of the frames together, float64 [N].

    Args:
        sums: float64 [L + 1, N], over the states, before leaking; each relative to the
            one before.
        greatest: [N, L], of `_exponentiate`.
        counts: [N], frames of each sequence.
        leaked: what leaks of a sum of 1; Kaldi's last frame leaks, too.
    """
    is_sum = torch.arange(len(sums), device=sums.device)[:, None] <= counts
    logs = torch.where(is_sum, sums.log(), 0.0)
    return logs.sum(0) + greatest.double().sum(1) + math.log1p(leaked)
