"""What the decoder of MP3 files writes to C's standard error, kept off the terminal.

libsndfile's decoder (mpg123) reports damaged frames there, hundreds of lines a file.
While an MP3 file is open, C's `stderr` is a temporary file of ours; what was written
goes to the log. Python's `sys.stderr`, descriptor 2 and child processes are not
touched, so that threads, progress bars and logs continue as they were. Only glibc lets
`stderr` be replaced; elsewhere nothing is done, and no file counts as damaged.
"""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
import threading

log = logging.getLogger(__name__)
MAX_LINES = 10  # of one file that are logged
_MOST_BYTES = 10_000  # of one file that are looked at
_UNBUFFERED = 2  # _IONBF


class DecoderMessages:
    """The messages of the decoder while a file is open.

    Args:
        alone: wait until no other MP3 file is open, and let none be opened.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._is_open = True
        self._sink = _sink()
        self._begin, self._entry = self._sink.enter(alone=alone)
        self._end: int | None = None
        self.is_sure = True

    @property
    def has_some(self) -> bool:
        """Whether there are messages until now."""
        end = self._sink.size() if self._end is None else self._end
        return end > self._begin

    def close(self) -> None:
        """Write them to the log."""
        if not self._is_open:
            return
        self._is_open = False
        self._end = self._sink.size()
        self.is_sure = self._sink.leave(self._begin, self._entry, alone=self._alone)


class _Sink:
    """A temporary file that stands for C's `stderr` while MP3 files are open."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._turn = threading.Condition()
        self._open = 0
        self._entries = 0
        self._is_alone = False
        self._libc, self._stream = _c_stream(self._file.fileno())
        self._before: int | None = None

    def size(self) -> int:
        """Return how many bytes were written."""
        return os.fstat(self._file.fileno()).st_size

    def enter(self, *, alone: bool) -> tuple[int, int]:
        """Take what is written from now on; return where that begins, and a number."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_alone)
            if alone:
                self._is_alone = True
                self._turn.wait_for(lambda: self._open == 0)
            if self._open == 0:
                self._replace()
            self._open += 1
            self._entries += 1
            return self.size(), self._entries if self._open == 1 else -1

    def leave(self, begin: int, entry: int, *, alone: bool) -> bool:
        """Log what was written; return whether its source is certain."""
        with self._turn:
            is_sure = entry == self._entries
            written = os.pread(self._file.fileno(), _MOST_BYTES, begin)
            self._open -= 1
            if self._open == 0:
                self._restore()
            if alone:
                self._is_alone = False
            self._turn.notify_all()
        _log(written)
        return is_sure

    def _replace(self) -> None:
        """Let C's `stderr` be the file."""
        if self._libc is not None:
            place = ctypes.c_void_p.in_dll(self._libc, "stderr")
            self._before, place.value = place.value, self._stream

    def _restore(self) -> None:
        """Let C's `stderr` be what it was."""
        if self._libc is not None:
            ctypes.c_void_p.in_dll(self._libc, "stderr").value = self._before
            os.ftruncate(self._file.fileno(), 0)


def _log(written: bytes) -> None:
    """Log the decoder's messages, the first of many."""
    lines = [line for line in written.decode(errors="replace").split("\n") if line]
    for line in lines[:MAX_LINES]:
        log.info("MP3 decoder: %s", line.strip())
    if len(lines) > MAX_LINES:
        log.info("MP3 decoder: more lines, left out")


def _c_stream(descriptor: int) -> tuple[ctypes.CDLL | None, int | None]:
    """Return C's library and a stream of it to a file; None without glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None, None
    libc.fdopen.restype = ctypes.c_void_p
    stream = libc.fdopen(os.dup(descriptor), b"a")
    libc.setvbuf(ctypes.c_void_p(stream), None, _UNBUFFERED, 0)
    return libc, stream


_made: list[_Sink] = []
_making = threading.Lock()


def _sink() -> _Sink:
    """Return the sink of this process, made at the first use."""
    with _making:
        if not _made:
            _made.append(_Sink())
        return _made[0]


# A child that is forked has its own file.
os.register_at_fork(after_in_child=_made.clear)
