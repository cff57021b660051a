"""Functions and classes of the user's own, named in a recipe by where they are.

Public: `load_object`, `file_of`, `LOCATION`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

#: What a location looks like, for options.
LOCATION = r"^[^:]+:[A-Za-z_]\w*$"


def load_object(location: str) -> Any:
    """Return what is at `module:name` or `folder/file.py:name`.

    Raises:
        ImportError, OSError, SyntaxError, AttributeError: it cannot be loaded.
    """
    where, _, name = location.rpartition(":")
    return getattr(_load_module(where), name)


def file_of(location: str) -> list[Path]:
    """Return the file of a location, where that names one that is there."""
    path = Path(location.rpartition(":")[0])
    return [path] if path.suffix == ".py" and path.is_file() else []


def _load_module(where: str) -> ModuleType:
    """Import a module by its name, or a file by its path."""
    if not where.endswith(".py"):
        return importlib.import_module(where)
    name = f"latflow_custom_{Path(where).stem}"
    spec = spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module in {where}")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module
