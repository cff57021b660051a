"""The first bytes of a client's samples, which may be those of a file instead.

Streams are samples without a header. What is compressed would be taken for noise, and
samples of another rate or width than the session's as other speech. The header of a WAV
file of the session's own form is no harm: clients send whole files, as Vosk takes them.

Source: ISO/IEC 11172-3, 2.4.1.3, and 13818-7, 6.2 (headers of the frames of MP3, AAC).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from latflow.serving.service import RefusedError

# By the bytes that stand at a place of a file; four or more, as samples may be any two.
_FORMS = (
    (0, b"OggS", "Ogg"),
    (0, b"fLaC", "FLAC"),
    (0, b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (0, b"ID3\x02", "MP3"),
    (0, b"ID3\x03", "MP3"),
    (0, b"ID3\x04", "MP3"),
    (4, b"ftyp", "MP4"),
    (0, b"#!AMR", "AMR"),
    (0, b"caff\0\1", "Core Audio"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media"),
)
_FILES = "send whole files to /v1/audio/transcriptions"
_LOOK = 8192  # bytes that are examined; later ones are taken for samples
_FRAMES = 3  # headers in a row that samples don't look like
_PCM, _EXTENSIBLE = 1, 0xFFFE
_MP3_RATES = (44100, 48000, 32000)
_MP3_KBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)


class Beginning:
    """The first bytes of a stream, in whatever pieces they come."""

    def __init__(self) -> None:
        self._data = b""

    def check(self, data: bytes, rate: float, *, param: str | None = None) -> None:
        """Refuse the beginning of a file whose bytes are not the session's samples.

        Args:
            data: the next bytes of a session.
            rate: sample rate of the session, Hz.
            param: field of the client's message that they are from.

        Raises:
            RefusedError: they begin a compressed file, or a WAV file of another form
                than 16 bits, one channel and that rate; what comes next is then looked
                at as another beginning.
        """
        if len(self._data) >= _LOOK:
            return
        self._data = (self._data + data)[:_LOOK]
        if text := _fault(self._data, rate):
            self._data = b""
            raise RefusedError(text, "message", param=param)


def _fault(data: bytes, rate: float) -> str:
    """Return why bytes are not the samples of a stream; empty if they may be."""
    for place, mark, form in _FORMS:
        if data.startswith(mark, place):
            return _not_a_file(form)
    if data.startswith(b"RIFF") and data.startswith(b"WAVE", 8):
        return _wav_fault(data, rate)
    for length_of, form in ((_mp3_length, "MP3"), (_aac_length, "AAC")):
        if _has_frames(data, length_of):
            return _not_a_file(form)
    return ""


def _not_a_file(form: str) -> str:
    """Return the refusal of a compressed file."""
    return f"a stream is samples of 16 bits, not a file ({form}); {_FILES}"


def _wav_fault(data: bytes, rate: float) -> str:
    """Return what makes a WAV file another than the session's; empty if it is not."""
    at = 12
    while data[at : at + 4] != b"fmt ":
        if len(data) < at + 8:  # the header continues in the next message
            return ""
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + length + length % 2
    if len(data) < at + 24:
        return ""
    kind, channels, its_rate, bits = struct.unpack_from("<HHI6xH", data, at + 8)
    if kind not in (_PCM, _EXTENSIBLE):
        form = "no PCM samples"
    elif (bits, channels, its_rate) == (16, 1, rate):
        return ""
    else:
        form = f"{bits} bits, {channels} channel{'s' * (channels > 1)}, {its_rate} Hz"
    return (
        f"the stream begins with the header of a WAV file ({form}), the session takes "
        f"16 bits, 1 channel, {rate:g} Hz; set its sample rate, or {_FILES}"
    )


# -- frames without a header of their file --------------------------------------------


def _has_frames(data: bytes, length_of: Callable[[bytes], int]) -> bool:
    """Return whether bytes begin with frames of one kind, end to end."""
    at, kinds = 0, set()
    for _ in range(_FRAMES):
        header = data[at : at + 7]
        length = length_of(header)
        if not length:
            return False
        kinds.add((header[1], header[2] & 0x0C))
        at += length
    return len(kinds) == 1


def _mp3_length(header: bytes) -> int:
    """Return the bytes of a frame of MPEG-1, -2 or -2.5, layer III; 0 for others."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version = header[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    kbits, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or kbits in (0, 15) or rate == 3:
        return 0
    is_old = version == 3
    hertz = _MP3_RATES[rate] // {3: 1, 2: 2, 0: 4}[version]
    bits = 1000 * _MP3_KBITS[not is_old][kbits - 1]
    return (144 if is_old else 72) * bits // hertz + padding


def _aac_length(header: bytes) -> int:
    """Return the bytes of a frame of AAC with a header (ADTS); 0 for others."""
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0:
        return 0
    length = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return length if length > 7 and header[2] >> 2 & 15 < 13 else 0
