"""How audio is opened: the one way for all that reads it, Lhotse included.

Lhotse's own choice of readers is not ours: for `.sph` it puts the file's name into a
command of the shell. Importing this module gives Lhotse, in this process, the reader
`Readers`: libsndfile, with the lengths of WAV and MP3 files mended (see
`latflow.corpus.wav_length` and `mpeg_length`), so that a recording has the same samples
wherever it is read; for what libsndfile does not know, `sph2pipe` (shortened SPHERE)
and FFmpeg's libraries (`latflow.corpus.media`: m4a, webm, video). Programs get their
arguments as lists, and names of files as absolute paths, which no program takes for an
option, an address or a command.

Every process that reads audio imports it, by `latflow.corpus.audio` or
`latflow.corpus.manifests`.
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
    LibsndfileBackend,
    LibsndfileCompatibleAudioInfo,
)
from lhotse.utils import compute_num_samples

from latflow.corpus.decoder_messages import DecoderMessages
from latflow.corpus.media import MediaError, MediaFile, media_form
from latflow.corpus.mended_file import Mend, MendedFile
from latflow.corpus.mpeg_length import is_mpeg, mend_of_mpeg
from latflow.corpus.wav_length import mend_of_wav

# libsndfile's codes: no format that it knows, no coding of samples that it knows (4 of
# its own, 18 of the format).
_UNKNOWN = (1, 4, 18)
_NO_LENGTH = (1 << 63) - 1  # samples of a FLAC file that was written to a pipe
# Formats that it mistakes for others.
_NEVER = ("aac", "ogg")
_SPHERE = b"NIST_1A"
# Notes on files that are read all the same.
WRONG_LENGTH = "a header with a wrong length: read to the end of the samples"
DAMAGED_MP3 = "damaged MP3 frames, or other data between them: left to the decoder"
NO_OGG_END = "an Ogg stream without its end: cut short, or stopped by force"
# Pages of an Ogg file (RFC 3533, section 6).
_OGG_MARK = b"OggS"
_OGG_HEADER = 27  # bytes, before the lengths of its segments
_OGG_LONGEST = _OGG_HEADER + 255 + 255 * 255  # bytes of a page
_OGG_FLAGS, _OGG_NUM_SEGMENTS = 5, 26  # places in the header
_OGG_LAST = 4  # flag


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
    _has_end = True

    def __init__(
        self, source: str | Path | BinaryIO, *, alone: bool = False, **given: Any
    ) -> None:
        is_named = isinstance(source, str | Path)
        opened = _named(source)
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
        """Look at the beginning of the file, and at the end of an Ogg file."""
        self._has_end = _has_ogg_end(stream)
        if is_mpeg(stream):
            self._messages = DecoderMessages(alone=alone)
            mend = mend_of_mpeg(stream)
        else:
            mend = mend_of_wav(stream)
        if mend is None and str(getattr(stream, "name", "")).lower().endswith(".raw"):
            # soundfile takes such names for samples without a header; this has none
            mend = Mend(b"", 0, os.fstat(stream.fileno()).st_size, is_wrong=False)
        if mend is not None:
            kept = os.fdopen(os.dup(stream.fileno()), "rb") if is_named else stream
            self._mended = MendedFile(kept, mend, owned=is_named)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the file, as far as it is read."""
        notes = []
        if self._mended is not None and self._mended.is_wrong:
            notes.append(WRONG_LENGTH)
        if self._messages is not None and self._messages.has_some:
            notes.append(DAMAGED_MP3)
        if not self._has_end:
            notes.append(NO_OGG_END)
        return tuple(notes)

    @property
    def is_sure(self) -> bool:
        """Return whether damaged frames are this file's, not one's read beside it."""
        return self._messages is None or self._messages.is_sure

    def seek(self, frames: int, whence: int = os.SEEK_SET) -> int:
        """Go to a frame.

        soundfile does so after all that it reads, to where it is: a decoder of MP3
        would begin anew there, and call the frames damaged whose beginnings lie in
        those before them.
        """
        if whence == os.SEEK_SET and frames == self.tell():
            return frames
        return super().seek(frames, whence)

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
            with open_sound(path_or_fd) as sound:
                return _part_of(sound, offset, duration), int(sound.samplerate)
        except soundfile.LibsndfileError as error:
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
            with open_sound(path_or_fd) as sound:
                channels, rate = int(sound.channels), int(sound.samplerate)
                whole = isinstance(sound, MediaFile)
                frames = sound.skip() if whole else int(sound.frames)
        except soundfile.LibsndfileError as error:
            raise AudioLoadingError(f"{path_or_fd}: {error}") from error
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


def open_sound(
    source: str | Path | BinaryIO, *, alone: bool = False, **given: Any
) -> Sound | MediaFile:
    """Open an audio file by whoever reads it; see `Sound`.

    Raises:
        soundfile.LibsndfileError: libsndfile knows its form, and cannot read it.
        MediaError: nobody can.
    """
    try:
        sound = Sound(source, alone=alone, **given)
        if sound.frames < _NO_LENGTH:
            return sound
        sound.close()
    except soundfile.LibsndfileError as error:
        with _looked_at(_named(source)) as stream:
            if stream is None:
                raise
            stream.seek(0)
            is_sphere = stream.read(len(_SPHERE)) == _SPHERE
            is_media = error.code in _UNKNOWN or media_form(stream) in _NEVER
        if is_sphere and isinstance(source, str | Path):
            return _open_sphere(os.path.abspath(source))
        if not is_media:
            raise
    return MediaFile(source)


def _named(source: str | Path | BinaryIO) -> str | BinaryIO:
    """Return a path as an absolute one, a file as it is."""
    return os.path.abspath(source) if isinstance(source, str | Path) else source


def _open_sphere(path: str) -> Sound:
    """Open a SPHERE file that libsndfile does not know: a shortened one."""
    command = ["sph2pipe", "-f", "wav", "-p", path]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
        return Sound(io.BytesIO(done.stdout))
    except FileNotFoundError as error:
        what = "is corrupt, or shortened SPHERE, which the program sph2pipe reads"
        raise MediaError(what) from error
    except (soundfile.LibsndfileError, subprocess.SubprocessError) as error:
        raise MediaError(f"is corrupt ({error})") from error


def _part_of(
    sound: Sound | MediaFile, offset: float, duration: float | None
) -> np.ndarray:
    """Return samples of a file, float32 [C, L]; fewer where it ends before."""
    rate = int(sound.samplerate)
    if offset > 0:
        begin = compute_num_samples(offset, rate)
        sound.skip(begin) if isinstance(sound, MediaFile) else sound.seek(begin)
    number = -1 if duration is None else compute_num_samples(duration, rate)
    return sound.read(number, dtype="float32", always_2d=True).T


set_current_audio_backend(Readers())


def _has_ogg_end(stream: BinaryIO) -> bool:
    """Return whether the last page is there as a whole, and marked as the last.

    Of a file that is not in pages, too. Bytes behind the pages, as of tags, don't
    count, if they are fewer than a page has at most.

    Args:
        stream: can be sought in; is left anywhere.
    """
    stream.seek(0)
    if stream.read(len(_OGG_MARK)) != _OGG_MARK:
        return True
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 2 * _OGG_LONGEST))
    tail = stream.read()
    page = tail[max(0, tail.rfind(_OGG_MARK)) :]
    if len(page) < _OGG_HEADER:
        return False
    body = _OGG_HEADER + page[_OGG_NUM_SEGMENTS]
    length = body + sum(page[_OGG_HEADER:body])
    return bool(page[_OGG_FLAGS] & _OGG_LAST) and len(page) >= length
