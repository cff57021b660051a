"""The E-step of Viterbi training where torch computes: on a GPU.

Frames of a pdf are cut into blocks of equal length, mixtures of about the same number
of Gaussians are padded to one, and whole batches of blocks go through `bmm`: for a
block of frames X = [1, x, x^2],

    scores = X F^T,   posteriors = softmax(scores),   moments += posteriors^T X

The last product and all sums are in float64. Blocks of a pdf are neighbours, so the
sum over them is a segment sum in fixed order.
"""

from __future__ import annotations

import numpy as np
import torch

from latflow.gmm.model import DiagGmms

_BLOCK = 64  # frames of one pdf that are worked on together
_BATCH_BYTES = 256 << 20  # of float64 [1, x, x^2] in flight


def moments_on_device(
    gmms: DiagGmms,
    frames: np.ndarray,
    order: np.ndarray,
    frame_begin: np.ndarray,
    device: str | torch.device,
) -> tuple[np.ndarray, float]:
    """Return moments float64[G, 1 + 2 D] and summed log-likelihood of frames.

    Args:
        gmms: the mixtures.
        frames: float32[T, D].
        order: int64[N], frames sorted by pdf.
        frame_begin: int64[P + 1], where each pdf's frames begin in `order`.
        device: where torch computes.
    """
    x = torch.tensor(frames, device=device)
    factors = torch.tensor(gmms.factors, device=device)
    columns = factors.shape[1]
    moments = torch.zeros(gmms.num_gaussians, columns, dtype=torch.float64)
    moments = moments.to(device)
    sizes = np.diff(gmms.begin)
    log_like = 0.0
    for width, pdfs in _groups(sizes, np.diff(frame_begin)):
        rows, valid, blocks = _cut(order, frame_begin, pdfs)
        gaussians = gmms.begin[pdfs][:, None] + np.arange(width)
        is_real = np.arange(width) < sizes[pdfs][:, None]
        gaussians = np.where(is_real, gaussians, gmms.begin[pdfs][:, None])
        step = max(1, _BATCH_BYTES // (8 * columns * _BLOCK))
        for first, last in _batches(blocks, step):
            batch = slice(blocks[first], blocks[last])
            mine = torch.from_numpy(gaussians[first:last]).to(device)
            real = torch.from_numpy(is_real[first:last]).to(device)
            part, part_log_like = _batch(
                x[torch.from_numpy(rows[batch]).to(device)],
                torch.from_numpy(valid[batch]).to(device),
                torch.from_numpy(np.diff(blocks[first : last + 1])).to(device),
                factors[mine].masked_fill(~real[..., None], 0.0),
                real,
            )
            moments[mine[real]] += part[real]
            log_like += part_log_like
    return moments.cpu().numpy(), log_like


def _groups(sizes: np.ndarray, num_frames: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return pdfs with frames, by their number of Gaussians rounded up to 4, 8 ..."""
    width = (sizes + 3) // 4 * 4
    seen = np.flatnonzero(num_frames > 0)
    return [(int(w), seen[width[seen] == w]) for w in np.unique(width[seen])]


def _cut(
    order: np.ndarray, frame_begin: np.ndarray, pdfs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the frames of some pdfs into blocks.

    Returns:
        (frames int64[B, _BLOCK]; which of them count bool[B, _BLOCK]; first block of
        each pdf int64[M + 1]).
    """
    counts = np.diff(frame_begin)[pdfs]
    blocks = np.concatenate([[0], np.cumsum(-(-counts // _BLOCK))])
    number = np.arange(blocks[-1]) - np.repeat(blocks[:-1], np.diff(blocks))
    within = number[:, None] * _BLOCK + np.arange(_BLOCK)
    valid = within < np.repeat(counts, np.diff(blocks))[:, None]
    first = np.repeat(frame_begin[pdfs], np.diff(blocks))[:, None]
    return order[np.where(valid, first + within, first)], valid, blocks


def _batches(blocks: np.ndarray, step: int) -> list[tuple[int, int]]:
    """Cut pdfs into runs of at most `step` blocks (at least one pdf each)."""
    runs, first = [], 0
    while first < len(blocks) - 1:
        last = int(np.searchsorted(blocks, blocks[first] + step, side="right")) - 1
        last = max(last, first + 1)
        runs.append((first, last))
        first = last
    return runs


def _batch(
    x: torch.Tensor,
    valid: torch.Tensor,
    num_blocks: torch.Tensor,
    factors: torch.Tensor,
    real: torch.Tensor,
) -> tuple[torch.Tensor, float]:
    """Return the moments of a batch of blocks.

    Args:
        x: float32[B, _BLOCK, D], blocks of frames, those of a pdf together.
        valid: bool[B, _BLOCK], frames that count.
        num_blocks: int64[M], blocks of each pdf.
        factors: float32[M, K, 1 + 2 D], of each pdf's Gaussians.
        real: bool[M, K], Gaussians that exist.

    Returns:
        (float64[M, K, 1 + 2 D], summed log-likelihood).
    """
    powers = torch.cat([torch.ones_like(x[..., :1]), x, x * x], dim=-1)
    pdf = torch.repeat_interleave(num_blocks)
    scores = torch.bmm(powers, factors.transpose(1, 2)[pdf])
    scores = scores.masked_fill(~real[pdf][:, None, :], -torch.inf)
    log_likes = torch.logsumexp(scores, dim=-1)
    posteriors = torch.exp(scores - log_likes[..., None])
    posteriors = posteriors.masked_fill(~valid[..., None], 0.0).double()
    parts = torch.bmm(posteriors.transpose(1, 2), powers.double())
    moments = torch.segment_reduce(parts, "sum", lengths=num_blocks, axis=0)
    total = torch.where(valid, log_likes.double(), 0.0).sum()
    return moments, float(total)
