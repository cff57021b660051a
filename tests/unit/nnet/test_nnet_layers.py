"""What layers compute: padding, receptive fields, norms, semi-orthogonal factors."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.draws import RowDraws
from latflow.nnet.layer import Padded, padding_of
from latflow.nnet.layers.attention import sinusoids
from latflow.nnet.layers.augment import (
    most_share,
    random_spans,
    spread_spans,
    warped_bins,
    warped_times,
)
from latflow.nnet.layers.simple import MaskedBatchNorm, semi_orthogonal_step
from latflow.nnet.network import Network
from latflow.nnet.registry import LAYER_CLASSES


def network(layers, dim=6, classes=3, **others):
    layers = {**layers, "output": {"class": "output"}}
    described = NetworkDescription.from_config({**others, "layers": layers})
    return Network(described, dim, {"pdf": classes})


MEL = {"class": "mel", "sample_rate": 1000, "num_bins": 3}
LAYERS = {
    "linear": {"class": "linear", "size": 5},
    "rec": {"class": "rec", "size": 4},
    "rec_forward": {"class": "rec", "size": 4, "direction": "forward", "unit": "gru"},
    "rec_backward": {
        "class": "rec",
        "size": 4,
        "direction": "backward",
        "num_layers": 2,
    },
    "rec_associative": {"class": "rec", "size": 4, "unit": "associative"},
    "mdlstm": {"class": "mdlstm", "size": 2},
    "mdlstm_forward": {"class": "mdlstm", "size": 2, "directions": 1},
    "conv1d": {"class": "conv1d", "size": 4, "kernel": 5},
    "conv1d_even": {"class": "conv1d", "size": 4, "kernel": 4, "dilation": 2},
    "conv1d_stride": {"class": "conv1d", "size": 4, "kernel": 3, "stride": 2},
    "conv1d_causal": {"class": "conv1d", "size": 4, "kernel": 3, "causal": True},
    "conv2d": {"class": "conv2d", "size": 2, "stride": 2, "frequency_stride": 2},
    "splice": {"class": "splice", "left": 2, "right": 1, "edges": "zeros"},
    "window": {"class": "window", "size": 5},
    "pool_max": {"class": "pool", "kernel": 3, "stride": 2},
    "pool_mean": {"class": "pool", "mode": "mean", "kernel": 2, "stride": 3},
    "subsample": {"class": "subsample", "factor": 3},
    "tdnn": {"class": "tdnn", "size": 4, "offsets": [-3, 0, 2]},
    "tdnn_future": {"class": "tdnn", "size": 4, "offsets": [1, 2]},
    "tdnnf": {"class": "tdnnf", "size": 6, "bottleneck": 3, "num_layers": 2},
    "attention": {"class": "self_attention", "heads": 2, "look_ahead": 1},
    "near": {"class": "self_attention", "heads": 2, "look_ahead": 1, "look_back": 2},
    "relative": {
        "class": "self_attention",
        "heads": 1,
        "look_back": 2,
        "positions": "relative",
    },
    "transformer": {
        "class": "transformer",
        "heads": 2,
        "num_layers": 2,
        "feed_forward": 8,
        "look_ahead": 1,
        "look_back": 1,
        "activation": "gelu",
    },
    "conformer": {
        "class": "conformer",
        "heads": 2,
        "feed_forward": 8,
        "kernel": 3,
        "look_ahead": 2,
        "look_back": 1,
    },
    "zipformer": {
        "class": "zipformer",
        "heads": 2,
        "feed_forward": 8,
        "kernel": 3,
        "look_ahead": 1,
        "look_back": 2,
    },
    "bias_norm": {"class": "bias_norm"},
    "activation": {"class": "activation", "function": "tanh"},
    "dropout": {"class": "dropout"},
    "layer_norm": {"class": "layer_norm"},
    "batch_norm": {"class": "batch_norm"},
    "concat": {"class": "concat", "from": ["data", "data"]},
    "add": {"class": "add", "from": ["data", "data"]},
    "multiply": {"class": "multiply", "from": ["data", "data"]},
    "slice": {"class": "slice", "begin": 2, "size": 3},
    "position": {"class": "positional_encoding"},
    "specaugment": {"class": "specaugment"},
    "subnetwork": {
        "class": "subnetwork",
        "repeat": 2,
        "layers": {"x": {"class": "conv1d", "size": 6, "kernel": 2}},
    },
    "loop": {
        "class": "loop",
        "layers": {"h": {"class": "linear", "size": 4, "from": ["prev:h", "data"]}},
    },
    "loop_backward": {
        "class": "loop",
        "direction": "backward",
        "layers": {
            "h": {"class": "rec", "size": 4, "direction": "forward", "from": "both"},
            "both": {"class": "concat", "from": ["prev:h", "data"]},
        },
    },
    "stft": {"class": "stft"},
    "pcen": {
        "class": "subnetwork",
        "layers": {
            "spectra": {"class": "stft", "channels": 2},
            "mel": {**MEL, "filters": "gaussian", "log": False},
            "pcen": {"class": "pcen", "frames": 4, "smoothing": 0.3},
        },
    },
    "beam": {
        "class": "subnetwork",
        "layers": {
            "spectra": {"class": "stft", "channels": 2},
            "masks": {"class": "mask_estimator", "size": 3},
            "beam": {"class": "mvdr", "from": ["spectra", "masks"]},
            "mel": {**MEL, "filters": "gaussian"},
        },
    },
}


def test_every_class_is_among_them():
    inside = [options.get("layers", {}).values() for options in LAYERS.values()]
    every = [*LAYERS.values(), *itertools.chain.from_iterable(inside)]
    tested = {options["class"] for options in every}
    # the decoder gives no frames of its own: test_nnet_decoder.py; encoders need files:
    # test_nnet_pretrained.py; embeddings labels: test_nnet_loops.py
    others = {"attention_decoder", "embedding", "output", "pretrained"}
    assert tested | others == LAYER_CLASSES.keys()


def frames_by_gradient(net, num_frames, frame):
    """The input frames with a gradient from an output frame."""
    features = torch.randn(1, num_frames, net.dim_in, requires_grad=True)
    logits = net(features, torch.tensor([num_frames]))["output"].logits
    (logits[0, frame] * torch.randn_like(logits[0, frame])).sum().backward()
    return features.grad[0].abs().sum(1).nonzero().flatten().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_receptive_field_is_what_autograd_finds(name):
    torch.manual_seed(3)
    net = network({"layer": LAYERS[name]}).eval()
    num_frames, frame = 41, 20 // net.subsampling
    centre = frame * net.subsampling
    # several draws: a maximum or a ReLU may hide a frame in one of them
    draws = [frames_by_gradient(net, num_frames, frame) for _ in range(30)]
    seen = [time for frames in draws for time in frames]
    first, last = min(seen), max(seen)
    left, right = net.receptive_field
    offsets = getattr(net.layer("layer").options, "offsets", ())
    if not offsets or min(offsets) <= 0:
        assert first == (0 if left is None else centre - left)
    assert last == (num_frames - 1 if right is None else centre + right)


def test_receptive_fields_compose_over_strides_and_branches():
    net = network(
        {
            "slow": {"class": "conv1d", "size": 4, "kernel": 3, "stride": 2},
            "deep": {"class": "conv1d", "size": 4, "kernel": 5},
            "both": {"class": "add", "from": ["slow", "deep"]},
        }
    )
    assert net.receptive_field == (1 + 2 * 2, 1 + 2 * 2)
    assert net.subsampling == 2
    output = net(torch.randn(2, 9, 6), torch.tensor([9, 4]))["output"]
    assert output.logits.shape == (2, 5, 3)
    assert output.lengths.tolist() == [5, 2]


REPEATED = [
    name
    for name, options in LAYERS.items()
    if LAYER_CLASSES[options["class"]].USES_CONTEXT
    and name not in {"specaugment", "beam"}
]


def with_edges(layers, edges):
    """A network, and the same parameters in all networks of the same layers."""
    layers = {**layers, "output": {"class": "output"}}
    given = {"edges": edges, "layers": layers}
    return Network(NetworkDescription.from_config(given), 6, {"pdf": 3}).eval()


def on_extended(net, features, margin):
    """Outputs for a sequence, of a network that is given copies of its edges."""
    first, last = features[:, :1], features[:, -1:]
    copies = (first.expand(-1, margin, -1), features, last.expand(-1, margin, -1))
    extended = torch.cat(copies, 1)
    logits = net(extended, torch.tensor([extended.shape[1]]))["output"].logits
    count = -(-features.shape[1] // net.subsampling)
    return logits[:, margin // net.subsampling :][:, :count]


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_edges_are_copies_beyond_the_ends(name):
    layers = {"layer": LAYERS[name], "again": {"class": "tdnn", "size": 4}}
    torch.manual_seed(4)
    net, plain = with_edges(layers, "repeat"), with_edges(layers, "zeros")
    features, lengths = torch.randn(3, 14, 6), torch.tensor([14, 5, 1])
    found = net(features, lengths)["output"]
    for b, length in enumerate(lengths.tolist()):
        expected = on_extended(plain, features[b : b + 1, :length], 30)[0]
        got = found.logits[b, : found.lengths[b]]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        assert not found.logits[b, found.lengths[b] :].any()


def test_branches_of_other_contexts_meet_at_the_same_frames():
    layers = {
        "slow": {"class": "conv1d", "size": 4, "kernel": 5, "stride": 3},
        "plain": {"class": "subsample", "factor": 3, "from": "data"},
        "wide": {"class": "tdnn", "size": 4, "offsets": [-2, 1], "from": "plain"},
        "both": {"class": "concat", "from": ["slow", "wide"]},
        "deep": {"class": "tdnnf", "size": 8, "bottleneck": 3, "stride": 2},
    }
    net, plain = with_edges(layers, "repeat"), with_edges(layers, "zeros")
    features = torch.randn(1, 29, 6)
    found = net(features, torch.tensor([29]))["output"].logits
    expected = on_extended(plain, features, 60)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_slices_are_the_numbers_that_were_there():
    layers = {
        "front": {"class": "slice", "size": 4},
        "back": {"class": "slice", "begin": 4, "from": "data"},
        "whole": {"class": "concat", "from": ["front", "back"]},
        "output": {"class": "output"},
    }
    parted = network(layers)
    plain = network({"output": {"class": "output"}})
    plain.load_state_dict(parted.state_dict())
    features, lengths = torch.randn(2, 9, 6), torch.tensor([9, 5])
    found = parted(features, lengths)["output"].logits
    assert torch.equal(found, plain(features, lengths)["output"].logits)


APART = {
    "back": {"class": "slice", "features": "tri3", "from": "data"},
    "front": {"class": "slice", "features": "hires", "from": "data"},
    "whole": {"class": "concat", "from": ["front", "back"]},
    "output": {"class": "output"},
}


def test_features_side_by_side_are_taken_by_name():
    described = NetworkDescription.from_config({"layers": APART})
    found = described.with_parts({"hires": 4, "tri3": 2})
    numbers = {
        "back": {"class": "slice", "from": "data", "begin": 4, "size": 2},
        "front": {"class": "slice", "from": "data", "begin": 0, "size": 4},
    }
    assert found.config["layers"] == {**APART, **numbers}
    assert described.config["layers"] == APART
    assert found.with_parts({}).config == found.config


@pytest.mark.parametrize(
    ("layer", "parts", "told"),
    [
        ({}, {}, "layer front: no features hires in data - it is of one stream"),
        ({}, {"hires": 4, "tri": 2}, "layer back: no features tri3 in data - did you"),
        ({"size": 3}, {"hires": 4, "tri3": 2}, "layer back: features and size - keep"),
        ({"from": "front"}, {"hires": 4, "tri3": 2}, "layer back: only data is made"),
    ],
)
def test_features_that_cannot_be_taken(layer, parts, told):
    layers = {**APART, "back": {**APART["back"], **layer}}
    described = NetworkDescription.from_config({"layers": layers})
    with pytest.raises(UserError) as caught:
        described.with_parts(parts)
    assert told in str(caught.value)


def test_layers_inside_a_subnetwork_see_no_features():
    inner = {"x": {"class": "slice", "features": "hires"}}
    block = {"class": "subnetwork", "layers": inner}
    config = {"layers": {"block": block, "output": {"class": "output"}}}
    described = NetworkDescription.from_config(config).with_parts({"hires": 6})
    with pytest.raises(UserError, match="features hires: only data is made of some"):
        Network(described, 6, {"pdf": 3})


def test_training_counts_frames_of_context_but_not_what_is_beyond_them():
    layers = {"norm": {"class": "batch_norm"}}
    net = with_edges(layers | {"tdnn": LAYERS["tdnn"]}, "repeat").train()
    features, lengths = torch.randn(2, 9, 6), torch.tensor([9, 5])
    features[1, 5:] = torch.nan
    net(features, lengths)
    left, right = net.context
    seen = torch.cat(
        [
            features[b, torch.arange(-left, n + right).clamp(0, n - 1)]
            for b, n in enumerate(lengths.tolist())
        ]
    )
    running = net.body.layers["norm"].norm.mean
    torch.testing.assert_close(running, 0.1 * seen.mean(0))


def test_layers_without_a_bound_refuse_repeated_edges():
    with pytest.raises(UserError, match="layer layer: class rec does not work with"):
        with_edges({"layer": LAYERS["rec"]}, "repeat")


def test_values_beyond_the_ends_may_be_anything():
    net = network({"rec": LAYERS["rec"], "conv": LAYERS["conv1d"]}).eval()
    features = torch.randn(2, 8, 6)
    lengths = torch.tensor([8, 5])
    clean = net(features, lengths)["output"].logits
    features[1, 5:] = torch.nan
    assert torch.equal(net(features, lengths)["output"].logits, clean)
    assert (clean[1, 5:] == 0).all()


def test_backward_is_forward_on_reversed_time():
    options = {"class": "rec", "size": 4}
    forward = network({"layer": {**options, "direction": "forward"}})
    backward = network({"layer": {**options, "direction": "backward"}})
    backward.load_state_dict(forward.state_dict())
    features, lengths = torch.randn(1, 7, 6), torch.tensor([7])
    there = forward(features, lengths)["output"].logits
    back = backward(features.flip(1), lengths)["output"].logits.flip(1)
    torch.testing.assert_close(there, back)


def test_gradients_are_finite_where_lengths_differ():
    for name, options in LAYERS.items():
        net = network({"layer": options}).train()
        features = torch.randn(3, 11, 6, requires_grad=True)
        logits = net(features, torch.tensor([11, 1, 6]))["output"].logits
        logits.square().sum().backward()
        gradients = [features.grad, *(p.grad for p in net.parameters())]
        assert all(torch.isfinite(g).all() for g in gradients), name
        assert (features.grad[1, 1:] == 0).all(), name


def test_recurrent_layer_is_torchs_own_on_each_sequence():
    net = network({"layer": {"class": "rec", "size": 4, "num_layers": 2}}).eval()
    rnn, output = net.body.layers["layer"].rnn, net.body.layers["output"].map
    features = torch.randn(1, 9, 6)
    expected = output(rnn(features)[0])
    got = net(features, torch.tensor([9]))["output"].logits
    torch.testing.assert_close(got, expected)


def test_attention_is_the_formula():
    net = network({"layer": {"class": "self_attention", "heads": 1}}).eval()
    attention = net.body.layers["layer"].attention
    x = torch.randn(1, 5, 6)
    q, k, v = attention.inputs(x).chunk(3, -1)
    weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(6), -1)
    expected = net.body.layers["output"].map(attention.output(weights @ v))
    torch.testing.assert_close(net(x, torch.tensor([5]))["output"].logits, expected)


def test_transformer_layer_is_torchs_with_a_convolution_behind():
    options = {"class": "transformer", "heads": 2, "feed_forward": 8}
    net = network({"layer": options}).eval()
    ours = net.body.layers["layer"]
    (encoder,), (conv,) = ours.encoders, ours.convolutions
    peer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True).eval()
    with torch.no_grad():
        peer.self_attn.in_proj_weight.copy_(encoder.attention.inputs.weight)
        peer.self_attn.in_proj_bias.copy_(encoder.attention.inputs.bias)
        for mine, theirs in (
            (encoder.attention.output, peer.self_attn.out_proj),
            (encoder.wide, peer.linear1),
            (encoder.back, peer.linear2),
        ):
            theirs.weight.copy_(mine.weight)
            theirs.bias.copy_(mine.bias)
    x = torch.randn(2, 7, 6)
    hidden = functional.conv1d(
        peer(x).transpose(1, 2), conv.weight, conv.bias, padding=1
    )
    expected = net.body.layers["output"].map(functional.relu(hidden).transpose(1, 2))
    got = net(x, torch.tensor([7, 7]))["output"].logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_position_encoding_formula():
    table = sinusoids(torch.arange(-2, 2), 5)
    assert table.shape == (4, 5)
    for t in range(4):
        for d in range(5):
            angle = (t - 2) / 10000 ** ((d - d % 2) / 5)
            expected = math.cos(angle) if d % 2 else math.sin(angle)
            assert float(table[t, d]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("lengths", [[13, 13], [13, 6], [12, 11], [9, 1]])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_is_that_of_the_lengths_when_frames_are_left_out(lengths, stride):
    batch = Padded.of(torch.ones(2, 13, 4), torch.tensor(lengths))
    whole = dataclasses.replace(batch, before=5)
    strided = batch.strided(batch.values[:, ::stride], stride)
    first = whole.first_whole(2, stride)
    consumed = whole.consumed(whole.values[:, first + 2 : -1 : stride], 2, 1, stride)
    for found in (strided, consumed, whole.cut(3)):
        count = found.values.shape[1]
        expected = padding_of(found.lengths, count, torch.device("cpu"))
        assert (found.padding is None) == (expected is None)
        if expected is not None:
            assert torch.equal(found.padding, expected)


def test_batch_norm_agrees_with_torch_without_padding_and_ignores_padding():
    ours, peer = MaskedBatchNorm(4), nn.BatchNorm1d(4)
    x = torch.randn(3, 8, 4) * 2 + 1
    expected = peer(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(ours(x, None), expected)
    torch.testing.assert_close(ours.mean, peer.running_mean)
    torch.testing.assert_close(ours.variance, peer.running_var)
    padded = torch.cat((x, torch.full((3, 5, 4), 100.0)), 1)
    padding = padding_of(torch.tensor([8, 8, 8]), 13, torch.device("cpu"))
    other = MaskedBatchNorm(4)
    torch.testing.assert_close(other(padded, padding)[:, :8], expected)
    torch.testing.assert_close(other.variance, ours.variance)


def test_batch_norm_goes_back_through_a_batch_after_the_next_went_forward():
    """Training on lattices has several batches under way, with padding and without."""
    padding = torch.arange(8)[None, :, None] >= torch.tensor([8, 5])[:, None, None]
    paddings = [None, padding, None]
    layer = MaskedBatchNorm(4)
    waiting = [torch.randn(2, 8, 4, requires_grad=True) for _ in paddings]
    outputs = [layer(there, p) for there, p in zip(waiting, paddings, strict=True)]
    for output in outputs:
        output.pow(3).sum().backward()
    for there, p in zip(waiting, paddings, strict=True):
        alone = there.detach().clone().requires_grad_()
        MaskedBatchNorm(4)(alone, p).pow(3).sum().backward()
        assert torch.equal(there.grad, alone.grad)
    assert not torch.equal(layer.mean, torch.zeros(4))


def test_semi_orthogonal_steps_converge_and_keep_the_norm():
    matrix = torch.randn(8, 20, generator=torch.Generator().manual_seed(1)) / 20**0.5
    norm = matrix.norm()
    one_step = semi_orthogonal_step(matrix)
    # the floating scale makes the step orthogonal to the matrix itself
    assert abs(float((one_step - matrix).flatten() @ matrix.flatten())) < 1e-5
    for _ in range(60):
        matrix = semi_orthogonal_step(matrix)
    product = matrix @ matrix.T
    scale = product.diagonal().mean()
    torch.testing.assert_close(product / scale, torch.eye(8), atol=1e-4, rtol=0)
    assert 0.7 * norm < matrix.norm() <= norm * 1.3


def test_semi_orthogonal_step_with_a_given_scale_and_tall_matrix():
    matrix = torch.linalg.qr(torch.randn(9, 4)).Q * 1.9
    for _ in range(25):
        matrix = semi_orthogonal_step(matrix, 2.0)
    torch.testing.assert_close(matrix.T @ matrix, 4 * torch.eye(4), atol=1e-4, rtol=0)


def test_semi_orthogonal_step_is_the_gradient_step_of_its_objective():
    matrix = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    goal = 1.3**2 * torch.eye(3, dtype=torch.float64)
    (matrix @ matrix.T - goal).square().sum().backward()
    stepped = semi_orthogonal_step(matrix.detach(), 1.3)
    # d/dM |P - s^2 I|^2 = 4 (P - s^2 I) M, and the speed is 1/8 / s^2
    expected = matrix.detach() - 0.125 / 1.3**2 * matrix.grad
    torch.testing.assert_close(stepped, expected)


def kaldis_step(matrix, scale):
    """ConstrainOrthonormalInternal with traces and products written out."""
    if len(matrix) > len(matrix[0]):
        return kaldis_step(matrix.T, scale).T
    product = np.array([[row @ other for other in matrix] for row in matrix])
    speed = 0.125
    if scale < 0:
        eigenvalues = np.linalg.eigvalsh(product)
        trace, trace_square = eigenvalues.sum(), (eigenvalues**2).sum()
        scale = np.sqrt(trace_square / trace)
        ratio = trace_square * len(matrix) / trace**2
        if ratio > 1.02:
            speed *= 0.5
            if ratio > 1.1:
                speed *= 0.5
    alpha = speed / scale**2
    return matrix - 4 * alpha * (product - scale**2 * np.eye(len(matrix))) @ matrix


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
@pytest.mark.parametrize(("spread", "is_free"), [(0.02, 1), (0.25, 1), (1, 1), (1, 0)])
def test_semi_orthogonal_step_is_kaldis(shape, spread, is_free):
    rng = np.random.default_rng(7)
    rows = min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(n, rows)))[0] for n in shape)
    matrix = left * (1.7 * (1 + spread * np.linspace(-0.5, 0.5, rows))) @ right.T
    expected = kaldis_step(matrix, -1.0 if is_free else 1.5)
    got = semi_orthogonal_step(torch.from_numpy(matrix), None if is_free else 1.5)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_semi_orthogonal_step_leaves_a_zero_matrix():
    assert torch.equal(semi_orthogonal_step(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_a_linear_layer_can_be_held_semi_orthogonal():
    options = {"class": "linear", "size": 3, "bias": False, "semi_orthogonal": True}
    net = network({"layer": options})
    for _ in range(40):
        net.constrain()
    weight = net.body.layers["layer"].map.weight.detach()
    product = weight @ weight.T
    goal = product.diagonal().mean() * torch.eye(3)
    torch.testing.assert_close(product, goal, atol=1e-5, rtol=0)


def test_constrain_changes_the_narrow_factors_alone():
    net = network({"layer": LAYERS["tdnnf"]})
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.constrain()
    changed = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {f"body.layers.layer.blocks.{i}.narrow.weight" for i in (0, 1)}


def test_tdnnf_dropout_is_constant_over_time_and_of_mean_one():
    options = {**LAYERS["tdnnf"], "dropout": 0.4, "bypass": 0.0, "num_layers": 1}
    layer = network({"layer": options}).body.layers["layer"]
    layer.train()
    layer.blocks[0].norm.eval()
    padded = torch.randn(400, 5, 6)
    batch = Padded.of(padded, torch.full((400,), 5))
    dropped = layer(batch).values.detach()
    plain = layer.eval()(batch).values.detach()
    ratio = torch.where(plain.abs() > 1e-3, dropped / plain, torch.nan)
    spread = ratio.nan_to_num(1e9).amin(1) - ratio.nan_to_num(-1e9).amax(1)
    assert spread[spread < 1e8].abs().max() < 1e-3  # one factor for all frames
    factors = ratio[~ratio.isnan()]
    assert 0.2 - 1e-3 <= factors.min() < 0.25
    assert 1.75 < factors.max() <= 1.8 + 1e-3
    assert factors.mean() == pytest.approx(1.0, abs=0.03)


def test_spec_augment_masks_in_training_only_and_within_its_bounds():
    options = {"class": "specaugment", "time_width": 4, "frequency_width": 2}
    layer = network({"mask": options, "h": LAYERS["linear"]}).body.layers["mask"]
    batch = Padded.of(torch.ones(200, 30, 6), torch.full((200,), 30))
    assert torch.equal(layer.eval()(batch).values, batch.values)
    masked = layer.train()(batch).values == 0
    whole_frames, whole_bands = masked.all(2), masked.all(1)
    assert 0 < whole_frames.sum(1).max() <= 8
    assert 0 < whole_bands.sum(1).max() <= 4
    assert torch.equal(masked, whole_frames[:, :, None] | whole_bands[:, None, :])


@pytest.mark.parametrize("options", [{}, {"time_share": 0.2, "time_warp": 6}])
def test_spec_augment_draws_the_same_whatever_the_padding(options):
    mask = {"class": "specaugment", **options}
    layer = network({"mask": mask, "h": LAYERS["linear"]}).body.layers["mask"].train()
    lengths = torch.tensor([40, 7, 33, 1, 20])
    values = torch.randn(5, 60, 6, generator=torch.Generator().manual_seed(1))
    values[torch.arange(60) >= lengths[:, None]] = 0.0
    masked = []
    for num_frames in (40, 60):
        torch.manual_seed(4)
        masked.append(layer(Padded.of(values[:, :num_frames], lengths)).values)
    assert torch.equal(masked[0], masked[1][:, :40])


def draws(rows):
    """Random numbers of rows, the same in each call."""
    return RowDraws(torch.arange(rows) * 7919)


def test_draws_of_a_row_are_uniform_its_own_and_those_of_its_key():
    rows = RowDraws(torch.arange(400))
    first, second = rows.uniform(50, 2), rows.uniform(50, 2)
    values = torch.cat([first.flatten(), second.flatten()])
    assert values.min() >= 0
    assert values.max() < 1
    assert values.unique().numel() == values.numel()
    counts = torch.histc(values.float(), 20, 0, 1)
    assert ((counts - 4000) / 4000**0.5).abs().max() < 4.5
    for one, other in ((first, second), (first[1:], first[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.03
    some = RowDraws(torch.tensor([7, 3]))
    assert torch.equal(some.uniform(30, 2), first[[7, 3], :30])
    assert not torch.equal(some.named("a").uniform(9), some.named("b").uniform(9))
    assert torch.equal(some.named("a").uniform(9), some.named("a").uniform(9))


@pytest.mark.parametrize("edges", ["zeros", "repeat"])
def test_masks_of_a_row_are_those_of_its_key_in_any_batch(edges):
    """Whatever rows are beside it, and frames behind it that fill it up."""
    layers = {
        "mask": {"class": "specaugment", "time_warp": 4, "frequency_warp": 0.2},
        "more": {"class": "specaugment", "time_share": 0.3},
        "h": LAYERS["tdnn"],
    }
    net = network(layers, edges=edges).train()
    noise = torch.randn(6, 40, 6, generator=torch.Generator().manual_seed(1))
    own = torch.tensor([40, 12, 33, 5, 21, 30])

    def masked(rows, values, lengths):
        given = RowDraws(torch.tensor(rows), own[rows])
        return net(values[rows], lengths[rows], draws=given, layers=["more"])["more"]

    everything = list(range(6))
    for values, lengths in (
        (noise, own),
        # the masks alone, where all chunks are filled up
        (torch.ones(6, 40, 6), torch.full((6,), 40)),
    ):
        whole = masked(everything, values, own)
        for rows in ([3], [5, 1], [4, 0, 2], everything):
            part = masked(rows, values, lengths).logits
            for row, found in zip(rows, part, strict=True):
                assert torch.equal(found[: own[row]], whole.logits[row, : own[row]])
    other = net(noise, own, draws=RowDraws(torch.arange(1, 7), own), layers=["more"])
    assert not torch.equal(other["more"].logits, masked(everything, noise, own).logits)


def test_random_spans_cover_every_place_and_stay_inside():
    sizes, widest = torch.full((3000,), 7), torch.full((3000,), 3)
    spans = random_spans(sizes, widest, 1, 9, draws(3000))
    assert not spans[:, 7:].any()
    assert set(spans.sum(1).tolist()) == {0, 1, 2, 3}
    assert spans[:, :7].any(0).all()


def test_features_behind_the_first_ones_may_be_left_alone():
    options = {"class": "specaugment", "size": 4, "time_warp": 3, "frequency_width": 4}
    layer = network({"mask": options, "h": LAYERS["linear"]}).body.layers["mask"]
    values = torch.rand(50, 20, 6) + 1
    changed = layer.train()(Padded.of(values, torch.full((50,), 20))).values
    assert torch.equal(changed[:, :, 4:], values[:, :, 4:])
    assert (changed[:, :, :4] == 0).any(2).any(1).float().mean() > 0.9


def test_bands_are_a_share_of_the_features():
    options = {"class": "specaugment", "frequency_masks": 1, "time_masks": 0}
    shares = {"frequency_width": 99, "frequency_fraction": 0.5}
    masks = {"mask": {**options, **shares}, "h": LAYERS["linear"]}
    layer = network(masks, dim=40).body.layers["mask"].train()
    batch = Padded.of(torch.ones(2000, 3, 40), torch.full((2000,), 3))
    widths = (layer(batch).values == 0).all(1).sum(1)
    assert torch.equal(widths.unique(), torch.arange(21))
    assert widths.double().mean() == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize(("widest", "share"), [(20, 0.2), (5, 0.5), (1, 0.5), (8, 0.0)])
def test_spread_spans_cover_their_share_everywhere(widest, share):
    rows, total = 4000, 90
    spans = spread_spans(total, widest, share, draws(rows))
    error = 5 * math.sqrt(max(share, 1e-9) * (1 - share) / rows)
    covered = spans.double().mean(0)
    assert (covered - share).abs().max() < error  # at any place
    longest = torch.ones(rows, dtype=torch.int64)
    run = torch.zeros(rows, dtype=torch.int64)
    for t in range(total):
        run = (run + 1) * spans[:, t]
        longest = torch.maximum(longest, run)
    assert longest.max() == max(widest if share else 0, 1)


def test_shares_without_room_for_gaps_are_refused():
    assert most_share(1) == 0.5
    options = {"class": "specaugment", "time_share": 0.6, "time_width": 1}
    with pytest.raises(UserError, match="time_share is 0.50 at most"):
        network({"mask": options})


@pytest.mark.parametrize("greatest", [1, 5, 40])
def test_warped_times_keep_order_ends_and_bounds(greatest):
    lengths = torch.tensor([1, 2, 3, 4, 5, 6, 11, 50, 100] * 40)
    source = warped_times(lengths, greatest, 110, draws(len(lengths)))
    time = torch.arange(110.0, dtype=torch.float64)
    for row, length in zip(source, lengths.tolist(), strict=True):
        assert row[0] == 0
        assert row[length - 1] == pytest.approx(length - 1)
        assert (row[:length].diff() > 0).all()
        # no frame moves further than the one that is drawn
        assert (row[:length] - time[:length]).abs().max() <= greatest + 1e-9
    moved = (source - time).abs()[lengths == 100][:, :100].amax(1)
    assert moved.mean() == pytest.approx(greatest / 2, rel=0.35)


def test_a_warp_moves_frames_and_keeps_their_number():
    options = {"class": "specaugment", "frequency_masks": 0, "time_masks": 0}
    masks = {"mask": {**options, "time_warp": 5}, "h": LAYERS["linear"]}
    layer = network(masks).body.layers["mask"].train()
    lengths = torch.tensor([30, 17, 3])
    ramp = torch.arange(30.0)[None, :, None].expand(3, -1, 6).clone()
    ramp[torch.arange(30) >= lengths[:, None]] = 0.0
    ramp.requires_grad_()
    layer.draws = draws(3)
    warped = layer(Padded.of(ramp, lengths))
    assert warped.values.shape == ramp.shape
    assert torch.equal(warped.lengths, lengths)
    # of a ramp, linear interpolation gives the source times themselves
    source = warped_times(lengths, 5, 30, draws(3))
    for row, length in enumerate(lengths.tolist()):
        wanted = source[row, :length].float()[:, None].expand(-1, 6)
        torch.testing.assert_close(warped.values[row, :length].detach(), wanted)
        assert not warped.values[row, length:].any()
    warped.values.sum().backward()
    assert ramp.grad.sum() == pytest.approx(6 * int(lengths.sum()), rel=1e-5)


def test_warped_bins_keep_order_and_ends_and_have_their_slope_below_the_break():
    source = warped_bins(40, 0.2, draws(2000))
    assert not source[:, 0].any()
    assert torch.allclose(source[:, -1], torch.tensor(39.0, dtype=torch.float64))
    assert (source.diff(dim=1) > 0).all()
    slope = source[:, 1]
    assert 0.8 <= slope.min() < 0.81
    assert 1.19 < slope.max() <= 1.2
    assert slope.mean() == pytest.approx(1.0, abs=0.02)
    low = torch.arange(26, dtype=torch.float64)
    torch.testing.assert_close(source[:, :26], slope[:, None] * low)


def test_a_warp_of_frequency_interpolates_the_bins_of_all_frames_alike():
    options = {"class": "specaugment", "frequency_masks": 0, "time_masks": 0}
    masks = {"mask": {**options, "size": 40, "frequency_warp": 0.3}}
    layer = network({**masks, "h": LAYERS["linear"]}, dim=42).body.layers["mask"]
    ramp = torch.arange(42.0).expand(3, 5, 42).clone().requires_grad_()
    layer.draws = draws(3)
    warped = layer.train()(Padded.of(ramp, torch.tensor([5, 5, 5]))).values
    # of a ramp, linear interpolation gives the places themselves
    wanted = warped_bins(40, 0.3, draws(3)).float()[:, None, :].expand(-1, 5, -1)
    torch.testing.assert_close(warped[:, :, :40].detach(), wanted)
    assert torch.equal(warped[:, :, 40:], ramp[:, :, 40:])
    warped.sum().backward()
    assert ramp.grad.sum() == pytest.approx(3 * 5 * 42, rel=1e-5)
    assert torch.equal(layer.eval()(Padded.of(ramp, torch.full((3,), 5))).values, ramp)


def test_options_that_do_not_fit_the_input_name_the_layer():
    for options, part in (
        ({"class": "self_attention", "heads": 4}, "4 heads do not divide"),
        ({"class": "conv1d", "size": 3, "groups": 2}, "groups must divide"),
        ({"class": "conv2d", "size": 3, "channels": 4}, "4 equal maps"),
        ({"class": "tdnnf", "size": 9, "bottleneck": 2}, "bypass needs equal sizes"),
        ({"class": "rec", "size": 3, "unit": "gru", "projection": 2}, "projection"),
        ({"class": "linear", "size": 3, "semi_orthogonal": True}, "needs bias: false"),
        ({"class": "slice", "begin": 6}, "numbers from 6 on of a frame of 6"),
        ({"class": "slice", "begin": 4, "size": 3}, "numbers 4 to 6 of a frame of 6"),
    ):
        with pytest.raises(UserError, match=f"layer bad: .*{part}"):
            network({"bad": options})


@pytest.mark.parametrize(
    ("number", "expected"),
    [(torch.float32, True), (torch.bfloat16, True), (torch.float64, False)],
)
def test_kernels_with_sums_in_float32_are_for_no_longer_numbers(
    monkeypatch, number, expected
):
    monkeypatch.setattr("latflow.nnet.layers.simple.runs_kernels", lambda _: True)
    norm = MaskedBatchNorm(3, affine=False).train()
    assert norm._is_fused(torch.zeros(1, 2, 3, dtype=number)) is expected
