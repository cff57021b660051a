"""The denominator's kernels for GPUs, in Triton's interpreter: those of the CPU."""

import importlib.util
import os

import numpy as np
import pytest
import torch
from reference.lfmmi_naive import random_denominator

from latflow.criteria.denominator import Denominator

# Triton reads the variable when it is imported, which another test may have done.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton, and TRITON_INTERPRET=1 for this file alone",
)
PDFS = 5


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-11)]
)
def test_kernels_give_what_the_processor_gives(dtype, tolerance):
    from latflow.criteria import denominator_triton as kernels

    rng = np.random.default_rng(1)
    graph, initial = random_denominator(rng, 7, 80, PDFS)
    lengths = [4, 3, 1]
    denominator = Denominator(graph, initial, PDFS)
    scores = torch.from_numpy(3 * rng.normal(size=(3, 5, PDFS))).to(dtype)
    expected = denominator.forward_backward(scores, lengths, leaky=0.1)
    totals = torch.empty_like(expected.log_likes)
    held = torch.zeros_like(scores)
    denominator._run_kernels(kernels, scores, lengths, 0.1, totals, held)
    torch.testing.assert_close(
        totals, expected.log_likes, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        held, expected.posteriors, rtol=tolerance, atol=tolerance
    )
