"""The pretended device refuses what a GPU refuses, and computes what a CPU does."""

import numpy as np
import pytest
import torch
from reference.pretended_device import DEVICE, TwoDevicesError, pretended_device


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
