"""Finding out what an audio file holds, and whether it can really be decoded.

A header says how long a file should be; only decoding says whether it is. `examine`
reads headers and, when asked to verify, decodes everything in blocks (FLAC's frame
checksums then tell of any damaged byte). Files that libsndfile does not know (shortened
SPHERE, video containers) are left to Lhotse's readers.

`AudioReader` reads a file of any length in blocks.

Public: `AudioFacts`, `AudioReader`, `BadAudio`, `can_resample`, `examine`, `probe`,
`confirm`.
"""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import soundfile
from lhotse import AudioSource, Recording
from lhotse.audio.utils import AudioLoadingError

BLOCK_SAMPLES = 1 << 16
MP3_SLACK_SAMPLES = 2 * 1152  # encoder delay and padding: two MPEG frames
CONVERT = "convert it to FLAC or WAV"
RESTORE = "restore the file, or mend its path"
# Numbers of Lhotse's filters, at most: 44.1 kHz to 16 kHz has 70,000.
_MOST_TAPS = 10_000_000
_DATA_CHUNK = re.compile(r"^\s*data\s*:\s*(\d+)\s*\(should be (\d+)\)", re.MULTILINE)
# Length fields that programs write when they do not know the length (pipes).
_UNKNOWN_LENGTHS = range(0x7FFF0000, 0x1_0000_0000)


@dataclass(frozen=True)
class AudioFacts:
    """Contents of a source: samples per second, samples per channel, channels."""

    sample_rate: int
    num_samples: int
    num_channels: int


class BadAudio(Exception):  # noqa: N818 - a finding about data, not a program error
    """Audio that cannot be used: why, and what the user can do."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason} - {remedy}")


def examine(source: AudioSource, *, verify: bool) -> AudioFacts:
    """Find out what an audio source holds.

    Args:
        source: a file or a command (Kaldi's pipes) that prints an audio file.
        verify: decode all of it; otherwise the header is believed. Commands are always
            decoded, since their output has no length to believe.

    Raises:
        BadAudio: missing, empty, unreadable, or shorter than its header says.
    """
    if source.type == "file":
        return _examine_file(str(source.source), verify=verify)
    if source.type == "command":
        return _examine_command(str(source.source))
    raise BadAudio(
        f"audio of type {source.type} is not a file",
        "store the audio in files",
    )


def can_resample(rate: float, wanted: int) -> bool:
    """Return whether Lhotse's filters from a sample rate to another fit memory."""
    if rate < 1 or not float(rate).is_integer():
        return False
    shared = math.gcd(int(rate), wanted)
    return (int(rate) // shared) * (wanted // shared) <= _MOST_TAPS


def probe(recording_id: str, source: AudioSource, *, verify: bool) -> Recording:
    """Make the Lhotse recording of one source, from what it really holds.

    Raises:
        BadAudio: see `examine`.
    """
    facts = examine(source, verify=verify)
    return Recording(
        id=recording_id,
        sources=[
            AudioSource(source.type, list(range(facts.num_channels)), source.source)
        ],
        sampling_rate=facts.sample_rate,
        num_samples=facts.num_samples,
        duration=facts.num_samples / facts.sample_rate,
    )


def confirm(recording: Recording, *, verify: bool) -> Recording:
    """Check that a recording of a manifest holds what the manifest says.

    Raises:
        BadAudio: see `examine`; or rate, length or channels differ.
    """
    for source in recording.sources:
        facts = examine(source, verify=verify)
        _compare(recording, source, facts)
    return recording


class AudioReader:
    """A file, read in blocks; close it, or use it in a `with` statement.

    Files that libsndfile does not know are read by Lhotse, as a whole.

    Args:
        path: the file.
        raw_rate: Hz, where the file holds nothing but 16-bit samples, little-endian, of
            one channel; None for a file that says what it holds.

    Raises:
        BadAudio: missing, empty, or in no known format.
    """

    def __init__(self, path: str | Path, *, raw_rate: int | None = None) -> None:
        self._path = str(path)
        _check_size(self._path)
        self._stream: soundfile.SoundFile | None = None
        self._whole: np.ndarray | None = None
        raw = {"subtype": "PCM_16", "endian": "LITTLE", "format": "RAW"}
        given = {} if raw_rate is None else {**raw, "samplerate": raw_rate}
        channels = None if raw_rate is None else 1
        try:
            self._stream = soundfile.SoundFile(self._path, channels=channels, **given)
            self.sample_rate = int(self._stream.samplerate)
            self.num_channels = int(self._stream.channels)
        except soundfile.LibsndfileError as error:
            if error.code != 1:  # 1: format not recognized
                raise _corrupt(self._path, error) from error
            recording, self._whole = _load_with_lhotse(self._path)
            self.sample_rate = int(recording.sampling_rate)
            self.num_channels = len(self._whole)

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def blocks(self, channel: int | None = None) -> Iterator[np.ndarray]:
        """Yield the samples in blocks, float32[n], full scale at 1.

        Args:
            channel: the one to read, from 1; None for the mean of all.

        Raises:
            BadAudio: there is no such channel, no sample, a sample that is no number,
                or the file is damaged or cut short.
        """
        if channel is not None and channel > self.num_channels:
            raise BadAudio(
                f"audio file {self._path} has no channel {channel}",
                f"choose from 1 to {self.num_channels}",
            )
        is_empty = True
        for block in self._blocks():
            is_empty = False
            samples = block.mean(axis=1) if channel is None else block[:, channel - 1]
            if not np.isfinite(samples).all():
                reason = f"audio file {self._path} has samples that are no numbers"
                raise BadAudio(reason, RESTORE)
            yield np.ascontiguousarray(samples, np.float32)
        if is_empty:
            raise BadAudio(f"audio file {self._path} holds no samples", RESTORE)

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yield all channels, float32[n, channels]."""
        if self._stream is None:
            assert self._whole is not None
            for first in range(0, self._whole.shape[1], BLOCK_SAMPLES):
                yield self._whole[:, first : first + BLOCK_SAMPLES].T
            return
        decoded = 0
        try:
            while len(block := self._read(self._stream)):
                decoded += len(block)
                yield block
        except soundfile.LibsndfileError as error:
            raise _corrupt(self._path, error) from error
        _check_length(self._stream, decoded, self._path)

    @staticmethod
    def _read(stream: soundfile.SoundFile) -> np.ndarray:
        """Return the next block."""
        return stream.read(BLOCK_SAMPLES, dtype="float32", always_2d=True)


def _compare(recording: Recording, source: AudioSource, facts: AudioFacts) -> None:
    """Refuse a source whose facts are not those of its recording."""
    resampled = bool(recording.transforms)
    found = (facts.sample_rate, facts.num_samples)
    said = (recording.sampling_rate, recording.num_samples)
    if not resampled and found != said:
        raise BadAudio(
            f"{source.source} holds {found[1]} samples at {found[0]} Hz, its manifest "
            f"says {said[1]} at {said[0]} Hz",
            "make the manifest anew from the audio",
        )
    if len(source.channels) > facts.num_channels:
        raise BadAudio(
            f"{source.source} has {facts.num_channels} channels, its manifest says "
            f"{len(source.channels)}",
            "make the manifest anew from the audio",
        )


def _examine_file(path: str, *, verify: bool) -> AudioFacts:
    """Return facts of a file: by libsndfile, or Lhotse's readers if it knows it not."""
    _check_size(path)
    try:
        facts = _decode(path) if verify else _header(path)
    except soundfile.LibsndfileError as error:
        if error.code == 1:  # format not recognized
            return _examine_with_lhotse(path)
        raise _corrupt(path, error) from error
    if facts.num_samples == 0:
        raise BadAudio(f"audio file {path} holds no samples", RESTORE)
    return facts


def _check_size(path: str) -> None:
    """Refuse a file that is not there, or empty."""
    try:
        size = os.stat(path).st_size
    except ValueError as error:  # a zero byte
        raise BadAudio(f"{path!r} is no path of a file", RESTORE) from error
    except OSError as error:
        raise BadAudio(
            f"audio file {path} {_why_not(error)}", f"{RESTORE}{_archive_hint(path)}"
        ) from error
    if size == 0:
        raise BadAudio(f"audio file {path} is empty (0 bytes)", RESTORE)


def _corrupt(path: str, error: soundfile.LibsndfileError) -> BadAudio:
    """Return the finding that a file cannot be decoded."""
    return BadAudio(f"audio file {path} is corrupt ({_tidy(error)})", RESTORE)


def _why_not(error: OSError) -> str:
    """Say why a file cannot be looked at."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "does not exist" if missing else f"cannot be opened ({error.strerror})"


def _archive_hint(path: str) -> str:
    """Return a word on `archive:offset` entries, which Kaldi's wav-copy writes."""
    if re.search(r"\.ark:\d+$", path):
        return "; audio inside Kaldi archives must be copied out with wav-copy"
    return ""


def _header(path: str) -> AudioFacts:
    """Return the facts from the header alone."""
    info = soundfile.info(path)
    return AudioFacts(int(info.samplerate), int(info.frames), int(info.channels))


def _decode(source: str | BinaryIO) -> AudioFacts:
    """Return the facts from decoding everything, block by block."""
    with soundfile.SoundFile(source) as stream:
        # 16-bit output decodes PCM without conversion, twice as fast as floats.
        block = np.empty((BLOCK_SAMPLES, stream.channels), np.int16)
        decoded = 0
        while got := len(stream.read(dtype="int16", out=block)):
            decoded += got
        _check_length(stream, decoded, str(getattr(stream, "name", "")))
        return AudioFacts(int(stream.samplerate), decoded, int(stream.channels))


def _check_length(stream: soundfile.SoundFile, decoded: int, name: str) -> None:
    """Refuse a file that holds fewer samples than it claims."""
    slack = MP3_SLACK_SAMPLES if stream.format in {"MP3", "MPEG"} else 0
    claimed = int(stream.frames)
    if abs(decoded - claimed) > slack:
        reason = f"audio {name} is cut short: {decoded} of {claimed} samples decode"
        raise BadAudio(reason, RESTORE)
    chunk = _DATA_CHUNK.search(stream.extra_info)
    if chunk and int(chunk[1]) not in _UNKNOWN_LENGTHS:
        wanted, present = int(chunk[1]), int(chunk[2])
        if present < wanted:
            reason = f"audio {name} is cut short: {present} of {wanted} bytes are there"
            raise BadAudio(reason, RESTORE)


def _examine_command(command: str) -> AudioFacts:
    """Run a command and decode the audio file that it prints."""
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    if done.returncode != 0 or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        raise BadAudio(
            f"command {command!r} gave no audio (exit status {done.returncode}{last})",
            "run the command by hand and mend it",
        )
    try:
        facts = _decode(io.BytesIO(done.stdout))
    except soundfile.LibsndfileError as error:
        reason = f"command {command!r} printed no readable audio ({_tidy(error)})"
        raise BadAudio(reason, "let the command print WAV or FLAC") from error
    if facts.num_samples == 0:
        raise BadAudio(f"command {command!r} printed no samples", "mend the command")
    return facts


def _examine_with_lhotse(path: str) -> AudioFacts:
    """Return facts of a file that only Lhotse's other readers know; always decoded."""
    recording, audio = _load_with_lhotse(path)
    return AudioFacts(int(recording.sampling_rate), audio.shape[1], audio.shape[0])


def _load_with_lhotse(path: str) -> tuple[Recording, np.ndarray]:
    """Read a file with Lhotse's other readers; float32[channels, samples]."""
    try:
        recording = Recording.from_file(path, recording_id="probe")
        audio = recording.load_audio()
    except (
        AudioLoadingError,
        AssertionError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        subprocess.SubprocessError,
    ) as error:
        raise BadAudio(
            f"audio file {path} is in no format that soundfile or Lhotse reads",
            f"{RESTORE}; or {CONVERT}",
        ) from error
    return recording, audio


def _tidy(error: soundfile.LibsndfileError) -> str:
    """Return the library's message without decoration."""
    return error.error_string.removeprefix("Error : ").strip().rstrip(".")
