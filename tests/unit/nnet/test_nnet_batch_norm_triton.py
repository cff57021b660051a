"""Batch normalization in one kernel, in Triton's interpreter, is that of torch."""

import importlib.util
import os

import pytest
import torch
from torch.nn import functional

from latflow.nnet.layers.simple import MaskedBatchNorm

# Triton reads the variable when it is imported, which another test may have done.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton, and TRITON_INTERPRET=1 for this file alone",
)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bypass", [None, 0.66])
@pytest.mark.parametrize("is_padded", [False, True])
def test_values_gradients_and_statistics(relu, bypass, is_padded):
    from latflow.nnet.batch_norm_triton import normalized

    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, 50, 70, generator=generator) + 1.0
    wide = torch.randn(3, 53, 70, generator=generator)
    weights = torch.randn(3, 50, 70, generator=generator)
    padding = None
    if is_padded:
        times, ends = torch.arange(100), torch.tensor([100, 40, 2])
        # as networks have it: a part of a longer one
        padding = (times[None, :, None] >= ends[:, None, None])[:, ::2]
    results = []
    for fused in (False, True):
        norm = MaskedBatchNorm(70, affine=False, epsilon=1e-3)
        own = values.clone().requires_grad_()
        present = wide.clone().requires_grad_()
        passed = present[:, 2:52]
        if fused:
            found = normalized(
                own, padding, (norm.mean, norm.variance), momentum=0.1, epsilon=1e-3,
                relu=relu, present=None if bypass is None else passed,
                factor=bypass or 1.0,
            )  # fmt: skip
        else:
            inputs = functional.relu(own) if relu else own
            found = norm(inputs, padding)
            if bypass is not None:
                found = torch.add(found, passed, alpha=bypass)
        (found * weights).sum().backward()
        results.append((found, own.grad, present.grad, norm.mean, norm.variance))
    for found, expected in zip(*reversed(results), strict=True):
        if expected is None:
            assert found is None
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
