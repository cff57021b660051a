"""A new user's way: from a folder of recordings to a served model, command by command.

Recordings are synthesized into an empty folder, with a text beside each; then only what
a person would type is run: `init`, `run`, `transcribe`, `serve` (asked by a client of
Vosk's protocol and by one of OpenAI's), `align`. No file is edited.

    python benchmarks/new_user.py --folder /tmp/new_user
    python benchmarks/new_user.py --folder /tmp/new_user --latflow /tmp/env/bin/latflow
    python benchmarks/new_user.py --folder /tmp/new_user --recordings 24 \
      --set nnet.systems.chain.training.epochs=1       # only to see that all works

With `--latflow` the program of another environment is taken, such as one that a wheel
was installed to. A second call with the same folder goes on where the first has ended.

Prints JSON: commands and edits of files; seconds of each command, and of the processor,
which say more where the machine has other work; what was recognized.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import soundfile
import websockets

from latflow.corpus.manifests import file_of, read_cuts, speaker_of, text_of

PACKAGE = "results/mine/package/chain"


class User:
    """Types commands in a folder, and takes the time.

    Args:
        folder: where; made if it is not there.
        latflow: the program and its first arguments.
        port: of the server.
    """

    def __init__(self, folder: Path, latflow: Sequence[str], port: int) -> None:
        self.folder, self.latflow, self.port = folder, list(latflow), port
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def types(self, *arguments: str, inside: str = "") -> str:
        """Run a command to its end, and return what it prints."""
        begin, used = time.monotonic(), _used()
        done = subprocess.run(
            [*self.latflow, *arguments],
            cwd=self.folder / inside,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        self.seconds[arguments[0]] = round(time.monotonic() - begin, 1)
        self.cpu_seconds[arguments[0]] = round(_used() - used, 1)
        return done.stdout

    @contextmanager
    def serving(self, package: str) -> Iterator[None]:
        """Run a server while the block lasts."""
        begin = time.monotonic()
        command = [*self.latflow, "serve", package, "--port", str(self.port)]
        server = subprocess.Popen(command, cwd=self.folder / "mine")
        try:
            while not _is_up(self.port):
                if server.poll() is not None:
                    raise SystemExit("the server has ended")
                time.sleep(0.2)
            self.seconds["serve"] = round(time.monotonic() - begin, 1)
            yield
        finally:
            server.terminate()
            server.wait(60)


def main() -> None:
    """Go the way, and print what it took."""
    arguments = _arguments()
    program = [arguments.latflow] if arguments.latflow else []
    user = User(
        arguments.folder.absolute(),
        program or [sys.executable, "-m", "latflow.cli.main"],
        arguments.port,
    )
    recordings = record(user, arguments.recordings)
    audio = sorted((recordings / "test").rglob("*.flac"))[0]
    if not (user.folder / "mine").is_dir():
        user.types("init", "mine", "--audio", str(recordings), "--serve")
    settings = [word for setting in arguments.set for word in ("-o", setting)]
    user.types("run", "--cores", str(arguments.cores), *settings, inside="mine")
    text = user.types("transcribe", PACKAGE, str(audio), inside="mine")
    with user.serving(PACKAGE):
        vosk = asyncio.run(ask_vosk(audio, user.port))
        openai = ask_openai(audio, user.port)
    shutil.rmtree(user.folder / "aligned", ignore_errors=True)
    user.types(
        *("align", str(recordings / "test"), "mine/lexicon.txt", "aligned"),
        *("--model", f"mine/{PACKAGE}"),
    )
    grids = len(list((user.folder / "aligned/textgrid").rglob("*.TextGrid")))
    result: dict[str, Any] = {
        "recordings": len(list(recordings.rglob("*.flac"))),
        "commands": len({"init", *user.seconds}),
        "edits": 0,
        "seconds": user.seconds,
        "cpu_seconds": user.cpu_seconds,
        "said": audio.with_suffix(".txt").read_text(),
        "transcribe": " ".join(text.split()),
        "vosk": vosk,
        "openai": openai,
        "textgrids": grids,
    }
    print(json.dumps(result, indent=1))


def record(user: User, number: int) -> Path:
    """Return a folder of recordings, one below for each speaker, a text beside each.

    Args:
        number: of the recordings; a quarter of them are a test set.
    """
    folder = user.folder / "recordings"
    if folder.is_dir():
        return folder
    sizes = {"train": number - number // 4, "dev": 4, "test.test": number // 4}
    settings = [f"corpus.{name}.utterances={size}" for name, size in sizes.items()]
    options = [word for setting in settings for word in ("-o", setting)]
    user.types("run", "example", "corpus", *options)
    for name in ("train", "test"):
        for cut in read_cuts(
            user.folder / f"results/example/corpus/{name}/cuts.jsonl.gz"
        ):
            place = folder / name / speaker_of(cut) / f"{cut.id}.flac"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file_of(cut), place)
            place.with_suffix(".txt").write_text(f"{text_of(cut).capitalize()}.\n")
    del user.seconds["run"], user.cpu_seconds["run"]  # no user's
    return folder


async def ask_vosk(audio: Path, port: int) -> str:
    """Return what a client of Vosk's protocol is told."""
    samples, rate = soundfile.read(audio, dtype="int16")
    texts = []
    url = f"ws://127.0.0.1:{port}"
    async with websockets.connect(url, open_timeout=120) as socket:
        await socket.send(json.dumps({"config": {"sample_rate": rate}}))
        for begin in range(0, len(samples), rate // 5):
            await socket.send(samples[begin : begin + rate // 5].tobytes())
            texts.append(json.loads(await socket.recv()).get("text", ""))
        await socket.send('{"eof": 1}')
        texts.append(json.loads(await socket.recv()).get("text", ""))
    return " ".join(filter(None, texts))


def ask_openai(audio: Path, port: int) -> str:
    """Return what a client of OpenAI's transcriptions is told."""
    with audio.open("rb") as stream:
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/audio/transcriptions",
            files={"file": (audio.name, stream)},
            data={"model": "chain"},
            timeout=120,
        )
    answer.raise_for_status()
    return answer.json()["text"]


def _used() -> float:
    """Return the processor time of all commands that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_up(port: int) -> bool:
    """Tell whether the server answers."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", timeout=2).status_code < 500
    except httpx.HTTPError:
        return False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="to work in")
    parser.add_argument("--latflow", help="program; by default that of this Python")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--recordings", type=int, default=128, help="how many")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe"
    )
    parser.add_argument("--port", type=int, default=27099, help="of the server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
