"""Tell whether an Ogg file (Opus, Vorbis, FLAC) goes to its end.

It is made of pages, the last of which is marked. Who stops uploading, or recording by
force, leaves a file without it, whose pages so far are read like any other's.

Source: RFC 3533, section 6.
"""

from __future__ import annotations

import os
from typing import BinaryIO

_MARK = b"OggS"
_HEADER = 27  # bytes, before the lengths of its segments
_LONGEST = _HEADER + 255 + 255 * 255  # bytes of a page
_FLAGS, _NUM_SEGMENTS = 5, 26  # places in the header
_LAST = 4  # flag


def has_ogg_end(stream: BinaryIO) -> bool:
    """Return whether the last page is there as a whole, and marked as the last.

    Of a file that is not in pages, too. Bytes behind the pages, as of tags, don't
    count, if they are fewer than a page has at most.

    Args:
        stream: can be sought in; is left anywhere.
    """
    stream.seek(0)
    if stream.read(len(_MARK)) != _MARK:
        return True
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 2 * _LONGEST))
    tail = stream.read()
    page = tail[max(0, tail.rfind(_MARK)) :]
    if len(page) < _HEADER:
        return False
    body = _HEADER + page[_NUM_SEGMENTS]
    length = body + sum(page[_HEADER:body])
    return bool(page[_FLAGS] & _LAST) and len(page) >= length
