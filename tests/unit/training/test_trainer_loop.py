"""The whole training: log, choice of parameters, stopping and going on, growth."""

import json
from itertools import pairwise

import pytest
import torch
from fixtures.training_task import make_trainer, training_options, write_task

from latflow.criteria.losses import CrossEntropy
from latflow.criteria.protocol import Loss
from latflow.errors import Interrupted, UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.nnet.model_dir import average_states
from latflow.training.checkpoint import Position
from latflow.training.readers import StoreReader
from latflow.training.train import pretraining_of

DROPOUT = {
    "mask": {"class": "specaugment", "from": "data", "time_width": 3},
    "hidden": {"class": "linear", "size": 12, "activation": "tanh"},
    "norm": {"class": "batch_norm"},
    "dropout": {"class": "dropout", "rate": 0.3},
    "rec": {"class": "rec", "unit": "lstm", "direction": "bidirectional", "size": 5},
    "output": {"class": "output"},
}
ALL_RANDOM = {
    "epochs": 3,
    "learning_rate": 0.02,
    "gradient_noise": 1e-3,
    "accumulate": 2,
    "dev_interval": 2,
    "final": "average",
    "average": 2,
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, utterances=20)
    return folder


def lines(trainer) -> list[dict]:
    return [json.loads(line) for line in trainer.log_file.read_text().splitlines()]


def assert_same(one, other) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_it_learns_and_tells_how(task, tmp_path):
    trainer = make_trainer(
        task,
        tmp_path,
        training={"epochs": 8, "learning_rate": 0.03, "tensorboard": True},
        data={"cache_mb": 1},
    )
    start = trainer.evaluate()
    result = trainer.run()
    assert result.dev["frame_errors"] < 0.5 * start["frame_errors"]
    assert result.dev == trainer.evaluate()
    told = lines(trainer)
    assert [line["epoch"] for line in told if line["kind"] == "epoch"] == list(
        range(1, 9)
    )
    steps = [line for line in told if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(2, result.steps + 1, 2))
    assert all(sum(line["time"].values()) <= 1.01 for line in steps)
    first = [line for line in steps if line["epoch"] == 1]
    dev = trainer.dev
    assert sum(line["frames"] for line in first) <= dev.num_frames
    epoch = next(line for line in told if line["kind"] == "epoch")
    assert epoch["train"]["frames"] == dev.num_frames
    assert epoch["cache"]["pieces"] > 0
    assert list((tmp_path / "tensorboard").iterdir())


class StopAfter:
    """Asks to stop in some step."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self) -> bool:
        self._left -= 1
        return self._left == 0


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(1,), (3, 2, 4)])
def test_stopped_and_gone_on_it_ends_with_the_same_bits(task, tmp_path, stops):
    settings = {"training": ALL_RANDOM, "layers": DROPOUT, "data": {"max_sequences": 5}}
    whole = make_trainer(task, tmp_path / "whole", **settings)
    expected = whole.run()
    for stop in stops:
        trainer = make_trainer(
            task, tmp_path / "parts", should_stop=StopAfter(stop), **settings
        )
        with pytest.raises(Interrupted):
            trainer.run()
    trainer = make_trainer(task, tmp_path / "parts", **settings)
    assert trainer.run() == expected
    assert_same(whole.network, trainer.network)
    kept = ("kind", "epoch", "batch", "step", "loss", "gradient_norm", "dev", "train")
    told = [line["progress"] for line in lines(trainer) if "progress" in line]
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] == 1
    for one, other in zip(lines(whole), lines(trainer), strict=True):
        assert [one.get(key) for key in kept] == [other.get(key) for key in kept]


def test_a_finished_training_is_not_made_again(task, tmp_path):
    settings = {"training": {"epochs": 2}}
    first = make_trainer(task, tmp_path, **settings)
    expected = first.run()
    again = make_trainer(task, tmp_path, **settings)
    assert again.run() == expected
    assert_same(first.network, again.network)


def test_the_best_and_the_average_of_epochs(task, tmp_path):
    # A rate that grows, in the 28 steps, to one so high that dev gets worse and worse.
    common = {"epochs": 4, "learning_rate": 100.0, "warmup_steps": 28}
    common["schedule"] = {"type": "constant"}
    best = make_trainer(task, tmp_path / "best", training={**common, "final": "best"})
    result = best.run()
    losses = [epoch["loss"] for epoch in result.history]
    assert min(losses) < losses[-1]
    assert result.chosen_epoch == losses.index(min(losses)) + 1
    assert best.evaluate()["loss"] == pytest.approx(min(losses), rel=1e-6)
    mean = make_trainer(
        task, tmp_path / "mean", training={**common, "final": "average", "average": 2}
    )
    result = mean.run()
    assert result.chosen_epoch == 0
    states = [mean.store.load(Position(epoch + 1))["model"] for epoch in (3, 4)]
    expected = average_states(states)
    for name, value in mean.network.state_dict().items():
        assert torch.equal(value, expected[name])
    assert result.dev["loss"] < result.history[-1]["loss"]


def test_no_more_epochs_are_averaged_than_is_best_on_dev(task, tmp_path):
    """Of a short training the first epochs are far from the last one."""
    training = {"epochs": 4, "learning_rate": 0.02, "final": "average", "average": 4}
    trainer = make_trainer(task, tmp_path, training=training)
    result = trainer.run()
    ends = [trainer.store.load(Position(e + 1))["model"] for e in (1, 2, 3, 4)]
    other = make_trainer(task, tmp_path / "other", training=training)
    losses = []
    for begin in range(4):
        other.network.load_state_dict(average_states(ends[begin:]))
        losses.append(other.evaluate()["loss"])
    best = losses.index(min(losses))
    assert best > 0
    assert result.dev["loss"] == pytest.approx(losses[best], rel=1e-6)
    assert lines(trainer)[-1]["epochs"] == list(range(best + 1, 5))
    expected = average_states(ends[best:])
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, expected[name])


def test_patience_ends_the_training(task, tmp_path):
    training = {"epochs": 50, "learning_rate": 0.3, "patience": 1}
    training["schedule"] = {"type": "constant"}
    result = make_trainer(task, tmp_path, training=training).run()
    losses = [epoch["loss"] for epoch in result.history]
    assert result.epochs == len(losses) < 50
    assert losses[-1] >= losses[-2] == min(losses)


def test_newbob_lowers_the_rate(task, tmp_path):
    training = {"epochs": 4, "learning_rate": 0.1, "final": "last"}
    training["schedule"] = {"type": "newbob", "threshold": -0.99}
    trainer = make_trainer(task, tmp_path, training=training)
    trainer.run()
    rates = [
        line["learning_rate"] for line in lines(trainer) if line["kind"] == "epoch"
    ]
    # of epochs 1 and 2 there is nothing, or one dev result, to compare
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.025])


@pytest.fixture
def grown(task):
    """Make a trainer whose network gets its three layers in three epochs."""
    layers = {
        "one": {"class": "linear", "from": "data", "size": 8, "activation": "tanh"},
        "two": {"class": "linear", "size": 8, "activation": "tanh"},
        "three": {"class": "linear", "size": 8, "activation": "tanh"},
        "output": {"class": "output"},
    }
    common = {"epochs": 4, "pretraining": 1, "learning_rate": 0.02}

    def make(folder, training=None, **others):
        training = {**common, **(training or {})}
        trainer = make_trainer(task, folder, layers=layers, training=training, **others)
        trainer.pretraining = pretraining_of(
            trainer.network, trainer.options, trainer.seed
        )
        trainer.__post_init__()
        return trainer

    return make


def test_a_network_grows_and_goes_on_growing_after_a_stop(grown, tmp_path):
    whole = grown(tmp_path / "whole")
    assert whole.network.layer("one")
    with pytest.raises(KeyError):
        whole.network.layer("two")
    expected = whole.run()
    assert expected.chosen_epoch >= 3
    assert whole.network.layer("three")
    steps = expected.steps // 4
    stopped = grown(tmp_path / "parts", should_stop=StopAfter(steps + 2))
    with pytest.raises(Interrupted):
        stopped.run()
    rest = grown(tmp_path / "parts")
    assert rest.run() == expected
    assert_same(whole.network, rest.network)


def test_patience_begins_when_all_layers_are_there(grown, tmp_path):
    # So low a rate that dev changes by little but what new layers do to it.
    training = {"epochs": 9, "learning_rate": 1e-9, "patience": 1}
    trainer = grown(tmp_path, {**training, "schedule": {"type": "constant"}})
    result = trainer.run()
    losses = [epoch["loss"] for epoch in result.history]
    assert any(later >= first for first, later in pairwise(losses[:3]))
    assert result.epochs >= 4
    assert trainer.network.layer("three")


def test_pretraining_must_end_before_the_training(task, tmp_path):
    network = make_trainer(task, tmp_path).network
    options = training_options(epochs=2, pretraining=2)
    with pytest.raises(UserError, match="pretraining takes 2 epochs"):
        pretraining_of(network, options, 1)


class Deep(CrossEntropy):
    """Cross-entropy that keeps three parts between begin and finish."""

    max_pending = 3

    def __init__(self, losses) -> None:
        super().__init__(losses)
        self.events: list[str] = []
        self.totals: list[dict] = []

    def begin(self, outputs, batch):
        ready, events = super().begin(outputs, batch), self.events
        events.append("begin")

        def finish():
            events.append("finish")
            return ready()

        return finish

    def stepped(self, totals) -> None:
        self.totals.append(dict(totals))

    def state(self):
        return {"steps": len(self.totals)}

    def load_states(self, states, *, is_main) -> None:
        assert is_main
        (state,) = states
        self.totals = [{}] * state["steps"]


def test_parts_overlap_as_deep_as_the_criterion_allows(task, tmp_path):
    training = {"epochs": 1, "micro_sequences": 1}
    plain = make_trainer(task, tmp_path / "plain", training=training)
    plain.run()
    deep = make_trainer(task, tmp_path / "deep", training=training)
    criterion = Deep({n: o.loss for n, o in deep.network.outputs.items()})
    deep.criterion, deep.dev_criterion = criterion, deep.criterion
    deep.set_up()
    result = deep.run()
    assert_same(plain.network, deep.network)
    # six parts in the first step: never more than three are open
    first = criterion.events[:12]
    assert first == ["begin"] * 3 + ["finish", "begin"] * 3 + ["finish"] * 3
    assert len(criterion.totals) == result.steps
    assert set(criterion.totals[0]) == {"frames", "loss", "frame_errors"}
    again = make_trainer(task, tmp_path / "deep", training=training)
    again.criterion = Deep(criterion.losses)
    again.dev_criterion = plain.criterion
    again.set_up()
    again.run()
    assert len(again.criterion.totals) == result.steps


class CountsNothing(CrossEntropy):
    """Cross-entropy that leaves all frames of the first steps out."""

    left = 3

    def begin(self, outputs, batch):
        self.left -= self.left > 0
        found = super().begin(outputs, batch)()
        if self.left:
            found = Loss(0.0 * found.value, 0, {"frame_errors": 0})
        return lambda: found


def test_lines_of_the_log_have_means(task, tmp_path):
    training = {"epochs": 1, "log_interval": 1}
    trainer = make_trainer(task, tmp_path, training=training)
    outputs = trainer.network.outputs
    trainer.dev_criterion = trainer.criterion
    trainer.criterion = CountsNothing({name: o.loss for name, o in outputs.items()})
    trainer.set_up()
    trainer.run()
    steps = [line for line in lines(trainer) if line["kind"] == "step"]
    assert [line["step"] for line in steps[:2]] == [3, 4]
    assert all(line["frames"] and "loss" in line for line in steps)


def test_a_dev_loss_that_is_no_number_chooses_no_epoch(task, tmp_path):
    trainer = make_trainer(task, tmp_path, training={"epochs": 2})
    good = trainer.dev.reader
    store = good.store
    with FrameWriter(tmp_path / "bad", dim=store.dim) as writer:
        for i, name in enumerate(store.utt_ids):
            frames = store.frames(i).copy()
            frames[0, 0] = float("nan") if i == 3 else frames[0, 0]
            writer.append(name, "s", "", frames)
    trainer.dev.reader = StoreReader(FrameStore.load(tmp_path / "bad"))
    with pytest.raises(UserError, match=f"^{store.utt_ids[3]}: the loss on the dev"):
        trainer.run()
