"""MFA's YAML files that name the dictionaries of speakers."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from latflow.errors import UserError
from latflow.files import reading

SUFFIXES = (".yaml", ".yml")
_ROOT = "MFA_ROOT_DIR"
_CACHE = "pretrained_models/dictionary"


def find_dictionary(path: str | Path) -> Path:
    """Return the dictionary that a path names: its own, or that of a YAML file.

    Args:
        path: a lexicon, or a YAML file `SPEAKER: DICTIONARY` with `default`. A
            dictionary is a path, below the folder of the YAML file unless it is
            absolute, or the name of one that MFA has downloaded.

    Raises:
        UserError: the file is garbled, or speakers have different dictionaries.
    """
    file = Path(path)
    if file.suffix not in SUFFIXES:
        return file
    remedy = "write lines like default: english_us_mfa"
    with reading(file, "not a list of dictionaries by speaker", remedy):
        try:
            told = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())[:200]) from None
        if not isinstance(told, dict) or not told:
            raise ValueError("it is no mapping of speakers")
        if not all(isinstance(value, str) for value in told.values()):
            raise ValueError("a dictionary is not the name of one")
    found = {speaker: _of_name(name, file) for speaker, name in told.items()}
    if len(set(found.values())) > 1:
        first, *rest = found.items()
        other = next(item for item in rest if item[1] != first[1])
        raise UserError(
            f"speakers have different dictionaries ({first[0]}: {first[1]}, "
            f"{other[0]}: {other[1]}), and an alignment takes one",
            file=file,
            remedy="align the speakers of each dictionary by a command of their own, "
            "with --model all by the same package",
        )
    return next(iter(found.values()))


def _of_name(name: str, file: Path) -> Path:
    """Return the dictionary of a name.

    Raises:
        UserError: there is none.
    """
    root = os.environ.get(_ROOT)
    cache = (Path(root) if root else Path.home() / "Documents/MFA") / _CACHE
    for path in (file.parent / name, cache / f"{name}.dict"):
        if path.is_file():
            return path
    raise UserError(
        f"no dictionary {name}",
        file=file,
        remedy=f"name a file, or a dictionary in {cache}",
    )
