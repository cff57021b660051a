"""Every option of a recipe is set or named by a recipe, a document or a test."""

import re
from importlib import import_module
from pathlib import Path

import latflow
from latflow.options import Options

SOURCES = Path(latflow.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]
# Generated from the options themselves: says nothing of their use.
GENERATED = {"config/README.md", "config/recipe.schema.json"}
KINDS = {".md", ".py", ".yaml", ".j2"}


def options(kind=Options):
    """{name of an option: a class that has it}, of all subclasses in our modules."""
    found = {}
    for each in kind.__subclasses__():
        if re.fullmatch(r"latflow\..*options", each.__module__):
            for name, field in each.model_fields.items():
                found.setdefault(field.alias or name, each.__name__)
        found |= options(each)
    return found


def words():
    """Words of all recipes, documents and tests."""
    found = set()
    for folder in ("config", "docs", "tests"):
        for path in (REPOSITORY / folder).rglob("*"):
            name = path.relative_to(REPOSITORY).as_posix()
            if path.suffix in KINDS and name not in GENERATED:
                found.update(re.findall(r"\w+", path.read_text()))
    return found


def test_every_option_is_used_or_described():
    for path in SOURCES.rglob("*options.py"):
        import_module(".".join(path.relative_to(SOURCES.parent).with_suffix("").parts))
    known, used = options(), words()
    assert len(known) > 400
    assert {name: of for name, of in known.items() if name not in used} == {}
