"""Linear maps held near semi-orthogonal ones: M M^T = scale^2 I."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SemiOrthogonal(nn.Linear):
    """A linear map without offset that `constrain` holds near a semi-orthogonal one."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__(dim_in, dim_out, bias=False)

    @torch.no_grad()
    def constrain(self) -> None:
        """Move the matrix one step towards (a multiple of) a semi-orthogonal one."""
        self.weight.copy_(semi_orthogonal_step(self.weight))


def semi_orthogonal_step(matrix: Tensor, scale: float | None = None) -> Tensor:
    """One step towards M M^T = scale^2 I (of M^T where there are more rows).

    Let P = M M^T. The step M - 4 v / scale^2 (P - scale^2 I) M goes down the gradient
    of |P - scale^2 I|^2; with v = 1/8 it converges quadratically near the goal. A
    floating scale is sqrt(trace(P P) / trace(P)), for which the step is orthogonal to
    M and so leaves its norm alone (to first order); v is then halved once or twice
    where the eigenvalues of P lie apart, against divergence.

    Args:
        matrix: [R, C].
        scale: the goal's scale, > 0; None lets it float.

    Returns:
        [R, C], the moved matrix. Nothing waits for a GPU.

    Source: Povey et al. 2018, sections 2.1 to 2.3; Kaldi
    `nnet3/nnet-utils.cc:ConstrainOrthonormalInternal`.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return semi_orthogonal_step(matrix.T, scale).T
    product = matrix @ matrix.T
    if scale is not None:
        product.diagonal().sub_(scale**2)
        return matrix - (0.5 / scale**2) * (product @ matrix)
    trace, trace_square = product.diagonal().sum(), product.square().sum()
    square_scale = trace_square / trace
    # 1 where all eigenvalues are equal, more the further they lie apart
    spread = len(product) * trace_square / trace**2
    halvings = (spread > 1.02).to(matrix.dtype) + (spread > 1.1).to(matrix.dtype)
    speed = 0.125 * 0.5**halvings
    product.diagonal().sub_(square_scale)
    moved = matrix - (4.0 * speed / square_scale) * (product @ matrix)
    return torch.where(trace > 0.0, moved, matrix)  # a zero matrix has no direction
