"""The moving average of parameters: its values, what dev sees, the finished model."""

import copy

import pytest
import torch
from fixtures.training_task import make_trainer, training_options, write_task
from torch import nn

from latflow.errors import UserError
from latflow.training.checkpoint import Position
from latflow.training.epoch_choice import EpochChoice
from latflow.training.moving_average import MovingAverage

SETTINGS = {"epochs": 3, "learning_rate": 0.05, "ema": 0.9, "keep_checkpoints": 3}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def test_it_is_what_the_formula_says():
    network = nn.Linear(1, 1, bias=False)
    average, wanted = MovingAverage(network, 0.5), None
    for step, value in enumerate([4.0, 8.0, -2.0, 1.0, 3.0, 7.0, 5.0, 9.0, 2.0], 1):
        network.weight.data.fill_(value)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = value if wanted is None else decay * wanted + (1 - decay) * value
        with average.in_network():
            assert network.weight.item() == pytest.approx(wanted, rel=1e-6)
        assert network.weight.item() == value
    average.put_in()
    assert network.weight.item() == pytest.approx(wanted, rel=1e-6)


def test_without_a_decay_nothing_happens():
    network = nn.Linear(1, 1)
    average = MovingAverage(network, None)
    average.update(1)
    before = network.weight.item()
    with average.in_network():
        assert network.weight.item() == before
    assert average.state() == {}


@pytest.mark.parametrize("final", ["last", "best", "average"])
def test_dev_and_the_model_are_of_the_average(task, tmp_path, monkeypatch, final):
    settings = SETTINGS | {"final": final, "average": 2}
    if final == "average":  # on dev the last one alone is better
        monkeypatch.setattr(EpochChoice, "candidates", [[2, 3]])
    trainer = make_trainer(task, tmp_path, training=settings)
    kept = {}
    save = trainer.store.save

    def saved(position, state, wanted):
        kept[position] = copy.deepcopy(state)
        return save(position, state, wanted)

    trainer.store.save = saved
    result = trainer.run()
    ends = [kept[Position(epoch + 1)] for epoch in (1, 2, 3)]
    losses = [epoch["loss"] for epoch in result.history]
    chosen = {"last": [2], "best": [losses.index(min(losses))], "average": [1, 2]}
    found = trainer.network.state_dict()
    for name, value in found.items():
        mean = torch.stack([ends[i]["ema"][name] for i in chosen[final]]).mean(0)
        torch.testing.assert_close(value, mean)
        assert not torch.equal(value, ends[chosen[final][-1]]["model"][name])
    # dev of the last epoch is of its average
    trainer.network.load_state_dict(ends[2]["model"] | ends[2]["ema"])
    assert trainer.evaluate()["loss"] == pytest.approx(losses[2], rel=1e-6)


def test_ranks_that_train_alone_have_none():
    with pytest.raises(UserError, match="parameter_averaging they train alone"):
        training_options(ema=0.9, parameter_averaging=4)


def test_the_best_mean_is_put_in_once():
    options = training_options(**SETTINGS, final="average")
    choice = EpochChoice([{"loss": 3.0}, {"loss": 2.0}], options)
    put_in = []
    found = choice.take_best(put_in.append, lambda: {"loss": 1.0})
    assert found == ([1, 2], {"loss": 1.0})
    assert put_in == [[1, 2]]
