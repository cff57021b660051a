"""Digests change with the code that a stage reaches, and with nothing else."""

import ast
import re
import shutil
from pathlib import Path

import pytest
from fixtures.rules import read_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.provenance import PACKAGE_ROOT
from latflow.workflow.code_digest import Sources

STAGE = "latflow.room.stage.run"
FILES = {
    "__init__.py": "VERSION = 21\n",
    "room/__init__.py": '"""A room."""\n',
    "room/stage.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import math
        from latflow.room import tools
        from latflow.room.kernel import STEP, f as fast
        if TYPE_CHECKING:
            from latflow.other import Other
        LIMIT = 7
        UNUSED = 8
        def run(x: Options, other: Other) -> float:
            '''Run.'''
            from latflow.late import late
            return tools.half(fast(x)) + math.log(LIMIT) + late() + start()
        class Options:
            '''Options.'''
            size: int = Field(1, description="the size")
            '''Says more.'''
        def start():
            return [f"{__name__}:_rank", "latflow.program", "latflow.log"]
        def _rank():
            return 1
        """,
    "room/kernel.py": """
        STEP = 3
        def f(x):
            return STEP * x  # faster
        def g(x):
            return 4 * x
        """,
    "room/tools.py": """
        from lhotse import register_extractor
        from latflow.deep import quarter as whole
        def half(x):
            return whole(x) / 2
        @register_extractor
        class Extractor:
            rate = 16
        def unused():
            return 18
        """,
    "room/page.css": "a {}",
    "deep.py": "from latflow.deeper import quarter\n",
    "deeper.py": "def quarter(x):\n    return x / 5\ndef unused(): return 12\n",
    "late.py": "def late():\n    return 6\n",
    "program.py": "def main():\n    return 9\nif __name__ == '__main__':\n    main()\n",
    "other.py": "class Other:\n    x = 10\n",
}


def write(root, files):
    for name, text in files.items():
        lines = text.split("\n        ") if text.startswith("\n") else [text]
        path = root / "latflow" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    return Sources(root / "latflow").digest(STAGE)


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("__init__.py", "21", "22", False),
        ("room/kernel.py", "STEP = 3", "STEP = 5", True),
        ("room/kernel.py", "STEP * x", "STEP * STEP * x", True),
        ("room/kernel.py", "# faster", "# really faster", False),
        ("room/kernel.py", "4 * x", "5 * x", False),
        ("room/stage.py", "'''Run.'''", "'''Run it.'''", False),
        ("room/stage.py", "the size", "its size", False),
        ("room/stage.py", "'''Says more.'''", "'''Says less.'''", False),
        ("room/stage.py", "Field(1,", "Field(2,", True),
        ("room/stage.py", "LIMIT = 7", "LIMIT = 8", True),
        ("room/stage.py", "UNUSED = 8", "UNUSED = 9", False),
        ("room/stage.py", "import math", "import cmath as math", True),
        ("room/stage.py", "import math", "\n\nimport math", False),
        ("room/stage.py", "return 1", "return 2", True),
        ("room/stage.py", "f as fast", "g as fast", True),
        ("room/tools.py", "x) / 2", "x) / 3", True),
        ("room/tools.py", "rate = 16", "rate = 17", True),
        ("room/tools.py", "return 18", "return 19", False),
        ("room/page.css", "a {}", "b {}", True),
        ("deeper.py", "x / 5", "x / 6", True),
        ("deeper.py", "return 12", "return 13", False),
        ("late.py", "return 6", "return 7", True),
        ("program.py", "return 9", "return 0", True),
        ("program.py", "main()\n", "main(1)\n", True),
        ("other.py", "x = 10", "x = 11", False),
    ],
)
def test_digest_changes_with_what_is_reached(tmp_path, file, old, new, changes):
    before = write(tmp_path, FILES)
    assert old in FILES[file]
    after = write(tmp_path, {file: FILES[file].replace(old, new)})
    assert (after != before) == changes


def test_compiled_files_change_no_digest(tmp_path):
    """Numba's half-written files among them: they vanish while they are looked at."""
    before = write(tmp_path, FILES)
    after = write(tmp_path, {"room/__pycache__/kernel.f.nbi.tmp.0a1b": "compiled"})
    assert after == before


def test_unknown_names_are_refused(tmp_path):
    write(tmp_path, FILES)
    sources = Sources(tmp_path / "latflow")
    for name in ("latflow.nowhere", "latflow.room.stage.nothing", "numpy.zeros"):
        with pytest.raises(LookupError, match=name):
            sources.digest(name)


def test_module_stands_for_all_that_is_in_it(tmp_path):
    write(tmp_path, FILES)
    sources = Sources(tmp_path / "latflow")
    assert "latflow.deeper.unused" in sources.reached("latflow.deeper")
    assert "latflow.room.kernel.g" in sources.reached("latflow.room")


@pytest.fixture(scope="module")
def stages(repository):
    """Stages of all rules."""
    return sorted({rule.stage for rule in read_rules(repository).values()})


@pytest.fixture
def copy(tmp_path):
    """A copy of the package that may be changed."""
    ignored = shutil.ignore_patterns("__pycache__", "_workflow")
    return Path(shutil.copytree(PACKAGE_ROOT, tmp_path / "latflow", ignore=ignored))


@pytest.mark.slow
def test_comments_and_docstrings_change_no_digest(stages, copy):
    before = Sources(copy)
    digests = {stage: before.digest(stage) for stage in stages}
    for path in copy.rglob("*.py"):
        text = path.read_text()
        text = re.sub(r'^( *)"""(?=\w)', r'\1"""It has been said: ', text, flags=re.M)
        path.write_text(f"{text}\n# a comment\n")
    after = Sources(copy)
    assert {stage: after.digest(stage) for stage in stages} == digests


def test_search_is_reached_by_what_decodes_and_no_other_training(stages):
    kernels = {
        f"latflow.decode.{path.stem}."
        for path in (PACKAGE_ROOT / "decode").glob("*.py")
        if "njit" in path.read_text()
    }
    sources = Sources(PACKAGE_ROOT)
    assert kernels
    found = {
        stage
        for stage in stages
        if any(name.startswith(tuple(kernels)) for name in sources.reached(stage))
    }
    trainings = {s for s in stages if re.search(r"\.(train|align|adapt)_\w+$", s)}
    # A package holds a search with its model.
    trainings.remove("latflow.serving.aligning.align_package")
    # It searches for lattices, though in training graphs.
    trainings.remove("latflow.decode.pronunciations.align_lattices")
    assert found & trainings == {"latflow.training.sequence.train_sequence"}
    assert any(stage.startswith("latflow.decode.") for stage in found)


class Numbers(ast.NodeTransformer):
    """Changes one number of a tree."""

    def __init__(self, which):
        self.left = which

    def visit_Constant(self, node):
        if type(node.value) in {int, float}:
            self.left -= 1
            if self.left == -1:
                return ast.copy_location(ast.Constant(node.value + 1), node)
        return node


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_any_number_in_what_is_reached_matters(stages, tmp_path_factory, data):
    stage = data.draw(st.sampled_from(stages))
    name = data.draw(st.sampled_from(sorted(Sources(PACKAGE_ROOT).reached(stage))))
    path = PACKAGE_ROOT.joinpath(*name.split(".")[1:-1]).with_suffix(".py")
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([])
    last = name.split(".")[-1]
    inside = [s for s in tree.body if getattr(s, "name", None) == last]
    numbers = [n for s in inside for n in ast.walk(s) if is_number(n)]
    if not numbers:
        return
    copy = tmp_path_factory.mktemp("copy") / "latflow"
    shutil.copytree(PACKAGE_ROOT, copy, ignore=shutil.ignore_patterns("_workflow"))
    before = Sources(copy).digest(stage)
    Numbers(data.draw(st.integers(0, len(numbers) - 1))).visit(inside[0])
    copy.joinpath(path.relative_to(PACKAGE_ROOT)).write_text(ast.unparse(tree))
    assert Sources(copy).digest(stage) != before


def is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) in {int, float}
