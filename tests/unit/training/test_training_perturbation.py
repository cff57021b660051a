"""Speeds and volumes drawn in training: features, labels, the same for all ranks."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.derived_options import PerturbationOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.perturb import perturb_corpus
from latflow.criteria.batch import Batch
from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn
from latflow.features.extract import extract_features
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import PerturbationDraws, StreamOptions
from latflow.features.perturb import Perturbation
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import StoreReader

RATE = 8000
FBANK = StreamOptions(
    type="fbank", num_mel_bins=20, dither=0.0, cmvn=NoCmvn(), stored=False
)
NUM_SAMPLES = [9000, 12345, 16000, 230, 20011]  # that at 3 has no frame at speed 1.2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder of five recordings: noise that comes and goes."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    items: dict[str, list] = {"recordings": [], "supervisions": [], "cuts": []}
    for i, num_samples in enumerate(NUM_SAMPLES):
        name = f"utt{i}"
        is_loud = np.arange(num_samples) // 1700 % 2 == 1
        wave = rng.normal(size=num_samples) * np.where(is_loud, 0.1, 0.001)
        soundfile.write(folder / f"{name}.wav", wave, RATE)
        recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
        supervision = SupervisionSegment(
            name, name, 0.0, recording.duration, speaker="a", text="x"
        )
        cut = MonoCut(
            name, 0.0, recording.duration, 0,
            supervisions=[supervision], recording=recording,
        )  # fmt: skip
        items["recordings"].append(recording)
        items["supervisions"].append(supervision)
        items["cuts"].append(cut)
    for kind, found in items.items():
        with ManifestWriter(folder / f"{kind}.jsonl.gz") as writer:
            for item in found:
                writer.write(item)
    return folder


@pytest.fixture(scope="module")
def live_dir(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "frames"
    prepare_live_features(
        corpus / "cuts.jsonl.gz", folder, options=FBANK, max_skipped_fraction=0
    )
    return folder


def test_draws_depend_on_seed_utterance_and_pass_alone() -> None:
    ids = [f"u{i}" for i in range(3000)]
    options = PerturbationDraws()

    def draw(ids: Iterable[str], seed: int = 1, whole_pass: int = 0) -> np.ndarray:
        drawn = Perturbation.draw(list(ids), options, seed=seed, whole_pass=whole_pass)
        return np.stack((drawn.speed, drawn.volume))

    first = draw(ids)
    np.testing.assert_array_equal(first[:, ::-7], draw(ids[::-7]))
    for other in (draw(ids, seed=2), draw(ids, whole_pass=1)):
        assert (first[1] != other[1]).all()
        assert np.mean(first[0] == other[0]) == pytest.approx(1 / 3, abs=0.04)
    speeds, counts = np.unique(first[0], return_counts=True)
    assert speeds.tolist() == [0.9, 1.0, 1.1]
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(3000 * 2 / 9))
    low, high = 0.125, 2.0
    assert low <= first[1].min() < first[1].max() < high
    assert first[1].mean() == pytest.approx((low + high) / 2, abs=0.05)
    assert first[1].std() == pytest.approx((high - low) / np.sqrt(12), abs=0.03)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_features_are_those_of_the_corpus_at_that_speed(
    tmp_path: Path, corpus: Path, live_dir: Path, speed: float
) -> None:
    options = PerturbationOptions(speeds=(speed,), volume=None)
    perturb_corpus(corpus, tmp_path / "sp", options=options, seed=1)
    extract_features(
        tmp_path / "sp/cuts.jsonl.gz", tmp_path / "e", options=FBANK, threads=1,
        max_skipped_fraction=0,
    )  # fmt: skip
    store = FrameStore.load(tmp_path / "e")
    stored = [store.frames(i) for i in range(len(store))]
    live = LiveFrames(live_dir)
    ones = np.ones(len(live))
    changed = Perturbation(ones * speed, ones)
    assert live.lengths_at(changed.speed).tolist() == [len(f) for f in stored]
    got = live.get(range(len(live)), changed)
    for frames, wanted in zip(got, stored, strict=True):
        np.testing.assert_allclose(frames, wanted, atol=1e-4)
    loud = live.get([0], Perturbation(ones * speed, ones * 2))[0]
    np.testing.assert_allclose(loud - got[0], 2 * np.log(2), atol=0.01)
    assert live.get([0], changed)[0] is got[0]  # from the cache


def write_labels(folder: Path, live: LiveFrames, by_energy: bool) -> LabelStore:
    """Labels of all utterances: whether frames are loud, or their numbers."""
    with LabelWriter(folder, 2 if by_energy else 1000) as writer:
        for i, utt_id in enumerate(live.utt_ids):
            frames = live.frames(i)
            labels = is_loud(frames) if by_energy else np.arange(len(frames))
            writer.append(utt_id, labels.astype(np.int32))
    return LabelStore.load(folder)


def is_loud(frames: np.ndarray) -> np.ndarray:
    return frames.mean(-1) > frames.mean(-1).max() - 4


def source_of(
    live_dir: Path, labels: LabelStore, seed: int = 3, **options: object
) -> BatchSource:
    data = DataOptions.model_validate(
        {
            "sequences": {"type": "chunks", "size": 30},
            "normalization": "none",
            "perturbation": {"speeds": [0.9, 1.1], "volume": None},
            **options,
        }
    )
    return open_batches(
        live_dir, Targets({"pdf": labels}), data, normalizer=Normalizer(), seed=seed
    )


def test_labels_follow_the_speech(tmp_path: Path, live_dir: Path) -> None:
    labels = write_labels(tmp_path, LiveFrames(live_dir), by_energy=True)
    whole = {"sequences": {"type": "utterances"}, "min_length": 50}
    right = total = 0
    for epoch in range(4):
        for batch in source_of(live_dir, labels, **whole).epoch(epoch):
            for row, length in enumerate(batch.lengths.tolist()):
                heard = is_loud(batch.features[row, :length].numpy())
                target = batch.targets["pdf"][row, :length].numpy()
                assert (target >= 0).all()
                right += (heard == target).sum()
                total += length
    assert total > 2000
    assert right / total > 0.975  # frames at an edge may fall to either side


@pytest.mark.parametrize("subsampling", [1, 3])
def test_labels_are_those_of_the_nearest_frame(
    tmp_path: Path, live_dir: Path, subsampling: int
) -> None:
    live = LiveFrames(live_dir)
    labels = write_labels(tmp_path, live, by_energy=False)
    source = source_of(live_dir, labels, shift_frames=False)
    source.subsampling = subsampling
    speeds = live.perturbation(
        PerturbationDraws(speeds=(0.9, 1.1), volume=None), seed=3, whole_pass=2
    ).speed
    # 25 ms every 10 ms: the middle of frame 0 is 1.25 shifts from the start
    seen = 0
    for batch in source.epoch(2):
        for row, i in enumerate(batch.indices.tolist()):
            target = batch.targets["pdf"][row].numpy()
            (at,) = np.nonzero(target >= 0)
            time = batch.first_frame[row].item() + at * subsampling
            wanted = speeds[i] * (time + 1.25) - 1.25
            last = len(live.frames(i)) - 1
            assert np.abs(target[at] - wanted.clip(0, last)).max() <= 0.5 + 1e-9
            seen += len(at)
    frames = live.lengths_at(speeds)
    assert seen == (-(-frames // subsampling)).sum()


def contents(batches: Iterable[Batch | None]) -> set[tuple]:
    """What batches hold, whatever their order."""
    return {
        (
            utt_id,
            int(batch.first_frame[row]),
            batch.features[row, : batch.lengths[row]].numpy().tobytes(),
            batch.targets["pdf"][row][batch.targets["pdf"][row] >= 0].numpy().tobytes(),
        )
        for batch in batches
        if batch is not None
        for row, utt_id in enumerate(batch.utterances)
    }


def test_ranks_workers_and_parts_of_a_pass_have_the_same_draws(
    tmp_path: Path, live_dir: Path
) -> None:
    labels = write_labels(tmp_path, LiveFrames(live_dir), by_energy=True)
    draws = {"perturbation": {"speeds": [0.9, 1.0, 1.1], "volume": [0.5, 2]}}
    one = contents(source_of(live_dir, labels, **draws).epoch(0))
    several = source_of(
        live_dir, labels, **draws, prefetch=0, on_the_fly={"threads": 3, "cache_mb": 0}
    )
    ranks = [contents(several.epoch(0, rank=r, size=3)) for r in range(3)]
    assert set.union(*ranks) == one
    parts = source_of(live_dir, labels, **draws, partition_epoch=2)
    assert contents(parts.epoch(0)) | contents(parts.epoch(1)) == one
    assert not contents(parts.epoch(2)) & one
    assert not contents(source_of(live_dir, labels, seed=4, **draws).epoch(0)) & one


def test_an_utterance_too_short_for_its_speed_keeps_its_own(live_dir: Path) -> None:
    live = LiveFrames(live_dir)
    drawn = live.perturbation(PerturbationDraws(speeds=(1.2,)), seed=0, whole_pass=0)
    assert drawn.speed.tolist() == [1.2, 1.2, 1.2, 1.0, 1.2]
    assert [len(f) for f in live.get(range(5), drawn)] == live.lengths_at(
        drawn.speed
    ).tolist()


def test_dev_is_left_alone(tmp_path: Path, live_dir: Path) -> None:
    live = LiveFrames(live_dir)
    labels = write_labels(tmp_path, live, by_energy=True)
    options = DataOptions.model_validate(
        {"sequences": {"type": "utterances"}, "perturbation": {}}
    )
    dev = open_batches(
        live_dir,
        Targets({"pdf": labels}),
        options,
        normalizer=Normalizer(),
        is_training=False,
    )
    for batch in dev.epoch(0):
        for row, i in enumerate(batch.indices.tolist()):
            got = batch.features[row, : batch.lengths[row]].numpy()
            np.testing.assert_array_equal(got, live.frames(i))


def test_speeds_that_cannot_be_are_refused(tmp_path: Path, live_dir: Path) -> None:
    live = LiveFrames(live_dir)
    with pytest.raises(UserError, match="8000 Hz at speed 0.9001 cannot"):
        live.perturbation(PerturbationDraws(speeds=(0.9001,)), seed=0, whole_pass=0)
    with FrameWriter(tmp_path, dim=2, frame_shift=0.01) as writer:
        writer.append("u", "s", "x", np.zeros((5, 2), np.float32))
    options = DataOptions.model_validate({"perturbation": {}})
    source = BatchSource(StoreReader(FrameStore.load(tmp_path)), Targets(), options)
    with pytest.raises(
        UserError, match="data.perturbation is for features that are computed"
    ):
        source.epoch(0)
