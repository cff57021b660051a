"""Files that a recipe fetches: lexicons, language models."""

from __future__ import annotations

import logging
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_output

log = logging.getLogger(__name__)

OPENSLR_11 = (
    "librispeech-lexicon.txt",
    "3-gram.arpa.gz",
    "3-gram.pruned.1e-7.arpa.gz",
    "3-gram.pruned.3e-7.arpa.gz",
    "4-gram.arpa.gz",
    "librispeech-lm-norm.txt.gz",
    "librispeech-vocab.txt",
)


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
            remedy=f"check the network, or put the file at {path}",
        ) from error
    log.info("fetched %s: %d bytes", path, size)


def missing_resource(path: str | Path) -> UserError:
    """Return the error for a lexicon or language model that is not there.

    For the files of LibriSpeech that Lhotse does not fetch, it says where they are.
    """
    name = Path(path).name
    remedy = "check the path"
    if name in OPENSLR_11 or f"{name}.gz" in OPENSLR_11:
        remedy = (
            f"download {name} of OpenSLR resource 11 (LibriSpeech language models, "
            "vocabulary and lexicon) to that place; `.gz` files may stay compressed"
        )
    return UserError("no such file", file=path, remedy=remedy)
