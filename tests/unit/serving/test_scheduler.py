"""The scheduler, with sessions whose answers are known: what comes back, to whom."""

import gc
import threading
import weakref
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.serving import scheduler as module
from latflow.serving.scheduler import (
    ClosedError,
    OverloadedError,
    Scheduler,
)
from latflow.serving.scoring import Observer

PATIENCE = 60  # seconds; a test that needs them has failed


class Summing:
    """A session whose chunks are four samples, and whose event is the sum of each."""

    num_bytes = 0  # of a search

    def limit(self, most):
        """Search with so many bytes at most."""

    def __init__(self, model, options, name):
        self.samples, self.has_ended, self.is_closed = [], False, False
        self.thread = None
        model.sessions.append(self)

    def feed(self, samples):
        self.samples += list(samples)
        if 13 in self.samples:
            raise UserError("13 is not allowed")
        if 14 in self.samples:
            raise RuntimeError("a fault of the session")
        return []

    def end(self):
        self.has_ended = True
        return []

    def take_chunk(self):
        assert self.thread in {None, threading.get_ident()}
        if len(self.samples) < 4 and not (self.has_ended and self.samples):
            return None
        chunk, self.samples = self.samples[:4], self.samples[4:]
        return chunk

    def advance(self, scores):
        assert not self.is_closed
        return [int(scores)]

    def close(self):
        assert not self.is_closed
        self.is_closed = True


class Counts(Observer):
    def __init__(self):
        self.open, self.batches = 0, []

    def opened(self):
        self.open += 1

    def closed(self):
        self.open -= 1

    def scored(self, chunks, seconds):
        self.batches.append(chunks)


def score(chunks):
    if any(15 in chunk for chunk in chunks):
        raise RuntimeError("a fault of the network")
    return [np.float32(sum(chunk)) for chunk in chunks]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(module, "Session", Summing)
    return SimpleNamespace(acoustics=SimpleNamespace(score=score), sessions=[])


def scheduler(model, **options):
    settings = {"threads": 2, "max_batch": 3, "max_sessions": 8}
    return Scheduler(model, **{**settings, **options})


def in_fours(samples):
    return [sum(samples[i : i + 4]) for i in range(0, len(samples), 4)]


pieces = st.lists(st.lists(st.integers(20, 99), max_size=9), max_size=6)


@given(st.lists(pieces, min_size=1, max_size=5))
def test_each_session_gets_the_events_of_its_own_samples_in_order(talks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Session", Summing)
        model = SimpleNamespace(acoustics=SimpleNamespace(score=score), sessions=[])
        with scheduler(model) as running:
            sessions = [running.open(None) for _ in talks]
            futures = [[] for _ in talks]
            for turn in range(max(map(len, talks))):
                for talk, session, asked in zip(talks, sessions, futures, strict=True):
                    if turn < len(talk):
                        asked.append(session.accept(np.array(talk[turn], int)))
            for session, asked in zip(sessions, futures, strict=True):
                asked.append(session.finish())
            for talk, asked in zip(talks, futures, strict=True):
                events = [event for f in asked for event in f.result(PATIENCE)]
                assert events == in_fours([n for piece in talk for n in piece])
                # What is complete is told at once, not with a later message.
                heard = 0
                for piece, future in zip(talk, asked, strict=False):
                    before, heard = heard, heard + len(piece)
                    assert len(future.result()) == heard // 4 - before // 4
            for session in sessions:
                session.close()
            assert running.sessions == 0
    assert all(session.is_closed for session in model.sessions)


def test_chunks_of_sessions_are_scored_together_up_to_a_number(model):
    counts = Counts()
    gate = threading.Event()

    def wait_and_score(chunks):
        gate.wait(PATIENCE)
        return score(chunks)

    model.acoustics.score = wait_and_score
    with scheduler(model, observer=counts) as running:
        sessions = [running.open(None) for _ in range(8)]
        asked = [
            session.accept(np.full(4, 20 + i)) for i, session in enumerate(sessions)
        ]
        while len(running._chunks._others) < 5:  # the rest waits behind a batch
            pass
        gate.set()
        for i, future in enumerate(asked):
            assert future.result(PATIENCE) == [80 + 4 * i]
    assert sum(counts.batches) == 8
    assert max(counts.batches) == 3
    assert counts.open == 0


@pytest.mark.parametrize(
    ("bad", "error"), [(13, UserError), (14, RuntimeError), (15, RuntimeError)]
)
def test_a_fault_ends_the_session_that_it_is_of_only(model, bad, error):
    with scheduler(model) as running:
        good, faulty = running.open(None), running.open(None)
        before = faulty.accept(np.full(4, 20))
        at = faulty.accept(np.full(4, bad))
        after = faulty.accept(np.full(4, 20))
        other = good.accept(np.full(8, 30))
        assert before.result(PATIENCE) == [80]
        for future in (at, after):
            with pytest.raises(error):
                future.result(PATIENCE)
        assert other.result(PATIENCE) == [120, 120]
        with pytest.raises(ClosedError):
            faulty.accept(np.full(4, 20)).result(PATIENCE)
        assert running.sessions == 1
        faulty.close()
        assert good.finish().result(PATIENCE) == []
    assert all(session.is_closed for session in model.sessions)


def test_sessions_at_their_end_go_first(model):
    order, begun, gate = [], threading.Event(), threading.Event()

    def wait_and_score(chunks):
        begun.set()
        gate.wait(PATIENCE)
        order.append([chunk[0] for chunk in chunks])
        return score(chunks)

    model.acoustics.score = wait_and_score
    with scheduler(model, threads=1) as running:
        first, second, third, ending = (running.open(None) for _ in range(4))
        ending.accept(np.full(3, 30)).result(PATIENCE)  # less than a chunk
        asked = [first.accept(np.full(4, 20))]
        begun.wait(PATIENCE)
        asked += [second.accept(np.full(4, 21)), third.accept(np.full(4, 22))]
        asked.append(ending.finish())
        while not running._chunks._at_end:
            pass
        gate.set()
        for future in asked:
            future.result(PATIENCE)
    assert order[:2] == [[20], [30]]  # alone, though it came last
    assert sorted(n for batch in order[2:] for n in batch) == [21, 22]


def test_more_sessions_than_allowed_are_refused_until_one_is_closed(model):
    with scheduler(model, max_sessions=2) as running:
        first, _ = running.open(None), running.open(None)
        with pytest.raises(OverloadedError, match="all 2 sessions are taken"):
            running.open(None)
        first.close()
        first.close()
        running.open(None)
        assert running.sessions == 2


def test_closing_gives_up_what_waits(model):
    gate = threading.Event()

    def wait_and_score(chunks):
        gate.wait(PATIENCE)
        return score(chunks)

    model.acoustics.score = wait_and_score
    with scheduler(model) as running:
        session = running.open(None)
        asked = [session.accept(np.full(4, 20)) for _ in range(3)]
        session.close()
        assert running.sessions == 0
        gate.set()
        for future in asked:
            with pytest.raises(ClosedError):
                future.result(PATIENCE)


def test_the_end_of_the_scheduler_tells_all_that_wait(model):
    began, gate = threading.Event(), threading.Event()

    def wait_and_score(chunks):
        began.set()
        gate.wait(PATIENCE)
        return score(chunks)

    model.acoustics.score = wait_and_score
    running = scheduler(model)
    with running:
        asked = [running.open(None).accept(np.full(4, 20)) for _ in range(8)]
        began.wait(PATIENCE)
        threading.Timer(0.05, gate.set).start()
    for future in asked:
        with pytest.raises(ClosedError):
            future.result(PATIENCE)
    assert all(session.is_closed for session in model.sessions)
    assert running.sessions == 0


def test_a_request_that_is_cancelled_is_not_done(model):
    gate = threading.Event()

    def wait_and_score(chunks):
        gate.wait(PATIENCE)
        return score(chunks)

    model.acoustics.score = wait_and_score
    with scheduler(model) as running, closing(running.open(None)) as session:
        first = session.accept(np.full(4, 20))
        second, third = session.accept(np.full(4, 30)), session.accept(np.full(4, 40))
        assert second.cancel()
        gate.set()
        assert first.result(PATIENCE) == [80]
        assert third.result(PATIENCE) == [160]


def test_ended_sessions_leave_nothing_behind(model):
    with scheduler(model) as running:
        for _ in range(50):
            with closing(running.open(None)) as session:
                session.accept(np.full(8, 20)).result(PATIENCE)
        alive = weakref.WeakSet(model.sessions)
        model.sessions.clear()
        gc.collect()
        assert len(alive) <= 2  # those that the threads' last frames may hold


def test_the_network_has_as_many_threads_as_asked_for():
    before, seen = torch.get_num_threads(), []

    def look(chunks):
        seen.append(torch.get_num_threads())
        return score(chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Session", Summing)
        model = SimpleNamespace(acoustics=SimpleNamespace(score=look), sessions=[])
        with scheduler(model, network_threads=before + 1) as running:
            running.open(None).accept(np.arange(20, 40)).result()
    torch.set_num_threads(before)
    assert set(seen) == {before + 1}
