"""Networks of CTC in the configuration, and outputs of several losses."""

import json

import pytest
import yaml

from latflow.errors import UserError
from latflow.workflow.recipe import Recipe

TRUNK = {"wide": {"class": "linear", "size": 8}}
CTC = {"class": "output", "from": "wide", "loss": "ctc"}
CE = {"class": "output", "from": "wide"}
WHOLE = {"sequences": {"type": "utterances"}}


@pytest.fixture
def recipe_of(repository, tmp_path):
    """Make a recipe with a network of outputs."""

    def make(outputs, decode=None, **system):
        network = {"layers": {**TRUNK, **outputs}}
        if decode is not None:
            network["decode"] = decode
        (tmp_path / "net.yaml").write_text(json.dumps(network))
        config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
        named = {"network": str(tmp_path / "net.yaml"), **system}
        config["nnet"] = {"systems": {"net": named}}
        return Recipe.from_config(config)

    return make


def test_ctc_needs_no_alignments_and_has_a_tree_of_its_own(recipe_of):
    recipe = recipe_of({"output": CTC}, type="ctc")
    assert recipe.systems["net"].aligner is None
    assert recipe.systems["net"].learns_by_ctc
    assert recipe.systems["net"].tree_model.endswith("/chain/net/final.mdl")
    assert recipe.systems["net"].gmm_ancestor is None
    assert recipe.systems["net"].has_full_scale
    scales = recipe.systems["net"].graph_options.values()
    assert scales == {"transition_scale": 0.0, "self_loop_scale": 0.0}
    assert recipe.systems["net"].align_options["acoustic_scale"] == 1.0
    options = recipe.systems["net"].training_options
    assert options["type"] == "ctc"
    assert options["data"]["sequences"] == {"type": "utterances"}
    assert not {"graph", "alignments"} & options.keys()


def test_cross_entropy_beside_ctc(recipe_of):
    outputs = {"output": CTC, "phones": {**CE, "target": "phone"}}
    recipe = recipe_of(outputs, type="ctc", alignments="tri1")
    assert recipe.systems["net"].aligner.name == "tri1"
    assert recipe.systems["net"].gmm_ancestor.name == "tri1"
    assert recipe.systems["net"].tree_owner.name == "net"


def test_ctc_beside_lattice_free_mmi(recipe_of):
    first = {"class": "output", "from": "wide", "loss": "lfmmi"}
    outputs = {"output": first, "side": CTC, "xent": CE}
    given = {"type": "lfmmi", "tree": {"frame_subsampling": 1}, "alignments": "tri1"}
    with pytest.raises(UserError, match="learns by CTC, from whole utterances"):
        recipe_of(outputs, **given)
    system = recipe_of(outputs, **given, data=WHOLE).systems["net"]
    assert system.transcripts("dev") == [f"{system.results}/ctc/net/dev/meta.json"]
    del outputs["side"]
    assert recipe_of(outputs, **given).systems["net"].transcripts("dev") == []


def test_ctc_beside_cross_entropy(recipe_of):
    outputs = {"side": CTC, "output": CE}
    given = {"type": "ce", "alignments": "tri1", "data": WHOLE}
    recipe = recipe_of(outputs, "output", **given)
    assert recipe.systems["net"].learns_by_ctc
    assert [*recipe.systems["net"].outputs] == ["output", "side"]
    assert recipe.systems["net"].tree_model.endswith("/gmm/tri1/final.mdl")
    with pytest.raises(UserError, match="decoded output side has loss ctc"):
        recipe_of(outputs, **given)
    with pytest.raises(UserError, match="from whole utterances"):
        recipe_of(outputs, "output", type="ce", alignments="tri1")


@pytest.mark.parametrize(
    ("outputs", "system", "told"),
    [
        ({"output": CE}, {}, "decoded output output has loss ce"),
        ({"output": CTC, "ce": CE}, {}, "has loss ce, which needs alignments"),
        (
            {"output": CTC, "ce": {**CE, "target": "word"}},
            {"alignments": "tri1"},
            "no labels for the target word",
        ),
        (
            {"output": CTC, "chain": {**CE, "loss": "lfmmi"}},
            {},
            "chain has loss lfmmi",
        ),
        (
            {"output": CTC},
            {"data": {"sequences": {"type": "chunks"}}},
            "data.sequences",
        ),
        ({"output": CTC}, {"training": {"priors": "alignments"}}, "training.priors"),
        (
            {"output": CTC},
            {"training": {"schedule": {"type": "newbob", "measure": "frame_errors"}}},
            "schedule.measure",
        ),
        ({"output": CTC}, {"network": "absent.yaml"}, "no such file absent.yaml"),
        ({"output": CTC}, {"alignments": "tri9"}, "no 'tri9'"),
    ],
)
def test_what_cannot_be_trained_or_decoded_is_refused(recipe_of, outputs, system, told):
    with pytest.raises(UserError, match=told):
        recipe_of(outputs, **{"type": "ctc", **system})


def test_ctc_is_no_parent_of_sequence_training(recipe_of, repository, tmp_path):
    recipe_of({"output": CTC}, type="ctc")
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    parent = {"type": "ctc", "network": str(tmp_path / "net.yaml")}
    child = {"type": "sequence", "parent": "net", "criterion": {"type": "mmi"}}
    config["nnet"] = {"systems": {"net": parent, "mmi": child}}
    with pytest.raises(UserError, match="net was trained by CTC"):
        Recipe.from_config(config)


def test_features_that_an_output_learns(recipe_of, repository, tmp_path):
    copy = {"class": "output", "from": "wide", "loss": "mse", "target": "clean"}
    with pytest.raises(UserError, match="target of the loss mse: no 'clean'"):
        recipe_of({"output": CTC, "copy": copy}, type="ctc")
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    system = {"type": "ctc", "network": str(tmp_path / "net.yaml")}
    clean = {"type": "fbank", "cmvn": {"type": "none"}}
    config["nnet"] = {"systems": {"net": system}, "features": {"clean": clean}}
    assert Recipe.from_config(config).networks["net"].mse_targets == ["clean"]
    clean["stored"] = False
    with pytest.raises(UserError, match="target of the loss mse: no 'clean'"):
        Recipe.from_config(config)


MASK = {"class": "output", "from": "wide", "loss": "mse", "target": "mask"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"outputs": {}}, "simulation.targets.mask: no output of the network learns"),
        ({"targets": {}}, "target of the loss mse: no 'mask'"),
        ({"simulation": None}, "target of the loss mse: no 'mask'"),
        ({"stored": True}, "net.data.simulation: its features are stored"),
        ({"name": "mask"}, "targets.mask: features of nnet.features have this name"),
        ({"type": "waveform"}, "mask.domain: features of type waveform have no mel"),
        ({"domain": "stft", "type": "waveform"}, None),
        ({"domain": "bark"}, "targets.mask.*domain"),
    ],
)
def test_outputs_that_learn_what_simulation_knows(repository, tmp_path, changes, told):
    layers = {**TRUNK, "output": CTC, **changes.get("outputs", {"mask": MASK})}
    (tmp_path / "net.yaml").write_text(json.dumps({"layers": layers}))
    mask = {"type": "ratio_mask", "domain": changes.get("domain", "mel")}
    simulation = {
        "noises": {"hiss": {"type": "generated"}},
        "targets": changes.get("targets", {"mask": mask}),
    }
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    name = changes.get("name", "live")
    config["nnet"] = {
        "features": {
            name: {
                "type": changes.get("type", "fbank"),
                "stored": changes.get("stored", False),
                "cmvn": {"type": "none"},
            }
        },
        "systems": {
            "net": {
                "type": "ctc",
                "network": str(tmp_path / "net.yaml"),
                "features": name,
                "data": {
                    "normalization": "none",
                    "simulation": changes.get("simulation", simulation),
                    "perturbation": {"speeds": [0.9, 1.1]},
                },
            }
        },
    }
    if told is None:
        recipe = Recipe.from_config(config)
        assert recipe.systems["net"].mse_targets == []
        assert recipe.systems["net"].simulated_targets == ["mask"]
    else:
        with pytest.raises(UserError, match=told):
            Recipe.from_config(config)
