"""The configuration is closed, complete, and documented."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import Field

from latflow.corpus.options import CorpusOptions, has_transcripts
from latflow.errors import UserError
from latflow.lang.options import LmRunOptions
from latflow.options import SWITCH, Options, read_options
from latflow.training.options import TrainingOptions
from latflow.workflow.documentation import document
from latflow.workflow.experiment import json_schema
from latflow.workflow.recipe import Recipe
from latflow.workflow.systems import name_of_import


class Kaldi(Options):
    type: Literal["kaldi"]
    path: str
    speed: float = Field(default=1.0, ge=0.5)


class Synthetic(Options):
    type: Literal["synthetic"]
    hours: float = 0.5


class System(Options):
    beam: float = 10.0


class Toy(Options):
    source: Annotated[Kaldi | Synthetic, Field(discriminator="type")]
    systems: dict[str, System] = Field(default_factory=dict)
    sizes: tuple[int, ...] = (1,)


def test_defaults_are_filled_in_the_chosen_branch():
    source = {"type": "kaldi", "path": "x"}
    values = {"source": source, "systems": {"kaldi": {}}, "sizes": None}
    found = read_options(Toy, values, "toy")
    assert found.source == Kaldi(type="kaldi", path="x", speed=1.0)
    assert found.systems == {"kaldi": System(beam=10)}
    assert found.sizes == (1,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": {"type": "synthetic", "hour": 1}}, "toy.source.hour .*mean hours"),
        ({"source": {"type": "kaldi"}}, "toy.source.path is missing"),
        ({"source": {"type": "zip"}}, "toy.source.type: 'zip' is not one of"),
        ({"source": {"path": "x"}}, "toy.source.type is missing"),
        ({"source": {"typ": "kaldi"}}, "toy.source.typ - did you mean type"),
        ({"source": {"type": "kaldi", "path": 3}}, "toy.source.path: .*string, not 3"),
        ({"source": {"type": "kaldi", "path": "x", "speed": 0.1}}, r"speed: .*0\.5"),
        (
            {"source": {"type": "kaldi", "path": "x", "speed": "2e-1"}},
            "write 2.0e-01",
        ),
        ({"source": {"type": "synthetic"}, "systems": {"a": {"beem": 1}}}, "a.beem"),
        ({"source": {"type": "synthetic"}, "sizes": [1, "2"]}, r"toy.sizes.1: .*\"2\""),
        ({"sourse": {}}, "toy.*sourse"),
        ([], "configuration toy: "),
    ],
)
def test_mistakes_name_the_path_of_the_key(values, message):
    with pytest.raises(UserError, match=message):
        read_options(Toy, values, "toy")


class Switches(Options):
    compile: Annotated[Literal["auto", "off"], SWITCH] = "auto"
    endpoint: System | Annotated[Literal["model", "off"], SWITCH] = "model"


def test_yaml_has_booleans_for_on_and_off():
    found = read_options(Switches, {"compile": False, "endpoint": False}, "toy")
    assert found == Switches(compile="off", endpoint="off")
    assert read_options(TrainingOptions, {"compile": False}, "toy").compile == "off"
    with pytest.raises(UserError, match="compile: should be 'auto' or 'off'"):
        read_options(Switches, {"compile": True}, "toy")


def objects(schema):
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for child in schema.values():
            yield from objects(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from objects(child)


def test_options_are_closed_and_described():
    for schema in objects(json_schema()):
        assert schema["additionalProperties"] is False, schema["title"]
        for name, child in schema["properties"].items():
            told = {"const", "description", "$ref"} & child.keys()
            assert told, f"{schema['title']}: {name}"


def test_readme_of_the_configuration_is_in_sync(repository):
    assert (repository / "config/README.md").read_text() == document()


def test_schema_for_editors_is_in_sync(repository):
    text = (repository / "config/recipe.schema.json").read_text()
    assert json.loads(text) == json_schema()


def test_unknown_section_proposes_the_known_one():
    with pytest.raises(UserError, match="featurs.*did you mean features"):
        Recipe.from_config({"experiment": "x", "featurs": {}})


@pytest.fixture
def recipe_of(repository):
    """Makes a recipe of a configuration with a minimal corpus."""

    def make(**sections):
        kaldi = {"type": "kaldi", "path": "x"}
        corpus = {"train": kaldi, "dev": kaldi, "test": {"test": kaldi}}
        config = {"experiment": "x", "corpus": corpus, **sections}
        config["lang"] = {"lexicon": "lexicon.txt"}
        config.setdefault("lm", {"type": "uniform"})
        return Recipe.from_config(config)

    return make


SYSTEMS = {
    "mono": {"type": "mono"},
    "tri1": {"type": "deltas", "alignments": "mono"},
    "tri2": {"type": "deltas", "alignments": "tri1", "lexicon": "tri1"},
}


def test_a_system_may_take_its_lexicon_from_alignments(recipe_of):
    recipe = recipe_of(gmm={"systems": SYSTEMS})
    assert recipe.systems["tri1"].lang_folder.endswith("/lang")
    assert recipe.systems["tri2"].lang_folder.endswith("/lang_tri1")
    assert "lexicon" not in recipe.gmms["tri2"].training_options


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"example_system": "tri9"}, "example_system: no 'tri9' - choose from: mono"),
        ({"example_set": "tset"}, "example_set: no 'tset' - choose from: dev"),
        ({"baselines": {"tri9": "mono"}}, "baselines: no 'tri9'"),
        ({"baselines": {"tri2": "tri2"}}, "baselines.tri2: no 'tri2'"),
    ],
)
def test_a_report_on_what_is_not_there_is_refused(recipe_of, report, message):
    with pytest.raises(UserError, match=f"configuration report.{message}"):
        recipe_of(gmm={"systems": SYSTEMS}, report=report)


@pytest.mark.parametrize("key", ["alignments", "lexicon"])
def test_a_system_cannot_build_on_a_later_one(recipe_of, key):
    systems = {**SYSTEMS, "tri1": {**SYSTEMS["tri1"], key: "tri2"}}
    with pytest.raises(UserError, match=rf"gmm.systems.tri1.{key}: no system 'tri2'"):
        recipe_of(gmm={"systems": systems})


def test_rescoring_adds_decodings(recipe_of):
    transcripts = {"type": "transcripts", "order": 4}
    recipe = recipe_of(
        gmm={"systems": SYSTEMS},
        decode={
            "rescore": {
                "big": {"lm": transcripts, "systems": ["mono", "tri1"]},
                "last": {"lm": {"type": "arpa", "path": "a.arpa"}},
            }
        },
    )
    assert recipe.decodings == [*SYSTEMS, "mono.big", "tri1.big", "tri2.last"]
    assert recipe.system_of("tri1.big").name == "tri1"
    assert recipe.system_of("mono").name == "mono"
    assert list(recipe.language.models) == ["lm", "big", "last"]
    assert recipe.language.models["big"].options.order == 4
    assert recipe.language.models["last"].inputs == ["a.arpa"]
    assert recipe.language.models["big"].inputs == [
        f"{recipe.results}/corpus/train/cuts.jsonl.gz"
    ]


NEURAL = {"type": "neural", "size": 64}


def test_a_neural_model_rescores_and_takes_the_text_of_the_first(recipe_of):
    own = {**NEURAL, "path": "own.txt", "weight": 0.25, "n_best": 7}
    named = {
        "gmm": {"systems": SYSTEMS},
        "decode": {"rescore": {"lstm": {"lm": NEURAL}, "own": {"lm": own}}},
    }
    recipe = recipe_of(**named, lm={"type": "text", "path": "first.txt"}, seed=3)
    assert recipe.decodings == [*SYSTEMS, "tri2.lstm", "tri2.own"]
    assert (recipe.language.neural_models, recipe.language.ngram_models) == (
        ["lstm", "own"],
        ["lm"],
    )
    assert recipe.language.models["lstm"].inputs == ["first.txt"]
    assert recipe.language.models["own"].inputs == ["own.txt"]
    run = LmRunOptions.model_validate(recipe.language.models["lstm"].training_options)
    assert (run.size, run.seed, run.device) == (64, 3, "auto")
    assert (
        recipe.language.models["own"].training_options
        == recipe.language.models["lstm"].training_options
    )
    own_options = recipe.language.models["own"].neural
    assert (own_options.weight, own_options.n_best) == (0.25, 7)
    recipe = recipe_of(**named, lm={"type": "transcripts"})
    assert recipe.language.models["lstm"].inputs == [
        f"{recipe.results}/corpus/train/cuts.jsonl.gz"
    ]


@pytest.mark.parametrize(
    ("rescore", "message"),
    [
        ({"lm": {"lm": {"type": "uniform"}}}, "the first model has this name"),
        ({"big": {"lm": {"type": "uniform"}, "systems": ["x"]}}, "big.systems: no 'x'"),
        ({"big": {"lm": {"type": "unifrm"}}}, "'unifrm' is not one of"),
        ({"big": {"lm": {"type": "text"}}}, None),
        ({"big": {"lm": NEURAL}}, "lm.path is not set, and the first .* no text"),
        ({"big": {"lm": {**NEURAL, "weight": 1.0}}}, "big.lm.weight"),
        ({"big": {"lm": {**NEURAL, "n_best": 0}}}, "big.lm.n_best"),
        ({"big": {"lm": {"type": "text", "n_best": 5}}}, "key .*big.lm.n_best"),
        ({"big": {"lm": {"type": "text", "weight": 0.5}}}, "key .*big.lm.weight"),
    ],
)
def test_rescoring_that_cannot_be_is_refused(recipe_of, rescore, message):
    config = {"gmm": {"systems": SYSTEMS}, "decode": {"rescore": rescore}}
    if message is None:  # a text is asked for when the model is made
        recipe = recipe_of(**config)
        with pytest.raises(UserError, match=r"decode.rescore.big.lm.path is not set"):
            _ = recipe.language.models["big"].options
        return
    with pytest.raises(UserError, match=message):
        recipe_of(**config)


def test_an_imported_system_comes_first_and_alone(recipe_of, tmp_path):
    folder = tmp_path / "Tri6B-x"
    folder.mkdir()
    gmm = {"import": str(folder), "lang": "data/lang"}
    recipe = recipe_of(gmm=gmm)
    assert list(recipe.systems) == ["tri6b_x"]
    assert recipe.plain_systems == ["tri6b_x"]
    (folder / "final.alimdl").touch()
    more = {"tri7": {"type": "deltas", "alignments": "tri6b_x"}}
    recipe = recipe_of(gmm={**gmm, "systems": more})
    assert list(recipe.systems) == ["tri6b_x", "tri7"]
    assert recipe.adapted_systems == ["tri6b_x"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("exp/tri3b", "tri3b"),
        ("exp/Tri3.B-x/", "tri3_b_x"),
        ("exp/tri3b/graph/..", "tri3b"),
        ("exp/_x", "x"),
        ("exp/-", "imported"),
    ],
)
def test_an_imported_system_is_named_after_its_folder(folder, name):
    assert name_of_import(folder) == name


@pytest.mark.parametrize(
    ("gmm", "message"),
    [
        ({"import": "exp/tri1"}, "`import` and `lang` go together"),
        ({"lang": "data/lang"}, "`import` and `lang` go together"),
        ({"systems": {}}, "gmm.systems is empty"),
        (
            {"import": "e/mono", "lang": "l", "systems": {"mono": {"type": "mono"}}},
            "the imported system has this name",
        ),
    ],
)
def test_an_import_that_cannot_be_is_refused(recipe_of, gmm, message):
    with pytest.raises(UserError, match=message):
        recipe_of(gmm=gmm)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_only_test_sets_do_without_transcripts(split):
    given = {"type": "kaldi", "path": "x"}
    corpus = {"train": given, "dev": given, "test": {"test": given}}
    options = read_options(CorpusOptions, corpus, "corpus")
    corpus["test"] = {"test": {**given, "transcripts": False}}
    options = read_options(CorpusOptions, corpus, "corpus")
    assert [has_transcripts(s) for s in (options.dev, options.test["test"])] == [
        True,
        False,
    ]
    corpus[split] = {**given, "transcripts": False}
    with pytest.raises(UserError, match=rf"{split}\.transcripts: only test sets"):
        read_options(CorpusOptions, corpus, "corpus")
