"""The eSpeak NG synthesizer, by ctypes, and a worker program that speaks for one voice.

eSpeak NG is a formant synthesizer: robotic, but with dozens of voices and accents, a
thousand times faster than real time, and small enough to come in a wheel
(`espeakng_loader`). Its library keeps state from one sentence to the next (even beyond
`espeak_Terminate`), so the same sentence sounds slightly different after another one,
and seeds the noise of breathy voices with the clock. Each speaker is therefore spoken
by its own process, from a fresh state, with a seed, and in a fixed order: the corpus
does not depend on how many workers make it, nor when.

`python -m latflow.corpus.espeak` reads a job from standard input as JSON (see
`speak_job`), writes FLAC files, and prints their lengths in samples as JSON. The
module imports little, so that a worker starts in a fraction of a second.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import espeakng_loader
import numpy as np
import soundfile

# Constants of espeak-ng/speak_lib.h.
SYNCHRONOUS_OUTPUT = 2
CHARACTERS_UTF8 = 1
POSITION_CHARACTER = 1
PARAMETER_RATE = 1
PARAMETER_PITCH = 3

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Utterance(TypedDict):
    """A sentence to synthesize, and its voice.

    `rate` is in words per minute, `pitch` in eSpeak's units (0-99), `lead_s` and
    `tail_s` are seconds of silence around the speech, `peak_db` is the level of the
    loudest sample relative to full scale, `snr_db` the power of the whole utterance
    over that of the noise, `noise_key` the entropy of the noise's generator, `path` the
    FLAC file to write.
    """

    text: str
    rate: int
    pitch: int
    lead_s: float
    tail_s: float
    peak_db: float
    snr_db: float
    noise_key: list[int]
    path: str


@dataclass
class Synthesizer:
    """One instance of the library, set to one voice.

    Args:
        voice: language and variant, e.g. `en-us+m3`.
        seed: of the noise in breathy voices.

    Raises:
        ValueError: the wheel does not carry the voice.
    """

    voice: str
    seed: int = 1

    def __post_init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._chunks: list[np.ndarray] = []
        self._callback = _Callback(self._collect)  # must outlive the library's use
        data = espeakng_loader.get_data_path().encode()
        self.sample_rate = int(
            self._library.espeak_Initialize(SYNCHRONOUS_OUTPUT, 0, data, 0)
        )
        if self.sample_rate <= 0:
            raise ValueError("eSpeak NG cannot be initialized")
        self._library.espeak_SetSynthCallback(self._callback)
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(self.seed))
        if self._library.espeak_SetVoiceByName(self.voice.encode()) != 0:
            raise ValueError(f"eSpeak NG has no voice {self.voice}")

    def speak(self, text: str, *, rate: int, pitch: int) -> np.ndarray:
        """Synthesize a sentence.

        Args:
            rate: words per minute, 80-450.
            pitch: 0-99; 50 is the voice's own.

        Returns:
            int16 [L], at `sample_rate`.
        """
        self._chunks.clear()
        self._library.espeak_SetParameter(PARAMETER_RATE, rate, 0)
        self._library.espeak_SetParameter(PARAMETER_PITCH, pitch, 0)
        spoken = text.encode()
        status = self._library.espeak_Synth(
            spoken, ctypes.c_size_t(len(spoken) + 1), 0, POSITION_CHARACTER, 0,
            CHARACTERS_UTF8, None, None,
        )  # fmt: skip
        if status != 0 or not self._chunks:
            raise ValueError(f"eSpeak NG cannot say {text!r} with voice {self.voice}")
        return np.concatenate(self._chunks)

    def _collect(self, samples: Any, count: int, _: Any) -> int:
        """Receive a piece of speech from the library; 0 asks for more."""
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


def resample(samples: np.ndarray, rate_in: int, rate_out: int) -> np.ndarray:
    """Resample by cutting or padding the spectrum of the whole signal.

    Exact for band-limited signals whose ends are silent (the transform is circular).

    Args:
        samples: [L], real.
        rate_in: samples per second of the input.
        rate_out: samples per second wanted.

    Returns:
        float64 [ceil(L / d) * d * rate_out / rate_in], where d is the shortest length
        that both rates divide.
    """
    divisor = int(np.gcd(rate_in, rate_out))
    step_in, step_out = rate_in // divisor, rate_out // divisor
    blocks = -(-len(samples) // step_in)
    spectrum = np.fft.rfft(np.asarray(samples, np.float64), blocks * step_in)
    return np.fft.irfft(spectrum, blocks * step_out) * (step_out / step_in)


def add_noise(
    samples: np.ndarray, snr_db: float, rng: np.random.Generator
) -> np.ndarray:
    """Add stationary pink noise (power falls with 1 / frequency) at an exact SNR.

    Args:
        samples: [L] float.
        snr_db: mean power of all of `samples` over that of the noise, decibels.
    """
    spectrum = np.fft.rfft(rng.standard_normal(len(samples)))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    noise = np.fft.irfft(spectrum, len(samples))
    wanted = np.mean(samples**2) * 10 ** (-snr_db / 10)
    return samples + noise * np.sqrt(wanted / np.mean(noise**2))


def speak_job(job: dict[str, Any]) -> list[int]:
    """Speak the utterances of one speaker, in order, and write them as 16-bit FLAC.

    Args:
        job: `voice`, `seed` (see `Synthesizer`), `sample_rate` (of the files) and
            `utterances` (`Utterance` each).

    Returns:
        Length of each utterance, samples.
    """
    synthesizer = Synthesizer(job["voice"], job["seed"])
    return [
        _write(synthesizer, utterance, job["sample_rate"])
        for utterance in job["utterances"]
    ]


def _write(synthesizer: Synthesizer, wanted: Utterance, rate_out: int) -> int:
    """Speak one utterance into its file; returns its length in samples."""
    speech = synthesizer.speak(
        wanted["text"], rate=wanted["rate"], pitch=wanted["pitch"]
    )
    rate_in = synthesizer.sample_rate
    silences = [np.zeros(round(wanted[k] * rate_in)) for k in ("lead_s", "tail_s")]
    samples = np.concatenate([silences[0], speech, silences[1]])
    samples = resample(samples, rate_in, rate_out)
    rng = np.random.default_rng(wanted["noise_key"])
    samples = add_noise(samples, wanted["snr_db"], rng)
    samples *= 10 ** (wanted["peak_db"] / 20) / np.abs(samples).max()
    quantized = np.round(samples * 32767).astype(np.int16)
    soundfile.write(
        wanted["path"], quantized, rate_out, format="FLAC", subtype="PCM_16"
    )
    return len(quantized)


if __name__ == "__main__":
    json.dump(speak_job(json.load(sys.stdin)), sys.stdout)
