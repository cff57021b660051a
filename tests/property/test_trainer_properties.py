"""Properties of the trainer: stops anywhere, learning rates, means of networks."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fixtures.training_task import make_trainer, training_options, write_task
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.errors import Interrupted
from latflow.nnet.model_dir import average_states
from latflow.training.optimizers import Moment, learning_rate

TRAINING = {
    "epochs": 2,
    "learning_rate": 0.02,
    "gradient_noise": 1e-3,
    "optimizer": {"type": "adamw"},
    "final": "last",
    "ema": 0.8,
}
LAYERS = {
    "hidden": {"class": "linear", "from": "data", "size": 8, "activation": "relu"},
    "dropout": {"class": "dropout", "rate": 0.5},
    "output": {"class": "output"},
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    trainer = make_trainer(task, folder, training=TRAINING, layers=LAYERS)
    return trainer.run(), trainer.network.state_dict()


@settings(max_examples=10)
@given(stops=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_wherever_it_is_stopped_it_ends_with_the_same_bits(task, uninterrupted, stops):
    expected, parameters = uninterrupted
    with tempfile.TemporaryDirectory() as folder:
        for stop in [*stops, 0]:
            countdown = iter(range(stop - 1, -(10**6), -1))
            trainer = make_trainer(
                task,
                Path(folder),
                training=TRAINING,
                layers=LAYERS,
                should_stop=lambda countdown=countdown: next(countdown) == 0,
            )
            try:
                result = trainer.run()
            except Interrupted:
                continue
            break
    assert result == expected
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, parameters[name]), name


@given(
    losses=st.lists(st.floats(0.1, 10.0), max_size=8),
    decay=st.floats(0.1, 0.9),
    threshold=st.floats(-0.5, 0.0),
    floor=st.floats(0.0, 0.05),
)
def test_newbob_never_rises_and_keeps_its_floor(losses, decay, threshold, floor):
    chosen = {"type": "newbob", "decay": decay, "threshold": threshold}
    schedule = {**chosen, "min_learning_rate": floor}
    options = training_options(schedule=schedule, learning_rate=0.1)
    history = [{"loss": loss} for loss in losses]
    rates = [
        learning_rate(options, Moment(1, n + 1, 0.0), history[:n])
        for n in range(len(history) + 1)
    ]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) >= floor * (1 - 1e-12)
    # a smaller rate comes by whole factors of `decay`, or is the floor
    for before, after in pairwise(rates):
        assert after in (before, pytest.approx(max(before * decay, floor)))


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_the_mean_of_networks_does_not_depend_on_their_order(seed, count):
    generator = torch.Generator().manual_seed(seed)
    states = [{"w": torch.randn(3, 2, generator=generator)} for _ in range(count)]
    mean = average_states(states)["w"]
    torch.testing.assert_close(mean, average_states(states[::-1])["w"])
    stacked = torch.stack([state["w"].double() for state in states])
    torch.testing.assert_close(mean, stacked.mean(0).float())
