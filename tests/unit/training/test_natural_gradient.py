"""Steps along the natural gradient are those of its definition, whoever makes them."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from latflow.nnet.layer import Padded, Shape
from latflow.nnet.layers.time_delay import TdnnF, TdnnFOptions
from latflow.training.distributed import Backend
from latflow.training.inverses import inverted
from latflow.training.natural_gradient import NaturalGradient, _alone
from latflow.training.optimizer_options import NaturalGradientOptions
from latflow.training.optimizers import make_optimizer


def factor(rows, alpha):
    """Twin of what directions are multiplied with, from its definition."""
    moments = rows.T @ rows / len(rows)
    dim = len(moments)
    inverse = np.linalg.inv(moments + alpha * np.trace(moments) / dim * np.eye(dim))
    changed = rows @ inverse
    return inverse * np.sqrt((rows**2).sum() / (changed**2).sum())


def optimizer_of(network, rate=0.5, **options):
    return make_optimizer(network, NaturalGradientOptions(**options), rate)


def test_a_step_is_that_of_the_definition():
    torch.manual_seed(1)
    network = nn.Linear(4, 3).double()
    before = [p.detach().numpy().copy() for p in network.parameters()]
    optimizer = optimizer_of(network, alpha=0.7)
    x = torch.randn(50, 4).double() * torch.tensor([0.1, 1.0, 2.0, 5.0])
    y = network(x)
    y.retain_grad()
    (y - torch.randn(50, 3)).square().sum().backward()
    g = y.grad.numpy()
    optimizer.step()
    inputs = np.concatenate((x.numpy(), np.ones((50, 1))), 1)
    change = factor(g, 0.7) @ (g.T @ inputs) @ factor(inputs, 0.7)
    expected = np.concatenate((before[0], before[1][:, None]), 1) - 0.5 * change
    assert network.weight.detach().numpy() == pytest.approx(expected[:, :4], rel=1e-4)
    assert network.bias.detach().numpy() == pytest.approx(expected[:, 4], rel=1e-4)


def test_products_in_bf16_make_nearly_the_same_step():
    torch.manual_seed(6)
    network = nn.Linear(40, 30)
    other, start = copy.deepcopy(network), network.weight.detach().clone()
    x, goal = torch.randn(50, 40), torch.randn(50, 30)
    for net, dtype in ((network, None), (other, torch.bfloat16)):
        options = NaturalGradientOptions()
        optimizer = make_optimizer(net, options, 0.5, dtype=dtype)
        (net(x) - goal).square().sum().backward()
        optimizer.step()
        kept = optimizer.state[net.weight]
        assert kept["input_moments"].dtype == net.weight.dtype == torch.float32
    change, other_change = network.weight - start, other.weight - start
    assert not torch.equal(change, other_change)
    assert (change - other_change).norm() < 0.01 * change.norm()


@pytest.mark.parametrize(("alpha", "is_rounded"), [(1.0, True), (0.15, False)])
def test_moments_are_rounded_where_smoothing_hides_it(alpha, is_rounded):
    torch.manual_seed(14)
    network = nn.Linear(40, 30, bias=False)
    options = NaturalGradientOptions(alpha=alpha)
    optimizer = make_optimizer(network, options, 0.5, dtype=torch.bfloat16)
    x = torch.randn(50, 40)
    network(x).square().sum().backward()
    optimizer.step()
    kept = optimizer.state[network.weight]["input_moments"]
    exact = x.T @ x / 50
    assert kept.dtype == torch.float32
    assert torch.allclose(kept, exact, rtol=1e-5, atol=1e-6) != is_rounded
    assert (kept - exact).norm() < 2**-8 * exact.norm()


@pytest.mark.parametrize("size", [1, 128, 129, 301])
def test_matrices_are_inverted_by_halves(size):
    torch.manual_seed(15)
    rows = torch.randn(2 * size, size).double()
    matrix = rows.T @ rows / len(rows) + 0.5 * torch.eye(size)
    expected = np.linalg.inv(matrix.numpy())
    np.testing.assert_allclose(inverted(matrix).numpy(), expected, atol=1e-12)


def test_moments_fade():
    torch.manual_seed(2)
    network = nn.Linear(3, 2, bias=False)
    optimizer = optimizer_of(network, history=30.0)
    seen = []
    for frames in (20, 45):
        x = torch.randn(frames, 3)
        network(x).square().sum().backward()
        optimizer.step()
        seen.append(x.T @ x / frames)
    share = 1.0 - np.exp(-45 / 30.0)
    expected = (1.0 - share) * seen[0] + share * seen[1]
    kept = optimizer.state[network.weight]["input_moments"]
    torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-6)


def test_a_convolution_is_an_affine_map_of_patches():
    torch.manual_seed(3)
    network = nn.Conv2d(2, 3, (3, 2), stride=(2, 1))
    twin = nn.Linear(12, 3)
    twin.weight.data.copy_(network.weight.detach().flatten(1))
    twin.bias.data.copy_(network.bias.detach())
    optimizer, other = optimizer_of(network), optimizer_of(twin)
    x = torch.randn(2, 2, 9, 5)
    goal = torch.randn(2, 3, 4, 4)
    (network(x) - goal).square().sum().backward()
    optimizer.step()
    rows = functional.unfold(x, (3, 2), stride=(2, 1)).transpose(1, 2)
    (twin(rows) - goal.flatten(2).transpose(1, 2)).square().sum().backward()
    other.step()
    torch.testing.assert_close(network.weight.flatten(1), twin.weight)
    torch.testing.assert_close(network.bias, twin.bias)


def step(network, optimizer, number):
    torch.manual_seed(number)
    optimizer.zero_grad()
    network(torch.randn(30, 6)).square().mean().backward()
    optimizer.step()


def test_a_resumed_training_makes_the_same_steps():
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = optimizer_of(network, momentum=0.5, period=3)
    for number in range(15):
        step(network, optimizer, number)
    other = copy.deepcopy(network)
    kept = copy.deepcopy(optimizer.state_dict())
    resumed = optimizer_of(other, momentum=0.5, period=3)
    resumed.load_state_dict(kept)
    for number in range(15, 25):
        step(network, optimizer, number)
        step(other, resumed, number)
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class Others(Backend):
    """Ranks of which the others have seen what this one has."""

    size = 3

    def all_reduce_(self, tensors):
        for tensor in tensors:
            tensor.mul_(self.size)


def test_ranks_share_what_they_have_seen():
    torch.manual_seed(5)
    network = nn.Linear(6, 2)
    alone = copy.deepcopy(network)
    shared, single = (
        optimizer_of(network, history=40.0),
        optimizer_of(alone, history=40.0),
    )
    for number in range(3):
        x = torch.randn(30, 6, generator=torch.Generator().manual_seed(number))
        for net, optimizer, rows in (
            (network, shared, x),
            (alone, single, x.repeat(3, 1)),
        ):
            optimizer.zero_grad()
            net(rows).square().mean().backward()
        shared.share(Others())
        for optimizer in (shared, single):
            optimizer.step()
    # the mean over three times the frames has derivatives of a third
    torch.testing.assert_close(network.weight, alone.weight, rtol=1e-4, atol=1e-5)


def test_badly_scaled_inputs_are_learnt_faster():
    losses = {}
    for kind in ("natural", "plain"):
        torch.manual_seed(6)
        scales = torch.logspace(-1, 1, 10)
        x = torch.randn(400, 10) * scales
        goal = (x / scales) @ torch.randn(10, 4)
        network = nn.Linear(10, 4)
        rate = 0.02
        optimizer = optimizer_of(network, rate, alpha=0.01)
        if kind == "plain":
            optimizer = torch.optim.SGD(network.parameters(), rate)
        for _ in range(300):
            optimizer.zero_grad()
            loss = (network(x) - goal).square().mean()
            loss.backward()
            optimizer.step()
        losses[kind] = float(loss.detach())
    assert losses["natural"] < 0.5 * losses["plain"]


def test_what_follows_a_map_may_change_its_output_in_place():
    torch.manual_seed(8)
    kept = []
    for change in (functional.relu_, functional.relu):
        torch.manual_seed(9)
        network = nn.Linear(4, 5)
        optimizer = optimizer_of(network)
        change(network(torch.randn(3, 7, 4))).square().sum().backward()
        optimizer.step()
        kept.append(optimizer.state[network.weight]["output_moments"])
    assert torch.equal(*kept)
    assert (kept[0].diagonal() > 0).all()


def test_all_maps_of_a_tdnnf_are_seen():
    """In chunks with the frames around them, and in whole utterances."""
    torch.manual_seed(10)
    options = TdnnFOptions(size=6, bottleneck=3, num_layers=2)
    for before in (None, 4):
        layer = TdnnF(Shape(6), options)
        optimizer = optimizer_of(layer)
        values = torch.randn(2, 20, 6)
        batch = Padded.of(values, torch.tensor([20, 20]))
        if before is not None:
            batch = replace(batch, before=before)
        layer(batch).values.square().sum().backward()
        optimizer.step()
        moments = [m for state in optimizer.state.values() for m in state.values()]
        assert len(moments) == 8
        assert all((m.diagonal() > 0).any() for m in moments)


@pytest.mark.parametrize("before", [None, 4])
def test_evaluation_has_the_bits_that_it_has_without_an_optimizer(before):
    torch.manual_seed(11)
    layer = TdnnF(Shape(40), TdnnFOptions(size=40, bottleneck=8, num_layers=2)).eval()
    batch = Padded.of(torch.randn(2, 20, 40), torch.tensor([20, 20]))
    batch = replace(batch, before=before)
    expected = layer(batch).values
    optimizer = optimizer_of(layer)
    assert optimizer.is_observing
    assert torch.equal(layer(batch).values, expected)


def test_steps_without_data_and_frozen_maps_change_nothing():
    torch.manual_seed(7)
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    network[0].requires_grad_(False)
    optimizer = optimizer_of(network)
    for parameter in network[1].parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = copy.deepcopy(network.state_dict())
    optimizer.step()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert isinstance(optimizer, NaturalGradient)


def test_a_step_that_is_not_made_leaves_nothing_behind():
    torch.manual_seed(11)
    network = nn.Linear(3, 2)
    optimizer = optimizer_of(network)
    network(torch.full((5, 3), 1e9)).square().sum().backward()
    optimizer.forget()
    x = torch.randn(20, 3)
    optimizer.zero_grad()
    network(x).square().sum().backward()
    optimizer.step()
    kept = optimizer.state[network.weight]["input_moments"]
    torch.testing.assert_close(kept[:3, :3], x.T @ x / 20)


def test_all_sequences_of_a_convolution_count():
    torch.manual_seed(12)
    network = nn.Conv2d(1, 2, 3, padding=1)
    optimizer = optimizer_of(network)
    network(torch.randn(7, 1, 4, 5)).square().sum().backward()
    seen = optimizer._maps[0]
    assert seen.counts[0] == seen.counts[1] == 7 * 4 * 5
    assert seen.sums[0][-1, -1] == pytest.approx(140.0)  # of 1, for the offset


def test_moments_are_exact_in_mixed_precision():
    torch.manual_seed(13)
    network = nn.Linear(6, 2, bias=False)
    optimizer = optimizer_of(network)
    x = torch.randn(40, 6)
    with torch.autocast("cpu", torch.bfloat16):
        loss = network(x).float().square().sum()
    loss.backward()
    optimizer.step()
    kept = optimizer.state[network.weight]["input_moments"]
    torch.testing.assert_close(kept, x.T @ x / 40)


def test_numbers_that_are_none_are_left_to_the_loss():
    network = nn.Linear(3, 2)
    optimizer = optimizer_of(network)
    network(torch.full((5, 3), float("nan"))).sum().backward()
    optimizer.step()
    assert network.weight.isnan().all()


def test_a_state_keeps_the_matrices_alone():
    """Without the stack that a GPU has them in."""
    stack = torch.randn(3, 4, 4)
    for value in (stack[1], stack[1, :2, :3]):
        kept = _alone(value)
        assert torch.equal(kept, value)
        assert kept.untyped_storage().nbytes() == 4 * kept.numel()
    assert _alone(stack) is stack
    assert _alone(3) == 3
