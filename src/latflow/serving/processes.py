"""Processes of a server, which are replaced when they die."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

from latflow.errors import UserError

log = logging.getLogger("latflow")
spawn = multiprocessing.get_context("spawn")
_MAX_FAILURES = 3  # of processes in succession that end before they are ready


@dataclass(frozen=True)
class Role:
    """Tell what a process does.

    Attributes:
        name: of it.
        entry: function of the process.
        arguments: of the entry; behind them come the pipe that it says by that it is
            ready, and whether it is to log what is of interest, too.
        patience: seconds that the process has to end.
    """

    name: str
    entry: Callable[..., None]
    arguments: tuple[Any, ...]
    patience: float


@dataclass
class Child:
    """A process, and the pipe that it says by that it is ready.

    Attributes:
        role: what it does.
        process: the process.
        ready: the pipe.
    """

    role: Role
    process: SpawnProcess
    ready: Connection
    _was_ready: bool = False

    @classmethod
    def start(cls, role: Role) -> Child:
        """Start a process."""
        # A pipe: an event would need a /dev/shm that can be written.
        ready, sender = spawn.Pipe(duplex=False)
        arguments = *role.arguments, sender, log.isEnabledFor(logging.INFO)
        process = spawn.Process(target=role.entry, args=arguments)
        process.start()
        sender.close()
        return cls(role, process, ready)

    def is_ready(self) -> bool:
        """Return whether it has reported readiness; a dead one may have."""
        if not self._was_ready and self.ready.poll():
            with contextlib.suppress(EOFError, OSError):
                self.ready.recv()
                self._was_ready = True
        return self._was_ready


class Processes:
    """Keeps a process of each role alive.

    Args:
        roles: those of one name next to each other; they are ended in the opposite
            order, those of one name together.
        on_death: called with the id of a process that has died.
    """

    def __init__(
        self, roles: Sequence[Role], *, on_death: Callable[[int], None]
    ) -> None:
        self._roles = roles
        self._on_death = on_death
        self._alive: list[Child] = []
        self._failures = 0
        self._is_ending = False

    def run(self, on_ready: Callable[[], None]) -> None:
        """Replace those that die, until this process is asked to end.

        Args:
            on_ready: called once, when all are ready.

        Raises:
            UserError: they die before they are ready, again and again.
        """
        before = {
            number: signal.signal(number, self._end)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            self._alive += map(Child.start, self._roles)
            is_ready = False
            while not self._is_ending:
                wait([one.process.sentinel for one in self._alive], 0.2)
                self._replace_dead()
                if not is_ready and all(one.is_ready() for one in self._alive):
                    is_ready = True
                    on_ready()
        finally:
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note that all are to end."""
        self._is_ending = True

    def _replace_dead(self) -> None:
        """Start a process for each that has died."""
        dead = [child for child in self._alive if not child.process.is_alive()]
        for child in dead:
            self._alive.remove(child)
            child.process.join()
            was_ready = child.is_ready()
            child.ready.close()
            pid, name = child.process.pid, child.role.name
            assert pid is not None
            self._on_death(pid)
            if self._is_ending:
                continue
            log.error("%s %d ended (exit status %s)", name, pid, child.process.exitcode)
            self._failures = 0 if was_ready else self._failures + 1
            if self._failures >= _MAX_FAILURES:
                raise UserError(
                    f"{name}s end before they are ready", remedy="see the log above"
                )
            self._alive.append(Child.start(child.role))

    def _stop(self) -> None:
        """End all processes: in order, and by force those that do not."""
        names = dict.fromkeys(role.name for role in reversed(self._roles))
        for name in names:
            found = [child for child in self._alive if child.role.name == name]
            for child in found:
                child.process.terminate()
            began = time.monotonic()
            for child in found:
                left = began + child.role.patience - time.monotonic()
                child.process.join(max(0.0, left))
                if child.process.is_alive():
                    child.process.kill()
                    child.process.join()


def end_with_parent() -> None:
    """End this process in order when the one that started it has gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
