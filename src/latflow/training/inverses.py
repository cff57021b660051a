"""Inverses of symmetric positive definite matrices, one or stacks of them."""

from __future__ import annotations

import torch
from torch import Tensor

WHOLE = 128  # size of matrices that are factored at once, at most


def smoothed_inverse(moments: Tensor, alpha: float, sizes: Tensor) -> Tensor:
    """Return c (M + alpha tr(M) / D I)^-1, which leaves a mean square unchanged.

    The mean square of vectors with the second moments M, that is; c follows from it.

    Args:
        moments: float32 [..., D, D], M, symmetric; zeros where nothing varies.
        alpha: smoothing.
        sizes: [...], rows of each matrix that count, the first ones; zeros behind them
            change nothing of the others' result.

    Returns:
        float32 [..., D, D], which leaves the mean square unchanged.
    """
    mean = _diagonal(moments).sum(-1) / sizes
    is_seen = mean > 0
    mean = torch.where(is_seen, mean, 1.0)
    smooth = moments / mean[..., None, None]
    _diagonal(smooth).add_(alpha)
    inverse = inverted(smooth)
    # tr(inverse moments inverse) / mean, since moments / mean is smooth - alpha I
    trace = _diagonal(inverse).sum(-1, dtype=torch.float64)
    square = trace - alpha * inverse.square().sum((-2, -1), dtype=torch.float64)
    scale = torch.where(is_seen, (sizes / square).sqrt(), alpha).to(mean.dtype)
    return inverse * scale[..., None, None]  # as it was where nothing was seen


def _diagonal(matrices: Tensor) -> Tensor:
    """Return the diagonals of matrices [..., D, D], as a view [..., D]."""
    return matrices.diagonal(dim1=-2, dim2=-1)


def inverted(matrix: Tensor) -> Tensor:
    """Return the inverses of symmetric positive definite matrices [..., D, D].

    By halves, whose products are faster than the triangular matrices of a whole
    factorization. NaN and infinities stay: the loss reports them, with the utterances.
    """
    size = matrix.shape[-1]
    if size <= WHOLE:
        return _by_factors(matrix)
    half = size // 2
    beside, last = matrix[..., :half, half:], matrix[..., half:, half:]
    first = inverted(matrix[..., :half, :half])
    passed = first @ beside
    # of the Schur complement of the first half
    second = inverted(_plus_product(last, beside.mT, passed, factor=-1.0))
    corner = passed @ second
    inverse = torch.empty_like(matrix)
    inverse[..., :half, :half] = _plus_product(first, corner, passed.mT)
    torch.neg(corner, out=inverse[..., :half, half:])
    torch.neg(corner.mT, out=inverse[..., half:, :half])
    inverse[..., half:, half:] = second
    return inverse


def _by_factors(matrix: Tensor) -> Tensor:
    """Return the inverses of symmetric positive definite matrices, by their factors."""
    factor = torch.linalg.cholesky_ex(matrix).L
    if matrix.ndim == 2:
        return torch.cholesky_inverse(factor)
    # a GPU's `cholesky_inverse` takes one matrix of a stack after another
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    back = torch.linalg.solve_triangular(factor, unit.expand_as(matrix), upper=False)
    return back.mT @ back


def _plus_product(
    base: Tensor, left: Tensor, right: Tensor, *, factor: float = 1.0
) -> Tensor:
    """Return base + factor left right, of matrices or stacks of them."""
    add = torch.addmm if base.ndim == 2 else torch.baddbmm
    return add(base, left, right, alpha=factor)
