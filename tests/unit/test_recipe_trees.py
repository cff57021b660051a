"""Networks with a tree of their own: what of theirs all that comes after goes by."""

import pytest
import yaml

from latflow.errors import UserError
from latflow.options import read_options
from latflow.training.options import LfmmiRunOptions
from latflow.workflow.recipe import Recipe

CHAIN = {"type": "lfmmi", "network": "chain.yaml", "alignments": "tri1"}
CHUNKS = {"sequences": {"type": "chunks", "size": 81}}
CE = {"type": "ce", "network": "chain.yaml", "alignments": "chain", "data": CHUNKS}
MMI = {"type": "sequence", "parent": "chain", "criterion": {"type": "mmi"}}


@pytest.fixture
def recipe_of(repository, tmp_path, monkeypatch):
    """A recipe with networks that score one frame in three."""
    monkeypatch.chdir(tmp_path)
    layers = {"slow": {"class": "subsample"}, "output": {"class": "output"}}
    (tmp_path / "chain.yaml").write_text(
        yaml.safe_dump({"layers": layers}, sort_keys=False)
    )

    def make(systems, **changes):
        text = (repository / "config/config.yaml").read_text()
        # Nothing is packaged: these networks read other features than the demo's.
        without = {"package": {}, "transcribe": {}}
        config = {**yaml.safe_load(text), **without, **changes}
        config["nnet"] = {**changes.get("nnet", {}), "systems": systems}
        return Recipe.from_config(config)

    return make


def test_the_tree_folder_is_the_networks(recipe_of):
    recipe = recipe_of({"chain": CHAIN, "mmi": MMI, "again": CE})
    assert recipe.graph_owners[-1] == "chain"
    for name in ("chain", "mmi", "again"):
        assert recipe.systems[name].tree_owner.name == "chain"
        assert recipe.systems[name].tree_model.endswith("/chain/chain/final.mdl")
        assert recipe.systems[name].graph_options.self_loop_scale == 1.0
        assert recipe.systems[name].gmm_ancestor.name == "tri1"
        assert recipe.systems[name].lang_folder == recipe.systems["tri1"].lang_folder
    assert recipe.systems["tri1"].tree_model.endswith("/gmm/tri1/final.mdl")
    assert recipe.systems["tri1"].graph_options.self_loop_scale == 0.1


def test_sequence_training_takes_alignments_of_its_seed(recipe_of):
    """Those that the seed was trained on are of another tree."""
    later = {**MMI, "parent": "mmi"}
    recipe = recipe_of({"chain": CHAIN, "mmi": MMI, "later": later})
    assert recipe.systems["chain"].aligner.name == "tri1"
    assert (
        recipe.systems["mmi"].aligner.name
        == recipe.systems["later"].aligner.name
        == "chain"
    )


def test_scales_are_one_unless_the_recipe_sets_them(recipe_of):
    own = {**MMI, "sequence": {"dev_search": {"acoustic_scale": 0.5}}}
    recipe = recipe_of({"chain": CHAIN, "mmi": own})
    options = recipe.systems["mmi"].training_options
    assert options["criterion"]["acoustic_scale"] == 1.0
    assert options["graph"]["self_loop_scale"] == 1.0
    assert options["sequence"]["lattices"]["acoustic_scale"] == 1.0
    assert options["sequence"]["alignments"]["acoustic_scale"] == 1.0
    assert options["sequence"]["dev_search"]["acoustic_scale"] == 0.5
    assert recipe.systems["chain"].align_options["acoustic_scale"] == 1.0
    assert recipe.systems["mmi"].denominator_options.self_loop_scale == 1.0
    assert recipe.systems["tri1"].denominator_options.self_loop_scale == 0.1


def test_scales_that_the_recipe_sets_stay(recipe_of):
    graph = {"self_loop_scale": 0.7}
    nnet = {
        "align": {"acoustic_scale": 0.3},
        "denominator": {"transition_scale": 0.5, "order": 2},
    }
    recipe = recipe_of({"chain": {**CHAIN, "graph": graph}, "mmi": MMI}, nnet=nnet)
    assert recipe.systems["mmi"].graph_options.self_loop_scale == 0.7
    denominator = recipe.systems["mmi"].denominator_options
    assert denominator.transition_scale == 0.5
    assert denominator.self_loop_scale == 0.7
    assert denominator.order == 2
    assert recipe.systems["chain"].align_options["acoustic_scale"] == 0.3


def test_the_supervision_needs_alignments_of_all_frames(recipe_of):
    with pytest.raises(UserError, match=r"second\.alignments: chain aligns one .* 3"):
        recipe_of({"chain": CHAIN, "second": {**CHAIN, "alignments": "chain"}})


def test_a_teachers_scales_are_one_too(recipe_of):
    teacher = {**MMI, "criterion": {"type": "teacher", "teacher": "chain"}}
    recipe = recipe_of({"chain": CHAIN, "pupil": teacher})
    criterion = recipe.systems["pupil"].training_options["criterion"]
    assert criterion["teacher_scale"] == criterion["acoustic_scale"] == 1.0


FLAT = {"type": "lfmmi", "network": "chain.yaml"}


def test_a_flat_start_needs_no_other_system(recipe_of):
    recipe = recipe_of({"chain": FLAT, "mmi": MMI, "again": CE}, gmm={"systems": {}})
    assert list(recipe.systems) == ["chain", "mmi", "again"]
    assert recipe.lfmmi_networks(flat_start=True) == ["chain"]
    assert recipe.graph_owners == ["chain"]
    assert recipe.systems["mmi"].aligner.name == "chain"
    for name in ("chain", "mmi", "again"):
        assert recipe.systems[name].tree_model.endswith("/chain/chain/final.mdl")
        assert recipe.systems[name].gmm_ancestor is None
        assert recipe.systems[name].lang_folder.endswith("/lang")
    options = recipe.systems["chain"].training_options
    assert options["data"]["sequences"] == {"type": "utterances"}
    assert options["criterion"]["l2"] == 5e-5
    assert recipe.systems["chain"].options.tree.context_width == 1


def test_a_flat_start_keeps_what_the_recipe_sets(recipe_of):
    own = {**FLAT, "criterion": {"l2": 0.0}, "tree": {"context_width": 2}}
    recipe = recipe_of({"chain": own})
    assert recipe.systems["chain"].training_options["criterion"]["l2"] == 0.0
    assert recipe.systems["chain"].options.tree.context_width == 2
    aligned = recipe_of({"chain": CHAIN})
    assert aligned.lfmmi_networks(flat_start=False) == ["chain"]
    assert aligned.systems["chain"].training_options["criterion"]["l2"] == 0.0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tree": {"num_leaves": 50}}, "tree.num_leaves: is of alignments"),
        ({"tree": {"context_width": 3}}, "of at most 2 phones"),
        ({"supervision": {"left_tolerance": 3}}, "left_tolerance: is of alignments"),
        ({"data": {"sequences": {"type": "chunks"}}}, "utterances cannot be cut"),
        ({"supervision_lattices": {}}, "has all pronunciations as it is"),
    ],
)
def test_what_a_flat_start_cannot_do_is_refused(recipe_of, changes, told):
    with pytest.raises(UserError, match=told):
        recipe_of({"chain": {**FLAT, **changes}})


def test_trees_are_not_grown_without_a_gmm(recipe_of, tmp_path):
    whole = {"layers": {"output": {"class": "output"}}}
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(whole))
    ce = {**CE, "network": "whole.yaml", "alignments": "first"}
    first = {**FLAT, "network": "whole.yaml", "tree": {"frame_subsampling": 1}}
    second = {**CHAIN, "alignments": "ce"}
    with pytest.raises(UserError, match=r"second\.alignments: no GMM system is behind"):
        recipe_of({"first": first, "ce": ce, "second": second})


def test_the_stage_takes_what_the_recipe_gives(recipe_of):
    aligned = {**CHAIN, "supervision_lattices": {"beam": 15.0}}
    recipe = recipe_of({"chain": aligned, "flat": FLAT})
    for name in ("chain", "flat"):
        given = recipe.systems[name].training_options
        taken = read_options(LfmmiRunOptions, given, name)
        assert taken.split()[0] == given
    assert recipe.systems["chain"].options.supervision_lattices.beam == 15.0


def test_networks_make_no_lattices_of_pronunciations(recipe_of, tmp_path):
    whole = {"layers": {"output": {"class": "output"}}}
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(whole))
    ce = {**CE, "network": "whole.yaml", "alignments": "tri1"}
    second = {**CHAIN, "alignments": "ce", "supervision_lattices": {}}
    with pytest.raises(UserError, match=r"supervision_lattices: ce is a network"):
        recipe_of({"ce": ce, "second": second})


def test_a_recipe_without_any_system_is_refused(recipe_of):
    with pytest.raises(UserError, match="gmm.systems is empty"):
        recipe_of({}, gmm={"systems": {}})
