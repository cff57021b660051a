"""Layers in loops, states handed on from layer to layer, labels as input."""

import pytest
import torch
from reference.loop_naive import run_loop

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.pretraining import num_steps, shallower


def network(layers, dim=3, size=4):
    layers = {**layers, "output": {"class": "output"}}
    described = NetworkDescription.from_config({"layers": layers})
    return Network(described, dim, {"pdf": size}).double().eval()


# An LSTM in its equations, as RETURNN's demo-tf-rec-explicit-lstm.config has it.
LSTM = {
    "input": {"class": "concat", "from": ["prev:output", "data"]},
    "i": {"class": "linear", "size": 5, "activation": "sigmoid", "from": "input"},
    "f": {"class": "linear", "size": 5, "activation": "sigmoid", "from": "input"},
    "o": {"class": "linear", "size": 5, "activation": "sigmoid", "from": "input"},
    "u": {"class": "linear", "size": 5, "activation": "tanh", "from": "input"},
    "entering": {"class": "multiply", "from": ["i", "u"]},
    "kept": {"class": "multiply", "from": ["f", "prev:c"]},
    "c": {"class": "add", "from": ["entering", "kept"]},
    "tanh": {"class": "activation", "function": "tanh"},
    "output": {"class": "multiply", "from": ["o", "tanh"]},
}
LOOPS = {
    "lstm": LSTM,
    # Layers before and behind the circle, one of them in a circle of two cells.
    "two cells": {
        "before": {"class": "rec", "size": 3, "direction": "forward"},
        "late": {"class": "linear", "size": 2, "from": ["prev:before", "data"]},
        "one": {
            "class": "rec",
            "size": 4,
            "direction": "forward",
            "from": ["late", "prev:two"],
        },
        "norm": {"class": "layer_norm"},
        "two": {"class": "rec", "size": 3, "direction": "forward", "unit": "gru"},
        "behind": {"class": "rec", "size": 2, "direction": "forward"},
        "output": {"class": "concat", "from": ["behind", "prev:one", "before"]},
    },
    "no circle": {
        "a": {"class": "activation", "function": "tanh"},
        "difference": {"class": "add", "from": ["a", "prev:a"]},
    },
    "sum": {"sum": {"class": "add", "from": ["data", "prev:sum"]}},
    "slice": {
        "part": {"class": "slice", "begin": 1, "from": "prev:both"},
        "h": {"class": "linear", "size": 2, "activation": "tanh", "from": "part"},
        "both": {"class": "concat", "from": ["data", "h"]},
    },
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_its_layers_frame_by_frame(name, direction):
    """Whatever is computed at once, and however long the others of a batch are."""
    options = {"class": "loop", "layers": LOOPS[name], "direction": direction}
    net = network({"loop": options})
    loop, output = net.body.layers["loop"], net.body.layers["output"].map
    features, lengths = torch.randn(3, 6, 3).double(), torch.tensor([4, 6, 1])
    got = net(features, lengths)["output"].logits
    for row, length in enumerate(lengths):
        expected = output(run_loop(loop, features[row, :length]))
        torch.testing.assert_close(got[row, :length], expected)
    assert (got[0, 4:] == 0).all()


def test_an_lstm_in_its_equations_is_torch_s():
    net = network({"loop": {"class": "loop", "layers": LSTM}})
    layers = net.body.layers["loop"].graph.layers
    rnn = torch.nn.LSTM(3, 5, batch_first=True).double()
    maps = [layers[name].map for name in ("i", "f", "u", "o")]
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(torch.cat([x.weight[:, :5] for x in maps]))
        rnn.weight_ih_l0.copy_(torch.cat([x.weight[:, 5:] for x in maps]))
        rnn.bias_ih_l0.copy_(torch.cat([x.bias for x in maps]))
        rnn.bias_hh_l0.zero_()
    features, lengths = torch.randn(2, 9, 3).double(), torch.tensor([9, 9])
    expected = net.body.layers["output"].map(rnn(features)[0])
    torch.testing.assert_close(net(features, lengths)["output"].logits, expected)


def gradients_are_differences(net, num_frames, lengths, dim=3):
    """Let torch compare the gradients of features and parameters with differences."""
    features = torch.randn(len(lengths), num_frames, dim).double().requires_grad_()
    names = [name for name, _ in net.named_parameters()]

    def run(features, *parameters):
        given = dict(zip(names, parameters, strict=True))
        arguments = features, torch.tensor(lengths)
        return torch.func.functional_call(net, given, arguments)["output"].logits

    return torch.autograd.gradcheck(run, (features, *net.parameters()))


@pytest.mark.parametrize("name", ["lstm", "two cells"])
def test_gradients_of_loops_are_finite_differences(name):
    net = network({"loop": {"class": "loop", "layers": LOOPS[name]}}, size=2)
    assert gradients_are_differences(net, 4, [4, 2])


WRONG_LOOPS = {
    "a layer that is not there": (
        {"a": {"class": "linear", "size": 2, "from": "prev:b"}},
        "layer loop.a: from names no layer: prev:b",
    ),
    "the features before": (
        {"a": {"class": "linear", "size": 2, "from": "prev:data"}},
        "layer loop.a: from names no layer: prev:data",
    ),
    "a size of itself": (
        {"a": {"class": "activation", "function": "tanh", "from": "prev:a"}},
        "layer loop.a: its size follows from nothing but prev:a",
    ),
    "frames around": (
        {"a": {"class": "conv1d", "size": 2, "kernel": 3}},
        "layer loop.a: class conv1d does not work inside a loop",
    ),
    "time going back": (
        {"a": {"class": "rec", "size": 2}},
        "layer loop.a: inside a loop a layer of class rec continues",
    ),
    "a circle in a frame": (
        {
            "a": {"class": "add", "from": ["data", "b"]},
            "b": {"class": "add", "from": ["data", "a"]},
        },
        "in a circle: b <- a <- b",
    ),
    "a result for nothing": (
        {
            "a": {"class": "add", "from": ["data", "prev:a"]},
            "b": {"class": "linear", "size": 2, "from": "data"},
        },
        "layer loop.a: its result is used nowhere",
    ),
    "a loss": (
        {"a": {"class": "linear", "loss": "ce"}},
        "layer loop.a: a loss inside a loop",
    ),
    "a state": (
        {
            "a": {"class": "rec", "size": 2, "direction": "forward"},
            "b": {
                "class": "rec",
                "size": 2,
                "direction": "forward",
                "initial_state": "a",
            },
        },
        "layer loop.b: initial_state inside a loop",
    ),
    "sizes that differ": (
        {"a": {"class": "add", "from": ["data", "prev:b"]},
         "b": {"class": "linear", "size": 2, "from": "a"}},
        r"layer loop.a: its inputs have unequal sizes: \[3, 2\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_loops_that_cannot_be_are_refused(name):
    layers, told = WRONG_LOOPS[name]
    with pytest.raises(UserError, match=told):
        network({"loop": {"class": "loop", "layers": layers}})


def test_only_loops_have_a_frame_before():
    for layers in (
        {"a": {"class": "add", "from": ["data", "prev:a"]}},
        {"a": {"class": "subnetwork", "layers": {"b": {"class": "add",
                                                       "from": "prev:b"}}}},
    ):  # fmt: skip
        with pytest.raises(UserError, match="prev:. is for layers inside a layer of"):
            network(layers)


def encoder_and_decoder(**options):
    return {
        "few": {"class": "subsample", "factor": 2},
        "enc": {"class": "rec", "size": 4, "from": "few", **options},
        "dec": {
            **{"class": "rec", "size": 4, "from": "data", **options},
            "initial_state": "enc",
        },
        "output": {"class": "output", "from": "dec"},
        "other": {"class": "output", "from": "enc", "target": "x"},
    }


STATES = {
    "forward lstm": {"direction": "forward"},
    "backward gru": {"direction": "backward", "unit": "gru"},
    "both": {"num_layers": 2, "unit": "gru"},
    "projected": {"num_layers": 2, "projection": 3},
}


@pytest.mark.parametrize("name", STATES)
def test_a_layer_begins_with_the_state_that_another_ended_in(name):
    """As torch has it for each sequence, at its own last frame."""
    layers = encoder_and_decoder(**STATES[name])
    del layers["other"], layers["output"]
    net = network(layers)
    enc, dec = (net.body.layers[name].rnn for name in ("enc", "dec"))
    output = net.body.layers["output"].map
    features, lengths = torch.randn(3, 7, 3).double(), torch.tensor([3, 7, 1])
    got = net(features, lengths)["output"].logits
    is_backward = "backward" in name
    for row, length in enumerate(lengths):
        given = features[row : row + 1, :length]
        few = given[:, ::2]
        if is_backward:
            given, few = given.flip(1), few.flip(1)
        _, state = enc(few)
        found, _ = dec(given, state)
        found = output(found.flip(1) if is_backward else found)
        torch.testing.assert_close(got[row : row + 1, :length], found)


def test_gradients_through_a_state_are_finite_differences():
    layers = encoder_and_decoder(direction="forward")
    del layers["other"], layers["output"]
    assert gradients_are_differences(network(layers, size=2), 4, [4, 3])


def test_what_begins_with_a_state_sees_all_frames():
    layers = encoder_and_decoder(direction="forward")
    del layers["other"], layers["output"]
    assert network(layers).receptive_field == (None, None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 5}, r"the state of enc is of lstm 1 x 1 x 4 .*, its own of lstm"),
        ({"unit": "gru"}, "its own of gru 1 x 1 x 4"),
        ({"direction": "bidirectional"}, "its own of lstm 1 x 2 x 4"),
        ({"initial_state": "few"}, "names no layer of class rec: few"),
        ({"initial_state": "dec"}, "names no layer of class rec: dec"),
        ({"initial_state": 3}, "initial_state must be a string, not 3"),
        ({"class": "linear"}, "class linear has no initial_state"),
    ],
)
def test_states_that_do_not_fit_are_refused(changes, told):
    layers = encoder_and_decoder(direction="forward")
    del layers["other"], layers["output"]
    layers["dec"] |= changes
    if layers["dec"]["class"] == "linear":
        del layers["dec"]["direction"]
    with pytest.raises(UserError, match=f"layer dec: .*{told}"):
        network(layers)


def test_an_associative_memory_is_not_handed_on():
    layers = encoder_and_decoder(direction="forward", unit="associative")
    del layers["other"], layers["output"]
    with pytest.raises(UserError, match="of none, its own of none"):
        network(layers)


EMBEDDED = {"class": "embedding", "classes": 5, "size": 3, "activation": "tanh"}


def test_an_embedding_is_a_linear_layer_on_one_hot_vectors():
    net = network({"embedding": EMBEDDED}, dim=1)
    vectors = net.body.layers["embedding"].vectors.weight
    labels = torch.tensor([[4.0, 0.0, -1.0, 2.0], [1.0, 3.0, torch.nan, 9.0]])
    got = net(labels[:, :, None].double(), torch.tensor([4, 2]))["output"].logits
    hot = torch.tensor([[4, 0, 5, 2], [1, 3, 5, 5]])
    hot = torch.nn.functional.one_hot(hot, 6)[:, :, :5].double()
    expected = net.body.layers["output"].map(torch.tanh(hot @ vectors))
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1, :2], expected[1, :2])
    assert (got[1, 2:] == 0).all()
    got.sum().backward()
    assert vectors.grad is None or vectors.grad.isfinite().all()


@pytest.mark.parametrize("number", [5.0, -2.0, 1.5, float("nan")])
def test_numbers_that_are_no_labels_are_refused(number):
    net = network({"embedding": EMBEDDED}, dim=1)
    with pytest.raises(UserError, match="in a layer of class embedding is no label"):
        net(torch.tensor([[[1.0], [number]]]).double(), torch.tensor([2]))


def test_an_embedding_reads_one_number_a_frame():
    with pytest.raises(UserError, match="layer bad: its input has 3 numbers a frame"):
        network({"bad": EMBEDDED})
    layers = {
        "speaker": {"class": "slice", "begin": 2},
        "vector": EMBEDDED,
        "speech": {"class": "slice", "size": 2, "from": "data"},
        "both": {"class": "concat", "from": ["vector", "speech"]},
    }
    features = torch.tensor([[[0.5, 0.1, 4.0]]]).double()
    assert network(layers)(features, torch.tensor([1]))["output"].logits.shape[2] == 4


WHOLE = {
    "vector": {**EMBEDDED, "from": "label"},
    "label": {"class": "slice", "begin": 2, "from": "data"},
    "enc": {"class": "rec", "size": 4, "from": ["vector", "data"]},
    "loop": {"class": "loop", "layers": LSTM},
    "dec": {"class": "rec", "size": 4, "from": "loop", "initial_state": "enc"},
}


def batch():
    features = torch.randn(2, 6, 3)
    features[:, :, 2] = torch.randint(0, 5, (2, 6))
    return features, torch.tensor([6, 3])


def test_a_model_folder_gives_the_same(tmp_path):
    net = network(WHOLE).float()
    meta = {"dim_in": 3, "classes": {"pdf": 4}}
    save_model(tmp_path / "net", net, net.description, None, meta)
    again = load_model(tmp_path / "net").network
    given = batch()
    found, expected = again(*given)["output"], net(*given)["output"]
    assert torch.equal(found.logits, expected.logits)


def test_layer_wise_pretraining_drops_the_state_of_a_layer_that_is_not_there():
    layers = {
        "one": {"class": "rec", "size": 4, "initial_state": "two"},
        "two": {"class": "rec", "size": 4, "from": "far"},
        "far": {"class": "linear", "size": 3, "from": "data"},
        "three": {"class": "rec", "size": 4, "from": "one"},
    }
    whole = network(layers).description
    for step in range(num_steps(whole)):
        shallower(whole, step)
    assert "initial_state" in whole.config["layers"]["one"]


@pytest.mark.parametrize("num_frames", [2, 5])
def test_training_in_bf16_and_plans_take_them(num_frames):
    net = network(WHOLE).float().train()
    features, lengths = batch()
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(features, lengths)["output"].logits
    logits.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    given = torch.zeros(2, num_frames, 3, device="meta")
    logits = net.to("meta")(given, torch.tensor([num_frames] * 2))["output"].logits
    assert logits.shape == (2, num_frames, 4)


def test_sizes_in_a_loop_are_found_in_time_by_their_number():
    """Ways from a layer to `data` double with each sum, and with each circle."""
    sums = {f"a{n}": {"class": "add", "from": [f"a{n - 1}"] * 2} for n in range(1, 40)}
    layers = {"a0": {"class": "add", "from": "data"}, **sums}
    layers["z"] = {"class": "add", "from": ["a39", "prev:z"]}
    every = [f"prev:y{n}" for n in range(12)]
    circles = {f"y{n}": {"class": "add", "from": [*every, "data"]} for n in range(12)}
    net = network(
        {
            "one": {"class": "loop", "layers": layers},
            "two": {"class": "loop", "layers": circles},
        }
    )
    assert [net.body.shapes[name].dim for name in ("one", "two")] == [3, 3]


def test_a_network_may_be_deeper_than_functions_may_call_each_other():
    chain = {f"a{n}": {"class": "add"} for n in range(1200)}
    net = network({"loop": {"class": "loop", "layers": chain}})
    assert len(net.body.plan.layers[0].inside.layers) == 1200
