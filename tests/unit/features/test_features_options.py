"""Options of the front end: defaults, refusals, and that each key does something."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from latflow.errors import UserError
from latflow.features.extract import KaldiFbank, make_extractor
from latflow.features.front_end import KaldiFrontEnd, mel_filters, window_function
from latflow.features.options import (
    FeatureOptions,
    FrameGeometry,
    FrontEndOptions,
    GmmFeatures,
    Stream,
)
from latflow.options import read_options


def section(**values):
    return read_options(FeatureOptions, values, "features")


def test_part_of_the_features_is_the_front_end():
    assert section(num_ceps=7).part(FrontEndOptions) == FrontEndOptions(num_ceps=7)


def test_keys_of_mfcc_are_refused_for_fbank():
    for key, value in (("num_ceps", 12), ("cepstral_lifter", 0)):
        with pytest.raises(UserError, match=f"features: {key} belongs to type mfcc"):
            section(type="fbank", **{key: value})


def test_more_cepstra_than_filters_are_refused():
    with pytest.raises(UserError, match="num_ceps: 24"):
        section(num_ceps=24)


@pytest.mark.parametrize(
    "values",
    [{"num_mel": 3}, {"cmvn": {"type": "speaker", "window": 3}}, {"dither": -1},
     {"transform": {"type": "deltas", "left": 1}}, {"storage": "zip"}],
)  # fmt: skip
def test_unknown_keys_and_values_are_refused(values):
    with pytest.raises(UserError, match=r"features\."):
        section(**values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type", "fbank"), ("num_mel_bins", 30), ("num_ceps", 12), ("low_freq", 100.0),
        ("high_freq", -500.0), ("frame_length_ms", 20.0), ("frame_shift_ms", 5.0),
        ("preemphasis", 0.0), ("window_type", "blackman"), ("window_type", "sine"),
        ("use_energy", True), ("cepstral_lifter", 0.0), ("dither", 1.0),
        ("snip_edges", False),
    ],
)  # fmt: skip
def test_each_key_changes_the_features(key, value):
    wave = 0.1 * np.random.default_rng(0).normal(size=8000).astype(np.float32)
    options = FrontEndOptions(dither=0.0)
    plain = make_extractor(options, 16000).extract(wave, 16000)
    options = options.replace(**{key: value})
    changed = make_extractor(options, 16000).extract(wave, 16000)
    assert changed.shape != plain.shape or not np.allclose(changed, plain, atol=1e-3)


def test_dither_is_drawn_from_seed_and_key():
    wave = np.zeros(4000, np.float32)
    first = make_extractor(FrontEndOptions(), 16000)
    other = make_extractor(FrontEndOptions(dither_seed=1), 16000)
    made = first.extract_utterance(wave, 7)
    np.testing.assert_array_equal(made, first.extract_utterance(wave, 7))
    assert not np.array_equal(made, first.extract_utterance(wave, 8))
    assert not np.array_equal(made, other.extract_utterance(wave, 7))


@pytest.mark.parametrize(
    ("low", "high"), [(20, 4001), (20, -4000), (5000, 0), (300, 200)]
)
def test_filters_beyond_nyquist_or_out_of_order_are_refused(low, high):
    options = FrontEndOptions(low_freq=low, high_freq=high)
    with pytest.raises(UserError, match="4000 Hz, half the sample rate"):
        KaldiFrontEnd(options, 8000)


def test_filters_narrower_than_a_line_are_refused():
    with pytest.raises(UserError, match="narrower than a line"):
        KaldiFrontEnd(FrontEndOptions(num_mel_bins=128, num_ceps=13), 8000)


def test_windows_without_samples_are_refused():
    with pytest.raises(UserError, match="too short"):
        FrameGeometry.of(FrontEndOptions(frame_shift_ms=0.01), 8000)


def test_unknown_window_is_refused():
    with pytest.raises(ValueError, match="unknown window"):
        window_function("kaiser", 10)


def test_mel_filters_sum_to_one_between_the_outer_centres():
    weights = mel_filters(10, 512, 16000, low_freq=0.0, high_freq=0.0)
    total = weights.sum(axis=1)
    peaks = weights.argmax(axis=0)
    np.testing.assert_allclose(total[peaks[0] + 1 : peaks[-1]], 1.0)
    assert total[-1] == 0


def test_kaldis_frame_counts_at_8_khz():
    snipped = FrameGeometry.of(FrontEndOptions(), 8000)
    padded = FrameGeometry.of(FrontEndOptions(snip_edges=False), 8000)
    assert (snipped.length, snipped.shift, snipped.padded_length) == (200, 80, 256)
    counts = {n: (snipped.num_frames(n), padded.num_frames(n)) for n in
              (0, 39, 40, 199, 200, 279, 280)}  # fmt: skip
    assert counts == {
        0: (0, 0), 39: (0, 0), 40: (0, 1), 199: (0, 2), 200: (1, 3), 279: (1, 3),
        280: (2, 4),
    }  # fmt: skip


def test_extractor_refuses_other_rates_and_channels():
    extractor = make_extractor(FrontEndOptions(), 8000)
    with pytest.raises(ValueError, match="16000 Hz, not 8000"):
        extractor.extract(np.zeros(8000, np.float32), 16000)
    with pytest.raises(ValueError, match="2 channels"):
        extractor.extract(np.zeros((2, 8000), np.float32), 8000)


def test_fbank_mixes_energies_of_signals():
    extractor = make_extractor(FrontEndOptions(type="fbank", dither=0.0), 8000)
    assert isinstance(extractor, KaldiFbank)
    rng = np.random.default_rng(0)
    a, b = 0.1 * rng.normal(size=(2, 80_000)).astype(np.float32)
    made = extractor.extract(a, 8000), extractor.extract(b, 8000)
    mixed = extractor.mix(*made, 4.0)
    wanted = extractor.extract(a + 2 * b, 8000)
    np.testing.assert_allclose(mixed.mean(axis=0), wanted.mean(axis=0), atol=0.2)
    louder = extractor.scale(made[0], 4.0)
    ratio = extractor.compute_energy(louder) / extractor.compute_energy(made[0])
    assert ratio == pytest.approx(4.0, rel=1e-4)


def test_energy_takes_the_place_of_c0_or_comes_first():
    wave = 0.1 * np.random.default_rng(0).normal(size=4000).astype(np.float32)

    def extract(**settings):
        options = FrontEndOptions(dither=0.0, **settings)
        return make_extractor(options, 8000).extract(wave, 8000)

    mfcc = extract(use_energy=True)
    fbank = extract(type="fbank", use_energy=True)
    np.testing.assert_array_equal(mfcc[:, 1:], extract()[:, 1:])
    np.testing.assert_array_equal(fbank[:, 1:], extract(type="fbank"))
    np.testing.assert_array_equal(mfcc[:, 0], fbank[:, 0])
    window = 32768.0 * wave[:200].astype(np.float64)
    wanted = np.log(np.sum((window - window.mean()) ** 2))
    assert mfcc[0, 0] == pytest.approx(wanted, rel=1e-6)


def test_config_survives_lhotses_dictionary():
    config = make_extractor(FrontEndOptions(num_ceps=7), 8000).config
    assert type(config).from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    "features",
    [
        {"type": "mfcc"},
        {"type": "lhotse", "extractor": "kaldi-mfcc"},
        {"type": "lhotse", "extractor": "spectrogram"},
    ],
)
def test_level_is_taken_from_log_energies_alone(features):
    level = {**features, "cmvn": {"type": "level"}}
    for kind in (Stream, GmmFeatures):
        with pytest.raises(ValidationError, match="level is of log energies"):
            TypeAdapter(kind).validate_python(level)
    for known in ({"type": "fbank"}, {"type": "lhotse", "extractor": "kaldi-fbank"}):
        found = TypeAdapter(Stream).validate_python({**known, "cmvn": level["cmvn"]})
        assert found.cmvn.window == 300
