"""Configurations of RETURNN, of its paper and as its users write them, taken over."""

import pytest
import torch
import yaml

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.returnn_config import Code, read_config
from latflow.nnet.returnn_network import convert_network
from latflow.training.returnn_import import import_returnn

# Figure 1 of Zeyer, Alkhouli & Ney 2018: an encoder of bidirectional LSTM layers.
FIGURE_1 = """
network = {
# recurrent bidirectional encoder:
"lstm0_fw": {"class": "rec", "unit": "nativelstm2", "n_out": 100, "direction": 1,
  "from": "data"},
"lstm0_bw": {"class": "rec", "unit": "nativelstm2", "n_out": 100, "direction": -1,
  "from": "data"},
"lstm1_fw": {"class": "rec", "unit": "nativelstm2", "n_out": 100, "direction": 1,
  "from": ["lstm0_fw", "lstm0_bw"]},
"lstm1_bw": {"class": "rec", "unit": "nativelstm2", "n_out": 100, "direction": -1,
  "from": ["lstm0_fw", "lstm0_bw"]},
"output": {"class": "softmax", "loss": "ce", "from": ["lstm1_fw", "lstm1_bw"]}
}
"""
# As RETURNN's first users wrote them: JSON with comments, Theano's names.
JSON = """{
// data
"train": "sprint:--config=config/training.config --*.corpus.segments.file=seg_train",
"num_inputs": 50, "num_outputs": 4498,
"batching": "random", "batch_size": 5000, "max_seqs": 40, "chunking": "50:25",
"update_on_device": true,
"network": {
"fw_0": {"class": "rec", "unit": "lstmp", "n_out": 8, "dropout": 0.1, "L2": 0.01,
         "sampling": 1, "direction": 1},
"bw_0": {"class": "rec", "unit": "lstmp", "n_out": 8, "dropout": 0.1, "L2": 0.01,
         "direction": -1},
"h": {"class": "hidden", "n_out": 6, "L2": 0.01, "from": ["fw_0", "bw_0"]},
"output": {"class": "softmax", "loss": "ce", "from": ["h"]},
},
"num_epochs": 30, "gradient_clip": 10, "adam": true, "learning_rate": 0.001,
"learning_rate_control": "newbob", "gradient_noise": 0.3, "pretrain": "default",
}"""


def write(tmp_path, text):
    path = tmp_path / "a.config"
    path.write_text(text)
    return path


def fates(rows):
    return {row.key: (row.fate, row.text) for row in rows}


def test_a_dictionary_of_layers_alone_is_the_network(tmp_path):
    alone = FIGURE_1.replace("network = ", "")
    for name, text in (("alone", alone), ("set", FIGURE_1)):
        rows = import_returnn(write(tmp_path, text), tmp_path / name)
        assert {row.key for row in rows} >= {"lstm0_fw.class", "output.loss"}
        assert not {"lstm0_fw", "output"} & {row.key for row in rows}
    alone, named = (
        yaml.safe_load((tmp_path / x / "network.yaml").read_text())
        for x in ("alone", "set")
    )
    assert alone["layers"] == named["layers"]


def test_the_paper_s_first_figure_is_a_network_of_the_same_size(tmp_path):
    import_returnn(write(tmp_path, FIGURE_1), tmp_path / "out")
    description = NetworkDescription.load(tmp_path / "out" / "network.yaml")
    network = Network(description, 40, {"pdf": 10})
    found = sum(parameter.numel() for parameter in network.parameters())
    # Torch's LSTM has two bias vectors where RETURNN's has one.
    first, second = (4 * 100 * (dim + 100 + 2) for dim in (40, 200))
    assert found == 2 * (first + second) + 10 * (200 + 1)
    assert [one.name for one in description.plan.layers] == [
        *("lstm0_fw", "lstm0_bw", "lstm1_fw", "lstm1_bw", "output")
    ]


def test_a_backward_layer_reads_from_the_end(tmp_path):
    import_returnn(write(tmp_path, FIGURE_1), tmp_path / "out")
    layers = yaml.safe_load((tmp_path / "out/network.yaml").read_text())["layers"]
    assert layers["lstm1_bw"]["direction"] == "backward"
    assert layers["lstm1_bw"]["from"] == ["lstm0_fw", "lstm0_bw"]
    assert layers["lstm0_fw"]["from"] == ["data"]


def test_json_becomes_a_network_and_a_part_of_a_recipe(tmp_path):
    rows = fates(import_returnn(write(tmp_path, JSON), tmp_path / "out"))
    layers = yaml.safe_load((tmp_path / "out/network.yaml").read_text())["layers"]
    assert layers["fw_0_dropout"] == {"class": "dropout", "from": ["data"], "rate": 0.1}
    assert layers["fw_0"]["from"] == ["fw_0_dropout"]
    assert layers["h"]["activation"] == "sigmoid"  # the default of class hidden
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    system = part["nnet"]["systems"]["returnn"]
    assert system["type"] == "ce"
    assert system["data"] == {
        "max_frames": 5000,
        "max_sequences": 40,
        "sequences": {"type": "chunks", "size": 50, "step": 25},
        "order": "random",
    }
    training = system["training"]
    assert training["optimizer"] == {"type": "adam"}
    assert training["schedule"] == {"type": "newbob", "relative": True}
    assert (training["epochs"], training["pretraining"]) == (30, 1)
    # The gradient here is that of the mean over 5000 frames, and 2 w is that of w^2.
    assert training["l2"] == pytest.approx(2 * 0.01 / 5000)
    assert training["gradient_noise"] == pytest.approx((0.3 / 5000) ** 2)
    assert rows["gradient_clip"][0] == "left out"
    assert rows["fw_0.n_out"] == ("renamed", "size")
    assert rows["num_inputs"] == ("left out", "the recipe says")


def test_every_key_has_a_line(tmp_path):
    path = write(tmp_path, JSON)
    rows = fates(import_returnn(path, None))
    config = read_config(path)
    assert rows.keys() >= config.values.keys()
    for name, layer in config.network().items():
        assert rows.keys() >= {f"{name}.{key}" for key in layer}
    assert list(tmp_path.iterdir()) == [path]


def test_sums_over_frames_are_said_where_they_matter(tmp_path):
    text = FIGURE_1 + "batch_size = 1000\nlearning_rate = 1e-4\nmomentum = 0.9\n"
    import_returnn(write(tmp_path, text), tmp_path / "out")
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    training = part["nnet"]["systems"]["returnn"]["training"]
    assert training["optimizer"] == {"type": "sgd", "momentum": 0.9}
    assert training["learning_rate"] == pytest.approx(0.1)


def test_newbob_of_several_epochs_has_returnn_s_defaults(tmp_path):
    text = FIGURE_1 + 'learning_rate_control = "newbob_multi_epoch"\n'
    import_returnn(write(tmp_path, text), tmp_path / "out")
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    schedule = part["nnet"]["systems"]["returnn"]["training"]["schedule"]
    assert schedule["epochs"] == schedule["interval"] == 5


def test_ctc_learns_from_whole_utterances(tmp_path):
    text = FIGURE_1.replace('"ce"', '"ctc"') + 'chunking = "50:25"\n'
    rows = fates(import_returnn(write(tmp_path, text), tmp_path / "out"))
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    assert part["nnet"]["systems"]["returnn"]["type"] == "ctc"
    assert rows["chunking"] == ("left out", "CTC learns from whole utterances")


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        ('"50:25"', {"type": "chunks", "size": 50, "step": 25}),
        ("60", {"type": "chunks", "size": 60}),
        ('({"data": 80}, {"data": 40})', {"type": "chunks", "size": 80, "step": 40}),
        ('{"data": "50:25"}', None),
        ('{"data": window(3)}', None),
        ('"0"', {"type": "utterances"}),
        ('""', {"type": "utterances"}),
    ],
)
def test_chunks_are_read_in_all_their_forms(tmp_path, given, sequences):
    text = f"{FIGURE_1}chunking = {given}\nmax_seqs = -1\n"
    rows = fates(import_returnn(write(tmp_path, text), tmp_path / "out"))
    part = yaml.safe_load((tmp_path / "out/recipe.yaml").read_text())
    data = part["nnet"]["systems"]["returnn"].get("data", {})
    assert data == ({} if sequences is None else {"sequences": sequences})
    assert (rows["chunking"][0] == "left out") == (sequences is None)
    assert rows["max_seqs"] == ("left out", "no limit: -1")


def test_nothing_of_a_configuration_is_run(tmp_path):
    made = tmp_path / "made"
    text = f"open({str(made)!r}, 'w')\nimport os\nEpochSplit = os.getpid()\n" + FIGURE_1
    rows = fates(import_returnn(write(tmp_path, text), None))
    assert not made.exists()
    assert rows["EpochSplit"][1].startswith("code, which is not run: a call (os.getpid")


def test_arithmetic_of_settings_above_is_read(tmp_path):
    path = write(tmp_path, "heads = 8\ndim = heads * 64 // 2 - 1\nx = [-dim, y]\n")
    config = read_config(path)
    assert config.values["dim"] == 255
    assert config.values["x"] == [-255, Code("a name (y), line 3")]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("network.update(more)", "network.update(more)"),
        ('network["x"] = {}', "network['x'] = {}"),
        ("if 1:\n  network = {}", "a condition"),
        ("def f():\n  global network\n  network = {}", "a function"),
        ("network = make()", "a call (make())"),
        ("def get_network(epoch): return {}", "get_network"),
    ],
)
def test_a_network_that_code_makes_is_refused_with_the_code(tmp_path, change, named):
    with pytest.raises(UserError, match="made by code") as error:
        import_returnn(write(tmp_path, FIGURE_1 + change + "\n"), None)
    assert named in str(error.value)


@pytest.mark.parametrize("text", ["print 'x'\n", "{1: ", "num 3\n", "(" * 10000])
def test_what_is_neither_json_nor_python_is_refused(tmp_path, text):
    with pytest.raises(UserError):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("layer", "key"),
    [
        ({"class": "rec", "unit": {"output": {"class": "choice"}}}, "x.unit"),
        ({"class": "self_attention", "num_heads": 2}, "x.class"),
        ({"class": "rec", "n_out": 3, "zoneout": 0.1}, "x.zoneout"),
        ({"class": "rec", "n_out": 3, "sampling": 2}, "x.sampling"),
        ({"class": "linear", "n_out": 3, "from": "data:classes"}, "x.from"),
        ({"class": "linear", "n_out": 3, "from": "nobody"}, "x.from"),
        ({"class": "linear", "n_out": Code("a call")}, "x.n_out"),
        ({"class": "linear", "n_out": "3"}, "x.n_out"),
        ({"class": "linear", "n_out": 3, "activation": None, "L2": "x"}, "x.L2"),
        ({"class": "linear", "n_out": 3, "activation": None, "L2": 1e999}, "x.L2"),
        ({"class": "linear", "n_out": 3, "activation": None, "dropout": [1]},
         "x.dropout"),
        ({"class": "softmax", "loss": "ce", "loss_opts": [1]}, "x.loss_opts"),
        ({"class": "softmax", "loss": "ce", "loss_opts": {"focal_loss_factor": "x"}},
         "x.loss_opts"),
        ({"class": "linear", "n_out": 3, "from": ["x"]}, "x"),
        ({"class": "conv", "n_out": 3, "filter_size": [3, 3], "padding": "same"},
         "x.filter_size"),
        ({"class": "eval", "eval": "source(0) ** 2"}, "x.eval"),
        ({"class": "softmax"}, "x.class"),
        ({"n_out": 3}, "x"),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_done_is_refused_by_its_key(layer, key):
    output = {"class": "softmax", "loss": "ce", "from": "x"}
    found = convert_network({"x": layer, "output": output})
    assert found.is_refused
    assert [row.key for row in found.rows if row.fate == "refused"] == [key]


def test_layers_that_lead_nowhere_are_left_out():
    output = {"class": "softmax", "loss": "ce", "from": "data"}
    error = {"class": "copy", "from": "output", "only_on_eval": True, "loss": "edit"}
    found = convert_network({"output": output, "ler": error})
    assert not found.is_refused
    assert fates(found.rows)["ler"] == ("left out", "leads to no output")


def test_copies_and_functions_disappear_or_get_classes_of_ours():
    found = convert_network(
        {
            "a": {"class": "linear", "activation": None, "n_out": 3},
            "same": {"class": "copy", "from": "a", "n_out": 3},
            "act": {"class": "eval", "eval": "tf.nn.swish(source(0))", "from": "same"},
            "sum": {"class": "combine", "kind": "add", "from": ["a", "act"]},
            "1/x": {"class": "layer_norm", "from": "sum", "trainable": False},
            "output": {
                "class": "linear", "activation": "softmax", "loss": "ce",
                "from": "1/x",
                "loss_opts": {"label_smoothing": 0.1, "focal_loss_factor": 2.0},
            },
        }
    )  # fmt: skip
    assert list(found.layers) == ["a", "act", "sum", "layer_1_x", "output"]
    assert found.layers["act"]["function"] == "silu"
    assert found.layers["act"]["from"] == ["a"]
    assert found.layers["output"] == {
        "class": "output", "from": ["layer_1_x"], "loss": "ce",
    }  # fmt: skip
    assert found.frozen == ["layer_1_x"]
    assert (found.label_smoothing, found.focal) == (0.1, 2.0)


def test_names_are_free_ones():
    given = {
        "a": {"class": "linear", "activation": None, "n_out": 3, "dropout": 0.1},
        "a_dropout": {"class": "dropout", "dropout": 0.2, "from": "a"},
        3: {"class": "layer_norm", "from": "a_dropout"},
        "output": {"class": "softmax", "loss": "ce", "from": "3"},
    }
    found = convert_network(given)
    assert not found.is_refused
    assert list(found.layers) == ["a_dropout_", "a", "a_dropout", "layer_3", "output"]
    assert found.layers["a"]["from"] == ["a_dropout_"]


def test_a_subnetwork_stays_one_and_a_window_comes_first():
    inside = {
        "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
        "output": {"class": "dropout", "dropout": 0.2, "from": "a"},
    }
    output = {"class": "softmax", "loss": "ce", "from": "s"}
    sub = {"class": "subnetwork", "subnetwork": inside, "from": "data"}
    found = convert_network({"s": sub, "output": output}, window=5)
    assert found.layers["window"] == {"class": "window", "from": ["data"], "size": 5}
    assert found.layers["s"]["from"] == ["window"]
    description = NetworkDescription.from_config({"layers": found.layers})
    network = Network(description, 2, {"pdf": 4})
    assert sum(p.numel() for p in network.parameters()) == 3 * (10 + 1) + 4 * (3 + 1)
    assert not torch.isnan(next(network.parameters())).any()


def test_the_command_prints_the_table_and_refuses_in_one_line(tmp_path, capsys):
    assert main(["import-returnn", str(write(tmp_path, JSON))]) == 0
    assert "renamed   fw_0.n_out" in capsys.readouterr().out
    path = write(tmp_path, FIGURE_1.replace("nativelstm2", "rhn"))
    out = tmp_path / "out"
    assert main(["import-returnn", str(path), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("refused   lstm0_fw.unit")
    assert "lstm0_fw.unit: no cell rhn" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not out.exists()
