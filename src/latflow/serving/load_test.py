"""A load client: many sessions with a server at once, and what their users would feel.

Latency is the time from when the last samples of an utterance could be sent (with
`real_time` the moment at which they would have been spoken, else that at which they are
handed to the connection) to the arrival of its final text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import soundfile

from latflow.corpus.audio import can_resample
from latflow.corpus.audio_backend import Sound
from latflow.corpus.folder_files import is_audio_name
from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.corpus.manifests import at_rate, load_samples, read_cuts, text_of
from latflow.corpus.options import GivenSource
from latflow.errors import UserError
from latflow.serving.clients import ClientError, Connection, Server, server_of
from latflow.serving.load_report import Exchange, LoadReport, summarize
from latflow.serving.options import LoadOptions
from latflow.text_files import read_lines

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Utterance:
    """Speech that clients send.

    Attributes:
        name: utterance id, or path of the file.
        samples: int16[L].
        sample_rate: in Hz.
        words: its transcript; None without one.
    """

    name: str
    samples: np.ndarray
    sample_rate: int
    words: tuple[str, ...] | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.sample_rate


def read_audio(
    paths: Sequence[str | Path], *, limit: int, sample_rate: int | None = None
) -> list[Utterance]:
    """Read what clients are to send, into memory.

    Args:
        paths: audio files, folders of them, Kaldi data directories, folders with a
            `cuts.jsonl.gz`, or such manifests. Beside an audio file its transcript may
            stand, `.txt` or `.lab`.
        limit: greatest number of utterances, the first ones.
        sample_rate: rate that all are resampled to; None leaves each its own.

    Raises:
        UserError: a path is not one of these, or holds no speech.
    """
    found: list[Utterance] = []
    for path in map(Path, paths):
        found += itertools.islice(_read(path, sample_rate), limit - len(found))
    if not found:
        raise UserError("no utterance to send", remedy="name audio files or a set")
    return found


def _read(path: Path, sample_rate: int | None) -> Iterator[Utterance]:
    """Yield the utterances of a file or folder."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _of_cuts(path, sample_rate)
    elif (path / "cuts.jsonl.gz").is_file():
        yield from _of_cuts(path / "cuts.jsonl.gz", sample_rate)
    elif (path / "wav.scp").is_file():
        with tempfile.TemporaryDirectory(prefix="latflow-load-") as folder:
            import_kaldi_dir(
                path,
                Path(folder, "corpus"),
                checks=GivenSource(speaker="utterance", verify_audio=False),
                max_skipped_fraction=0.0,
            )
            yield from _of_cuts(Path(folder, "corpus/cuts.jsonl.gz"), sample_rate)
    elif path.is_dir():
        for file in sorted(p for p in path.rglob("*") if is_audio_name(p.name)):
            yield _of_file(file, sample_rate)
    else:
        yield _of_file(path, sample_rate)


def _of_cuts(path: Path, sample_rate: int | None) -> Iterator[Utterance]:
    """Yield the utterances of a manifest."""
    for cut in read_cuts(path):
        rate = sample_rate or int(cut.sampling_rate)
        (resampled,) = at_rate([cut], rate, may_resample=True)
        words = tuple(text_of(cut).split()) or None
        yield Utterance(cut.id, _pcm(load_samples(resampled)), rate, words)


def _of_file(path: Path, sample_rate: int | None) -> Utterance:
    """Return the first channel of a file."""
    try:
        with Sound(path) as sound:
            samples = sound.read(dtype="float32", always_2d=True)
            rate = int(sound.samplerate)
    except (soundfile.LibsndfileError, OSError) as error:
        raise UserError(
            f"cannot be read ({error})", file=path, remedy="give an audio file or a set"
        ) from error
    mono = samples[:, 0]
    if sample_rate is not None and rate != sample_rate:
        if not can_resample(rate, sample_rate):
            raise UserError(
                f"{rate} Hz cannot be resampled to {sample_rate} Hz",
                file=path,
                remedy="restore the file, or leave it out",
            )
        from lhotse.augmentation import Resample

        mono = Resample(rate, sample_rate)(mono[None], rate)[0]
        rate = sample_rate
    return Utterance(str(path), _pcm(np.asarray(mono)), rate, _words_beside(path))


def _words_beside(path: Path) -> tuple[str, ...] | None:
    """Return the words of the transcript next to an audio file; None without one."""
    for suffix in (".txt", ".lab"):
        if (text := path.with_suffix(suffix)).is_file():
            return tuple(w for _, line in read_lines(text) for w in line.split())
    return None


def _pcm(samples: np.ndarray) -> np.ndarray:
    """Return samples in [-1, 1] as int16."""
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


@dataclass(frozen=True)
class LoadRun:
    """All runs of a call of the load client.

    Attributes:
        reports: in their order.
        exchanges: of all runs.
        capacity: largest number of sessions that held; None where none was searched.
    """

    reports: list[LoadReport]
    exchanges: list[Exchange]
    capacity: int | None = None

    def values(self) -> dict[str, Any]:
        """Return the reports as plain values."""
        return {"capacity": self.capacity, "runs": [asdict(r) for r in self.reports]}


def load_server(
    url: str,
    audio: Sequence[str | Path],
    *,
    options: LoadOptions,
    utterances: int = 500,
    p95: float | None = None,
    limit: int = 10_000,
    token: str | None = None,
    on_report: Callable[[LoadReport], None] | None = None,
) -> LoadRun:
    """Load a server at an address.

    Args:
        url: see `latflow.serving.clients.server_of`.
        audio: see `read_audio`.
        options: of the clients.
        utterances: greatest number that is read.
        p95: greatest latency (seconds) of a search for the capacity, in real time from
            `options.sessions` on; None for one run.
        limit: greatest number of sessions that a search tries.
        token: bearer token that the server asks for.
        on_report: called with the report of each trial of a search as it ends.

    Raises:
        UserError: there is no speech, or the server does not answer.
    """
    report_trial = on_report or (lambda _: None)

    async def work(server: Server, speech: Sequence[Utterance]) -> LoadRun:
        if p95 is None:
            report, exchanges = await run_load(server, speech, options)
            return LoadRun([report], exchanges)
        exchanges: list[Exchange] = []

        async def measure(sessions: int) -> LoadReport:
            trial = options.replace(real_time=True, sessions=sessions)
            report, more = await run_load(server, speech, trial)
            exchanges.extend(more)
            report_trial(report)
            return report

        capacity, reports = await find_capacity(
            measure, p95=p95, first=options.sessions, limit=limit
        )
        return LoadRun(reports, exchanges, capacity)

    return with_server(url, audio, work, utterances=utterances, token=token)


def with_server(
    url: str,
    audio: Sequence[str | Path],
    work: Callable[[Server, Sequence[Utterance]], Awaitable[Result]],
    *,
    utterances: int,
    token: str | None,
) -> Result:
    """Do work with a server and speech; see `load_server`.

    Raises:
        UserError: there is no speech, or the server does not answer.
    """

    async def run() -> Result:
        server = server_of(url, token=token)
        try:
            await server.prepare()
            speech = read_audio(audio, limit=utterances, sample_rate=server.sample_rate)
            return await work(server, speech)
        finally:
            await server.close()

    try:
        return asyncio.run(run())
    except ClientError as error:
        raise UserError(
            f"{url}: {error}", remedy="check the address, and the server's log"
        ) from error


class Clock:
    """The time of one exchange, in seconds since its beginning."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._begin

    async def until(self, moment: float) -> None:
        """Wait for a moment; one that has passed is not waited for."""
        if (left := moment - self.now()) > 0:
            await asyncio.sleep(left)


async def exchange(
    server: Server, utterance: Utterance, options: LoadOptions
) -> Exchange:
    """Send an utterance in its own session and take the answers.

    Never raises for a server's fault; it stands in the result.
    """
    try:
        async with server.connect(utterance.sample_rate) as connection:
            return await _talk(connection, server.chunk, utterance, options)
    except (ClientError, TimeoutError) as error:
        message = str(error) or f"no final within {options.patience:g} s"
        return Exchange(utterance.name, utterance.seconds, error=message)


async def _talk(
    connection: Connection,
    chunk: int | None,
    utterance: Utterance,
    options: LoadOptions,
) -> Exchange:
    """Send and receive at the same time."""
    clock = Clock()
    listening = asyncio.create_task(_listen(connection, clock))
    try:
        spoken, late = await _speak(connection, chunk, utterance, options, clock)
        async with asyncio.timeout(options.patience):
            text, final, first = await listening
    except ClientError:
        # A refusal says more than the broken connection that sending sees.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await listening
        raise
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return Exchange(
        utterance.name, utterance.seconds, final - spoken, first, text, late
    )


async def _speak(
    connection: Connection,
    chunk: int | None,
    utterance: Utterance,
    options: LoadOptions,
    clock: Clock,
) -> tuple[float, float]:
    """Send all samples; return when the last could be sent, and the greatest delay."""
    rate, samples = utterance.sample_rate, utterance.samples
    size = chunk or max(1, round(options.chunk * rate))
    late = 0.0
    due = 0.0
    for begin in range(0, max(1, len(samples)), size):
        piece = samples[begin : begin + size]
        if options.real_time:
            due = (begin + len(piece)) / rate
            await clock.until(due)
            late = max(late, clock.now() - due)
        else:
            due = clock.now()
        await connection.send(piece, is_last=begin + size >= len(samples))
    return due, late


async def _listen(
    connection: Connection, clock: Clock
) -> tuple[str, float, float | None]:
    """Return the final text, and when it and the first text came."""
    finals: list[str] = []
    first, last = None, None
    while (answer := await connection.receive()) is not None:
        now = clock.now()
        if answer.text and first is None:
            first = now
        if answer.is_final:
            finals.append(answer.text)
            last = now
    if last is None:
        raise ClientError("the session ended without a final")
    return " ".join(filter(None, finals)), last, first


async def run_load(
    server: Server, utterances: Sequence[Utterance], options: LoadOptions
) -> tuple[LoadReport, list[Exchange]]:
    """Load a server and measure.

    With `real_time` each client sends one utterance after another until the time is
    over, and what ends later is not counted: all clients are at work all the time. Else
    the set is sent as fast as the server takes it, as often as asked for.

    Args:
        server: prepared.
        utterances: taken in turn by all clients.

    Raises:
        ClientError: not even one utterance alone is answered.
    """
    alone = await exchange(server, utterances[0], options.replace(real_time=False))
    if alone.error is not None:
        raise ClientError(alone.error)
    log.info("%d sessions", options.sessions)
    done: list[Exchange] = []
    clock, before = Clock(), time.process_time()
    if options.real_time:
        await _in_real_time(server, itertools.cycle(utterances), options, clock, done)
    else:
        rounds = itertools.repeat(utterances, options.iterations)
        await _at_once(server, itertools.chain.from_iterable(rounds), options, done)
    wall = options.seconds if options.real_time else clock.now()
    work = time.process_time() - before
    words = {utterance.name: utterance.words for utterance in utterances}
    share = work / clock.now()
    return summarize(done, words, options, wall=wall, client_load=share), done


async def _in_real_time(
    server: Server,
    utterances: Iterator[Utterance],
    options: LoadOptions,
    clock: Clock,
    done: list[Exchange],
) -> None:
    """Let all clients speak until the time is over."""
    generator = np.random.default_rng(options.seed)
    # Clients that begin at the same moment would send all chunks at the same moments.
    offsets = generator.uniform(0, min(1.0, options.seconds / 4), options.sessions)

    async def client(offset: float) -> None:
        await clock.until(offset)
        while clock.now() < options.seconds:
            result = await exchange(server, next(utterances), options)
            if clock.now() <= options.seconds or result.error is not None:
                done.append(result)
            if result.error is not None:
                await asyncio.sleep(0.1)  # a server that refuses is not stormed

    await asyncio.gather(*map(client, offsets.tolist()))


async def _at_once(
    server: Server,
    utterances: Iterator[Utterance],
    options: LoadOptions,
    done: list[Exchange],
) -> None:
    """Let all clients send as fast as they can."""

    async def client() -> None:
        for utterance in utterances:  # shared: each is taken by one client
            done.append(await exchange(server, utterance, options))  # noqa: PERF401

    await asyncio.gather(*(client() for _ in range(options.sessions)))


async def find_capacity(
    measure: Callable[[int], Awaitable[LoadReport]],
    *,
    p95: float,
    first: int = 1,
    limit: int = 10_000,
) -> tuple[int, list[LoadReport]]:
    """Search the largest number of sessions whose latency a server holds.

    Doubles until it no longer holds, then halves the interval until it is a twentieth.
    A number does not hold where two trials fail: a trial has few utterances, and one
    pause of the machine decides its p95.

    Args:
        measure: number of sessions -> awaitable of a report.
        p95: greatest latency, seconds.
        first: number that is tried first.
        limit: greatest number that is tried.

    Returns:
        the number (0: not even one), and the reports in the order of the trials.
    """
    reports: list[LoadReport] = []
    good, bad, sessions = 0, limit + 1, min(first, limit)
    while True:
        for _ in range(2):
            reports.append(await measure(sessions))
            if reports[-1].holds(p95):
                good = sessions
                break
        else:
            bad = sessions
        if bad - good <= max(1, good // 20):
            return good, reports
        doubled = good * 2 if bad > limit else (good + bad) // 2
        sessions = min(max(doubled, 1), limit)
