"""MP3 files whose headers do not say how long they are, or say too little."""

import io

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource

from latflow.corpus.audio import BadAudio, probe
from latflow.corpus.audio_backend import WRONG_LENGTH, Sound

RATE = 16000
SLACK = 2 * 576 + 1105  # frames of MPEG 2, and the delay of encoder and decoder
TAG = b"ID3\4\0\0\0\0\1\0" + bytes(128)
rng = np.random.default_rng(0)
NOISE = rng.normal(0, 0.2, 2 * RATE)
# Few bits, many bits: what the first frame tells of the others is wrong.
WAVES = {
    "quiet, then loud": np.concatenate([np.zeros(2 * RATE), NOISE]),
    "loud, then quiet": np.concatenate([NOISE, np.zeros(2 * RATE)]),
}


def mp3(wave):
    """An MP3 of a variable bit rate, and the same without its header of lengths."""
    kept = io.BytesIO()
    options = {"bitrate_mode": "VARIABLE", "compression_level": 0.1}
    soundfile.write(kept, wave, RATE, format="MP3", **options)
    data = kept.getvalue()
    second = data.index(data[:2], 2)
    assert b"Xing" in data[:second]
    return data, data[second:]


@pytest.fixture(params=WAVES)
def wave(request):
    return WAVES[request.param]


def probed(path, data, *, verify):
    path.write_bytes(data)
    return probe("a", AudioSource("file", [0], str(path)), verify=verify)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("before", [b"", TAG, TAG + TAG], ids=["", "tag", "two tags"])
def test_frames_are_counted_where_no_header_does(tmp_path, wave, verify, before):
    data = before + mp3(wave)[1]
    found = probed(tmp_path / "a.mp3", data, verify=verify)
    assert abs(found.recording.num_samples - len(wave)) <= SLACK
    assert found.facts[0].notes == ()


def test_samples_are_those_of_the_file_with_a_header(wave):
    whole, bare = mp3(wave)
    with Sound(io.BytesIO(whole)) as one, Sound(io.BytesIO(bare)) as other:
        left, right = one.read(), other.read()
    # Who knows the encoder's delay leaves it out.
    delay = np.correlate(right[:48000], left[:40000]).argmax()
    assert delay <= SLACK
    number = min(len(left), len(right) - delay)
    assert number >= len(wave) - SLACK
    error = left[100:number] - right[delay + 100 : delay + number]
    assert np.abs(error).max() < 1e-3


@pytest.mark.parametrize("verify", [True, False])
def test_joined_files_are_read_to_the_end(tmp_path, verify):
    wave = WAVES["loud, then quiet"]
    data = mp3(wave)[0]
    found = probed(tmp_path / "a.mp3", 3 * data, verify=verify)
    assert abs(found.recording.num_samples - 3 * len(wave)) <= 4 * SLACK
    assert found.facts[0].notes == (WRONG_LENGTH,)


def test_a_part_of_a_file_with_a_header_is_refused(tmp_path):
    data = mp3(WAVES["loud, then quiet"])[0]
    with pytest.raises(BadAudio, match="cut short"):
        probed(tmp_path / "a.mp3", data[: len(data) // 2], verify=True)


def test_right_files_are_not_changed(tmp_path, wave):
    data = mp3(wave)[0]
    path = tmp_path / "a.mp3"
    path.write_bytes(data + b"TAG" + bytes(125))
    with Sound(path) as ours, soundfile.SoundFile(path) as plain:
        np.testing.assert_array_equal(ours.read(), plain.read())
