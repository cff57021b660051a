"""Steps far from those before: judged by hand, skipped, clipped, told, resumed."""

import json
import math

import numpy as np
import pytest
import torch
from fixtures.training_task import DIM, make_trainer, training_options, write_task

from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.ledger import Ledger
from latflow.report.records import NetworkMeta
from latflow.report.training import training_facts
from latflow.training.labels import LabelWriter
from latflow.training.launch import Interrupted
from latflow.training.optimizer_options import OutlierOptions
from latflow.training.outliers import OutlierRule, Verdict
from latflow.training.task import note_outliers

# Utterances of one batch each, in their stored order; the eighth is far from the rest.
BATCHES = {"order": "default", "max_sequences": 1, "sequences": {"type": "utterances"}}
RULE = {"history": 5, "loss": None, "gradient_norm": 20.0}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    rng = np.random.default_rng(5)
    with (
        FrameWriter(folder / "frames", dim=DIM) as frames,
        LabelWriter(folder / "labels", 5) as labels,
    ):
        for number in range(12):
            values = rng.normal(size=(20, DIM)).astype(np.float32)
            if number == 7:
                values *= 1e4
            frames.append(f"u{number:02d}", "s", "", values)
            labels.append(f"u{number:02d}", rng.integers(0, 5, 20).astype(np.int32))
    return folder


def trainer_of(task, folder, rule, **others):
    training = {
        "epochs": 2,
        "optimizer": {"type": "sgd"},
        "learning_rate": 1e-3,
        "schedule": {"type": "constant"},
        "clip_norm": None,
        "outliers": rule,
        "log_interval": 1,
    }
    layers = {"output": {"class": "output", "from": "data"}}
    return make_trainer(
        task, folder, data=BATCHES, training=training, layers=layers, **others
    )


def test_far_is_so_many_deviations_above_the_median():
    rule = OutlierRule(OutlierOptions(history=5, loss=2.0, gradient_norm=None))
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0):  # median 3, of distances 1
        assert rule.judge(loss, 1.0) == Verdict()
    assert rule.judge(3.0 + 2.0 * 1.4826 - 0.01, 99.0) == Verdict()
    again = OutlierRule(rule.options)
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
        again.judge(loss, 1.0)
    kept = again.state()
    verdict = again.judge(3.0 + 2.0 * 1.4826 + 0.01, 99.0)
    assert verdict == Verdict(is_outlier=True, is_made=False)
    resumed = OutlierRule(rule.options)
    resumed.load_state(kept)
    assert resumed.judge(3.0 + 2.0 * 1.4826 + 0.01, 99.0) == verdict


def test_a_loss_that_stays_higher_becomes_usual():
    rule = OutlierRule(OutlierOptions(history=5, loss=5.0))
    verdicts = [rule.judge(loss, 1.0).is_outlier for loss in [1.0] * 5 + [9.0] * 6]
    assert verdicts[5:] == [True, True, True, False, False, False]


def test_clipping_is_to_the_median_length():
    rule = OutlierRule(OutlierOptions(action="clip", history=4, gradient_norm=5.0))
    for norm in (1.0, 2.0, 3.0, 4.0):
        rule.judge(0.0, norm)
    assert rule.judge(0.0, 100.0) == Verdict(is_outlier=True, max_norm=2.5)


@pytest.mark.parametrize("action", ["skip", "clip"])
def test_an_outlier_changes_no_more_than_it_may(task, tmp_path, action):
    moved = {}
    for name, rule in (("off", None), (action, {**RULE, "action": action})):
        trainer = trainer_of(task, tmp_path / name, rule)
        before = [p.detach().clone() for p in trainer.network.parameters()]
        result = trainer.run()
        after = [p.detach() for p in trainer.network.parameters()]
        changes = [float((a - b).norm()) for a, b in zip(after, before, strict=True)]
        moved[name] = math.hypot(*changes)
        steps = [found["step"] for found in result.outliers]
        assert steps == ([] if rule is None else [8, 20])
    assert moved["off"] > 10.0 * moved[action]


def test_outliers_are_in_log_ledger_and_report(task, tmp_path):
    trainer = trainer_of(task, tmp_path, RULE)
    result = trainer.run()
    lines = [json.loads(line) for line in trainer.log_file.read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "outlier"]
    assert [(line["step"], line["utterances"]) for line in told] == [
        (8, ["u07"]),
        (20, ["u07"]),
    ]
    ledger = Ledger("train_network")
    note_outliers(result, trainer.options, ledger)
    assert [(e.utterance, e.action) for e in ledger.entries] == [("u07", "noted")] * 2
    assert ledger.entries[0].reason.startswith("step 8 was skipped as an outlier: loss")
    meta = {
        "options": {"training": trainer.options.values()},
        "outliers": result.outliers,
    }
    made = {"dim_in": 1, "classes": {"output": 2}}

    def facts(**meta):
        return training_facts(NetworkMeta.model_validate(made | meta))

    assert facts(**meta) == {"steps skipped as outliers": "2"}
    assert facts(options={"training": {"outliers": None}}) == {}
    several = facts(options={"training": {"ensemble": 3}})
    assert several["networks"].startswith("3, fused")


def test_stopped_and_gone_on_it_judges_alike(task, tmp_path):
    expected = trainer_of(task, tmp_path / "whole", RULE)
    result = expected.run()
    asked = iter([*[False] * 6, True])
    stopped = trainer_of(
        task, tmp_path / "parts", RULE, should_stop=lambda: next(asked)
    )
    with pytest.raises(Interrupted):
        stopped.run()
    again = trainer_of(task, tmp_path / "parts", RULE)
    assert again.run() == result
    for name, value in expected.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])


def test_rules_that_judge_nothing_are_refused():
    with pytest.raises(UserError, match="nothing is far"):
        training_options(outliers={"loss": None, "gradient_norm": None})
    with pytest.raises(UserError, match="leave out one of the two"):
        training_options(outliers={}, parameter_averaging=5)


def test_without_outliers_the_rule_changes_no_bit(tmp_path):
    write_task(tmp_path)
    rules = {"off": None, "on": {"loss": 1e9, "gradient_norm": 1e9, "history": 4}}
    one, other = (
        make_trainer(
            tmp_path, tmp_path / name, training={"epochs": 2, "outliers": rule}
        )
        for name, rule in rules.items()
    )
    assert one.run() == other.run()
