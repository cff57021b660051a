"""Sessions of many clients on one model: frames batched, searches in threads.

A thread takes the chunks that sessions have ready, whatever their number, through the
network in one call, or hands them to a process that does; the searches, features and
results of each session are computed in a pool of threads, one step of a session at a
time. While a batch is computed, the chunks of the next one gather: batches grow with
the load, and a lone session never waits. Sessions at their end go first, in the pool as
through the network: it is their final text that somebody waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np

from latflow.errors import UserError, is_out_of_memory
from latflow.parallel import worker_pool
from latflow.serving.acoustics import Chunk
from latflow.serving.memory import AddressSpace
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Event
from latflow.serving.scoring import ChunkScorer, LocalScorer, Observer
from latflow.serving.session import Session

log = logging.getLogger("latflow")
_STEP_BYTES = 32 << 20  # that a step of a session may need, whatever it holds
_NO_MEMORY = "there is no memory for another session"
_Work = Callable[[Session], Sequence[Event]]
_Item = TypeVar("_Item")


class OverloadedError(UserError):
    """There are as many sessions as are allowed, or no memory for this one."""


class ClosedError(Exception):
    """A session was closed before what was asked of it was done."""


class _Waiting(Generic[_Item]):
    """Sessions that wait for a thread, each with an item; those at their end first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_end: deque[tuple[LiveSession, _Item]] = deque()
        self._others: deque[tuple[LiveSession, _Item]] = deque()
        self._is_closed = False

    def put(self, session: LiveSession, item: _Item) -> None:
        """Add a session."""
        with self._changed:
            line = self._at_end if session.is_at_end else self._others
            line.append((session, item))
            self._changed.notify()

    def take(self, at_most: int) -> list[tuple[LiveSession, _Item]]:
        """Wait for sessions and take them: at their end, or others; [] once closed."""
        with self._changed:
            while not (self._at_end or self._others or self._is_closed):
                self._changed.wait()
            if self._is_closed:
                return []
            line = self._at_end or self._others
            return [line.popleft() for _ in range(min(at_most, len(line)))]

    def close(self) -> None:
        """Let all that wait continue, with nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class LiveSession:
    """A session that a scheduler works on.

    Each request is done after those before it; its future has the events it led to.
    A request that fails ends the session, and all that wait with it.
    """

    def __init__(self, scheduler: Scheduler, session: Session) -> None:
        self._scheduler = scheduler
        self._session = session
        self._lock = threading.Lock()
        self._requests: deque[tuple[_Work, Future[list[Event]]]] = deque()
        self._current: Future[list[Event]] | None = None
        self._events: list[Event] = []
        self.is_at_end = False  # what is left to do is what follows the last samples
        self._is_busy = False
        self._is_closed = False  # nothing more is done
        self._has_ended = False  # nothing is held any more

    @property
    def warnings(self) -> tuple[str, ...]:
        """About what the session has left out, a sentence each."""
        return tuple(self._session.warnings)

    def accept(self, samples: np.ndarray) -> Future[list[Event]]:
        """Recognize samples: int16, or float32 in [-1, 1], of any number."""
        return self._ask(lambda session: session.feed(samples))

    def finish(self) -> Future[list[Event]]:
        """Recognize to the end what was accepted."""
        return self._ask(Session.end)

    def close(self) -> None:
        """Release what was asked and is not done; free what the session holds."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            was_busy = self._is_busy
        self._scheduler._forget(self)
        if not was_busy:
            self._end(ClosedError())

    def _ask(self, work: _Work) -> Future[list[Event]]:
        """Add a request; begin with it where none is being worked on."""
        future: Future[list[Event]] = Future()
        with self._lock:
            if self._is_closed:
                future.set_exception(ClosedError())
                return future
            self._requests.append((work, future))
            starts, self._is_busy = not self._is_busy, True
            if starts:
                self.is_at_end = work is Session.end
        if starts:
            self._scheduler._submit(self, None)
        return future

    def _step(self, scores: np.ndarray | None) -> Chunk | None:
        """Work until the network is needed, or nothing is left to do.

        Args:
            scores: of the chunk that was returned before.

        Returns:
            The chunk to be scored next; None where the session waits for requests.
        """
        try:
            held = self._session.num_bytes
            grown = held + max(held, _STEP_BYTES)
            # an array is copied to grow; lattices are made of what a search holds
            with self._scheduler.memory.taking(2 * held + grown + _STEP_BYTES):
                self._session.limit(grown)
                return self._work(scores)
        except Exception as error:  # noqa: BLE001 - one session's fault is not others'
            self.fail(error)
            return None

    def _work(self, scores: np.ndarray | None) -> Chunk | None:
        """Do what `_step` says."""
        if scores is not None and not self._is_closed:
            self._events += self._session.advance(scores)
        while not self._is_closed:
            chunk = self._session.take_chunk()
            if chunk is not None:
                return chunk
            if not self._begin_next():
                return None
        self._end(ClosedError())
        return None

    def _begin_next(self) -> bool:
        """End the request at hand and begin the next; return whether there is one."""
        if self._current is not None:
            current, self._current = self._current, None
            events, self._events = self._events, []
            current.set_result(events)
        while True:
            with self._lock:
                if not self._requests:
                    self._is_busy = self._is_closed
                    return self._is_closed
                work, future = self._requests.popleft()
                self.is_at_end = work is Session.end
            if future.set_running_or_notify_cancel():
                self._current = future
                self._events += work(self._session)
                return True

    def fail(self, error: Exception) -> None:
        """End the session by an error, which all that wait get."""
        if is_out_of_memory(error):
            text = "there is no memory for the session"
            error = OverloadedError(text, remedy="try again later")
            log.warning("%s: it was ended", error.what)
        with self._lock:
            self._is_closed = True
        self._scheduler._forget(self)
        self._end(error)
        if not isinstance(error, UserError):
            log.error("a session failed", exc_info=error)

    def _end(self, error: Exception) -> None:
        """Tell all that wait of an error, and free what the session holds."""
        with self._lock:
            is_first, self._has_ended = not self._has_ended, True
            waiting = [future for _, future in self._requests]
            self._requests.clear()
        current, self._current = self._current, None
        if current is not None:
            current.set_exception(error)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        if is_first:
            self._session.close()


class Scheduler:
    """Work on many sessions of a model; open it by `with`.

    Args:
        model: which all sessions recognize with.
        threads: searches at a time.
        network_threads: threads of a call of the network.
        max_batch: chunks that go through the network at a time.
        max_sessions: sessions at a time; `open` refuses more.
        observer: is notified of the work.
        memory: of the process, that sessions are to leave some of.
        scorer: scores the chunks, and is closed with the scheduler; None: the model
            does, in a thread of the scheduler's.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        network_threads: int = 1,
        max_batch: int,
        max_sessions: int,
        observer: Observer | None = None,
        memory: AddressSpace | None = None,
        scorer: ChunkScorer | None = None,
    ) -> None:
        self.model = model
        self.memory = memory or AddressSpace(0)
        self.memory.spares.append(lambda: model.decoder.free())
        self._max_sessions = max_sessions
        self._observer = observer or Observer()
        self._scorer = scorer or LocalScorer(
            model.acoustics, max_batch, network_threads, self._observer
        )
        self._sessions: set[LiveSession] = set()
        self._opening = 0  # sessions that are being made
        self._lock = threading.Lock()
        self._steps: _Waiting[np.ndarray | None] = _Waiting()
        self._chunks: _Waiting[Chunk] = _Waiting()
        self._pool = worker_pool(threads)
        self._network = threading.Thread(target=self._score_batches, name="network")

    def __enter__(self) -> Self:
        """Start the threads."""
        self._pool.__enter__()
        self._network.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all sessions, end the threads."""
        sessions = tuple(self._sessions)
        self.close_all()
        self._chunks.close()
        self._scorer.close()
        self._network.join()
        self._pool.__exit__(kind, error, trace)
        for session in sessions:  # those whose step was not begun any more
            session._end(ClosedError())

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    def open(self, options: SessionOptions, name: str = "audio") -> LiveSession:
        """Begin a session.

        Raises:
            OverloadedError: there are as many as are allowed, or no memory.
            UserError: the model cannot do what the options ask for.
        """
        with self._lock:
            self.check_room()
            self._opening += 1
        try:  # others do not wait for it
            with self.memory.taking(_STEP_BYTES):
                session = LiveSession(self, Session(self.model, options, name))
        except BaseException as error:
            with self._lock:
                self._opening -= 1
            if isinstance(error, MemoryError):
                raise OverloadedError(_NO_MEMORY, remedy="try again later") from None
            raise
        with self._lock:
            self._opening -= 1
            self._sessions.add(session)
        self._observer.opened()
        return session

    def check_room(self) -> None:
        """Refuse another session, before what it is for is taken.

        Raises:
            OverloadedError: there are as many as are allowed, or no memory.
        """
        if len(self._sessions) + self._opening >= self._max_sessions:
            raise OverloadedError(
                f"all {self._max_sessions} sessions are taken",
                remedy="try again later",
            )
        if not self.memory.has(_STEP_BYTES):
            raise OverloadedError(_NO_MEMORY, remedy="try again later")

    def close_all(self) -> None:
        """Close all sessions; what was asked of them is given up."""
        for session in tuple(self._sessions):
            session.close()

    def _forget(self, session: LiveSession) -> None:
        """Take a session off the list."""
        with self._lock:
            was_there = session in self._sessions
            self._sessions.discard(session)
        if was_there:
            self._observer.closed()

    def _submit(self, session: LiveSession, scores: np.ndarray | None) -> None:
        """Queue the next step of a session for a thread."""
        self._steps.put(session, scores)
        self._pool.submit(self._work)

    def _work(self) -> None:
        """Do a step of the session that is first in line."""
        ((session, scores),) = self._steps.take(1)
        began = time.perf_counter()
        chunk = session._step(scores)
        self._observer.searched(time.perf_counter() - began)
        if chunk is not None:
            self._chunks.put(session, chunk)

    def _score_batches(self) -> None:
        """Score the chunks that are ready until asked to end."""
        while (room := self._scorer.room()) and (batch := self._chunks.take(room)):
            callbacks = [partial(self._take_scores, session) for session, _ in batch]
            chunks, urgent = [chunk for _, chunk in batch], batch[0][0].is_at_end
            try:
                self._scorer.score(chunks, callbacks, are_urgent=urgent)
            except Exception as error:
                log.exception("a batch failed")
                for session, _ in batch:
                    session.fail(error)

    def _take_scores(self, session: LiveSession, found: np.ndarray | Exception) -> None:
        """Go on with a session whose chunk was scored, or could not be."""
        if isinstance(found, Exception):
            session.fail(found)
        else:
            self._submit(session, found)
