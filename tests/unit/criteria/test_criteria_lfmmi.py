"""LF-MMI against explicit paths and dense matrices, and by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.lfmmi_naive import (
    denominator_by_paths,
    denominator_log_like,
    graph_of,
    numerator_by_paths,
    numerator_log_like,
    random_denominator,
    random_supervision,
)

from latflow.criteria.denominator import Denominator
from latflow.criteria.denominator_kernels import LANES
from latflow.criteria.lfmmi import FAILED_OBJECTIVE, evaluate_lfmmi
from latflow.criteria.numerator import numerator_posteriors
from latflow.criteria.options import LfmmiOptions
from latflow.criteria.packed_graphs import PackedGraphs
from latflow.errors import UserError
from latflow.parallel import worker_pool

PDFS = 5


def problem(seed, *, num_states=4, num_arcs=11, frames=(4, 3, 4), dtype=torch.float64):
    """Random graphs and outputs of a batch."""
    rng = np.random.default_rng(seed)
    graph, initial = random_denominator(rng, num_states, num_arcs, PDFS)
    supervisions = [random_supervision(rng, count, PDFS) for count in frames]
    logits = torch.from_numpy(rng.normal(size=(len(frames), max(frames), PDFS)))
    return graph, initial, supervisions, logits.to(dtype)


@pytest.mark.parametrize("leaky", [0.0, 0.2])
def test_all_paths(leaky):
    graph, initial, supervisions, logits = problem(1, num_states=3, num_arcs=6)
    lengths = [4, 3, 4]
    found = evaluate_lfmmi(
        logits,
        supervisions,
        Denominator(graph, initial, PDFS),
        LfmmiOptions(leaky_hmm=leaky),
        lengths=lengths,
    )
    for i, count in enumerate(lengths):
        scores = logits[i, :count].numpy()
        num, num_posteriors = numerator_by_paths(scores, supervisions[i])
        den, den_posteriors = denominator_by_paths(scores, graph, initial, leaky)
        assert found.num_log_like[i].item() == pytest.approx(num, abs=1e-10)
        assert found.den_log_like[i].item() == pytest.approx(den, abs=1e-10)
        np.testing.assert_allclose(
            found.numerator_posteriors[i, :count], num_posteriors, atol=1e-10
        )
        np.testing.assert_allclose(
            found.gradient[i, :count], num_posteriors - den_posteriors, atol=1e-10
        )


@given(
    seed=st.integers(0, 10**6),
    num_states=st.integers(1, 150),
    leaky=st.sampled_from([1e-5, 0.1, 1.0]),
    frames=st.lists(st.integers(1, 6), min_size=1, max_size=LANES + 4),
)
def test_batches_against_dense_matrices(seed, num_states, leaky, frames):
    graph, initial, supervisions, logits = problem(
        seed, num_states=num_states, num_arcs=3 * num_states, frames=frames
    )
    logits *= 3.0
    found = evaluate_lfmmi(
        logits,
        supervisions,
        Denominator(graph, initial, PDFS),
        LfmmiOptions(leaky_hmm=leaky),
        lengths=frames,
    )
    leaf = logits.clone().requires_grad_()
    for i, count in enumerate(frames):
        den = denominator_log_like(leaf[i, :count], graph, initial, leaky)
        num = numerator_log_like(leaf[i, :count], supervisions[i])
        assert found.value[i].item() == pytest.approx((num - den).item(), abs=1e-9)
        (num - den).backward()
    torch.testing.assert_close(found.gradient, leaf.grad, rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 10**6), frames=st.lists(st.integers(1, 9), min_size=2))
def test_batch_is_its_sequences_in_any_order(seed, frames):
    graph, initial, supervisions, logits = problem(
        seed, num_states=7, num_arcs=30, frames=frames, dtype=torch.float32
    )
    denominator, options = Denominator(graph, initial, PDFS), LfmmiOptions(l2=0.01)
    weights = torch.linspace(0.5, 2.0, len(frames))
    with worker_pool(2) as pool:
        together = evaluate_lfmmi(
            logits,
            supervisions,
            denominator,
            options,
            weights,
            lengths=frames,
            pool=pool,
        )
    for i, count in enumerate(frames):
        alone = evaluate_lfmmi(
            logits[i : i + 1, :count],
            supervisions[i : i + 1],
            denominator,
            options,
            weights[i : i + 1],
        )
        # Not bit by bit: torch's exponential depends on where a number lies.
        torch.testing.assert_close(
            alone.value[0], together.value[i], rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(alone.gradient[0], together.gradient[i, :count])


@given(seed=st.integers(0, 10**6))
def test_names_of_states_mean_nothing(seed):
    rng = np.random.default_rng(seed)
    graph, initial, supervisions, logits = problem(seed, num_states=9, num_arcs=40)
    new = rng.permutation(9)
    arcs = zip(
        new[graph.sources()].tolist(),
        new[graph.next_state].tolist(),
        graph.ilabel.tolist(),
        graph.weight.tolist(),
        strict=True,
    )
    renamed = graph_of(0, list(arcs), dict.fromkeys(range(9), 0.0))
    back = np.empty(9)
    back[new] = initial
    options = LfmmiOptions()
    lengths = [4, 3, 4]
    ours, theirs = (
        evaluate_lfmmi(logits, supervisions, denominator, options, lengths=lengths)
        for denominator in (
            Denominator(graph, initial, PDFS),
            Denominator(renamed, back, PDFS),
        )
    )
    torch.testing.assert_close(ours.value, theirs.value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-9, atol=1e-12)


def test_gradcheck_with_all_terms():
    graph, initial, supervisions, logits = problem(3)
    logits[0, 1, 2], logits[2, 0, 0] = 31.0, -33.0
    logits.requires_grad_()
    weights = torch.tensor([1.0, 0.5, 2.0])
    options = LfmmiOptions(l2=0.03, out_of_range=0.2)
    denominator = Denominator(graph, initial, PDFS)

    def value(scores):
        found = evaluate_lfmmi(
            scores, supervisions, denominator, options, weights, lengths=[4, 3, 4]
        )
        assert (found.out_of_range[[0, 2]] < 0.0).all()
        parts = found.objective + found.l2 + found.out_of_range
        torch.testing.assert_close(found.value, parts)
        return found.value

    assert torch.autograd.gradcheck(value, (logits,), eps=1e-6, atol=1e-6)


@given(
    seed=st.integers(0, 10**6),
    frames=st.lists(st.integers(1, 12), min_size=1, max_size=20),
)
def test_torch_operations_give_the_same(seed, frames):
    graph, initial, _, logits = problem(seed, num_states=20, num_arcs=90, frames=frames)
    denominator = Denominator(graph, initial, PDFS)
    log_likes, posteriors = denominator.forward_backward(logits, frames, leaky=0.1)
    totals, held = torch.empty_like(log_likes), torch.zeros_like(posteriors)
    denominator._run_operations(logits, frames, 0.1, totals, held)
    torch.testing.assert_close(totals, log_likes)
    torch.testing.assert_close(held, posteriors)


def test_float32_is_close_to_float64():
    graph, initial, supervisions, logits = problem(
        5, num_states=400, num_arcs=8000, frames=[120] * 3
    )
    denominator, options = (
        Denominator(graph, initial, PDFS),
        LfmmiOptions(leaky_hmm=1e-5),
    )
    double = evaluate_lfmmi(4 * logits, supervisions, denominator, options)
    single = evaluate_lfmmi(4 * logits.float(), supervisions, denominator, options)
    torch.testing.assert_close(single.value, double.value, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(
        single.gradient, double.gradient.float(), rtol=1e-4, atol=1e-5
    )


def test_large_outputs_are_exact():
    graph, initial, supervisions, logits = problem(7)
    denominator, options = (
        Denominator(graph, initial, PDFS),
        LfmmiOptions(out_of_range=0),
    )
    lengths = [4, 3, 4]
    small = evaluate_lfmmi(logits, supervisions, denominator, options, lengths=lengths)
    shifted = (logits + torch.tensor([500.0, -800.0, 0.0, 90.0])[:, None]).float()
    large = evaluate_lfmmi(shifted, supervisions, denominator, options, lengths=lengths)
    assert not large.failed.any()
    torch.testing.assert_close(large.value, small.value, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(
        large.gradient, small.gradient.float(), rtol=1e-3, atol=1e-3
    )


def test_cyclic_supervision():
    """Flat start: phones that loop; all paths of as many frames."""
    arcs = [
        (0, 1, 1, 0.1),
        (1, 1, 2, 0.7),
        (1, 2, 3, 0.3),
        (2, 2, 4, 0.2),
        (2, 0, 5, 1),
    ]
    graph = graph_of(0, arcs, {2: 0.5, 1: 1.5})
    scores = np.random.default_rng(0).normal(size=(9, PDFS))
    expected, posteriors = numerator_by_paths(scores, graph)
    found = np.zeros_like(scores)
    assert numerator_posteriors(scores, graph, found) == pytest.approx(expected)
    np.testing.assert_allclose(found, posteriors, atol=1e-12)


def test_a_path_that_is_late_survives():
    """The only path that ends is far below the least float64 until the last frames."""
    arcs = [(0, 0, 1, 0.0), (0, 1, 2, 0.0), (1, 1, 3, 0.0)]
    graph = graph_of(0, arcs, {1: 0.0})
    scores = np.full((40, PDFS), -1000.0)
    scores[:, 0] = 0.0  # for state 0, which is not final
    scores[4:, 1] = -1e6  # leaving it is for the first frames
    found = np.zeros_like(scores)
    ways = [-1000.0 - 1000.0 * (39 - t) for t in range(4)]
    expected = float(np.logaddexp.reduce(ways))
    assert numerator_posteriors(scores, graph, found) == pytest.approx(expected)
    np.testing.assert_allclose(found[:, [0, 2]].sum(1) + found[:, 1], 1.0)


@pytest.mark.parametrize("fault", ["no path", "nan", "inf", "no final state"])
def test_a_failure_stays_with_its_sequence(fault):
    graph, initial, supervisions, logits = problem(11, dtype=torch.float32)
    lengths = [4, 3, 4]
    denominator = Denominator(graph, initial, PDFS)
    options = LfmmiOptions(l2=0.1)
    sound = evaluate_lfmmi(logits, supervisions, denominator, options, lengths=lengths)
    logits.requires_grad_()
    spoilt = logits.clone()
    if fault == "no path":
        supervisions[1] = supervisions[0]  # of 4 frames, not 3
    elif fault == "no final state":
        supervisions[1] = graph_of(0, [(0, 0, 1, 0.0)], {})
    else:
        spoilt[1, 2, 0] = float(fault)
    found = evaluate_lfmmi(spoilt, supervisions, denominator, options, lengths=lengths)
    assert found.failed.tolist() == [False, True, False]
    assert found.value[1].item() == FAILED_OBJECTIVE * 3
    assert torch.equal(found.value[[0, 2]], sound.value[[0, 2]])
    found.value.sum().backward()
    assert not logits.grad[1].any()
    assert not found.numerator_posteriors[1].any()
    assert torch.equal(logits.grad[[0, 2]], sound.gradient[[0, 2]])


def test_without_a_gradient():
    graph, initial, supervisions, logits = problem(13)
    denominator, lengths = Denominator(graph, initial, PDFS), [4, 3, 4]
    whole, values = (
        evaluate_lfmmi(
            logits,
            supervisions,
            denominator,
            LfmmiOptions(),
            lengths=lengths,
            need=need,
        )
        for need in ("gradient", "value")
    )
    assert torch.equal(whole.value, values.value)
    assert values.gradient is None
    assert values.numerator_posteriors is None


def test_graphs_of_another_tree_are_refused():
    graph, initial, supervisions, logits = problem(17)
    with pytest.raises(UserError, match="denominator graph has labels"):
        Denominator(graph, initial, 2)
    with pytest.raises(UserError, match="initial probabilities"):
        Denominator(graph, initial[1:], PDFS)
    denominator = Denominator(graph, initial, PDFS)
    for label in (-1, 0, PDFS + 1):
        bad = [*supervisions[:2], graph_of(0, [(0, 1, label, 0.0)], {1: 0.0})]
        with pytest.raises(UserError, match="supervision graph has labels"):
            evaluate_lfmmi(logits, bad, denominator, LfmmiOptions())


@pytest.mark.parametrize("label", [-1, 0, 1, 7])
def test_packed_graphs_know_their_labels(label):
    graph = graph_of(0, [(0, 1, label, 0.5), (1, 1, label, 0.25)], {1: 0.0})
    packed = PackedGraphs.of([graph])
    assert packed is not None
    assert packed.labels == (label, label)
    assert packed.weights.sum(2).tolist() == [[0.75] * 3]  # each arc, in three orders
