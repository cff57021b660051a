"""ScaledAdam: steps by hand, what they do not depend on, clipping, going on."""

import copy

import pytest
import torch
from fixtures.training_task import make_trainer, write_task
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from latflow.errors import Interrupted
from latflow.training.scaled_adam import ScaledAdam


def trained(values, gradients, rate=0.05, **options):
    """Return a parameter after a step for each gradient, and the optimizer."""
    parameter = Parameter(torch.as_tensor(values, dtype=torch.float64).clone())
    optimizer = ScaledAdam([parameter], rate, **options)
    for gradient in gradients:
        parameter.grad = torch.as_tensor(gradient, dtype=torch.float64).clone()
        optimizer.step()
    return parameter.detach(), optimizer


def drawn(seed, steps=6, shape=(3, 4)):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(steps + 1, *shape, generator=generator, dtype=torch.float64)
    return values[0], values[1:]


def by_hand(values, gradients, rate):
    """The steps of the paper, equation by equation, number by number."""
    beta1, beta2, share = 0.9, 0.98, 0.1
    numbers = values.flatten().tolist()
    m, v = [0.0] * len(numbers), [0.0] * len(numbers)
    n = w = 0.0
    for t, gradient in enumerate(gradients.flatten(1).tolist(), 1):
        r = (sum(x * x for x in numbers) / len(numbers)) ** 0.5
        correction = (1 - beta2**t) ** 0.5 / (1 - beta1**t)
        shape = [x / r for x in numbers]
        h = sum(g * x for g, x in zip(gradient, shape, strict=True))
        n, w = beta1 * n + (1 - beta1) * h, beta2 * w + (1 - beta2) * h * h
        scale_step = -share * rate * r * correction * n / w**0.5
        for i, g in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            own = -rate * r * correction * m[i] / v[i] ** 0.5
            numbers[i] += own + scale_step * shape[i]
    return torch.tensor(numbers, dtype=torch.float64).view_as(values)


@given(st.integers(0, 1000), st.floats(1e-3, 0.1))
def test_steps_are_those_of_the_paper(seed, rate):
    values, gradients = drawn(seed)
    found, _ = trained(values, gradients, rate, eps=1e-300)
    torch.testing.assert_close(found, by_hand(values, gradients, rate))


@given(st.integers(0, 1000), st.floats(1e-4, 1e4))
def test_the_size_of_gradients_does_not_matter(seed, factor):
    values, gradients = drawn(seed)
    one, _ = trained(values, gradients, eps=1e-300, clip_history=4)
    other, _ = trained(values, factor * gradients, eps=1e-300, clip_history=4)
    torch.testing.assert_close(one, other)


@given(st.integers(0, 1000), st.floats(0.01, 1.0))
def test_steps_grow_with_the_parameter(seed, factor):
    values, gradients = drawn(seed)
    one, _ = trained(values, gradients, eps=1e-300)
    # a network that multiplies by 1 / factor has gradients that are larger by that
    other, _ = trained(factor * values, gradients / factor, eps=1e-300)
    torch.testing.assert_close(factor * one, other)


def test_the_first_step_is_a_share_of_the_size():
    values, gradients = drawn(3, steps=1)
    gradients -= (gradients * values).sum() / values.square().sum() * values  # shape
    found, _ = trained(values, gradients, 0.05)
    rms = values.square().mean().sqrt()
    torch.testing.assert_close((found - values).abs(), (0.05 * rms).expand(3, 4))


def test_a_gradient_along_the_parameter_changes_its_size_alone():
    values = torch.ones(2, 2)
    (found, _), (twin, _) = trained(values, [values]), trained(values, [-values])
    assert found.unique().tolist() == pytest.approx([1 - 0.05 - 0.005])
    assert twin.unique().tolist() == pytest.approx([1 + 0.05 + 0.005])


def test_single_numbers_have_steps_of_their_own_and_bounds():
    found, _ = trained([200.0], [[1.0]])
    assert found.item() == 10.0
    small, _ = trained([1e-6], [[1.0]])
    assert small.item() == pytest.approx(1e-6 - 0.05 * 0.1)


def test_sizes_stay_within_bounds():
    zeros, _ = trained(torch.zeros(5), torch.ones(240, 5))
    assert -3.0 < zeros.max() < -0.05  # out of nothing, by its rate a step
    large, _ = trained(torch.full((4,), 3.5), torch.zeros(60, 4))
    assert large.max() < 3.0 + 1e-9
    assert large.min() > 2.9


def test_long_gradients_are_shortened_to_twice_the_median():
    values, gradients = drawn(5, steps=8)
    gradients[:] = gradients[0]
    long = gradients.clone()
    long[6] *= 100.0
    capped = gradients.clone()
    rms = [trained(values, long[:k], clip_history=6)[0] for k in range(7)]
    weights = [v.square().mean().sqrt() for v in rms]
    lengths = [float(w * gradients[0].norm()) for w in weights]
    median = float(torch.tensor(lengths[:6]).median())
    capped[6] *= 2.0 * median / lengths[6]
    found, optimizer = trained(values, long, clip_history=6)
    expected, _ = trained(values, capped, clip_scale=None)
    torch.testing.assert_close(found, expected)
    (state,) = optimizer.state.values()
    assert len(state["lengths"]) == 6
    unbound, _ = trained(values, long, clip_scale=None)
    assert not torch.allclose(found, unbound)


def test_it_goes_on_with_the_same_bits():
    values, gradients = drawn(6, steps=12)
    whole, _ = trained(values, gradients, clip_history=4)
    half, optimizer = trained(values, gradients[:6], clip_history=4)
    resumed = Parameter(half.clone())
    other = ScaledAdam([resumed], 0.05, clip_history=4)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for gradient in gradients[6:]:
        resumed.grad = gradient.clone()
        other.step()
    assert torch.equal(resumed, whole)


def test_parameters_without_gradient_stay():
    stays, goes = Parameter(torch.ones(3)), Parameter(torch.ones(3))
    optimizer = ScaledAdam([{"params": []}, {"params": [stays, goes]}], 0.1)
    goes.grad = torch.ones(3)
    optimizer.step()
    assert stays.tolist() == [1.0, 1.0, 1.0]
    assert goes.max() < 1.0
    empty = ScaledAdam([Parameter(torch.ones(3))], 0.1)
    empty.step()
    assert not empty.state[empty.param_groups[0]["params"][0]]


SETTINGS = {
    "epochs": 3,
    "optimizer": {"type": "scaled_adam", "clip_history": 4},
    "schedule": {"type": "eden", "steps": 20.0},
    "learning_rate": 0.045,
    "learning_rate_factors": {"rec": 0.5},
    "ema": 0.9,
    "clip_norm": None,
}


def test_a_training_that_is_stopped_goes_on_with_the_same_bits(tmp_path):
    write_task(tmp_path)
    whole = make_trainer(tmp_path, tmp_path / "whole", training=SETTINGS)
    result = whole.run()
    assert result.history[-1]["loss"] < 0.9 * result.history[0]["loss"]

    left = iter(range(8))
    stopped = make_trainer(
        tmp_path,
        tmp_path / "stopped",
        training=SETTINGS,
        should_stop=lambda: next(left, None) is None,
    )
    with pytest.raises(Interrupted):
        stopped.run()
    again = make_trainer(tmp_path, tmp_path / "stopped", training=SETTINGS)
    assert again.run().history == result.history
    for one, other in zip(
        again.network.parameters(), whole.network.parameters(), strict=True
    ):
        assert torch.equal(one, other)
