"""The order of packages: each imports only from those below it, without cycles.

Imports are read from the sources: those within functions and for type checkers count.
"""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import latflow

ROOT = Path(latflow.__file__).parent
# From the top down; what is not a package (errors, files, ...) lies below all.
ORDER = [
    *("cli", "report", "serving", "workflow", "training", "criteria", "decode"),
    *("scoring", "nnet", "gmm", "simulation", "align", "lattice", "graphs"),
    *("lang", "hmm", "fst", "features", "corpus", "kaldi"),
]
# Upward imports that are known and to be mended: how many from package to package.
KNOWN = {}


def modules():
    """(dotted name, file) of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


NAMES = dict(modules())


@cache
def imports(module):
    """Names of the modules of ours that a module imports."""
    found, pending = set(), [*ast.parse(NAMES[module].read_text()).body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom):
            deeper = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in NAMES else node.module for name in deeper]
        else:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if name and name.startswith("latflow.")}
        pending += ast.iter_child_nodes(node)
    return found


def package(module):
    """Package of a module; none for those directly below `latflow`."""
    name = module.split(".")[1] if module.count(".") else ""
    return name if (ROOT / name).is_dir() and name else ""


def test_every_package_has_its_place_in_the_order():
    assert {package(module) for module in NAMES} - {""} == set(ORDER)


def test_packages_import_only_from_those_below():
    rank = {name: i for i, name in enumerate([*ORDER, ""])}
    upward = {}
    for module in NAMES:
        for other in imports(module):
            if rank[package(other)] < rank[package(module)]:
                edge = f"{package(module) or 'latflow'} > {package(other)}"
                upward.setdefault(edge, []).append(f"{module} imports {other}")
    assert not upward, "\n".join(line for found in upward.values() for line in found)


def test_no_module_is_in_an_import_cycle():
    below = {module: imports(module) for module in NAMES}
    TopologicalSorter(below).prepare()  # CycleError names the modules
