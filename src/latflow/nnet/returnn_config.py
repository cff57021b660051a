"""Configuration files of RETURNN, read without running them.

They are JSON (with comments), or Python whose assignments are settings. Of the latter
those are read whose values are literals, or arithmetic of literals and of settings
above them; all else is code, which is named and not run. Within a dictionary or list a
`Code` stands in its place, so that it matters only where it is needed.

Source: https://github.com/rwth-i6/returnn, `returnn/config.py`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from latflow.errors import UserError
from latflow.text_files import read_lines

_JSON_NAMES = MappingProxyType({"true": True, "false": False, "null": None})
_OPERATORS: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {
        ast.USub: operator.neg,
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
    }
)
# Strings, and what JSON does not have: comments from // or # to the end of the line.
_COMMENTS = re.compile(r'("(?:\\.|[^"\\\n])*")|(?://|#)[^\n]*')


@dataclass(frozen=True)
class Code:
    """An expression that is not a literal.

    Attributes:
        text: what it is, with the line.
    """

    text: str


def code_in(value: Any) -> Code | None:
    """Return the first code in a value, at any depth."""
    if isinstance(value, Code):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, list | tuple):
        return None
    return next(filter(None, map(code_in, value)), None)


@dataclass
class ReturnnConfig:
    """Settings of a configuration file.

    Attributes:
        file: where they were read.
        values: those that are literals, with `Code` inside where there is some.
        code: what the others are, with the line, by name.
    """

    file: Path
    values: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)

    def network(self) -> Mapping[str, Any]:
        """Return the network's layers.

        Raises:
            UserError: none was found, or code makes it.
        """
        for name in ("network", "get_network"):
            if name in self.code:
                raise UserError(
                    f"the network is made by code: {self.code[name]}",
                    file=self.file,
                    remedy="write down the dictionary that the code makes "
                    "(RETURNN logs it)",
                )
        found = self.values.get("network")
        if not isinstance(found, Mapping):
            raise UserError(
                "no network: the setting `network` is not a dictionary of layers",
                file=self.file,
                remedy="name a configuration of RETURNN with one",
            )
        return found


def read_config(path: str | Path) -> ReturnnConfig:
    """Read a configuration file of RETURNN: JSON, or Python that is not run.

    Raises:
        UserError: it is neither.
    """
    path = Path(path)
    text = "\n".join(line for _, line in read_lines(path))
    if text.lstrip().startswith(("{", "//")):
        return _read_json(text, path)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(
            f"neither JSON nor Python 3: {error}",
            file=path,
            remedy="convert Python 2 by 2to3; settings as `key value` are not read",
        ) from None
    config = ReturnnConfig(path)
    for statement in tree.body:
        _read_statement(statement, config)
    return config


def _read_json(text: str, path: Path) -> ReturnnConfig:
    """Read JSON as RETURNN does: comments and commas at the end are allowed."""
    try:
        tree = ast.parse(_COMMENTS.sub(r"\1", text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"no JSON: {error}", file=path, remedy="fix it") from None
    values = _value(tree.body, _JSON_NAMES)
    if code := code_in(values):
        raise UserError(f"no JSON: {code.text}", file=path, remedy="fix it")
    if not isinstance(values, dict):
        raise UserError("no JSON: no dictionary", file=path, remedy="fix it")
    values = {str(key): value for key, value in values.items()}
    if _is_network(values):  # alone, as RETURNN logs it and papers print it
        values = {"network": values}
    return ReturnnConfig(path, values)


def _is_network(values: Mapping[str, Any]) -> bool:
    """Return whether all that a file has is layers."""
    return bool(values) and all(
        isinstance(value, Mapping) and "class" in value for value in values.values()
    )


def _read_statement(statement: ast.stmt, config: ReturnnConfig) -> None:
    """Take a statement at the top of a file: a setting, or code."""
    match statement:
        case ast.Assign(targets=[ast.Name(name)], value=value):
            config.values.pop(name, None)
            config.code.pop(name, None)
            found = _value(value, config.values)
            if isinstance(found, Code):
                config.code[name] = found.text
            else:
                config.values[name] = found
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return
        case ast.FunctionDef(name) | ast.ClassDef(name):
            _mark({name, *_made_global(statement)}, statement, config)
        case _:
            _mark(_changed(statement), statement, config)


def _mark(names: set[str], statement: ast.stmt, config: ReturnnConfig) -> None:
    """Note that a statement, which is not run, gives names their values."""
    for name in names:
        config.values.pop(name, None)
        config.code[name] = f"{_kind(statement)}, line {statement.lineno}"


def _made_global(function: ast.AST) -> set[str]:
    """Return the settings that a function may change when it is called."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Global)]
    return {name for node in nodes for name in node.names}


def _changed(statement: ast.stmt) -> set[str]:
    """Return the names whose values a statement may change.

    Beside those that it binds these are all whose methods it calls and whose items it
    sets, `network.update(...)` and `network["x"] = ...`, and those it hands over.
    """
    match statement:
        case ast.Assert() | ast.Expr(value=ast.Call(func=ast.Name("print"))):
            return set()
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of a literal, or of arithmetic of literals and known names."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in known:
            return known[name]
        case ast.List(items) | ast.Tuple(items):
            return [_value(item, known) for item in items]
        case ast.Dict(keys, values) if None not in keys:
            names = [_value(key, known) for key in keys if key is not None]
            if all(isinstance(name, str | int | None) for name in names):
                found = (_value(value, known) for value in values)
                return dict(zip(names, found, strict=True))
        case ast.UnaryOp() | ast.BinOp():
            return _calculated(node, known)
    return _code(node)


def _calculated(node: ast.UnaryOp | ast.BinOp, known: Mapping[str, Any]) -> Any:
    """Return the result of arithmetic; code where it is of anything but numbers."""
    parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
    numbers = [_value(part, known) for part in parts]
    calculate = _OPERATORS.get(type(node.op))
    if calculate and all(isinstance(number, int | float) for number in numbers):
        with suppress(ArithmeticError):
            return calculate(*numbers)
    return _code(node)


def _code(node: ast.expr) -> Code:
    """Return what stands for an expression that is not run."""
    return Code(f"{_kind(node)}, line {node.lineno}")


_KINDS: Mapping[type, str] = MappingProxyType(
    {
        ast.Call: "a call", ast.Lambda: "a function", ast.FunctionDef: "a function",
        ast.Name: "a name", ast.IfExp: "a condition", ast.If: "a condition",
        ast.For: "a loop", ast.While: "a loop", ast.DictComp: "a loop",
        ast.ListComp: "a loop", ast.Subscript: "an item", ast.JoinedStr: "a format",
        ast.Attribute: "an attribute", ast.ClassDef: "a class", ast.Try: "a try",
    }
)  # fmt: skip


def _kind(node: ast.AST) -> str:
    """Return what code is, and its beginning."""
    what = _KINDS.get(type(node), "code")
    text = " ".join(ast.unparse(node).split())
    return f"{what} ({text:.40}{'...' if len(text) > 40 else ''})"
