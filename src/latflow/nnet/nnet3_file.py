"""Kaldi's nnet3 as it stands in a file: nodes, their descriptors, and components.

The file has lines for the nodes of the network, an empty line, and the components
(`latflow.nnet.nnet3_tokens`).

A descriptor is read as what it means: pieces side by side (`Append`), each a sum of
nodes, shifted in time and scaled; or at one time whatever the frame, as i-vectors are
(`ReplaceIndex(ivector, t, 0)`).

Source: Kaldi `nnet3/nnet-nnet.cc` (`Read`), `nnet3/nnet-descriptor.cc`,
`nnet3/am-nnet-simple.cc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from latflow.kaldi.io import KaldiReader
from latflow.nnet.nnet3_tokens import Component, read_component

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORD = re.compile(r"[(),]|[^\s(),]+")
_VALUES = re.compile(r"([a-z][a-z-]*)=(.*?)(?=\s+[a-z][a-z-]*=|\s*$)")


@dataclass(frozen=True)
class Term:
    """A node in a sum: `scale` times its frame `offset` frames later.

    With `is_fixed` its frame 0, whatever the frame: shifts leave it unchanged.
    """

    node: str
    offset: int = 0
    scale: float = 1.0
    is_fixed: bool = False

    def moved(self, offset: int, scale: float) -> Term:
        """Return the term shifted and scaled."""
        later = 0 if self.is_fixed else self.offset + offset
        return replace(self, offset=later, scale=self.scale * scale)


Part = tuple[Term, ...]


@dataclass(frozen=True)
class Node:
    """A node of the network.

    Attributes:
        kind: `input`, `component`, `output` or `range` (some of a node's numbers).
        parts: what it reads; of `range` the node.
        component: name of the component that it applies, else empty.
        dim: numbers of an `input` or a `range`.
        begin: first number of a `range`.
        fault: why it cannot be read; reported where the node is needed.
    """

    name: str
    kind: str
    parts: tuple[Part, ...] = ()
    component: str = ""
    dim: int = 0
    begin: int = 0
    fault: str = ""


@dataclass(frozen=True)
class Nnet3File:
    """What a file has of a network."""

    nodes: Mapping[str, Node]
    components: Mapping[str, Component]


def read_nnet3(reader: KaldiReader) -> Nnet3File:
    """Read what follows the transition model in `final.mdl`.

    Raises:
        UserError: it is truncated or garbled, has a component that is not known, or
            priors, which networks of LF-MMI have not.
    """
    reader.expect("<Nnet3>")
    if reader.take_line().strip():
        reader.fail("words where a line of nodes begins")
    nodes: dict[str, Node] = {}
    while line := _text(reader, reader.take_line()).strip():
        node = _node(reader, line)
        if node.name in nodes:
            reader.fail(f"node {node.name} stands twice")
        nodes[node.name] = node
    reader.expect("<NumComponents>")
    components: dict[str, Component] = {}
    for _ in range(reader.int32()):
        reader.expect("<ComponentName>")
        name = reader.token()
        if name in components:
            reader.fail(f"component {name} stands twice")
        components[name] = read_component(reader, name)
    reader.expect("</Nnet3>")
    _read_end(reader)
    for node in nodes.values():
        if node.component and node.component not in components:
            reader.fail(f"node {node.name}: there is no component {node.component}")
    return Nnet3File(nodes, components)


def _read_end(reader: KaldiReader) -> None:
    """Read the context, which nodes imply too, and refuse priors."""
    for token in ("<LeftContext>", "<RightContext>"):
        reader.expect(token)
        reader.int32()
    reader.expect("<Priors>")
    if len(reader.float_vector()):
        reader.fail("priors: the network was not trained by LF-MMI")


def _text(reader: KaldiReader, raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        reader.fail("bytes that are not text where a line of nodes is expected")


# -- nodes ---------------------------------------------------------------------------


def _node(reader: KaldiReader, line: str) -> Node:
    kind, _, rest = line.partition(" ")
    values = dict(_VALUES.findall(rest))
    name = values.get("name", "")
    if not _NAME.fullmatch(name):
        reader.fail(f"a node without a name: '{line[:60]}'")

    def number(key: str) -> int:
        text = values.get(key, "")
        if not (text.isascii() and text.isdecimal()) or len(text) > 9:
            reader.fail(f"node {name}: {key} is not a number: '{text[:40]}'")
        return int(text)

    if kind == "input-node":
        return Node(name, "input", dim=number("dim"))
    if kind == "dim-range-node":
        parts = ((Term(values.get("input-node", "")),),)
        dim, begin = number("dim"), number("dim-offset")
        return Node(name, "range", parts, dim=dim, begin=begin)
    if kind not in {"component-node", "output-node"}:
        reader.fail(f"'{kind[:40]}' is not a kind of node")
    component = values.get("component", "") if kind == "component-node" else ""
    if kind == "component-node" and not component:
        reader.fail(f"node {name} names no component")
    try:
        parts, fault = _descriptor(values.get("input", "")), ""
    except ValueError as error:
        parts, fault = (), str(error)
    return Node(name, kind.removesuffix("-node"), parts, component, fault=fault)


def _descriptor(text: str) -> tuple[Part, ...]:
    """Read a descriptor.

    Raises:
        ValueError: it is invalid, or not supported.
    """
    words = _WORD.findall(text)[::-1]
    found = _expression(words)
    if words:
        raise ValueError(f"descriptor {text[:80]} goes on behind its end")
    return found


def _expression(words: list[str], depth: int = 0) -> tuple[Part, ...]:
    """Take a descriptor from the end of a list of words, which is its beginning."""
    word = _next_word(words)
    if depth > _DEEPEST:
        raise ValueError(f"descriptors within descriptors, more than {_DEEPEST} deep")
    if word in _READERS:
        _next_word(words, "(")
        return _READERS[word](words, depth + 1)
    if word in _OTHERS:
        raise ValueError(f"descriptor {word} is not read")
    if not _NAME.fullmatch(word):
        raise ValueError(f"'{word[:40]}' is not a descriptor")
    return ((Term(word),),)


def _next_word(words: list[str], *marks: str) -> str:
    """Take the next word, which must be one of `marks`, if there are any."""
    found = words.pop() if words else ""
    if marks and found not in marks:
        raise ValueError(f"'{found[:40]}' where '{marks[0]}' is expected")
    return found


def _offset(words: list[str], depth: int) -> tuple[Part, ...]:
    parts = _expression(words, depth)
    _next_word(words, ",")
    shift = _whole(_next_word(words))
    _next_word(words, ")")  # a shift of more than time would follow
    return _moved(parts, shift, 1.0)


def _scale(words: list[str], depth: int) -> tuple[Part, ...]:
    scale = _number(_next_word(words))
    _next_word(words, ",")
    parts = _expression(words, depth)
    _next_word(words, ")")
    return _moved(parts, 0, scale)


def _replace_index(words: list[str], depth: int) -> tuple[Part, ...]:
    parts = _expression(words, depth)
    _next_word(words, ",")
    variable, _, time, _ = (_next_word(words, *marks) for marks in ((), ",", (), ")"))
    if (variable, time) != ("t", "0") or any(t.offset for part in parts for t in part):
        raise ValueError("descriptor ReplaceIndex with another index than t, 0")
    return tuple(tuple(replace(t, is_fixed=True) for t in part) for part in parts)


def _append(words: list[str], depth: int) -> tuple[Part, ...]:
    return tuple(part for piece in _pieces(words, depth) for part in piece)


def _sum(words: list[str], depth: int) -> tuple[Part, ...]:
    pieces = _pieces(words, depth)
    if len({len(piece) for piece in pieces}) > 1:
        raise ValueError("Sum adds what Append has put together differently")
    return tuple(sum(parts, ()) for parts in zip(*pieces, strict=True))


def _pieces(words: list[str], depth: int) -> list[tuple[Part, ...]]:
    """Take descriptors with commas between them, and the bracket behind them."""
    found = [_expression(words, depth)]
    while _next_word(words, ")", ",") == ",":
        found.append(_expression(words, depth))
    return found


_DEEPEST = 50
_READERS = {
    "Append": _append,
    "Sum": _sum,
    "Offset": _offset,
    "Scale": _scale,
    "ReplaceIndex": _replace_index,
}
_OTHERS = frozenset(("IfDefined", "Failover", "Switch", "Round", "Const"))


def _moved(parts: tuple[Part, ...], offset: int, scale: float) -> tuple[Part, ...]:
    return tuple(tuple(term.moved(offset, scale) for term in part) for part in parts)


def _whole(word: str) -> int:
    if not re.fullmatch(r"[-+]?\d{1,6}", word):
        raise ValueError(f"'{word[:40]}' is not a number of frames")
    return int(word)


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"'{word[:40]}' is not a scale")
    return value
