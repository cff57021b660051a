"""The kernel that lays images for GPUs: in Triton's interpreter that of the CPU."""

import importlib.util
import os

import numpy as np
import pytest
import torch

from latflow.simulation import images

HAS_TRITON = importlib.util.find_spec("triton") is not None
# Triton reads the variable when it is imported, which another test may have done.
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(
    not (HAS_TRITON and INTERPRETS),
    reason="needs Triton, and TRITON_INTERPRET=1 for this file alone",
)
def test_images_of_rooms_are_those_of_the_processor():
    from latflow.simulation.images_triton import add_impulses

    rng = np.random.default_rng(1)
    size = rng.uniform((2.5, 2.5, 2.5), (7.0, 9.0, 4.0), (4, 3))
    advance = torch.tensor([0.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    boxes = images.Boxes(
        torch.from_numpy(size),
        torch.from_numpy(size * rng.uniform(0.1, 0.45, (4, 3))),
        torch.from_numpy(size * rng.uniform(0.55, 0.9, (4, 3))),
        torch.tensor([0.9, 0.5, 0.8, 0.7], dtype=torch.float64),
        advance,
    )
    limits, unit = [5000, 1200, 7999, 3], 190.0
    expected, found = torch.zeros(2, 4, 8000)
    images.lay_images(expected, boxes, limits, unit=unit)
    squared, factors = images._axes(boxes, torch.tensor(limits), unit)
    early = (advance * unit).float()
    add_impulses(found, torch.tensor(limits), squared, factors, early)
    for one, other, limit in zip(found, expected, limits, strict=True):
        peak = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * peak)
        assert not one[limit:].any()
    assert expected[:3].any(1).all()


@pytest.mark.skipif(not HAS_TRITON or INTERPRETS, reason="needs Triton's compiler")
def test_the_kernel_compiles_for_a_gpu_that_is_not_here():
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from latflow.simulation.images_triton import _add

    names = dict.fromkeys(("fine", "squared", "factors", "early"), "*fp32")
    sizes = dict.fromkeys(("WIDE", "HIGH"), "constexpr")
    rest = {"limits": "*i32", "points": "i32", "count": "i32", **sizes}
    made = triton.compile(
        ASTSource(_add, {**names, **rest}, {"WIDE": 16, "HIGH": 64}),
        target=GPUTarget("cuda", 90, 32),
    )
    # The same rounding as on the processor.
    assert {"sqrt.rn.f32", "div.rn.f32"} <= set(made.asm["ptx"].split())
