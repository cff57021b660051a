"""latflow: hybrid speech recognition recipes with the numbers of Kaldi.

`load` and `score` are the way in from Python; see docs/python.md.
"""

from importlib import import_module as _import
from typing import Any

__version__ = "0.2.0"

_LAZY = {"load", "score"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: numerical libraries take seconds to load."""
    if name in _LAZY:
        return getattr(_import("latflow.serving.recognizer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what is imported when it is asked for, too, as notebooks complete it."""
    return sorted({*globals(), *_LAZY})
