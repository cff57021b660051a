"""Audio files: what they hold, and every way in which they are broken."""

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, Recording

from latflow.corpus.audio import (
    AudioFacts,
    BadAudio,
    confirm,
    examine,
    probe,
)
from latflow.corpus.audio_folder import AudioFolder


@pytest.fixture
def noise():
    return (np.random.default_rng(0).standard_normal(24000) * 3000).astype(np.int16)


def file_source(path):
    return AudioSource("file", [0], str(path))


@pytest.mark.parametrize("name", ["a.flac", "a.wav", "a.mp3", "a.ogg"])
@pytest.mark.parametrize("verify", [True, False])
def test_formats_are_read(tmp_path, noise, name, verify):
    path = tmp_path / name
    soundfile.write(path, noise, 16000)
    facts = examine(file_source(path), verify=verify)
    assert (facts.sample_rate, facts.num_channels) == (16000, 1)
    assert facts.num_samples == pytest.approx(24000, abs=2304)


def test_sphere_is_read(tmp_path, noise):
    path = tmp_path / "a.sph"
    soundfile.write(path, noise, 8000, format="NIST")
    assert examine(file_source(path), verify=True) == AudioFacts(8000, 24000, 1)


def test_channels_are_counted(tmp_path, noise):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise.reshape(-1, 2), 44100)
    recording = probe("r", file_source(path), verify=True).recording
    assert recording.channel_ids == [0, 1]
    assert recording.duration == 12000 / 44100


def test_missing_file_is_named(tmp_path):
    with pytest.raises(BadAudio, match=r"none.flac does not exist - restore"):
        examine(file_source(tmp_path / "none.flac"), verify=False)


def test_archive_entries_get_a_hint(tmp_path):
    with pytest.raises(BadAudio, match="wav-copy"):
        examine(file_source(tmp_path / "wav.ark:120"), verify=False)


def test_empty_file_is_bad(tmp_path):
    path = tmp_path / "a.flac"
    path.touch()
    with pytest.raises(BadAudio, match="is empty"):
        examine(file_source(path), verify=False)


def test_file_without_samples_is_bad(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(0, np.int16), 16000)
    with pytest.raises(BadAudio, match="holds no samples"):
        examine(file_source(path), verify=True)


@pytest.mark.parametrize("name", ["a.raw", "b.RAW"])
def test_raw_is_what_it_holds(tmp_path, noise, name):
    path = tmp_path / name
    soundfile.write(tmp_path / "a.wav", noise, 16000)
    path.write_bytes((tmp_path / "a.wav").read_bytes())
    assert examine(file_source(path), verify=True).num_samples == len(noise)
    path.write_bytes((tmp_path / "a.wav").read_bytes()[44:])  # without its header
    with pytest.raises(BadAudio, match="in no format .* convert it to FLAC or WAV"):
        examine(file_source(path), verify=True)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_bad(tmp_path, noise, channels, value):
    samples = np.stack([noise / 32768.0] * channels, axis=1)
    soundfile.write(tmp_path / "a.wav", samples, 16000, "FLOAT")
    assert examine(file_source(tmp_path / "a.wav"), verify=True)
    samples[100] = value
    soundfile.write(tmp_path / "a.wav", samples, 16000, "FLOAT")
    with pytest.raises(BadAudio, match="samples that are NaN or infinite"):
        examine(file_source(tmp_path / "a.wav"), verify=True)


@pytest.mark.parametrize("rate", [8, 250_000])
def test_rates_that_nobody_has_are_bad(tmp_path, noise, rate):
    soundfile.write(tmp_path / "a.wav", noise, rate)
    for verify in (False, True):
        with pytest.raises(BadAudio, match=f"{rate} samples a second - resample it"):
            examine(file_source(tmp_path / "a.wav"), verify=verify)


def test_text_is_not_audio(tmp_path):
    path = tmp_path / "a.wav"
    path.write_text("this is not audio at all, whatever its name says" * 50)
    with pytest.raises(BadAudio, match="in no format"):
        examine(file_source(path), verify=True)


def damage(path, how):
    raw = bytearray(path.read_bytes())
    half = len(raw) // 2
    if how == "cut":
        raw = raw[:half]
    elif how == "one byte":
        raw[half] ^= 0xFF
    elif how == "header only":
        raw = raw[:42]
    else:
        raw[half : half + 500] = bytes(500)
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["cut", "one byte", "header only", "zeros"])
def test_damaged_flac_is_found_by_decoding(tmp_path, noise, how):
    path = tmp_path / "a.flac"
    soundfile.write(path, noise, 16000)
    damage(path, how)
    with pytest.raises(BadAudio, match=r"a.flac is (corrupt|cut short)"):
        examine(file_source(path), verify=True)


def test_header_of_cut_flac_is_believed_without_verification(tmp_path, noise):
    path = tmp_path / "a.flac"
    soundfile.write(path, noise, 16000)
    damage(path, "cut")
    assert examine(file_source(path), verify=False).num_samples == 24000


@pytest.mark.parametrize("name", ["a.wav", "a.mp3"])
def test_cut_files_of_other_formats_are_found(tmp_path, noise, name):
    path = tmp_path / name
    soundfile.write(path, noise, 16000)
    damage(path, "cut")
    with pytest.raises(BadAudio, match="cut short"):
        examine(file_source(path), verify=True)


def test_command_runs_once_and_its_audio_is_kept(tmp_path, noise):
    soundfile.write(tmp_path / "a.wav", noise, 16000)
    command = f"echo x >> {tmp_path}/runs; cat {tmp_path}/a.wav"
    folder = AudioFolder(tmp_path / "new", tmp_path / "new", allow_commands=True)
    source = AudioSource("command", [0], command)
    recording = folder.probe("r/1", source, verify=False).recording
    assert recording.num_samples == 24000
    assert recording.sources[0].type == "file"
    assert recording.load_audio().shape == (1, 24000)
    recording.load_audio(offset=0.5, duration=0.5)
    assert (tmp_path / "runs").read_text() == "x\n"
    kept = (tmp_path / "new/r%2F1.wav").read_bytes()
    assert kept == (tmp_path / "a.wav").read_bytes()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 3", "gave no audio .exit status 3"),
        ("echo hello", "printed no readable audio"),
        ("echo bad news >&2; exit 1", "bad news"),
        ("true", "gave no audio"),
    ],
)
def test_failing_command_is_named(tmp_path, command, message):
    folder = AudioFolder(tmp_path / "new", tmp_path / "new", allow_commands=True)
    with pytest.raises(BadAudio, match=message):
        folder.probe("r", AudioSource("command", [0], command), verify=True)
    assert list((tmp_path / "new").iterdir()) == []


def test_command_is_refused(tmp_path):
    folder = AudioFolder(tmp_path / "new", tmp_path / "new")
    command = AudioSource("command", [0], f"touch {tmp_path}/ran")
    with pytest.raises(BadAudio, match="allow_commands"):
        folder.probe("r", command, verify=True)
    assert not (tmp_path / "ran").exists()


def test_addresses_are_refused():
    with pytest.raises(BadAudio, match="type url"):
        examine(AudioSource("url", [0], "https://example.org/a.flac"), verify=False)


def test_manifest_must_say_what_the_file_holds(tmp_path, noise):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise, 16000)
    good = Recording.from_file(path)
    assert confirm(good, verify=True).recording is good
    bad = Recording("a", good.sources, 8000, 24000, 3.0)
    with pytest.raises(BadAudio, match="its manifest says"):
        confirm(bad, verify=False)
