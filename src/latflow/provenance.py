"""What produced a result: digests of source code, versions, and the git state.

Snakemake reruns a job when its parameters change, but does not look into packages; each
rule therefore carries `params: code=source_digest("latflow.<room>")`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import latflow

PACKAGE_ROOT = Path(latflow.__file__).parent
PEERS = ("torch", "numpy", "numba", "lhotse", "kaldifst", "kaldilm", "snakemake")


def source_digest(*modules: str) -> str:
    """Digest of modules and of every latflow module that they import, however deep.

    Args:
        modules: dotted names; a package stands for all the modules below it.

    Returns:
        16 hexadecimal digits that change when any of those sources changes.
    """
    files: set[Path] = set()
    for module in modules:
        files |= _closure(module)
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(PACKAGE_ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache  # of one process, which Snakemake starts anew for each job of a cluster
def _closure(module: str) -> frozenset[Path]:
    """Source files of a module and of all latflow modules it reaches."""
    reached: set[Path] = set()
    pending = [module]
    while pending:
        for path in _sources(pending.pop()):
            if path not in reached:
                reached.add(path)
                pending.extend(_imports(path))
    return frozenset(reached)


def _sources(module: str) -> list[Path]:
    """The file of a module, or all files of a package (but the root's own)."""
    parts = module.split(".")[1:]
    base = PACKAGE_ROOT.joinpath(*parts)
    if base.with_suffix(".py").is_file():
        return [base.with_suffix(".py")]
    if not parts:
        return [PACKAGE_ROOT / "__init__.py"]
    if base.is_dir():
        return [p for p in base.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    raise ModuleNotFoundError(module)


@cache
def _imports(path: Path) -> list[str]:
    """Names of the latflow modules that a source file imports."""
    if path.suffix != ".py":
        return []
    found: list[str] = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.append(deeper if _is_module(deeper) else node.module)
    return [name for name in found if name.split(".")[0] == "latflow"]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node; unlike `ast.walk` it does not enter expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, field, ())
        for child in below if isinstance(below, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def _is_module(name: str) -> bool:
    """Whether a dotted latflow name is a module file (not an attribute)."""
    if not name.startswith("latflow."):
        return False
    base = PACKAGE_ROOT.joinpath(*name.split(".")[1:])
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def versions() -> dict[str, str]:
    """Versions of latflow, Python, and the packages whose numerics we rely on."""
    found = {"latflow": latflow.__version__, "python": platform.python_version()}
    for name in PEERS:
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    return found


def git_state(folder: str | Path = ".") -> str:
    """Commit of the checkout, with `+changes` if it has any; `unknown` outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+changes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
