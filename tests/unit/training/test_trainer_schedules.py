"""Learning rates by hand, and stopping."""

import math

import pytest
from fixtures.training_task import training_options

from latflow.errors import UserError
from latflow.training.optimizers import Moment, is_exhausted, learning_rate


def rate(
    schedule: dict, *, step=1, epoch=1, progress=0.0, losses=(), warmup=0
) -> float:
    options = training_options(
        schedule=schedule, learning_rate=0.1, warmup_steps=warmup
    )
    history = [{"loss": loss, "frame_errors": loss / 10} for loss in losses]
    moment = Moment(step, epoch, progress)
    return learning_rate(options, moment, history)


def test_constant_with_warm_up():
    rates = [rate({"type": "constant"}, step=s, warmup=4) for s in (1, 2, 4, 5, 100)]
    assert rates == pytest.approx([0.025, 0.05, 0.1, 0.1, 0.1])


def test_halving_from_an_epoch_on():
    schedule = {"type": "halving", "first_epoch": 3}
    rates = [rate(schedule, epoch=e) for e in (1, 2, 3, 4, 5)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.0125])


def test_eden_falls_with_steps_and_epochs():
    schedule = {"type": "eden", "steps": 300.0, "epochs": 2.0}
    assert rate(schedule, step=400) == pytest.approx(0.1 * (25 / 9) ** -0.25)
    both = rate(schedule, step=400, epoch=3)  # two epochs are done
    assert both == pytest.approx(0.1 * (25 / 9) ** -0.25 * 2**-0.25)
    assert rate(schedule, step=10, warmup=100) == pytest.approx(0.01, rel=1e-3)
    far = [rate(schedule, step=s) for s in (100_000, 400_000)]
    assert far[0] / far[1] == pytest.approx(2.0, rel=1e-4)


def test_newbob_falls_where_dev_improves_too_little():
    schedule = {"type": "newbob", "threshold": -0.01}
    assert rate(schedule) == 0.1
    assert rate(schedule, losses=[2.0]) == 0.1  # nothing to compare with
    assert rate(schedule, losses=[2.0, 1.9]) == 0.1  # 5 % better
    assert rate(schedule, losses=[2.0, 1.9, 1.895]) == pytest.approx(0.05)
    assert rate(schedule, losses=[2.0, 1.9, 1.895, 1.7]) == pytest.approx(0.05)
    assert rate(schedule, losses=[2.0, 1.9, 1.895, 1.7, 1.8]) == pytest.approx(0.025)
    absolute = {**schedule, "relative": False, "threshold": -0.02}
    assert rate(absolute, losses=[2.0, 1.97]) == 0.1
    assert rate(absolute, losses=[2.0, 1.99]) == pytest.approx(0.05)
    errors = {**absolute, "measure": "frame_errors"}
    assert rate(errors, losses=[2.0, 1.9]) == pytest.approx(0.05)  # 0.01 in errors
    not_a_number = [2.0, math.nan]
    assert rate(schedule, losses=not_a_number) == pytest.approx(0.05)


def test_newbob_stays_above_its_least_rate():
    schedule = {"type": "newbob", "min_learning_rate": 0.03}
    assert rate(schedule, losses=[1.0] * 9) == pytest.approx(0.03)


def test_newbob_over_several_epochs_decides_by_their_mean():
    schedule = {"type": "newbob", "threshold": -0.01, "epochs": 2}
    losses = [2.0, 1.8, 1.79]  # 10 % better, then 0.6 %
    assert rate({**schedule, "epochs": 1}, losses=losses) == pytest.approx(0.05)
    assert rate(schedule, losses=losses) == 0.1
    assert rate(schedule, losses=[*losses, 1.789]) == pytest.approx(0.05)
    rates = [
        rate({"type": "newbob", "interval": 2}, losses=[1.0] * n) for n in range(1, 7)
    ]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


SCHEDULE = """
def slower(moment, history, *, ratio):
    return ratio ** (moment.epoch - 1) if history else 1.0
def none(moment, history):
    return float("nan")
def last(moment, history):
    return history[-1]["loss"]
"""


def test_schedules_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SCHEDULE)
    schedule = {"type": "custom", "path": f"{path}:slower", "options": {"ratio": 0.5}}
    assert rate(schedule, epoch=3, losses=[1.0, 1.0]) == pytest.approx(0.025)
    assert rate(schedule, epoch=3, step=1, warmup=4) == pytest.approx(0.025)
    for change, message in (
        ({"path": f"{path}:faster"}, "cannot be loaded"),
        ({"path": "no.such.module:f"}, "cannot be loaded"),
        ({"options": {}}, "missing 1 required"),
        ({"path": f"{path}:none", "options": {}}, "gives nan"),
        ({"path": f"{path}:last", "options": {}}, "IndexError: list index"),
    ):
        with pytest.raises(UserError, match=message):
            rate({**schedule, **change})
    with pytest.raises(UserError, match="path"):
        training_options(schedule={"type": "custom", "path": "mine"})


def test_noam_rises_and_falls():
    schedule = {"type": "noam", "warmup": 16}
    assert rate(schedule, step=8) == pytest.approx(0.1 * 8 / 64)
    assert rate(schedule, step=16) == pytest.approx(0.1 / 4)
    assert rate(schedule, step=64) == pytest.approx(0.1 / 8)


def test_cosine_ends_at_its_ratio():
    schedule = {"type": "cosine", "final_ratio": 0.2}
    rates = [rate(schedule, progress=p) for p in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([0.1, 0.06, 0.02])


def test_exponential_falls_by_equal_factors():
    schedule = {"type": "exponential", "final_ratio": 0.01}
    rates = [rate(schedule, progress=p) for p in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([0.1, 0.01, 0.001])


def test_patience():
    def history(*losses):
        return [{"loss": loss} for loss in losses]

    assert not is_exhausted(history(3, 2, 2.5, 2.2), None)
    assert is_exhausted(history(3, 2, 2.5, 2.2), 2)
    assert not is_exhausted(history(3, 2, 2.5, 1.9), 2)
    assert not is_exhausted(history(3, 2), 2)


def test_null_is_a_value_where_the_type_has_it_else_the_default():
    assert training_options(clip_norm=None).clip_norm is None
    assert training_options(epochs=None).epochs == training_options().epochs


def test_unknown_schedules_and_optimizers_are_refused():
    with pytest.raises(UserError, match="schedule"):
        training_options(schedule={"type": "sometimes"})
    with pytest.raises(UserError, match="unknown configuration key .*beta"):
        training_options(optimizer={"type": "adam", "beta": 0.9})
    with pytest.raises(UserError, match="lbfgs"):
        training_options(optimizer={"type": "lbfgs"})
    with pytest.raises(UserError, match="needs a momentum"):
        training_options(optimizer={"type": "sgd", "nesterov": True})
