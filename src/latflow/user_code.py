"""Functions and classes of the user's own, named in a recipe by where they are.

Recipes are trusted, and so is the code that they name. Packages are not: while one is
loaded, `trusting` has all code refused that is not latflow's or Lhotse's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from latflow.errors import UserError

#: What a location looks like, for options.
LOCATION = r"^[^:]+:[A-Za-z_]\w*$"


# Whether code may be loaded, None where undecided; and what was loaded.
_trust: ContextVar[tuple[bool, list[str]] | None] = ContextVar("trust", default=None)


@contextmanager
def trusting(trust_code: bool) -> Iterator[list[str]]:  # noqa: FBT001 - its only one
    """Decide whether this thread may load code that files name.

    Args:
        trust_code: False refuses it.

    Yields:
        The locations of what was loaded, filled as it is.
    """
    loaded: list[str] = []
    token = _trust.set((trust_code, loaded))
    try:
        yield loaded
    finally:
        _trust.reset(token)


def is_trust_decided() -> bool:
    """Return whether `trusting` has decided if code may be loaded."""
    return _trust.get() is not None


def refuse_untrusted(location: str) -> None:
    """Refuse code that is not latflow's or Lhotse's, where it is not trusted.

    Raises:
        UserError: it is not.
    """
    is_trusted, loaded = _trust.get() or (True, [])
    if not is_trusted:
        raise UserError(
            f"would run code that is named in it: {location}",
            remedy="if you trust whoever made it, say so by --trust-code "
            "(trust_code: true)",
        )
    loaded.append(location)


def load_object(location: str) -> Any:
    """Return what is at `module:name` or `folder/file.py:name`.

    Raises:
        ImportError, OSError, SyntaxError, AttributeError: it cannot be loaded.
        UserError: see `refuse_untrusted`.
    """
    refuse_untrusted(location)
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
