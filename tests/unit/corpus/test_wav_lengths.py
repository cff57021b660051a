"""WAV files whose headers do not say how long they are; damaged MP3 files."""

import io
import logging
import struct
import threading

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource

from latflow.corpus.audio import AudioReader, BadAudio, examine, probe
from latflow.corpus.audio_backend import DAMAGED_MP3, WRONG_LENGTH, Sound

WAVE = (np.arange(4000) * 37 % 20011 - 10000).astype("<i2")
LIST = b"LIST\x04\0\0\0INFO"
TAG = b"TAG" + bytes(125)
PCM = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
EXTENSIBLE = (
    struct.pack("<HHIIHH", 0xFFFE, 1, 8000, 16000, 2, 16)
    + struct.pack("<HHIH", 22, 16, 4, 1)
    + bytes.fromhex("000000001000800000AA00389B71")
)
BIG = 0xFFFFFFFF


def wav(data, *, riff=None, before=b"", after=b"", form=PCM, name=b"RIFF"):
    """A WAV file of WAVE, with a length of its own."""
    body = b"WAVE" + before + struct.pack("<4sI", b"fmt ", len(form)) + form
    body += struct.pack("<4sI", b"data", data) + WAVE.tobytes() + after
    size = len(body) if riff is None else riff
    return name + struct.pack("<I", size) + body


def rf64(length, name=b"RF64"):
    wide = b"ds64" + struct.pack("<IQQQI", 28, 0, length, 0, 0)
    return wav(BIG, riff=BIG, before=wide, name=name)


MENDED = {
    "nothing, as of a crash": wav(0),
    "nothing at all": wav(0, riff=0),
    "nothing, and a chunk behind": wav(0, riff=0, after=LIST),
    "nothing, and a tag behind": wav(0, riff=0, after=TAG),
    "nothing, a chunk before": wav(0, before=LIST),
    "too little": wav(1000),
    "too little, odd": wav(1001),
    "too little, and a chunk behind": wav(1000, after=LIST),
    "half a sample behind": wav(0, after=b"\1"),
    "extensible": wav(0, form=EXTENSIBLE),
    "RF64": rf64(0),
    "RF64, unknown": rf64(2**64 - 1),
    "RF64, too little": rf64(800),
    "BW64": rf64(0, b"BW64"),
}
RIGHT = {
    "right": wav(8000),
    "ffmpeg's pipe": wav(BIG, riff=BIG, before=LIST),
    "sox's pipe": wav(0x7FFFF000, riff=0x7FFFF024),
    "arecord's pipe": wav(0x80000000),
    "a pipe, and a chunk behind": wav(BIG, riff=BIG, after=LIST),
    "a chunk behind": wav(8000, after=LIST),
    "a tag behind": wav(8000, after=TAG),
    "a chunk cut short behind": wav(8000, after=b"LIST\xff\0\0\0INFO"),
    "an unknown chunk behind": wav(8000, after=b"what\x02\0\0\0ab"),
    "zeros behind": wav(8000, after=bytes(512)),
    "RF64": rf64(8000),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", [*MENDED, *RIGHT])
def test_samples_end_where_they_end(tmp_path, name, verify):
    content = MENDED.get(name) or RIGHT[name]
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    found = probe("r", AudioSource("file", [0], str(path)), verify=verify)
    is_mended = content in MENDED.values()
    assert found.facts[0].notes == ((WRONG_LENGTH,) if is_mended else ())
    samples = np.float32(WAVE / 32768)
    np.testing.assert_array_equal(found.recording.load_audio()[0], samples)
    part = found.recording.load_audio(offset=0.1, duration=0.2)
    np.testing.assert_array_equal(part[0], samples[800:2400])
    with AudioReader(path) as audio:
        np.testing.assert_array_equal(np.concatenate([*audio.blocks()]), samples)
        assert audio.notes == found.facts[0].notes
    with Sound(io.BytesIO(content)) as sound:  # as a server gets it
        np.testing.assert_array_equal(sound.read(dtype="float32"), samples)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wav(9000), "cut short: 8000 of 9000 bytes"),
        (wav(0)[:44], "holds no samples"),
        (wav(0)[:44] + LIST, "holds no samples"),
    ],
)
def test_what_is_not_there_is_not_read(tmp_path, content, reason):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(BadAudio, match=reason):
        examine(AudioSource("file", [0], str(path)), verify=True)


def write_mp3(path, *, damage):
    noise = np.random.default_rng(0).standard_normal(160000) * 0.1
    soundfile.write(path, noise, 16000)
    content = bytearray(path.read_bytes())
    if damage:
        content[4000:4003] = b"\0\0\0"
        begin = content.index(b"\xff\xf3", 8000)  # a header of a frame
        content[begin : begin + 2] = b"\0\0"
    path.write_bytes(content)


def test_the_decoders_messages_go_to_the_log(tmp_path, capfd, caplog, monkeypatch):
    # handlers that other tests left behind write to streams that are closed
    monkeypatch.setattr(logging, "raiseExceptions", False)
    caplog.set_level("INFO")
    whole, hurt = tmp_path / "whole.mp3", tmp_path / "hurt.mp3"
    write_mp3(whole, damage=False)
    write_mp3(hurt, damage=True)

    def notes(path):
        with Sound(path) as sound:
            sound.read()
        return sound.notes

    assert notes(whole) == ()
    assert caplog.text == ""
    assert notes(hurt) == (DAMAGED_MP3,)
    assert "MP3 decoder: " in caplog.text
    assert capfd.readouterr().err == ""


def test_whole_files_that_are_read_in_pieces_are_not_called_damaged(tmp_path):
    """Frames of a voice have bits in those before them."""
    path = tmp_path / "a.mp3"
    time = np.arange(80000) / 16000
    tones = sum(np.sin(2 * np.pi * 150 * n * time) / n for n in range(1, 30))
    soundfile.write(path, 0.2 * tones * np.sin(9 * time) ** 8, 16000)
    with Sound(path) as sound:
        pieces = [sound.read(4000) for _ in range(20)]
        assert sound.notes == ()
        sound.seek(500)
        again = sound.read(100)
    whole = soundfile.read(path)[0]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)
    np.testing.assert_allclose(again, whole[500:600], atol=1e-6)


def test_damage_is_laid_to_the_right_file(tmp_path, monkeypatch):
    """Two files are open at a time; the whole one isn't called damaged."""
    whole, hurt = tmp_path / "whole.mp3", tmp_path / "hurt.mp3"
    write_mp3(whole, damage=False)
    write_mp3(hurt, damage=True)
    meeting = threading.Barrier(2, timeout=120)
    read = Sound.read
    met = threading.local()

    def read_beside(self, *args, **kwargs):
        samples = read(self, *args, **kwargs)
        if not hasattr(met, "once"):
            met.once = True
            meeting.wait()
        return samples

    monkeypatch.setattr(Sound, "read", read_beside)
    found = {}

    def look(path):
        try:
            found[path] = examine(AudioSource("file", [0], str(path)), verify=True)
        except BadAudio as fault:
            found[path] = fault

    threads = [threading.Thread(target=look, args=[path]) for path in (whole, hurt)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[whole].notes == ()
    assert isinstance(found[hurt], BadAudio) or found[hurt].notes == (DAMAGED_MP3,)
