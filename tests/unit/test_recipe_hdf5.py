"""Recipes whose sets are HDF5 files: without audio, and without what needs it."""

import pytest

from latflow.errors import UserError
from latflow.workflow.recipe import Recipe

FILES = {"train": "a.hdf", "dev": "b.hdf", "test": "c.hdf"}
NETWORK = "layers: {output: {class: output, loss: ctc}}"


@pytest.fixture
def recipe_of(tmp_path):
    """Make a recipe of images that a network of CTC reads."""

    def make(changes=None, network=None):
        (tmp_path / "net.yaml").write_text(NETWORK)
        sets = {k: {"type": "hdf5", "files": [file]} for k, file in FILES.items()}
        system = {"type": "ctc", "network": str(tmp_path / "net.yaml")}
        config = {
            "experiment": "images",
            "corpus": {**sets, "test": {"test": sets["test"]}},
            "lang": {"lexicon": "lexicon.txt"},
            "lm": {"type": "uniform"},
            "gmm": {"systems": {}},
            "nnet": {
                "hdf5": {"images": {"files": {k: [v] for k, v in FILES.items()}}},
                "systems": {"net": {**system, "features": "images", **(network or {})}},
            },
        }
        for section, keys in (changes or {}).items():
            config[section] = {**config[section], **keys}
        files = config["nnet"]["hdf5"]["images"]["files"]
        files |= {name: ["c.hdf"] for name in config["corpus"].get("simulated", ())}
        return Recipe.from_config(config)

    return make


def test_sets_can_be_hdf5_files(recipe_of):
    recipe = recipe_of()
    assert [recipe.source_files(split) for split in FILES] == [
        [file] for file in FILES.values()
    ]
    assert not any(recipe.has_audio(split) for split in FILES)
    recipe = recipe_of({"corpus": {"dev": {"type": "hold_out"}}})
    assert not recipe.has_audio("dev")
    assert recipe.source_files("full") == ["a.hdf"]


PERTURBED = {"perturbed": {"train_sp": {}}}
SIMULATED = {"noisy": {"of": "test", "noises": {"hiss": {"type": "generated"}}}}


@pytest.mark.parametrize(
    ("changes", "network", "told"),
    [
        ({"gmm": {"systems": {"mono": {"type": "mono"}}}}, {}, "gmm.systems: is of"),
        ({"corpus": PERTURBED}, {}, "corpus.perturbed: is of audio"),
        ({"corpus": {"simulated": SIMULATED}}, {}, "corpus.simulated: is of audio"),
        ({}, {"features": None}, "nnet.systems.net.features: is of audio"),
    ],
)
def test_what_needs_audio_is_refused(recipe_of, changes, network, told):
    with pytest.raises(UserError, match=told):
        recipe_of(changes, network)


def test_labels_that_are_features_are_not_normalized(recipe_of):
    """Also where they stand beside other features."""
    files = {k: [v] for k, v in FILES.items()}
    labels = {"labels": {"files": files, "sparse": "data"}, "images": {"files": files}}
    both = {"both": {"features": ["images", "labels"]}}
    nnet = {"hdf5": labels, "pasted": both}
    system = {"type": "ctc", "network": {"layers": {"output": {"class": "output"}}}}
    system["network"]["layers"]["output"]["loss"] = "ctc"
    for features in ("labels", "both"):
        raw = {"features": features, "data": {"normalization": "none"}}
        systems = {"net": {**system, **raw}}
        assert recipe_of({"nnet": {**nnet, "systems": systems}}).systems["net"]
        del raw["data"]
        systems = {"net": {**system, **raw}}
        with pytest.raises(UserError, match="would change the labels of nnet.hdf5.lab"):
            recipe_of({"nnet": {**nnet, "systems": systems}})


def test_times_of_the_frames_are_given(recipe_of):
    files = {k: [v] for k, v in FILES.items()}
    times = {"frame_shift_ms": 20, "first_middle_ms": 7.5}
    recipe = recipe_of({"nnet": {"hdf5": {"images": {"files": files, **times}}}})
    frames = recipe.systems["net"].frames
    assert (frames.shift, recipe.first_middle("net")) == (0.02, 0.0075)
