"""Stochastic gradient descent along the natural gradient, as Kaldi trains networks.

The gradient of the matrix W of an affine map y = W x + b is a sum over frames of g x^T,
with the derivatives g to y. Let A be the second moments of x (and of 1, for b), and B
those of g. In the place of the gradient G, a step takes

    P(B) G P(A),    P(M) = c (M + alpha tr(M) / dim I)^-1

where c is such that multiplying with P(M) leaves the mean square of x, or g, as it is.
Directions in which inputs or derivatives vary little count for more. A and B are means
that fade over `history` frames. Parameters of other kinds have the plain gradient.

Kaldi multiplies each frame, with an estimate of low rank; here whole matrices are
inverted, and the sum over frames is multiplied. On a GPU, where starting an operation
takes longer than most of them, matrices of like sizes are inverted together, and
gradients of one shape are multiplied together.

Source: Povey, Zhang & Khudanpur 2015, "Parallel training of DNNs with natural gradient
and parameter averaging"; Kaldi `nnet3/natural-gradient-online.cc`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from latflow.nnet.stacks import copy_all_, groups_of, stacked, unstacked
from latflow.training.distributed import Backend
from latflow.training.inverses import WHOLE, smoothed_inverse

_ROWS = 1024  # frames that a map's moments of a batch are taken of, at most
_LIKE = 0.75  # size of a matrix in a stack for one of the largest there, at least
_LARGE = 1024  # size from which on a GPU needs longer to compute than to start
_STACK = 2**25  # numbers of a stack, at most: its inversion takes several times that
_FIRST = 10  # steps before which moments are taken in each
_NAMES = ("input_moments", "output_moments")  # in the state of a matrix
_CHANNELS = 1  # dimension of the maps of a convolution's input and output


class NaturalGradient(optim.SGD):
    """Gradient descent of a network, preconditioned; see the module's description.

    Steps with `is_observing` look at inputs and derivatives of all affine maps and
    two-dimensional convolutions that the forward pass goes through in training; ranks
    add up what they have seen by `share`, so that all make the same step.

    Args:
        network: its modules of type `nn.Linear` and `nn.Conv2d` are preconditioned.
        params: as `optim.SGD`.
        lr: as `optim.SGD`. Kaldi's gradients are sums: with that of a mean over the
            frames of a batch, its learning rate times their number is as large.
        alpha: smoothing with the mean of the diagonal.
        history: frames after which the weight of what was seen has fallen to 1 / e.
        period: steps from one observation to the next.
        dtype: of products, bf16 where passes are (a quarter of the time of float32 on
            processors that multiply such numbers); None for that of the parameters,
            which sums of moments and inverses always have.
        descent: `momentum` and `weight_decay`, which is not preconditioned, as
            `optim.SGD`.
    """

    def __init__(
        self,
        network: nn.Module,
        params: Iterable[Any],
        lr: float,
        *,
        alpha: float,
        history: float,
        period: int,
        dtype: torch.dtype | None = None,
        **descent: Any,
    ) -> None:
        super().__init__(params, lr=lr, **descent)
        self._alpha, self._history, self._period = alpha, history, period
        self._dtype = dtype
        self._maps = [
            _Map(module, alpha, dtype)
            for module in network.modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
            and module.weight.requires_grad
            and getattr(module, "groups", 1) == 1
        ]
        self._moments = _stacks(self._maps)
        self._alike = [_Alike(m) for m in groups_of(self._maps, _weight, _shape)]
        self._hooks: list[RemovableHandle] = []
        self._steps = 0
        self._set_hooks()

    @property
    def is_observing(self) -> bool:
        """Return whether this step looks at inputs and derivatives."""
        return self._steps < _FIRST or self._steps % self._period == 0

    def share(self, backend: Backend) -> None:
        """Add up what the ranks have seen in this step."""
        if backend.size > 1 and self.is_observing:
            backend.all_reduce_([moments.sums for moments in self._moments])

    def forget(self) -> None:
        """Drop what was seen in a step that is not made."""
        for moments in self._moments:
            moments.sums.zero_()

    def _set_hooks(self) -> None:
        """Register hooks in steps that observe only: layers are faster without."""
        if self.is_observing == bool(self._hooks):
            return
        for hook in self._hooks:
            hook.remove()
        # hooks outlive the optimizer where it is replaced
        mine = weakref.ref[NaturalGradient](self)
        hooks = [(own, _StatisticsHook(mine, weakref.ref(own))) for own in self._maps]
        self._hooks = [
            own.module.register_forward_hook(hook)
            for own, hook in hooks
            if self.is_observing
        ]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step; nobody waits for a GPU."""
        if self.is_observing:
            for moments in self._moments:
                moments.update(self.state, self._history)
            self._invert()
        for alike in self._alike:
            alike.precondition()
        self._steps += 1
        self._set_hooks()
        return super().step(closure)

    def _invert(self) -> None:
        """Make the factors of gradients of the moments that are known."""
        for moments in self._moments:
            moments.invert(self._alpha, self._dtype)
        for alike in self._alike:
            alike.refresh_factors()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the number of steps."""
        found = super().state_dict()
        state = {
            key: {name: _alone(value) for name, value in own.items()}
            for key, own in found["state"].items()
        }
        return {**found, "state": state, "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        state = dict(state_dict)
        self._steps = state.pop("steps")
        self._set_hooks()
        super().load_state_dict(state)
        for moments in self._moments:
            moments.load(self.state)
        self._invert()


class _Map:
    """An affine map: what is seen of it in a step, and its gradient.

    Attributes:
        sizes: numbers of an input (with a 1 for the offset), and of a derivative.
        sums: over frames, of the outer products of inputs, and of derivatives
            ([D, D], D as in `sizes`).
        counts: the frames behind each of them.
        factors: what the gradient is multiplied with; none before the first step.
    """

    def __init__(
        self, module: nn.Linear | nn.Conv2d, alpha: float, dtype: torch.dtype | None
    ) -> None:
        self.module, self.weight = module, module.weight
        self._alpha, self._dtype = alpha, dtype
        size = self.weight[0].numel() + (module.bias is not None)
        self.sizes = (size, len(self.weight))
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] = {}

    @property
    def gradients(self) -> list[Tensor]:
        """Those of the matrix and, if there is one, the offset; or none."""
        own = [p for p in (self.weight, self.module.bias) if p is not None]
        found = [p.grad for p in own if p.grad is not None]
        return found if len(found) == len(own) else []

    def add_rows(self, which: int, values: Tensor) -> None:
        """Add inputs (0), or derivatives to outputs (1), of a pass."""
        with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
            rows, count = self._rows(which, values.detach())
            dtype = self._dtype_of_moments(self.sizes[which])
            rows = rows[:: -(-len(rows) // _ROWS)].to(dtype)
            if which == 0 and self.module.bias is not None:
                rows = torch.cat((rows, rows.new_ones(len(rows), 1)), 1)
            self.sums[which].add_(_outer_products(rows), alpha=count / len(rows))
            self.counts[which].add_(count)

    def _dtype_of_moments(self, size: int) -> torch.dtype:
        """Return that of the products with which moments M of D numbers are taken.

        Where elements of M are rounded by a part u, the eigenvalues of their errors are
        at most u |M|, and |M| < tr(M) unless all frames have one direction: with
        alpha >= u D, what is inverted, M + alpha tr(M) / D I, stays positive definite.
        A GPU rounds the frames alone, which layers there see no better: M is sound.
        """
        dtype = self.weight.dtype
        if self._dtype is None or self.weight.is_cuda:
            return self._dtype or dtype
        rounding = torch.finfo(self._dtype).eps / 2
        return self._dtype if self._alpha >= rounding * size else dtype

    def _rows(self, which: int, values: Tensor) -> tuple[Tensor, int]:
        """Return inputs or derivatives, a row for each frame (and frequency).

        Returns:
            Rows, of a convolution's inputs those of some sequences; and the number of
            rows of all sequences.
        """
        module = self.module
        if isinstance(module, nn.Linear):
            rows = values.flatten(0, -2)
            return rows, len(rows)
        if which == 1:
            rows = values.movedim(_CHANNELS, -1).flatten(0, -2)
            return rows, len(rows)
        some = values[:: max(1, len(values) // 2)].to(self.weight.dtype)
        assert not isinstance(module.padding, str)
        patches = functional.unfold(
            some, module.kernel_size, module.dilation, module.padding, module.stride
        )
        rows = patches.transpose(1, 2).flatten(0, 1)
        return rows, len(rows) // len(some) * len(values)


def _outer_products(rows: Tensor) -> Tensor:
    """Return the sum of the outer products of rows [N, D]; on a GPU in float32."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        return torch.mm(rows.T, rows, out_dtype=torch.float32)
    return rows.T @ rows


#: A map, and which of its two moments.
Side: TypeAlias = tuple[_Map, int]


def _stacks(maps: Iterable[_Map]) -> list[_Moments]:
    """Return the moments of maps in stacks: on a processor each by itself."""
    sides = [(own, which) for own in maps for which in range(len(_NAMES))]
    if sides and sides[0][0].weight.is_cpu:
        return [_Moments([side], _size(side)) for side in sides]
    groups: list[tuple[int, list[Side]]] = []
    for side in sorted(sides, key=_size, reverse=True):
        if not groups or not _fits(_size(side), *groups[-1]):
            groups.append((_rounded(_size(side)), []))
        groups[-1][1].append(side)
    return [_Moments(group, dim) for dim, group in groups]


def _size(side: Side) -> int:
    """Return the rows of a map's moments."""
    own, which = side
    return own.sizes[which]


def _rounded(size: int) -> int:
    """Return the size of a stack for a matrix: one that can be halved some times."""
    return size if size <= WHOLE else -(-size // WHOLE) * WHOLE


def _fits(size: int, dim: int, group: Sequence[Side]) -> bool:
    """Return whether a matrix is inverted with those of a stack [N, dim, dim]."""
    is_like = _rounded(size) == dim or dim <= WHOLE
    is_like |= dim <= _LARGE and size >= _LIKE * dim
    return is_like and (len(group) + 1) * dim**2 <= _STACK


class _Moments:
    """Second moments that are known, and inverted together.

    Args:
        sides: whose they are: N matrices of size D at most.
        dim: D; smaller matrices have zeros behind.

    Attributes:
        sums: what was seen in the step, with the number of frames as the last one of
            D D + 1 numbers; [N, D D + 1], or of one matrix [D D + 1].
    """

    def __init__(self, sides: Sequence[Side], dim: int) -> None:
        self._sides, self._dim = sides, dim
        sizes = [_size(side) for side in sides]
        rows = sides[0][0].weight.new_zeros(len(sides), dim**2 + 1)
        for (own, which), size, row in zip(sides, sizes, rows, strict=True):
            own.sums[which] = row[:-1].view(dim, dim)[:size, :size]
            own.counts[which] = row[-1]
        self.sums = rows if len(sides) > 1 else rows[0]
        self._sizes = torch.tensor(sizes if len(sides) > 1 else sizes[0])
        self._sizes = self._sizes.to(rows)
        self._known: Tensor | None = None

    def update(self, state: Mapping[Any, dict[str, Any]], history: float) -> None:
        """Let the moments that are known fade, and add what was seen."""
        counts = self.sums[..., -1:]
        seen = self.sums[..., :-1] / counts.clamp(min=1.0)
        seen = seen.unflatten(-1, (self._dim, self._dim))
        if self._known is not None:
            share = -torch.expm1(-counts / history)  # none of it if none is seen
            seen = torch.lerp(self._known, seen, share[..., None])
        self._known = seen
        self._store_moments(state)
        self.sums.zero_()

    def _store_moments(self, state: Mapping[Any, dict[str, Any]]) -> None:
        """Put the moments that are known into the state of the matrices."""
        assert self._known is not None
        for (own, which), matrix in self._matrices(self._known):
            state[own.weight][_NAMES[which]] = matrix

    def load(self, state: Mapping[Any, dict[str, Any]]) -> None:
        """Know the moments of a state; what is missing there was not seen yet."""
        kept = [state[own.weight].get(_NAMES[which]) for own, which in self._sides]
        self._known = None
        if all(moments is None for moments in kept):
            return
        lead = self.sums.shape[:-1]
        self._known = self.sums.new_zeros(*lead, self._dim, self._dim)
        places = self._matrices(self._known)
        for moments, (_, matrix) in zip(kept, places, strict=True):
            if moments is not None:
                matrix.copy_(moments)
        self._store_moments(state)

    def invert(self, alpha: float, dtype: torch.dtype | None) -> None:
        """Make the maps' factors of the moments that are known."""
        if self._known is not None:
            factors = smoothed_inverse(self._known, alpha, self._sizes).to(dtype)
            for (own, which), factor in self._matrices(factors):
                own.factors[which] = factor

    def _matrices(self, stack: Tensor) -> Iterator[tuple[Side, Tensor]]:
        """Yield the matrices of a stack, each in its own size."""
        matrices = unstacked(stack, len(self._sides))
        for side, matrix in zip(self._sides, matrices, strict=True):
            yield side, matrix[: _size(side), : _size(side)]


def _weight(own: _Map) -> Tensor:
    """Return the matrix of a map."""
    return own.weight


def _shape(own: _Map) -> tuple[int, int, bool]:
    """Return what maps have in common that are multiplied together."""
    return (*own.sizes, own.module.bias is not None)


class _Alike:
    """Maps of one shape, whose gradients are multiplied together."""

    def __init__(self, maps: Sequence[_Map]) -> None:
        self._maps = maps
        self._factors: list[Tensor] = []

    def refresh_factors(self) -> None:
        """Look up the maps' factors."""
        self._factors = _factors_of(self._maps)

    def precondition(self) -> None:
        """Multiply the gradients by both factors."""
        maps = [own for own in self._maps if own.gradients]
        factors = self._factors
        if len(maps) < len(self._maps):
            factors = _factors_of(maps)
        if not factors:
            return
        of_input, of_output = factors
        # matrices, and offsets as columns beside them
        kinds = [list(kind) for kind in zip(*(m.gradients for m in maps), strict=True)]
        rows = [stacked([g.reshape(len(g), -1) for g in kind]) for kind in kinds]
        changed = of_output @ torch.cat(rows, -1).to(of_input.dtype) @ of_input
        parts = changed.split([part.shape[-1] for part in rows], -1)
        for kind, part in zip(kinds, parts, strict=True):
            # in the gradients' type and order: a GPU then copies them at once
            same = part.to(kind[0].dtype).contiguous()
            copy_all_(kind, unstacked(same, len(kind)))


def _factors_of(maps: Sequence[_Map]) -> list[Tensor]:
    """Return the factors of maps of one shape; none where there are none yet."""
    if not maps or not all(own.factors for own in maps):
        return []
    return [stacked([own.factors[i] for own in maps]) for i in range(len(_NAMES))]


class _StatisticsHook:
    """A hook that lets a map see its inputs, and the derivatives to its outputs."""

    def __init__(
        self, optimizer: weakref.ref[NaturalGradient], own: weakref.ref[_Map]
    ) -> None:
        self._optimizer, self._map = optimizer, own

    def __call__(
        self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor
    ) -> Tensor | None:
        """See a pass of a training step."""
        optimizer, own = self._optimizer(), self._map()
        if optimizer is None or own is None or own.module is not module:
            return None
        if not (module.training and output.requires_grad and optimizer.is_observing):
            return None
        own.add_rows(0, inputs[0])
        output.register_hook(lambda gradient: own.add_rows(1, gradient))
        return output.clone()  # what follows may change it in place; the hook would go


def _alone(value: Any) -> Any:
    """Return what a state keeps: a matrix without the stack that it is in."""
    if not isinstance(value, Tensor):
        return value
    is_part = value.untyped_storage().nbytes() > value.numel() * value.itemsize
    return value.clone() if is_part else value
