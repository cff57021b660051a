"""Passes of a network that are captured once for a shape of batches, and then replayed.

On a GPU a small network's operations are done faster than Python can launch them. A
CUDA graph holds the operations of a forward pass, another those of the backward pass;
to replay one is a single launch. It works on memory of its own, always the same:
batches are copied into it, gradients are added to the windows of a `FlatGradient`.

Captured is what comes in many batches of one shape; the first of them, rare shapes and
networks with a layer that asks for numbers of the device go the usual way, whose
operations and results are the same.

Source: PyTorch, `torch.cuda.make_graphed_callables`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from latflow.criteria.batch import Batch
from latflow.nnet.draws import RowDraws
from latflow.nnet.layer import Layer
from latflow.nnet.network import Network, Output
from latflow.training.optimizers import FlatGradient

log = logging.getLogger(__name__)

_SEEN = 2  # batches of a shape before it is captured: libraries choose kernels in them
_MOST = 16  # shapes that are captured, at most
_TRIES = 2  # what a library sets up in the first capture of a process may undo it


class GraphedNetwork:
    """A network whose passes in training are CUDA graphs where they can be.

    Args:
        network: on its device.
        precision: makes the context that forward passes run in.
        gradient: of its parameters, to which backward passes add; None where these
            are not to be captured.
        compiles: false for the usual way alone.

    Attributes:
        device: of the network.
    """

    def __init__(
        self,
        network: Network,
        precision: Callable[[], AbstractContextManager[Any]],
        gradient: FlatGradient | None = None,
        *,
        compiles: bool = False,
    ) -> None:
        self._network, self._precision = network, precision
        self.device = next(network.parameters()).device
        is_possible = self.device.type == "cuda" and is_capturable(network)
        self._gradient = gradient if compiles and is_possible else None
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, _Captured] = {}
        self._pool: Any = None
        self._failures = 0

    def __call__(self, batch: Batch) -> dict[str, Output]:
        """Score a batch on the network's device; see `Network.forward`."""
        gradient = self._gradient
        if gradient is None or not self._network.training or batch.keys is None:
            return self._scores(batch)
        key = self._key(batch)
        if key not in self._captured:
            self._seen[key] += 1
            is_due = self._seen[key] > _SEEN and len(self._captured) < _MOST
            if not (is_due and self._capture(key, batch, gradient)):
                return self._scores(batch)
        return self._captured[key](batch)

    def _scores(self, batch: Batch) -> dict[str, Output]:
        """Score a batch in the usual way."""
        with self._precision():
            return self._network(
                batch.features,
                batch.lengths,
                has_context=batch.has_context,
                draws=batch.draws(),
                lengths_there=batch.lengths_there(),
            )

    def _key(self, batch: Batch) -> Hashable:
        """Return what batches have in common that one capture serves."""
        hooks = tuple(len(part._forward_hooks) for part in self._network.modules())
        longest = int(batch.lengths.max())
        is_full = bool((batch.lengths == longest).all())
        return batch.features.shape, longest, batch.has_context, is_full, hooks

    def _capture(self, key: Hashable, batch: Batch, gradient: FlatGradient) -> bool:
        """Capture the passes of batches like this one; return whether it worked."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            captured = _Captured(
                self._network, self._precision, gradient, batch, self._pool
            )
        except RuntimeError as error:  # among them: not enough memory
            log.debug("passes are not captured: %s", error)
            self._failures += 1
            self._pool = None  # the old one may still count as being captured
            if self._failures == _TRIES:
                log.info("passes go without CUDA graphs: %s", error)
                self._gradient = None
            return False
        self._captured[key] = captured
        return True


class _Captured:
    """The passes of batches of one shape.

    Args:
        network: see `GraphedNetwork`.
        precision: likewise.
        gradient: likewise.
        like: a batch of the shape.
        pool: memory that all captures of the network share: they never run at once.
    """

    def __init__(
        self,
        network: Network,
        precision: Callable[[], AbstractContextManager[Any]],
        gradient: FlatGradient,
        like: Batch,
        pool: Any,
    ) -> None:
        self._subsampling = network.subsampling
        assert like.table is not None
        self._features, self._table = like.features.clone(), like.table.clone()
        lengths = like.lengths
        if bool((lengths < lengths.max()).any()):
            # where these are read on the processor, any sequence may be shorter
            lengths = torch.ones_like(lengths)
            lengths[0] = like.lengths.max()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        there, own, keys = self._table
        torch.cuda.synchronize()
        with self._graph(self._forward, pool), precision():
            outputs = network(
                self._features,
                lengths,
                has_context=like.has_context,
                draws=RowDraws(keys, own),
                lengths_there=there,
            )
        self._names = tuple(outputs)
        values = [output.logits for output in outputs.values()]
        self._gradients = [torch.empty_like(value) for value in values]
        with self._graph(self._backward, pool):
            found = torch.autograd.grad(
                values, gradient.parameters, self._gradients, allow_unused=True
            )
            for window, part in zip(gradient.windows, found, strict=True):
                if part is not None:
                    window.add_(part)
        self._values = [value.detach() for value in values]
        # a function of torch is differentiated where one of its arguments asks for it
        self._asks = torch.zeros((), device=like.features.device, requires_grad=True)

    @staticmethod
    def _graph(graph: torch.cuda.CUDAGraph, pool: Any) -> AbstractContextManager[Any]:
        """Return the context of a capture; other threads may use the GPU meanwhile."""
        return torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")

    def __call__(self, batch: Batch) -> dict[str, Output]:
        """Score a batch."""
        assert batch.table is not None
        self._features.copy_(batch.features)
        self._table.copy_(batch.table)
        self._forward.replay()
        values = _Replay.apply(self, self._asks)
        lengths = (batch.lengths + self._subsampling - 1) // self._subsampling
        return {
            name: Output(value, lengths)
            for name, value in zip(self._names, values, strict=True)
        }

    def differentiate(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Add what follows from derivatives to the outputs to the gradient."""
        for own, given in zip(self._gradients, gradients, strict=True):
            if given is None:
                own.zero_()
            else:
                own.copy_(given)
        self._backward.replay()


class _Replay(torch.autograd.Function):
    """Outputs of a replayed forward pass, whose backward pass is replayed, too."""

    @staticmethod
    def forward(ctx: Any, captured: _Captured, asks: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        """Return the outputs."""
        ctx.captured = captured
        ctx.set_materialize_grads(False)
        return tuple(value.view_as(value) for value in captured._values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        """Replay the backward pass."""
        ctx.captured.differentiate(gradients)
        return None, None


def is_capturable(network: nn.Module) -> bool:
    """Return whether all layers of a network compute without asking the device.

    A class speaks for itself alone: what is derived from it may do anything.
    """
    layers = (part for part in network.modules() if isinstance(part, Layer))
    return all(vars(type(layer)).get("IS_CAPTURABLE", False) for layer in layers)
