"""Descriptions: what is accepted, and that each mistake names its layer and key."""

import json
from pathlib import Path

import pytest

from latflow.errors import UserError
from latflow.nnet.described import described_outputs
from latflow.nnet.description import NetworkDescription


def describe(**layers):
    return NetworkDescription.from_config({"layers": layers})


OUTPUT = {"class": "output"}
MISTAKES = {
    "unknown class": ({"a": {"class": "rek"}}, "layer a: unknown class rek", "rec"),
    "no class": ({"a": {"size": 3}}, "layer a: key class is missing", ""),
    "class no string": ({"a": {"class": 3}}, "layer a: class must be a string", ""),
    "layer no mapping": ({"a": "linear"}, "layer a: must be a mapping", ""),
    "unknown key": (
        {"a": {"class": "rec", "size": 3, "num_layer": 2}},
        "layer a: unknown key num_layer",
        "num_layers",
    ),
    "key of another class": (
        {"a": {"class": "linear", "size": 3, "heads": 2}},
        "layer a: unknown key heads",
        "known here: class, from",
    ),
    "missing key": (
        {"a": {"class": "linear"}},
        "layer a: key size is missing",
        "numbers a frame",
    ),
    "wrong type": (
        {"a": {"class": "linear", "size": "12"}},
        "layer a: size must be a whole number, not '12'",
        "",
    ),
    "true is not a number": (
        {"a": {"class": "linear", "size": True}},
        "layer a: size must be a whole number, not True",
        "",
    ),
    "number that YAML takes for a string": (
        {"a": {"class": "batch_norm", "epsilon": "1e-3"}},
        "layer a: epsilon must be a number, not '1e-3'",
        "write 0.001",
    ),
    "infinite": (
        {"a": {"class": "dropout", "rate": float("nan")}},
        "layer a: rate must be a number, not nan",
        "",
    ),
    "too small": (
        {"a": {"class": "linear", "size": 0}},
        "layer a: size is 0, below 1",
        "",
    ),
    "too great": (
        {"a": {"class": "dropout", "rate": 1.5}},
        "layer a: rate is 1.5, above 0.99",
        "",
    ),
    "null": (
        {"a": {"class": "linear", "size": None}},
        "layer a: size must be a whole number, not None",
        "",
    ),
    "choice": (
        {"a": {"class": "linear", "size": 3, "activation": "rellu"}},
        "layer a: activation cannot be 'rellu'",
        "relu",
    ),
    "empty list": (
        {"a": {"class": "tdnn", "size": 3, "offsets": []}},
        "layer a: offsets must be a list of whole numbers",
        "",
    ),
    "unknown input": (
        {"left": {"class": "linear", "size": 3}, "a": {**OUTPUT, "from": "lift"}},
        "layer a: from names no layer: lift",
        "left",
    ),
    "input no name": ({"a": {**OUTPUT, "from": 3}}, "layer a: from must be a", ""),
    "no inputs": ({"a": {**OUTPUT, "from": []}}, "layer a: from must be a", ""),
    "circle": (
        {
            "a": {"class": "linear", "size": 3, "from": "b"},
            "b": {"class": "linear", "size": 3, "from": "a"},
            "end": {**OUTPUT, "from": ["data", "b"]},
        },
        "in a circle: (b <- a <- b|a <- b <- a)",
        "",
    ),
    "its own input": (
        {"a": {"class": "output", "from": "a"}},
        "layer a: layers feed each other in a circle: a <- a",
        "",
    ),
    "unused": (
        {
            "a": {"class": "linear", "size": 3},
            "end": {"class": "output", "from": "data"},
        },
        "layer a: its result is used nowhere",
        "delete it",
    ),
    "no output": (
        {"a": {"class": "linear", "size": 3}},
        "network: there is no output",
        "class output",
    ),
    "name taken": ({"keys": OUTPUT}, "keys cannot be a layer's name", "taken"),
    "name data": ({"data": OUTPUT}, "data cannot be a layer's name", "taken"),
    "name odd": ({"a.b": OUTPUT}, "'a.b' cannot be a layer's name", "letters"),
    "name number": ({3: OUTPUT}, "3 cannot be a layer's name", "letters"),
    "target without loss": (
        {"a": {"class": "linear", "size": 3, "target": "phone"}, "end": OUTPUT},
        "layer a: target without a loss",
        "loss: ce",
    ),
    "loss": (
        {"a": {"class": "output", "loss": "cee"}},
        "layer a: loss cannot be 'cee'",
        "ce",
    ),
    "loss scale": (
        {"a": {"class": "output", "loss_scale": -1}},
        "layer a: loss_scale is -1, below 0",
        "",
    ),
    "size of output": (
        {"a": {"class": "output", "size": 3}},
        "layer a: unknown key size",
        "",
    ),
    "reuse of nothing": (
        {"one": {"class": "layer_norm"}, "a": {"reuse": "on"}, "end": OUTPUT},
        "layer a: reuse names no layer: on",
        "one",
    ),
    "reuse of reuse": (
        {
            "one": {"class": "layer_norm"},
            "two": {"reuse": "one"},
            "a": {"reuse": "two"},
            "end": OUTPUT,
        },
        "layer a: two reuses a layer itself",
        "name one",
    ),
    "reuse with options": (
        {
            "one": {"class": "linear", "size": 3},
            "a": {"reuse": "one", "size": 4},
            "end": OUTPUT,
        },
        "layer a: size is that of one",
        "only from, initial_state, loss",
    ),
    "reuse with class": (
        {
            "one": {"class": "linear", "size": 3},
            "a": {"reuse": "one", "class": "rec"},
            "end": OUTPUT,
        },
        "layer a: class is that of one",
        "only from, initial_state, loss",
    ),
    "inside a subnetwork": (
        {
            "a": {
                "class": "subnetwork",
                "layers": {"b": {"class": "linear", "sise": 3}},
            },
            "end": OUTPUT,
        },
        "layer a.b: unknown key sise",
        "size",
    ),
    "loss in a subnetwork": (
        {"a": {"class": "subnetwork", "layers": {"b": OUTPUT}}, "end": OUTPUT},
        "layer a.b: a loss inside a subnetwork",
        "outside",
    ),
    "empty subnetwork": (
        {"a": {"class": "subnetwork", "layers": {}}, "end": OUTPUT},
        "layer a: layers must be a mapping of layers",
        "",
    ),
    "pcen of logarithms": (
        {
            "mel": {"class": "mel", "sample_rate": 8000},
            "a": {"class": "pcen"},
            "end": OUTPUT,
        },
        "layer a: class pcen reads energies, which mel does not give",
        "log: false",
    ),
    "pcen of features": (
        {"a": {"class": "pcen"}, "end": OUTPUT},
        "layer a: class pcen reads energies, which data does not give",
        "log: false",
    ),
    "number without bound": (
        {"a": {"class": "tdnn", "size": 2, "offsets": [0, 10**11]}, "end": OUTPUT},
        "layer a: offsets has a number 100000000000, above 1048576",
        "",
    ),
    "text that is none": (
        {"a": {"class": "linear", "size": "\ud800"}, "end": OUTPUT},
        "layer a: its options cannot be read: Invalid JSON",
        "",
    ),
    "user class": (
        {"a": {"class": "no.such.Layer"}, "end": OUTPUT},
        "layer a: cannot import class no.such.Layer",
        "PYTHONPATH",
    ),
    "user class missing": (
        {"a": {"class": "latflow.nnet.layer.Leyer"}, "end": OUTPUT},
        "layer a: cannot import class latflow.nnet.layer.Leyer",
        "PYTHONPATH",
    ),
    "user class no layer": (
        {"a": {"class": "torch.nn.Linear"}, "end": OUTPUT},
        "layer a: torch.nn.Linear is not a subclass",
        "",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_layer_and_key_and_proposes(case):
    layers, what, remedy = MISTAKES[case]
    with pytest.raises(UserError, match=what) as caught:
        NetworkDescription.from_config({"layers": layers})
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("layers: [", "not readable as YAML"),
        ("# b\n  input dim=4 name=x\n", "line 2: input is of a network of Kaldi"),
        ("component name=a type=NoOpComponent\n", "line 1: component is of a network"),
        ("relu-renorm-layer name=a dim=3\nb: 1\n", "import-kaldi vosk"),
        ("[a, b]: 1", "not readable as YAML"),
        ("- 1", "must be a mapping with the key layers"),
        ("description: x", "key layers is missing"),
        ("layer: {}", "unknown key layer.*did you mean layers"),
        ("layers: {}", "layers must be a mapping of layers"),
        (
            "layers: {a: {class: output}, a: {class: output}}",
            "the key a stands twice",
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, what):
    path = tmp_path / "net.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=what) as caught:
        NetworkDescription.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such network description"):
        NetworkDescription.load(tmp_path / "none.yaml")


def test_order_in_the_file_is_free_and_defaults_are_filled():
    description = describe(
        output={"class": "output", "from": "b"},
        b={"class": "linear", "size": 3, "from": ["a", "data"]},
        a={"class": "linear", "size": 2, "activation": "relu", "from": "data"},
    )
    assert [layer.name for layer in description.plan.layers] == ["a", "b", "output"]
    a, b, _ = description.plan.layers
    assert b.inputs == ("a", "data")
    assert a.options.bias is True
    assert a.options.activation == "relu"


def test_default_input_is_the_layer_before():
    description = describe(
        a={"class": "layer_norm"}, b={"class": "layer_norm"}, output=OUTPUT
    )
    assert [layer.inputs for layer in description.plan.layers] == [
        ("data",),
        ("a",),
        ("b",),
    ]


def test_outputs_keep_the_files_order_behind_the_decoded_one():
    description = describe(
        third={"class": "output", "from": "data", "target": "phone"},
        second={"class": "linear", "loss": "ce", "target": "phone", "loss_scale": 0.5},
        first={"class": "output", "from": "data"},
    )
    assert list(description.outputs) == ["first", "third", "second"]
    loss = description.outputs["second"]
    assert (loss.name, loss.target, loss.scale) == ("ce", "phone", 0.5)
    assert description.outputs["first"].target == "pdf"


OUTPUTS = {
    "side": {"class": "output", "from": "data", "loss": "ctc"},
    "copy": {"class": "output", "from": "data", "loss": "mse", "target": "clean"},
    "phones": {"class": "output", "from": "data", "target": "phone"},
    "pdfs": {"class": "output", "from": "data"},
}


@pytest.mark.parametrize(
    ("decode", "first"), [(None, "side"), ("pdfs", "pdfs"), ("side", "side")]
)
def test_the_decoded_output_is_named(tmp_path, decode, first):
    """And is told without torch as it is with."""
    config = {"layers": OUTPUTS} | ({} if decode is None else {"decode": decode})
    description = NetworkDescription.from_config(config)
    assert next(iter(description.outputs)) == first
    path = tmp_path / "network.yaml"
    path.write_text(json.dumps(config))
    assert list(described_outputs(path).items()) == list(description.outputs.items())
    assert [loss.is_decodable for loss in description.outputs.values()].count(True) == 2


@pytest.mark.parametrize("named", ["copy", "phones", "absent"])
def test_what_cannot_be_decoded_is_not_named(named):
    with pytest.raises(
        UserError, match=f"decode: '{named}' is not an output that can be"
    ):
        NetworkDescription.from_config({"layers": OUTPUTS, "decode": named})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"loss": "mse"}, "loss mse without a target"),
        ({"loss": "ctc", "target": "pdf"}, "loss ctc has no target pdf"),
        ({"loss": "warp"}, "loss"),
    ],
)
def test_losses_and_targets_that_do_not_go_together(given, told):
    with pytest.raises(UserError, match=told):
        describe(output={"class": "output", **given})


def test_a_description_read_from_a_file_is_that_of_its_config(tmp_path, repository):
    for path in sorted((repository / "config/networks").glob("*.yaml")):
        description = NetworkDescription.load(path)
        again = NetworkDescription.from_config(description.config)
        assert description.text
        assert description.file == Path(path)
        assert [x.options for x in again.plan.layers if x.class_name != "subnetwork"]
        assert list(again.outputs) == list(description.outputs)


def test_the_given_config_is_not_shared():
    config = {"layers": {"output": {"class": "output"}}}
    description = NetworkDescription.from_config(config)
    config["layers"]["output"]["class"] = "spoilt"
    assert description.config["layers"]["output"]["class"] == "output"
