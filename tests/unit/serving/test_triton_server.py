"""Models of a repository on the real Triton Inference Server, by the load client."""

import base64
import csv
import io
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from fixtures.waiting import PATIENCE

from latflow.lattice.io.binary import LatticeStream
from latflow.serving.options import SessionOptions, TritonOptions
from latflow.serving.session import Session
from latflow.serving.triton import write_repository

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment():
    folder = os.environ.get("LATFLOW_TRITON")
    if not folder or not Path(folder, "triton", "tritonserver").exists():
        pytest.skip("no Triton: run make triton, set LATFLOW_TRITON to its folder")
    return Path(folder)


def free_ports(number):
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@contextmanager
def server(environment, repository, models, log):
    """Run the server; yield its ports. Another process may take a port: try again."""
    for _ in range(3):
        ports = free_ports(3)
        names = ("--http-port", "--grpc-port", "--metrics-port")
        options = [
            text for n, p in zip(names, ports, strict=True) for text in (n, str(p))
        ]
        script = repository / "envs" / "run_triton.sh"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [script, environment, models, *options],
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            if is_ready(process, ports[0]):
                yield ports
                return
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    pytest.fail(log.read_text()[-3000:])


def is_ready(process, port):
    while process.poll() is None:
        try:
            url = f"http://127.0.0.1:{port}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.5)
    return False


def recognized(model, samples):
    with Session(model, SessionOptions(endpoint="off")) as session:
        pcm = np.rint(samples * 32768).clip(-32768, 32767).astype(np.int16)
        return (session.accept(pcm) + session.finish())[-1].segment.best


def check_all_outputs(environment, repository, address, digits, model, tmp_path):
    """Ask for text, times and lattice as a client of NVIDIA's library."""
    utterance = next(iter(digits.audio))
    samples = digits.samples(utterance)
    file = tmp_path / "samples"
    np.rint(samples * 32768).clip(-32768, 32767).astype(np.int16).tofile(file)
    client = repository / "tests/fixtures/triton_client.py"
    command = [environment / "bin/python", client, address, "one", "1600", file]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    outputs = {k: base64.b64decode(v) for k, v in json.loads(done.stdout).items()}
    expected = recognized(model, samples)
    text = outputs["TEXT"].decode()
    assert text == expected.text
    rows = [line.split() for line in outputs["CTM"].decode().splitlines()]
    assert [row[4] for row in rows] == text.split()
    starts = [word.start for word in expected.words]
    assert [float(row[2]) for row in rows] == pytest.approx(starts, abs=1e-3)
    stream = LatticeStream(io.BytesIO(outputs["RAW_LATTICE"]), Path("answer"))
    lattice = stream.lattice()()
    assert stream.at_end()
    assert {model.lang.word_ids[w] for w in text.split()} <= set(lattice.word.tolist())


def test_clients_get_the_words_of_sessions(
    environment, repository, package, digits, model, tmp_path
):
    options = TritonOptions(chunk=1600, max_batch=8, threads=1, idle=120.0)
    models = tmp_path / "models"
    write_repository({"one": package, "other": package}, models, options=options)
    command = [environment / "bin/latflow", "load-test"]
    with server(environment, repository, models, tmp_path / "log") as ports:
        for name in ("one", "other"):
            out = tmp_path / f"{name}.csv"
            url = f"grpc://127.0.0.1:{ports[1]}/{name}"
            arguments = ["--sessions", "4", "--iterations", "3", "--csv", out]
            subprocess.run(
                [*command, url, *digits.audio.values(), *arguments], check=True
            )
            with out.open(newline="") as stream:
                rows = list(csv.DictReader(stream))
            assert len(rows) == 3 * len(digits.audio)
            texts = {(row["utterance"], row["text"]) for row in rows}
            assert texts == {
                (str(path), recognized(model, digits.samples(utterance)).text)
                for utterance, path in digits.audio.items()
            }
            assert all(row["first_partial"] for row in rows)
        address = f"127.0.0.1:{ports[1]}"
        check_all_outputs(environment, repository, address, digits, model, tmp_path)
        url = f"http://127.0.0.1:{ports[2]}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            metrics = answer.read().decode()
        assert "latflow_audio_seconds" in metrics
        sessions = [
            line.split()[-1]
            for line in metrics.splitlines()
            if line.startswith("latflow_sessions{")
        ]
        assert len(sessions) == 2
