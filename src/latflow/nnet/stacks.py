"""Tensors of one shape, which a GPU computes on together.

There, starting an operation takes longer than most of them. On a processor each tensor
stays by itself: its numbers are those of one that is alone, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def groups_of(
    items: Iterable[T], tensor_of: Callable[[T], Tensor], key: Callable[[T], Hashable]
) -> list[list[T]]:
    """Return what is computed together.

    Args:
        items: in an order that groups keep.
        tensor_of: returns an item's tensor, for its device.
        key: returns what items of a group have in common.
    """
    found: dict[Hashable, list[T]] = {}
    for item in items:
        own = id(item) if tensor_of(item).is_cpu else key(item)
        found.setdefault(own, []).append(item)
    return list(found.values())


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors [...] as one [N, ...]; one alone stays unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


def unstacked(stack: Tensor, count: int) -> Sequence[Tensor]:
    """Return the `count` tensors that were put into one."""
    return [stack] if count == 1 else stack.unbind()


def copy_all_(targets: Sequence[Tensor], values: Iterable[Tensor]) -> None:
    """Set tensors to others of as many numbers, in one operation where they allow it.

    Args:
        targets: changed in place.
        values: in the same order.
    """
    pairs = zip(targets, values, strict=True)
    shaped = [value.view_as(target) for target, value in pairs]
    torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
        list(targets), shaped
    )
