"""Cross-entropy by hand, with padding, smoothing, weights and several outputs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latflow.criteria.batch import Batch
from latflow.criteria.losses import CrossEntropy
from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.nnet.network import Output


def batch_of(targets: dict[str, torch.Tensor], weight=None) -> Batch:
    shape = next(iter(targets.values())).shape
    counted = torch.stack([t >= 0 for t in targets.values()]).any(0).sum(1)
    return Batch(
        utterances=tuple(f"u{b}" for b in range(shape[0])),
        features=torch.zeros(*shape, 1),
        lengths=torch.full(shape[:1], shape[1]),
        targets=targets,
        first_frame=torch.zeros(shape[:1], dtype=torch.int64),
        indices=torch.arange(shape[0]),
        counted=counted,
        weight=weight,
    )


def loss_of(criterion, logits: dict[str, torch.Tensor], batch: Batch):
    lengths = batch.lengths
    outputs = {name: Output(value, lengths) for name, value in logits.items()}
    return criterion.begin(outputs, batch)()


def test_two_frames_by_hand():
    # frame 0: scores 0 and log 3: p = 1/4, 3/4; label 0, wrongly classified
    # frame 1: scores 0 and 0: p = 1/2; label 0, rightly (the first of equals)
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    criterion = CrossEntropy({"output": OutputLoss("ce", "pdf", 1.0)})
    loss = loss_of(
        criterion,
        {"output": logits},
        batch_of({"pdf": torch.zeros(1, 2, dtype=torch.int64)}),
    )
    assert float(loss.value) == pytest.approx(math.log(4.0) + math.log(2.0))
    assert loss.num_frames == 2
    assert float(loss.statistics["frame_errors"]) == 1
    assert loss.by_sequence is not None
    assert loss.by_sequence.tolist() == pytest.approx([math.log(8.0)])


def test_smoothing_spreads_the_label_over_all_classes():
    logits = torch.tensor([[[0.0, math.log(3.0)]]])
    criterion = CrossEntropy(
        {"output": OutputLoss("ce", "pdf", 1.0)}, label_smoothing=0.2
    )
    loss = loss_of(
        criterion,
        {"output": logits},
        batch_of({"pdf": torch.zeros(1, 1, dtype=torch.int64)}),
    )
    expected = -(0.9 * math.log(0.25) + 0.1 * math.log(0.75))
    assert float(loss.value) == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("focal", [0.5, 2.0])
def test_focal_loss_weighs_frames_by_what_is_missed(focal, smoothing):
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 9.0], [50.0, 0.0]]])
    logits.requires_grad_()
    ways = {"label_smoothing": smoothing, "focal": focal}
    criterion = CrossEntropy({"output": OutputLoss("ce", "pdf", 1.0)}, **ways)
    batch = batch_of({"pdf": torch.tensor([[0, -1, 0]])})
    loss = loss_of(criterion, {"output": logits}, batch)
    expected = 0.0
    for p in (0.25, 1.0 / (1.0 + math.exp(-50.0))):
        other = max(1.0 - p, math.exp(-50.0))
        ce = -(1 - smoothing / 2) * math.log(p) - smoothing / 2 * math.log(other)
        expected += max(1.0 - p, 1e-6) ** focal * ce
    assert loss.value.item() == pytest.approx(expected, rel=1e-5)
    loss.value.backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[0, 1] == 0).all()


@given(st.integers(0, 2**31))
def test_the_gradient_of_focal_loss_is_that_of_its_value(seed):
    logits = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(seed))
    logits.requires_grad_()
    labels = torch.tensor([[0, 1, -1]])
    criterion = CrossEntropy({"output": OutputLoss("ce", "pdf", 1.0)}, focal=2.0)
    loss_of(criterion, {"output": logits}, batch_of({"pdf": labels})).value.backward()
    again = logits.detach().double().requires_grad_()
    log_p = torch.log_softmax(again, -1)[0, [0, 1], [0, 1]]
    (-(log_p * (1 - log_p.exp()) ** 2).sum()).backward()
    torch.testing.assert_close(logits.grad.double(), again.grad, rtol=1e-4, atol=1e-5)


def test_outputs_add_up_with_their_scales_and_weights():
    torch.manual_seed(1)
    logits = {name: torch.randn(2, 3, 4, requires_grad=True) for name in ("a", "b")}
    targets = {
        "pdf": torch.tensor([[0, 1, -1], [2, 3, 3]]),
        "phone": torch.tensor([[1, -1, -1], [0, 0, 2]]),
    }
    losses = {"a": OutputLoss("ce", "pdf", 1.0), "b": OutputLoss("ce", "phone", 0.3)}
    weight = torch.tensor([1.0, 2.0])
    criterion = CrossEntropy(losses)
    assert criterion.statistics == ("frame_errors", "frame_errors.b", "ce.b")
    loss = loss_of(criterion, logits, batch_of(targets, weight))
    expected = 0.0
    for name, output in losses.items():
        log_probs = torch.log_softmax(logits[name].detach().double(), -1)
        for b in range(2):
            for t in range(3):
                label = int(targets[output.target][b, t])
                if label >= 0:
                    expected -= output.scale * weight[b] * log_probs[b, t, label]
    assert loss.value.item() == pytest.approx(float(expected), rel=1e-6)


def test_no_labels_of_that_name():
    criterion = CrossEntropy({"output": OutputLoss("ce", "phone", 1.0)})
    batch = batch_of({"pdf": torch.zeros(1, 1, dtype=torch.int64)})
    with pytest.raises(UserError, match="no targets called phone - .* pdf"):
        loss_of(criterion, {"output": torch.zeros(1, 1, 2)}, batch)
    with pytest.raises(ValueError, match="needs an output"):
        CrossEntropy({})


@given(st.integers(0, 2**31), st.floats(0.0, 0.9), st.floats(-3.0, 3.0))
def test_gradient_is_the_values_and_scales_with_what_comes_in(seed, smoothing, factor):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 4, (2, 3), generator=generator)
    batch = batch_of({"pdf": labels})
    criterion = CrossEntropy(
        {"output": OutputLoss("ce", "pdf", 1.0)}, label_smoothing=smoothing
    )
    logits.requires_grad_()
    (factor * loss_of(criterion, {"output": logits}, batch).value).backward()
    one_hot = torch.nn.functional.one_hot(labels.clamp(min=0), 4).double()
    wanted = (1 - smoothing) * one_hot + smoothing / 4
    is_counted = (labels >= 0).unsqueeze(2)
    expected = factor * (torch.softmax(logits, -1) - wanted) * is_counted
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected.detach(), atol=1e-5, rtol=1e-4)
