"""latflow: hybrid speech recognition recipes with the numbers of Kaldi.

`load` and `score` are the way in from Python; see docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latflow.serving.recognizer import load as load
    from latflow.serving.recognizer import score as score

__version__ = "0.1.0"
__all__ = ["__version__", "load", "score"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: numerical libraries take seconds to load."""
    if name in {"load", "score"}:
        from latflow.serving import recognizer

        return getattr(recognizer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
