"""Trainings that go on under other options, by saying so."""

import json
import logging
from contextlib import contextmanager

import pytest
import torch
from fixtures.stage_task import options, stage, write_inputs
from safetensors.torch import load_file

from latflow.errors import Interrupted, UserError
from latflow.nnet.description import NetworkDescription
from latflow.training.checkpoint import CheckpointStore, read_checkpoint
from latflow.training.train import NetworkJob
from latflow.training.trainer import Trainer

FIXED = {"schedule": {"type": "constant"}, "final": "last", "tensorboard": True}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def train(inputs, tmp_path):
    """Train with some options; returns the model folder."""

    def run(name="model", checkpoints="checkpoints", **training):
        out = tmp_path / name
        chosen = options(**{**FIXED, **training})
        stage(inputs, out, tmp_path / checkpoints, chosen)
        return out

    return run


@contextmanager
def stopped_in(step):
    """Have a training be asked to stop in a step."""
    run = Trainer.run

    def stopped(trainer):
        trainer.should_stop = lambda: trainer._now.step == step
        return run(trainer)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "run", stopped)
        yield


def weights(model):
    return load_file(model / "weights.safetensors")


def assert_same(one, other):
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


def lines(model):
    return [json.loads(line) for line in (model / "log.jsonl").read_text().splitlines()]


def test_a_finished_training_goes_on_to_the_same_bits(train):
    """With a rate that does not fall, 2 epochs and 2 more are 4."""
    whole = train("whole", "others", epochs=4)
    train(epochs=2)
    longer = train("longer", epochs=4, continue_from="last")
    assert_same(longer, whole)
    told = lines(longer)
    assert [x["epoch"] for x in told if x["kind"] == "epoch"] == [1, 2, 3, 4]
    (line,) = [x for x in told if x["kind"] == "continued"]
    assert (line["epoch"], line["batch"]) == (3, 0)
    assert line["changes"] == {"training.epochs": [2, 4]}
    before = told[: told.index(line)]
    assert {x["epoch"] for x in before} == {1, 2}
    assert not [x for x in before if x["kind"] == "final"]
    meta = json.loads((longer / "meta.json").read_text())
    assert meta["continued"]["changes"] == {"training.epochs": [2, 4]}


def test_a_killed_training_goes_on_with_another_rate(train, tmp_path, caplog):
    with stopped_in(5):
        train(epochs=3, learning_rate=0.02)
    with caplog.at_level(logging.INFO):
        model = train(epochs=3, learning_rate=0.005, continue_from="last")
    assert "changed: training.learning_rate 0.02 -> 0.005" in caplog.text
    steps = [line for line in lines(model) if line["kind"] == "step"]
    assert {line["learning_rate"] for line in steps if line["step"] < 5} == {0.02}
    assert {line["learning_rate"] for line in steps if line["step"] > 5} == {0.005}
    (line,) = [x for x in lines(model) if x["kind"] == "continued"]
    kept = next((tmp_path / "checkpoints/finished").glob("*.pt"))
    identity = read_checkpoint(kept)["identity"]
    assert identity["continued"]["changes"] == line["changes"]
    assert identity["training"]["learning_rate"] == 0.005


def test_what_goes_on_may_be_killed_and_goes_on(train):
    train("first", "one", epochs=2)
    whole = train("whole", "one", epochs=4, learning_rate=0.01, continue_from="last")
    train("first", "two", epochs=2)
    with stopped_in(21):
        train("parts", "two", epochs=4, learning_rate=0.01, continue_from="last")
    parts = train("parts", "two", epochs=4, learning_rate=0.01, continue_from="last")
    assert_same(parts, whole)
    assert len([x for x in lines(parts) if x["kind"] == "continued"]) == 1


def test_the_same_training_made_again_begins_anew(train, monkeypatch):
    """As when the code has changed: what is kept of it is not gone on from."""
    first = train(epochs=1)
    begun = []
    monkeypatch.setattr(
        CheckpointStore, "latest", lambda store: begun.append(store.positions())
    )
    assert_same(train("again", epochs=1), first)
    assert begun == [[]]


def test_without_an_earlier_training_it_is_refused(train):
    with pytest.raises(UserError, match="no earlier training of this network"):
        train(epochs=1, continue_from="last")


def test_what_may_not_change_is_named(train):
    train(epochs=1)
    with pytest.raises(UserError) as raised:
        train(epochs=1, continue_from="last", optimizer={"type": "sgd"}, accumulate=2)
    for key in ("training.accumulate", "training.optimizer.type"):
        assert key in str(raised.value)
    assert "leave continue_from out to train again" in str(raised.value)


def test_checkpoints_of_a_finished_training_need_not_be_kept(train, tmp_path):
    train(epochs=1, keep_finished=False)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_an_ensemble_does_not_go_on():
    with pytest.raises(UserError, match="continue_from is of one network"):
        options(continue_from="last", ensemble=2)


def test_a_training_that_says_nothing_is_told_as_before(inputs):
    """So that checkpoints from before there was such an option are gone on from."""
    job = NetworkJob(
        options=options(),
        network=inputs / "network.yaml",
        frames_dir=inputs / "train",
        dev_frames_dir=inputs / "dev",
        source_dir=inputs / "gmm",
        out_dir=inputs / "model",
        checkpoints=inputs / "checkpoints",
    )
    description = NetworkDescription.load(job.network)
    identity = job.identity_with(description, {})
    assert "continue_from" not in identity["training"]
    assert "keep_finished" not in identity["training"]
