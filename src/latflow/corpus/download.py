"""Files that a recipe fetches: lexicons, language models.

Public: `fetch` (stage).
"""

from __future__ import annotations

import logging
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_output

log = logging.getLogger(__name__)


def fetch(url: str, path: Path) -> None:
    """Fetch a file; it appears under its name only once it is whole.

    Args:
        url: http, https, ftp or file address.
        path: where to put it; folders are made.

    Raises:
        UserError: the address does not answer, or the disk is full.
    """
    try:
        with atomic_output(path) as temporary, temporary.open("wb") as target:
            with urllib.request.urlopen(url, timeout=60) as source:  # noqa: S310
                shutil.copyfileobj(source, target, 1 << 20)
                expected = source.headers.get("Content-Length")
            size = target.tell()
            if expected is not None and size != int(expected):
                raise UserError(
                    f"got {size} of {expected} bytes", file=url, remedy="try again"
                )
    except (urllib.error.URLError, TimeoutError) as error:
        raise UserError(
            f"cannot be fetched ({error})",
            file=url,
            remedy=f"check the network, or put the file at {path} by hand",
        ) from error
    log.info("fetched %s: %d bytes", path, size)
