"""Kaldi's configuration files: lines of `--option=value`, and what they mean here.

Source: Kaldi `util/parse-options.cc` (`ReadConfigFile`, `NormalizeArgName`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from latflow.errors import UserError
from latflow.options import Options, read_options
from latflow.text_files import read_lines

OptionsT = TypeVar("OptionsT", bound=Options)
_NONE: Mapping[str, str] = MappingProxyType({})


def read_conf_file(path: Path) -> dict[str, str]:
    """Read lines of `--option=value`; `#` begins a comment.

    As in Kaldi's programs, `_` in a name counts as `-`, and capitals do not count.

    Raises:
        UserError: the file is missing, or a line is something else.
    """
    found = {}
    for number, line in read_lines(path):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        key, _, value = text.removeprefix("--").partition("=")
        if not text.startswith("--") or len(key.split()) != 1:
            raise UserError(
                f"line {number} is not --option=value: {text[:40]!r}", file=path
            )
        found[key.strip().lower().replace("_", "-")] = value.strip() or "true"
    return found


def read_known(
    path: Path,
    names: Mapping[str, str],
    *,
    fixed: Mapping[str, str] = _NONE,
    ignored: Collection[str] = (),
) -> dict[str, str]:
    """Return the values of a file by our names.

    Args:
        path: a configuration file.
        names: options of Kaldi's that ours has, and their names here.
        fixed: those of which ours does one value alone, and that value.
        ignored: those that only say how a program goes about it.

    Raises:
        UserError: the file is missing, has other options or other values of `fixed`.
    """
    values = {}
    for key, value in read_conf_file(path).items():
        if key in names:
            values[names[key]] = value
        elif key in fixed:
            if _plain(value) != fixed[key]:
                raise UserError(
                    f"--{key}={value[:40]} is not supported",
                    file=path,
                    remedy=f"only {fixed[key]} is",
                )
        elif key not in ignored:
            raise UserError(f"--{key[:60]} is not known", file=path)
    return values


def _plain(value: str) -> str:
    """Return a number without what does not count."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.strip().lower()


def options_of(
    model: type[OptionsT], values: Mapping[str, Any], path: Path
) -> OptionsT:
    """Return options of words; errors name the file."""
    try:
        return read_options(model, _typed(values))
    except UserError as error:
        raise UserError(error.what, file=path, remedy=error.remedy) from None


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return words as the numbers and truth values that they stand for."""
    return {
        key: _typed(value) if isinstance(value, Mapping) else _value(value)
        for key, value in values.items()
    }


def _value(word: Any) -> Any:
    """Return the value of a word; other text unchanged."""
    if str(word).lower() in {"true", "false"}:
        return str(word).lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
