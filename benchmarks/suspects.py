"""Suspects among utterances, 20 of which were made wrong: how many are found.

Copies the digits (`--corpora`), plants faults into the training set, four of each:
transcripts swapped within pairs, audio cut in the middle of the speech, part of the
audio zeroed, another speaker's name, audio of another utterance of the speaker. Then
runs the workflow of `latflow` up to the suspects of that set, in `--folder`. With
`--words`, further utterances get one wrong word each; with `--biased`, the set is
decoded against its transcripts, too, and cleaned (`corpus.cleaned`). Runs in one folder
share what they have in common.

    python benchmarks/suspects.py --corpora ../shared/corpora [--folder F] [--cores N]
        [--words N] [--biased]

Prints JSON: found of each kind, false alarms with their reasons, time. Of the cleaned
set, by kind of fault: seconds and how many of them are kept, utterances kept whole, cut
and gone, and parts whose words are no stretch of the right transcript.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import soundfile
import yaml
from lhotse import MonoCut

from latflow.corpus.manifests import read_cuts, text_of

PER_KIND = 4
KINDS = ("swapped", "cut", "silence", "speaker", "duplicate")
WORD = "word"  # one wrong word
CLEAN = "train_clean"


def read_table(path: Path) -> dict[str, str]:
    """Read a table of Kaldi's: id -> the rest of the line."""
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return {name: rest for name, _, rest in lines}


def write_table(path: Path, table: dict[str, str]) -> None:
    """Write a table of Kaldi's."""
    path.write_text("".join(f"{k} {v}\n" for k, v in sorted(table.items())))


def plant(train: Path, seed: int, num_words: int) -> dict[str, str]:
    """Make some utterances of a data directory wrong; return id -> kind of fault.

    Args:
        train: the data directory.
        seed: of the choice.
        num_words: how many get one wrong word.
    """
    random = np.random.default_rng(seed)
    text, speaker, audio = (
        read_table(train / name) for name in ("text", "utt2spk", "wav.scp")
    )
    ids = [name for name in sorted(text) if len(text[name].split()) >= 3]
    order = [ids[n] for n in random.permutation(len(ids))]
    number = PER_KIND * len(KINDS)
    faults = {name: KINDS[n // PER_KIND] for n, name in enumerate(order[:number])}
    swapped = [name for name, kind in faults.items() if kind == "swapped"]
    others = {a: text[b] for a, b in zip(swapped, swapped[::-1], strict=True)}
    text.update(others)
    names = sorted(set(speaker.values()))
    for name, kind in faults.items():
        path = train / audio[name]
        samples, rate = soundfile.read(path, dtype="int16")
        if kind == "cut":
            soundfile.write(path, samples[: int(0.6 * len(samples))], rate)
        elif kind == "silence":
            samples[len(samples) // 3 : 2 * len(samples) // 3] = 0
            soundfile.write(path, samples, rate)
        elif kind == "speaker":
            place = names.index(speaker[name])
            speaker[name] = names[(place + 1 + random.integers(len(names) - 1))
                                  % len(names)]  # fmt: skip
        elif kind == "duplicate":
            same = [each for each in ids if speaker[each] == speaker[name]]
            same = [each for each in same if each not in faults]
            shutil.copyfile(train / audio[random.choice(same)], path)
    vocabulary = sorted({word for each in text.values() for word in each.split()})
    for name in order[number : number + num_words]:
        words = text[name].split()
        place = int(random.integers(len(words)))
        others = [word for word in vocabulary if word != words[place]]
        words[place] = str(random.choice(others))
        text[name] = " ".join(words)
        faults[name] = WORD
    write_table(train / "text", text)
    write_table(train / "utt2spk", speaker)
    return faults


def recipe(folder: Path, *, is_biased: bool) -> Path:
    """Write the recipe: monophones of digits, and the suspects of its train set."""
    source = {"type": "kaldi", "path": str(folder / "digits/train")}
    test = {"type": "kaldi", "path": str(folder / "digits/test")}
    monophones = {"type": "mono", "num_gaussians": 400}
    values = {
        "experiment": "suspects",
        "corpus": {
            "train": source,
            "dev": test,
            "test": {"test": test},
            "cleaned": {CLEAN: {}} if is_biased else {},
        },
        "lang": {"lexicon": str(folder / "digits/lexicon.txt")},
        "lm": {"type": "uniform"},
        "gmm": {"systems": {"mono": monophones}},
        "suspects": {"sets": ["train"], "biased_decoding": {} if is_biased else None},
        "ledger": {"max_skipped_fraction": 0.1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def measure(folder: Path, faults: dict[str, str]) -> dict[str, object]:
    """Compare what the stage has found with what was planted."""
    table = folder / "results/suspects/suspects/train/suspects.tsv"
    found: dict[str, list[str]] = defaultdict(list)
    for line in table.read_text().splitlines()[1:]:
        name, reason, *_ = line.split("\t")
        found[name].append(reason)
    by_kind = {
        kind: {
            "found": sum(f == kind and name in found for name, f in faults.items()),
            "of": sum(f == kind for f in faults.values()),
        }
        for kind in dict.fromkeys(faults.values())
    }
    false = {name: why for name, why in found.items() if name not in faults}
    missed = {name: kind for name, kind in faults.items() if name not in found}
    return {
        "planted": len(faults),
        "found": len(faults) - len(missed),
        "by_kind": by_kind,
        "missed": missed,
        "false_alarms": len(false),
        "false": false,
    }


def measure_cleaned(folder: Path, faults: dict[str, str]) -> dict[str, object]:
    """Tell what is left of utterances by their fault, and how much of it is wrong.

    The words of a right part are a stretch of the right transcript.
    """
    corpus = folder / "results/suspects/corpus"
    right = read_table(folder / "right.txt")
    said = {cut.id: cut for cut in read_cuts(corpus / "train/cuts.jsonl.gz")}
    parts: dict[str, list[MonoCut]] = defaultdict(list)
    for cut in read_cuts(corpus / CLEAN / "cuts.jsonl.gz"):
        name = cut.id if cut.id in said else cut.id.rpartition("-")[0]
        parts[name].append(cut)
    kinds: dict[str, dict[str, float]] = {}
    for name, cut in said.items():
        told = kinds.setdefault(faults.get(name, "none"), defaultdict(float))
        told["seconds"] += cut.duration
        told["kept"] += sum(part.duration for part in parts[name])
        told["whole"] += cut in parts[name]
        told["cut"] += bool(parts[name]) and cut not in parts[name]
        told["gone"] += not parts[name]
        for part in parts[name]:
            own = [word for word in text_of(part).split() if word != "<UNK>"]
            is_right = any(
                own == right[name].split()[start : start + len(own)]
                for start in range(len(right[name].split()))
            )
            told["parts that differ from the right transcript"] += not is_right
    return {
        kind: {key: round(value, 1) for key, value in told.items()}
        for kind, told in kinds.items()
    }


def main() -> None:
    """Plant, run, compare."""
    parser = argparse.ArgumentParser(description="Find planted faults in digits.")
    parser.add_argument("--corpora", required=True, type=Path)
    parser.add_argument("--folder", type=Path, help="where to work; a new one if none")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", type=int, default=0, help="wrong words, beside")
    parser.add_argument("--biased", action="store_true", help="decode the set, too")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    if not (folder / "digits").exists():
        shutil.copytree(arguments.corpora / "digits", folder / "digits")
        shutil.copy(folder / "digits/train/text", folder / "right.txt")
        faults = plant(folder / "digits/train", arguments.seed, arguments.words)
        (folder / "faults.json").write_text(json.dumps(faults))
    faults = json.loads((folder / "faults.json").read_text())
    start = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "latflow.cli.main",
        "run",
        str(recipe(folder, is_biased=arguments.biased)),
    ]
    if arguments.biased:
        command.append(f"results/suspects/corpus/{CLEAN}/cuts.jsonl.gz")
    command += ["suspects", "--cores", str(arguments.cores)]
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    seconds = round(time.perf_counter() - start, 1)
    result = {**measure(folder, faults), "seconds": seconds}
    if arguments.biased:
        result["cleaned"] = measure_cleaned(folder, faults)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
