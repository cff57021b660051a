"""The list of kernels that are compiled ahead: true, written and read alike, used."""

import ast
import importlib
import inspect
import json
import sys

import numpy as np
import pytest

from latflow import kernels
from latflow.errors import UserError

# Kernels that are compiled when they are called, and why.
_RARE = "an import from Vosk, once for a model, takes minutes anyway"
EXEMPT = {
    ("latflow.fst.ngram", "_fill"): _RARE,
    ("latflow.fst.ngram", "_tree"): _RARE,
    ("latflow.lattice.path_sums", "_log_sums"): "of lattices with extreme scores",
    ("latflow.lattice.path_sums", "_log_sums_to_end"): "no stage asks for `beta`",
}

SOURCE = """
from typing import NamedTuple
import numpy as np
from latflow.jit import njit

class Pair(NamedTuple):
    first: np.ndarray
    count: int

@njit(cache=True)
def total(pair, arcs, names, shift=0):
    return pair.first.sum() + arcs["weight"].sum() + pair.count + names[0][0] + shift
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one kernel that has been called, in the place of latflow."""
    folder = tmp_path / "kernel_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "sums.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernels, "ROOT", folder)
    monkeypatch.setattr(kernels, "_SIGNATURES", tmp_path / "list.json")
    kernels._listed.cache_clear()
    yield importlib.import_module("kernel_package.sums")
    kernels._listed.cache_clear()
    for name in ("kernel_package", "kernel_package.sums"):
        del sys.modules[name]


def call(module):
    arcs = np.zeros(2, dtype=[("label", np.int32), ("weight", np.float32)])
    fixed = np.ones((1, 2), np.int64)
    fixed.flags.writeable = False
    pair = module.Pair(np.ones(3)[::2], 4)
    return module.total(pair, arcs, (fixed[0], fixed))


def test_a_list_from_the_caches_compiles_to_the_same_signatures(package):
    assert call(package) == 7
    (signature,) = package.total.signatures
    assert kernels.write_signatures(kernels._SIGNATURES) == 1
    ((function, forms),) = kernels._listed()["kernel_package.sums"]
    assert function == "total"
    assert tuple(map(kernels._type_of, forms)) == signature


def test_what_is_compiled_ahead_is_not_compiled_again(package):
    call(package)
    kernels.write_signatures(kernels._SIGNATURES)
    package.total.overloads.clear()
    assert kernels._compile_modules(["kernel_package.sums"]) == 0
    assert len(package.total.signatures) == 1
    call(package)
    assert len(package.total.signatures) == 1


def test_what_is_compiled_is_loaded_from_its_cache(package):
    call(package)
    for modules, loaded in (("some.other",), 0), ((package.__name__,), 1):
        package.total.overloads.clear()
        kernels.load_kernels(modules)
        assert len(package.total.overloads) == loaded
    assert sum(package.total.stats.cache_hits.values()) == 1


def test_what_has_changed_is_not_compiled_to_be_loaded(package):
    call(package)
    with open(package.__file__, "a") as source:
        source.write("# edited\n")
    importlib.reload(package)
    kernels.load_kernels((package.__name__,))
    assert len(package.total.overloads) == 0


def test_a_kernel_that_has_changed_is_counted(package):
    rows = [["gone", [0]], ["total", [0]]]
    listed = {"types": ["int64"], "kernels": {package.__name__: rows}}
    kernels._SIGNATURES.write_text(json.dumps(listed))
    assert kernels._compile_modules([package.__name__]) == len(rows)


def test_without_caches_there_is_nothing_to_list(package, tmp_path):
    with pytest.raises(UserError, match="no kernel has been compiled"):
        kernels.write_signatures(tmp_path / "empty.json")


def test_the_list_names_kernels_and_types_that_are_there():
    listed = json.loads(kernels._SIGNATURES.read_text())
    for form in listed["types"]:
        assert json.loads(json.dumps(kernels._form_of(kernels._type_of(form)))) == form
    for module, rows in listed["kernels"].items():
        for function, _ in rows:
            # renamed: rename it in kernel_signatures.json, too
            assert hasattr(
                getattr(importlib.import_module(module), function), "compile"
            )


def _entries() -> set[tuple[str, str]]:
    """Return (module, function) of the cached kernels that no other kernel calls."""
    found: dict[tuple[str, str], ast.FunctionDef] = {}
    for path in kernels.ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "njit" not in text:
            continue
        module = ".".join(path.relative_to(kernels.ROOT.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "njit" in decorators and "cache=True" in decorators:
                    found[module, node.name] = node
    calls = (node for body in found.values() for node in ast.walk(body))
    called = {
        ast.unparse(call.func).rpartition(".")[2]
        for call in calls
        if isinstance(call, ast.Call)
    }
    return {key for key in found if key[1] not in called}


def test_every_kernel_that_the_interpreter_calls_is_listed_or_exempt():
    listed = {
        (module, function)
        for module, rows in kernels._listed().items()
        for function, _ in rows
    }
    entries = _entries()
    assert len(entries) > 100  # they are found
    assert entries - listed == set(EXEMPT)


def test_listed_kernels_take_as_many_arguments_as_are_listed():
    for module, listed in kernels._listed().items():
        for name, forms in listed:
            kernel = getattr(importlib.import_module(module), name)
            taken = inspect.signature(kernel.py_func).parameters
            assert len(forms) == len(taken), (
                f"{module}.{name}: compile-kernels --update"
            )
