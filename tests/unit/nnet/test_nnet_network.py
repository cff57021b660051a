"""Networks: outputs, sharing, subnetworks, user layers, seeds, names, tables."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.layer import Layer, Padded, Shape
from latflow.nnet.network import Network
from latflow.options import Options


def network(classes=None, dim=6, seed=0, **layers):
    description = NetworkDescription.from_config({"layers": layers})
    return Network(description, dim, classes or {"pdf": 3}, seed=seed)


OUTPUT = {"class": "output"}


class GainOptions(Options):
    """Options of `Gain`."""

    start: float = 1.0
    """the first factor"""


class Gain(Layer):
    """Multiply by a learnt factor."""

    OPTIONS = GainOptions

    def __init__(self, shape: Shape, options: GainOptions) -> None:
        super().__init__(shape)
        self.factor = nn.Parameter(torch.tensor(options.start))

    def forward(self, batch):
        return batch.with_values(batch.values * self.factor)


def test_several_outputs_each_with_their_classes_and_loss():
    net = network(
        {"pdf": 5, "phone": 4, "third": 2},
        hidden={"class": "linear", "size": 7},
        main=OUTPUT,
        side={"class": "output", "from": "hidden", "target": "phone"},
        third={"class": "linear", "from": "hidden", "loss": "ce", "loss_scale": 0.1},
    )
    found = net(torch.randn(2, 4, 6), torch.tensor([4, 3]))
    assert {k: v.logits.shape[-1] for k, v in found.items()} == {
        "main": 5,
        "side": 4,
        "third": 2,  # the output's own name goes before its target's
    }
    assert list(found) == ["main", "side", "third"]
    assert net.outputs["third"].loss.scale == 0.1
    assert net.outputs["side"].num_classes == 4


def test_the_number_of_classes_must_be_known_and_fit():
    with pytest.raises(UserError, match="layer output: .*target phone is not known"):
        network({"pdf": 3}, output={"class": "output", "target": "phone"})
    with pytest.raises(UserError, match="layer output: its target has 0 classes"):
        network({"pdf": 0}, output=OUTPUT)
    with pytest.raises(UserError, match="gives 5 numbers a frame, .* 3 classes"):
        network({"pdf": 3}, out={"class": "linear", "size": 5, "loss": "ce"})


def test_shared_parameters_are_one_module_and_count_once():
    net = network(
        one={"class": "linear", "size": 6},
        two={"reuse": "one"},
        output=OUTPUT,
    )
    assert set(net.body.layers) == {"one", "output"}
    assert net.num_parameters == (6 * 6 + 6) + (6 * 3 + 3)
    x = torch.randn(1, 2, 6)
    one, output = net.body.layers["one"].map, net.body.layers["output"].map
    got = net(x, torch.tensor([2]))["output"].logits
    torch.testing.assert_close(got, output(one(one(x))))
    assert "as one" in net.summary()


def test_sharing_needs_inputs_of_one_size():
    with pytest.raises(UserError, match="layer two: its input has 5 .* one, .* 6"):
        network(one={"class": "linear", "size": 5}, two={"reuse": "one"}, output=OUTPUT)


def test_a_subnetwork_is_its_layers_written_out():
    inside = {
        "a": {"class": "linear", "size": 6, "activation": "tanh"},
        "sum": {"class": "add", "from": ["a", "data"]},
    }
    net = network(
        block={"class": "subnetwork", "layers": inside, "repeat": 2}, output=OUTPUT
    )
    x = torch.randn(1, 3, 6)
    value = x
    for part in net.body.layers["block"].copies:
        value = torch.tanh(part.layers["a"].map(value)) + value
    expected = net.body.layers["output"].map(value)
    got = net(x, torch.tensor([3]))["output"].logits
    torch.testing.assert_close(got, expected)
    first, second = net.body.layers["block"].copies
    assert not torch.equal(first.layers["a"].map.weight, second.layers["a"].map.weight)


def test_a_subnetworks_result_is_that_of_output_where_there_is_one():
    inside = {
        "output": {"class": "linear", "size": 4, "from": "early"},
        "early": {"class": "linear", "size": 2, "from": "data"},
    }
    net = network(block={"class": "subnetwork", "layers": inside}, output=OUTPUT)
    assert net.body.shapes["block"].dim == 4


def test_a_users_layer_is_found_by_its_import_path():
    net = network(gain={"class": f"{__name__}.Gain", "start": 3.0}, output=OUTPUT)
    gain = net.body.layers["gain"]
    assert type(gain).__name__ == "Gain"
    assert gain.factor.item() == 3.0
    with pytest.raises(UserError, match="layer gain: unknown key stert.*start"):
        network(gain={"class": f"{__name__}.Gain", "stert": 3.0}, output=OUTPUT)


def test_the_seed_and_the_layers_name_alone_give_the_start():
    layers = {"a": {"class": "rec", "size": 3}, "b": {"class": "linear", "size": 4}}
    torch.manual_seed(1)
    one = network(**layers, output=OUTPUT)
    torch.manual_seed(2)
    draw = torch.rand(1)
    torch.manual_seed(2)
    two = network(**layers, output=OUTPUT)
    assert torch.equal(torch.rand(1), draw)  # the caller's generator is left alone
    for (name, x), y in zip(
        one.state_dict().items(), two.state_dict().values(), strict=True
    ):
        assert torch.equal(x, y), name
    other = network(**layers, output=OUTPUT, seed=1)
    assert not torch.equal(
        one.body.layers["b"].map.weight, other.body.layers["b"].map.weight
    )
    more = network(new={"class": "layer_norm"}, **layers, output=OUTPUT)
    assert torch.equal(
        one.body.layers["a"].rnn.weight_hh_l0, more.body.layers["a"].rnn.weight_hh_l0
    )


def test_the_start_is_as_documented():
    net = network(
        lstm={"class": "rec", "size": 8, "num_layers": 2},
        factor={"class": "tdnnf", "size": 16, "bottleneck": 4, "bypass": 0},
        conv={"class": "conv1d", "size": 5},
        output=OUTPUT,
    )
    lstm = net.body.layers["lstm"].rnn
    for gate in lstm.weight_hh_l1_reverse.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)
    for gate in lstm.weight_ih_l0.chunk(4):
        assert gate.abs().max() <= (6 / (6 + 8)) ** 0.5
    offset = lstm.bias_ih_l0 + lstm.bias_hh_l0
    assert offset.tolist() == [0] * 8 + [1] * 8 + [0] * 16
    assert not net.body.layers["conv"].conv.bias.any()
    factor = net.body.layers["factor"].blocks[0].narrow.weight.detach()
    assert factor.std() == pytest.approx(factor.shape[1] ** -0.5, rel=0.2)


def test_look_ahead_bounds_what_an_output_sees():
    net = network(
        a={"class": "self_attention", "heads": 2, "look_ahead": 2, "look_back": 3},
        output=OUTPUT,
    ).eval()
    assert net.receptive_field == (3, 2)
    x = torch.randn(1, 12, 6)
    length = torch.tensor([12])
    before = net(x, length)["output"].logits
    changed = x.clone()
    changed[0, 7:] += 1.0
    after = net(changed, length)["output"].logits
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.isclose(before[0, 5], after[0, 5]).all()


def test_parameter_names_are_stable():
    # they are in model folders: a change here makes those unreadable
    net = network(
        l={"class": "linear", "size": 6},
        r={"class": "rec", "size": 3},
        c={"class": "conv1d", "size": 6},
        t={"class": "transformer", "heads": 2, "feed_forward": 4},
        f={"class": "tdnnf", "size": 6, "bottleneck": 2},
        b={"class": "batch_norm"},
        s={"class": "subnetwork", "layers": {"x": {"class": "layer_norm"}}},
        output=OUTPUT,
    )
    names = {name.removeprefix("body.layers.") for name in net.state_dict()}
    assert names == {
        *("l.map.weight", "l.map.bias"),
        *(
            f"r.rnn.{kind}_{which}_l0{way}"
            for kind in ("weight", "bias")
            for which in ("ih", "hh")
            for way in ("", "_reverse")
        ),
        *("c.conv.weight", "c.conv.bias"),
        *(
            f"t.encoders.0.{part}.{kind}"
            for part in (
                *("attention.inputs", "attention.output", "wide", "back"),
                *("norms.0", "norms.1"),
            )
            for kind in ("weight", "bias")
        ),
        *("t.convolutions.0.weight", "t.convolutions.0.bias"),
        *("f.blocks.0.narrow.weight", "f.blocks.0.widen.weight"),
        *("f.blocks.0.widen.bias", "f.blocks.0.norm.mean", "f.blocks.0.norm.variance"),
        *("b.norm.scale", "b.norm.offset", "b.norm.mean", "b.norm.variance"),
        *("s.copies.0.layers.x.norm.weight", "s.copies.0.layers.x.norm.bias"),
        *("output.map.weight", "output.map.bias"),
    }


def test_layers_that_do_not_fit_each_other_are_named():
    slow = {"class": "subsample", "factor": 2}
    with pytest.raises(UserError, match="layer output: .*frame rates: s 1/2, data 1/1"):
        network(s=slow, output={"class": "output", "from": ["s", "data"]})
    with pytest.raises(UserError, match="layer sum: .*unequal sizes: \\[3, 6\\]"):
        network(
            a={"class": "linear", "size": 3},
            sum={"class": "add", "from": ["a", "data"]},
            output=OUTPUT,
        )
    with pytest.raises(UserError, match="outputs have different frame rates"):
        network(
            s=slow, one=OUTPUT, two={"class": "output", "from": "data", "loss": "ce"}
        )


def test_inputs_of_other_shapes_are_refused():
    net = network(output=OUTPUT)
    with pytest.raises(ValueError, match="need 6 features, not 5"):
        net(torch.zeros(1, 2, 5), torch.tensor([2]))
    for lengths in ([3], [0], [2, 2]):
        with pytest.raises(ValueError, match="length"):
            net(torch.zeros(1, 2, 6), torch.tensor(lengths))


def test_maps_of_several_inputs_stay_maps():
    net = network(
        dim=12,
        one={"class": "conv2d", "size": 2},
        two={"class": "conv2d", "size": 3, "from": "data"},
        both={"class": "conv2d", "size": 4, "from": ["one", "two"]},
        output=OUTPUT,
    )
    assert net.body.layers["both"].channels == 5
    assert net.body.shapes["both"] == Shape(4 * 12, 4)


def test_summary_tells_sizes_parameters_and_fields():
    net = network(
        conv={"class": "conv1d", "size": 5, "kernel": 3, "stride": 2},
        output={"class": "output", "loss_scale": 0.5},
    )
    lines = net.summary().splitlines()
    assert lines[0].split()[:5] == ["layer", "class", "from", "size", "parameters"]
    assert lines[2].split() == ["data", "features", "6", "0", "itself"]
    assert lines[3].split() == [
        *("conv", "conv1d", "data", "5", str(6 * 3 * 5 + 5), "-1..+1", "/2"),
    ]
    assert lines[4].endswith("0.5 x ce of pdf")
    assert lines[-1] == f"{net.num_parameters} parameters, one output frame for 2 " + (
        "frames of features"
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("unit", ["lstm", "gru", "projected"])
def test_recurrent_layers_give_what_torchs_packed_ones_give(unit, direction):
    options = {"class": "rec", "size": 4, "num_layers": 2, "direction": direction}
    options |= {"projection": 3} if unit == "projected" else {"unit": unit}
    layer = network(r=options, output=OUTPUT).body.layers["r"]
    x, lengths = torch.randn(3, 9, 6), torch.tensor([9, 4, 1])

    def packed():
        given = rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return rnn.pad_packed_sequence(layer.rnn(given)[0], batch_first=True)[0]

    results, gradients = [], []
    for run in (packed, lambda: layer(Padded.of(x, lengths)).values):
        layer.zero_grad()
        result = run()
        result.square().sum().backward()
        results.append(result.detach())
        gradients.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_dropout_between_lstm_layers_is_drawn_on_either_path():
    options = {"class": "rec", "size": 4, "num_layers": 2, "dropout": 0.5}
    net = network(r=options, output=OUTPUT).train()
    x = torch.randn(2, 9, 6)
    for lengths in ([9, 9], [9, 7]):
        runs = [net(x, torch.tensor(lengths))["output"].logits for _ in range(2)]
        assert not torch.allclose(*runs)
        net.eval()
        runs = [net(x, torch.tensor(lengths))["output"].logits for _ in range(2)]
        assert torch.equal(*runs)
        net.train()


def test_a_network_can_be_copied_and_pickled():
    net = network(
        a={"class": "linear", "size": 4, "activation": "log_softmax"},
        b={"class": "tdnn", "size": 4},
        output=OUTPUT,
    )
    x, lengths = torch.randn(1, 3, 6), torch.tensor([3])
    expected = net(x, lengths)["output"].logits
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(again(x, lengths)["output"].logits, expected)


class Halved(Layer):
    """Give half of the numbers, and say that they are all."""

    OPTIONS = GainOptions

    def __init__(self, shape: Shape, options: GainOptions) -> None:
        super().__init__(shape)

    def forward(self, batch):
        return batch.with_values(batch.values[..., ::2])


class Bare(Halved):
    """Give what is not a batch."""

    def forward(self, batch):
        return batch.values


class Slow(Halved):
    """Give every second frame, and say that they are all."""

    def forward(self, batch):
        return batch.strided(batch.values[:, ::2], 2)


class Misfit(Halved):
    """Multiply by a matrix of other sizes."""

    def forward(self, batch):
        return batch.with_values(batch.values @ torch.ones(4, 6))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (Halved, r"gives numbers of shape \[2, 20, 3\], and says 6 a frame"),
        (Bare, "gives Tensor, not a Padded batch"),
        (Slow, "frames of .* and says one in 1"),
        (Misfit, "cannot be computed: mat"),
    ],
)
def test_layers_that_give_not_what_they_say_are_named(layer, told):
    own = {"class": f"{__name__}.{layer.__name__}"}
    made = network(own=own, output=OUTPUT)
    with pytest.raises(UserError, match=f"layer own: .*{told}"):
        made.try_out()
    assert made.training
    inside = {"class": "subnetwork", "layers": {"own": own}}
    with pytest.raises(UserError, match="layer sub: cannot be computed|layer sub: "):
        network(sub=inside, output=OUTPUT).try_out()


def test_a_network_that_can_be_computed_passes():
    gain = {"class": f"{__name__}.Gain"}
    layers = {"gain": gain, "slow": {"class": "subsample"}, "output": OUTPUT}
    network(**layers).try_out()
