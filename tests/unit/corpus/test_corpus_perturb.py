"""Copies of a corpus at other speeds and volumes: manifests, audio, features."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.derived_options import PerturbationOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.corpus.perturb import perturb_corpus
from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn
from latflow.features.extract import extract_features
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import StreamOptions

SPEEDS = (0.9, 1.0, 1.1)
TONE = 500.0  # Hz


def write_corpus(folder, rate=8000):
    """A corpus folder of one recording, a tone, and two utterances in it."""
    (folder / "train").mkdir()
    time = np.arange(3 * rate) / rate
    soundfile.write(folder / "a.wav", 0.2 * np.sin(2 * np.pi * TONE * time), rate)
    recording = Recording.from_file(folder / "a.wav", recording_id="rec")
    items = {"recordings": [recording], "supervisions": [], "cuts": []}
    for name, start, seconds in (("u1", 0.25, 1.003), ("u2", 1.5, 1.3)):
        there = {"recording_id": "rec", "text": "x", "speaker": "anna", "channel": 0}
        items["supervisions"].append(
            SupervisionSegment(name, start=start, duration=seconds, **there)
        )
        own = SupervisionSegment(name, start=0.0, duration=seconds, **there)
        items["cuts"].append(
            MonoCut(name, start, seconds, 0, recording=recording, supervisions=[own])
        )
    for kind, found in items.items():
        with ManifestWriter(folder / f"train/{kind}.jsonl.gz") as writer:
            for item in found:
                writer.write(item)
    return folder / "train"


@pytest.fixture
def perturbed(tmp_path):
    """Folder of the copies, and their cuts by id."""
    out = tmp_path / "train_sp"
    options = PerturbationOptions()
    perturb_corpus(write_corpus(tmp_path), out, options=options, seed=3)
    return out, {cut.id: cut for cut in read_cuts(out / "cuts.jsonl.gz")}


def test_every_utterance_comes_at_every_speed(perturbed):
    folder, cuts = perturbed
    assert list(cuts) == ["sp0.9-u1", "sp0.9-u2", "sp1.1-u1", "sp1.1-u2", "u1", "u2"]
    listed = read_supervisions(folder / "supervisions.jsonl.gz")
    supervisions = {item.id: item for item in listed}
    recordings = {r.id: r for r in read_recordings(folder / "recordings.jsonl.gz")}
    assert list(recordings) == ["rec", "sp0.9-rec", "sp1.1-rec"]
    for name, cut in cuts.items():
        prefix = name[: name.rindex("u")]
        (own,) = cut.supervisions
        assert own.id == name
        assert own.text == "x"
        assert own.speaker == prefix + "anna"
        assert own.recording_id == cut.recording_id == prefix + "rec"
        assert recordings[cut.recording_id].duration == cut.recording.duration
        of_manifest = supervisions[name]
        assert of_manifest.start == pytest.approx(cut.start, abs=1 / 8000)
        assert of_manifest.duration == pytest.approx(cut.duration, abs=1 / 8000)


@pytest.mark.parametrize("speed", SPEEDS)
def test_audio_lasts_and_sounds_as_the_speed_says(perturbed, speed):
    _, cuts = perturbed
    name = "u1" if speed == 1.0 else f"sp{speed}-u1"
    wave = cuts[name].load_audio()[0]
    assert len(wave) == cuts[name].num_samples == round(1.003 * 8000 / speed)
    peak = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))).argmax()
    assert peak * 8000 / len(wave) == pytest.approx(TONE * speed, abs=2)
    # from the middle of the recording, the tone has no edge
    assert np.abs(wave[50:-50]).max() == pytest.approx(0.2, rel=0.02)


def test_features_of_networks_follow_the_volume_and_others_do_not(perturbed, tmp_path):
    folder, cuts = perturbed
    cuts_file = folder / "cuts.jsonl.gz"
    options = StreamOptions(type="fbank", dither=0.0, cmvn=NoCmvn())
    how = {"options": options, "max_skipped_fraction": 0}
    for name, volumes in (("plain", False), ("loud", True)):
        extract_features(cuts_file, tmp_path / name, threads=1, volumes=volumes, **how)
        compute_cmvn(tmp_path / name, tmp_path / f"{name}_f", cmvn=NoCmvn())
    prepare_live_features(cuts_file, tmp_path / "live", **how)
    plain, loud = (FrameStore.load(tmp_path / f"{n}_f") for n in ("plain", "loud"))
    live = LiveFrames(tmp_path / "live")
    volumes = [cut.custom["volume"] for cut in cuts.values()]
    assert len(set(volumes)) == len(volumes)
    assert 0.125 <= min(volumes) < max(volumes) <= 2.0
    for i, volume in enumerate(volumes):
        gain = loud.frames(i) - plain.frames(i)
        np.testing.assert_allclose(gain, 2 * np.log(volume), atol=0.02)
        np.testing.assert_array_equal(live.frames(i), loud.frames(i))
    seconds = np.diff(plain.begin) * plain.frame_shift
    wanted = [cut.duration for cut in cuts.values()]
    np.testing.assert_allclose(seconds, wanted, atol=0.03)


def test_volumes_depend_on_seed_and_utterance_alone(tmp_path):
    corpus = write_corpus(tmp_path)
    found = []
    for seed, speeds in ((1, SPEEDS), (1, (1.0,)), (2, (1.0,))):
        options = PerturbationOptions(speeds=speeds)
        perturb_corpus(corpus, tmp_path / "out", options=options, seed=seed)
        cuts = read_cuts(tmp_path / "out/cuts.jsonl.gz")
        found.append({cut.id: cut.custom["volume"] for cut in cuts})
    assert found[1].items() < found[0].items()
    assert not found[1].items() & found[2].items()


def test_speed_alone_leaves_no_volume(tmp_path):
    options = PerturbationOptions(speeds=(1.0,), volume=None)
    corpus = write_corpus(tmp_path)
    perturb_corpus(corpus, tmp_path / "out", options=options, seed=1)
    for name in ("recordings", "supervisions", "cuts"):
        file = f"{name}.jsonl.gz"
        assert (corpus / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert json.loads((tmp_path / "out/ledger.jsonl").read_text() or "[]") == []


def test_a_rate_that_cannot_be_resampled_is_refused(tmp_path):
    corpus = write_corpus(tmp_path, rate=11025)
    options = PerturbationOptions(speeds=(0.9,))
    with pytest.raises(UserError, match="u1: 11025 Hz at speed 0.9 cannot"):
        perturb_corpus(corpus, tmp_path / "out", options=options, seed=1)
