"""A small finished experiment, made up: the files that the report reads."""

import gzip
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.scoring import score
from latflow.scoring.options import ScoreOptions
from latflow.scoring.results import summarize_wer
from latflow.scoring.transcripts import References
from latflow.workflow.experiment import Experiment, load

SYSTEMS = ("mono", "tri1")
SETS = ("dev", "test")
LEXICON = {
    "FOUR": ("F", "AO", "R"),
    "FIVE": ("F", "AY", "V"),
    "NINE": ("N", "AY", "N"),
    "ONE": ("W", "AH", "N"),
    "TWO": ("T", "UW"),
    "SIX": ("S", "IH", "K", "S"),
}
SHIFT, RATE = 0.01, 8000


def made_up_recipe(**sections: Any) -> Experiment:
    """The recipe of the experiment; sections take the place of the defaults."""
    systems = {"mono": {"type": "mono"}}
    systems["tri1"] = {"type": "deltas", "alignments": "mono"}
    source = {"type": "kaldi", "path": "made/up"}
    corpus = {"train": source, "dev": source, "test": {"test": source}}
    lm = {"type": "transcripts"}
    recipe = {"experiment": "made_up", "corpus": corpus, "lm": lm}
    return load({**recipe, "gmm": {"systems": systems}, **sections})


def write_experiment(
    folder: Path, score_options: ScoreOptions, *, num_utterances: int = 40
) -> None:
    """Write the experiment; audio is tones, errors are random, and tri1 makes fewer."""
    generator = random.Random(1)
    for split in ("train", *SETS):
        write_corpus(folder, split, num_utterances, generator)
    write_language(folder)
    for i, system in enumerate(SYSTEMS):
        write_model(folder, system, i, generator)
        for name in SETS:
            write_scores(folder, system, name, 0.35 - 0.2 * i, score_options)
        write_sweep(folder, system, generator)
    write_rates(folder, SYSTEMS)
    write_costs(folder, generator)


def write_rates(folder: Path, systems: Iterable[str]) -> None:
    paths = [folder / "score" / s / n / "wer.json" for s in systems for n in SETS]
    summarize_wer(paths, folder / "wer.tsv")


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_corpus(folder: Path, split: str, number: int, generator: random.Random):
    target = folder / "corpus" / split
    (target / "audio").mkdir(parents=True)
    lines = {}
    with gzip.open(target / "cuts.jsonl.gz", "wt") as out:
        for i in range(number):
            utt, speaker = f"{split}{i % 8}-{i:03d}", f"{split}{i % 8}"
            words = generator.choices(sorted(LEXICON), k=generator.randint(3, 7))
            if i == 5:
                words[0] = "ELEVEN"
            duration = round(0.4 + 0.3 * len(words), 2)
            audio = target / "audio" / f"{utt}.flac"
            if split != "train":
                write_tone(audio, duration, i)
            made = cut(utt, speaker, words, duration, audio)
            lines[utt] = json.dumps(made) + "\n"
        out.writelines(lines[utt] for utt in sorted(lines))
    entries = [
        ledger_entry("prepare_corpus", f"{split}-{i}", f"text has {i} words", "noted")
        for i in range(3)
    ]
    (target / "ledger.jsonl").write_text("".join(entries))


def write_tone(path: Path, duration: float, seed: int) -> None:
    time = np.arange(round(RATE * duration)) / RATE
    wave = sum(
        np.sin(2 * np.pi * (180 + 40 * math.sin(seed)) * k * time) / k
        for k in range(1, 12)
    )
    envelope = 0.5 - 0.5 * np.cos(2 * np.pi * time / 0.3)
    noise = np.random.default_rng(seed).normal(0, 0.02, len(time))
    soundfile.write(path, 0.1 * wave * envelope + noise, RATE)


def cut(
    utt: str, speaker: str, words: list[str], duration: float, audio: Path
) -> dict[str, Any]:
    supervision = {
        "id": utt,
        "recording_id": utt,
        "start": 0.0,
        "duration": duration,
        "channel": 0,
        "text": " ".join(words),
        "speaker": speaker,
    }
    recording = {
        "id": utt,
        "sources": [{"type": "file", "channels": [0], "source": str(audio)}],
        "sampling_rate": RATE,
        "num_samples": round(RATE * duration),
        "duration": duration,
        "channel_ids": [0],
    }
    return {
        "id": utt,
        "start": 0.0,
        "duration": duration,
        "channel": 0,
        "supervisions": [supervision],
        "recording": recording,
        "type": "MonoCut",
    }


def ledger_entry(stage: str, utterance: str, reason: str, action: str) -> str:
    entry = {"stage": stage, "utterance": utterance, "reason": reason}
    return json.dumps({**entry, "action": action, "beam": None}) + "\n"


def write_language(folder: Path) -> None:
    (folder / "lang" / "phones").mkdir(parents=True)
    (folder / "lm").mkdir()
    words = ["<eps>", "<UNK>", *sorted(LEXICON)]
    lines = [f"{word} {i}\n" for i, word in enumerate(words)]
    (folder / "lang" / "words.txt").write_text("".join(lines))
    lines = [f"{word} 1.0 {' '.join(phones)}\n" for word, phones in LEXICON.items()]
    (folder / "lang" / "lexiconp.txt").write_text("".join(lines))
    phones = sorted({phone for entry in LEXICON.values() for phone in entry})
    (folder / "lang" / "phones" / "nonsilence.txt").write_text("\n".join(phones) + "\n")
    (folder / "lang" / "phones" / "silence.txt").write_text("SIL\nSPN\n")
    (folder / "lm" / "lm.arpa").write_text(
        "\\data\\\nngram 1=9\nngram 2=14\n\n\\1-grams:\n-1 ONE\n\\end\\\n"
    )


def write_model(folder: Path, system: str, i: int, generator: random.Random) -> None:
    target = folder / "gmm" / system
    target.mkdir(parents=True)
    names = "iter log_like_per_frame num_gaussians num_utterances num_frames seconds"
    lines = ["\t".join([*names.split(), "phase"])]
    for k in range(40 - 5 * i):
        log_like = -98 + 8 * i - 14 * math.exp(-k / 7) + generator.uniform(-0.1, 0.1)
        gaussians = min(1000, 130 + 60 * i + 25 * k)
        phase = "keep" if k % 4 else "realign"
        lines.append(f"{k}\t{log_like:.4f}\t{gaussians}\t40\t9000\t0.5\t{phase}")
    (target / "iterations.tsv").write_text("\n".join(lines) + "\n")
    info = {"type": system, "num_pdfs": 60 + 90 * i, "num_gaussians": 1000, "dim": 39}
    write_json(target / "info.json", info)
    phones = {}
    for phone in ("SIL", *sorted({p for entry in LEXICON.values() for p in entry})):
        middle = 40 if phone == "SIL" else generator.randint(5, 14)
        frames = [3 + generator.expovariate(1 / (middle - 3)) for _ in range(200)]
        low, median, high = np.percentile(frames, [5, 50, 95])
        phones[phone] = {
            "occurrences": 200,
            "frames": int(sum(frames)),
            "mean_frames": sum(frames) / 200,
            "p5_frames": round(low),
            "median_frames": round(median),
            "p95_frames": round(high),
        }
    statistics = {"num_aligned": 40, "num_frames": 9000, "silence_share": 0.21}
    write_json(
        folder / "align" / system / "train" / "statistics.json",
        {**statistics, "frame_shift": SHIFT, "phones": phones},
    )


def write_sweep(folder: Path, system: str, generator: random.Random) -> None:
    target = folder / "tune" / system
    target.mkdir(parents=True)
    lines = ["lmwt\twip\twer"]
    for wip in (0.0, 0.5, 1.0):
        for lmwt in range(5, 21):
            wer = 20 + 0.15 * (lmwt - 12) ** 2 + 2 * wip + generator.uniform(0, 0.4)
            lines.append(f"{lmwt}\t{wip}\t{wer:.2f}")
    (target / "sweep.tsv").write_text("\n".join(lines) + "\n")
    write_json(target / "scales.json", {"lmwt": 12, "wip": 0.0})
    lines = ["beam\trtf\twer\tdepth"]
    for beam in (5, 9, 13):
        lines.append(f"{beam}\t{0.003 * beam}\t{20 + 30 / beam:.2f}\t{beam}")
    (target / "beams.tsv").write_text("\n".join(lines) + "\n")


def write_scores(
    folder: Path, system: str, name: str, error_rate: float, options: ScoreOptions
) -> None:
    generator = random.Random(f"{system}{name}")
    references, speakers = {}, {}
    with gzip.open(folder / "corpus" / name / "cuts.jsonl.gz", "rt") as stream:
        for item in map(json.loads, stream):
            references[item["id"]] = item["supervisions"][0]["text"].split()
            speakers[item["id"]] = item["supervisions"][0]["speaker"]
    recognized = {
        utt: misheard(references[utt], error_rate, generator)
        for utt in sorted(references, key=lambda utt: utt[-3:])  # as they were made
    }
    target = folder / "score" / system / name
    target.mkdir(parents=True)
    score.write_scores(
        target,
        References(references, speakers, SHIFT),
        recognized,
        {"lmwt": 12, "wip": 0.0},
        options=options,
        seed=1,
    )
    words, phones = [], []
    for utt, heard in recognized.items():
        for i, word in enumerate(heard):
            start = 0.2 + 0.3 * i
            words.append(TimedWord(utt, start, 0.3, word))
            entry = LEXICON[word]
            step = 0.3 / len(entry)
            phones += [
                TimedWord(utt, start + step * k, step, phone)
                for k, phone in enumerate(entry)
            ]
    for file, labels in (("hyp.ctm", words), ("hyp_phones.ctm", phones)):
        (target / file).write_text("".join(map(ctm_line, labels)), encoding="utf-8")
    wer = json.loads((target / "wer.json").read_text())["wer"]
    percentiles = {"5": 2.1, "25": 4.0, "50": 7.5, "75": 12.0, "95": 30.2}
    measured = {"best_wer": wer, "oracle_wer": wer / 2, "depth": 9.4}
    write_json(target / "lattices.json", {**measured, "depth_percentiles": percentiles})
    factor = {
        "utterances": len(references),
        "audio_seconds": 80.5,
        "real_time_factor_per_core": {"search": 0.061, "both": 0.071},
        "wall_seconds": 3.1,
    }
    write_json(folder / "decode" / system / name / "decode.json", factor)


def misheard(words: list[str], rate: float, generator: random.Random) -> list[str]:
    heard = []
    for word in words:
        draw = generator.random() / rate
        if draw < 0.2 or word not in LEXICON:
            continue
        heard.append(generator.choice(sorted(LEXICON)) if draw < 0.8 else word)
        if 0.8 <= draw < 1.0:
            heard.append(generator.choice(sorted(LEXICON)))
    return heard


def write_costs(folder: Path, generator: random.Random) -> None:
    rules = "prepare_corpus extract_features train_mono train_deltas decode_lattices"
    for rule in rules.split():
        for job in ("a", "b"):
            seconds = generator.uniform(1, 60)
            measured = {"s": seconds, "max_rss": generator.uniform(100, 900)}
            measured |= {"cpu_time": 1.7 * seconds, "io_in": "NA", "mean_load": 150}
            write_json(folder / "benchmarks" / rule / f"{job}.jsonl", measured)
