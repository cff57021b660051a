"""Which systems of a recipe can be packaged, and of which files."""

from pathlib import Path

import pytest
import yaml

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.workflow.doctor import examine_experiment
from latflow.workflow.packages import PackagePlan
from latflow.workflow.recipe import Recipe


def config(**package):
    """A recipe with a system of each kind."""
    data = {"type": "kaldi", "path": "data/any"}
    network = {"type": "ce", "network": "net.yaml", "alignments": "mono"}
    network["data"] = {"normalization": "global"}
    plain = {"type": "fbank", "cmvn": {"type": "none"}}
    return {
        "experiment": "mine",
        "corpus": {"train": data, "dev": data, "test": {"test": data}},
        "lang": {"lexicon": "lexicon.txt"},
        "lm": {"type": "uniform"},
        "gmm": {
            "systems": {
                "mono": {"type": "mono"},
                "sat": {"type": "sat", "alignments": "mono"},
            }
        },
        "nnet": {
            "features": {
                "plain": plain,
                "by_speaker": {**plain, "cmvn": {"type": "speaker"}},
                "centred": {**plain, "cmvn": {"type": "sliding"}},
                "causal": {**plain, "cmvn": {"type": "sliding", "center": False}},
                "online": {**plain, "cmvn": {"type": "online"}},
                "by_all": {**plain, "sample_rate": 8000, "cmvn": {"type": "global"}},
            },
            "ivectors": {"vectors": {"features": "plain"}},
            "pasted": {"both": {"features": ["plain", "sat"]}},
            "systems": {
                "plain_net": {**network, "features": "plain"},
                "mpe": {
                    "type": "sequence", "parent": "plain_net",
                    "criterion": {"type": "mpe"},
                },
                "speaker_net": {**network, "features": "by_speaker"},
                "centred_net": {**network, "features": "centred"},
                "causal_net": {**network, "features": "causal"},
                "global_net": {**network, "features": "by_all"},
                "online_net": {**network, "features": "online"},
                "vector_net": {**network, "features": "vectors"},
                "sat_net": {**network, "features": "sat"},
                "both_net": {**network, "features": "both"},
                "mean_net": {
                    **network, "features": "plain", "data": {"normalization": "mean"},
                },
            },
        },
        "decode": {
            "rescore": {"big": {"lm": {"type": "uniform"}, "systems": ["mpe"]}}
        },
        "package": package,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("none", "package.systems: no system 'none' - choose from: mono, sat, plain"),
        ("sat_net", "sat_net reads features of the GMM system sat"),
        ("both_net", "both_net reads features of several streams side by side (both)"),
        ("mono", "mono cannot be streamed: cmvn of type speaker"),
        ("speaker_net", "cmvn of type speaker"),
        ("centred_net", "cmvn of type sliding normalizes features with frames to come"),
        ("mean_net", "normalized by utterance"),
    ],
)
def test_what_cannot_be_packaged_is_refused_when_the_recipe_is_read(system, said):
    with pytest.raises(UserError) as caught:
        Recipe.from_config(config(systems=[system]))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    if "normaliz" in said:
        Recipe.from_config(config(systems=[system], offline=True))


def test_a_package_has_the_files_of_its_system():
    systems = ["plain_net", "mpe", "causal_net", "global_net", "online_net"]
    systems.append("vector_net")
    recipe = Recipe.from_config(config(systems=systems))
    found = {name: PackagePlan(recipe, name).files for name in systems}
    assert found["mpe"] == {
        "model": "results/mine/nnet/mpe/final.mdl",
        "graph": "results/mine/graph/mono/HCLG.fst",
        "lang": "results/mine/lang/words.txt",
        "scales": "results/mine/tune/mpe/scales.json",
        "recordings": "results/mine/corpus/train/cuts.jsonl.gz",
        "frames": [],
        "ivectors": [],
        "grammar": [],
        "arpa": [],
        "g2p": [],
        "licence": [],
        "parent_scales": "results/mine/tune/plain_net/scales.json",
        "scores": "results/mine/score/mpe/dev/hyp.ctm",
    }
    assert (
        found["global_net"]["frames"]
        == "results/mine/streams/by_all/frames/train/meta.json"
    )
    assert found["global_net"]["recordings"] == []
    assert (
        found["online_net"]["frames"]
        == "results/mine/streams/online/frames/train/meta.json"
    )
    assert (
        found["vector_net"]["ivectors"] == "results/mine/ivectors/vectors/extractor.npz"
    )
    options = {name: PackagePlan(recipe, name).package_options for name in systems}
    assert options["mpe"]["kind"] == "sequence"
    assert options["vector_net"]["front_end"]["type"] == "fbank"
    assert options["causal_net"]["cmvn"]["center"] is False


def test_a_system_that_adapts_to_speakers_gives_a_package_that_aligns():
    given = config(systems=["sat", "mpe"], rescore="big")
    plan = PackagePlan(Recipe.from_config(given), "sat")
    files = plan.files
    assert {k for k, v in files.items() if v} == {"model", "lang", "recordings"}
    assert files["model"] == "results/mine/gmm/sat/final.mdl"
    assert (plan.package_options["kind"], plan.package_options["rescoring"]) == (
        "gmm",
        None,
    )
    calls = {"system": "sat", "path": "x"}
    said = "sat adapts to speakers in two passes over their speech: its package aligns"
    with pytest.raises(UserError, match=rf"transcribe\.calls\.system: {said}"):
        Recipe.from_config({**given, "transcribe": {"calls": calls}})
    with pytest.raises(UserError, match=rf"capacity\.systems: {said}"):
        Recipe.from_config({**given, "capacity": {"systems": ["sat"]}})


def test_a_package_that_aligns_needs_no_dev_set():
    given = config(systems=["sat"])
    data = given["corpus"]["train"]
    alone = {"corpus": {"train": data, "dev": {"type": "none"}}}
    del given["nnet"], given["decode"]
    assert Recipe.from_config({**given, **alone}).options.package.systems == ("sat",)
    given["package"] = {"systems": ["mono"], "offline": True}
    with pytest.raises(UserError, match=r"package\.systems: needs a dev set"):
        Recipe.from_config({**given, **alone})


def test_rescoring_has_scales_of_its_own():
    recipe = Recipe.from_config(config(systems=["mpe"], rescore="big"))
    plan = PackagePlan(recipe, "mpe")
    assert plan.files["scales"] == "results/mine/tune/mpe.big/scales.json"
    assert plan.files["arpa"] == "results/mine/lm/big.arpa"
    assert plan.files["scores"] == "results/mine/score/mpe.big/dev/hyp.ctm"
    assert plan.package_options["rescoring"]["lm"] == "big"
    with pytest.raises(UserError, match="lattices of plain_net are not rescored"):
        Recipe.from_config(config(systems=["plain_net"], rescore="big"))


def test_packages_that_words_can_be_added_to_have_a_g2p_model():
    def planned(system="mpe", lang=None, **package):
        given = config(systems=[system], **package)
        given["lang"] = {**given["lang"], **(lang or {})}
        if "rescore" not in package:
            given["decode"]["composition"] = "lookahead"
        return PackagePlan(Recipe.from_config(given), system).files["g2p"]

    assert planned(g2p=True) == "results/mine/g2p/model.bin"
    assert planned(g2p=True, lang={"g2p": {"model": "my.g2p"}}) == "my.g2p"
    assert planned(g2p="other.g2p") == "other.g2p"
    assert planned(g2p=False) == []
    assert planned("sat", g2p=True) == []  # it aligns
    with pytest.raises(UserError, match=r"package\.g2p: mpe .*: graphs are whole"):
        planned(g2p=True, rescore="big")
    with pytest.raises(UserError, match=r"package\.g2p: mono .* that follow"):
        planned("mono", g2p=True, offline=True)


def test_words_are_added_where_graphs_are_composed():
    given = config()
    for composition in ("static", "lookahead"):
        given["decode"]["composition"] = composition
        assert Recipe.from_config(given).adds_words == (composition == "lookahead")


def test_a_neural_language_model_cannot_be_packaged():
    recipe = config(systems=["mpe"], rescore="lstm")
    lm = {"type": "neural", "path": "text.txt"}
    recipe["decode"]["rescore"]["lstm"] = {"lm": lm, "systems": ["mpe"]}
    with pytest.raises(UserError, match="lstm is a neural language model, which"):
        Recipe.from_config(recipe)


def test_a_rule_of_endpoints_set_in_part_keeps_the_rest_of_its_defaults():
    endpoint = {"rule1": {"min_trailing_silence": 3.0}}
    recipe = Recipe.from_config(config(systems=["mpe"], endpoint=endpoint))
    rule = recipe.options.package.endpoint.rule1
    assert (rule.min_trailing_silence, rule.must_contain_nonsilence) == (3.0, False)


def test_networks_that_know_one_volume_are_found():
    given = config()
    systems = given["nnet"]["systems"]
    corpus = given["corpus"]
    corpus["perturbed"] = {"varied": {"of": "train"}, "sped": {"volume": None}}
    for name in ("varied", "sped"):
        systems[name] = {**systems["plain_net"], "training_set": name}
    systems["tuned"] = {**systems["mpe"], "parent": "varied"}
    recipe = Recipe.from_config(given)
    names = {n for n, s in recipe.systems.items() if s.is_network} - {
        *("sat_net", "both_net"),
    }
    found = {n for n in names if PackagePlan(recipe, n).knows_one_volume}
    level_free = {"speaker_net", "centred_net", "causal_net", "mean_net"}
    assert names - found == level_free | {"varied", "tuned"}
    assert {"plain_net", "mpe", "sped", "online_net", "vector_net"} <= found


def test_the_doctor_warns_of_a_package_that_knows_one_volume():
    def told(name):
        recipe = Recipe.from_config(config(systems=[name]))
        return [str(one) for one in examine_experiment(recipe) if "volume" in str(one)]

    (warning,) = told("plain_net")
    assert warning.startswith("warning: nnet.systems.plain_net: ")
    assert told("causal_net") == []


def test_packaging_warns_of_a_network_that_knows_one_volume(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
    for name, warns in (("plain_net", True), ("causal_net", False)):
        assert main(["package", name, "mine.yaml"]) == 1
        told = capsys.readouterr().err
        assert ("follow the volume of speech" in told) == warns
        assert f"{name} lacks results/mine" in told


def test_the_demo_packages_its_network(repository):
    text = (repository / "config/config.yaml").read_text()
    recipe = Recipe.from_config(yaml.safe_load(text))
    assert recipe.options.package.systems == ("chain",)


def test_recordings_are_transcribed_by_packaged_systems():
    given = {**config(systems=["plain_net"]), "transcribe": {"calls": {"path": "x"}}}
    given["transcribe"]["calls"]["system"] = "plain_net"
    recipe = Recipe.from_config(given)
    assert recipe.options.transcribe["calls"].formats == ("txt",)
    given["transcribe"]["calls"]["system"] = "mpe"
    with pytest.raises(UserError, match=r"transcribe\.calls\.system: no 'mpe'"):
        Recipe.from_config(given)
    given["transcribe"]["calls"] = {"system": "plain_net", "set": "tests"}
    with pytest.raises(UserError, match=r"transcribe\.calls\.set: no 'tests'"):
        Recipe.from_config(given)


def test_capacity_is_measured_of_packages_that_can_be_streamed():
    def recipe(**capacity):
        package = {"systems": ["plain_net", "speaker_net"], "offline": True}
        return Recipe.from_config({**config(**package), "capacity": capacity})

    assert recipe().options.capacity.systems == ()
    assert recipe(systems=["plain_net"]).capacity_set == "test"
    assert recipe(systems=["plain_net"], test_set="dev").capacity_set == "dev"
    with pytest.raises(UserError, match="no package of 'mpe'"):
        recipe(systems=["mpe"])
    with pytest.raises(UserError, match="streamed"):
        recipe(systems=["speaker_net"])
    with pytest.raises(UserError, match="no set 'other'"):
        recipe(systems=["plain_net"], test_set="other")
