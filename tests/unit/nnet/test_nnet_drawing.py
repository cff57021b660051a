"""The drawing of a network, the command `latflow network`, the list in the docs."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from latflow.cli.main import main
from latflow.nnet.description import NetworkDescription
from latflow.nnet.drawing import _lanes, network_svg
from latflow.nnet.network import Network
from latflow.nnet.options import facts_of
from latflow.nnet.registry import LAYER_CLASSES, in_document, layer_reference
from latflow.options import read_options
from latflow.training.options import TrainingOptions
from latflow.workflow.experiment import NnetOptions

LAYERS = {
    "cnn": {"class": "conv1d", "size": 5, "kernel": 3},
    "fwd": {"class": "rec", "size": 4, "direction": "forward"},
    "bwd": {"class": "rec", "size": 4, "direction": "backward", "from": "cnn"},
    "join": {"class": "concat", "from": ["fwd", "bwd", "data"]},
    "main": {"class": "output"},
    "phones": {"class": "output", "from": "cnn", "target": "phone", "loss_scale": 0.3},
}
SVG = "{http://www.w3.org/2000/svg}"


def drawn(layers):
    description = NetworkDescription.from_config({"layers": layers})
    graph = Network(description, 6, {"pdf": 30, "phone": 7}).graph()
    text = network_svg(graph, 'a <net> & "more"')
    return graph, text, ElementTree.fromstring(text)


def test_every_layer_and_connection_is_drawn_once():
    graph, text, root = drawn(LAYERS)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for node in graph.nodes:
        assert texts.count(node.name) == 1
        assert texts.count(f"{node.dim:,}") >= 1
    assert len(root.findall(f"{SVG}circle")) == len(graph.nodes)
    assert len(root.findall(f"{SVG}path")) == len(graph.edges)
    assert "0.3 x ce of phone" in texts
    assert "rec: direction forward" in texts
    assert root.get("aria-label") == 'a <net> & "more"'
    assert drawn(LAYERS)[1] == text


def test_rows_stand_below_their_inputs_and_nothing_leaves_the_picture():
    graph, _, root = drawn(LAYERS)
    rows = [float(circle.get("cy")) for circle in root.iter(f"{SVG}circle")]
    assert rows == sorted(set(rows))
    place = {node.name: row for node, row in zip(graph.nodes, rows, strict=True)}
    assert all(place[source] < place[target] for source, target in graph.edges)
    width, height = map(float, root.get("viewBox").split()[2:])
    for element in root.iter():
        for key, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(element.get(key, 0)) <= most
    for path in root.iter(f"{SVG}path"):
        assert all(float(n) >= 0 for n in re.findall(r"[\d.-]+", path.get("d")))


def test_long_texts_are_shortened_and_told_in_full_on_hover():
    options = {"class": "transformer", "heads": 2, "feed_forward": 8, "kernel": 5}
    options |= {"look_back": 3, "look_ahead": 4, "num_layers": 2, "pre_norm": True}
    _, _, root = drawn({"long": options, "main": {"class": "output"}})
    (title,) = root.iter(f"{SVG}title")
    assert title.text.startswith("transformer: heads 2")
    assert "pre_norm true" in title.text


def test_lanes_never_overlap():
    spans = [(0, 1), (0, 2), (0, 5), (1, 3), (2, 4), (3, 5), (0, 2)]
    lanes = _lanes(spans)
    bent = [span for span in spans if span[1] - span[0] > 1]
    assert len(lanes) == len(bent)
    for i, (one, lane) in enumerate(zip(bent, lanes, strict=True)):
        for other, its in zip(bent[:i], lanes[:i], strict=True):
            if lane == its and one != other:
                assert one[1] <= other[0] or other[1] <= one[0]
    assert _lanes([(0, 1)]) == []


def run(capsys, *arguments):
    status = main(["network", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_prints_the_table_and_draws(capsys, repository, tmp_path):
    path = repository / "config/networks/blstm_small.yaml"
    svg = tmp_path / "net.svg"
    status, out, _ = run(
        capsys, path, "--dim-in", 40, "--classes", "pdf=1200", "--svg", svg
    )
    assert status == 0
    assert out.startswith("2 x 160 BLSTM\n")
    assert out.endswith("\n1,260,720 parameters\n")
    assert ElementTree.parse(svg).getroot().tag == f"{SVG}svg"
    status, out, _ = run(capsys, path, "--step", 0)
    assert re.search(r"lstm +rec +data +320 +", out)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["none.yaml"], "no such network description"),
        ([], "no description"),
        (["FILE", "--classes", "pdf"], "--classes pdf is neither"),
        (["FILE", "--classes", "phone=3"], "target pdf is not known"),
        (["FILE", "--dim-in", "0"], "--dim-in is 0"),
        (["FILE", "--dim-in", "a=4,5"], "--dim-in a=4,5 is neither"),
        (["FILE", "--step", "-1"], "--step is -1"),
        (["--update", "none.md"], "no such document"),
    ],
)
def test_a_mistake_is_one_line(capsys, repository, arguments, what):
    path = repository / "config/networks/blstm_small.yaml"
    given = [path if argument == "FILE" else argument for argument in arguments]
    status, _, error = run(capsys, *given)
    assert status == 1
    assert what in error
    assert error.count("\n") == 1


def test_the_list_of_layers_tells_all_options(capsys):
    _, out, _ = run(capsys, "--layers")
    assert out == layer_reference()
    sections = out.split("### ")[1:]
    for name, layer in LAYER_CLASSES.items():
        (section,) = (s for s in sections if f"`{name}`" in s.splitlines()[0])
        for option, declared in facts_of(layer.OPTIONS).items():
            assert f"| `{option}` |" in section
            assert declared.description in section


def test_the_list_in_the_docs_is_current(repository, tmp_path, capsys):
    document = repository / "docs/networks.md"
    remedy = "run: latflow network --update docs/networks.md"
    assert in_document(document) == document.read_text(encoding="utf-8"), remedy
    stale = tmp_path / "stale.md"
    stale.write_text("before\n<!-- layers -->\nold\n<!-- end of layers -->\nafter\n")
    assert run(capsys, "--update", stale)[0] == 0
    text = stale.read_text()
    assert layer_reference() in text
    assert "old" not in text.split("### ")[0]
    assert text.endswith("<!-- end of layers -->\nafter\n")


def test_the_descriptions_in_the_docs_are_right(repository):
    text = (repository / "docs/networks.md").read_text(encoding="utf-8")
    import yaml

    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    whole, inside, loop, states, apart, labels, system, *others = blocks
    *on_samples, conformer, zipformer, tuned, encoder = others
    NetworkDescription.from_config(yaml.safe_load(whole))
    for part, field in ((inside, (8, 8)), (loop, (None, 0))):
        layers = {"input": {"class": "linear", "size": 256}, **yaml.safe_load(part)}
        description = NetworkDescription.from_config(
            {"layers": {**layers, "output": {"class": "output"}}}
        )
        assert Network(description, 40, {"pdf": 3}).receptive_field == field
    Network(NetworkDescription.from_config(yaml.safe_load(states)), 40, {"pdf": 3})
    for block, second in ((apart, {"tri3": 40}), (labels, {"language": 1})):
        described = NetworkDescription.from_config(yaml.safe_load(block))
        sizes = {"hires": 40, **second}
        Network(described.with_parts(sizes), sum(sizes.values()), {"pdf": 3})
    for block in (system, tuned):
        (name,) = read_options(NnetOptions, yaml.safe_load(block)["nnet"]).features
        assert name == "samples"
    NetworkDescription.from_config(yaml.safe_load(encoder))
    for block in (conformer, zipformer):
        read_options(TrainingOptions, yaml.safe_load(block)["training"])
    for block, channels in zip(on_samples, (1, 4), strict=True):
        description = NetworkDescription.from_config(yaml.safe_load(block))
        Network(description, 400 * channels, {"pdf": 3})
