"""Kernels for GPUs in Triton's interpreter give what those of the processor give."""

import importlib.util
import os

import numpy as np
import pytest
import torch
from reference.lfmmi_naive import random_denominator, random_supervision

from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.numerator import numerators
from latflow.criteria.options import LfmmiOptions
from latflow.criteria.packed_graphs import PackedGraphs
from latflow.errors import UserError

# Triton reads the variable when it is imported, which another test may have done.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton, and TRITON_INTERPRET=1 for this file alone",
)
PDFS = 5
TYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-11)]
)


@pytest.fixture
def kernels(monkeypatch):
    """Have criteria take the kernels, on the processor."""

    def switch():
        for module in ("denominator", "numerator"):
            name = f"latflow.criteria.{module}.runs_kernels"
            monkeypatch.setattr(name, lambda _: True)

    return switch


@TYPES
@pytest.mark.parametrize(("states", "arcs"), [(7, 80), (4, 300)])
def test_denominator(kernels, dtype, tolerance, states, arcs):
    rng = np.random.default_rng(1)
    graph, initial = random_denominator(rng, states, arcs, PDFS)
    lengths = [4, 3, 1]
    denominator = Denominator(graph, initial, PDFS)
    scores = torch.from_numpy(3 * rng.normal(size=(3, 5, PDFS))).to(dtype)
    expected = denominator.forward_backward(scores, lengths, leaky=0.1)
    kernels()
    found = denominator.forward_backward(scores, lengths, leaky=0.1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def supervisions(rng):
    """Of frames, with a cycle, and one that has no path of its length."""
    graphs = [random_supervision(rng, count, PDFS) for count in (6, 4, 1)]
    cyclic, _ = random_denominator(rng, 9, 60, PDFS)
    return [*graphs, cyclic, random_supervision(rng, 5, PDFS)], [6, 4, 1, 5, 3]


@TYPES
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # -inf less -inf
def test_numerator(kernels, dtype, tolerance):
    rng = np.random.default_rng(2)
    graphs, lengths = supervisions(rng)
    scores = torch.from_numpy(3 * rng.normal(size=(5, 7, PDFS))).to(dtype)
    expected = numerators(scores, graphs, lengths, need_posteriors=True, pool=None)
    assert expected[0].isneginf().tolist() == [False] * 4 + [True]
    kernels()
    for known in (graphs, PackedGraphs.of(graphs)):
        found = numerators(scores, known, lengths, need_posteriors=True, pool=None)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    alone, none = numerators(scores, graphs, lengths, need_posteriors=False, pool=None)
    torch.testing.assert_close(alone, expected[0], rtol=tolerance, atol=tolerance)
    assert none is None


def test_labels_of_another_network(kernels):
    graph = random_supervision(np.random.default_rng(3), 4, PDFS)
    kernels()
    with pytest.raises(UserError, match="labels"):
        numerators(torch.zeros(1, 4, 2), [graph], [4], need_posteriors=True, pool=None)


@TYPES
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_lfmmi(kernels, dtype, tolerance):
    rng = np.random.default_rng(4)
    graphs, lengths = supervisions(rng)
    initial = rng.dirichlet(np.ones(9))
    denominator = Denominator(graphs[3], initial, PDFS)
    scores = torch.from_numpy(3 * rng.normal(size=(5, 7, PDFS))).to(dtype)
    options = LfmmiOptions(l2=0.01, out_of_range=0.1)
    results = []
    for known in (graphs, PackedGraphs.of(graphs)):
        logits = scores.clone().requires_grad_()
        found = evaluate_lfmmi(logits, known, denominator, options, lengths=lengths)
        found.value.sum().backward()
        results.append((found.value.detach(), found.failed, logits.grad))
        kernels()
    for expected, value in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)


def test_sums_of_many_arcs_fill_tiles_of_their_own():
    rng = np.random.default_rng(5)
    graphs = [random_denominator(rng, 8, 900, PDFS)[0]]
    packed = PackedGraphs.of(graphs)
    tiles = packed.arcs[0].unflatten(2, (-1, packed.tile))
    assert tiles.shape[2] > 1
    for order, key in enumerate((1, 0, 2)):
        own = [set(tile.tolist()) - {-1} for tile in tiles[order, key]]
        assert sum(map(len, own)) == len(set.union(*own))  # no sum in two tiles
        assert (tiles[order, key] >= 0).sum() == 900
