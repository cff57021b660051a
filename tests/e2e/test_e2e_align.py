"""`latflow align`: a folder of audio and texts to TextGrids; once is enough."""

import os
import subprocess
import sys

import pytest

from latflow.corpus.espeak import Utterance, speak_job
from latflow.corpus.grammar import lexicon_lines
from latflow.corpus.textgrid import read_tiers

pytestmark = pytest.mark.slow
TEXTS = (
    "wash the red cup",
    "bring the captain a cup of tea",
    "wash the blue bowl",
    "sing to the cat",
)


@pytest.fixture
def corpus(tmp_path):
    """Two voices who say the same sentences, some of them twice."""
    (tmp_path / "lexicon.txt").write_text("".join(f"{x}\n" for x in lexicon_lines()))
    for voice in ("m1", "f1"):
        folder = tmp_path / "corpus" / voice
        folder.mkdir(parents=True)
        utterances = []
        for number in range(12):
            text = TEXTS[number % len(TEXTS)]
            path = folder / f"{number:02}.flac"
            path.with_suffix(".txt").write_text(f"{text.capitalize()}.")
            utterances.append(
                Utterance(
                    text=text, rate=150 + 3 * number, pitch=50, lead_s=0.2, tail_s=0.2,
                    peak_db=-3.0, snr_db=30.0, noise_key=[number], path=str(path),
                )
            )  # fmt: skip
        job = {"voice": f"en-us+{voice}", "seed": 1, "sample_rate": 16000}
        speak_job({**job, "utterances": utterances})
    return tmp_path


def test_folder_is_aligned_once(corpus):
    command = [sys.executable, "-m", "latflow.cli.main", "align"]
    command += [str(corpus / name) for name in ("corpus", "lexicon.txt", "out")]
    command += ["--cores", "2"]
    first, second = (
        subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ}
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Train the speaker-adapted system sat" in first.stdout
    assert "24 utterances of 24 recordings are aligned" in first.stdout
    for number in range(12):
        path = corpus / f"out/textgrid/f1/{number:02}.TextGrid"
        words, phones = read_tiers(path)
        assert (words.name, phones.name) == ("words", "phones")
        spoken = " ".join(interval.text for interval in words.intervals)
        assert spoken == TEXTS[number % len(TEXTS)].upper()
        assert len(phones.intervals) > len(words.intervals)
    assert second.returncode == 0
    assert "Train" not in second.stdout
