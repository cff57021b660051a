"""Digital silence, clipping, offset and hum: they are aligned, and recognized."""

import zlib

import numpy as np
import pytest
from fixtures.serving_package import MFCC, RATE, words_of

from latflow.features.extract import make_extractor
from latflow.features.frames import FrameWriter
from latflow.gmm.alignment import align_gmm
from latflow.gmm.options import AlignAdaptedOptions
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors
from latflow.lattice.edit_distance import count_errors
from latflow.ledger import read_ledger
from latflow.parts import SetJob


def with_digital_silence(wave):
    """A second of zeros at each end, and a hole of zeros in the speech."""
    wave = wave.copy()
    wave[len(wave) // 2 :][:400] = 0.0
    return np.pad(wave, RATE)


def clipped(wave):
    """Nothing is louder than a quarter of the loudest sample."""
    limit = 0.25 * np.abs(wave).max()
    return np.clip(wave, -limit, limit)


def with_offset(wave):
    """A tenth of the range away from zero."""
    return wave + np.float32(0.1)


def with_hum(wave):
    """The tone of the mains, 50 Hz, 20 dB below the loudest sample."""
    seconds = np.arange(len(wave)) / RATE
    hum = 0.1 * np.abs(wave).max() * np.sin(2 * np.pi * 50 * seconds)
    return wave + hum.astype(np.float32)


FAULTS = [with_digital_silence, clipped, with_offset, with_hum]


def align(digits, folder, spoil):
    """Align spoilt speech; returns the ids of what was aligned, and the ledger."""
    extractor = make_extractor(MFCC, RATE)
    with FrameWriter(folder / "frames", dim=MFCC.dim) as writer:
        for utterance in digits.audio:
            wave = spoil(digits.samples(utterance))
            key = zlib.crc32(utterance.encode())
            frames = extractor.extract_utterance(wave, key)
            writer.append(utterance, "s", digits.texts[utterance], frames)
    align_gmm(
        SetJob(
            frames_dir=folder / "frames",
            lang_dir=digits.root / "lang",
            model_dir=digits.root / "gmm/mono",
            out_dir=folder / "ali",
            threads=1,
            max_skipped_fraction=1.0,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )
    aligned = dict(read_int_vectors(folder / "ali/ali.ark"))
    return aligned.keys(), list(read_ledger(folder / "ali/ledger.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("spoil", FAULTS)
def test_it_is_aligned(digits, tmp_path, spoil):
    aligned, ledger = align(digits, tmp_path, spoil)
    assert aligned == digits.audio.keys()
    assert all(entry.action == "retried" for entry in ledger)  # with a wider beam


@pytest.mark.parametrize("spoil", FAULTS)
def test_it_is_recognized(model, digits, spoil):
    assert error_rate(model, digits, spoil) <= 0.5


def error_rate(model, digits, spoil):
    """Word error rate of spoilt speech."""
    wanted = [digits.texts[u].split() for u in digits.audio]
    found = [words_of(model, spoil(digits.samples(u))) for u in digits.audio]
    errors = sum(count_errors(w, f).errors for w, f in zip(wanted, found, strict=True))
    return errors / sum(map(len, wanted))
