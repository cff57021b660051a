"""Networks in the configuration: what follows from it, and what it may not say."""

import pytest
import yaml

from latflow.errors import UserError
from latflow.recipe import Recipe

CE = {"type": "ce", "network": "tdnn.yaml", "alignments": "tri1"}
MMI = {"type": "sequence", "parent": "tdnn", "criterion": {"type": "mmi"}}


@pytest.fixture
def recipe_of(repository):
    """Make a recipe with networks, and with features for them."""

    def make(systems, features=None):
        path = repository / "tests/e2e/tiny.yaml"
        config = yaml.safe_load(path.read_text())
        config["nnet"] = {"systems": systems, "features": features or {}}
        return Recipe.from_config(config, repository / "workflow/schemas")

    return make


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing: is of cross-entropy"),
        ({"pretraining": 1}, "pretraining: is of cross-entropy"),
        ({"priors": "alignments"}, "priors: is of cross-entropy"),
        ({"schedule": {"type": "newbob", "measure": "frame_errors"}}, "word errors"),
        ({"parameter_averaging": 4}, "parameter_averaging"),
    ],
)
def test_options_that_sequence_training_does_not_read(recipe_of, training, told):
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": CE, "mmi": {**MMI, "training": training}})


def test_a_sequence_trained_network_keeps_what_its_seed_has(recipe_of):
    smbr = {**MMI, "parent": "mmi", "criterion": {"type": "smbr"}}
    recipe = recipe_of({"tdnn": {**CE, "features": "tri3"}, "mmi": MMI, "smbr": smbr})
    assert recipe.decoded_systems[-3:] == ["tdnn", "mmi", "smbr"]
    assert recipe.networks_of("sequence") == ["mmi", "smbr"]
    for name in ("tdnn", "mmi", "smbr"):
        assert recipe.seed_of(name) == "tdnn"
        assert recipe.gmm_behind(name) == "tri1"
        assert recipe.stream_of(name) == "tri3"
    assert recipe.gmm_behind("mono") == "mono"
    data = recipe.sequence_options("mmi")["data"]
    assert data["normalisation"] == "inherited"
    assert data["sequences"] == {"type": "utterances"}


def test_features_are_stored_or_not(recipe_of):
    live = {"type": "fbank", "stored": False, "cmvn": {"type": "none"}}
    recipe = recipe_of({}, {"kept": {"type": "fbank"}, "live": live})
    assert recipe.streams_of(stored=True) == ["kept"]
    assert recipe.streams_of(stored=False) == ["live"]
    assert "stored" not in recipe.stream_extraction_options("kept")
    assert recipe.live_stream_options("live")["cmvn"] == {"type": "none"}


def test_a_teacher_is_told_to_the_rules(recipe_of):
    pupil = {**MMI, "criterion": {"type": "teacher", "teacher": "big"}}
    recipe = recipe_of({"big": CE, "tdnn": CE, "pupil": pupil, "mmi": MMI})
    assert recipe.teacher_of("pupil") == "big"
    assert recipe.teacher_of("mmi") is None


def taught(**criterion):
    """A network with a teacher, beside one on other features."""
    return {
        "tdnn": CE,
        "other": {**CE, "features": "tri3"},
        "late": {**CE, "alignments": "tri2"},
        "pupil": {**MMI, "criterion": criterion},
    }


@pytest.mark.parametrize(
    ("systems", "features", "message"),
    [
        ({"tri1": CE}, {}, r"systems\.tri1: a GMM system has this name"),
        ({"tdnn": {**CE, "alignments": "tri9"}}, {}, r"alignments: no 'tri9'.*mono"),
        ({"tdnn": {**CE, "features": "none"}}, {}, r"features: no 'none'.*tri3"),
        ({"mmi": MMI, "tdnn": CE}, {}, r"mmi\.parent: no 'tdnn'"),
        ({}, {"mono": {"type": "fbank"}}, r"features\.mono: a GMM system has"),
        ({}, {"live": {"type": "fbank", "stored": False}}, r"live\.cmvn: statistics"),
        (taught(type="teacher"), {}, r"teacher: goes with the type teacher"),
        (taught(type="mmi", teacher="tdnn"), {}, r"teacher: goes with the type"),
        (taught(type="teacher", teacher="nobody"), {}, r"teacher: no 'nobody'"),
        (taught(type="teacher", teacher="other"), {}, r"other has other features"),
        (taught(type="teacher", teacher="late"), {}, r"late has other alignments"),
    ],
)
def test_networks_that_cannot_be_are_refused(recipe_of, systems, features, message):
    with pytest.raises(UserError, match=message):
        recipe_of(systems, features)
