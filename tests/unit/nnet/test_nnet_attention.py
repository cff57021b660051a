"""Attention with relative positions: its scores one by one, gradients, far frames."""

import pytest
import torch
from reference.relative_attention_naive import relative_attention

from latflow.nnet.layer import Padded, Shape
from latflow.nnet.layers.attention import AttentionOptions, SelfAttention
from latflow.nnet.layers.conformer import Conformer, ConformerOptions

ALL = 99


def layer_of(dim=6, **options):
    torch.manual_seed(1)
    options = AttentionOptions(positions="relative", **options)
    layer = SelfAttention(Shape(dim), options).double()
    with torch.no_grad():
        layer.attention.content += torch.randn(layer.attention.content.shape)
        layer.attention.place += torch.randn(layer.attention.place.shape)
    return layer


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("near", [(ALL, ALL), (2, 1), (0, ALL)])
def test_scores_are_those_of_the_formula(heads, near):
    back, ahead = (-1 if number == ALL else number for number in near)
    layer = layer_of(heads=heads, look_back=back, look_ahead=ahead)
    lengths = torch.tensor([7, 4, 1])
    values = torch.randn(3, 7, 6, dtype=torch.float64)
    found = layer(Padded.of(values, lengths)).values
    for row, length in enumerate(lengths.tolist()):
        expected = relative_attention(layer.attention, values[row, :length], near)
        got = found[row, :length]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        assert not found[row, length:].any()


def test_gradients_are_finite_differences():
    layer = layer_of(2, heads=1, look_back=1)
    lengths = torch.tensor([3, 2])
    values = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(values, *parameters):
        given = dict(zip(names, parameters, strict=True))
        batch = Padded.of(values, lengths)
        return torch.func.functional_call(layer, given, (batch,)).values

    assert torch.autograd.gradcheck(run, (values, *layer.parameters()))


def test_only_distances_count():
    """What is far enough from both ends does not depend on where it is."""
    layer = layer_of(heads=2, look_back=2, look_ahead=2)
    values = torch.randn(1, 12, 6, dtype=torch.float64)
    whole = layer(Padded.of(values, torch.tensor([12]))).values
    part = layer(Padded.of(values[:, 3:], torch.tensor([9]))).values
    torch.testing.assert_close(part[:, 2:], whole[:, 5:])


def test_each_block_of_a_conformer_knows_distances():
    options = {"heads": 2, "feed_forward": 4, "kernel": 3, "num_layers": 2}
    plain = Conformer(Shape(4), ConformerOptions(**options))
    layer = Conformer(Shape(4), ConformerOptions(**options, positions="relative"))
    layer.load_state_dict(plain.state_dict(), strict=False)
    more = layer.state_dict().keys() - plain.state_dict().keys()
    parts = ("content", "distances.weight", "place")
    assert sorted(more) == [f"blocks.{i}.attention.{p}" for i in (0, 1) for p in parts]
    batch = Padded.of(torch.randn(1, 5, 4), torch.tensor([5]))
    layer(batch).values.square().sum().backward()
    assert all(layer.get_parameter(name).grad.any() for name in more)
