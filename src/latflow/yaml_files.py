"""YAML files, read strictly: no key twice, no aliases without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from latflow.errors import UserError
from latflow.text_files import read_lines

_MOST_NODES, _MOST_COPIES = 1_000_000, 10  # of YAML with aliases, written out


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML (or JSON) file holds.

    Raises:
        UserError: the file is missing or no YAML, or a mapping has a key twice; names
            the lines.
    """
    text = "".join(f"{line}\n" for _, line in read_lines(path))
    try:
        return yaml.load(text, _UniqueKeys)  # noqa: S506 - made of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        what = " ".join(filter(None, (error.context, error.problem)))
        raise UserError(
            f"{where}not readable as YAML: {what}",
            file=path,
            remedy="indent by blanks, not tabs; quote what has `: `, `#` or begins "
            "with a mark",
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"not readable as YAML: {what}", file=path) from error


class _UniqueKeys(yaml.SafeLoader):
    """Reads YAML; refuses two equal keys of a mapping, of which the last would win.

    Aliases (`*name`) that have no end are refused, too, or that would make a short file
    large.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Read the document; see `yaml.SafeLoader`."""
        node, sizes = super().get_single_node(), {}
        if node is not None:
            size = _written_out(node, sizes)
            if size > max(_MOST_NODES, _MOST_COPIES * len(sizes)):
                raise yaml.YAMLError(f"its aliases stand for {size:.0e} values")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Make a mapping; see `yaml.SafeLoader`."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(
                    f"lines {seen[key.value]} and {line}: the key {key.value} stands "
                    "twice"
                )
            seen[key.value] = line
        return super().construct_mapping(node, deep)


def _written_out(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Return how many values a node has, those of aliases counted at each of them.

    Args:
        node: of a document.
        sizes: the same of known nodes, by `id`; None for those that it is part of.
    """
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"line {line}: an alias stands for what it is part of")
        return known
    sizes[id(node)] = None
    parts = [node.value] if isinstance(node, yaml.SequenceNode) else []
    parts = node.value if isinstance(node, yaml.MappingNode) else parts
    size = 1 + sum(_written_out(one, sizes) for part in parts for one in part)
    sizes[id(node)] = size
    return size
