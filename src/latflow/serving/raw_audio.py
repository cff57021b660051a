"""The first bytes of a client's samples, which may be those of a file instead.

Streams are samples without a header. What is compressed would be heard as noise, and
samples of another rate or width than the session's as other speech. The header of a WAV
file of the session's own form is no harm: clients send whole files, as Vosk takes them.
"""

from __future__ import annotations

import io
import wave

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
)
_FILES = "send whole files to /v1/audio/transcriptions"


def check_raw(data: bytes, rate: float, *, param: str | None = None) -> None:
    """Refuse the beginning of a file whose bytes are not the session's samples.

    Args:
        data: the first bytes of a session.
        rate: sample rate of the session, Hz.
        param: field of the client's message that they are from.

    Raises:
        RefusedError: they begin a compressed file, or a WAV file of another form than
            16 bits, one channel and that rate.
    """
    for place, mark, form in _FORMS:
        if data.startswith(mark, place):
            text = f"a stream is samples of 16 bits, not a file ({form}); {_FILES}"
            raise RefusedError(text, "message", param=param)
    if not (data.startswith(b"RIFF") and data.startswith(b"WAVE", 8)):
        return
    try:
        with wave.open(io.BytesIO(data)) as file:
            bits, channels = 8 * file.getsampwidth(), file.getnchannels()
            form = f"{bits} bits, {channels} channels, {file.getframerate()} Hz"
            if (bits, channels, file.getframerate()) == (16, 1, rate):
                return
    except EOFError:  # the header goes on in the next message
        return
    except wave.Error:
        form = "no PCM samples"
    text = (
        f"the stream begins with the header of a WAV file ({form}), the session takes "
        f"16 bits, 1 channel, {rate:g} Hz; set its sample rate, or {_FILES}"
    )
    raise RefusedError(text, "message", param=param)
