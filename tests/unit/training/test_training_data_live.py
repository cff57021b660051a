"""Features computed during training are those that the stages would have stored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.criteria.batch import Batch
from latflow.errors import UserError
from latflow.features.extract import extract_features, on_device
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames, _Wanted, prepare_live_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import StreamOptions
from latflow.options import read_options
from latflow.training.batches import Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.readers import estimate_normalizer

SAMPLES = [4000, 9000, 6400, 100, 12000]


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five utterances of noise; that at 3 is too short for a frame."""
    folder = tmp_path_factory.mktemp("audio")
    generator = np.random.default_rng(0)
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for i, num_samples in enumerate(SAMPLES):
            path = folder / f"{i}.wav"
            soundfile.write(path, 0.1 * generator.normal(size=num_samples + 800), 8000)
            name, length = f"utt{i}", num_samples / 8000
            supervision = SupervisionSegment(
                name, name, 0.0, length, speaker="a", text="x"
            )
            recording = Recording.from_file(path, recording_id=name)
            cut = MonoCut(
                name, 0.05, length, 0, supervisions=[supervision], recording=recording
            )
            writer.write(cut)
    return folder / "cuts.jsonl.gz"


FBANK = {"type": "fbank", "num_mel_bins": 20, "dither": 1.0}
NO_CMVN = read_options(StreamOptions, {**FBANK, "cmvn": {"type": "none"}})


@pytest.mark.parametrize(
    "values",
    [
        {**FBANK, "cmvn": {"type": "none"}},
        {**FBANK, "cmvn": {"type": "utterance", "norm_vars": True}},
        {"type": "waveform", "dither": 1.0, "cmvn": {"type": "none"}},
        {
            "cmvn": {"type": "sliding", "window": 30},
            "sample_rate": 16000,
            "snip_edges": False,
        },
    ],
)
def test_live_features_are_the_stored_ones(
    tmp_path: Path, cuts: Path, values: dict[str, Any]
) -> None:
    options = read_options(StreamOptions, values)
    extract_features(
        cuts, tmp_path / "e", options=options, threads=1, max_skipped_fraction=1
    )
    compute_cmvn(tmp_path / "e", tmp_path / "f", cmvn=options.cmvn)
    prepare_live_features(
        cuts, tmp_path / "live", options=options, max_skipped_fraction=1
    )
    stored, live = FrameStore.load(tmp_path / "f"), LiveFrames(tmp_path / "live")
    assert live.utt_ids == stored.utt_ids
    assert live.begin.tolist() == stored.begin.tolist()
    assert (live.dim, live.frame_shift) == (stored.dim, stored.frame_shift)
    for i in range(len(stored)):
        np.testing.assert_array_equal(live.frames(i), stored.frames(i))


def test_the_front_end_on_a_device_computes_the_same(
    tmp_path: Path, cuts: Path
) -> None:
    options = NO_CMVN
    prepare_live_features(cuts, tmp_path, options=options, max_skipped_fraction=1)
    live = LiveFrames(tmp_path)
    together = on_device(
        live._extractor, [live._read(_Wanted(i), None) for i in range(4)]
    )
    for i, frames in enumerate(together):
        np.testing.assert_allclose(frames, live.frames(i), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_computes_the_same(tmp_path: Path, cuts: Path) -> None:
    options = NO_CMVN
    prepare_live_features(cuts, tmp_path, options=options, max_skipped_fraction=1)
    there = LiveFrames(tmp_path, device="cuda")
    here = LiveFrames(tmp_path)
    for got, wanted in zip(there.get(range(4)), here.get(range(4)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cache_mb", [0, 1])
@pytest.mark.parametrize("kind", ["mean", "global"])
def test_batches_of_live_and_stored_features_agree(
    tmp_path: Path, repository: Path, cuts: Path, kind: str, cache_mb: int
) -> None:
    features = NO_CMVN
    extract_features(
        cuts, tmp_path / "e", options=features, threads=1, max_skipped_fraction=1
    )
    compute_cmvn(tmp_path / "e", tmp_path / "f", cmvn=features.cmvn)
    prepare_live_features(
        cuts, tmp_path / "live", options=features, max_skipped_fraction=1
    )
    options = read_options(
        DataOptions,
        {
            "sequences": {"type": "chunks", "size": 20},
            "max_sequences": 5,
            "pool": 2,
            "normalization": kind,
            "on_the_fly": {"threads": 2, "cache_mb": cache_mb},
        },
    )

    def batches(name: str) -> list[Batch | None]:
        normalizer = estimate_normalizer(tmp_path / name, options)
        source = open_batches(
            tmp_path / name, Targets(), options, normalizer=normalizer
        )
        return [*source.epoch(0), *source.epoch(1)]

    for stored, live in zip(batches("f"), batches("live"), strict=True):
        assert stored is not None
        assert live is not None
        assert live.utterances == stored.utterances
        np.testing.assert_allclose(live.features, stored.features, atol=1e-4)


def test_the_cache_holds_what_was_used_last(tmp_path: Path, cuts: Path) -> None:
    options = NO_CMVN
    prepare_live_features(cuts, tmp_path, options=options, max_skipped_fraction=1)
    lengths = np.diff(LiveFrames(tmp_path).begin)
    room = int(lengths[0] + lengths[1]) * 20 * 4
    live = LiveFrames(tmp_path, cache_bytes=room)
    first, second = live.frames(0), live.frames(1)
    assert live.frames(0) is first
    live.frames(2)  # has no more frames than 1: takes the place of 1, unused longest
    assert live.frames(0) is first
    assert live.frames(1) is not second


def test_faults_of_audio_are_told(tmp_path: Path, cuts: Path) -> None:
    options = NO_CMVN
    prepare_live_features(
        cuts, tmp_path / "live", options=options, max_skipped_fraction=1
    )
    text = (tmp_path / "live/ledger.jsonl").read_text()
    assert "utt3" in text
    assert "too short" in text
    audio = cuts.parent / "1.wav"
    kept = audio.read_bytes()
    try:
        audio.unlink()
        with pytest.raises(UserError, match=r"1.wav: utt1: audio cannot be read"):
            LiveFrames(tmp_path / "live").frames(1)
    finally:
        audio.write_bytes(kept)
    with pytest.raises(UserError, match="not readable as features on the fly"):
        LiveFrames(tmp_path)
    with pytest.raises(UserError, match="skipped 1 of 5"):
        prepare_live_features(
            cuts, tmp_path / "x", options=options, max_skipped_fraction=0.1
        )
    by_speaker = read_options(StreamOptions, FBANK)
    with pytest.raises(UserError, match="speaker needs all features beforehand"):
        prepare_live_features(
            cuts, tmp_path / "x", options=by_speaker, max_skipped_fraction=1
        )
    assert not (tmp_path / "x").exists()


@pytest.fixture
def two_microphones(tmp_path: Path) -> Path:
    """An utterance on channel 1 of a recording of two."""
    samples = 0.1 * np.random.default_rng(2).normal(size=(4000, 2))
    soundfile.write(tmp_path / "two.wav", samples, 8000)
    recording = Recording.from_file(tmp_path / "two.wav", recording_id="two")
    said = SupervisionSegment("utt", "two", 0.0, 0.4, channel=1, speaker="a", text="x")
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as writer:
        writer.write(
            MonoCut("utt", 0.05, 0.4, 1, supervisions=[said], recording=recording)
        )
    return tmp_path / "cuts.jsonl.gz"


@pytest.mark.parametrize("kind", ["fbank", "waveform"])
def test_channels_stand_side_by_side(
    tmp_path: Path, two_microphones: Path, kind: str
) -> None:
    found = {}
    for name, channels in (("own", None), ("first", [0]), ("both", [1, 0])):
        given = {"type": kind, "channels": channels, "cmvn": {"type": "none"}}
        options = read_options(StreamOptions, {**given, "dither": 0.0})
        prepare_live_features(
            two_microphones, tmp_path / name, options=options, max_skipped_fraction=0
        )
        live = LiveFrames(tmp_path / name)
        found[name] = live.frames(0)
        assert live.dim == found[name].shape[1]
        extract_features(
            two_microphones,
            tmp_path / f"{name} stored",
            options=options,
            threads=1,
            max_skipped_fraction=0,
        )
        stored = FrameStore.load(tmp_path / f"{name} stored")
        np.testing.assert_array_equal(stored.frames(0), found[name])
        (together,) = on_device(live._extractor, [live._read(_Wanted(0), None)])
        np.testing.assert_allclose(together, found[name], rtol=1e-4, atol=1e-4)
    wanted = np.concatenate([found["own"], found["first"]], 1)
    np.testing.assert_array_equal(found["both"], wanted)


def test_a_channel_that_is_not_there(tmp_path: Path, two_microphones: Path) -> None:
    options = read_options(
        StreamOptions, {"type": "fbank", "channels": [0, 2], "cmvn": {"type": "none"}}
    )
    prepare_live_features(
        two_microphones, tmp_path / "live", options=options, max_skipped_fraction=0
    )
    with pytest.raises(UserError, match=r"has no channel 2: its channels are \[0, 1\]"):
        LiveFrames(tmp_path / "live").frames(0)
