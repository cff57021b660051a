"""The demo corpus: orders to a kitchen robot, spoken by eSpeak NG.

Each speaker is a voice, an accent, a pitch and a rate; each utterance varies rate,
pitch, level, surrounding silence and the noise in the background. Voices of train, dev
and test are different ones, and so are their sentences (see `grammar.side_of`). All
draws are seeded by (seed, split, speaker), so the same seed gives the same bytes,
however many workers speak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import latflow
from latflow.corpus import grammar
from latflow.corpus.espeak import Utterance
from latflow.corpus.options import SyntheticSource
from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.parallel import in_order

if TYPE_CHECKING:
    from lhotse import Recording, SupervisionSegment

FEMALE = frozenset(
    {
        "Alicia", "Andrea", "Annie", "anika", "aunty", "belinda", "f1", "f2", "f3",
        "f4", "f5", "grandma", "linda", "steph",
    }
)  # fmt: skip
# Voices of each side of the corpus; no voice is on two sides.
VOICES: Mapping[str, tuple[str, ...]] = {
    "train": (
        "m1", "f1", "m2", "f2", "m3", "f4", "m5", "f5", "m7", "Annie", "Alex",
        "Alicia", "Denis", "belinda", "Diogo", "grandma", "Henrique", "anika", "Lee",
        "steph", "Mario", "Michael", "Nguyen", "Reed", "adam", "benjamin", "boris",
        "edward", "ian", "pablo", "robert", "quincy",
    ),
    "dev": ("m4", "Andrea", "Andy", "aunty", "john", "david"),
    "test": ("m6", "f3", "m8", "linda", "Hugo", "Mike", "max", "pedro"),
}  # fmt: skip
ACCENTS = ("en-us", "en-gb-x-rp", "en-us-nyc", "en-gb-scotland", "en-029")


@dataclass(frozen=True)
class Speaker:
    """One synthetic speaker; `voice` is eSpeak's, rates are in words per minute."""

    speaker_id: str
    voice: str
    gender: str
    rate: float
    pitch: float


def synthesize(
    options: SyntheticSource,
    split: str,
    folder: Path,
    final: Path,
    *,
    seed: int,
    pool: Executor,
) -> Iterator[tuple[Recording, SupervisionSegment]]:
    """Speak one split of the corpus into FLAC files.

    Args:
        options: speakers, utterances, and what they are drawn from.
        split: name of the split; it decides the voices and sentences (see `side_of`).
        folder: folder for the files while they are written.
        final: the same folder under the name it will have when all is done.

    Yields:
        (recording, supervision) of each utterance, sorted by id.

    Raises:
        UserError: eSpeak NG fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        _job(options, split, index, folder, seed)
        for index in range(options.speakers)
        if _share(options, index)
    ]
    jobs.sort(key=lambda job: job[0].speaker_id)
    spoken = in_order(pool, lambda job: _speak(job[1]), jobs)
    for (speaker, job), lengths in zip(jobs, spoken, strict=True):
        for utterance, length in zip(job["utterances"], lengths, strict=True):
            yield _manifest(speaker, utterance, length, options.sample_rate, final)


def write_synthetic_language(
    out_dir: str | Path, *, lm_sentences: int, seed: int
) -> None:
    """Write what a language model and a lexicon of the demo corpus are made of.

    Args:
        out_dir: folder for `lexicon.txt` (all words that the grammar can say) and
            `lm_text.txt` (sentences drawn for it alone; none is in dev or test).
    """
    rng = np.random.default_rng([seed, zlib.crc32(b"lm_text")])
    with atomic_directory(out_dir) as folder:
        lexicon = "".join(f"{line}\n" for line in grammar.lexicon_lines())
        (folder / "lexicon.txt").write_text(lexicon, encoding="utf-8")
        with (folder / "lm_text.txt").open("w", encoding="utf-8") as stream:
            for _ in range(lm_sentences):
                stream.write(grammar.draw_sentence(rng, "train") + "\n")


def side_of(split: str) -> str:
    """Return the side of the corpus that a split takes voices and sentences from.

    `train` and `full` (from which a dev set is held out) are the train side, `dev` is
    its own, every other split is a test set.
    """
    return {"train": "train", "full": "train", "dev": "dev"}.get(split, "test")


def _share(options: SyntheticSource, index: int) -> int:
    """Return the utterances of a speaker: equal shares, the rest to the first."""
    share, rest = divmod(options.utterances, options.speakers)
    return share + (index < rest)


def _job(
    options: SyntheticSource, split: str, index: int, folder: Path, seed: int
) -> tuple[Speaker, dict[str, Any]]:
    """Draw a speaker and all utterances."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{split}/{index}".encode())])
    speaker = _draw_speaker(options, split, index, rng)
    utterances = [
        _draw_utterance(options, side_of(split), speaker, folder, number, rng)
        for number in range(_share(options, index))
    ]
    job = {
        "voice": speaker.voice,
        "seed": int(rng.integers(1, 1 << 31)),
        "sample_rate": options.sample_rate,
        "utterances": utterances,
    }
    return speaker, job


def _draw_speaker(
    options: SyntheticSource, split: str, index: int, rng: np.random.Generator
) -> Speaker:
    """Draw a speaker; voices are taken in turn, everything else is drawn."""
    voices = VOICES[side_of(split)]
    variant = voices[index % len(voices)]
    accent = str(rng.choice(ACCENTS))
    return Speaker(
        speaker_id=f"{variant.lower()}-{split}{index:03d}",
        voice=f"{accent}+{variant}",
        gender="F" if variant in FEMALE else "M",
        rate=float(rng.uniform(*options.rate)),
        pitch=float(rng.uniform(*options.pitch)),
    )


def _draw_utterance(
    options: SyntheticSource,
    side: str,
    speaker: Speaker,
    folder: Path,
    number: int,
    rng: np.random.Generator,
) -> Utterance:
    """Draw what a speaker says, and how; speakers vary their rate by a tenth."""
    sentence = grammar.draw_sentence(rng, side)
    return Utterance(
        text=sentence.lower(),
        rate=round(speaker.rate * rng.uniform(0.9, 1.1)),
        pitch=round(np.clip(speaker.pitch + rng.uniform(-5, 5), 0, 99)),
        lead_s=float(rng.uniform(*options.silence_s)),
        tail_s=float(rng.uniform(*options.silence_s)),
        peak_db=float(rng.uniform(-15.0, -3.0)),
        snr_db=float(rng.uniform(*options.snr_db)),
        noise_key=[int(rng.integers(1 << 32))],
        path=str(folder / f"{speaker.speaker_id}-{number:04d}.flac"),
    )


def _speak(job: Mapping[str, Any]) -> list[int]:
    """Run a worker program for one speaker; returns lengths in samples."""
    source = str(Path(latflow.__file__).parents[1])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "latflow.corpus.espeak"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        full = "No space left" in done.stderr or "System error" in done.stderr
        raise UserError(
            f"eSpeak NG with voice {job['voice']} failed: {lines[-1]}",
            file=Path(job["utterances"][0]["path"]).parent,
            remedy="free space on the disk" if full else "reinstall espeakng-loader",
        )
    return json.loads(done.stdout)


def _manifest(
    speaker: Speaker,
    utterance: Utterance,
    num_samples: int,
    sample_rate: int,
    final: Path,
) -> tuple[Recording, SupervisionSegment]:
    # Imports torch, which the corpus's language does not need.
    from lhotse import AudioSource, Recording, SupervisionSegment

    path = Path(utterance["path"])
    duration = num_samples / sample_rate
    recording = Recording(
        id=path.stem,
        sources=[AudioSource("file", [0], str(final / path.name))],
        sampling_rate=sample_rate,
        num_samples=num_samples,
        duration=duration,
    )
    supervision = SupervisionSegment(
        id=path.stem,
        recording_id=path.stem,
        start=0.0,
        duration=duration,
        channel=0,
        text=utterance["text"].upper(),
        language="English",
        speaker=speaker.speaker_id,
        gender=speaker.gender,
        custom={
            "voice": speaker.voice,
            "snr_db": round(utterance["snr_db"], 1),
        },
    )
    return recording, supervision
