"""Networks in the configuration: what follows from it, and what it may not say."""

import pytest
import yaml
from fixtures.encoders import write_encoder

from latflow.decode.options import BiasedDecodeOptions, SearchOptions
from latflow.errors import UserError
from latflow.options import read_options
from latflow.workflow import doctor
from latflow.workflow.doctor import examine_experiment
from latflow.workflow.packages import PackagePlan
from latflow.workflow.recipe import Recipe

CE = {"type": "ce", "network": "tdnn.yaml", "alignments": "tri1"}
MMI = {"type": "sequence", "parent": "tdnn", "criterion": {"type": "mmi"}}


@pytest.fixture
def recipe_of(repository):
    """Make a recipe with networks, and with features for them."""

    def make(systems, features=None, corpus=None, *, ivectors=None, **more):
        path = repository / "tests/e2e/tiny.yaml"
        config = yaml.safe_load(path.read_text())
        config["lang"] = {"lexicon": more.get("lexicon")}
        config["corpus"].update(corpus or {})
        config["nnet"] = {
            "systems": systems, "features": features or {}, "ivectors": ivectors or {},
            "hdf5": more.get("hdf5", {}), "device": more.get("device", "auto"),
            "pasted": more.get("pasted", {}),
        }  # fmt: skip
        return Recipe.from_config(config)

    return make


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing: is of cross-entropy"),
        ({"focal": 2.0}, "focal: is of cross-entropy"),
        ({"pretraining": 1}, "pretraining: is of cross-entropy"),
        ({"priors": "alignments"}, "priors: is of cross-entropy"),
        ({"schedule": {"type": "newbob", "measure": "frame_errors"}}, "word errors"),
    ],
)
def test_options_that_sequence_training_does_not_read(recipe_of, training, told):
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": CE, "mmi": {**MMI, "training": training}})


def fbank(shift_ms):
    return {"f": {"type": "fbank", "frame_shift_ms": shift_ms}}


@pytest.fixture
def subsampled(tmp_path):
    """Make a system of a network that scores one frame in so many of `f`."""

    def make(factor):
        layers = {
            "slow": {"class": "subsample", "factor": factor},
            "output": {"class": "output", "loss": "ce"},
        }
        path = tmp_path / "net.yaml"
        path.write_text(yaml.safe_dump({"layers": layers}, sort_keys=False))
        return {"net": {**CE, "network": str(path), "features": "f"}}

    return make


@pytest.mark.parametrize(("shift_ms", "factor"), [(10.0, 1), (5.0, 2), (10.0, 2)])
def test_labels_are_those_of_frames_or_of_outputs(
    recipe_of, subsampled, shift_ms, factor
):
    recipe = recipe_of(subsampled(factor), fbank(shift_ms))
    assert recipe.systems["net"].subsampling == factor


@pytest.mark.parametrize(("shift_ms", "factor"), [(5.0, 1), (20.0, 1), (2.5, 2)])
def test_labels_of_other_times_are_refused(recipe_of, subsampled, shift_ms, factor):
    told = f"tri1 has a label each 10 ms, and the features of net .* each {shift_ms:g}"
    with pytest.raises(UserError, match=told):
        recipe_of(subsampled(factor), fbank(shift_ms))


def test_alignments_that_give_the_tree_alone_may_have_other_times(
    recipe_of, subsampled
):
    files = {name: ["x.hdf"] for name in ("train", "dev", "test")}
    slow = {"f": {"files": files, "frame_shift_ms": 30.0}}
    with pytest.raises(UserError, match="the features of net a frame each 30 ms"):
        recipe_of(subsampled(1), hdf5=slow)
    slow["f"]["targets"] = ["pdf"]
    recipe_of(subsampled(1), hdf5=slow)


@pytest.mark.parametrize("where", ["lattices", "dev_search"])
def test_more_least_states_than_most_are_refused(recipe_of, where):
    few = {where: {"max_active": 150}}
    with pytest.raises(UserError, match="min_active 200 is above max_active 150"):
        recipe_of({"tdnn": CE, "mmi": {**MMI, "sequence": few}})
    few[where]["min_active"] = 150
    recipe_of({"tdnn": CE, "mmi": {**MMI, "sequence": few}})


@pytest.mark.parametrize("options", [SearchOptions, BiasedDecodeOptions])
def test_a_search_has_no_more_least_states_than_most(options):
    with pytest.raises(UserError, match="min_active 200 is above max_active 150"):
        read_options(options, {"max_active": 150}, "decode")
    read_options(options, {"max_active": 150, "min_active": 150}, "decode")


@pytest.mark.parametrize(
    ("parent", "told"),
    [
        ("tdn", "parent: no 'tdn' - choose from: tdnn"),
        ("tri1", "parent: no 'tri1' - choose from: tdnn"),
        ("mmi", "parent: 'mmi' does not come before it - move it up"),
        ("later", "parent: 'later' does not come before it"),
    ],
)
def test_a_parent_is_a_network_before(recipe_of, parent, told):
    mmi = {**MMI, "parent": parent}
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": CE, "mmi": mmi, "later": MMI})


def test_what_a_training_is_free_of_is_told_apart(recipe_of):
    data = {"prefetch": 1, "max_sequences": 3, "on_the_fly": {"threads": 2}}
    free_ones = {
        "log_interval": 7,
        "compile": "off",
        "checkpoint_minutes": 1.5,
        "keep_checkpoints": 3,
        "keep_finished": False,
        "tensorboard": False,
        "elastic": True,
    }
    recipe = recipe_of({"tdnn": {**CE, "data": data, "training": free_ones}})
    bound, free = (
        recipe.systems["tdnn"].training_options,
        recipe.systems["tdnn"].free_options,
    )
    assert (
        bound
        == recipe_of({"tdnn": {**CE, "data": {"max_sequences": 3}}})
        .systems["tdnn"]
        .training_options
    )
    assert free == {
        "training": free_ones,
        "data": {
            "prefetch": 1,
            "cache_mb": None,
            "on_the_fly": {"threads": 2, "device": "cpu", "cache_mb": 500},
        },
        "device": "auto",
        "backend": "auto",
    }


CHAIN = {**CE, "type": "lfmmi", "network": "config/networks/tdnnf_chain_small.yaml"}


def test_a_network_for_lfmmi_has_tree_and_graphs_of_its_own(recipe_of):
    recipe = recipe_of({"chain": {**CHAIN, "tree": {"num_leaves": 50}}})
    assert recipe.networks_of("lfmmi") == ["chain"]
    assert recipe.systems["chain"].tree_model.endswith("/chain/chain/final.mdl")
    assert recipe.systems["chain"].gmm_ancestor.name == "tri1"
    assert recipe.systems["chain"].options.tree.num_leaves == 50
    assert recipe.systems["chain"].graph_options.self_loop_scale == 1.0
    assert "tree" not in recipe.systems["chain"].training_options


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tree": {"frame_subsampling": 2}}, "scores one frame in 3"),
        ({"tree": {"phone_lm": {"ngram_order": 2}}}, "above ngram_order"),
        ({"training": {"label_smoothing": 0.1}}, "label_smoothing: is of cross"),
        (
            {"training": {"schedule": {"type": "newbob", "measure": "frame_errors"}}},
            "counts no frame errors",
        ),
    ],
)
def test_what_lfmmi_cannot_do_is_refused(recipe_of, changes, told):
    with pytest.raises(UserError, match=told):
        recipe_of({"chain": {**CHAIN, **changes}})


def test_a_sequence_trained_network_keeps_what_its_seed_has(recipe_of):
    smbr = {**MMI, "parent": "mmi", "criterion": {"type": "smbr"}}
    recipe = recipe_of({"tdnn": {**CE, "features": "tri3"}, "mmi": MMI, "smbr": smbr})
    assert list(recipe.systems)[-3:] == ["tdnn", "mmi", "smbr"]
    assert recipe.networks_of("sequence") == ["mmi", "smbr"]
    for name in ("tdnn", "mmi", "smbr"):
        assert recipe.systems[name].base.name == "tdnn"
        assert recipe.systems[name].gmm_ancestor.name == "tri1"
        assert recipe.systems[name].frames.name == "tri3"
    assert recipe.systems["mono"].gmm_ancestor.name == "mono"
    data = recipe.systems["mmi"].training_options["data"]
    assert data["normalization"] == "inherited"
    assert data["sequences"] == {"type": "utterances"}


def test_a_network_may_learn_the_alignments_of_an_earlier_one(recipe_of):
    networks = {
        "tdnn": CE,
        "mmi": MMI,
        "second": {**CE, "alignments": "mmi", "features": "tri3"},
        "third": {**CE, "alignments": "second"},
    }
    recipe = recipe_of(networks)
    assert (
        recipe.systems["tdnn"].aligner.name
        == recipe.systems["mmi"].aligner.name
        == "tri1"
    )
    assert recipe.systems["second"].aligner.name == "mmi"
    assert recipe.systems["third"].aligner.name == "second"
    assert {recipe.systems[name].gmm_ancestor.name for name in networks} == {"tri1"}
    assert recipe.systems["third"].lang_folder.endswith("/lang")
    assert recipe.systems["mmi"].scores_options["prior_scale"] is None


@pytest.mark.parametrize(
    "networks",
    [
        {"a": {**CE, "alignments": "a"}},
        {"a": {**CE, "alignments": "b"}, "b": {**CE, "alignments": "a"}},
        {"a": {**CE, "alignments": "b"}, "b": CE},
    ],
)
def test_alignments_come_from_earlier_systems_alone(recipe_of, networks):
    with pytest.raises(
        UserError, match=r"systems.a.alignments: '.' does not come before"
    ):
        recipe_of(networks)


def test_a_training_starts_from_an_earlier_network(recipe_of):
    wide = {**CE, "network": "wide.yaml", "parent": "tdnn"}
    recipe = recipe_of({"tdnn": CE, "wide": wide, "chain": {**CHAIN, "parent": "wide"}})
    assert recipe.systems["chain"].lineage == ["chain", "tri1", "wide", "mono", "tdnn"]
    assert recipe.systems["wide"].base.name == "wide"
    assert "parent" not in recipe.systems["wide"].training_options
    with pytest.raises(UserError, match="wide.parent: 'tdnn' does not come before"):
        recipe_of({"wide": wide, "tdnn": CE})
    with pytest.raises(UserError, match="wide.parent: no 'tri1'"):
        recipe_of({"tdnn": CE, "wide": {**wide, "parent": "tri1"}})
    layerwise = {**wide, "training": {"pretraining": 1}}
    with pytest.raises(UserError, match="not start as those of the parent tdnn"):
        recipe_of({"tdnn": CE, "wide": layerwise})


def test_the_features_of_gmms_are_a_stream_with_a_name(recipe_of):
    recipe = recipe_of({}, {"kept": {"type": "fbank"}})
    assert list(recipe.extracted) == ["gmm", "kept"]
    train = recipe.gmm_frames.of("train")
    assert train == "results/tiny/streams/gmm/frames/train/meta.json"
    with pytest.raises(UserError, match="nnet.features.gmm: the features of all GMM"):
        recipe_of({}, {"gmm": {"type": "fbank"}})


def test_features_are_stored_or_not(recipe_of):
    live = {"type": "fbank", "stored": False, "cmvn": {"type": "none"}}
    recipe = recipe_of({}, {"kept": {"type": "fbank"}, "live": live})
    assert recipe.extracted_streams(stored=True) == ["gmm", "kept"]
    assert recipe.extracted_streams(stored=False) == ["live"]
    assert "stored" not in recipe.streams["kept"].extraction
    assert recipe.streams["kept"].extraction["type"] == "fbank"


def test_a_teacher_is_told_to_the_rules(recipe_of):
    pupil = {**MMI, "criterion": {"type": "teacher", "teacher": "big"}}
    recipe = recipe_of({"big": CE, "tdnn": CE, "pupil": pupil, "mmi": MMI})
    assert recipe.systems["pupil"].teacher.name == "big"
    assert recipe.systems["mmi"].teacher is None


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
        ({"mmi": MMI, "tdnn": CE}, {}, r"mmi\.parent: 'tdnn' does not come before it"),
        ({}, {"mono": {"type": "fbank"}}, r"features\.mono: a GMM system or"),
        ({}, {"live": {"type": "fbank", "stored": False}}, r"live\.cmvn: statistics"),
        (taught(type="teacher"), {}, r"criterion\.teacher is missing"),
        (taught(type="mmi", teacher="tdnn"), {}, r"unknown .*criterion\.teacher"),
        (taught(type="teacher", teacher="nobody"), {}, r"teacher: no 'nobody'"),
        (taught(type="teacher", teacher="other"), {}, r"other has other features"),
        (taught(type="teacher", teacher="late"), {}, r"late has another tree"),
    ],
)
def test_networks_that_cannot_be_are_refused(recipe_of, systems, features, message):
    with pytest.raises(UserError, match=message):
        recipe_of(systems, features)


@pytest.fixture
def thirds(tmp_path):
    """A network that scores one frame in three."""
    layers = {"slow": {"class": "subsample"}, "output": {"class": "output"}}
    path = tmp_path / "thirds.yaml"
    path.write_text(yaml.safe_dump({"layers": layers}, sort_keys=False))
    chunks = {"sequences": {"type": "chunks", "size": 81}}
    return {**CE, "network": str(path), "data": chunks}


def test_frame_rates_that_do_not_fit_are_refused(recipe_of, thirds):
    recipe = recipe_of({"slow": thirds, "mmi": {**MMI, "parent": "slow"}})
    assert recipe.systems["slow"].subsampling == recipe.systems["mmi"].subsampling == 3
    assert recipe.systems["tri1"].subsampling == 1
    recipe_of({"slow": thirds, "again": {**thirds, "alignments": "slow"}})
    with pytest.raises(
        UserError, match=r"every\.alignments: slow aligns one frame in 3"
    ):
        recipe_of({"slow": thirds, "every": {**CE, "alignments": "slow"}})
    phones = {**MMI, "parent": "slow", "criterion": {"type": "phone_mpe"}}
    with pytest.raises(UserError, match=r"mpe\.criterion: counts phones"):
        recipe_of({"slow": thirds, "mpe": phones})
    fresh = {"alignments": {"source": "on_the_fly", "on_failure": "skip"}}
    recipe_of({"slow": thirds, "mpe": {**phones, "sequence": fresh}})
    teacher = {"type": "teacher", "teacher": "slow"}
    with pytest.raises(UserError, match="slow has another frame rate"):
        recipe_of({"slow": thirds, "tdnn": CE, "pupil": {**MMI, "criterion": teacher}})


def test_networks_may_have_a_training_set_of_their_own(recipe_of):
    corpus = {"perturbed": {"train_sp": {}, "train_fast": {"speeds": [1.1]}}}
    networks = {
        "tdnn": {**CE, "training_set": "train_sp"},
        "plain": CE,
        "mmi": MMI,
        "fast": {**MMI, "parent": "mmi", "training_set": "train_fast"},
    }
    recipe = recipe_of(networks, corpus=corpus)
    found = {name: recipe.systems[name].training_set for name in networks}
    assert found == {
        "tdnn": "train_sp", "plain": "train", "mmi": "train_sp", "fast": "train_fast",
    }  # fmt: skip
    assert "training_set" not in recipe.systems["tdnn"].training_options


@pytest.mark.parametrize(
    ("corpus", "network", "told"),
    [
        ({}, {"training_set": "train_sp"}, "training_set: no 'train_sp'"),
        ({"perturbed": {"test": {}}}, {}, "a test set has this name"),
        ({"perturbed": {"dev": {}}}, {}, "not a name for a custom set"),
        ({"perturbed": {"sp": {"of": "dev"}}}, {}, "no 'dev'; there are train"),
        ({"cleaned": {"test": {}}}, {}, "another set has this name"),
        ({"cleaned": {"a": {}}, "perturbed": {"a": {}}}, {}, "another set has this"),
        ({"cleaned": {"a": {"max_junk": 2.0}}}, {}, "max_junk"),
        ({"perturbed": {"sp": {"speeds": [0.9, 0.9]}}}, {}, "twice"),
        ({"perturbed": {"sp": {"volume": [2.0, 1.0]}}}, {}, "2 is above 1"),
    ],
)
def test_training_sets_that_cannot_be(recipe_of, corpus, network, told):
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": {**CE, **network}}, corpus=corpus)


def test_networks_learn_from_the_good_parts_and_their_copies(recipe_of):
    corpus = {"cleaned": {"good": {}}, "perturbed": {"good_sp": {"of": "good"}}}
    networks = {
        "one": {**CE, "training_set": "good"},
        "two": {**CE, "training_set": "good_sp"},
    }
    recipe = recipe_of(networks, corpus=corpus)
    assert recipe.training_sets == ["train", "good", "good_sp"]
    assert recipe.systems["two"].training_set == "good_sp"


TWO = {
    "type": "combined",
    "sources": {
        "tv": {"type": "kaldi", "path": "tv"},
        "web": {"type": "table", "path": "web.tsv", "exclude": "bad.txt"},
    },
}


def test_files_of_all_sources_of_a_set_are_watched(recipe_of):
    recipe = recipe_of({}, corpus={"train": TWO}, lexicon="lexicon.txt")
    assert recipe.source_files("train") == ["bad.txt", "web.tsv"]
    assert not recipe.is_synthetic


@pytest.mark.parametrize(
    ("corpus", "weights", "told"),
    [
        ({}, {"tv": [2]}, "source_weights: corpus.train is of one source"),
        ({"train": TWO}, {"radio": [2]}, "no 'radio'.*tv, web"),
        ({"train": TWO}, {"tv": [0], "web": [1, 0]}, "takes nothing in pass 2"),
        ({"train": TWO}, {"tv": [-1]}, "source_weights.tv.0: .*greater"),
        ({"train": TWO}, {"tv": []}, "source_weights.tv: .*at least 1 item"),
    ],
)
def test_weights_of_sources_that_cannot_be(recipe_of, corpus, weights, told):
    network = {**CE, "data": {"source_weights": weights}}
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": network}, corpus=corpus, lexicon="lexicon.txt")
    fine = {**CE, "data": {"source_weights": {"tv": [0], "web": [0.5, 2]}}}
    recipe_of({"tdnn": fine}, corpus={"train": TWO}, lexicon="lexicon.txt")


def test_speakers_that_nobody_knows_are_no_unit_of_sampling(recipe_of):
    network = {**CE, "data": {"sampling": {"speaker_power": 0.5}}}
    train = {"type": "kaldi", "path": "data/train", "speaker": "utterance"}
    with pytest.raises(UserError, match="speakers of corpus.train are not known"):
        recipe_of({"tdnn": network}, corpus={"train": train}, lexicon="lexicon.txt")
    recipe_of({"tdnn": network}, corpus={"train": TWO}, lexicon="lexicon.txt")


HDF = {"files": {"train": ["a.hdf", "b.hdf"], "dev": ["dev.hdf"], "test": ["t.hdf"]}}
TWO_OUTPUTS = """layers:
  output: {class: output}
  place: {class: output, from: data, target: place}
decode: output
"""


def test_features_and_labels_come_from_hdf5_files(recipe_of, tmp_path):
    network = tmp_path / "two.yaml"
    network.write_text(TWO_OUTPUTS)
    ce = {**CE, "features": "given", "network": str(network)}
    recipe = recipe_of({"tdnn": ce}, hdf5={"given": {**HDF, "targets": ["place"]}})
    assert recipe.streams["given"].files("train") == ["a.hdf", "b.hdf"]
    assert recipe.systems["tdnn"].given_targets == ("place",)
    assert recipe.networks["tdnn"].labels("train")
    assert recipe.systems["tdnn"].frames.first_middle == 0.0125
    both = {**HDF, "targets": ["place", "pdf"]}
    recipe = recipe_of({"tdnn": ce}, hdf5={"given": both})
    assert recipe.networks["tdnn"].labels("train") == []
    with pytest.raises(UserError, match="place: no labels for the target place"):
        recipe_of({"tdnn": ce}, hdf5={"given": HDF})
    with pytest.raises(UserError, match="tdnn reads features of HDF5 files"):
        PackagePlan(recipe, "tdnn").check()


@pytest.mark.parametrize(
    ("hdf5", "network", "told"),
    [
        ({"tri1": HDF}, {}, "nnet.hdf5.tri1: a GMM system or other features"),
        ({"given": {"files": {"trian": ["a"]}}}, {}, "no 'trian'"),
        ({"given": {"files": {"train": ["a"]}}}, {}, "files of dev .* needed"),
        ({"given": {"files": {"train": []}}}, {}, "files.train: .*at least 1 item"),
        ({"given": HDF}, {"data": {"simulation": {}}}, "name rooms"),
        ({"given": HDF}, {"data": {"perturbation": {}}}, "its features are stored"),
    ],
)
def test_hdf5_files_that_cannot_be(recipe_of, hdf5, network, told):
    features = {"features": "given" if "given" in hdf5 else None}
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": {**CE, **features, **network}}, hdf5=hdf5)


LIVE = {"live": {"type": "fbank", "stored": False, "cmvn": {"type": "none"}}}


def test_speeds_are_drawn_where_features_and_labels_can_follow(recipe_of):
    draws = {"data": {"perturbation": {}}}
    live = {**CE, "features": "live"}
    recipe_of({"tdnn": {**live, **draws}}, LIVE)
    with pytest.raises(UserError, match=r"tdnn\.data\.perturbation: .* stored"):
        recipe_of({"tdnn": {**CE, **draws}}, LIVE)
    with pytest.raises(UserError, match=r"perturbation\.speeds: only labels"):
        recipe_of({"tdnn": live, "mmi": {**MMI, **draws}}, LIVE)
    volume = {"data": {"perturbation": {"speeds": [1.0]}}}
    recipe_of({"tdnn": live, "mmi": {**MMI, **volume}}, LIVE)


def test_the_page_cache_is_bounded_where_features_are_stored(recipe_of):
    bounded = {"data": {"cache_mb": 100}}
    recipe_of({"tdnn": {**CE, **bounded}}, LIVE)
    with pytest.raises(UserError, match=r"tdnn\.data\.cache_mb: .* not stored"):
        recipe_of({"tdnn": {**CE, "features": "live", **bounded}}, LIVE)


def test_noise_is_added_to_stored_features_that_add_up(recipe_of, tmp_path):
    mixing = {"noises": {"street": {"files": str(tmp_path)}}}
    mixed = {**CE, "features": "mine", "data": {"mixing": mixing}}
    plain = {"type": "fbank", "cmvn": {"type": "none"}}

    def recipe(**changes):
        return recipe_of({"tdnn": mixed}, {"mine": {**plain, **changes}})

    assert recipe().networks["tdnn"].simulation_files == [f"{tmp_path}/*"]
    recipe(type="lhotse", extractor="kaldi-fbank")
    for changes, told in (
        ({"stored": False}, "its features are not stored"),
        ({"type": "mfcc"}, "features of type mfcc do not add up"),
        ({"cmvn": {"type": "utterance"}}, "have been normalized"),
        ({"channels": [0, 1]}, "features with channels"),
        ({"use_energy": True}, "features with use_energy"),
    ):
        with pytest.raises(UserError, match=rf"tdnn\.data\.mixing: .*{told}"):
            recipe(**changes)
    with pytest.raises(UserError, match="is for features of nnet.features"):
        recipe_of({"tdnn": {**mixed, "features": None}})
    with pytest.raises(UserError, match="extractor kaldi-mfcc do not add up"):
        recipe(type="lhotse", extractor="kaldi-mfcc").check_definitions()


def test_simulation_is_drawn_where_features_are_computed_on_the_fly(recipe_of):
    draws = {"data": {"simulation": {"noises": {"hiss": {"type": "generated"}}}}}
    live = {**CE, "features": "live"}
    recipe = recipe_of({"tdnn": {**live, **draws}, "mmi": {**MMI, **draws}}, LIVE)
    assert recipe.networks["mmi"].simulation_files == []
    with pytest.raises(UserError, match=r"tdnn\.data\.simulation: .* stored"):
        recipe_of({"tdnn": {**CE, **draws}}, LIVE)
    draws["data"]["simulation"]["targets"] = {"mask": {"type": "ratio_mask"}}
    with pytest.raises(UserError, match="type sequence learn no features"):
        recipe_of({"tdnn": live, "mmi": {**MMI, **draws}}, LIVE)


@pytest.mark.parametrize(
    ("simulated", "told"),
    [
        ({"of": "train"}, "noisy.of: no 'train'; there are dev, test"),
        ({"of": "test", "noises": {}}, "name rooms, noises, speakers or device"),
        ({"of": "test", "noises": {"a": {"type": "recorded"}}}, "a.files is missing"),
    ],
)
def test_simulated_sets_that_cannot_be(recipe_of, simulated, told):
    noises = {"hiss": {"type": "generated"}}
    with pytest.raises(UserError, match=told):
        recipe_of({}, corpus={"simulated": {"noisy": {"noises": noises, **simulated}}})
    with pytest.raises(UserError, match="simulated.test: another set has this name"):
        given = {"of": "test", "noises": noises}
        recipe_of({}, corpus={"simulated": {"test": given}})


def test_simulated_sets_have_the_channels_of_their_array(recipe_of):
    made = {"of": "test", "noises": {"hiss": {"type": "generated"}}}
    array = {"microphones": [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0]]}
    one, two = {"noisy": made}, {"noisy": {**made, "array": array}}

    def of_channels(channels, simulated):
        stream = {"x": {"type": "fbank", "channels": channels}}
        recipe_of({}, stream, corpus={"simulated": simulated})

    of_channels([0], one)
    of_channels([1, 0], two)
    for channels, simulated in (([0, 1], one), ([0, 2], two)):
        with pytest.raises(UserError, match=r"features.x.channels: .* noisy has"):
            of_channels(channels, simulated)
    repeat = {"type": "fbank", "channels": [0, 1], "single_channel": "repeat"}
    recipe_of({}, {"x": repeat}, corpus={"simulated": one})


@pytest.mark.parametrize(
    ("channels", "microphones", "told"),
    [
        ([1, 0], 2, None),
        (None, 0, None),
        (
            [0, 2],
            2,
            "has an array of 2 microphones, and the features are of the channel 2",
        ),
        ([0, 1], 0, "has no array, and the features are of several channels"),
        (None, 2, "has an array, and the features are of one channel"),
    ],
)
def test_arrays_in_training_have_the_channels_of_the_features(
    recipe_of, channels, microphones, told
):
    features = {"live": {**LIVE["live"], "channels": channels}}
    places = [[0.1 * i, 0.0, 0.0] for i in range(microphones)]
    array = {"microphones": places} if places else None
    draws = {"noises": {"hiss": {"type": "generated"}}, "array": array}
    systems = {"tdnn": {**CE, "features": "live", "data": {"simulation": draws}}}
    if told is None:
        recipe_of(systems, features)
        return
    with pytest.raises(UserError, match=rf"tdnn\.data\.simulation: {told}"):
        recipe_of(systems, features)


def test_simulated_sets_are_scored_like_those_they_are_made_of(recipe_of):
    made = {"of": "test", "noises": {"hiss": {"type": "generated"}}}
    recipe = recipe_of({}, corpus={"simulated": {"noisy": made}})
    assert recipe.evaluation_sets[-2:] == ["test", "noisy"]
    assert "noisy" in recipe.splits
    assert "noisy" not in recipe.sources


HIRES = {"hires": {"type": "fbank"}}
IV = {"iv": {"features": "hires"}}


def test_networks_read_features_with_ivectors(recipe_of):
    ce = {**CE, "features": "iv", "data": {"normalization": "global"}}
    recipe = recipe_of({"tdnn": ce, "mmi": MMI}, HIRES, ivectors=IV)
    assert recipe.systems["mmi"].frames.name == "iv"


@pytest.mark.parametrize(
    ("features", "ivectors", "data", "told"),
    [
        (HIRES, IV, {}, "normalization: would take the i-vectors away"),
        (HIRES, {"hires": IV["iv"]}, {}, "ivectors.hires: .* have this name"),
        (LIVE, {"iv": {"features": "live"}}, {}, "iv.features: no 'live'"),
    ],
)
def test_ivectors_that_cannot_be(recipe_of, features, ivectors, data, told):
    ce = {**CE, "features": next(iter(ivectors)), "data": data}
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": ce}, features, ivectors=ivectors)


SAMPLES = {"samples": {"type": "waveform", "cmvn": {"type": "none"}}}
ON_SAMPLES = {**CE, "features": "samples", "data": {"normalization": "none"}}


@pytest.mark.parametrize(
    ("features", "network", "told"),
    [
        ({}, {"data": {}}, "data.normalization: mean_variance is for features"),
        (
            {"sample_rate": 8000},
            {
                "type": "lfmmi",
                "network": "config/networks/waveform_tdnnf_chain_small.yaml",
            },
            "layer mel is for samples of 16000 Hz, the features have 8000 Hz",
        ),
        ({"cmvn": {"type": "speaker"}}, {}, "cmvn: speaker is for features"),
        ({"num_mel_bins": 40}, {}, "num_mel_bins belongs to type mfcc or fbank"),
    ],
)
def test_networks_on_samples_that_cannot_be(recipe_of, features, network, told):
    recipe_of({"tdnn": ON_SAMPLES}, SAMPLES)
    with pytest.raises(UserError, match=told):
        recipe_of(
            {"tdnn": {**ON_SAMPLES, **network}},
            {"samples": {**SAMPLES["samples"], **features}},
        )


def test_ivectors_are_of_features_not_of_samples(recipe_of):
    iv = {"iv": {"features": "samples"}}
    with pytest.raises(UserError, match="iv.features: samples are samples"):
        recipe_of({"tdnn": CE}, SAMPLES, ivectors=iv)


def test_samples_are_no_features_of_gaussians(repository):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    config["features"] = {"type": "waveform"}
    with pytest.raises(UserError, match="type: waveform is for networks"):
        Recipe.from_config(config)


def test_layers_do_not_come_one_by_one_and_stay(recipe_of):
    training = {"freeze": ["mel"], "pretraining": 1}
    with pytest.raises(UserError, match="freeze: with pretraining"):
        recipe_of({"tdnn": {**CE, "training": training}})


@pytest.fixture
def network_file(tmp_path):
    """Write the description of a network."""

    def write(layers, name="network.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump({"layers": layers}, sort_keys=False))
        return str(path)

    return write


ONE_IN_THREE = {
    "a": {"class": "conv1d", "size": 8, "stride": 3}, "o": {"class": "output"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"sequences": {"type": "chunks", "size": 50}}}, "chunks: size 50 is"),
        (
            {"data": {"sequences": {"type": "chunks", "size": 30, "step": 60}}},
            "chunks: step 60 is more than size 30",
        ),
        ({"data": {"min_length": 9, "max_length": 8}}, "max_length 8 is below"),
        ({"data": {"order": "sorted", "pool": 5}}, "pool is of order random"),
        ({"training": {"freeze": ["a", "b*"]}}, "freeze: no 'b[*]'"),
        ({"training": {"learning_rate_factors": {"x": 2.0}}}, "factors: no 'x'"),
        (
            {"training": {"schedule": {"type": "custom", "path": "none.py:rate"}}},
            "schedule.path: no such file none.py",
        ),
    ],
)
def test_what_a_training_would_refuse_is_refused_before_it(
    recipe_of, network_file, changes, told
):
    fits = {"data": {"sequences": {"type": "chunks", "size": 30}}}
    network = {**CE, "network": network_file(ONE_IN_THREE), **fits}
    more = {"freeze": ["a*"], "learning_rate_factors": {"o": 2.0}}
    recipe_of({"x": {**network, "training": more}})
    with pytest.raises(UserError, match=told):
        recipe_of({"x": {**network, **changes}})


@pytest.mark.parametrize("option", ["label_smoothing", "focal"])
def test_ctc_alone_has_no_labels_to_smooth(recipe_of, network_file, option):
    layers = {"a": {"class": "linear", "size": 4}, "o": {"class": "output"}}
    network = {"type": "ctc", "training": {option: 0.1}}
    ctc = {**layers, "o": {"class": "output", "loss": "ctc"}}
    with pytest.raises(UserError, match=f"{option}: is of cross-entropy"):
        recipe_of({"x": {**network, "network": network_file(ctc)}})
    both = {**ctc, "p": {"class": "output", "from": "a", "target": "phone"}}
    recipe_of({"x": {**network, "network": network_file(both), "alignments": "tri1"}})


@pytest.mark.parametrize(
    ("layers", "epochs", "told"),
    [
        ({"a": {"class": "convv1d"}, "o": {"class": "output"}}, 0, "convv1d"),
        (ONE_IN_THREE, 0, None),
        (ONE_IN_THREE, 8, None),
        ({**{f"l{i}": {"class": "linear", "size": 8} for i in range(3)}, "o": {
            "class": "output"}}, 4, "pretraining takes 8 epochs, but training has 8"),
    ],
)  # fmt: skip
def test_descriptions_are_checked_when_a_run_begins(
    recipe_of, network_file, layers, epochs, told
):
    data = {"sequences": {"type": "utterances"}}
    network = {**CE, "network": network_file(layers), "data": data}
    recipe = recipe_of({"x": {**network, "training": {"pretraining": epochs}}})
    if told is None:
        recipe.check_definitions()
        return
    with pytest.raises(UserError, match=told):
        recipe.check_definitions()
    assert any(told in str(one) for one in examine_experiment(recipe))


def test_an_ensemble_needs_linear_outputs_and_is_no_start(recipe_of, network_file):
    hidden = {"a": {"class": "linear", "size": 4}}
    curved = {**hidden, "o": {"class": "linear", "loss": "ce", "activation": "relu"}}
    training = {"training": {"ensemble": 2}}
    both = {**CE, "network": network_file(curved), **training}
    with pytest.raises(UserError, match="o: scores of such an output cannot be"):
        recipe_of({"tdnn": both}).check_definitions()
    plain = {**CE, "network": network_file({**hidden, "o": {"class": "output"}})}
    grown = {**plain, "parent": "tdnn"}
    recipe_of({"tdnn": plain, "x": grown, "mmi": {**MMI, **training}})
    recipe = recipe_of({"tdnn": {**plain, **training}, "mmi": MMI})
    assert recipe.systems["mmi"].layers == ["n1_a", "n2_a", "o"]
    assert recipe.systems["tdnn"].layers == ["a", "o"]
    beside = {"b": {"class": "linear", "size": 3, "from": "a"}}
    both = {"o": {"class": "output", "from": "a"}, **hidden, **beside}
    twice = {**both, "also": {"class": "output", "from": "b"}}
    branched = {**CE, "network": network_file(twice, "branched.yaml"), **training}
    recipe = recipe_of({"tdnn": branched, "mmi": MMI})
    assert recipe.systems["mmi"].layers == ["n1_a", "n2_a", "o"]
    told = "nnet.systems.x.parent: tdnn is several networks side by side"
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": {**plain, **training}, "x": grown})


def test_a_missing_description_is_told_when_a_run_begins(recipe_of):
    recipe = recipe_of({"x": {**CE, "network": "nowhere.yaml"}})
    told = "nnet.systems.x.network: no such file nowhere.yaml"
    with pytest.raises(UserError, match=told):
        recipe.check_definitions()
    assert any(told in str(one) for one in examine_experiment(recipe))


def test_what_a_system_is_built_on(recipe_of):
    systems = {"tdnn": {**CE, "features": "tri3"}, "mmi": MMI}
    systems["again"] = {**CE, "alignments": "tdnn"}
    recipe = recipe_of(systems)
    assert recipe.systems["mono"].lineage == ["mono"]
    assert recipe.systems["tri3"].lineage == ["tri3", "tri2", "tri1", "mono"]
    assert recipe.systems["mmi"].lineage == [
        "mmi",
        "tdnn",
        "tri1",
        "tri3",
        "mono",
        "tri2",
    ]
    assert recipe.systems["again"].lineage[:2] == ["again", "tdnn"]
    # what stands before a system in the recipe need not be what it is built on
    assert "tri2" not in recipe.systems["tri1"].lineage


@pytest.mark.parametrize(
    ("there", "severity"), [(1 << 40, "note"), (1 << 20, "warning"), (0, "note")]
)
def test_the_doctor_compares_the_largest_training_with_the_memory(
    recipe_of, network_file, monkeypatch, there, severity
):
    monkeypatch.setattr(doctor, "device_memory", lambda *, on_gpu: there)
    layers = {"a": {"class": "linear", "size": 4}, "o": {"class": "output"}}
    small = {**CE, "network": network_file(layers)}
    recipe = recipe_of({"x": small, "wide": {**small, "data": {"max_sequences": 5000}}})
    (found,) = [f for f in examine_experiment(recipe) if "in memory" in f.what]
    assert (found.severity, found.file) == (severity, "nnet.systems.wide")
    assert "million parameters, with gradient and optimizer" in found.what
    assert ("max_frames" in found.remedy) == (severity == "warning")


@pytest.mark.parametrize(
    ("device", "gpus", "severity"),
    [("cuda", 0, "warning"), ("auto", 0, "note"), ("auto", 1, None), ("cpu", 0, None)],
)
def test_doctor_says_where_networks_are_trained(
    recipe_of, network_file, monkeypatch, device, gpus, severity
):
    monkeypatch.setattr(doctor, "gpus", lambda: gpus)
    layers = {"a": {"class": "linear", "size": 4}, "o": {"class": "output"}}
    recipe = recipe_of({"x": {**CE, "network": network_file(layers)}}, device=device)
    found = [f for f in examine_experiment(recipe) if f.file == "nnet.device"]
    assert [f.severity for f in found] == ([severity] if severity else [])


BOTH = {"both": {"features": ["hires", "tri3"]}}
APART = """layers:
  mel: {class: slice, from: data, features: hires}
  adapted: {class: slice, from: data, features: tri3}
  output: {class: output, from: [mel, adapted]}
"""


def test_networks_read_several_streams_side_by_side(recipe_of, tmp_path):
    network = tmp_path / "two.yaml"
    network.write_text(APART)
    ce = {**CE, "features": "both", "network": str(network)}
    recipe = recipe_of({"tdnn": ce, "mmi": MMI}, HIRES, pasted=BOTH)
    assert recipe.systems["mmi"].frames.name == "both"
    sides = recipe.systems["mmi"].frames.parts
    assert [side.name for side in sides] == ["hires", "tri3"]
    assert recipe.systems["tri1"].frames.parts == (recipe.gmm_frames,)
    assert recipe.systems["tdnn"].lineage[:3] == ["tdnn", "tri1", "tri3"]
    assert recipe.systems["tdnn"].frames.first_middle == 0.0125
    recipe.check_definitions()
    one = {**ce, "features": "hires"}
    told = "network: features of layer mel: the network reads one stream"
    with pytest.raises(UserError, match=told):
        recipe_of({"tdnn": one}, HIRES)
    other = {"both": {"features": ["hires", "tri1"]}}
    with pytest.raises(UserError, match="features of layer adapted: no 'tri3'"):
        recipe_of({"tdnn": ce}, HIRES, pasted=other)
    with pytest.raises(UserError, match="reads features of several streams"):
        PackagePlan(recipe, "tdnn").check()


def test_labels_come_with_hdf5_files_among_them(recipe_of, tmp_path):
    network = tmp_path / "two.yaml"
    network.write_text(TWO_OUTPUTS)
    pasted = {"both": {"features": ["hires", "given"]}}
    ce = {**CE, "features": "both", "network": str(network)}
    given = {**HDF, "targets": ["place"]}
    recipe = recipe_of({"tdnn": ce}, HIRES, hdf5={"given": given}, pasted=pasted)
    assert recipe.systems["tdnn"].given_targets == ("place",)
    assert recipe.networks["tdnn"].labelled.name == "given"
    given = {"files": {"train": ["a.hdf"]}, "targets": ["place"]}
    with pytest.raises(UserError, match="files of dev .* needed"):
        recipe_of({"tdnn": ce}, HIRES, hdf5={"given": given}, pasted=pasted)


@pytest.mark.parametrize(
    ("pasted", "network", "told"),
    [
        ({"both": {"features": ["hires"]}}, {}, "both.features: .*at least 2 items"),
        ({"both": {"features": ["hires", "hires"]}}, {}, "'hires' stands there twice"),
        ({"both": {"features": ["hires", "tri9"]}}, {}, "both.features: no 'tri9'"),
        ({"both": {"features": ["hires", "live"]}}, {}, "live are computed when"),
        ({"both": {"features": ["hires", "both"]}}, {}, "both stand side by side al"),
        ({"tri3": BOTH["both"]}, {}, "pasted.tri3: .* have this name"),
        ({"iv": BOTH["both"]}, {}, "pasted.iv: .* have this name"),
        (BOTH, {"features": "boht"}, "tdnn.features: no 'boht'"),
        (BOTH, {"data": {"perturbation": {}}}, "its features are stored"),
        (
            BOTH,
            {"data": {"simulation": {"noises": {"hiss": {"type": "generated"}}}}},
            "its features are stored",
        ),
        (
            BOTH,
            {"data": {"mixing": {"noises": {"street": {"files": "noise"}}}}},
            "is for features of nnet.features",
        ),
        (
            {"both": {"features": ["hires", "iv"]}},
            {"data": {"normalization": "mean"}},
            "normalization: would take the i-vectors away",
        ),
    ],
)
def test_streams_that_cannot_stand_side_by_side(recipe_of, pasted, network, told):
    ce = {**CE, "features": "both" if "both" in pasted else None, **network}
    with pytest.raises(UserError, match=told) as caught:
        recipe_of({"tdnn": ce}, {**HIRES, **LIVE}, ivectors=IV, pasted=pasted)
    assert "\n" not in str(caught.value)


def test_samples_side_by_side_are_not_normalized_as_features(recipe_of):
    features = {**HIRES, "samples": {"type": "waveform", "cmvn": {"type": "none"}}}
    pasted = {"both": {"features": ["hires", "samples"]}}
    ce = {**CE, "features": "both"}
    with pytest.raises(UserError, match="normalization: mean_variance is for feat"):
        recipe_of({"tdnn": ce}, features, pasted=pasted)
    plain = {**ce, "data": {"normalization": "none"}}
    recipe_of({"tdnn": plain}, features, pasted=pasted)


INLINE = {
    "layers": {
        "slow": {"class": "subsample", "factor": 3},
        "output": {"class": "output"},
        "phones": {"class": "output", "from": "slow", "target": "phone"},
    }
}


def test_a_network_may_be_described_in_the_recipe(recipe_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {
        **CE,
        "network": INLINE,
        "data": {"sequences": {"type": "chunks", "size": 81}},
    }
    system = recipe_of({"tdnn": given}).networks["tdnn"]
    assert system.subsampling == 3
    assert list(system.outputs) == ["output", "phones"]
    assert system.description_values == INLINE
    system.check_description()
    assert not list(tmp_path.iterdir())  # written for the job that reads it alone
    file = tmp_path / system.description_file
    assert yaml.safe_load(file.read_text()) == INLINE
    before = file.stat().st_mtime_ns
    assert (system.description_file, file.stat().st_mtime_ns) == (
        str(file.relative_to(tmp_path)), before,
    )  # fmt: skip


def test_a_mistake_in_a_recipe_s_network_names_the_key(recipe_of):
    wrong = {"layers": {"output": {"class": "output", "sise": 3}}}
    system = recipe_of({"tdnn": {**CE, "network": wrong}}).networks["tdnn"]
    told = r"nnet\.systems\.tdnn\.network: .*layer output: unknown key sise"
    with pytest.raises(UserError, match=told):
        system.check_description()


def test_an_encoder_that_is_not_there_is_told_before_the_run(recipe_of, tmp_path):
    folder = tmp_path / "encoder"
    layer = {"class": "pretrained", "folder": str(folder), "sample_rate": 16000}
    layers = {"encoder": layer, "output": {"class": "output"}}
    given = {**CE, "network": {"layers": layers}}
    system = recipe_of({"tdnn": given}).networks["tdnn"]
    with pytest.raises(UserError, match=r"encoder/config.json: no such file"):
        system.check_description()
    write_encoder(folder)
    system.check_description()
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"encoder/model.safetensors: no such file"):
        system.check_description()
