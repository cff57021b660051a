"""The two-dimensional LSTM: a loop over cells, gradients, padding, directions."""

import pytest
import torch
from reference.mdlstm_naive import mdlstm

from latflow.nnet.layer import LayerError, Padded, Shape
from latflow.nnet.layers.multidimensional import (
    MdLstm,
    MdLstmOptions,
    skewed,
    unskewed,
)


def layer_of(dim=6, channels=2, size=3, **options):
    torch.manual_seed(1)
    layer = MdLstm(Shape(dim, channels), MdLstmOptions(size=size, **options)).double()
    with torch.no_grad():
        layer.bias += 0.3 * torch.randn_like(layer.bias)
    return layer


@pytest.mark.parametrize("directions", [1, 2, 4])
@pytest.mark.parametrize("combine", ["mean", "concat"])
@pytest.mark.parametrize(
    ("dim", "channels", "frames"), [(6, 2, 5), (4, 1, 2), (3, 3, 4)]
)
def test_it_is_the_loop_over_cells(directions, combine, dim, channels, frames):
    layer = layer_of(dim, channels, directions=directions, combine=combine)
    lengths = torch.tensor([frames, max(1, frames - 2), 1])
    values = torch.randn(3, frames, dim, dtype=torch.float64)
    found = layer(Padded.of(values, lengths)).values
    assert found.shape == (3, frames, layer.shape.dim)
    assert layer.shape.channels == 3 * (directions if combine == "concat" else 1)
    for row, length in enumerate(lengths.tolist()):
        expected = mdlstm(layer, values[row], length)
        torch.testing.assert_close(found[row, :length], expected)
        assert not found[row, length:].any()


def test_gradients_are_finite_differences():
    layer = layer_of(2, 1, size=1, directions=4)
    lengths = torch.tensor([3, 2])
    values = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(values, *parameters):
        given = dict(zip(names, parameters, strict=True))
        batch = Padded.of(values, lengths)
        return torch.func.functional_call(layer, given, (batch,)).values

    assert torch.autograd.gradcheck(run, (values, *layer.parameters()))


def test_a_cell_sees_the_quarter_of_the_plane_behind_it():
    layer = layer_of(3, 1, directions=1)
    values = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4])
    output = layer(Padded.of(values, lengths)).values.unflatten(2, (3, 3))
    output[0, 2, :, 1].sum().backward()
    is_seen = values.grad[0] != 0.0
    expected = torch.zeros(4, 3, dtype=torch.bool)
    expected[:3, :2] = True
    assert torch.equal(is_seen, expected)


def test_skewing_is_undone():
    rows = torch.arange(24.0).view(1, 1, 3, 4, 2)
    shifted = skewed(rows)
    assert shifted[0, 0, :, :, 0].tolist() == [
        [0, 2, 4, 6, 0, 0],
        [0, 8, 10, 12, 14, 0],
        [0, 0, 16, 18, 20, 22],
    ]
    assert torch.equal(unskewed(shifted, 4), rows)


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(LayerError, match="6 numbers are not 4 equal maps"):
        layer_of(6, 4)
