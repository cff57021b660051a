"""The pretended device refuses what a GPU refuses, and computes what a CPU does."""

import numpy as np
import pytest
import torch
from fixtures.pretended_device import (
    DEVICE,
    TwoDevicesError,
    pretended_device,
    traffic,
)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) * x.sum(),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.where(torch.ones(3) > 0, x, 0.0),
        lambda x: torch.nn.Linear(3, 2)(x),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: torch.randn(3, device=x.device, generator=torch.Generator()),
    ],
)
def test_tensors_of_two_devices_are_refused(mix):
    with pretended_device() as device, pytest.raises(TwoDevicesError):
        mix(torch.zeros(3, device=device))


def test_there_is_no_array_of_a_tensor_elsewhere():
    with pretended_device() as device:
        values = torch.zeros(3, device=device)
        for convert in (lambda x: x.numpy(), np.asarray):
            with pytest.raises(RuntimeError, match="numpy"):
                convert(values)
        assert values.cpu().numpy().tolist() == [0.0, 0.0, 0.0]


def test_numbers_and_gradients_are_those_of_the_processor():
    def compute(device):
        torch.manual_seed(1)
        layer = torch.nn.Linear(4, 3).to(device)
        inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=device)
        spectrum = torch.fft.rfft(layer(inputs)).flip(1).conj()
        total = spectrum.abs().square().sum() + inputs.new_tensor(0.5) * 2.0
        total.backward()
        return total.item(), layer.weight.grad

    with pretended_device() as device:
        value, gradient = compute(device)
        assert gradient.device == DEVICE
        gradient = gradient.cpu()
    expected = compute("cpu")
    assert value == pytest.approx(expected[0])
    torch.testing.assert_close(gradient, expected[1])


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: float(x.sum()),
        lambda x: bool(x.sum() > 0),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: torch.empty(3).copy_(x),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x + 1),
    ],
)
def test_what_the_host_waits_for_is_counted(wait):
    with pretended_device() as device:
        values = torch.ones(3, device=device)
        with traffic() as found:
            wait(values)
    assert len(found.waits) == 1
    assert not found.received


def test_copies_and_launches_are_counted():
    here = torch.ones(2, 3)
    with pretended_device() as device:
        there = torch.zeros(3, 2, device=device)
        with traffic() as found:
            there.T.copy_(here)  # a view is not a launch
            found_there = here.to(device) + there.T
            torch.tensor([1.0, 2.0], device=device).mul_(2.0)
            found_there.to(torch.float64)
    assert found.received == [(2, 3), (2, 3), (2,)]
    assert found.launches == {"aten::add": 1, "aten::mul_": 1, "aten::_to_copy": 1}
    assert not found.waits
