"""How audio is opened: the one way for all that reads it, Lhotse included.

Lhotse's own choice of readers is not ours: for `.sph` it puts the file's name into a
command of the shell. Importing this module gives Lhotse, in this process, the reader
`Readers`: libsndfile, with the lengths of WAV files mended (see
`latflow.corpus.wav_length`), so that a recording has the same samples wherever it is
read; for what libsndfile does not know, `sph2pipe` (shortened SPHERE) and Lhotse's
libraries (video containers). Programs get their arguments as lists, and names of files
as absolute paths, which no program takes for an option, an address or a command.

Every process that reads audio imports it, by `latflow.corpus.audio` or
`latflow.corpus.manifests`.

Public: `Sound`, `Readers`, `read_otherwise`, `is_for_others`, `is_sphere`,
`WRONG_LENGTH`, `DAMAGED_MP3`.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
import torch
from lhotse.audio import AudioLoadingError, set_current_audio_backend
from lhotse.audio.backend import (
    AudioBackend,
    AudioreadBackend,
    CompositeAudioBackend,
    LibsndfileBackend,
    LibsndfileCompatibleAudioInfo,
    TorchaudioDefaultBackend,
    TorchaudioFFMPEGBackend,
    TorchcodecBackend,
)
from lhotse.utils import compute_num_samples

from latflow.corpus.decoder_messages import DecoderMessages, is_mpeg
from latflow.corpus.wav_length import MendedFile, mend_of

_UNKNOWN_FORMAT = 1  # libsndfile's code
# What is said of files that are read all the same.
WRONG_LENGTH = "a WAV header with a wrong length: read to the end of the samples"
DAMAGED_MP3 = "damaged MP3 frames, or other data between them: left to the decoder"
_OTHERS = CompositeAudioBackend(
    [
        TorchcodecBackend(),
        TorchaudioFFMPEGBackend(),
        TorchaudioDefaultBackend(),
        AudioreadBackend(),
    ]
)


class Sound(soundfile.SoundFile):
    """An audio file that libsndfile reads.

    Args:
        source: a path, or a file that can be sought in.
        alone: no other MP3 file is read at the same time, so that it is sure whose
            frames are damaged.
        given: what a file without a header holds; see `soundfile.SoundFile`.

    Raises:
        soundfile.LibsndfileError: it cannot be opened.
    """

    _mended: MendedFile | None = None
    _messages: DecoderMessages | None = None

    def __init__(
        self, source: str | Path | BinaryIO, *, alone: bool = False, **given: Any
    ) -> None:
        opened: str | BinaryIO
        is_named = isinstance(source, str | Path)
        opened = os.path.abspath(source) if is_named else source
        with _looked_at(opened) as stream:
            if stream is not None and not given:
                self._prepare(stream, is_named=is_named, alone=alone)
        try:
            # soundfile takes files, too, though its types do not say so
            super().__init__(cast("str", self._mended or opened), **given)
        except BaseException:
            self._let_go()
            raise

    def _prepare(self, stream: BinaryIO, *, is_named: bool, alone: bool) -> None:
        """Look at the beginning of the file."""
        if (mend := mend_of(stream)) is not None:
            kept = os.fdopen(os.dup(stream.fileno()), "rb") if is_named else stream
            self._mended = MendedFile(kept, mend, owned=is_named)
        elif is_mpeg(stream):
            self._messages = DecoderMessages(alone=alone)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the file, as far as it is read."""
        notes = []
        if self._mended is not None and self._mended.is_wrong:
            notes.append(WRONG_LENGTH)
        if self._messages is not None and self._messages.has_some:
            notes.append(DAMAGED_MP3)
        return tuple(notes)

    @property
    def is_sure(self) -> bool:
        """Return whether damaged frames are this file's, not one's read beside it."""
        return self._messages is None or self._messages.is_sure

    def close(self) -> None:
        """Close it."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        """Close what was opened for it."""
        if self._mended is not None:
            self._mended.close()
        if self._messages is not None:
            self._messages.close()


@contextmanager
def _looked_at(source: str | BinaryIO) -> Iterator[BinaryIO | None]:
    """Open a file, or give it back as it was; None where libsndfile has to say why."""
    if not isinstance(source, str):
        yield source
        source.seek(0)
        return
    try:
        stream = open(source, "rb")  # noqa: SIM115 - a path's own is slower
    except (OSError, ValueError):
        yield None
        return
    with stream:
        yield stream


class Readers(AudioBackend):
    """Lhotse's reader of audio, in all processes of ours."""

    def read_audio(
        self,
        path_or_fd: str | Path | BinaryIO,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,  # noqa: ARG002 - Lhotse's form
    ) -> tuple[np.ndarray, int]:
        """Return the samples, float32 [C, L], and the sample rate, Hz.

        Args:
            path_or_fd: the file.
            offset: seconds before the first sample.
            duration: seconds; None for all.
            force_opus_sampling_rate: not used.

        Raises:
            AudioLoadingError: it cannot be read.
        """
        try:
            with Sound(path_or_fd) as sound:
                return _part_of(sound, offset, duration), int(sound.samplerate)
        except soundfile.LibsndfileError as error:
            if isinstance(path_or_fd, str | Path) and is_for_others(error, path_or_fd):
                return read_otherwise(path_or_fd, offset, duration)
            raise AudioLoadingError(f"{path_or_fd}: {error}") from error

    def supports_info(self) -> bool:
        """Return whether it looks into files."""
        return True

    def info(
        self,
        path_or_fd: str | Path | BinaryIO,
        force_opus_sampling_rate: int | None = None,  # noqa: ARG002 - Lhotse's form
    ) -> LibsndfileCompatibleAudioInfo:
        """Return what a file holds.

        Raises:
            AudioLoadingError: it cannot be read.
        """
        try:
            with Sound(path_or_fd) as sound:
                channels, frames = int(sound.channels), int(sound.frames)
                rate = int(sound.samplerate)
        except soundfile.LibsndfileError as error:
            if not isinstance(path_or_fd, str | Path) or not is_for_others(
                error, path_or_fd
            ):
                raise AudioLoadingError(f"{path_or_fd}: {error}") from error
            samples, rate = read_otherwise(path_or_fd)
            channels, frames = samples.shape
        return LibsndfileCompatibleAudioInfo(channels, frames, rate, frames / rate)

    def supports_save(self) -> bool:
        """Return whether it writes files."""
        return True

    def save_audio(
        self,
        dest: str | Path | io.BytesIO,
        src: torch.Tensor | np.ndarray,
        sampling_rate: int,
        format: str | None = None,
        encoding: str | None = None,
    ) -> None:
        """Write a file by libsndfile; see Lhotse."""
        LibsndfileBackend().save_audio(dest, src, sampling_rate, format, encoding)


def read_otherwise(
    path: str | Path, offset: float = 0.0, duration: float | None = None
) -> tuple[np.ndarray, int]:
    """Read a file that libsndfile does not know; as `Readers.read_audio`.

    Raises:
        AudioLoadingError: no one knows it.
    """
    place = os.path.abspath(path)
    if is_sphere(place):
        return _read_sphere(place, offset, duration)
    return _OTHERS.read_audio(place, offset, duration)


def is_for_others(error: soundfile.LibsndfileError, path: str | Path) -> bool:
    """Tell whether others may read a file that libsndfile refuses."""
    return error.code == _UNKNOWN_FORMAT or is_sphere(path)


def is_sphere(path: str | Path) -> bool:
    """Tell whether a file is SPHERE, shortened or not."""
    with open(os.path.abspath(path), "rb") as stream:
        return stream.read(7) == b"NIST_1A"


def _read_sphere(
    path: str, offset: float, duration: float | None
) -> tuple[np.ndarray, int]:
    """Read a SPHERE file that libsndfile does not know: a shortened one."""
    command = ["sph2pipe", "-f", "wav", "-p", path]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
        with Sound(io.BytesIO(done.stdout)) as sound:
            return _part_of(sound, offset, duration), int(sound.samplerate)
    except FileNotFoundError as error:
        raise AudioLoadingError(f"{path}: needs the program sph2pipe") from error
    except (soundfile.LibsndfileError, subprocess.SubprocessError) as error:
        raise AudioLoadingError(f"{path}: {error}") from error


def _part_of(sound: Sound, offset: float, duration: float | None) -> np.ndarray:
    """Return samples of a file, float32 [C, L]; fewer where it ends before."""
    rate = int(sound.samplerate)
    if offset > 0:
        sound.seek(compute_num_samples(offset, rate))
    number = -1 if duration is None else compute_num_samples(duration, rate)
    return sound.read(number, dtype="float32", always_2d=True).T


set_current_audio_backend(Readers())
