"""Associative LSTM: a memory of complex vectors that keys write to and read from."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor, nn

from latflow.nnet.layer import LayerError

_KEYS = 3  # what is written, the key to write it with, the key to read with
_GATES = 3  # input, forget, output


class AssociativeLstm(nn.Module):
    """One layer and direction of associative LSTM (holographic memory).

    Numbers are the real, then the imaginary parts of n = size / 2 complex ones. Of
    x(t) and h(t - 1) linear maps give the gates i, f, o (sigmoids, one for both parts),
    the value u, and the keys w to write and r to read with, which `bound` shortens to
    absolute values of 1 at most. With the permutation P_s of copy s of the memory,

        c_s(t) = f c_s(t - 1) + (P_s w) (i u)
        h(t) = o bound(mean over s of (P_s r) c_s(t))

    where products are those of complex numbers. What other keys have written is noise
    in what is read, which differs from copy to copy; the mean lessens it.

    Args:
        dim: numbers of an input frame.
        size: numbers of an output frame, even.
        copies: of the memory, S.

    Source: Danihelka et al. 2016, "Associative long short-term memory". Permutations
    are the same for all networks of a size.
    """

    permutations: Tensor

    def __init__(self, dim: int, size: int, copies: int) -> None:
        super().__init__()
        if size % 2:
            raise LayerError(f"size {size} is odd: it is of complex numbers")
        self.width = width = size // 2
        parts = (2 * _KEYS + _GATES) * width  # of n numbers each
        self.input = nn.Parameter(torch.empty(dim, parts))
        self.recurrent = nn.Parameter(torch.empty(size, parts))
        self.bias = nn.Parameter(torch.zeros(parts))
        with torch.no_grad():
            for weights in (self.input, self.recurrent):
                # as Glorot & Bengio 2010, each part by itself
                bound = (6.0 / (len(weights) + width)) ** 0.5
                weights.uniform_(-bound, bound)
            self.bias[width : 2 * width] = 1.0  # of the forget gate
        drawn = [_permutation(copy, width) for copy in range(copies)]
        self.register_buffer("permutations", torch.tensor(drawn), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Run from the first frame: [B, T, D] -> [B, T, size]."""
        inputs = values @ self.input + self.bias
        state = inputs.new_zeros(len(values), 2 * self.width)
        memory, outputs = None, []
        for frame in inputs.unbind(1):
            given = frame + state @ self.recurrent
            # complex numbers have no half precision
            given = given.to(torch.promote_types(given.dtype, torch.float32))
            gates = torch.sigmoid(given[:, : _GATES * self.width]).chunk(_GATES, 1)
            entering, forget, leaving = gates
            keys = bound(
                _complex(given[:, _GATES * self.width :].unflatten(1, (3, -1)))
            )
            value, write, read = keys.unbind(1)
            added = write[:, self.permutations] * (entering * value)[:, None]
            memory = added if memory is None else forget[:, None] * memory + added
            found = bound((read[:, self.permutations] * memory).mean(1))
            found = leaving * found
            state = torch.cat([found.real, found.imag], 1).to(inputs.dtype)
            outputs.append(state)
        return torch.stack(outputs, 1)


def bound(numbers: Tensor) -> Tensor:
    """Shorten complex numbers to an absolute value of 1 at most."""
    squared = numbers.real.square() + numbers.imag.square()
    # not abs(), which has no derivative at 0
    return numbers / squared.clamp(min=1.0).sqrt()


def _complex(halves: Tensor) -> Tensor:
    """Make complex numbers [..., n] of real and imaginary parts [..., 2 n]."""
    return torch.complex(*halves.chunk(2, -1))


def _permutation(copy: int, count: int) -> list[int]:
    """Draw the permutation of a copy, without any library's generator."""
    return sorted(range(count), key=lambda k: sha256(f"{copy} {k}".encode()).digest())
