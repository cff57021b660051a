"""The associative LSTM: its equations, gradients, copies of the memory, stacks."""

import pytest
import torch
from reference.associative_lstm_naive import associative_lstm

from latflow.nnet.layer import LayerError, Padded, Shape
from latflow.nnet.layers.associative import AssociativeLstm
from latflow.nnet.layers.recurrent import Recurrent, RecurrentOptions


def module_of(dim=3, size=4, copies=2):
    torch.manual_seed(2)
    module = AssociativeLstm(dim, size, copies).double()
    with torch.no_grad():
        module.bias += torch.randn(module.bias.shape)
        module.input *= 2.0  # so that bounds are met
    return module


@pytest.mark.parametrize(("size", "copies"), [(2, 1), (6, 1), (6, 3), (10, 4)])
def test_it_is_the_equations(size, copies):
    module = module_of(3, size, copies)
    values = torch.randn(2, 6, 3, dtype=torch.float64)
    found = module(values)
    for row in range(2):
        torch.testing.assert_close(found[row], associative_lstm(module, values[row]))


def test_gradients_are_finite_differences():
    module = module_of()
    values = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in module.named_parameters()]

    def run(values, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, given, (values,))

    assert torch.autograd.gradcheck(run, (values, *module.parameters()))


def test_gradients_are_finite_where_all_is_zero():
    module = module_of()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    module(torch.zeros(1, 3, 3, dtype=torch.float64)).sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_copies_have_permutations_of_their_own():
    first, second, third = AssociativeLstm(1, 40, 3).permutations.tolist()
    assert sorted(first) == sorted(second) == sorted(third) == list(range(20))
    assert first != second != third != first


@pytest.mark.parametrize("direction", ["forward", "backward", "bidirectional"])
def test_a_stack_runs_each_sequence_through_each_direction(direction):
    torch.manual_seed(3)
    options = {"unit": "associative", "direction": direction, "num_layers": 2}
    layer = Recurrent(Shape(3), RecurrentOptions(size=4, **options)).double().eval()
    step = 2 if direction == "bidirectional" else 1
    assert len(layer.rnn) == 2 * step
    assert layer.shape.dim == 4 * step
    assert layer.rnn[0].permutations.shape == (4, 2)
    lengths = torch.tensor([5, 3])
    values = torch.randn(2, 5, 3, dtype=torch.float64)
    found = layer(Padded.of(values, lengths)).values
    for row, length in enumerate(lengths.tolist()):
        through = values[row, :length]
        for first in (0, step):
            there = associative_lstm(layer.rnn[first], through)
            back = associative_lstm(layer.rnn[first + step - 1], through.flip(0))
            through = {
                "forward": there,
                "backward": back.flip(0),
                "bidirectional": torch.cat([there, back.flip(0)], 1),
            }[direction]
        torch.testing.assert_close(found[row, :length], through)


def test_options_that_do_not_fit_are_refused():
    def make(**options):
        Recurrent(Shape(3), RecurrentOptions.model_validate(options))

    with pytest.raises(LayerError, match="size 5 is odd"):
        make(size=5, unit="associative")
    with pytest.raises(LayerError, match="copies need unit associative"):
        make(size=4, copies=2)
    with pytest.raises(LayerError, match="projection needs unit lstm"):
        make(size=4, unit="associative", projection=2)
