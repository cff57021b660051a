"""Zipformer layers against plain formulas, number by number."""

import math

import pytest
import torch

from latflow.nnet.layer import LayerError, Padded, Shape
from latflow.nnet.layers.attention import sinusoids
from latflow.nnet.layers.simple import ACTIVATIONS, BiasNorm
from latflow.nnet.layers.zipformer import Zipformer, ZipformerOptions
from latflow.options import Options

DIM, HEADS = 6, 2


def layer_of(**options):
    torch.manual_seed(1)
    sizes = {"heads": HEADS, "query": 3, "place": 2, "value": 4, "feed_forward": 8}
    given = {"kernel": 3, "positions": "relative", **sizes, **options}
    layer = Zipformer(Shape(DIM), ZipformerOptions(**given)).double().eval()
    with torch.no_grad():
        for value in layer.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return layer


def frames_of(count, batch=1):
    return torch.randn(batch, count, DIM, dtype=torch.float64)


def run(layer, values, lengths=None):
    lengths = torch.tensor(lengths or [values.shape[1]] * len(values))
    return layer(Padded.of(values, lengths)).values


def test_swoosh_functions():
    for x in (-30.0, -1.0, 0.0, 0.7, 5.0, 40.0):
        value = torch.tensor(x, dtype=torch.float64)
        right = math.log1p(math.exp(x - 1.0)) - 0.08 * x - 0.313261687
        left = math.log1p(math.exp(x - 4.0)) - 0.08 * x - 0.035
        assert float(ACTIVATIONS["swoosh_r"](value)) == pytest.approx(right, abs=1e-8)
        assert float(ACTIVATIONS["swoosh_l"](value)) == pytest.approx(left, abs=1e-8)
    zero = torch.zeros((), dtype=torch.float64)
    assert abs(float(ACTIVATIONS["swoosh_r"](zero))) < 1e-8


def test_bias_norm_is_the_formula_and_leaves_zeros():
    layer = BiasNorm(Shape(DIM), Options()).double()
    with torch.no_grad():
        layer.norm.bias.add_(torch.randn(DIM))
        layer.norm.log_scale.add_(0.3)
    values = frames_of(4)
    bias = layer.norm.bias.detach()
    for found, x in zip(run(layer, values)[0], values[0], strict=True):
        size = math.sqrt(sum(float(d) ** 2 for d in x - bias) / DIM)
        torch.testing.assert_close(found, x * math.exp(0.3) / size, rtol=1e-6, atol=0)
    assert not run(BiasNorm(Shape(DIM), Options()), torch.zeros(1, 2, DIM)).any()


def weights_one_by_one(part, values):
    """Weights of attention of [T, D], [heads, T, T]."""
    count, split = len(values), part.inputs(values).unflatten(1, (HEADS, -1))
    query, key, place = split[..., :3], split[..., 3:6], split[..., 6:]
    found = torch.zeros(HEADS, count, count, dtype=values.dtype)
    for head in range(HEADS):
        for i in range(count):
            for j in range(count):
                distance = sinusoids(torch.tensor([i - j]), DIM).double()
                at = part.distances(distance).view(HEADS, 2)[head]
                score = query[i, head] @ key[j, head] / math.sqrt(3)
                found[head, i, j] = score + place[i, head] @ at / math.sqrt(2)
    return found.softmax(2)


def block_one_by_one(block, values):
    """What a block gives [T, D]: its parts in the paper's order."""
    weights = weights_one_by_one(block.weights, values)
    swoosh_l, swoosh_r = (ACTIVATIONS[f"swoosh_{x}"] for x in "lr")

    def wide(part, x):
        return part[3](swoosh_l(part[0](x)))

    def attended(part, x):
        heads = part.inputs(x).unflatten(1, (HEADS, 4))
        means = [weights[h] @ heads[:, h] for h in range(HEADS)]
        return part.output(torch.cat(means, 1))

    def gated(part, x):
        scale, inner, gate = part.inputs(x).chunk(3, 1)
        return part.output(gate * (weights[0] @ (inner * scale.tanh())))

    def mixed(part, x):
        inner, gate = part.gated(x).chunk(2, 1)
        inner = inner * gate.sigmoid()
        padded = torch.cat((0 * inner[:1], inner, 0 * inner[:1]))
        taps, bias = part.conv.weight[:, 0], part.conv.bias
        sums = [(padded[t : t + 3] * taps.T).sum(0) + bias for t in range(len(x))]
        return part.output(swoosh_r(torch.stack(sums)))

    def between(part, x, y):
        share = part.scale.clamp(0.2, 1.0)
        return (1 - share) * x + share * y

    x = values
    x = x + wide(block.feed_forward[0], x)
    x = x + gated(block.gated, x)
    x = x + attended(block.attention[0], x)
    x = x + mixed(block.convolution[0], x)
    x = x + wide(block.feed_forward[1], x)
    x = between(block.bypass[0], values, x)
    x = x + attended(block.attention[1], x)
    x = x + mixed(block.convolution[1], x)
    x = x + wide(block.feed_forward[2], x)
    return between(block.bypass[1], values, block.norm(x))


def test_a_block_is_its_parts_one_after_another():
    layer, values = layer_of(), frames_of(5)
    expected = block_one_by_one(layer.blocks[0], values[0])
    torch.testing.assert_close(run(layer, values)[0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", [1, 6, 7, 8])
def test_a_stack_sees_means_of_frames_beside_its_input(count):
    layer, values = layer_of(downsampling=3, size=4), frames_of(count)
    cut = values[0, :, :4]
    assert layer.slower is not None
    shares = layer.slower.weights.softmax(0)
    means = []
    for begin in range(0, count, 3):
        group = cut[begin : begin + 3]
        means.append(shares[: len(group)] @ group / shares[: len(group)].sum())
    slow = layer.blocks[0](torch.stack(means)[None], None, None)[0]
    share = layer.slower.bypass.scale.clamp(0.2, 1.0)
    expected = torch.stack(
        [(1 - share) * cut[t] + share * slow[t // 3] for t in range(count)]
    )
    torch.testing.assert_close(run(layer, values)[0], expected, rtol=0, atol=1e-9)


def test_more_numbers_than_the_input_has_begin_as_zeros():
    layer, values = layer_of(size=8, heads=2), frames_of(3)
    wide = torch.cat((values, torch.zeros(1, 3, 2)), 2)
    expected = layer.blocks[0](wide, None, None)
    torch.testing.assert_close(run(layer, values), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_sequences_of_a_batch_are_each_for_itself(factor):
    layer, values = layer_of(downsampling=factor, num_layers=2), frames_of(8, 3)
    lengths = [8, 5, 1]
    found = run(layer, values, lengths)
    for row, one, length in zip(found, values, lengths, strict=True):
        alone = run(layer, one[None, :length])[0]
        torch.testing.assert_close(row[:length], alone, rtol=0, atol=1e-9)
        assert not row[length:].any()


def test_gradients():
    layer, values = layer_of(downsampling=2).train(), frames_of(5, 2)
    parameters = tuple(layer.parameters())

    def loss(values, *_):
        return run(layer, values, [5, 4]).square().sum(2)

    values.requires_grad_()
    assert torch.autograd.gradcheck(loss, (values, *parameters), fast_mode=True)


@pytest.mark.parametrize("factor", [1, 2])
def test_frames_see_their_chunk_and_those_before_alone(factor):
    options = {"chunk": 3, "left_chunks": 1, "causal": True, "downsampling": factor}
    layer = layer_of(**options)
    period, context = 3 * factor, layer.context
    # weights three times, and two frames of two convolutions, which reach a chunk more
    assert (context.left, context.right) == (5 * period, 0)
    assert context.period == period
    values = frames_of(12 * period).requires_grad_()
    run(layer, values)[0, 9 * period + 1].sum().backward()
    assert values.grad is not None
    seen = values.grad[0].abs().sum(1).nonzero().flatten()
    assert int(seen.max()) == 10 * period - 1
    assert 9 * period - context.left <= int(seen.min()) < 7 * period


def test_even_kernels_are_refused_where_both_sides_are_seen():
    with pytest.raises(LayerError, match="kernel must be odd, or causal true: 4"):
        layer_of(kernel=4)
