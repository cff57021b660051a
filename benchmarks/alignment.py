"""Boundaries of `latflow align` against those that eSpeak NG tells of its own speech.

Sentences of the demo corpus are spoken by several voices without noise. eSpeak NG says
when each of its phones begins; these phones, word by word, are the lexicon. The corpus
is a folder of audio and text, and is aligned as a user would: `latflow align`.

    python benchmarks/alignment.py --speakers 8 --utterances 240
    python benchmarks/alignment.py --speakers 8 --utterances 240 --side test --seed 77
    python benchmarks/alignment.py --utterances 24 --model PACKAGE --adapt

With `--words LEXICON` voices say five words of that lexicon, which aligns them, and
boundaries of words are compared: the phones of another corpus are its own.

With `--model` a package aligns, of a GMM system or a network, such as the one that an
earlier run has left in `FOLDER/out/package` (`--folder`). Those of `--packages`, of
networks for example, align the same corpus after that; their figures are in `packages`.
They take the corpus's lexicon, so that theirs and eSpeak NG's phones are the same, or
that of `--words`.

Where a stop's closure belongs is a convention: eSpeak NG tells of p, t and k when they
are released, aligners begin them with the silence before. The figures by phone show it.

Prints JSON: error of boundaries, refined and those of frames (median, mean, share
within 10, 20 and 50 ms; bias), speed of the last alignment and of the refinement in
times real time, processor time of the whole training, TextGrids a minute of the export
on made-up alignments. With `--viter` (the program of the wheel of that name, in an
environment of its own) it trains on the same corpus, and is measured alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
import soundfile

from latflow.align.export import export_alignments
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet
from latflow.corpus.grammar import draw_sentence
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import read_cuts
from latflow.corpus.synthetic import ACCENTS, VOICES
from latflow.corpus.textgrid import Interval, textgrid
from latflow.files import write_json
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lang.lexicon import read_lexicon
from latflow.scoring.boundaries import Labels, compare_labels, read_labels

# Of espeak-ng/speak_lib.h.
WITH_PHONES, WORD, PHONE = 1, 1, 7
SILENCE = 0.2  # seconds before and after a sentence


class Value(ctypes.Union):
    """What an event is about: a number, or a name of up to 8 bytes."""

    _fields_ = (("number", ctypes.c_int), ("string", ctypes.c_char * 8))


class Event(ctypes.Structure):
    """`espeak_EVENT`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("value", Value),
    )


Callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_short),
    ctypes.c_int,
    ctypes.POINTER(Event),
)


class Speaker:
    """eSpeak NG with events."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._callback = Callback(self._collect)
        data = espeakng_loader.get_data_path().encode()
        self.rate = int(self._library.espeak_Initialize(2, 0, data, WITH_PHONES))
        self._library.espeak_SetSynthCallback(self._callback)
        self._samples: list[np.ndarray] = []
        self._events: list[tuple[int, float, Any]] = []

    def speak(
        self, voice: str, text: str, speed: int
    ) -> tuple[np.ndarray, list[list[Interval]]]:
        """Say a sentence.

        Returns:
            (int16[L], the phones of each word, in seconds).
        """
        self._samples.clear()
        self._events.clear()
        self._library.espeak_SetVoiceByName(voice.encode())
        self._library.espeak_SetParameter(1, speed, 0)
        spoken = text.encode()
        self._library.espeak_Synth(
            spoken, ctypes.c_size_t(len(spoken) + 1), 0, 1, 0, 1, None, None
        )
        samples = np.concatenate(self._samples)
        words: list[list[Interval]] = []
        # A phone ends where the next one begins, or a pause, within a sentence too.
        phones = [event for event in self._events if event[0] == PHONE]
        ends = iter([at for _, at, _ in phones[1:]] + [len(samples) / self.rate])
        for kind, at, value in self._events:
            end = next(ends) if kind == PHONE else at
            name = value.strip("',=%")
            if kind == WORD:
                words.append([])
            elif name and not name.startswith("_"):
                words[-1].append(Interval(at, end, name))
        return samples, words

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        """Receive speech and events from the library."""
        if samples and count > 0:
            self._samples.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].type:
            event = events[i]
            name = event.value.string.decode() if event.type == PHONE else ""
            self._events.append((event.type, event.sample / self.rate, name))
            i += 1
        return 0


def make_corpus(
    top: Path,
    speakers: int,
    utterances: int,
    side: str,
    seed: int,
    words_of: Path | None = None,
) -> float:
    """Write audio, transcripts, true TextGrids and the lexicon; return the seconds.

    Args:
        top: folder to write to.
        speakers: number of voices.
        utterances: of all voices together.
        side: of voices and sentences, `train` or `test`.
        seed: of sentences and noise.
        words_of: lexicon that sentences of five words are drawn from; it is taken as
            it is.
    """
    known = [] if words_of is None else read_lexicon(words_of).words
    known = [word for word in known if word.isalpha()]
    rng = np.random.default_rng(seed)
    speaker, lexicon, seconds = Speaker(), set(), 0.0
    for s in range(speakers):
        variant = VOICES[side][s % len(VOICES[side])]
        voice = f"{ACCENTS[s % len(ACCENTS)]}+{variant}"
        (top / f"corpus/s{s}").mkdir(parents=True)
        (top / f"truth/s{s}").mkdir(parents=True)
        for u in range(utterances // speakers):
            drawn = " ".join(rng.choice(known, 5)) if known else None
            text = drawn or draw_sentence(rng, side)
            speech, words = speaker.speak(voice, text.lower(), 160)
            spelt = text.split()
            if len(words) != len(spelt) or not all(words):
                continue  # eSpeak NG joins some words, such as "of the"
            still = np.zeros(round(SILENCE * speaker.rate), np.int16)
            noise = np.round(rng.standard_normal(len(speech) + 2 * len(still)) * 3)
            samples = np.concatenate([still, speech, still])
            samples = np.clip(samples + noise, -32768, 32767).astype(np.int16)
            soundfile.write(top / f"corpus/s{s}/{u:04}.wav", samples, speaker.rate)
            (top / f"corpus/s{s}/{u:04}.txt").write_text(text)
            labels = [
                Interval(SILENCE + start, SILENCE + end, name)
                for word in words
                for start, end, name in word
                if end > start
            ]
            length = len(samples) / speaker.rate
            said = [
                Interval(SILENCE + word[0].start, SILENCE + word[-1].end, text)
                for word, text in zip(words, spelt, strict=True)
            ]
            grid = textgrid({"phones": labels, "words": said}, length)
            (top / f"truth/s{s}/{u:04}.TextGrid").write_text(grid, encoding="utf-8")
            seconds += length
            lexicon |= {
                f"{word} {' '.join(phone.text for phone in phones)}\n"
                for word, phones in zip(spelt, words, strict=True)
            }
    lines = "".join(sorted(lexicon))
    if words_of is not None:
        lines = words_of.read_text(encoding="utf-8")
    (top / "lexicon.txt").write_text(lines, encoding="utf-8")
    return seconds


@dataclass(frozen=True)
class Aligned:
    """Where the alignments of a run are, and what made them.

    Attributes:
        folder: with `ali.ark`.
        lang: of the words and phones.
        model: with `final.mdl`.
        rule: that made them.
    """

    folder: Path
    lang: Path
    model: Path
    rule: str

    @classmethod
    def of(cls, results: Path, package: Path | None) -> Aligned:
        """Return those of systems of the corpus's own, or of a package."""
        if package is None:
            folder = results / "align/sat/train"
            return cls(folder, results / "lang", results / "gmm/sat", "align_adapted")
        folder = results / "align/package/train"
        return cls(folder, folder / "lang", package / "model", "align_package")


def export_speed(
    top: Path, results: Path, made_by: Aligned, copies: int
) -> dict[str, float]:
    """Export alignments of many recordings, all copies of those that are there."""
    made = top / "many"
    made.mkdir()
    aligned = made_by.folder
    paths = dict(read_int_vectors(aligned / "ali.ark"))
    made_of = read_cuts(results / "corpus/train/cuts.jsonl.gz")
    cuts = [cut for cut in made_of if cut.id in paths]

    def named() -> Iterator[tuple[str, np.ndarray]]:
        for n in range(copies):
            for cut in cuts:
                yield f"{n:06}-{cut.id}", paths[cut.id]

    write_int_vectors(made / "ali.ark", named())
    with ManifestWriter(made / "cuts.jsonl.gz") as writer:
        for n in range(copies):
            for cut in cuts:
                cut.recording.id = f"{n:06}-{cut.supervisions[0].recording_id}"
                writer.write(cut.with_id(f"{n:06}-{cut.supervisions[0].id}"))
    shift = json.loads((aligned / "statistics.json").read_text())["frame_shift"]
    write_json(made / "statistics.json", {"frame_shift": shift})
    wall, processor = time.perf_counter(), time.process_time()
    export_alignments(
        AlignedSet(
            alignments=made / "ali.ark",
            statistics=made / "statistics.json",
            cuts=made / "cuts.jsonl.gz",
            lang_dir=made_by.lang,
            model_dir=made_by.model,
            first_middle=0.0125,
        ),
        out_dir=made / "out",
        options=ExportOptions(),
    )
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    count = copies * len(cuts)
    return {
        "textgrids": count,
        "textgrids_per_minute": 60 * count / wall,
        "textgrids_per_minute_of_processor_time": 60 * count / processor,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def boundaries_of_frames(
    out: Path, results: Path, made_by: Aligned, truth: Labels, tier: str
) -> Any:
    """Return the errors of the boundaries of frames, which nothing has refined."""
    aligned = made_by.folder
    export_alignments(
        AlignedSet(
            alignments=aligned / "ali.ark",
            statistics=aligned / "statistics.json",
            cuts=results / "corpus/train/cuts.jsonl.gz",
            lang_dir=made_by.lang,
            model_dir=made_by.model,
            first_middle=0.0125,
        ),
        out_dir=out / "frames",
        options=ExportOptions(formats=("textgrid",), names="path"),
    )
    found = read_labels(out / "frames/textgrid", tier)
    return compare_labels(truth, found).values()["boundaries"]


def run_viter(top: Path, program: Path, truth: Labels, tier: str) -> dict[str, Any]:
    """Train viter on the corpus; return errors, times, recordings without alignment."""
    out = top / "viter"
    command = [program, "train", top / "corpus", "--dict", top / "lexicon.txt"]
    command += ["--out", top / "model.viter", "--out-textgrids", out, "--cpu"]
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    after, wall = (
        resource.getrusage(resource.RUSAGE_CHILDREN),
        time.perf_counter() - wall,
    )
    values = compare_labels(truth, read_labels(out, tier)).values()
    return {
        "boundaries": values["boundaries"],
        "matched_labels": values["matched"] / values["labels"][0],
        "not_aligned": values["only_in_one"],
        "processor_seconds": sum(
            getattr(after, name) - getattr(before, name)
            for name in ("ru_utime", "ru_stime")
        ),
        "wall_seconds": wall,
    }


def seconds_of(results: Path, rule: str) -> float:
    """Processor seconds of the jobs of a rule, of their records."""
    records = (results / "provenance" / rule).glob("*.json")
    return sum(json.loads(path.read_text())["cpu_seconds"] for path in records)


def align(
    top: Path,
    name: str,
    package: Path | None,
    *,
    tier: str,
    adapts: bool,
    cores: int,
) -> tuple[Aligned, dict[str, Any]]:
    """Run `latflow align` on the corpus.

    Args:
        top: folder of corpus and lexicon.
        name: folder below it for what is made.
        package: what aligns; None for systems trained on the corpus.
        tier: whose boundaries are compared.
        adapts: whether the package is adapted before.
        cores: that it may use.

    Returns:
        (what was made; errors of boundaries, times, recordings without alignment).
    """
    out = top / name
    command = [sys.executable, "-m", "latflow.cli.main", "align", top / "corpus"]
    command += [top / "lexicon.txt", out, "--cores", cores]
    if package is not None:
        command += ["--model", package, *(["--adapt"] if adapts else [])]
    wall = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    wall = time.perf_counter() - wall
    results = out / "results/align"
    made_by = Aligned.of(results, package)
    truth = read_labels(top / "truth", tier)
    found = read_labels(out / "textgrid", tier)
    values = compare_labels(truth, found).values()
    cuts = read_cuts(results / "corpus/train/cuts.jsonl.gz")
    speech = sum(cut.duration for cut in cuts)
    rules = ["train_mono", "train_deltas", "train_lda_mllt", "train_sat"]
    rules += ["align_frames", "align_adapted", "refine_boundaries"]
    rules += ["adapt_package", "align_package"]
    frames = boundaries_of_frames(out, results, made_by, truth, tier)
    records = (results / "provenance").rglob("*.json")
    return made_by, {
        "speech_minutes": speech / 60,
        "boundaries": values["boundaries"],
        "boundaries_of_frames": frames,
        "beginnings_by_label": values["by_label"],
        "matched_labels": values["matched"] / values["labels"][0],
        "align_times_real_time_of_processor": speech
        / seconds_of(results, made_by.rule),
        "refine_times_real_time_of_processor": speech
        / seconds_of(results, "refine_boundaries"),
        "training_and_alignment_processor_seconds": sum(
            seconds_of(results, rule) for rule in rules
        ),
        "processor_seconds": sum(
            json.loads(path.read_text())["cpu_seconds"] for path in records
        ),
        "wall_seconds": wall,
        "not_aligned": sorted(truth.keys() - found.keys()),
    }


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speakers", type=int, default=8)
    parser.add_argument("--utterances", type=int, default=240)
    parser.add_argument(
        "--side", choices=("train", "test"), default="train", help="voices, sentences"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--words", type=Path, help="lexicon of what is said")
    parser.add_argument("--model", type=Path, help="package that aligns")
    parser.add_argument("--adapt", action="store_true", help="adapt it before")
    parser.add_argument(
        "--packages", type=Path, nargs="+", default=[], help="packages that align, too"
    )
    parser.add_argument("--viter", type=Path, help="program to be compared with")
    parser.add_argument("--folder", type=Path, help="kept, and gone on with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        top = arguments.folder or Path(temporary)
        if not (top / "lexicon.txt").is_file():
            make_corpus(
                *(top, arguments.speakers, arguments.utterances),
                *(arguments.side, arguments.seed, arguments.words),
            )
        tier = "phones" if arguments.words is None else "words"
        how: dict[str, Any] = {"tier": tier, "cores": arguments.cores}
        made_by, figures = align(
            top, "out", arguments.model, adapts=arguments.adapt, **how
        )
        results = top / "out/results/align"
        figures["export"] = export_speed(top, results, made_by, arguments.copies)
        for number, package in enumerate(arguments.packages, 1):
            _, found = align(top, f"out{number}", package, adapts=False, **how)
            figures.setdefault("packages", {})[str(package)] = found
        if arguments.viter is not None:
            truth = read_labels(top / "truth", tier)
            figures["viter"] = run_viter(top, arguments.viter, truth, tier)
    json.dump(figures, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
