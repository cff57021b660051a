"""Audio that FFmpeg's libraries read: as browsers and phones record it."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording

from latflow.corpus import media
from latflow.corpus.audio import AudioReader, BadAudio, examine, probe
from latflow.corpus.audio_backend import NO_OGG_END
from latflow.corpus.folder_files import is_audio_name

av = pytest.importorskip("av", reason="PyAV writes the files")

SECONDS = 2.0
# File, FFmpeg's container, codec, sample rate, options of the container.
FORMS = {
    "phone.m4a": ("ipod", "aac", 44100, {}),
    "stream.m4a": ("mp4", "aac", 48000, {"movflags": "frag_keyframe+empty_moov"}),
    "safari.mp4": ("mp4", "libopus", 48000, {}),
    "lossless.m4a": ("ipod", "alac", 16000, {}),
    "chrome.webm": ("webm", "libopus", 48000, {"live": "1"}),
    "firefox.ogg": ("opus", "libopus", 48000, {}),
    "film.mkv": ("matroska", "flac", 16000, {}),
    "radio.aac": ("adts", "aac", 48000, {}),
    "lossless.ogg": ("ogg", "flac", 16000, {}),
    "message.amr": ("amr", "libopencore_amrnb", 8000, {}),
    "old.3gp": ("3gp", "libopencore_amrnb", 8000, {}),
    "tape.avi": ("avi", "mp2", 48000, {}),
    "part.ts": ("mpegts", "aac", 48000, {}),
}


def tone(rate, seconds=SECONDS):
    """A tone that is loud in its second half only."""
    times = np.arange(round(rate * seconds)) / rate
    loud = np.where(times < seconds / 2, 0.01, 0.5)
    return (loud * np.sin(2 * np.pi * 440 * times)).astype(np.float32)


def write(path, form, codec, rate, options, *, channels=1, leave_out=None):
    """Encode a tone, without the packets of some seconds."""
    layout = "mono" if channels == 1 else "stereo"
    with av.open(str(path), "w", format=form, options=options) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        for packets in encoded(stream, np.tile(tone(rate), (channels, 1))):
            send(container, packets, leave_out)
    return path


def encoded(stream, samples):
    """The packets of samples, in parts."""
    rate, layout = stream.rate, stream.layout.name
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
    frame.rate, frame.pts = rate, 0
    made = av.AudioResampler(stream.format.name, layout, rate).resample(frame)
    queue = av.AudioFifo()
    for one in made:
        queue.write(one)
    size = stream.codec_context.frame_size or 1024
    while part := queue.read(size, partial=True):
        yield stream.encode(part)
    yield stream.encode(None)


def send(container, packets, leave_out):
    for packet in packets:
        time_of = float((packet.pts or 0) * packet.time_base)
        if leave_out is None or not leave_out[0] <= time_of < leave_out[1]:
            container.mux(packet)


def read(source, **options):
    """The samples that `AudioReader` gives, and itself."""
    with AudioReader(source, **options) as audio:
        return np.concatenate([*audio.blocks()]), audio


def is_the_tone(samples, rate):
    """Whether the loud half begins where it shall."""
    loud = np.abs(samples) > 0.1
    return (
        abs(int(np.argmax(loud)) / rate - SECONDS / 2) < 0.06
        and abs(len(samples) / rate - SECONDS) < 0.1
    )


@pytest.mark.parametrize("name", FORMS)
def test_files_of_browsers_and_phones_are_read(tmp_path, name):
    path = write(tmp_path / name, *FORMS[name])
    rate = FORMS[name][2]
    samples, audio = read(path)
    assert audio.sample_rate == rate
    assert is_the_tone(samples, rate)
    assert audio.notes == ()
    again, _ = read(io.BytesIO(path.read_bytes()), name="upload")
    np.testing.assert_array_equal(again, samples)


def test_lossless_files_are_read_to_the_sample(tmp_path):
    path = write(tmp_path / "a.m4a", *FORMS["lossless.m4a"])
    samples, _ = read(path)
    expected = np.round(tone(16000) * 32768) / 32768
    np.testing.assert_allclose(samples[: len(expected)], expected, atol=2 / 32768)


@pytest.fixture
def piped(tmp_path):
    """A FLAC file as programs write it to a pipe: with a length of zero."""
    path = tmp_path / "piped.flac"
    soundfile.write(path, tone(16000), 16000)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0  # 36 bits of the stream's information
    data[22:26] = bytes(4)
    path.write_bytes(data)
    return path


def test_flac_files_without_a_length_are_read_to_the_end(piped):
    samples, audio = read(piped)
    np.testing.assert_allclose(samples, tone(16000), atol=2**-15)
    assert audio.notes == ()
    found = probe("a", AudioSource("file", [0], str(piped)), verify=False)
    assert found.recording.num_samples == len(samples)
    part = found.recording.load_audio(offset=1.5, duration=0.25)
    np.testing.assert_array_equal(part[0], samples[24000:28000])


def test_a_damaged_flac_file_without_a_length_is_refused(piped):
    data = bytearray(piped.read_bytes())
    data[len(data) // 2] ^= 0xFF
    piped.write_bytes(data)
    with pytest.raises(BadAudio, match="corrupt"):
        read(piped)


def test_channels_are_kept_apart(tmp_path):
    path = write(tmp_path / "a.m4a", *FORMS["phone.m4a"], channels=2)
    facts = examine(AudioSource("file", [0, 1], str(path)), verify=False)
    assert (facts.num_channels, facts.sample_rate) == (2, 44100)
    assert len(facts.levels) == 2


def test_lhotse_reads_parts_of_them(tmp_path):
    path = write(tmp_path / "a.m4a", *FORMS["lossless.m4a"])
    found = probe("a", AudioSource("file", [0], str(path)), verify=True).recording
    assert Recording.from_file(path).num_samples == found.num_samples
    whole = found.load_audio()
    part = found.load_audio(offset=0.5, duration=0.25)
    np.testing.assert_array_equal(part, whole[:, 8000:12000])


def test_time_without_packets_is_silence_and_said(tmp_path):
    path = write(tmp_path / "a.webm", *FORMS["chrome.webm"], leave_out=(0.4, 0.9))
    samples, audio = read(path)
    assert is_the_tone(samples, 48000)
    assert audio.notes == ("0.5 s without packets: filled with silence",)


def test_files_without_the_library_say_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.m4a", *FORMS["phone.m4a"])
    monkeypatch.setattr(media.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        BadAudio, match=r"format mov, which PyAV reads - pip install av"
    ):
        read(path)


def test_an_ogg_file_without_its_end_is_read_and_said(tmp_path):
    whole = write(tmp_path / "message.opus", "ogg", "libopus", 48000, {})
    data = whole.read_bytes()
    samples, audio = read(whole)
    assert audio.notes == ()
    last = data.rindex(b"OggS")
    for end in (len(data) - 1, last + 10, last):  # within the last page, and before it
        path = tmp_path / f"{end}.opus"
        path.write_bytes(data[:end])
        part, audio = read(path)
        assert audio.notes == (NO_OGG_END,)
        assert 0.9 * 48000 < len(part) < len(samples)
    tagged = tmp_path / "tagged.opus"
    tagged.write_bytes(data + b"TAG" + bytes(125))
    _, audio = read(tagged)
    assert audio.notes == ()


def test_an_opus_file_with_its_header_twice_is_read(tmp_path):
    path = write(tmp_path / "message.opus", "ogg", "libopus", 48000, {})
    data = path.read_bytes()
    second, third = (match.start() for match in [*re.finditer(b"OggS", data)][1:3])
    twice = tmp_path / "twice.opus"
    twice.write_bytes(data[:third] + data[:second] + data[second:])
    samples, audio = read(twice)
    assert is_the_tone(samples, audio.sample_rate)


def test_a_stream_in_an_unknown_coding_gives_way_to_one_that_is_known(tmp_path):
    """As in films of phones that have sound in a coding of their maker's, too."""
    path, rate = tmp_path / "film.mp4", 48000
    with av.open(str(path), "w", format="mp4") as container:
        known = {"layout": "mono", "rate": rate}
        streams = [container.add_stream(codec, **known) for codec in ("alac", "aac")]
        for stream in streams:
            for packets in encoded(stream, tone(rate)[np.newaxis]):
                container.mux(packets)
    data = path.read_bytes()
    assert read(path)[1].notes == ("2 streams of audio: the first is read",)
    path.write_bytes(data.replace(b"alac", b"apac", 1))
    samples, audio = read(path)
    assert is_the_tone(samples, rate)
    assert audio.notes == ("2 streams of audio: the first of a known coding is read",)
    alone = write(tmp_path / "alone.m4a", *FORMS["lossless.m4a"]).read_bytes()
    path.write_bytes(alone.replace(b"alac", b"apac"))
    with pytest.raises(BadAudio, match="in a coding that is not read here"):
        read(path)


@pytest.mark.parametrize("name", ["phone.m4a", "film.mkv", "safari.mp4"])
def test_files_cut_short_are_refused(tmp_path, name):
    path = write(tmp_path / name, *FORMS[name][:3], {"movflags": "faststart"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])
    # FFmpeg gives the packet that the cut goes through, or does not.
    told = r"is (cut short: [01]\.\d+ of 2\.\d+ s decode|corrupt \(Invalid data)"
    with pytest.raises(BadAudio, match=told):
        read(path)


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAYLIST,
        "ffconcat version 1.0\nfile '{}'\n",
        "concat:{}|{}",
        "file:{}",
        "<MPD><BaseURL>{}</BaseURL></MPD>",
        "v=0\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
    ],
)
def test_playlists_and_addresses_are_no_audio(tmp_path, text):
    good = tmp_path / "secret.wav"
    soundfile.write(good, tone(16000), 16000)
    path = tmp_path / "a.m4a"
    path.write_text(text.format(good, good))
    with pytest.raises(BadAudio, match="in no format that is read here"):
        read(path)


def test_names_are_never_opened_by_the_decoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("concat:a.m4a|b.m4a", "http:a.m4a", "-i.m4a", "%d.m4a"):
        path = write(tmp_path / "plain", *FORMS["phone.m4a"]).rename(tmp_path / name)
        assert is_the_tone(read(path.name)[0], 44100)


def test_a_decoder_cannot_take_more_memory(tmp_path, monkeypatch):
    path = write(tmp_path / "a.m4a", *FORMS["phone.m4a"])
    greedy = tmp_path / "greedy.py"
    text = Path(media.media_decoder.__file__).read_text()
    greedy.write_text(
        text.replace("    av: Any =", "    bytes(2 << 30)\n    av: Any =")
    )
    monkeypatch.setattr(media.media_decoder, "__file__", str(greedy))
    with pytest.raises(BadAudio, match="its decoder failed"):
        read(path)


def test_a_decoder_that_hangs_is_ended(tmp_path, monkeypatch):
    path = write(tmp_path / "a.m4a", *FORMS["phone.m4a"])
    idle = tmp_path / "idle.py"
    idle.write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setattr(media.media_decoder, "__file__", str(idle))
    monkeypatch.setattr(media, "_PATIENCE", 0.3)
    with pytest.raises(BadAudio, match="no samples within 0.3 s"):
        read(path)


def test_files_that_are_closed_early_leave_no_process(tmp_path):
    path = write(tmp_path / "a.m4a", *FORMS["phone.m4a"])
    audio = AudioReader(path)
    next(audio.blocks())
    audio.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(audio._stream._process.pid, os.WNOHANG)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phone.m4a", "chrome.webm", "message.amr", "part.ts"])
def test_damaged_files_are_read_or_refused_in_a_line(tmp_path, name):
    whole = write(tmp_path / name, *FORMS[name]).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(12):
        data = np.frombuffer(whole, np.uint8).copy()
        where = rng.integers(0, min(len(data), 2000), 6)
        data[where] = rng.integers(0, 256, len(where))
        told = outcome(io.BytesIO(data.tobytes()))
        assert told == "samples" or re.fullmatch(
            r"audio file upload (is|holds) .*", told
        )


def outcome(source):
    """What `read` says of a file."""
    try:
        samples, _ = read(source, name="upload")
    except BadAudio as fault:
        return str(fault)
    return "samples" if len(samples) else "nothing"


def test_the_decoder_imports_nothing_of_latflow():
    script = (
        "import sys, runpy; runpy.run_path(sys.argv[1]); "
        "sys.exit(bool({'latflow', 'torch', 'numpy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-I", "-c", script, media.media_decoder.__file__]
    assert subprocess.run(command, check=False).returncode == 0


def test_folders_of_audio_take_what_browsers_and_phones_write():
    assert all(map(is_audio_name, ("a.m4a", "a.mp4", "a.webm", "a.ogg", "a.3gp")))
    assert all(map(is_audio_name, ("a.MOV", "a.mkv", "a.avi", "a.m4v", "a.mp2")))
    assert all(map(is_audio_name, ("a.qta", "a.3ga", "a.awb", "a.weba", "a.3gpp")))
