"""Streaming recognition against Vosk's, same model, same audio, same run.

    python benchmarks/streaming.py PACKAGE AUDIO... [--vosk MODEL]

PACKAGE is of `latflow package`; MODEL is the same system, of `latflow export-kaldi
vosk`. AUDIO are files at the model's rate, taken one after the other until there is
enough for `--seconds` a stream. Streams come in pieces of 0.1 s as fast as they are
taken, with partial results after each piece and words with confidences at endpoints.

Prints JSON: seconds of speech for a second of processor time (so, streams a core could
follow) for 1, 8 and 32 streams whose chunks are scored together; the same for Vosk's
`KaldiRecognizer` in a process of its own, one stream after the other (it has no
batches); the ratio; and whether the words of the first stream are the same. All in one
thread. PROFILE=n in the environment prints a profile of n streams.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 0.1  # seconds
COUNTS = (1, 8, 32)
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"


def streams(paths: list[str], seconds: float, count: int) -> tuple[list, int]:
    """Return int16 streams, each beginning with another file, and the rate."""
    import soundfile

    files = [soundfile.read(path, dtype="int16") for path in paths]
    rate = files[0][1]
    found = []
    for k in range(count):
        turned = files[k % len(files) :] + files[: k % len(files)]
        pieces, length, at = [], 0, 0
        while length < seconds * rate:
            pieces.append(turned[at % len(turned)][0])
            length, at = length + len(pieces[-1]), at + 1
        found.append(np.concatenate(pieces)[: int(seconds * rate)])
    return found, rate


def recognize(model: Any, waves: list[np.ndarray], rate: int) -> tuple[float, str]:
    """Recognize streams in turns; (times real time, words of the first)."""
    from latflow.serving.options import SessionOptions
    from latflow.serving.results import Final
    from latflow.serving.session import Session

    step = int(PIECE * rate)
    sessions = [Session(model, SessionOptions(sample_rate=rate)) for _ in waves]
    events: list[list] = [[] for _ in waves]
    begun = time.process_time()
    for begin in range(0, len(waves[0]) + step, step):
        for k, session in enumerate(sessions):
            if begin < len(waves[k]):
                session.feed(waves[k][begin : begin + step])
            else:
                events[k] += session.end()
        while ready := [
            (k, chunk)
            for k, session in enumerate(sessions)
            if (chunk := session.take_chunk()) is not None
        ]:
            scores = model.acoustics.score([chunk for _, chunk in ready])
            for (k, _), log_likes in zip(ready, scores, strict=True):
                events[k] += sessions[k].advance(log_likes)
    spent = time.process_time() - begun
    texts = [e.segment.best.text for e in events[0] if isinstance(e, Final)]
    return sum(map(len, waves)) / rate / spent, " ".join(filter(None, texts))


def run_ours(package: str, waves: list[np.ndarray], rate: int) -> dict:
    """Recognize 1, 8 and 32 streams."""
    from latflow.serving.package import Model

    model = Model.load(package)
    recognize(model, [wave[: 10 * rate] for wave in waves[:2]], rate)  # compiles
    found, words = {}, ""
    for count in COUNTS:
        found[count], words = recognize(model, waves[:count], rate)
    if count := int(os.environ.get("PROFILE", "0")):
        profile = cProfile.Profile()
        profile.runcall(recognize, model, waves[:count], rate)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return {"times_real_time": found, "words": words}


def run_vosk(model_dir: str, wave: np.ndarray, rate: int) -> dict:
    """Recognize one stream with Vosk."""
    import vosk

    vosk.SetLogLevel(-1)
    model = vosk.Model(model_dir)
    step, texts = int(PIECE * rate), []

    def run(some: np.ndarray) -> float:
        recognizer = vosk.KaldiRecognizer(model, rate)
        recognizer.SetWords(enable_words=True)
        begun = time.process_time()
        for begin in range(0, len(some), step):
            if recognizer.AcceptWaveform(some[begin : begin + step].tobytes()):
                texts.append(json.loads(recognizer.Result())["text"])
            else:
                recognizer.PartialResult()
        texts.append(json.loads(recognizer.FinalResult())["text"])
        return len(some) / rate / (time.process_time() - begun)

    run(wave[: 10 * rate])
    texts.clear()
    speed = run(wave)
    return {"times_real_time": {1: speed}, "words": " ".join(filter(None, texts))}


def main() -> None:
    """Run one side, or both in processes of their own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("audio", nargs="+")
    parser.add_argument("--vosk")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=("latflow", "vosk"))
    told = parser.parse_args()
    if told.only:
        waves, rate = streams(told.audio, told.seconds, 32)
        if told.only == "vosk":
            print(json.dumps(run_vosk(told.vosk, waves[0], rate)))
        else:
            print(json.dumps(run_ours(told.package, waves, rate)))
        return
    results = {}
    for side in ("latflow", "vosk") if told.vosk else ("latflow",):
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--only", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[side] = json.loads(done.stdout.splitlines()[-1])
    if told.vosk:
        theirs = results["vosk"]["times_real_time"]["1"]
        ours = results["latflow"]["times_real_time"]
        results["ratio"] = {count: speed / theirs for count, speed in ours.items()}
        words = [results[side].pop("words") for side in ("latflow", "vosk")]
        results["same_words"] = words[0] == words[1]
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
