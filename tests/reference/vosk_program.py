"""Vosk itself, in a process of its own: imported beside kaldifst it hangs."""

import json
import subprocess
import sys

_PROGRAM = """
import json, sys
import soundfile, vosk
vosk.SetLogLevel(-1)
model, piece = vosk.Model(sys.argv[1]), 2 * int(sys.argv[2])
for path in sys.argv[3:]:
    samples, rate = soundfile.read(path, dtype="int16")
    recognizer = vosk.KaldiRecognizer(model, rate)
    recognizer.SetMaxAlternatives(1)
    data = samples.tobytes()
    for begin in range(0, len(data), piece):
        recognizer.AcceptWaveform(data[begin : begin + piece])
    print(json.dumps(json.loads(recognizer.FinalResult())["alternatives"][0]))
"""


def recognize_with_vosk(folder, audio, *, piece):
    """Return the best alternative of each file, given in pieces of so many samples."""
    command = [sys.executable, "-c", _PROGRAM, str(folder), str(piece)]
    done = subprocess.run(
        [*command, *map(str, audio)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
