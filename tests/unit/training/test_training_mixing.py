"""`data.mixing`: noise that is added to stored features."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.features.mixer import FeatureMixer
from reference.training_data_naive import data_of

from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn
from latflow.features.extract import extract_features, make_extractor
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.normalization import compute_cmvn
from latflow.features.options import ExtractionOptions, LhotseExtractionOptions
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import BatchSource, Targets
from latflow.training.data_options import MixingDraws
from latflow.training.mixing import FeatureMixing, _Noise
from latflow.training.readers import StoreReader

RATE, SECONDS = 8000, 2
FBANK = ExtractionOptions(type="fbank", num_mel_bins=23, dither=0.0)
KALDI_FBANK = LhotseExtractionOptions(
    extractor="kaldi-fbank",
    options={"num_filters": 23},
    sample_rate=RATE,
    dither=0.0,
)


def speech(seed: int) -> np.ndarray:
    """Return syllables of a falling spectrum: 4 a second, with gaps."""
    rng = np.random.default_rng(seed)
    time = np.arange(RATE * SECONDS) / RATE
    harmonics = sum(
        np.sin(2 * np.pi * 130 * k * time + rng.uniform(0, 6)) / k for k in range(1, 25)
    )
    syllables = np.maximum(np.sin(2 * np.pi * 4 * time), 0.02)
    return (0.1 * syllables * harmonics).astype(np.float32)


def hiss(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.03 * rng.standard_normal(RATE * SECONDS)).astype(np.float32)


def write(folder: Path, options: ExtractionOptions | LhotseExtractionOptions) -> Path:
    """Write the features of four utterances, and two files of noise."""
    extractor = make_extractor(options.front_end, RATE)
    meta = {"extraction": options.values(), "sample_rate": RATE}
    frames = folder / "frames"
    with FrameWriter(frames, dim=23, meta=meta) as writer:
        for i in range(4):
            features = extractor.extract_utterance(speech(i), 0)
            writer.append(f"u{i}", "s", "", features[: 100 + 30 * i])
    (folder / "noise").mkdir()
    for seed in (7, 8):
        soundfile.write(folder / "noise" / f"{seed}.wav", hiss(seed), RATE, "FLOAT")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mixing"), FBANK)


def draws(folder: Path, **values: object) -> MixingDraws:
    noise = {"files": str(folder / "noise"), **values}
    return MixingDraws.model_validate({"noises": {"hiss": noise}})


def source(folder: Path, kind: str = "none", **options: object) -> BatchSource:
    reader = StoreReader(FrameStore.load(folder / "frames"), Normalizer(kind))
    return BatchSource(reader, Targets(), data_of(**{"size": 40, **options}), seed=3)


def frames_of(batches: BatchSource, epoch: int, **of: int) -> dict[str, np.ndarray]:
    """Return the frames of each utterance, put together of its chunks."""
    lengths = batches.reader.lengths
    found = {
        name: np.zeros((lengths[i], 23), np.float32)
        for i, name in enumerate(batches.reader.utt_ids)
    }
    for batch in batches.epoch(epoch, **of):
        assert batch is not None
        for b, name in enumerate(batch.utterances):
            first, length = int(batch.first_frame[b]), int(batch.lengths[b])
            found[name][first : first + length] = batch.features[b, :length].numpy()
    return found


@pytest.mark.parametrize("options", [FBANK, KALDI_FBANK])
@pytest.mark.parametrize("snr", [0.0, 10.0])
def test_it_is_nearly_what_the_mixed_waveforms_have(
    tmp_path: Path, options: ExtractionOptions | LhotseExtractionOptions, snr: float
) -> None:
    """Within a quarter (1.1 dB) in the mean, of features that noise moves by 2."""
    folder = write(tmp_path, options)
    store = FrameStore.load(folder / "frames")
    mixing = FeatureMixing(draws(folder), store, seed=1)
    noise = _Noise(str(folder / "noise/7.wav"), 0.0, snr)
    gain = mixing.gain(3, noise)
    clean, added = store.frames(3), mixing.part(noise, 0, 190)
    assert len(clean) == 190
    ratio = np.exp(clean).sum() / (gain * np.exp(added).sum())
    assert 10 * np.log10(ratio) == pytest.approx(snr, abs=1e-3)
    extractor = make_extractor(options.front_end, RATE)
    wave = speech(3) + np.float32(np.sqrt(gain)) * hiss(7)
    wanted = extractor.extract_utterance(wave, 0)[:190]
    mixed = mixing.mix(clean, added, gain)
    difference = mixed - wanted
    assert np.abs(difference).mean() < 0.25
    assert abs(difference.mean()) < 0.1
    assert np.abs(wanted - clean).mean() > 4 * np.abs(difference).mean()


def test_it_is_what_lhotse_mixes(data: Path) -> None:
    store = FrameStore.load(data / "frames")
    mixing = FeatureMixing(draws(data), store, seed=1)
    noise = _Noise(str(data / "noise/8.wav"), 0.25, 5.0)
    part = mixing.part(noise, 0, len(store.frames(0)))
    extractor = make_extractor(FBANK.front_end, RATE)
    mixer = FeatureMixer(extractor, store.frames(0), 0.01)  # type: ignore[arg-type]
    mixer.add_to_mix(part, RATE, snr=5.0)
    mixed = mixing.mix(store.frames(0), part, mixing.gain(0, noise))
    np.testing.assert_allclose(mixed, mixer.mixed_feats, atol=1e-5)


def test_noise_repeats(data: Path) -> None:
    store = FrameStore.load(data / "frames")
    mixing = FeatureMixing(draws(data), store, seed=1)
    noise = _Noise(str(data / "noise/7.wav"), 0.5, 0.0)
    whole = mixing.part(noise, 0, 400)
    length = len(mixing.part(noise._replace(begin=0.0), 0, 198))
    np.testing.assert_array_equal(whole[:50], whole[length : length + 50])
    np.testing.assert_array_equal(whole[30:60], mixing.part(noise, 30, 60))


def test_draws_follow_from_seed_utterance_and_pass(data: Path) -> None:
    mixing = draws(data)
    plain = frames_of(source(data), 0)
    batches = source(data, mixing=mixing)
    first = frames_of(batches, 0)
    others = {
        "another pass": frames_of(batches, 1),
        "no noise": plain,
        "another level": frames_of(source(data, mixing=draws(data, snr=FIXED)), 0),
    }
    for utt_id, frames in first.items():
        for what, other in others.items():
            assert np.abs(other[utt_id] - frames).mean() > 0.01, what
        assert (frames >= plain[utt_id] - 1e-5).all()
    same = (
        frames_of(source(data, mixing=mixing, size=None), 0),
        frames_of(source(data, mixing=mixing, prefetch=0, cache_mb=1), 0),
        frames_of(source(data, mixing=mixing, partition_epoch=1, order="sorted"), 0),
    )
    for other in same:
        for utt_id, frames in first.items():
            np.testing.assert_array_equal(other[utt_id], frames)
    none = mixing.replace(probability=0.0)
    for utt_id, frames in frames_of(source(data, mixing=none), 0).items():
        np.testing.assert_array_equal(frames, plain[utt_id])
    seldom = draws(data, probability=0.0)
    for utt_id, frames in frames_of(source(data, mixing=seldom), 0).items():
        np.testing.assert_array_equal(frames, plain[utt_id])
    assert data_of(mixing=mixing).for_evaluation().mixing is None


FIXED = {"type": "choice", "of": [-5.0]}


def test_normalization_is_of_what_was_mixed(data: Path) -> None:
    batches = source(data, "mean_variance", mixing=draws(data), size=None)
    for frames in frames_of(batches, 0).values():
        np.testing.assert_allclose(frames.mean(0), 0, atol=1e-4)
        np.testing.assert_allclose(frames.std(0), 1, atol=1e-3)


def test_stages_tell_what_features_were_computed_by(data: Path, tmp_path: Path) -> None:
    """From audio to a batch."""
    soundfile.write(tmp_path / "a.wav", speech(0), RATE, "FLOAT")
    recording = Recording.from_file(tmp_path / "a.wav", recording_id="a")
    said = SupervisionSegment("a", "a", 0.0, recording.duration, text="x", speaker="s")
    cut = MonoCut("a", 0.0, recording.duration, 0, [said], recording=recording)
    CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl.gz")
    extract_features(
        tmp_path / "cuts.jsonl.gz",
        tmp_path / "features",
        options=FBANK,
        threads=1,
        max_skipped_fraction=0.0,
    )
    compute_cmvn(tmp_path / "features", tmp_path / "frames", cmvn=NoCmvn())
    (plain,) = frames_of(source(tmp_path), 0).values()
    (mixed,) = frames_of(source(tmp_path, mixing=draws(data, snr=FIXED)), 0).values()
    assert np.abs(mixed - plain).mean() > 1


def test_features_that_do_not_add_up_are_refused(data: Path, tmp_path: Path) -> None:
    mfcc = ExtractionOptions(type="mfcc", dither=0.0)
    for meta, told in (
        ({}, "does not record how its features were computed"),
        ({"extraction": mfcc.values(), "sample_rate": RATE}, "latflow-mfcc do not add"),
    ):
        folder = tmp_path / str(len(meta))
        with FrameWriter(folder, dim=13, meta=meta) as writer:
            writer.append("u", "s", "", np.zeros((9, 13), np.float32))
        with pytest.raises(UserError, match=told):
            FeatureMixing(draws(data), FrameStore.load(folder), seed=1)
    nothing = MixingDraws.model_validate({"noises": {"x": {"files": str(tmp_path)}}})
    with pytest.raises(UserError, match="no audio"):
        FeatureMixing(nothing, FrameStore.load(data / "frames"), seed=1)
