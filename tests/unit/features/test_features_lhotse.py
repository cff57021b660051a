"""Lhotse's extractors, and classes of the user's own, as features."""

import warnings
import zlib
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.features.base import FEATURE_EXTRACTORS
from lhotse.features.kaldifeat import KaldifeatFbankConfig

from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.extract import extract_features
from latflow.features.frame_times import FrameTimes, feature_dim
from latflow.features.frames import FrameStore
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.lhotse_extractors import _PACKAGES, LhotseExtractor, _config
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import (
    FrontEndOptions,
    LhotseExtractionOptions,
    LhotseFrontEndOptions,
    LhotseStreamOptions,
    PerturbationDraws,
    Stream,
)
from latflow.ledger import read_ledger
from latflow.options import read_options

RATE = 8000
NAMES = sorted(name for name in FEATURE_EXTRACTORS if not name.startswith("latflow-"))
# The log energy and the mean of every 100 samples; the rest is left.
OWN = """
from dataclasses import dataclass
import numpy as np
from lhotse.features.base import FeatureExtractor

@dataclass
class Config:
    size: int = 100
    wrong: bool = False

class Own(FeatureExtractor):
    name = "own"
    config_type = Config
    frame_shift = property(lambda self: self.config.size / 8000)

    def feature_dim(self, sampling_rate):
        return 3 if self.config.wrong else 2

    def extract(self, samples, sampling_rate):
        if samples.max() > 0.9:
            raise ValueError("clipped")
        blocks = samples[0, : samples.size // self.config.size * self.config.size]
        blocks = blocks.reshape(-1, self.config.size)
        return np.stack([np.log(np.mean(blocks**2, 1)), blocks.mean(1)], 1)
"""


@pytest.fixture
def own(tmp_path):
    """Location of the class in a file."""
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py:Own"


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Four utterances of noise, and one (the second) that is clipped."""
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(0)
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for i, num_samples in enumerate([4000, 4100, 6432, 5040, 8000]):
            name, path = f"u{i}", folder / f"u{i}.wav"
            wave = 0.1 * rng.normal(size=num_samples)
            wave[0] = 0.99 if i == 1 else 0.0
            soundfile.write(path, wave, RATE, subtype="PCM_16")
            recording = Recording.from_file(path, recording_id=name)
            length = recording.duration
            said = SupervisionSegment(name, name, 0.0, length, speaker="a", text="x")
            writer.write(
                MonoCut(name, 0.0, length, 0, supervisions=[said], recording=recording)
            )
    return folder / "cuts.jsonl.gz"


def made(extractor, rate=RATE, **values):
    options = {"dither": 0.0, "extractor": extractor, **values}
    return LhotseExtractor(read_options(LhotseFrontEndOptions, options), rate)


def wave_of(num_samples, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.1, num_samples).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_registered_extractors_give_lhotses_numbers_or_say_what_to_install(name):
    package = _PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        with pytest.raises(UserError, match=f"{name} needs .* {package} - install it"):
            made(name)
        return
    if name == "s3prl-ssl":
        pytest.skip("Lhotse's fetches an encoder unless told which: see below")
    if name == "opensmile-extractor":
        pytest.skip("Lhotse's does not say how many features it gives: see below")
    of_any_rate = {"whisper-fbank", "fbank", "mfcc", "spectrogram"}
    rate = 16000 if name in of_any_rate else None
    found, wave = made(name, rate), wave_of(8123)
    extractor = FEATURE_EXTRACTORS[name]()
    wanted = extractor.extract(wave[np.newaxis], found.sample_rate)
    np.testing.assert_array_equal(found.extract_utterance(wave, 0), wanted)
    assert (found.name, found.frame_shift) == (name, extractor.frame_shift)
    assert found.dim == wanted.shape[1]
    found.check_lengths()


@pytest.mark.parametrize(
    ("options", "dim"),
    [
        ({}, 65),
        ({"feature_set": "eGeMAPSv02"}, 25),
        # It has more frames than there are frame shifts.
        ({"feature_set": "IS09", "feature_level": "lld_de"}, 16),
    ],
)
def test_opensmile_gives_its_numbers_at_each_frame_shift(options, dim):
    opensmile = pytest.importorskip("opensmile", reason="the extra extractors")
    found, wave = made("opensmile-extractor", RATE, options=options), wave_of(8100)
    given = {"feature_set": "ComParE_2016", "feature_level": "lld", **options}
    given["feature_set"] = opensmile.FeatureSet[given["feature_set"]]
    wanted = opensmile.Smile(**given).process_signal(wave, RATE).to_numpy()
    got = found.extract_utterance(wave, 0)
    assert got.shape == (101, found.dim) == (101, dim)
    np.testing.assert_array_equal(got[: len(wanted)], wanted[: len(got)])
    found.check_lengths()


@pytest.mark.filterwarnings("ignore")  # torchaudio's and s3prl's, of many kinds
def test_s3prl_gives_its_numbers():
    pytest.importorskip("s3prl", reason="the extra extractors")
    options = {"ssl_model": "mel", "frame_shift": 0.01, "feature_dim": 80}
    found, wave = made("s3prl-ssl", 16000, options=options), wave_of(8123)
    model = import_module("s3prl.hub").mel()
    wanted = model([torch.from_numpy(wave)])["hidden_states"][-1][0].detach().numpy()
    np.testing.assert_array_equal(found.extract_utterance(wave, 0), wanted)
    with pytest.raises(UserError, match="S3PRL dose not suport model: melodies"):
        made("s3prl-ssl", 16000, options={**options, "ssl_model": "melodies"})


def test_opensmile_of_whole_utterances_is_refused():
    pytest.importorskip("opensmile", reason="the extra extractors")
    with pytest.raises(UserError, match="cannot be used: .*Functionals"):
        made("opensmile-extractor", RATE, options={"feature_level": "func"})


def test_options_reach_the_extractor():
    wave = wave_of(4000)
    found = made("kaldi-fbank", options={"num_filters": 30, "frame_shift": 0.02})
    assert found.extract_utterance(wave, 0).shape == (25, 30)
    assert found.sample_rate == RATE
    kind = FEATURE_EXTRACTORS["kaldi-fbank"]
    config = kind.config_type(sampling_rate=RATE, num_filters=30, frame_shift=0.02)
    np.testing.assert_array_equal(
        found.extract_utterance(wave, 0), kind(config).extract(wave[np.newaxis], RATE)
    )


def test_sixteen_bit_samples_give_kaldis_numbers():
    values = {"num_filters": 23, "high_freq": 0.0, "snip_edges": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lhotse prefers snip_edges: false
        found = made("kaldi-fbank", options=values, sample_range="int16")
        found.check_lengths()
    wave = wave_of(4000)
    options = FrontEndOptions(type="fbank", dither=0.0)
    wanted = KaldiFrontEnd(options, RATE).extract(wave)
    np.testing.assert_allclose(found.extract_utterance(wave, 0), wanted, atol=2e-3)


def test_dither_follows_from_seed_and_utterance():
    silence = np.zeros(4000, np.float32)
    found = made("kaldi-log-spectrogram", dither=1.0)
    first = found.extract_utterance(silence, 1)
    np.testing.assert_array_equal(found.extract_utterance(silence, 1), first)
    assert not np.array_equal(found.extract_utterance(silence, 2), first)
    other = made("kaldi-log-spectrogram", dither=1.0, dither_seed=1)
    assert not np.array_equal(other.extract_utterance(silence, 1), first)


def test_the_sample_rate_is_the_extractors_where_none_is_set():
    assert made("kaldi-mfcc", None).sample_rate == 16000
    own_rate = {"sampling_rate": 22050}
    assert made("kaldi-mfcc", None, options=own_rate).sample_rate == 22050


@pytest.mark.parametrize(
    ("extractor", "options", "told"),
    [
        ("kaldi-fbnk", {}, "no extractor 'kaldi-fbnk' - did you mean kaldi-fbank?"),
        ("latflow-fbank", {}, "no extractor 'latflow-fbank'"),
        ("kaldi-fbank", {"num_filter": 3}, "options.num_filter - did you mean num_f"),
        ("kaldi-fbank", {"num_filters": "3"}, "num_filters: should be a valid integer"),
        ("kaldi-fbank", {"dither": 0.5}, "options.dither: .* set features.dither"),
        ("kaldi-fbank", {"sampling_rate": 16000}, "sampling_rate is 16000"),
        ("kaldi-fbank", {"window_type": "x"}, "cannot be made: .*window type: x"),
        ("kaldi-fbank", {"frame_shift": 1e-6}, "cannot be used: .*frame shift 1e-06"),
        ("nowhere:Own", {}, "cannot be loaded: ModuleNotFoundError"),
        ("latflow.errors:UserError", {}, "no subclass of Lhotse's FeatureExtractor"),
    ],
)
def test_extractors_that_cannot_be_had_are_told_in_a_line(extractor, options, told):
    with pytest.raises(UserError, match=told):
        made(extractor, options=options)


def test_settings_of_settings_are_checked():
    """Those of kaldifeat, without the package."""
    values = {"frame_opts": {"frame_shift": 0.02}, "mel_opts": {"num_bins": 40}}
    config = _config(KaldifeatFbankConfig, values, "features.options")
    assert config.frame_opts.frame_shift == 0.02
    assert config.mel_opts.num_bins == 40
    with pytest.raises(UserError, match=r"mel_opts\.num_bin - did you mean num_bins"):
        _config(KaldifeatFbankConfig, {"mel_opts": {"num_bin": 40}}, "features")


def test_a_rate_of_its_own_must_be_set_where_it_has_none(own):
    with pytest.raises(UserError, match=r"features.sample_rate: is not set"):
        made(own, None)


def stored(cuts, folder, threads=1, **values):
    given = {"type": "lhotse", "dither": 0.0, "cmvn": {"type": "none"}, **values}
    options = read_options(Stream, given)
    extract_features(
        cuts, folder / "e", options=options, threads=threads, max_skipped_fraction=0.5
    )
    compute_cmvn(folder / "e", folder / "f", cmvn=options.cmvn)
    return options, FrameStore.load(folder / "f")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_class_of_the_users_is_stored(tmp_path, cuts, own, threads):
    _, frames = stored(cuts, tmp_path, threads, extractor=own, sample_rate=RATE)
    assert frames.utt_ids == ["u0", "u2", "u3", "u4"]
    assert (frames.dim, frames.frame_shift) == (2, 0.0125)
    assert np.diff(frames.begin).tolist() == [40, 64, 50, 80]
    (skipped,) = read_ledger(tmp_path / "e/ledger.jsonl")
    assert "extractor own: ValueError: clipped" in skipped.reason
    wave, _ = soundfile.read(cuts.parent / "u4.wav", dtype="float32")
    blocks = wave.reshape(-1, 100)
    np.testing.assert_allclose(frames.frames(3)[:, 1], blocks.mean(1), atol=1e-7)
    assert frames.meta["type"] == "own"


def test_what_it_gives_must_be_what_it_says(tmp_path, cuts, own):
    values = {"extractor": own, "sample_rate": RATE, "options": {"wrong": True}}
    with pytest.raises(UserError, match=r"shape \(40, 2\).* frames of 3 features"):
        stored(cuts, tmp_path, **values)


@pytest.mark.parametrize(
    "values",
    [
        {"extractor": "kaldi-log-spectrogram", "sample_rate": RATE, "dither": 1.0},
        {"extractor": "kaldi-mfcc", "cmvn": {"type": "utterance"}},
    ],
)
def test_live_features_are_the_stored_ones(tmp_path, cuts, values):
    options, frames = stored(cuts, tmp_path, **values)
    prepare_live_features(
        cuts, tmp_path / "live", options=options, max_skipped_fraction=0
    )
    live = LiveFrames(tmp_path / "live", threads=2)
    assert (live.dim, live.frame_shift) == (frames.dim, frames.frame_shift)
    assert live.begin.tolist() == frames.begin.tolist()
    for i, found in enumerate(live.get(range(len(live)))):
        np.testing.assert_array_equal(found, frames.frames(i))
    slow = live.perturbation(PerturbationDraws(speeds=(0.8,)), seed=1, whole_pass=0)
    (found,) = live.get([4], slow)
    assert abs(len(found) - 100 / 0.8) <= 1


def test_live_features_need_lhotses_number_of_frames(tmp_path, cuts, own):
    options = LhotseStreamOptions(
        extractor=own, sample_rate=RATE, cmvn={"type": "none"}, dither=0.0
    )
    with pytest.raises(UserError, match="gives 80 frames of 8050 samples.*81 - store"):
        prepare_live_features(cuts, tmp_path, options=options, max_skipped_fraction=0)


def test_live_features_of_a_gpu_and_masks_are_refused(tmp_path, cuts):
    options = LhotseStreamOptions(extractor="kaldi-fbank", cmvn={"type": "none"})
    prepare_live_features(cuts, tmp_path, options=options, max_skipped_fraction=0)
    with pytest.raises(UserError, match="chooses its device itself"):
        LiveFrames(tmp_path, device="cuda")
    with pytest.raises(UserError, match="no bins that masks could be of"):
        LiveFrames(tmp_path).num_bins("mel")


def test_an_utterance_that_fails_when_it_is_read_is_named(tmp_path, cuts, own):
    text = OWN.replace("samples.size // self.config.size", "(samples.size + 50) // 100")
    padded = text.replace("samples[0, :", "np.pad(samples[0], (0, 99))[:")
    (tmp_path / "own.py").write_text(padded)
    options = LhotseStreamOptions(
        extractor=own, sample_rate=RATE, cmvn={"type": "none"}, dither=0.0
    )
    prepare_live_features(
        cuts, tmp_path / "live", options=options, max_skipped_fraction=0
    )
    with pytest.raises(UserError, match="u1: extractor own: ValueError: clipped"):
        LiveFrames(tmp_path / "live").frames(1)


def test_channels_stand_side_by_side():
    found = made("kaldi-mfcc", dither=1.0)
    waves = np.stack([wave_of(4000), wave_of(4000, 1)])
    both = found.extract_utterance(waves, zlib.crc32(b"u"))
    assert both.shape == (50, 26)
    one = found.extract_utterance(waves[0], zlib.crc32(b"u"))
    np.testing.assert_array_equal(both[:, :13], one)


def test_times_of_frames_are_known_without_audio():
    options = LhotseExtractionOptions(extractor="kaldi-fbank", sample_rate=RATE)
    times = FrameTimes.of(options, RATE)
    assert (times.shift_ms, times.first_middle) == (10.0, 0.005)
    assert times.num_frames(0.504) == 50
    assert feature_dim(options) == 80
    snipped = FrameTimes.of(FrontEndOptions())
    assert snipped.first_middle == 0.0125
