"""Parts of a set of utterances, each the work of its own job.

A part goes by the name that Snakemake's scatter and gather give it: `2-of-4`. Parts are
cut by duration: an utterance belongs to the part that its middle lies in. So they
follow from the lengths alone, every utterance is in one of them, and a part may be
empty.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from latflow.errors import UserError

Item = TypeVar("Item")
_NAME = re.compile(r"([1-9]\d*)-of-([1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class SetJob:
    """A set of utterances that a stage goes over with a system, or a part of it."""

    frames_dir: Path
    """Features that the system reads."""
    lang_dir: Path
    """Language directory that the system works with."""
    model_dir: Path
    """Folder of the system, GMM or network; a network's has `final.mdl`, too."""
    out_dir: Path
    """Folder for the files that the stage writes."""
    threads: int = 1
    """Utterances worked on at a time."""
    max_skipped_fraction: float = 0.0
    """Share of the utterances of the whole set that may have no result."""
    part: str | None = None
    """The part of the set; None for all of it."""


def utterances_of(
    part: str | None, begin: np.ndarray, speakers: np.ndarray | None = None
) -> np.ndarray:
    """Return the utterances of a part, in ascending order, int64.

    Args:
        part: its name; None for the whole set.
        begin: int64[N + 1], where each utterance begins, in frames.
        speakers: int32[N], numbers of the utterances' speakers from 0, in order of
            appearance; None where they need not stay together.

    Raises:
        UserError: `part` is not the name of one.
    """
    if part is None:
        return np.arange(len(begin) - 1)
    number, count = _parsed(part)
    if speakers is None:
        parts = _parts(begin, count)
    else:
        lengths = np.zeros(int(speakers.max(initial=-1)) + 1, np.int64)
        np.add.at(lengths, speakers, np.diff(begin))
        parts = _parts(np.concatenate([[0], np.cumsum(lengths)]), count)[speakers]
    return np.flatnonzero(parts == number - 1)


def share_of(part: str | None) -> float:
    """Return about which share of a set a part is, 1 for the whole."""
    return 1.0 if part is None else 1.0 / _parsed(part)[1]


def in_order_of_ids(
    parts: Iterable[Iterable[tuple[str, Item]]],
) -> Iterator[tuple[str, Item]]:
    """Yield what parts have of utterances, (id, item), in the order of the whole set.

    Args:
        parts: each sorted by id (byte order), as the whole is.
    """
    return heapq.merge(*parts, key=itemgetter(0))


def _parts(begin: np.ndarray, count: int) -> np.ndarray:
    """Return the part that each of N things is in, from 0, int64[N]."""
    twice_middle = begin[:-1] + begin[1:]
    total = max(1, 2 * int(begin[-1]))
    return np.minimum(twice_middle * count // total, count - 1)


def _parsed(part: str) -> tuple[int, int]:
    """Return number, from 1, and count.

    Raises:
        UserError: it is not the name of a part.
    """
    found = _NAME.fullmatch(part)
    number, count = map(int, found.groups()) if found else (1, 0)
    if number > count:
        raise UserError(f"{part!r} names no part of a set", remedy="name one as 2-of-4")
    return number, count
