"""Consistency regularization: its value and gradient, views, a training."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fixtures.training_task import make_trainer, training_options, write_task

from latflow.criteria.consistency import Consistent, divergence, with_second_view
from latflow.criteria.losses import losses_of
from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.nnet.network import Output
from latflow.training.task import _criterion_of

LAYERS = {
    "mask": {"class": "specaugment", "time_masks": 2, "time_width": 4},
    "hidden": {"class": "linear", "size": 12, "activation": "tanh"},
    "output": {"class": "output"},
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def test_value_and_gradient_are_those_of_the_formula():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 5, 3, generator=generator, requires_grad=True)
    lengths = torch.tensor([5, 3, 5, 3])
    found = divergence(Output(logits, lengths))
    logs = logits.detach().double().log_softmax(-1)
    gradient = torch.zeros_like(logs)
    for row in (0, 1):
        wanted = 0.0
        for t in range(int(lengths[row])):
            p, q = logs[row, t].exp(), logs[row + 2, t].exp()
            wanted += float((q * (q / p).log()).sum() + (p * (p / q).log()).sum())
            gradient[row, t], gradient[row + 2, t] = p - q, q - p
        assert found[row].item() == pytest.approx(wanted, rel=1e-5)
    found.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), gradient, rtol=1e-4, atol=1e-6)


def test_views_are_the_same_sequences_with_other_masks(task, tmp_path):
    trainer = make_trainer(task, tmp_path, layers=LAYERS)
    batches = trainer.batches.epoch(0)
    batch = next(batches)
    batches.close()
    both, count = with_second_view(batch), len(batch)
    assert both.utterances == batch.utterances * 2
    assert torch.equal(both.features[:count], both.features[count:])
    network = trainer.network.train()
    layers = {
        "layers": ["mask"],
        "draws": both.draws(),
    }
    masked = network(both.features, both.lengths, **layers)["mask"].logits
    alone = network(
        batch.features, batch.lengths, layers=["mask"], draws=batch.draws()
    )["mask"].logits
    assert torch.equal(masked[:count], alone)
    assert not torch.equal(masked[:count], masked[count:])


def test_the_loss_is_that_of_both_views_and_their_consistency(task, tmp_path):
    trainer = make_trainer(task, tmp_path, layers=LAYERS)
    batches = trainer.batches.epoch(0)
    both = with_second_view(next(batches))
    batches.close()
    outputs = trainer.network.train()(both.features, both.lengths, draws=both.draws())
    inner = losses_of(trainer.network)
    loss = Consistent(inner, ["output"], 0.3).begin(outputs, both)()
    plain = inner.begin(outputs, both)()
    found = divergence(outputs["output"]).sum()
    torch.testing.assert_close(loss.value, plain.value + 0.3 * found)
    assert loss.num_frames == plain.num_frames
    assert loss.statistics["consistency"] == found
    torch.testing.assert_close(loss.by_sequence.sum(), loss.value)


def test_a_step_without_weight_is_that_of_a_batch_of_both(task, tmp_path):
    """Where views are alike nothing changes: the mean of two equal losses."""
    layers = copy.deepcopy(LAYERS)
    del layers["mask"]
    found = []
    for weight in (0.0, 0.2):
        settings = {"epochs": 1, "optimizer": {"type": "sgd"}, "consistency": weight}
        trainer = make_trainer(
            task, tmp_path / str(weight), layers=layers, training=settings
        )
        if weight:
            trainer.criterion = Consistent(trainer.criterion, ["output"], weight)
            trainer.set_up()
        trainer.run()
        found.append(trainer.network.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-6)


def test_views_that_differ_by_a_constant_are_alike():
    logits = torch.randn(2, 4, 3)
    output = Output(torch.cat((logits, logits + 1.0)), torch.tensor([4, 2, 4, 2]))
    torch.testing.assert_close(divergence(output), torch.zeros(2).double())


def test_a_network_without_posteriors_of_frames_is_refused():
    description = SimpleNamespace(
        outputs={"it": OutputLoss("attention", "unit", 1.0)}, file=None
    )
    task = SimpleNamespace(network=SimpleNamespace(description=description))
    with pytest.raises(UserError, match="of CTC or cross-entropy, and the network has"):
        _criterion_of(task, training_options(consistency=0.2))
