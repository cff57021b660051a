"""The configuration is closed, complete, and documented."""

import pytest

from latflow.configuration import SECTIONS, document, load_schema, resolve_section
from latflow.errors import UserError
from latflow.recipe import Recipe

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
