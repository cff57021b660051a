"""The layer classes told for docs/networks.md, from their own tables of options.

Public: `layer_reference`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from latflow.nnet.layer import Layer
from latflow.nnet.options import KINDS, REQUIRED, Option
from latflow.nnet.registry import layer_classes


def layer_reference() -> str:
    """Every layer class with its options, as Markdown; ends with a newline."""
    names: dict[type[Layer], list[str]] = {}
    for name, layer in layer_classes().items():
        names.setdefault(layer, []).append(f"`{name}`")
    parts = [_section(layer, told) for layer, told in names.items()]
    return "\n\n".join(parts) + "\n"


def in_document(document: Path) -> str:
    """A document with its list of layers made anew.

    Args:
        document: Markdown with the comments `layers` and `end of layers`.
    """
    before, _, rest = document.read_text(encoding="utf-8").partition(
        "<!-- layers -->\n"
    )
    _, _, after = rest.partition("<!-- end of layers -->")
    head, end = "<!-- layers -->\n\n", "\n<!-- end of layers -->"
    return f"{before}{head}{layer_reference()}{end}{after}"


def _section(layer: type[Layer], names: list[str]) -> str:
    """One class: its names, what its documentation says, its options."""
    heading = "### " + ", ".join(names)
    text = inspect.cleandoc(layer.__doc__ or "")
    rows = [_row(name, option) for name, option in layer.OPTIONS.items()]
    if not rows:
        return f"{heading}\n\n{text}\n\nNo options."
    table = ["| option | value | default | meaning |", "|---|---|---|---|", *rows]
    return f"{heading}\n\n{text}\n\n" + "\n".join(table)


def _row(name: str, option: Option) -> str:
    """One option as a row of the table."""
    default = "" if option.default is REQUIRED else f"`{_told(option.default)}`"
    return f"| `{name}` | {_values(option)} | {default} | {option.description} |"


def _told(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _values(option: Option) -> str:
    """What values an option takes."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    told = KINDS[option.kind]
    low, high = option.minimum, option.maximum
    if low is not None and high is not None:
        told += f", {low:g} to {high:g}"
    elif low is not None:
        told += f", {low:g} or more"
    return f"{told}, or null" if option.nullable else told
