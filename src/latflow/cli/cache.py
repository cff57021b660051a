"""The commands `latflow cache list`, `verify` and `prune`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.cli.commands import Arguments, Group, option
from latflow.errors import UserError
from latflow.files import size_text

if TYPE_CHECKING:
    from latflow.workflow.result_cache import ResultCache

CACHE = Group("cache", "Results that experiments share (see docs/reproducibility.md).")
_FOLDER = option(
    "folder", "of the shared results (results/.cache)", "results/.cache", nargs="?"
)


@CACHE.command("list", _FOLDER)
def _list(arguments: Arguments) -> None:
    """List shared results: key, size, last use, experiment, rule.

    No experiment has a link to those with a `*`.
    """
    cache, total = _opened(arguments), 0
    for key in cache.entries():
        entry = cache.find(key)
        if entry is None:
            sys.stdout.write(f"{key}  changed\n")
            continue
        total += cache.size(entry)
        day = datetime.fromtimestamp(cache.last_use(key)).strftime("%Y-%m-%d")
        size = size_text(cache.size(entry))
        held = " " if cache.is_held(key, entry) else "*"
        what = f"{entry.experiment}  {entry.rule}"
        sys.stdout.write(f"{key}  {size:>12}{held} {day}  {what}\n")
    sys.stdout.write(f"{size_text(total)}\n")


@CACHE.command("verify", _FOLDER)
def _verify(arguments: Arguments) -> int:
    """Look for shared files that are gone or were changed in place, by size and time.

    Such results are never taken; `prune` removes them.
    """
    cache, number = _opened(arguments), 0
    for key in cache.entries():
        for name in cache.changed(key):
            number += 1
            sys.stdout.write(f"{cache.folder / key}: {name} is gone or was changed\n")
    sys.stdout.write(f"{len(cache.entries())} results, {number} files changed\n")
    return int(number > 0)


@CACHE.command(
    "prune",
    _FOLDER,
    option("--days", "keep what was kept or taken within this many days", 7.0),
    example="cache prune --days 0",
)
def _prune(arguments: Arguments) -> None:
    """Remove shared results that no experiment has any more, and changed ones."""
    cache = _opened(arguments)
    sizes = [size for _, size in cache.prune(arguments.days)]
    left = len(cache.entries())
    sys.stdout.write(
        f"removed {len(sizes)} results, {size_text(sum(sizes))}; {left} are left\n"
    )


def _opened(arguments: Arguments) -> ResultCache:
    """Return the cache that a command names.

    Raises:
        UserError: none was found.
    """
    from latflow.workflow.result_cache import ResultCache

    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise UserError(
            "no such folder: no results are shared there",
            file=folder,
            remedy="name the folder of the option cache.folder",
        )
    return ResultCache(folder)
