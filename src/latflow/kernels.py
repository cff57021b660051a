"""Compile the package's Numba kernels before they are needed, in parallel.

Numba compiles a function when it is first called with arguments of new types, and keeps
the machine code beside the source. For all kernels together this takes minutes of a
core, which the first run of each stage would wait for. The types that stages call them
with are known: `kernel_signatures.json` has them. A kernel that is missing there, or
has changed since, is compiled when it is called.

The file is written from the caches of runs: `latflow compile-kernels --update` in a
fresh checkout, after `make demo` and the recipe `tests/e2e/tiny.yaml`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
from numba import from_dtype, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

from latflow.errors import UserError
from latflow.jit import KernelCache, read_index
from latflow.logs import progress

ROOT = Path(__file__).parent
_SIGNATURES = ROOT / "kernel_signatures.json"

# A type in JSON: the name of a scalar, or its kind and what that is made of. A kernel:
# "module:function" and its arguments' types, as indices of the list of types.
Form = str | list[Any]


def compile_kernels(processes: int = 1) -> dict[str, int]:
    """Compile the kernels that have no machine code on this machine yet.

    One process compiles all of a package: its functions call each other, and would be
    compiled by each process that needs them.

    Args:
        processes: how many packages at a time; each process takes up to 800 MB.

    Returns:
        Of each package, how many kernels of the list can no longer be compiled.
    """
    packages: dict[str, list[str]] = defaultdict(list)
    for module in _listed():  # those with the most machine code come first
        packages[module.rpartition(".")[0]].append(module)
    with ProcessPoolExecutor(max(1, processes), get_context("spawn")) as pool:
        jobs = {
            pool.submit(_compile_modules, modules): package
            for package, modules in packages.items()
        }
        done = progress(as_completed(jobs), "compile kernels", total=len(jobs))
        return {jobs[job]: job.result() for job in done}


def _compile_modules(modules: Sequence[str]) -> int:
    """Compile the kernels of modules; return how many failed."""
    failed = 0
    for module in modules:
        for function, arguments in _listed()[module]:
            try:
                kernel = getattr(importlib.import_module(module), function)
                kernel.compile(tuple(_type_of(form) for form in arguments))
            except (AttributeError, IndexError, NumbaError, TypeError, ValueError):
                failed += 1  # the source has changed; see the module's docstring
    return failed


@cache
def _listed() -> dict[str, list[tuple[str, list[Form]]]]:
    """Return (function, types of its arguments) of the kernels by module."""
    listed = json.loads(_SIGNATURES.read_text())
    forms = listed["types"]
    return {
        module: [(name, [forms[i] for i in numbers]) for name, numbers in kernels]
        for module, kernels in listed["kernels"].items()
    }


def write_signatures(path: Path = _SIGNATURES) -> int:
    """Write the list of signatures from Numba's caches beside the sources.

    Args:
        path: of the list, replaced.

    Returns:
        How many signatures it has.

    Raises:
        UserError: none were found.
    """
    sizes: dict[str, int] = defaultdict(int)
    kernels: dict[str, list[tuple[str, list[Form]]]] = defaultdict(list)
    for module, function, arguments, size in _cached():
        sizes[module] += size
        kernels[module].append((function, arguments))
    if not kernels:
        raise UserError(
            "no kernel has been compiled here",
            file=ROOT,
            remedy="run make demo in this checkout first",
        )
    forms: list[Form] = []
    listed = {
        module: [
            (function, [_number(form, forms) for form in arguments])
            for function, arguments in sorted(kernels[module], key=json.dumps)
        ]
        for module in sorted(kernels, key=lambda name: (-sizes[name], name))
    }
    lines = ",\n".join(f"  {json.dumps(form)}" for form in forms)
    rows = ",\n".join(
        f"  {json.dumps(module)}: [\n"
        + ",\n".join(f"    {json.dumps(row)}" for row in listed[module])
        + "\n  ]"
        for module in listed
    )
    path.write_text(f'{{"types": [\n{lines}\n],\n"kernels": {{\n{rows}\n}}}}\n')
    return sum(map(len, listed.values()))


def _number(form: Form, forms: list[Form]) -> int:
    """Return the place of a type in the list, which gets it if it is new."""
    if form not in forms:
        forms.append(form)
    return forms.index(form)


def load_kernels(modules: Container[str]) -> None:
    """Load the machine code that the kernels of imported modules have on this machine.

    Kernels whose source has changed since are left to be compiled by who calls them.

    Args:
        modules: their names.
    """
    for module, function, forms, _ in _cached(modules):
        kernel: Any = getattr(sys.modules[module], function, None)
        if not isinstance(kernel, Dispatcher):
            continue
        types_of, cache = tuple(map(_type_of, forms)), cast("Any", kernel)._cache
        if not isinstance(cache, KernelCache):
            continue
        if cache.has(types_of, cast("Any", kernel).targetctx.codegen()):
            kernel.compile(types_of)  # else it would be compiled, not loaded


def _cached(
    modules: Container[str] | None = None,
) -> Iterator[tuple[str, str, list[Form], int]]:
    """Yield (module, function, types of its arguments, bytes) of what is compiled.

    Args:
        modules: those that are looked at; None for all.

    Functions that the interpreter never calls by themselves, whose arguments have types
    of the compiler's own, come with those that call them.
    """
    for index in sorted(ROOT.rglob("__pycache__/*.nbi")):
        source, function = index.name.split("-")[0].split(".", 1)
        place = (index.parent.parent / source).relative_to(ROOT.parent)
        module = ".".join(place.parts)
        if modules is not None and module not in modules:
            continue
        _, overloads = read_index(index) or (None, {})
        for (arguments, *_), data in overloads.items():
            try:
                forms = [_form_of(kind) for kind in arguments]
            except TypeError:
                continue
            kept = index.parent / data
            yield module, function, forms, kept.stat().st_size if kept.exists() else 0


def _form_of(kind: Any) -> Form:
    """Return a type in JSON.

    Raises:
        TypeError: a type that arguments of the interpreter never have.
    """
    match kind:
        case types.Literal():
            raise TypeError(f"{kind} is not a type of an argument")
        case types.Boolean() | types.Integer() | types.Float() | types.NoneType():
            return str(kind)
        case types.Array():
            dtype = as_dtype(kind.dtype)
            fields = dtype.descr if dtype.names else dtype.str
            flags = [kind.layout, kind.mutable, kind.aligned]
            return ["array", fields, kind.ndim, *flags]
        case types.BaseTuple():
            named = getattr(kind, "instance_class", None)
            name = named and f"{named.__module__}:{named.__qualname__}"
            return ["tuple", name, *map(_form_of, cast("Any", kind).types)]
        case types.Omitted():
            return ["omitted", kind.value]
        case types.DictType():
            return ["dict", _form_of(kind.key_type), _form_of(kind.value_type)]
        case _:
            raise TypeError(f"{kind} is not a type of an argument")


def _type_of(form: Form) -> Any:
    """Return the type that `_form_of` has put into JSON."""
    if isinstance(form, str):
        return getattr(types, form)
    match form:
        case ["array", fields, ndim, layout, mutable, aligned]:
            is_record = not isinstance(fields, str)
            names = [tuple(field) for field in fields] if is_record else fields
            return types.Array(
                *(from_dtype(np.dtype(names)), ndim, layout),
                readonly=not mutable,
                aligned=aligned,
            )
        case ["tuple", name, *parts]:
            inner = [_type_of(part) for part in parts]
            if name is None:
                return types.BaseTuple.from_types(inner)
            module, _, qualified = name.partition(":")
            named = getattr(importlib.import_module(module), qualified)
            return types.BaseTuple.from_types(inner, named)
        case ["omitted", value]:
            return types.Omitted(value)
        case ["dict", key, value]:
            return types.DictType(_type_of(key), _type_of(value))
        case _:
            raise ValueError(f"no type: {form}")
