"""Digests of the code that a stage reaches: a change reruns what it changes, no more.

Snakemake reruns a job when its parameters change, but does not look into packages; the
param by which a rule names its stage function therefore has the digest beside the name:
`params: stage=stage("latflow.<package>.<module>.<function>")`.

The unit is a definition at the top of a module: a function, class, constant or import.
It reaches the definitions that its code names, and these reach others. Comments,
docstrings, layout, descriptions of options and imports for type checkers do not count.
In doubt more is taken: a class as a whole, annotations too (the stage runner makes
options of them), all of a module that is used as a value or named by a string
(`"latflow.training.worker"`), files that are not code beside a reached module, and of
all modules that the reached ones import what runs at the import.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.provenance import PACKAGE_ROOT, WORKFLOW_FOLDER

AT_IMPORT, AS_PROGRAM = "<import>", "<main>"  # statements without a name
_OURS = re.compile(r"latflow(\.\w+)+(:\w+)?")
# Decorators that change nothing but what they decorate. Others may register it.
_LOCAL = {"njit", "dataclass", "contextmanager", "no_grad", "cache", "lru_cache"}
_COMPILED_FOLDER = "__pycache__"  # Python's and Numba's, whose files come and go


class Definition(NamedTuple):
    """A definition, as far as it matters to others.

    Attributes:
        digest: of its code.
        names: dotted names of ours that the code uses.
        target: what an import stands for, dotted; empty for other definitions.
    """

    digest: str
    names: tuple[str, ...] = ()
    target: str = ""


def stage(name: str, *others: str, has_workers: bool = False) -> str:
    """Return the name of a stage function with the digest of the code that it reaches.

    Args:
        name: dotted name of the function.
        others: dotted names of other functions or classes whose code makes the results
            of the stage, too; a module or package stands for all that is in it.
        has_workers: its threads are workers (`latflow.parallel`), below which libraries
            need one thread: so a job may be a fork, see `latflow.workflow.fork_server`.

    Returns:
        The name, a blank, and 16 hexadecimal digits; with workers, " workers" behind.

    Raises:
        LookupError: latflow has no such name.
    """
    workers = " workers" if has_workers else ""
    return f"{name} {_package().digest(name, *others)}{workers}"


def reached(*names: str) -> frozenset[str]:
    """Return the dotted names of all definitions that definitions reach."""
    return _package().reached(*names)


@cache  # of one process, which Snakemake starts again for each job of a cluster
def _package() -> Sources:
    """Return the sources of the package that is running."""
    return Sources(PACKAGE_ROOT)


class Sources:
    """The definitions of a package, read from its source files.

    Answers are cached, since stages reach much of the same code.

    Args:
        root: folder of the package `latflow`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        paths = [p for p in root.rglob("*.py") if WORKFLOW_FOLDER not in p.parts]
        self._files = {_module_name(path, root): path for path in sorted(paths)}
        self._split = cache(self._split_anew)
        self._uses = cache(self._uses_anew)
        self._imports = cache(self._imports_anew)
        self._data_files = cache(self._data_files_anew)

    def digest(self, *names: str) -> str:
        """Return the digest of what definitions reach; see `stage`."""
        digest = hashlib.sha256()
        modules = set()
        for name in sorted(self.reached(*names)):
            module = self._split(name)[0]
            modules.add(module)
            found = self._modules[module][name[len(module) + 1 :]]
            digest.update(f"{name} {found.digest}\n".encode())
        folders = {self._files[module].parent for module in modules} - {self._root}
        files = dict(item for folder in folders for item in self._data_files(folder))
        for name in sorted(files):
            digest.update(name.encode())
            digest.update(files[name])
        return digest.hexdigest()[:16]

    def reached(self, *names: str) -> frozenset[str]:
        """Return the dotted names of all definitions that definitions reach."""
        seen: set[str] = set()
        loaded: set[str] = set()
        pending = [found for name in names for found in self._named(name)]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            pending += self._uses(name)
            module = self._split(name)[0]
            if module not in loaded:
                pending += self._runs_at_import(module, loaded)
        return frozenset(seen)

    def _uses_anew(self, name: str) -> list[str]:
        """Return the definitions that the code of a definition names."""
        module = self._split(name)[0]
        used = self._modules[module][name[len(module) + 1 :]].names
        return [found for other in used for found in self._definitions(other)]

    @cached_property
    def _modules(self) -> dict[str, dict[str, Definition]]:
        """Definitions of all modules; files that are as they were are not parsed."""
        folder = self._root / _COMPILED_FOLDER
        kept = _Kept(folder / "definitions.json.gz")
        found = {m: kept.definitions(m, path) for m, path in self._files.items()}
        kept.save()
        return found

    def _named(self, name: str) -> list[str]:
        """Return the definitions that a caller of `digest` names."""
        module, rest = self._split(name)
        if not module or (rest and rest[0] not in self._modules[module]):
            raise LookupError(f"no {name} in {self._root}")
        below = [m for m in self._files if not rest and m.startswith(f"{name}.")]
        return [d for m in (name, *below) for d in self._definitions(m)]

    def _split_anew(self, dotted: str) -> tuple[str, list[str]]:
        """Split a dotted name into its module and the rest."""
        module, rest = dotted, []
        while module and module not in self._files:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
        return module, rest

    def _definitions(self, dotted: str) -> list[str]:
        """Return the definitions that a dotted name in code stands for."""
        module, rest = self._split(dotted)
        if not module or (rest and rest[0].startswith("__")):
            return []
        if not rest or rest[0] not in self._modules[module]:
            # "latflow.log" is a file's name, no part of the package
            is_other = rest and "." not in module
            names = () if is_other else self._modules[module]
            return [f"{module}.{name}" for name in names]
        name = f"{module}.{rest[0]}"
        target = self._modules[module][rest[0]].target
        further = [".".join([target, *rest[1:]])] if target else []
        return [name, *(d for other in further for d in self._definitions(other))]

    def _runs_at_import(self, module: str, loaded: set[str]) -> Iterator[str]:
        """Yield what runs when a module and all that it imports are imported."""
        pending = [module]
        while pending:
            module = pending.pop()
            if module in loaded or not module:
                continue
            loaded.add(module)
            pending += self._imports(module)
            if AT_IMPORT in self._modules[module]:
                yield f"{module}.{AT_IMPORT}"

    def _imports_anew(self, module: str) -> set[str]:
        """Return the modules that a module imports from."""
        definitions = self._modules[module].values()
        return {self._split(d.target)[0] for d in definitions if d.target}

    def _data_files_anew(self, folder: Path) -> list[tuple[str, bytes]]:
        """Return names and contents of the files in a folder that are not code."""
        return [
            (path.relative_to(self._root).as_posix(), path.read_bytes())
            for path in folder.rglob("*")
            if path.suffix != ".py"
            and _COMPILED_FOLDER not in path.parts
            and path.is_file()
        ]


class _Kept:
    """Definitions by the digest of the file that they were read from, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        self._key = f"{own} {sys.version_info[:2]}"
        self._old: dict[str, dict[str, list]] = {}
        self._new: dict[str, dict[str, Definition]] = {}
        try:
            kept = json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, ValueError, EOFError, zlib.error):
            return
        if kept["key"] == self._key:
            self._old = kept["files"]

    def definitions(self, module: str, path: Path) -> dict[str, Definition]:
        """Return the definitions of a module."""
        source = path.read_bytes()
        key = hashlib.sha256(module.encode() + b"\0" + source).hexdigest()[:32]
        if key in self._old:
            kept = self._old[key].items()
            found = {n: Definition(d, tuple(u), t) for n, (d, u, t) in kept}
        else:
            found = _Module(module, ast.parse(source)).definitions
        self._new[key] = found
        return found

    def save(self) -> None:
        """Keep them for the next start; where that may not be written, do without."""
        if self._new.keys() == self._old.keys():
            return
        text = json.dumps({"key": self._key, "files": self._new})
        packed = gzip.compress(text.encode(), compresslevel=1)
        try:
            with atomic_output(self._path) as temporary:
                temporary.write_bytes(packed)
        except (OSError, UserError):
            return


class _Module:
    """Reads the definitions of one module."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.definitions: dict[str, Definition] = {}
        self._module = module
        statements = [s for s in tree.body if not _is_for_type_checkers(s)]
        for statement in statements:
            for name, target in _imported(statement):
                self.definitions[name] = Definition(_digest([target]), (), target)
        own: dict[str, list[ast.stmt]] = {}
        for statement in statements:
            for name in _bound_names(statement):
                own.setdefault(name, []).append(statement)
        self._own = own.keys() | self.definitions.keys()
        for name, group in own.items():
            self.definitions[name] = self._definition(group)

    def _definition(self, statements: list[ast.stmt]) -> Definition:
        """Make the definition of a name that some statements bind."""
        reader = _Reader()
        for statement in statements:
            reader.read(statement)
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                reader.names.add(statement.name)
        names: set[str] = set()
        for dotted in reader.names:
            first, _, rest = dotted.partition(".")
            if target := reader.imports.get(first):
                names.add(f"{target}.{rest}".rstrip("."))
            elif first in self._own:
                names.add(f"{self._module}.{dotted}")
        for text in reader.strings:
            name = text.replace(":", ".")
            names.add(f"{self._module}{name}" if name.startswith(".") else name)
        ours = sorted(n for n in names if n.split(".")[0] == "latflow")
        return Definition(_digest(reader.parts), tuple(ours))


class _Reader:
    """Writes down syntax trees without positions and docstrings; collects names.

    Attributes:
        parts: the tree as words.
        names: names, and attributes of names, that the code uses: `a`, `a.b.c`.
        imports: targets of imports within the code, by the name that they bind.
        strings: strings that name our code, `latflow.a.b:c`, or `:c` of this module.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.names: set[str] = set()
        self.imports: dict[str, str] = {}
        self.strings: set[str] = set()

    def read(self, node: ast.AST) -> None:
        """Read a tree."""
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node)):
            self.names.add(name)
            self.parts.append(name)
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _OURS.fullmatch(node.value):
                self.strings.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            self.strings |= set(_here(node))
        self.imports.update(_imported(node))
        self.parts.append(f"({type(node).__name__}")
        for field, value in ast.iter_fields(node):
            self._read_field(node, field, value)
        self.parts.append(")")

    def _read_field(self, node: ast.AST, field: str, value: object) -> None:
        """Read one field of a tree."""
        if isinstance(value, ast.AST):
            self.read(value)
        elif isinstance(value, list):
            self.parts.append("[")
            for item in value:
                if not isinstance(item, ast.AST):
                    self.parts.append(repr(item))
                elif not (_is_docstring(item) or _is_description(node, item)):
                    self.read(item)
            self.parts.append("]")
        elif field != "type_comment":
            self.parts.append(repr(value))


def _module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(["latflow", *(part for part in parts if part != "__init__")])


def _is_for_type_checkers(statement: ast.stmt) -> bool:
    """Tell `if TYPE_CHECKING:` from other statements."""
    guards = isinstance(statement, ast.If) and ast.unparse(statement.test)
    return guards in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, with their dotted targets."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
    elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module is filed under."""
    if isinstance(statement, ast.Import | ast.ImportFrom) or _is_docstring(statement):
        return
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        if any(map(_registers, statement.decorator_list)):
            yield AT_IMPORT
        return
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        yield AS_PROGRAM
        return
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield AT_IMPORT
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _registers(decorator: ast.expr) -> bool:
    """Tell decorators that may make a definition known elsewhere."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] not in _LOCAL


def _is_docstring(node: ast.AST) -> bool:
    """Tell a string that stands alone."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return False
    return isinstance(node.value.value, str)


def _is_description(node: ast.AST, item: ast.AST) -> bool:
    """Tell `description=` of pydantic's `Field`."""
    if not (isinstance(item, ast.keyword) and item.arg == "description"):
        return False
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "Field"


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` of a name or its attributes; nothing for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def _here(node: ast.JoinedStr) -> Iterator[str]:
    """Yield `:name` of `f"{__name__}:name"`."""
    match node.values:
        case [ast.FormattedValue(ast.Name("__name__")), ast.Constant(str(text))]:
            yield text


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
