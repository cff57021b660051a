"""Self-attention with relative positions, score by score: the twin of `MultiHead`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_attention(attention, values: Tensor, near: tuple[int, int]) -> Tensor:
    """Attend within one sequence [T, D].

    Args:
        attention: the module whose parameters are used.
        values: the frames.
        near: frames that are seen before and behind each.
    """
    frames, dim = values.shape
    size = dim // attention.heads
    weights, offsets = attention.inputs.weight, attention.inputs.bias
    query, key, value = (
        values @ weights[k * dim : (k + 1) * dim].T + offsets[k * dim : (k + 1) * dim]
        for k in range(3)
    )
    result = torch.zeros_like(values)
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        u, v = attention.content[head, 0], attention.place[head, 0]
        for i in range(frames):
            scores = {}
            for j in range(max(0, i - near[0]), min(frames, i + near[1] + 1)):
                place = attention.distances.weight[part] @ encoding(i - j, dim, values)
                content = torch.dot(query[i, part] + u, key[j, part])
                scores[j] = content + torch.dot(query[i, part] + v, place)
                scores[j] = torch.exp(scores[j] / math.sqrt(size))
            total = sum(scores.values())
            for j, score in scores.items():
                result[i, part] += score / total * value[j, part]
    return result @ attention.output.weight.T + attention.output.bias


def encoding(distance: int, dim: int, like: Tensor) -> Tensor:
    """Return the sines and cosines of a distance, [D]."""
    numbers = []
    for k in range(dim):
        angle = distance / 10000 ** ((k - k % 2) / dim)
        numbers.append(math.cos(angle) if k % 2 else math.sin(angle))
    return like.new_tensor(numbers)
