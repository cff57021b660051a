"""CTC against torch's, all frame sequences one by one, and differences."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.lfmmi_naive import graph_of
from torch.nn import functional

from latflow.align.ctc import ctc_graph
from latflow.align.transcript_graphs import fewest_frames
from latflow.criteria.ctc import FAILED_LOG_PROB, evaluate_ctc
from latflow.errors import UserError
from latflow.parallel import worker_pool

LABELS = 4  # with the blank


def linear(labels):
    """The acceptor of one label sequence."""
    arcs = [(n, n + 1, label, 0.0) for n, label in enumerate(labels)]
    if not arcs:  # graph_of needs one
        return graph_of(0, [(1, 1, 1, 0.0)], {0: 0.0})
    return graph_of(0, arcs, {len(labels): 0.0})


def read(frames):
    """What CTC reads in a sequence of frames."""
    return tuple(label for label, _ in itertools.groupby(frames) if label)


def logits_of(seed, *shape):
    return torch.from_numpy(2.0 * np.random.default_rng(seed).normal(size=shape))


def alternatives():
    """Pronunciations of one beginning, one of them with a label twice."""
    arcs = [(0, 1, 1), (1, 2, 1), (1, 2, 2), (2, 3, 3), (0, 3, 2)]
    graph = graph_of(0, [(*arc, 0.0) for arc in arcs], {3: 0.0, 2: 0.0})
    return graph, {(1, 1), (1, 2), (1, 1, 3), (1, 2, 3), (2,)}


@pytest.mark.parametrize("num_frames", [1, 2, 3, 6])
def test_all_frame_sequences(num_frames):
    """The graph has those that are read as a pronunciation, each once."""
    labels, wanted = alternatives()
    logits = logits_of(num_frames, 1, num_frames, LABELS).requires_grad_()
    found = evaluate_ctc(logits, [ctc_graph(labels)], [num_frames])
    log_probs = torch.log_softmax(logits, -1)[0]
    totals = [
        sum(log_probs[t, label] for t, label in enumerate(frames))
        for frames in itertools.product(range(LABELS), repeat=num_frames)
        if read(frames) in wanted
    ]
    expected = torch.logsumexp(torch.stack(totals), 0)
    assert found.log_prob.item() == pytest.approx(expected.item(), abs=1e-10)
    ours = torch.autograd.grad(found.log_prob.sum(), logits)[0]
    theirs = torch.autograd.grad(expected, logits)[0]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@given(
    seed=st.integers(0, 10**6),
    batch=st.lists(
        st.tuples(st.lists(st.integers(1, LABELS - 1), max_size=5), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
)
def test_is_the_loss_of_torch(seed, batch):
    """One label sequence each; value and gradient, whatever stands beyond the ends."""
    labels = [sequence for sequence, _ in batch]
    needed = [
        max(1, len(s) + sum(a == b for a, b in itertools.pairwise(s))) for s in labels
    ]
    lengths = [least + more for least, (_, more) in zip(needed, batch, strict=True)]
    logits = logits_of(seed, len(batch), max(lengths), LABELS).requires_grad_()
    graphs = [ctc_graph(linear(sequence)) for sequence in labels]
    for graph, sequence, least in zip(graphs, labels, needed, strict=True):
        assert fewest_frames(graph) == (least if sequence else 0)
    found = evaluate_ctc(logits, graphs, lengths)
    expected = functional.ctc_loss(
        torch.log_softmax(logits, -1).transpose(0, 1),
        torch.tensor([label for s in labels for label in s], dtype=torch.int64),
        torch.tensor(lengths),
        torch.tensor([len(s) for s in labels]),
        reduction="none",
    )
    torch.testing.assert_close(found.log_prob, -expected, atol=1e-9, rtol=1e-9)
    weights = torch.arange(1.0, len(batch) + 1, dtype=torch.float64)
    ours = torch.autograd.grad((weights * found.log_prob).sum(), logits)[0]
    theirs = torch.autograd.grad(-(weights * expected).sum(), logits)[0]
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_gradcheck():
    graphs = [ctc_graph(alternatives()[0]), ctc_graph(linear([2, 2, 1]))]
    logits = logits_of(3, 2, 6, LABELS).requires_grad_()
    torch.autograd.gradcheck(
        lambda x: evaluate_ctc(x, graphs, [4, 6]).log_prob, [logits]
    )


def test_a_transcript_that_is_too_long_has_no_gradient():
    logits = logits_of(4, 2, 3, LABELS).requires_grad_()
    graphs = [ctc_graph(linear([1, 1, 1])), ctc_graph(linear([1, 2, 1]))]
    found = evaluate_ctc(logits, graphs, [3, 3])
    assert found.failed.tolist() == [True, False]
    assert found.log_prob[0].item() == 3 * FAILED_LOG_PROB
    found.log_prob.sum().backward()
    assert logits.grad is not None
    assert logits.grad.any((1, 2)).tolist() == [False, True]


def test_outputs_that_are_no_numbers_are_told():
    logits = logits_of(5, 1, 3, LABELS)
    logits[0, 1, 2] = math.nan
    assert evaluate_ctc(logits, [ctc_graph(linear([1]))], [3]).log_prob.isnan().all()


def test_labels_that_the_network_does_not_have():
    with pytest.raises(UserError, match="labels 1 to 6"):
        evaluate_ctc(logits_of(6, 1, 3, LABELS), [ctc_graph(linear([5]))], [3])


def test_threads_and_float32_change_little():
    graphs = [ctc_graph(linear(labels)) for labels in ([1, 2], [3, 3, 1], [2])]
    logits = logits_of(7, 3, 8, LABELS)
    alone = evaluate_ctc(logits, graphs, [8, 7, 5])
    with worker_pool(2) as pool:
        rough = evaluate_ctc(
            logits.float(), graphs, [8, 7, 5], need_gradient=False, pool=pool
        )
    torch.testing.assert_close(rough.log_prob, alone.log_prob, atol=1e-4, rtol=1e-5)
