"""Finding out what an audio file holds, and whether it can really be decoded.

A header says how long a file should be; only decoding says whether it is. `examine`
reads headers and, when asked to verify, decodes everything in blocks (FLAC's frame
checksums then reveal any damaged byte). How files are opened is
`latflow.corpus.audio_backend`'s.

`AudioReader` reads a file of any length in blocks.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import soundfile
from lhotse import AudioSource, Recording

from latflow.corpus.audio_backend import DAMAGED_MP3, Sound, open_sound
from latflow.corpus.manifest_fields import audio_types
from latflow.corpus.media import MediaError, MediaFile
from latflow.corpus.wav_length import UNKNOWN_LENGTHS

BLOCK_SAMPLES = 1 << 16
SILENT_BELOW = 1e-4  # of the power of the loudest channel: 40 dB
MP3_SLACK_SAMPLES = 2 * 1152  # encoder delay and padding: two MPEG frames
RESTORE = "restore the file, or fix its path"
# Numbers of Lhotse's filters, at most: 44.1 kHz to 16 kHz has 70,000.
_MOST_TAPS = 10_000_000
_MOST_PEAK = 1.5  # without a note
_DATA_CHUNK = re.compile(r"^\s*data\s*:\s*(\d+)\s*\(should be (\d+)\)", re.MULTILINE)
MIN_RATE, MAX_RATE = 1000, 192_000  # samples a second that are taken
_ALLOW = "if you trust it, set allow_commands: true (--set allow_commands=true)"


@dataclass(frozen=True)
class AudioFacts:
    """Contents of a source.

    Attributes:
        sample_rate: samples per second.
        num_samples: of each channel.
        num_channels: how many.
        levels: of each channel, the mean square of its samples (full scale is 1), where
            there are several and all is decoded; else empty.
        notes: what was mended, or is damaged and taken all the same.
    """

    sample_rate: int
    num_samples: int
    num_channels: int
    levels: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


class Found(NamedTuple):
    """A recording, and what its sources hold; none where it was just made."""

    recording: Recording
    facts: tuple[AudioFacts, ...] = ()


class BadAudio(Exception):  # noqa: N818 - a finding about data, not a program error
    """Audio that cannot be used: why, and what the user can do."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason} - {remedy}")


def examine(source: AudioSource, *, verify: bool) -> AudioFacts:
    """Find out what an audio file holds.

    Args:
        source: a file.
        verify: decode all of it; otherwise the header is believed.

    Raises:
        BadAudio: no file, missing, empty, unreadable, or shorter than its header says.
    """
    refuse_others(source.type)
    path = str(source.source)
    facts, is_sure = _examine_file(path, verify=verify, alone=False)
    if not is_sure:
        facts, _ = _examine_file(path, verify=verify, alone=True)
    return facts


def refuse_others(kind: str, *, allow_commands: bool = False) -> None:
    """Refuse a Lhotse audio source that is not a file.

    Args:
        kind: `file`, `command`, `url` and others.
        allow_commands: whether commands are taken, too.

    Raises:
        BadAudio: it is refused.
    """
    if kind == "command" and not allow_commands:
        raise BadAudio("runs a command for its audio", _ALLOW)
    if kind not in ("file", "command"):
        raise BadAudio(
            f"audio of type {kind} is not a file", "store the audio in files"
        )


def check_rate(rate: int, name: str) -> None:
    """Refuse a sample rate that nobody has.

    Raises:
        BadAudio: the rate of the file of that name is out of range.
    """
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadAudio(
            f"audio file {name} has {rate} samples a second",
            f"resample it to between {MIN_RATE} and {MAX_RATE}",
        )


def check_channel(name: str | Path, num_channels: int, channel: int) -> None:
    """Refuse a channel that a file has not.

    Args:
        name: of the file.
        num_channels: that it has.
        channel: from 1.

    Raises:
        BadAudio: there is no such channel.
    """
    if not 1 <= channel <= num_channels:
        raise BadAudio(
            f"audio file {name} has no channel {channel}",
            f"choose from 1 to {num_channels}",
        )


def can_resample(rate: float, wanted: int) -> bool:
    """Return whether Lhotse's filters from a sample rate to another fit memory."""
    if rate < 1 or not float(rate).is_integer():
        return False
    shared = math.gcd(int(rate), wanted)
    return (int(rate) // shared) * (wanted // shared) <= _MOST_TAPS


def probe(recording_id: str, source: AudioSource, *, verify: bool) -> Found:
    """Make the Lhotse recording of one file, from what it really holds.

    Raises:
        BadAudio: see `examine`.
    """
    facts = examine(source, verify=verify)
    recording = Recording(
        id=recording_id,
        sources=[
            AudioSource(source.type, list(range(facts.num_channels)), source.source)
        ],
        sampling_rate=facts.sample_rate,
        num_samples=facts.num_samples,
        duration=facts.num_samples / facts.sample_rate,
    )
    return Found(recording, (facts,))


def confirm(recording: Recording, *, verify: bool) -> Found:
    """Check that a recording of a manifest holds what the manifest says.

    Raises:
        BadAudio: see `examine`; or rate, length or channels differ, or it has none.
    """
    refuse_effects(recording)
    facts = [examine(source, verify=verify) for source in recording.sources]
    return agreeing(recording, facts)


def refuse_effects(recording: Recording) -> None:
    """Refuse a recording without sources, or with effects that run commands.

    Raises:
        BadAudio: it is refused.
    """
    if not recording.sources:
        raise BadAudio("names no source of audio", "name the file in its sources")
    if recording.transforms:
        for kind in audio_types(recording.to_dict()["transforms"]):
            refuse_others(kind)


def agreeing(recording: Recording, facts: Sequence[AudioFacts]) -> Found:
    """Return a recording of a manifest whose sources hold what it says.

    Raises:
        BadAudio: rate, length or channels differ.
    """
    for source, one in zip(recording.sources, facts, strict=True):
        _compare(recording, source, one)
    return Found(recording, tuple(facts))


def may_have_silent_channel(path: str) -> bool:
    """Return whether a file begins with a channel that is silent beside another one.

    Raises:
        BadAudio: see `AudioReader`; or the file is damaged.
    """
    with AudioReader(path) as reader:
        levels = np.square(reader.first_block(), dtype=np.float64).sum(axis=0)
    return bool(levels.min() <= SILENT_BELOW * levels.max())


class AudioReader:
    """A file, read in blocks; close it, or use it in a `with` statement.

    Args:
        source: path of the file, or the file, open and to be sought in.
        raw_rate: Hz, where the file holds nothing but 16-bit samples, little-endian, of
            one channel; None for a file that says what it holds.
        name: that errors give it; its path if None.

    Raises:
        BadAudio: missing, empty, or in no known format.
    """

    def __init__(
        self,
        source: str | Path | BinaryIO,
        *,
        raw_rate: int | None = None,
        name: str | None = None,
    ) -> None:
        is_path = isinstance(source, str | Path)
        self._path = str(source) if name is None else name
        if is_path:
            _check_size(str(source))
        raw = {"subtype": "PCM_16", "endian": "LITTLE", "format": "RAW", "channels": 1}
        given = {} if raw_rate is None else {**raw, "samplerate": raw_rate}
        with _faults(self._path):
            self._stream = open_sound(str(source) if is_path else source, **given)
        self.sample_rate = int(self._stream.samplerate)
        self.num_channels = int(self._stream.channels)
        self._num_over, self._peak = 0, 1.0

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was mended, damaged or too loud, as far as the file is read."""
        if not self._num_over:
            return self._stream.notes
        over = f"{self._num_over} samples beyond full scale, the largest {self._peak:g}"
        return *self._stream.notes, f"{over} times: taken as they are"

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def blocks(self, channel: int | None = None) -> Iterator[np.ndarray]:
        """Yield the samples in blocks, float32[n], full scale at 1.

        Args:
            channel: the one to read, from 1; None for the mean of all.

        Raises:
            BadAudio: there is no such channel, no sample, a sample that is NaN or
                infinite, or the file is damaged or cut short.
        """
        if channel is not None:
            check_channel(self._path, self.num_channels, channel)
        is_empty = True
        for block in self._blocks():
            is_empty = False
            samples = block.mean(axis=1) if channel is None else block[:, channel - 1]
            if not np.isfinite(samples).all():
                reason = f"audio file {self._path} has samples that are NaN or infinite"
                raise BadAudio(reason, RESTORE)
            self._measure(samples)
            yield np.ascontiguousarray(samples, np.float32)
        if is_empty:
            raise BadAudio(f"audio file {self._path} holds no samples", RESTORE)

    def first_block(self) -> np.ndarray:
        """Return the first samples of all channels, float32[n, channels]."""
        return next(self._blocks(), np.empty((0, self.num_channels), np.float32))

    def _measure(self, samples: np.ndarray) -> None:
        """Count samples beyond full scale, which floats can be."""
        peak = max(float(samples.max()), -float(samples.min()))
        # Decoders of what was compressed go a little beyond.
        if peak > _MOST_PEAK:
            self._num_over += int((np.abs(samples) > 1).sum())
            self._peak = max(self._peak, peak)

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yield all channels, float32[n, channels]."""
        decoded = 0
        with _faults(self._path):
            while len(block := self._read(self._stream)):
                decoded += len(block)
                yield block
        _check_length(self._stream, decoded, self._path)

    @staticmethod
    def _read(stream: Sound | MediaFile) -> np.ndarray:
        """Return the next block."""
        return stream.read(BLOCK_SAMPLES, dtype="float32", always_2d=True)


def _compare(recording: Recording, source: AudioSource, facts: AudioFacts) -> None:
    """Refuse a source whose facts are not those of its recording."""
    resampled = bool(recording.transforms)
    found = (facts.sample_rate, facts.num_samples)
    stated = (recording.sampling_rate, recording.num_samples)
    if not resampled and found != stated:
        raise BadAudio(
            f"{source.source} holds {found[1]} samples at {found[0]} Hz, its manifest "
            f"says {stated[1]} at {stated[0]} Hz",
            "make the manifest again from the audio",
        )
    if len(source.channels) > facts.num_channels:
        raise BadAudio(
            f"{source.source} has {facts.num_channels} channels, its manifest says "
            f"{len(source.channels)}",
            "make the manifest again from the audio",
        )


def _examine_file(path: str, *, verify: bool, alone: bool) -> tuple[AudioFacts, bool]:
    """Return the facts of a file, and whether damaged frames are surely its own."""
    _check_size(path)
    with _faults(path), open_sound(path, alone=alone) as sound:
        if verify or isinstance(sound, MediaFile):
            facts = _decode(sound, path)
        else:
            facts = _header(sound, path)
    if facts.num_samples == 0:
        raise BadAudio(f"audio file {path} holds no samples", RESTORE)
    check_rate(facts.sample_rate, path)
    is_sure = isinstance(sound, MediaFile) or sound.is_sure
    return facts, is_sure or DAMAGED_MP3 not in facts.notes


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """Tell what the errors of those mean that read a file.

    Raises:
        BadAudio: it cannot be read.
    """
    try:
        yield
    except MediaError as error:
        raise BadAudio(f"audio file {path} {error.what}", error.remedy) from error
    except soundfile.LibsndfileError as error:
        raise BadAudio(f"audio file {path} is corrupt ({_tidy(error)})", RESTORE) from (
            error
        )


def _check_size(path: str) -> None:
    """Refuse a file that is not there, or empty."""
    try:
        found = os.stat(path)
    except ValueError as error:  # a zero byte
        raise BadAudio(f"{path!r} is not a path of a file", RESTORE) from error
    except OSError as error:
        raise BadAudio(
            f"audio file {path} {_why_not(error)}", f"{RESTORE}{_archive_hint(path)}"
        ) from error
    if stat.S_ISDIR(found.st_mode):
        raise BadAudio(f"audio file {path} is a folder", RESTORE)
    if found.st_size == 0:
        raise BadAudio(f"audio file {path} is empty (0 bytes)", RESTORE)


def _why_not(error: OSError) -> str:
    """Return why a file cannot be inspected."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "does not exist" if missing else f"cannot be opened ({error.strerror})"


def _archive_hint(path: str) -> str:
    """Return a word on `archive:offset` entries, which Kaldi's wav-copy writes."""
    if re.search(r"\.ark:\d+$", path):
        return "; audio inside Kaldi archives must be copied out with wav-copy"
    return ""


def _header(sound: Sound, name: str) -> AudioFacts:
    """Return the facts from the header alone; refuse a file that it is too long for."""
    rate, number = int(sound.samplerate), int(sound.frames)
    _check_length(sound, number, name)
    return AudioFacts(rate, number, int(sound.channels), notes=sound.notes)


def _decode(sound: Sound | MediaFile, name: str) -> AudioFacts:
    """Return the facts from decoding everything, block by block."""
    decoded, power = 0, np.zeros(sound.channels)
    is_mono = sound.channels == 1
    for samples in _decoded(sound):
        decoded += len(samples)
        if samples.dtype.kind == "f" and not np.isfinite(samples).all():
            what = f"audio file {name} has samples that are NaN or infinite"
            raise BadAudio(what, RESTORE)
        if not is_mono:
            power += np.square(samples, dtype=np.float64).sum(axis=0)
    _check_length(sound, decoded, name)
    levels = () if is_mono else tuple((power / max(decoded, 1)).tolist())
    rate, channels = int(sound.samplerate), int(sound.channels)
    return AudioFacts(rate, decoded, channels, levels, sound.notes)


def _decoded(sound: Sound | MediaFile) -> Iterator[np.ndarray]:
    """Yield blocks of samples, [n, C] or [n]; a block goes when the next one comes."""
    if isinstance(sound, MediaFile):
        while len(samples := sound.read(BLOCK_SAMPLES)):
            yield samples
        return
    # 16-bit output decodes PCM without conversion, twice as fast as floats.
    is_plain = sound.channels == 1 and sound.subtype not in ("FLOAT", "DOUBLE")
    kind = "int16" if is_plain else "float32"
    block = np.empty((BLOCK_SAMPLES, sound.channels), kind)
    while len(samples := sound.read(dtype=kind, out=block)):
        yield samples


def _check_length(stream: Sound | MediaFile, decoded: int, name: str) -> None:
    """Refuse a file that holds fewer samples than it claims."""
    if isinstance(stream, MediaFile):
        return  # its decoder does
    slack = MP3_SLACK_SAMPLES if stream.format in {"MP3", "MPEG"} else 0
    claimed = int(stream.frames)
    if abs(decoded - claimed) > slack:
        reason = f"audio {name} is cut short: {decoded} of {claimed} samples decode"
        raise BadAudio(reason, RESTORE)
    chunk = _DATA_CHUNK.search(stream.extra_info)
    if chunk and int(chunk[1]) not in UNKNOWN_LENGTHS:
        wanted, present = int(chunk[1]), int(chunk[2])
        if present < wanted:
            reason = f"audio {name} is cut short: {present} of {wanted} bytes are there"
            raise BadAudio(reason, RESTORE)


def _tidy(error: soundfile.LibsndfileError) -> str:
    """Return the library's message without decoration."""
    return error.error_string.removeprefix("Error : ").strip().rstrip(".")
