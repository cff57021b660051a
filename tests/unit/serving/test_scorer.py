"""The scorer process: its memory and messages, its scores, and deaths on both sides."""

import contextlib
import errno
import gc
import os
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.waiting import PATIENCE
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving import shared_chunks, shared_scorer
from latflow.serving.acoustics import Chunk, ChunkCutter, NetworkAcoustics
from latflow.serving.options import SessionOptions
from latflow.serving.results import Final
from latflow.serving.scheduler import Scheduler
from latflow.serving.scorer import Scorer, Served
from latflow.serving.scoring import Observer, score_each
from latflow.serving.session import Session
from latflow.serving.shared_chunks import Answer, Door, Memory, Records, packed
from latflow.serving.shared_scorer import SharedScorer

DIM, PDFS, FACTOR = 3, 5, 2


class Doubling:
    """Acoustics whose scores are twice the first feature, in all columns."""

    subsampling, num_pdfs = FACTOR, PDFS

    def __init__(self):
        self.batches = []

    def score(self, chunks):
        self.batches.append(len(chunks))
        if any((chunk.frames == 13).any() for chunk in chunks):
            raise RuntimeError("13 is not liked")
        return [self.one(chunk) for chunk in chunks]

    @staticmethod
    def one(chunk):
        own = chunk.frames[chunk.left : len(chunk.frames) - chunk.right : FACTOR, :1]
        return np.repeat(2 * own, PDFS, axis=1)


class Dies(Exception):
    """Stands for the death of a process."""


class Threaded:
    """A scorer in a thread of this process, which can die and be replaced.

    Args:
        scores: function of each model.
        max_batch: of the scorer.
    """

    def __init__(self, *scores, max_batch=4):
        self.door, self.max_batch = Door(), max_batch
        self.served = [Served(FACTOR, PDFS, Batched(score)) for score in scores]
        self.start()

    def start(self):
        self.scorer = Scorer(self.served, self.door.inside, self.max_batch)
        ours, self.ending = socket.socketpair()
        self.scorer.end_with(ours.fileno())
        self.thread = threading.Thread(target=self.run, args=(ours,))
        self.thread.start()

    def run(self, ours):
        with contextlib.suppress(SystemExit, Dies), ours:
            self.scorer.run()
        for client in tuple(self.scorer._clients):
            client.close()

    def revive(self, deaths):
        """Start again as often as it dies."""
        for _ in range(deaths):
            self.thread.join(PATIENCE)
            assert not self.thread.is_alive()
            self.ending.close()
            self.start()

    def client(self, number=0, usual=20):
        facts = SimpleNamespace(subsampling=FACTOR, num_pdfs=PDFS)
        return SharedScorer(self.door.outside, number, facts, usual=usual, dim=DIM)

    def close(self):
        self.ending.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.door.close()


class Batched:
    """Batches of which the scorer dies where `score` raises `Dies`."""

    depth = 1

    def __init__(self, score):
        self.score = score

    def begin(self, chunks):
        found = score_each(self.score, chunks, Observer())
        for one in found:
            if isinstance(one, Dies):
                raise one
        return lambda: found


@pytest.fixture
def scorer():
    with contextlib.closing(Threaded(Doubling().score, Doubling().score)) as running:
        yield running


def chunk_of(value, length=10, left=2, right=1):
    frames = np.full((length, DIM), value, np.float32)
    frames += np.arange(length, dtype=np.float32)[:, None] / 64
    return Chunk(frames, left, right)


class Told:
    """What was told of chunks, in their order."""

    def __init__(self, number):
        self.found, self.done = [None] * number, threading.Semaphore(0)
        self.tell = [lambda x, i=i: self.take(i, x) for i in range(number)]

    def take(self, i, found):
        assert self.found[i] is None
        self.found[i] = found
        self.done.release()

    def wait(self):
        for _ in self.found:
            assert self.done.acquire(timeout=PATIENCE)
        return self.found


def ask(client, chunks, *, are_urgent=False):
    told = Told(len(chunks))
    begin = 0
    while begin < len(chunks):
        end = begin + min(client.room(), len(chunks) - begin)
        part, tell = chunks[begin:end], told.tell[begin:end]
        client.score(part, tell, are_urgent=are_urgent)
        begin = end
    return told


def assert_scored(told, chunks):
    for found, chunk in zip(told.wait(), chunks, strict=True):
        np.testing.assert_array_equal(found, Doubling.one(chunk))


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 7))
def test_records_survive_any_cutting(numbers, size):
    sent = [Answer(n, n % 3) for n in numbers]
    here, there = socket.socketpair()
    with here, there:
        data = packed(sent)
        for begin in range(0, len(data), size):
            there.sendall(data[begin : begin + size])
        there.shutdown(socket.SHUT_WR)
        records, found = Records(Answer, here), []
        while (taken := records.take()) is not None:
            found += taken
    assert found == sent


def test_each_chunk_gets_its_own_scores(scorer):
    chunks = [chunk_of(v, 4 + v % 9, v % 3, v % 2) for v in range(30, 130)]
    with contextlib.closing(scorer.client()) as one:
        with contextlib.closing(scorer.client(1)) as other:
            first, second = ask(one, chunks), ask(other, chunks[::-1])
            assert_scored(first, chunks)
            assert_scored(second, chunks[::-1])
        assert one._memory.num_free == one._memory.slots
    batches = scorer.served[0].batches.score.__self__.batches
    assert sum(batches) == 100
    assert max(batches) <= scorer.max_batch


def test_more_chunks_than_slots_wait(scorer, monkeypatch):
    monkeypatch.setattr(shared_scorer, "_SLOTS", 3)
    chunks = [chunk_of(v) for v in range(20, 60)]
    with contextlib.closing(scorer.client()) as client:
        assert client.room() <= 3
        assert_scored(ask(client, chunks), chunks)
        assert client.room() == 3


def test_a_segment_larger_than_a_slot_has_pages_of_its_own(scorer):
    long = [chunk_of(v, length) for v, length in ((20, 9001), (21, 40_000), (22, 5000))]
    chunks = [chunk_of(19), *long, chunk_of(23)]
    with contextlib.closing(scorer.client()) as client:
        before = os.fstat(client._memory.file).st_size
        for _ in range(3):
            assert_scored(ask(client, chunks), chunks)
        assert os.fstat(client._memory.file).st_size == before
        assert client._memory.num_free == client._memory.slots


def test_a_fault_is_told_of_its_chunk_only(scorer):
    chunks = [chunk_of(v) for v in range(10, 20)]
    chunks[3].frames[:] = 13
    with contextlib.closing(scorer.client()) as client:
        found = ask(client, chunks).wait()
    assert str(found[3]) == "RuntimeError: 13 is not liked"
    for i in set(range(10)) - {3}:
        np.testing.assert_array_equal(found[i], Doubling.one(chunks[i]))


def test_ends_of_sessions_go_first():
    acoustics, order = Doubling(), []
    begun, gate = threading.Event(), threading.Event()

    def score(chunks):
        begun.set()
        gate.wait(PATIENCE)
        order.extend(float(chunk.frames[0, 0]) for chunk in chunks)
        return Doubling.score(acoustics, chunks)

    running = Threaded(score, max_batch=1)
    with contextlib.closing(running), contextlib.closing(running.client()) as client:
        first = ask(client, [chunk_of(20)])
        assert begun.wait(PATIENCE)
        asked = [first, ask(client, [chunk_of(21), chunk_of(22)])]
        asked.append(ask(client, [chunk_of(30)], are_urgent=True))
        gate.set()
        for told in asked:
            told.wait()
    assert order == [20, 30, 21, 22]


def test_a_worker_that_goes_leaves_nothing(scorer):
    fds = len(os.listdir("/proc/self/fd"))
    with contextlib.closing(scorer.client()) as staying:
        for _ in range(20):
            with contextlib.closing(scorer.client()) as going:
                ask(going, [chunk_of(v) for v in range(20, 40)])
        chunks = [chunk_of(50)]
        assert_scored(ask(staying, chunks), chunks)
    del staying, going
    gc.collect()
    end = time.monotonic() + PATIENCE
    while len(os.listdir("/proc/self/fd")) > fds:
        assert time.monotonic() < end, os.listdir("/proc/self/fd")
        time.sleep(0.01)
    assert not scorer.scorer._clients


def test_chunks_of_a_dead_scorer_are_sent_to_the_next():
    deaths = iter(range(2))

    def score(chunks):
        if next(deaths, None) is not None:
            raise Dies
        return [Doubling.one(chunk) for chunk in chunks]

    running = Threaded(score, max_batch=1)
    with contextlib.closing(running), contextlib.closing(running.client()) as client:
        chunks = [chunk_of(v) for v in range(20, 40)]
        told = ask(client, chunks)
        running.revive(deaths=2)
        assert_scored(told, chunks)
        assert_scored(ask(client, chunks), chunks)


def test_a_channel_is_asked_for_until_there_is_one(monkeypatch, caplog):
    deaths, refusals, enter = iter(range(1)), iter(range(2)), Door.enter

    def score(chunks):
        if next(deaths, None) is not None:
            raise Dies
        return [Doubling.one(chunk) for chunk in chunks]

    def enter_later(*arguments):
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return enter(*arguments)

    monkeypatch.setattr("latflow.serving.shared_scorer._AGAIN", 0.01)
    running = Threaded(score, max_batch=1)
    with contextlib.closing(running), contextlib.closing(running.client()) as client:
        monkeypatch.setattr(Door, "enter", enter_later)
        chunks = [chunk_of(v) for v in range(20, 24)]
        told = ask(client, chunks)
        running.revive(deaths=1)
        assert_scored(told, chunks)
    assert caplog.text.count("Too many open files") == 2


def test_a_chunk_that_scorers_die_of_is_given_up_and_no_other():
    gate = threading.Event()

    def score(chunks):
        gate.wait(PATIENCE)  # until all are there, so that others are in its batch
        if any((chunk.frames == 13).any() for chunk in chunks):
            raise Dies
        return [Doubling.one(chunk) for chunk in chunks]

    running = Threaded(score, max_batch=4)
    with contextlib.closing(running), contextlib.closing(running.client()) as client:
        chunks = [chunk_of(v) for v in range(20, 40)]
        chunks[3].frames[:] = 13
        told = ask(client, chunks)
        gate.set()
        running.revive(deaths=3)
        found = told.wait()
        assert isinstance(found[3], UserError)
        assert "scorers have died" in str(found[3])
        for i in set(range(20)) - {3}:
            np.testing.assert_array_equal(found[i], Doubling.one(chunks[i]))
        assert_scored(ask(client, chunks[4:]), chunks[4:])
        assert client._memory.num_free == client._memory.slots


@pytest.fixture
def shared(model):
    """A client of a scorer that has the package's network."""
    acoustics = model.acoustics
    running = Threaded(acoustics.score)
    running.served[0] = Served(
        acoustics.subsampling, acoustics.num_pdfs, Batched(acoustics.score)
    )
    client = SharedScorer(running.door.outside, 0, acoustics, usual=20, dim=13)
    with contextlib.closing(running), contextlib.closing(client):
        yield client


def test_a_lone_chunk_has_the_bits_that_it_has_here(model, digits, shared):
    stream = model.front_end()
    samples = digits.samples(next(iter(digits.texts)))
    cutter = ChunkCutter(24, model.acoustics.context)
    cutter.add(stream.accept(samples.astype(np.float32)))
    cutter.add(stream.finish())
    cutter.end()
    number = 0
    while (chunk := cutter.take()) is not None:
        (here,) = model.acoustics.score([chunk])
        (there,) = ask(shared, [chunk]).wait()
        np.testing.assert_array_equal(here, there)
        number += 1
    assert number > 1


def test_sessions_by_the_scorer_have_the_words_of_lone_ones(model, digits, shared):
    said = [digits.samples(name).astype(np.float32) for name in list(digits.texts)[:6]]
    alone = []
    for samples in said:
        with Session(model) as session:
            alone.append(session.accept(samples) + session.finish())
    settings = {"threads": 2, "max_batch": 8, "max_sessions": 8}
    with Scheduler(model, **settings, scorer=shared) as scheduler:
        sessions = [scheduler.open(SessionOptions()) for _ in said]
        asked = [s.accept(samples) for s, samples in zip(sessions, said, strict=True)]
        ends = [session.finish() for session in sessions]
        for first, last, events in zip(asked, ends, alone, strict=True):
            found = first.result(PATIENCE) + last.result(PATIENCE)
            assert list(map(words_of, found)) == list(map(words_of, events))


def network_acoustics():
    """Scores of a network whose layers keep what they need of a stream."""
    layers = {
        "halves": {"class": "conv1d", "size": 4, "kernel": 5, "stride": FACTOR},
        "output": {"class": "output", "loss": "lfmmi"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, DIM, {"pdf": PDFS}, seed=4).eval()
    found = AcousticNetwork(network, None, {"scores": "log_likelihoods"})
    return NetworkAcoustics(found, Normalizer(), 0.0, torch.device("cpu"))


def streamed(client, acoustics, frames):
    """Ask for scores of a segment, chunk by chunk; yield those that have come."""
    cutter, found = ChunkCutter(4, acoustics.context), []
    cutter.add(frames)
    cutter.end()
    while (chunk := cutter.take()) is not None:
        found.append(ask(client, [chunk]).wait()[0])
        yield found


def test_streams_go_on_by_the_scorer_and_by_the_next_one_with_their_context():
    acoustics, rng = network_acoustics(), np.random.default_rng(1)
    segments = rng.normal(size=(3, 50, DIM)).astype(np.float32)
    whole = [acoustics.log_likes(frames) for frames in segments]
    network, deaths = acoustics.network.network, iter([])
    forward, again = network.forward, []
    network.forward = lambda *a, **k: (again.append(1), forward(*a, **k))[1]

    def score(chunks):
        if next(deaths, None) is not None:
            raise Dies
        return acoustics.score(chunks)

    running = Threaded(score)
    with (
        contextlib.closing(running),
        contextlib.closing(running.client()) as one,
        contextlib.closing(running.client()) as other,
    ):
        # of two workers at a time: nothing is computed again
        pairs = zip(
            streamed(one, acoustics, segments[0]),
            streamed(other, acoustics, segments[1]),
            strict=True,
        )
        *_, (first, second) = pairs
        np.testing.assert_allclose(np.concatenate(first), whole[0], atol=1e-5)
        np.testing.assert_allclose(np.concatenate(second), whole[1], atol=1e-5)
        assert not again
        assert not any(client._streams for client in running.scorer._clients)
        # a chunk without a stream is scored by its frames
        alone = [Chunk(segments[2, :10], 4, 2)]
        (expected,) = acoustics.score(alone)
        np.testing.assert_array_equal(ask(one, alone).wait()[0], expected)
        again.clear()
        for count, found in enumerate(streamed(one, acoustics, segments[2])):
            last = found
            if count == 4:
                deaths = iter([1])
                running_again = threading.Thread(target=running.revive, args=(1,))
                running_again.start()
        running_again.join(PATIENCE)
        np.testing.assert_allclose(np.concatenate(last), whole[2], atol=1e-5)
        assert len(again) == 13 - 5


def test_a_scorer_keeps_the_streams_that_were_asked_for_last(monkeypatch):
    monkeypatch.setattr("latflow.serving.scorer._STREAMS", 1)
    acoustics, rng = network_acoustics(), np.random.default_rng(1)
    segments = rng.normal(size=(2, 20, DIM)).astype(np.float32)
    running = Threaded(acoustics.score)
    with contextlib.closing(running), contextlib.closing(running.client()) as client:
        pairs = zip(*(streamed(client, acoustics, x) for x in segments), strict=True)
        for index, both in enumerate(pairs):
            found = both
            (only,) = running.scorer._clients
            assert len(only._streams) == (index < 4)
        for rows, frames in zip(found, segments, strict=True):
            expected = acoustics.log_likes(frames)
            np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-5)


def words_of(event):
    return event.segment.best.text if isinstance(event, Final) else event.text


def test_no_memory_is_one_line(monkeypatch):
    def refuse(*_):
        raise OSError(27, "File too large")

    monkeypatch.setattr(shared_chunks.os, "ftruncate", refuse)
    with pytest.raises(UserError, match="no memory to share 4 chunks.*File too large"):
        Memory(4, 1 << 20)


def test_closing_does_not_wait_for_scores():
    door = Door()  # nobody listens
    facts = SimpleNamespace(subsampling=FACTOR, num_pdfs=PDFS)
    client = SharedScorer(door.outside, 0, facts, usual=20, dim=DIM)
    ask(client, [chunk_of(20)])
    client.close()
    assert client.room() == 0
    door.close()
