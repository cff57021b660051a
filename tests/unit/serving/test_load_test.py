"""The load client against a small server of Vosk's protocol, whose faults are known."""

import asyncio
import csv
import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
from websockets.asyncio.server import serve

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.serving.clients import ClientError, server_of
from latflow.serving.load_report import LoadReport, format_reports, write_csv
from latflow.serving.load_test import (
    Utterance,
    exchange,
    find_capacity,
    read_audio,
    run_load,
)
from latflow.serving.options import LoadOptions
from latflow.serving.soak import megabytes, slope_of, soak

RATE = 8000
OPTIONS = LoadOptions(sessions=3, chunk=0.05, patience=60.0)


def utterance(name, seconds=0.2, words=("one", "two")):
    samples = np.full(round(seconds * RATE), len(name), np.int16)
    return Utterance(name, samples, RATE, words)


class Vosk:
    """Answers each message of samples, and the end with a final; counts all it gets."""

    def __init__(self, *, text="one two", delay=0.0, quota=10**9, silent=False):
        self.text, self.delay, self.quota, self.silent = text, delay, quota, silent
        self.sessions, self.most, self.samples, self.rates = 0, 0, [], []

    async def __call__(self, socket):
        self.quota -= 1
        if self.quota < 0:
            await socket.send(json.dumps({"error": "too many sessions"}))
            return
        self.sessions += 1
        self.most = max(self.most, self.sessions)
        try:
            await self.talk(socket)
        finally:
            self.sessions -= 1

    async def talk(self, socket):
        heard = b""
        async for message in socket:
            if isinstance(message, bytes):
                heard += message
                words = self.text.split()[: len(heard) // (2 * RATE // 10)]
                await socket.send(json.dumps({"partial": " ".join(words)}))
            elif message == '{"eof" : 1}':
                self.samples.append(np.frombuffer(heard, "<i2"))
                await asyncio.sleep(self.delay)
                if self.silent:
                    await socket.wait_closed()
                await socket.send(json.dumps({"text": self.text}))
                return
            else:
                self.rates.append(json.loads(message)["config"]["sample_rate"])


@asynccontextmanager
async def serving(handler):
    """A server of its own, on a free port."""
    async with serve(handler, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = server_of(f"ws://127.0.0.1:{port}")
        await server.prepare()
        try:
            yield server
        finally:
            await server.close()


def load(handler, utterances, options=OPTIONS):
    async def run():
        async with serving(handler) as server:
            return await run_load(server, utterances, options)

    return asyncio.run(run())


def test_all_samples_arrive_and_all_finals_come_back():
    vosk = Vosk()
    said = [utterance("a" * n, seconds=0.03 * n) for n in range(1, 7)]
    report, exchanges = load(vosk, said, OPTIONS.replace(iterations=2))
    assert report.utterances == 12
    assert report.errors == 0
    assert {one.utterance for one in exchanges} == {one.name for one in said}
    assert {one.text for one in exchanges} == {"one two"}
    # Before the run an utterance is sent alone.
    assert len(vosk.samples) == 13
    lengths = sorted(len(samples) for samples in vosk.samples)
    assert lengths == sorted([240, *(2 * [240 * n for n in range(1, 7)])[:12]])
    assert all((samples == samples[0]).all() for samples in vosk.samples)
    assert set(vosk.rates) == {RATE}
    assert vosk.most <= OPTIONS.sessions
    assert report.audio_seconds == pytest.approx(2 * 0.03 * 21)
    assert report.rtfx == pytest.approx(report.audio_seconds / report.wall_seconds)


def test_word_errors_are_counted_where_there_are_transcripts():
    said = [utterance("a"), utterance("b", words=("One", "four"))]
    said.append(utterance("c", words=None))
    report, _ = load(Vosk(), said)
    assert report.words == 4
    assert report.wer == 25.0
    assert load(Vosk(), said[2:])[0].wer is None


def test_latency_is_that_of_the_final():
    report, exchanges = load(Vosk(delay=0.3), [utterance("a")])
    assert exchanges[0].latency >= 0.3
    assert report.latency["p50"] == exchanges[0].latency
    # The first words are those of a partial, before the end.
    assert exchanges[0].first_partial > 0


def test_in_real_time_samples_are_sent_as_they_are_spoken():
    async def run():
        async with serving(Vosk(delay=0.05)) as server:
            options = OPTIONS.replace(real_time=True)
            return await exchange(server, utterance("a", 0.4), options)

    one = asyncio.run(run())
    assert one.error is None
    assert one.latency >= 0.05
    # The first word takes 0.1 s to speak.
    assert one.first_partial >= 0.1


def test_a_run_in_real_time_ends_in_time():
    options = OPTIONS.replace(real_time=True, seconds=1.5, sessions=2)
    report, exchanges = load(Vosk(), [utterance("a", 0.4)], options)
    assert report.errors == 0
    # In 1.5 s a client cannot say more than three utterances.
    assert len(exchanges) <= 6
    assert report.wall_seconds == 1.5
    assert report.rtfx <= options.sessions


def test_a_refusal_is_an_error_with_its_message():
    # What comes before the run is served: a connection, and an utterance.
    report, exchanges = load(Vosk(quota=2), [utterance("a", 1.0)] * 30)
    assert report.messages == {"too many sessions": 30}
    assert report.errors == report.utterances == 30
    assert {one.latency for one in exchanges} == {None}


def test_a_final_that_never_comes_is_an_error():
    with pytest.raises(ClientError, match=r"no final within 0\.2 s"):
        load(Vosk(silent=True), [utterance("a")], OPTIONS.replace(patience=0.2))


def test_a_server_that_leaves_early_is_an_error():
    async def leave(socket):
        await socket.recv()

    with pytest.raises(ClientError, match="early|without a final"):
        load(leave, [utterance("a")])


def test_nobody_at_the_address():
    async def run():
        server = server_of("ws://127.0.0.1:1")
        with pytest.raises(ClientError, match="ConnectionRefusedError"):
            await server.prepare()

    asyncio.run(run())


def test_addresses_of_other_kinds_are_refused():
    with pytest.raises(UserError, match="not an address of a server"):
        server_of("http://127.0.0.1:80")


def made_up(sessions, p95, errors=0):
    return LoadReport(
        sessions=sessions,
        real_time=True,
        utterances=10,
        errors=errors,
        messages={"lost": errors} if errors else {},
        audio_seconds=10.0,
        wall_seconds=1.0,
        rtfx=10.0,
        latency={"mean": p95, "p50": p95, "p90": p95, "p95": p95, "p99": p95},
        first_partial={},
        wer=None,
        words=0,
        late=0.0,
        client_load=0.1,
    )


@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 7, 23, 24, 100, 1000, 1003])
@pytest.mark.parametrize("first", [1, 24, 2000])
def test_the_search_finds_the_capacity(capacity, first):
    async def measure(sessions):
        return made_up(sessions, 0.1 if sessions <= capacity else 0.2)

    found, trials = asyncio.run(
        find_capacity(measure, p95=0.12, first=first, limit=1000)
    )
    expected = min(capacity, 1000)
    assert expected - max(1, expected // 20) < found <= expected
    assert any(trial.sessions == found for trial in trials) or found == 0
    assert len(trials) < 40


def test_one_bad_trial_does_not_end_the_search():
    asked = []

    async def measure(sessions):
        asked.append(sessions)
        is_slow = sessions > 24 or asked.count(sessions) == 1
        return made_up(sessions, 0.2 if is_slow else 0.1)

    found, trials = asyncio.run(find_capacity(measure, p95=0.12, first=2))
    assert found == 24
    assert [trial.sessions for trial in trials[:4]] == [2, 2, 4, 4]


def test_lost_finals_are_not_held():
    assert made_up(3, 0.1).holds(0.12)
    assert not made_up(3, 0.1, errors=1).holds(0.12)
    assert not made_up(3, 0.13).holds(0.12)


def test_the_table_has_a_line_for_each_run_and_names_errors():
    text = format_reports([made_up(1, 0.1), made_up(30, 0.25, errors=2)])
    lines = text.splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[0].split()[4:6] == ["mean", "ms"]
    assert lines[2].split()[:9] == ["30", "8", "2", "10.0", "250"] + 4 * ["250"]
    assert lines[3] == "2 x lost (30 sessions)"


def test_exchanges_are_written_as_csv(tmp_path):
    _, exchanges = load(Vosk(), [utterance("a")])
    write_csv(tmp_path / "all.csv", exchanges)
    with (tmp_path / "all.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["utterance"] == "a"
    assert float(row["latency"]) == exchanges[0].latency
    assert row["error"] == ""


@pytest.mark.slow
def test_a_soak_tells_losses_misdeeds_and_memory():
    async def run():
        async with serving(Vosk()) as server:
            options = OPTIONS.replace(seconds=2.0, chunk=0.02)
            said = [utterance("a", 0.1), utterance("b", 0.2)]
            return await soak(server, said, options, misbehaving=6, process=os.getpid())

    found = asyncio.run(run())
    assert found.load.errors == 0
    assert sum(found.faults.values()) >= 6
    assert found.memory[0][1] > 10
    assert found.slope is None  # too short


def test_the_slope_of_memory_is_of_the_later_time():
    memory = [(t, 100.0 + (50 if t < 20 else 0) + t / 36) for t in range(100)]
    assert slope_of(memory) == pytest.approx(100.0)
    assert slope_of(memory[:2]) is None


def test_memory_of_children_counts():
    hold = "import sys; held = bytearray(64 << 20); print(); sys.stdin.read()"
    alone = megabytes(os.getpid())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold], **pipes) as child:
        child.stdout.readline()
        assert 64 < megabytes(child.pid) < 128
        assert 50 < megabytes(os.getpid()) - alone < 150
        child.stdin.close()


def test_memory_of_no_process_is_refused():
    with pytest.raises(UserError, match="no process"):
        megabytes(2**30)


@pytest.fixture
def wave(tmp_path):
    samples = (1000 * np.sin(np.arange(8000) / 20)).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    return tmp_path / "a.wav", samples


@contextmanager
def running(handler):
    """A server in a thread; yields its address."""

    async def run():
        async with serve(handler, "127.0.0.1", 0) as listening:
            address.set_result(listening.sockets[0].getsockname()[1])
            await asyncio.wrap_future(ended)

    address, ended = Future(), Future()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, run())
        try:
            yield f"ws://127.0.0.1:{address.result(120)}"
        finally:
            ended.set_result(None)


def test_a_search_tells_each_trial_as_it_ends(wave, capsys):
    with running(Vosk(delay=0.05)) as url:
        command = ["load-test", url, str(wave[0]), "--find-capacity", "--p95", "20"]
        for seconds in ("2.5", "10", "40"):  # more where the machine is busy
            assert main([*command, "--seconds", seconds]) == 1
            output = capsys.readouterr()
            if "no utterance ended" not in output.err:
                break
        told = output.err.splitlines()
        assert len(told) == 2
        assert all(re.match(r"1 sessions: \d finals, 0 errors, p95", t) for t in told)
        assert output.out.endswith("capacity 0\n")
        assert main([*command, "--seconds", "0.5"]) == 1
        assert "1 sessions: no utterance ended" in (error := capsys.readouterr().err)
        assert "error: no utterance ended within 0.5 s - give shorter ones" in error


def test_audio_files_keep_their_samples(wave):
    (found,) = read_audio([wave[0]], limit=10)
    assert np.array_equal(found.samples, wave[1])
    assert (found.sample_rate, found.words) == (RATE, None)
    (found,) = read_audio([wave[0]], limit=10, sample_rate=16000)
    assert found.sample_rate == 16000
    assert abs(len(found.samples) - 16000) < 10


def test_folders_of_audio_bring_transcripts_where_there_are_some(wave, tmp_path):
    folder = tmp_path / "audio/deeper"
    folder.mkdir(parents=True)
    for name in ("b.wav", "a.wav"):
        soundfile.write(folder / name, wave[1], RATE)
    (folder / "b.txt").write_text("one two\n")
    (folder / "notes.md").write_text("no audio")
    found = read_audio([tmp_path / "audio"], limit=10)
    assert [Path(one.name).name for one in found] == ["a.wav", "b.wav"]
    assert [one.words for one in found] == [None, ("one", "two")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no utterance to send"):
        read_audio([tmp_path / "empty"], limit=10)


def test_kaldi_directories_bring_transcripts(wave, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "wav.scp").write_text(f"a {wave[0]}\nb {wave[0]}\n")
    (folder / "text").write_text("a one two\nb three\n")
    (folder / "utt2spk").write_text("a a\nb b\n")
    found = read_audio([folder], limit=10)
    assert [one.name for one in found] == ["a", "b"]
    assert [one.words for one in found] == [("one", "two"), ("three",)]
    assert np.array_equal(found[0].samples, wave[1])
    assert len(read_audio([folder, wave[0]], limit=1)) == 1


def test_what_is_no_audio_is_refused(tmp_path):
    (tmp_path / "a.wav").write_text("no audio")
    with pytest.raises(UserError, match=r"a\.wav"):
        read_audio([tmp_path / "a.wav"], limit=1)
