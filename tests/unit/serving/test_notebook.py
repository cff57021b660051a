"""The notebook runs as it stands, against a server of Vosk's protocol."""

import ast
import asyncio
import inspect
import json
import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
import soundfile
from websockets.asyncio.server import serve

WORDS = ["one", "two", "three"]


async def answer(socket):
    """Recognize a word every 0.1 s."""
    heard = 0
    async for message in socket:
        if isinstance(message, bytes):
            heard += len(message) // 2
            words = WORDS[: heard // 800]
            await socket.send(json.dumps({"partial": " ".join(words)}))
        elif "eof" in message:
            await socket.send(json.dumps({"text": " ".join(WORDS)}))
            return


async def execute(cells, names):
    """Run cells as Jupyter does, where `await` may stand anywhere."""
    for number, cell in enumerate(cells):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        result = eval(compile(cell, f"cell {number}", "exec", flags), names)
        if inspect.iscoroutine(result):
            await result


def microphone(length):
    """Stand in for sounddevice: silence, of another length than was asked for."""

    def rec(_, *, samplerate, channels, dtype):
        assert samplerate == 16000
        return np.zeros((length, channels), dtype)

    return SimpleNamespace(rec=rec, wait=lambda: None)


@pytest.mark.parametrize("source", ["file", "microphone"])
def test_the_notebook_shows_partials_and_latency(
    repository, tmp_path, capsys, monkeypatch, source
):
    wave = tmp_path / "speech.wav"
    soundfile.write(wave, np.zeros(2800, np.int16), 8000)
    monkeypatch.setitem(sys.modules, "sounddevice", microphone(5600))
    notebook = repository / "docs" / "notebooks" / "streaming.ipynb"
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    mpl.use("agg")
    names = {}

    async def run():
        async with serve(answer, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            await execute(cells[:1], names)
            names.update(
                URL=f"ws://127.0.0.1:{port}",
                AUDIO=str(wave) if source == "file" else None,
            )
            await execute(cells[1:], names)

    asyncio.run(run())
    out = capsys.readouterr().out
    assert names["transcript"] == "one two three"
    assert names["latency"] > 0
    assert names["first"] >= 0.1
    assert "partial  one two" in out
    # Nothing but code and text is kept: outputs would grow the repository.
    assert all(
        not cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"]
    )
    drawn = names["words"].get_lines()[0].get_ydata()
    assert drawn[-1] == 3
    names["plt"].close("all")
