"""Labels as input, states, loops and expressions of RETURNN's networks, taken over."""

import pytest
import torch
import yaml

from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.returnn_network import convert_network
from latflow.training.returnn_import import import_returnn

OUTPUT = {"class": "softmax", "loss": "ce", "from": "last"}


def layers_of(layers, **others):
    """Layers of ours, which make a network."""
    converted = convert_network({**layers, "output": OUTPUT}, **others)
    refused = [row for row in converted.rows if row.fate == "refused"]
    assert not refused, refused
    NetworkDescription.from_config({"layers": converted.layers})
    return converted.layers


def refusal_of(layers, **others):
    converted = convert_network({**layers, "output": OUTPUT}, **others)
    return next(f"{r.key}: {r.text}" for r in converted.rows if r.fate == "refused")


# As demos/demo-tf-rec-explicit-lstm.config of RETURNN has it.
EXPLICIT_LSTM = """
network = {
    "lstm": {"class": "rec", "from": "data", "unit": {
        "input": {"class": "copy", "from": ["prev:output", "data:source"]},
        "input_gate": {"class": "linear", "from": "input", "activation": "sigmoid",
            "n_out": 10},
        "forget_gate": {"class": "linear", "from": "input", "activation": "sigmoid",
            "n_out": 10},
        "output_gate": {"class": "linear", "from": "input", "activation": "sigmoid",
            "n_out": 10},
        "cell_in": {"class": "linear", "from": "input", "activation": "tanh",
            "n_out": 10},
        "c": {"class": "eval", "from": ["input_gate", "cell_in", "forget_gate",
            "prev:c"], "eval": "source(0) * source(1) + source(2) * source(3)"},
        "output": {"class": "eval", "from": ["output_gate", "c"],
            "eval": "source(0) * source(1)"},
    }},
    "output": {"class": "softmax", "loss": "ce", "from": "lstm"}
}
"""


def test_a_loop_of_returnn_is_the_loop_that_it_was(tmp_path):
    (tmp_path / "lstm.config").write_text(EXPLICIT_LSTM)
    import_returnn(tmp_path / "lstm.config", tmp_path / "out")
    net = Network(NetworkDescription.load(tmp_path / "out/network.yaml"), 9, {"pdf": 2})
    features = torch.randn(1, 5, 9)
    maps = net.body.layers["lstm"].graph.layers
    names = ("input_gate", "forget_gate", "output_gate", "cell_in")
    output, cell, rows = torch.zeros(10), torch.zeros(10), []
    for frame in features[0]:
        both = torch.cat([output, frame])
        entering, forget, leaving, new = (maps[name].map(both) for name in names)
        cell = entering.sigmoid() * new.tanh() + forget.sigmoid() * cell
        output = leaving.sigmoid() * cell
        rows.append(output)
    expected = net.body.layers["output"].map(torch.stack(rows))
    got = net(features, torch.tensor([5]))["output"].logits[0]
    torch.testing.assert_close(got, expected)


def test_loops_may_go_back_and_have_cells():
    inside = {
        "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3,
                 "from": ["data:source", "prev:output"]},
        "alias": {"class": "copy", "from": "cell"},
        "output": {"class": "linear", "activation": "tanh", "n_out": 2,
                   "from": ["alias", "prev:alias", "prev:late"], "dropout": 0.1},
        "late": {"class": "rec", "unit": "gru", "n_out": 2, "from": "output",
                 "initial_output": 0, "L2": 0.01},
        "idle": {"class": "linear", "n_out": 2, "from": "data"},
    }  # fmt: skip
    loop = {"class": "rec", "unit": inside, "direction": -1, "from": "data", "n_out": 2}
    layers = layers_of({"last": loop})
    assert layers["last"]["direction"] == "backward"
    assert layers["last"]["layers"]["cell"]["from"] == ["data", "prev:output"]
    assert layers["last"]["layers"]["late"]["unit"] == "gru"
    assert "idle" not in layers["last"]["layers"]
    converted = convert_network({"last": loop, "output": OUTPUT})
    assert converted.l2 == {"last/late": 0.01}


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ({"output": {"class": "choice"}}, "last.unit: layers in a loop that decodes"),
        (
            {"output": {"class": "linear", "n_out": 2, "from": "base:enc"}},
            "last/output.from: base:enc is not a layer",
        ),
        (
            {"output": {"class": "linear", "n_out": 2, "initial_output": "var"}},
            "last/output.initial_output: it is zeros here",
        ),
        (
            {"output": {"class": "linear", "n_out": 2, "trainable": False}},
            "last.unit: trainable and losses inside it",
        ),
    ],
)
def test_loops_that_cannot_be_are_refused(inside, told):
    loop = {"class": "rec", "unit": inside, "from": "data"}
    assert refusal_of({"last": loop}).startswith(told)


def test_a_cell_is_for_loops():
    cell = {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3, "from": "data"}
    assert refusal_of({"last": cell}) == "last.class: no layer of ours is like rnn_cell"


def test_a_state_is_handed_on():
    layers = layers_of(
        {
            "last": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data",
                     "initial_state": "0enc"},
            "0enc": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"},
        }
    )  # fmt: skip
    assert layers["last"]["initial_state"] == "layer_0enc"
    zeros = {"class": "rec", "n_out": 3, "from": "data", "initial_state": "zeros"}
    assert "initial_state" not in layers_of({"last": zeros})["last"]


@pytest.mark.parametrize("state", ["var", "keep_over_epoch", {"c": "enc", "h": 0}])
def test_other_states_are_refused(state):
    layer = {"class": "rec", "n_out": 3, "from": "data", "initial_state": state}
    assert "zeros or a layer here" in refusal_of({"last": layer})


def test_states_are_of_recurrent_layers():
    layer = {"class": "rec", "n_out": 3, "from": "data", "initial_state": "enc"}
    layers = {"last": layer, "enc": {"class": "linear", "n_out": 3, "from": "data"}}
    assert refusal_of(layers).endswith("enc is not a layer of class rec here")


SPARSE = """
extern_data = {"data": {"sparse": True, "dim": 8}, "classes": {"dim": 2}}
network = {
    "embed": {"class": "linear", "activation": "tanh", "from": "data", "n_out": 5},
    "output": {"class": "softmax", "loss": "ce", "from": "embed"}
}
"""


@pytest.mark.parametrize("pairs", [False, True])
def test_labels_are_read_by_an_embedding(tmp_path, pairs):
    text = SPARSE
    if pairs:
        text = 'num_outputs = {"data": [8, 1], "classes": [2, 1]}\n' + text
        text = text.replace("extern_data", "ignored")
    (tmp_path / "a.config").write_text(text)
    import_returnn(tmp_path / "a.config", tmp_path / "out")
    described = yaml.safe_load((tmp_path / "out/network.yaml").read_text())
    assert described["layers"]["embed"] == {
        **{"class": "embedding", "from": ["data"], "classes": 8, "size": 5},
        "activation": "tanh",
    }
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    assert part["nnet"]["systems"]["returnn"]["data"]["normalization"] == "none"


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ({"class": "rec", "n_out": 2}, "last.from: labels read by rec"),
        ({"class": "linear", "n_out": 2, "dropout": 0.1}, "last.dropout: dropout of"),
    ],
)
def test_other_layers_do_not_read_labels(layer, told):
    layers = {"last": {**layer, "from": "same"},
              "same": {"class": "copy", "from": "data"}}  # fmt: skip
    assert refusal_of(layers, sparse={"data": 8}).startswith(told)


def test_several_data_stand_side_by_side():
    layers = layers_of(
        {
            "embed": {"class": "linear", "n_out": 5, "from": "data:speaker"},
            "last": {"class": "linear", "n_out": 5, "from": ["data", "embed"],
                     "activation": "tanh"},
        },
        sparse={"speaker": 8},
        window=3,
    )  # fmt: skip
    assert layers["speaker_features"] == {
        **{"class": "slice", "from": ["data"], "features": "speaker"}
    }
    assert layers["embed"]["class"] == "embedding"
    assert layers["embed"]["from"] == ["speaker_features"]
    assert layers["window"]["from"] == ["data_features"]
    assert layers["last"]["from"] == ["window", "embed"]


def test_expressions_are_layers():
    expression = "tf.nn.sigmoid(source(0)) * source(1) + source(0)"
    given = {"class": "linear", "n_out": 5, "from": "data"}
    layers = layers_of(
        {
            "a": given,
            "b": given,
            "last": {"class": "eval", "from": ["a", "b"], "eval": expression},
        }
    )
    assert layers["last"]["class"] == "add"
    product, first = layers["last"]["from"]
    assert (layers[product]["class"], first) == ("multiply", "a")
    function, second = layers[product]["from"]
    assert (layers[function]["function"], second) == ("sigmoid", "b")
    assert layers[function]["from"] == ["a"]


@pytest.mark.parametrize(
    "expression",
    ["source(2)", "source(0) * 2", "source(0) + source(7)", "os.system('x')",
     "tf.nn.relu(source(0), 'name')", "source(0) + ", "source(True)", "[" * 500],
)  # fmt: skip
def test_other_expressions_are_refused(expression):
    layers = {"last": {"class": "eval", "from": ["data", "data"], "eval": expression}}
    assert refusal_of(layers).startswith("last.eval: ")


def test_products_are_taken():
    given = {"class": "linear", "n_out": 5, "from": "data"}
    product = {"class": "combine", "kind": "mul", "from": ["a", "b"]}
    layers = layers_of({"a": given, "b": given, "last": product})
    assert layers["last"]["class"] == "multiply"


def test_networks_may_be_deep():
    layer = {"class": "linear", "n_out": 2}
    chain = {f"l{i}": {**layer, "from": f"l{i - 1}"} for i in range(1, 2000)}
    last = {"class": "softmax", "loss": "ce", "from": "l1999"}
    found = convert_network({"output": last, **chain, "l0": {**layer, "from": "data"}})
    assert list(found.layers) == [*(f"l{i}" for i in range(2000)), "output"]
    assert not found.is_refused


def test_layers_that_read_each_other_are_refused():
    layers = {
        "a": {"class": "linear", "n_out": 2, "from": ["c", "data"]},
        "b": {"class": "linear", "n_out": 2, "from": "a"},
        "c": {"class": "linear", "n_out": 2, "from": "b"},
        "output": {"class": "softmax", "loss": "ce", "from": "c"},
    }
    rows = convert_network(layers).rows
    refused = [row for row in rows if row.fate == "refused"]
    assert [(row.key, row.text) for row in refused] == [
        ("c", "reads what it makes, in a loop")
    ]
