"""latflow: hybrid speech recognition recipes with the numbers of Kaldi.

`load` and `score` are the way in from Python; see docs/python.md.
"""

from importlib import import_module as _import
from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import what is asked for: numerical libraries take seconds to load."""
    if name in {"load", "score"}:
        return getattr(_import("latflow.serving.recognizer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
