"""Errors that end a job in one clear line, and interruptions."""

from __future__ import annotations

from pathlib import Path

_OUT_OF_MEMORY = ("OutOfMemoryError",)  # of torch, for GPUs
# Of torch's allocator for the processor, of CUDA's libraries, of page-locked memory.
_TOO_LITTLE = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class UserError(Exception):
    """Bad input or configuration, reported in one line: where, what, remedy.

    Args:
        what: what is wrong, in the user's terms.
        file: the file that holds the fault, if any.
        utterance: the utterance (or recording, speaker, word) concerned, if any.
        remedy: what the user can do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        utterance: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.file = None if file is None else str(file)
        self.utterance = utterance
        self.remedy = remedy
        where = ": ".join(part for part in (self.file, utterance) if part)
        line = f"{where}: {what}" if where else what
        line = f"{line} - {remedy}" if remedy else line
        super().__init__(" ".join(line.splitlines()))  # what is quoted may hold ends

    def at(
        self,
        *,
        file: str | Path | None = None,
        utterance: str | None = None,
        remedy: str | None = None,
    ) -> UserError:
        """Return the error with what is known of it further up; None keeps its own."""
        return UserError(
            self.what,
            file=file or self.file,
            utterance=utterance or self.utterance,
            remedy=remedy or self.remedy,
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle makes the error again from, in another process."""
        return (_rebuild, (self.what, self.file, self.utterance, self.remedy))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a lack of memory, also as libraries report it.

    Torch is not asked for its class: jobs that work without it do not import it.
    """
    is_named = isinstance(error, MemoryError) or type(error).__name__ in _OUT_OF_MEMORY
    message = str(error)
    return is_named or (
        isinstance(error, RuntimeError)
        and any(words in message for words in _TOO_LITTLE)
    )


class Interrupted(Exception):  # noqa: N818 - not an error
    """A job was asked to stop, and has kept what it has done."""

    def __init__(
        self,
        line: str = "the training was interrupted; its checkpoint is written: run the "
        "same command again, and it continues from there",
    ) -> None:
        super().__init__(line)


def _rebuild(
    what: str, file: str | None, utterance: str | None, remedy: str | None
) -> UserError:
    """Make a UserError again from its parts (pickling)."""
    return UserError(what, file=file, utterance=utterance, remedy=remedy)
