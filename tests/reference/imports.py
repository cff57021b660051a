"""Packages that code imports: at the import of its modules, and within functions."""

import ast
import re
import sys
from functools import cache
from importlib import metadata

from latflow.provenance import PACKAGE_ROOT
from latflow.workflow.code_digest import reached

IMPORTS = ast.Import | ast.ImportFrom
_OWN = sys.stdlib_module_names | {"latflow"}


def distributions(*names):
    """Return the distributions that definitions import, by plain name.

    Args:
        names: dotted names of functions, classes or modules of latflow.
    """
    found = reached(*names)
    lazy = {
        package
        for module in {_module(name) for name in found}
        for name, packages in _lazy(module).items()
        if f"{module}.{name}" in found
        for package in packages
    }
    loaded = _loaded({_module(name) for name in found})
    packages = lazy | {p for module in loaded for p in _at_import(module)[1]}
    of_modules = _of_modules()
    return {plain(sorted(of_modules.get(one, [one]))[0]) for one in packages}


_of_modules = cache(metadata.packages_distributions)


def plain(name):
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _loaded(modules):
    """Return modules of ours and all that they import when they are imported."""
    loaded, pending = set(), set(modules)
    while pending:
        module = pending.pop()
        loaded.add(module)
        parents = {module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)}
        pending |= (_at_import(module)[0] | parents) - loaded
    return loaded


@cache
def _path(module):
    """Return the source file of a module; None where there is no such module."""
    base = PACKAGE_ROOT.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


def _module(name):
    """Return the module of a definition."""
    while _path(name) is None:
        name = name.rpartition(".")[0]
    return name


@cache
def _tree(module):
    return ast.parse(_path(module).read_text())


@cache
def _at_import(module):
    """Return modules of ours, and packages, that a module's import imports."""
    imports = [s for s in _tree(module).body if isinstance(s, IMPORTS)]
    return (
        {found for one in imports for found in _ours(one)},
        {package for one in imports for package in _packages(one)},
    )


@cache
def _lazy(module):
    """Return the packages that the definitions of a module import when they run."""
    definitions = {
        statement.name: statement
        for statement in _tree(module).body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    return {
        name: {
            package
            for node in ast.walk(definition)
            if isinstance(node, IMPORTS)
            for package in _packages(node)
        }
        for name, definition in definitions.items()
    }


def _targets(node):
    """Return the dotted names that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]


def _ours(node):
    return {t for t in _targets(node) if t.startswith("latflow") and _path(t)}


def _packages(node):
    return {t.split(".")[0] for t in _targets(node)} - _OWN
