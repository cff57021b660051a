"""The configuration is closed, complete, and documented."""

import pytest

from latflow.configuration import SECTIONS, document, load_schema, resolve_section
from latflow.errors import UserError
from latflow.recipe import Recipe, name_of_import

SCHEMA = """
type: object
additionalProperties: false
required: [source]
properties:
  source:
    oneOf:
      - type: object
        additionalProperties: false
        required: [type, path]
        properties:
          type: {const: kaldi}
          path: {type: string, description: folder}
          speed: {type: number, minimum: 0.5, default: 1.0, description: tempo}
      - type: object
        additionalProperties: false
        required: [type]
        properties:
          type: {const: synthetic}
          hours: {type: number, default: 0.5, description: amount}
  systems:
    type: object
    default: {}
    additionalProperties:
      type: object
      additionalProperties: false
      properties:
        beam: {type: number, default: 10, description: beam}
"""


@pytest.fixture
def schemas(tmp_path):
    (tmp_path / "toy.yaml").write_text(SCHEMA)
    return tmp_path


def test_defaults_are_filled_in_the_chosen_branch(schemas):
    source = {"type": "kaldi", "path": "x"}
    found = resolve_section(schemas, "toy", {"source": source, "systems": {"a": {}}})
    assert found == {
        "source": {"type": "kaldi", "path": "x", "speed": 1.0},
        "systems": {"a": {"beam": 10}},
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": {"type": "synthetic", "hour": 1}}, "toy.source.hour.*mean hours"),
        ({"source": {"type": "kaldi"}}, "toy.source.*'path' is a required"),
        ({"source": {"type": "zip"}}, "toy.source.type.*'zip' is not one of"),
        ({"source": {"type": "kaldi", "path": 3}}, "toy.source.path.*not of type"),
        ({"source": {"type": "synthetic"}, "systems": {"a": {"beem": 1}}}, "a.beem"),
        ({"sourse": {}}, "toy.*sourse"),
    ],
)
def test_mistakes_name_the_path_of_the_key(schemas, values, message):
    with pytest.raises(UserError, match=message):
        resolve_section(schemas, "toy", values)


def objects(schema):
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for child in schema.values():
            yield from objects(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from objects(child)


@pytest.mark.parametrize("section", ["experiment", *SECTIONS])
def test_schemas_are_closed_and_described(repository, section):
    for schema in objects(load_schema(repository / "workflow/schemas", section)):
        assert "additionalProperties" in schema, schema["properties"].keys()
        assert schema["additionalProperties"] is not True
        for name, child in schema["properties"].items():
            assert "const" in child or child.get("description"), f"{section}: {name}"


def test_readme_of_the_configuration_is_in_sync(repository):
    text = (repository / "config/README.md").read_text()
    assert text == document(repository / "workflow/schemas")


def test_unknown_section_proposes_the_known_one(repository):
    with pytest.raises(UserError, match="featurs.*did you mean features"):
        Recipe.from_config(
            {"experiment": "x", "featurs": {}}, repository / "workflow/schemas"
        )


@pytest.fixture
def recipe_of(repository):
    """Makes a recipe of a configuration with a minimal corpus."""

    def make(**sections):
        kaldi = {"type": "kaldi", "path": "x"}
        corpus = {"train": kaldi, "dev": kaldi, "test": {"test": kaldi}}
        config = {"experiment": "x", "corpus": corpus, **sections}
        config["lang"] = {"lexicon": "lexicon.txt"}
        config.setdefault("lm", {"type": "uniform"})
        return Recipe.from_config(config, repository / "workflow/schemas")

    return make


SYSTEMS = {
    "mono": {"type": "mono"},
    "tri1": {"type": "deltas", "alignments": "mono"},
    "tri2": {"type": "deltas", "alignments": "tri1", "lexicon": "tri1"},
}


def test_a_system_may_take_its_lexicon_from_alignments(recipe_of):
    recipe = recipe_of(gmm={"systems": SYSTEMS})
    assert recipe.lang_folder("tri1") == "lang"
    assert recipe.lang_folder("tri2") == "lang_tri1"
    assert "lexicon" not in recipe.system_options("tri2")


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
    assert recipe.system_of("tri1.big") == "tri1"
    assert recipe.system_of("mono") == "mono"
    assert recipe.language_models == ["lm", "big", "last"]
    assert recipe.lm_options("big", "language")["order"] == 4
    assert recipe.lm_inputs("last", "results", "language") == ["a.arpa"]
    assert recipe.lm_inputs("big", "results", "l") == [
        "results/corpus/train/cuts.jsonl.gz"
    ]


@pytest.mark.parametrize(
    ("rescore", "message"),
    [
        ({"lm": {"lm": {"type": "uniform"}}}, "the first model has this name"),
        ({"big": {"lm": {"type": "uniform"}, "systems": ["x"]}}, "big.systems: no 'x'"),
        ({"big": {"lm": {"type": "unifrm"}}}, "'unifrm' is not one of"),
        ({"big": {"lm": {"type": "text"}}}, None),
    ],
)
def test_rescoring_that_cannot_be_is_refused(recipe_of, rescore, message):
    config = {"gmm": {"systems": SYSTEMS}, "decode": {"rescore": rescore}}
    if message is None:  # a text is asked for when the model is made
        recipe = recipe_of(**config)
        with pytest.raises(UserError, match=r"decode.rescore.big.lm.path is not set"):
            recipe.lm_options("big", "language")
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
