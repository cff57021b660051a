"""Decoders with attention in the configuration."""

import json

import pytest
import yaml

from latflow.errors import UserError
from latflow.training.options import AttentionRunOptions
from latflow.workflow.recipe import Recipe

ENCODER = {"wide": {"class": "linear", "size": 8}}
DECODER = {"class": "attention_decoder", "from": "wide", "loss": "attention"}
CTC = {"class": "output", "from": "wide", "loss": "ctc"}
LAS = {"decoder": DECODER}


@pytest.fixture
def recipe_of(repository, tmp_path):
    """Make a recipe with a decoder, and other systems and sections."""

    def make(outputs=LAS, others=None, sections=None, **system):
        network = {"layers": {**ENCODER, **outputs}}
        (tmp_path / "net.yaml").write_text(json.dumps(network))
        config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
        las = {"type": "attention", "network": str(tmp_path / "net.yaml"), **system}
        config["nnet"] = {"systems": {"las": las, **(others or {})}}
        return Recipe.from_config({**config, **(sections or {})})

    return make


def test_it_learns_from_transcripts_and_has_no_graph(recipe_of):
    recipe = recipe_of(units="character", decode={"beam": 3})
    assert recipe.systems["las"].aligner is None
    assert recipe.systems["las"].gmm_ancestor is None
    assert "/units/las/" in recipe.systems["las"].transcripts("dev")[0]
    assert recipe.systems["las"].tree_model.endswith("/chain/las/final.mdl")
    assert "las" not in recipe.graph_owners
    assert "las" in recipe.decodings
    assert recipe.systems["las"].options.units == "character"
    assert recipe.systems["las"].options.decode.beam == 3
    options = recipe.systems["las"].training_options
    assert options["type"] == "attention"
    assert not {"units", "decode", "network"} & options.keys()
    AttentionRunOptions.model_validate(options)  # what train_network is given


def test_bonuses_of_words_are_tried_for_it_alone(recipe_of):
    recipe = recipe_of()
    assert min(recipe.tune_options("las")["word_insertion_penalties"]) == -4
    other = [*recipe.gmms][-1]
    assert min(recipe.tune_options(other)["word_insertion_penalties"]) == 0


def test_ctc_beside_it_is_over_the_same_units(recipe_of):
    recipe = recipe_of({**LAS, "labels": CTC}, training={"label_smoothing": 0.1})
    assert [*recipe.systems["las"].outputs] == ["decoder", "labels"]
    assert not recipe.systems["las"].learns_by_ctc


def test_beams_are_swept_with_the_last_system_that_has_a_graph(recipe_of):
    sections = {"decode": {"beam_sweep": [8.0, 13.0]}}
    recipe = recipe_of(sections=sections)
    assert recipe.swept_systems == [[*recipe.gmms][-1]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"outputs": {"output": CTC}}, "decoded output output has loss ctc"),
        ({"units": "syllable"}, "units"),
        ({"alignments": "tri1"}, "alignments"),
        ({"data": {"sequences": {"type": "chunks"}}}, "data.sequences"),
        ({"network": "absent.yaml"}, "no such file absent.yaml"),
        ({"training": {"priors": "alignments"}}, "training.priors: a decoder"),
        ({"training": {"pretraining": 1}}, "training.pretraining: a decoder"),
        (
            {"training": {"schedule": {"type": "newbob", "measure": "frame_errors"}}},
            "schedule.measure: a decoder",
        ),
        ({"decode": {"prior_scale": 1.0}}, "prior_scale"),
        (
            {"others": {"mmi": {"type": "sequence", "parent": "las"}}},
            "mmi.parent: las is a decoder with attention",
        ),
        (
            {"sections": {"export_alignments": {"systems": ["las"]}}},
            "export_alignments.systems: las is a decoder",
        ),
        (
            {"sections": {"package": {"systems": ["las"]}}},
            "package.systems: las is a decoder with attention",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_when_the_recipe_is_read(recipe_of, given, told):
    if "others" in given:
        given["others"]["mmi"]["criterion"] = {"type": "mmi"}
    with pytest.raises(UserError, match=told):
        recipe_of(**given)


def test_it_aligns_for_no_other_network(recipe_of, tmp_path):
    plain = {"layers": {**ENCODER, "output": {"class": "output"}}}
    (tmp_path / "ce.yaml").write_text(json.dumps(plain))
    ce = {"type": "ce", "network": str(tmp_path / "ce.yaml"), "alignments": "las"}
    with pytest.raises(UserError, match="ce.alignments: las is a decoder"):
        recipe_of(others={"ce": ce})


def test_other_types_have_no_decoder(recipe_of):
    with pytest.raises(UserError, match="decoder has loss attention"):
        recipe_of({"output": CTC, "decoder": DECODER}, type="ctc")
