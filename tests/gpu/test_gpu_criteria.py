"""Criteria of scores on a device: values and gradients are those of the processor."""

import numpy as np
import pytest
import torch
from fixtures.pretended_device import CUDA
from reference.lfmmi_naive import random_denominator, random_supervision

from latflow.criteria.ctc import evaluate_ctc
from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.options import (
    CriterionOptions,
    LfmmiOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.options import read_options

PDFS = 12
LENGTHS = [40, 31, 1, 37]


def problem(seed, dtype):
    """A denominator, supervisions and scores."""
    rng = np.random.default_rng(seed)
    graph, initial = random_denominator(rng, 60, 400, PDFS)
    supervisions = [random_supervision(rng, count, PDFS) for count in LENGTHS]
    scores = rng.normal(size=(len(LENGTHS), max(LENGTHS), PDFS))
    denominator = Denominator(graph, initial, PDFS)
    return denominator, supervisions, torch.from_numpy(2 * scores).to(dtype)


def leaf(scores, device):
    return scores.to(device).detach().requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-11)]
)
def test_denominator(device, dtype, tolerance):
    denominator, _, scores = problem(1, dtype)
    here = denominator.forward_backward(scores, LENGTHS, leaky=0.01)
    there = denominator.forward_backward(scores.to(device), LENGTHS, leaky=0.01)
    assert there.posteriors.device.type == device.type
    torch.testing.assert_close(
        there.log_likes.cpu(), here.log_likes, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        there.posteriors.cpu(), here.posteriors, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("device", [CUDA], indirect=True)
def test_denominator_without_triton(device, monkeypatch):
    monkeypatch.setattr("latflow.criteria.denominator.runs_kernels", lambda _: False)
    denominator, _, scores = problem(1, torch.float64)
    here = denominator.forward_backward(scores, LENGTHS, leaky=0.01)
    there = denominator.forward_backward(scores.to(device), LENGTHS, leaky=0.01)
    torch.testing.assert_close(there.log_likes.cpu(), here.log_likes)
    torch.testing.assert_close(there.posteriors.cpu(), here.posteriors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-11)]
)
def test_lfmmi(device, dtype, tolerance):
    denominator, supervisions, scores = problem(2, dtype)
    options = LfmmiOptions(l2=0.01, out_of_range=0.1)
    weights = torch.tensor([1.0, 0.5, 2.0, 1.0])

    def evaluate(logits):
        found = evaluate_lfmmi(
            logits, supervisions, denominator, options, weights, lengths=LENGTHS
        )
        found.value.sum().backward()
        return found, logits.grad.cpu()

    here, expected = evaluate(leaf(scores, "cpu"))
    there, found = evaluate(leaf(scores, device))
    assert not here.failed.any()
    torch.testing.assert_close(
        there.value.detach().cpu(),
        here.value.detach(),
        rtol=tolerance,
        atol=100 * tolerance,
    )
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        there.numerator_posteriors.cpu(),
        here.numerator_posteriors,
        rtol=tolerance,
        atol=tolerance,
    )


def test_a_sequence_without_a_path_stays_alone(device):
    denominator, supervisions, scores = problem(3, torch.float32)
    supervisions[1] = supervisions[0]  # of more frames than it has
    found = evaluate_lfmmi(
        leaf(scores, device), supervisions, denominator, LfmmiOptions(), lengths=LENGTHS
    )
    assert found.failed.tolist() == [False, True, False, False]
    assert found.gradient.isfinite().all()
    assert not found.gradient[1].any()


def test_ctc(device):
    _, graphs, scores = problem(4, torch.float32)

    def evaluate(logits):
        found = evaluate_ctc(logits, graphs, LENGTHS)
        found.log_prob.sum().backward()
        return found.log_prob.detach().cpu(), logits.grad.cpu()

    here, there = evaluate(leaf(scores, "cpu")), evaluate(leaf(scores, device))
    torch.testing.assert_close(there[0], here[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(there[1], here[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mmi", "smbr", "mpfe"])
def test_lattice_criteria(device, system, kind):
    """Scores leave the device, lattices are made of them, their gradient comes back."""
    chosen = read_options(CriterionOptions, {"type": kind, "acoustic_scale": 0.2})
    lattices = make_criterion(chosen, system.model, system.lang.silence_phones)
    utterances = list(system.scores)[:3]
    priors = torch.linspace(-3, -1, system.model.num_pdfs)

    def evaluate(place):
        criterion = system.criterion(
            criterion=lattices, log_priors=priors, ce_weight=0.2, l2=0.01, threads=2
        )
        batch, logits = system.batch(utterances)
        logits, batch = leaf(logits, place), batch.to(place)
        begun = [criterion.begin(system.outputs(logits, batch), batch) for _ in "ab"]
        first, second = (finish() for finish in begun)
        criterion.close()
        first.value.backward()
        assert first.value.item() == second.value.item()
        return first.value.item(), logits.grad.cpu()

    here, there = evaluate("cpu"), evaluate(device)
    assert there[0] == pytest.approx(here[0], rel=1e-5)
    torch.testing.assert_close(there[1], here[1], rtol=1e-3, atol=1e-4)
