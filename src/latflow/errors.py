"""Errors that end a job in one clear line, and interruptions."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Bad input or configuration, told in one line: where, what, remedy.

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


class Interrupted(Exception):  # noqa: N818 - not an error
    """A job was asked to stop, and has kept what it has done."""

    def __init__(
        self,
        line: str = "the training was interrupted; its checkpoint is written: run the "
        "same command again, and it goes on from there",
    ) -> None:
        super().__init__(line)


def _rebuild(
    what: str, file: str | None, utterance: str | None, remedy: str | None
) -> UserError:
    """Make a UserError again from its parts (pickling)."""
    return UserError(what, file=file, utterance=utterance, remedy=remedy)
