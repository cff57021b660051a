"""Features of Lhotse's extractors in a recipe, and what it may not say of them."""

import pytest
import yaml

from latflow.errors import UserError
from latflow.features.options import FeatureOptions, LhotseFeatureOptions
from latflow.workflow.doctor import examine_experiment
from latflow.workflow.packages import PackagePlan
from latflow.workflow.recipe import Recipe

CE = {"type": "ce", "network": "tdnn.yaml", "alignments": "tri1", "features": "own"}
CE["data"] = {"normalization": "global"}
FBANK = {"type": "lhotse", "extractor": "kaldi-fbank", "cmvn": {"type": "none"}}


@pytest.fixture
def recipe_of(repository):
    """Make a recipe with features for the GMM systems, and for a network."""

    def make(features=None, own=None, **network):
        path = repository / "tests/e2e/tiny.yaml"
        config = yaml.safe_load(path.read_text())
        config["features"] = features or {}
        systems = {"tdnn": {**CE, **network}}
        config["nnet"] = {"systems": systems, "features": {"own": own or FBANK}}
        return Recipe.from_config(config)

    return make


def test_the_type_says_whose_features(recipe_of):
    recipe = recipe_of({"num_ceps": 12})
    assert isinstance(recipe.options.features, FeatureOptions)
    assert recipe.systems["tri1"].frames.first_middle == 0.0125
    assert recipe.systems["tdnn"].frames.first_middle == 0.005
    values = recipe.streams["own"].extraction
    assert (values["extractor"], values["dither"]) == ("kaldi-fbank", 1.0)
    assert "cmvn" not in values
    recipe = recipe_of({"type": "lhotse", "extractor": "kaldi-mfcc"})
    assert isinstance(recipe.options.features, LhotseFeatureOptions)
    recipe.gmm_frames.check_extractor()


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"type": "plp"}, "features.type: 'plp' is not one of 'mfcc', 'fbank', "),
        ({"typ": "fbank"}, "key features.typ - did you mean type?"),
        ({"num_cep": 12}, "key features.num_cep - did you mean num_ceps?"),
        ({"num_ceps": "x"}, "configuration features.num_ceps: should be a valid int"),
        ({"type": "lhotse"}, "configuration features.extractor is missing"),
        (
            {"type": "lhotse", "extractor": "kaldi-mfcc", "snip_edge": True},
            "unknown configuration key features.snip_edge",
        ),
        (
            {"type": "lhotse", "extractor": "none/there.py:Own"},
            "features.extractor: no such file none/there.py",
        ),
    ],
)
def test_mistakes_are_told_when_the_recipe_is_read(recipe_of, features, told):
    with pytest.raises(UserError, match=told):
        recipe_of(features)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"extractor": "kaldi-fbnk"}, r"nnet.features.own.extractor: .*kaldi-fbank\?"),
        ({"options": {"num_filter": 3}}, r"features.own.options.num_filter - did you"),
        ({"extractor": "kaldifeat-fbank"}, "needs the Python package kaldifeat"),
    ],
)
def test_extractors_are_made_when_a_run_begins(recipe_of, own, told):
    recipe = recipe_of(own={**FBANK, **own})
    with pytest.raises(UserError, match=told):
        recipe.check_definitions()
    assert any(finding.severity == "error" for finding in examine_experiment(recipe))


def test_a_class_of_the_users_is_an_input_and_in_no_package(recipe_of, tmp_path):
    path = tmp_path / "own.py"
    path.write_text("")
    own = {**FBANK, "extractor": f"{path}:Own"}
    recipe = recipe_of(own=own)
    assert recipe.streams["own"].extractor_files == [str(path)]
    assert recipe.gmm_frames.extractor_files == []
    with pytest.raises(UserError, match="a package holds no custom code"):
        PackagePlan(recipe, "tdnn").check()


def test_systems_on_extractors_are_packaged_for_whole_recordings(recipe_of):
    recipe = recipe_of()
    with pytest.raises(UserError, match="extractor kaldi-fbank takes whole signals"):
        PackagePlan(recipe, "tdnn").check()
    plan = PackagePlan(recipe, "tdnn", offline=True)
    plan.check()
    assert plan.files["recordings"] == []
    assert plan.package_options["front_end"]["extractor"] == "kaldi-fbank"


def test_features_on_the_fly_stay_on_the_extractors_device(recipe_of):
    data = {"normalization": "none", "on_the_fly": {"device": "cuda"}}
    own = {**FBANK, "stored": False}
    with pytest.raises(UserError, match=r"on_the_fly.device: the extractor kaldi-fb"):
        recipe_of(own=own, data=data)
