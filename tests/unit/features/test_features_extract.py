"""The feature stages: from cuts to frames, and what they do with bad input."""

import errno
import json
import os
import pickle
import re
import shutil
import sys

import dask
import numpy as np
import pytest
import soundfile
from distributed import LocalCluster
from lhotse import CutSet, MonoCut, MultiCut, Recording, SupervisionSegment
from reference import features as reference

from latflow import parallel
from latflow.errors import UserError
from latflow.features import frames as frames_module
from latflow.features.cmvn import cmvn_statistics
from latflow.features.cmvn_options import CmvnOptions
from latflow.features.extract import extract_features, make_extractor
from latflow.features.frames import FeatureStore, FrameStore
from latflow.features.joining import join_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import FeatureOptions, FrontEndOptions
from latflow.kaldi.io import read_matrices, write_matrices
from latflow.ledger import read_ledger
from latflow.options import read_options

RATE = 8000


@pytest.fixture
def corpus(tmp_path):
    """Six utterances of two speakers, of different lengths, and their cuts."""
    rng = np.random.default_rng(0)
    for i in range(6):
        length = 2000 + 500 * i
        wave = 0.1 * rng.normal(size=length)
        soundfile.write(tmp_path / f"u{i}.flac", wave, RATE, subtype="PCM_16")
    return tmp_path, make_cuts(tmp_path, [f"u{i}" for i in range(6)])


def make_cuts(folder, utt_ids):
    cuts = []
    for i, utt_id in enumerate(utt_ids):
        recording = Recording.from_file(folder / f"{utt_id}.flac")
        supervision = SupervisionSegment(
            utt_id, utt_id, 0.0, recording.duration, text=f"word {i}",
            speaker=f"s{i % 2}",
        )  # fmt: skip
        cuts.append(
            MonoCut(
                utt_id, 0.0, recording.duration, 0, supervisions=[supervision],
                recording=recording,
            )
        )  # fmt: skip
    return cuts


def save(cuts, path):
    CutSet.from_cuts(cuts).to_jsonl(path)
    return path


def run(cuts, folder, *, threads=1, max_skipped_fraction=0.0, **values):
    path = save(cuts, folder / "cuts.jsonl.gz")
    options = FeatureOptions(**{"dither": 0.0, **values})
    extract_features(
        path, folder / "out", options=options, threads=threads,
        max_skipped_fraction=max_skipped_fraction,
    )  # fmt: skip
    return FeatureStore.open(folder / "out")


@pytest.mark.parametrize("snip_edges", [True, False])
def test_stored_features_are_exact(corpus, snip_edges):
    folder, cuts = corpus
    store = run(cuts, folder, snip_edges=snip_edges)
    extractor = make_extractor(FrontEndOptions(snip_edges=snip_edges, dither=0.0), RATE)
    assert store.utt_ids == [cut.id for cut in cuts]
    assert store.texts == [cut.supervisions[0].text for cut in cuts]
    assert store.speakers == [cut.supervisions[0].speaker for cut in cuts]
    for i, cut in enumerate(cuts):
        wanted = extractor.extract(cut.load_audio(), RATE)
        np.testing.assert_array_equal(store.frames(i), wanted)
        np.testing.assert_array_equal(store.statistics[i], cmvn_statistics(wanted))
    assert store.meta["type"] == "latflow-mfcc"
    assert store.meta["sample_rate"] == RATE
    assert store.meta["extraction"]["snip_edges"] is snip_edges
    assert list(read_ledger(folder / "out" / "ledger.jsonl")) == []


def test_number_of_threads_never_changes_a_byte(corpus):
    folder, cuts = corpus
    run(cuts, folder, dither=1.0)
    first = snapshot(folder / "out")
    run(cuts, folder, dither=1.0, threads=3)
    assert snapshot(folder / "out") == first
    assert {"frames.npy", "statistics.npy", "index.npz", "meta.json"} < first.keys()


@pytest.mark.slow
def test_dasks_workers_compute_the_same_bytes(corpus, monkeypatch):
    folder, cuts = corpus
    run(cuts, folder, dither=1.0)
    first = snapshot(folder / "out")
    one = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
    with one as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        monkeypatch.setattr(parallel, "worker_pool", None)  # no threads of this process
        run(cuts, folder, dither=1.0)
    assert snapshot(folder / "out") == first


def test_without_dask_or_its_scheduler_extraction_says_so(corpus, monkeypatch):
    folder, cuts = corpus
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(UserError, match="scheduler tcp://127.0.0.1:1 does not answer"),
    ):
        run(cuts, folder)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match="Dask is not installed - pip install"):
        run(cuts, folder)


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_offsets_and_channels_are_honoured(tmp_path):
    rng = np.random.default_rng(1)
    stereo = 0.1 * rng.normal(size=(16000, 2)).astype(np.float32)
    soundfile.write(tmp_path / "two.wav", stereo, RATE, subtype="FLOAT")
    recording = Recording.from_file(tmp_path / "two.wav")
    cuts = [
        MonoCut("a", 0.25, 0.5, 1, recording=recording),
        MonoCut("b", 1.0, 1.0, 0, recording=recording),
    ]
    made = run(cuts, tmp_path)
    extractor = make_extractor(FrontEndOptions(dither=0.0), RATE)
    for i, part in enumerate((stereo[2000:6000, 1], stereo[8000:, 0])):
        np.testing.assert_array_equal(made.frames(i), extractor.extract(part, RATE))


def test_recordings_are_resampled_to_the_configured_rate(tmp_path):
    t = np.arange(16000) / 16000
    tone = 0.3 * np.sin(2 * np.pi * 440 * t)
    soundfile.write(tmp_path / "high.wav", tone, 16000)
    soundfile.write(tmp_path / "low.wav", tone[::2], 8000)
    cuts = [
        MonoCut(path.stem, 0.0, 1.0, 0, recording=Recording.from_file(path))
        for path in (tmp_path / "high.wav", tmp_path / "low.wav")
    ]
    made = run(cuts, tmp_path, sample_rate=8000, type="fbank")
    high, low = made.get([0, 1])
    assert high.shape == low.shape
    loudest = low.mean(axis=0).argmax()
    assert np.abs(high[5:-5, loudest] - low[5:-5, loudest]).max() < 0.1
    assert made.meta["sample_rate"] == 8000

    with pytest.raises(
        UserError, match=r"low\.wav: low: sample rate 8000 Hz, but others"
    ):
        run(cuts, tmp_path)


def test_rate_too_low_for_the_filters_is_refused(corpus):
    folder, cuts = corpus
    with pytest.raises(UserError, match="half the sample rate"):
        run(cuts, folder, high_freq=7600)
    assert not (folder / "out").exists()


def damage_missing(path):
    path.unlink()


def damage_empty(path):
    path.write_bytes(b"")


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:900])


def damage_scrambled(path):
    raw = bytearray(path.read_bytes())
    raw[300:1500] = bytes(1200)
    path.write_bytes(raw)


def damage_foreign(path):
    path.write_text("this is no audio")


def damage_too_short(path):
    soundfile.write(path, np.zeros(150), RATE)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_empty, "audio file of no bytes"),
        (damage_truncated, "unreadable audio"),
        (damage_scrambled, "unreadable audio"),
        (damage_foreign, "unreadable audio"),
    ],
)
def test_bad_audio_is_in_the_ledger_or_fails(corpus, damage, reason):
    folder, cuts = corpus
    damage(folder / "u2.flac")
    with pytest.raises(UserError, match=rf"^u2: .*u2\.flac: {reason}"):
        run(cuts, folder)
    assert not (folder / "out").exists()
    made = run(cuts, folder, max_skipped_fraction=0.2)
    assert made.utt_ids == ["u0", "u1", "u3", "u4", "u5"]
    (entry,) = read_ledger(folder / "out" / "ledger.jsonl")
    assert entry.utterance == "u2"
    assert re.search(rf"u2\.flac: {reason}", entry.reason)


def test_audio_shorter_than_a_frame_is_skipped(corpus):
    folder, _ = corpus
    damage_too_short(folder / "u2.flac")
    cuts = make_cuts(folder, ["u1", "u2"])
    run(cuts, folder, max_skipped_fraction=0.5)
    (entry,) = read_ledger(folder / "out" / "ledger.jsonl")
    assert "18.8 ms are too short for one frame" in entry.reason
    assert len(run(cuts, folder, snip_edges=False)) == 2


def test_samples_that_are_not_numbers_are_skipped(tmp_path):
    wave = np.zeros(4000, np.float32)
    wave[7] = np.nan
    soundfile.write(tmp_path / "a.wav", wave, RATE, subtype="FLOAT")
    cut = MonoCut("a", 0, 0.5, 0, recording=Recording.from_file(tmp_path / "a.wav"))
    with pytest.raises(UserError, match="samples that are not numbers"):
        run([cut], tmp_path)


def test_missing_audio_stops_at_once(corpus):
    folder, cuts = corpus
    damage_missing(folder / "u2.flac")
    with pytest.raises(UserError, match=r"u2\.flac: u2: audio file is missing"):
        run(cuts, folder, max_skipped_fraction=1.0)
    assert not (folder / "out").exists()


def test_full_disk_leaves_the_old_output(corpus, monkeypatch):
    folder, cuts = corpus
    run(cuts, folder)
    before = snapshot(folder / "out")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(frames_module.FrameWriter, "append", refuse)
        with pytest.raises(UserError, match=r"out: no space left on the disk"):
            run(cuts, folder)
    assert snapshot(folder / "out") == before
    with monkeypatch.context() as patch:
        patch.setattr("latflow.features.normalization.write_matrices", refuse)
        with pytest.raises(UserError, match=r"frames: no space left on the disk"):
            normalize(folder, type="speaker")
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["out"]


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.write_bytes(b"no gzip"), "is not a whole gzip file"),
        (lambda p: save([], p), "holds no utterances"),
    ],
)
def test_bad_manifest_is_refused(tmp_path, write, what):
    path = tmp_path / "cuts.jsonl.gz"
    write(path)
    with pytest.raises(UserError, match=what):
        extract_features(
            path, tmp_path / "out", options=FeatureOptions(), threads=1,
            max_skipped_fraction=0,
        )  # fmt: skip


def test_ids_out_of_order_or_twice_are_refused(corpus):
    folder, cuts = corpus
    for order, what in (((1, 0), "u0: comes after u1"), ((0, 0), "u0: comes twice")):
        path = folder / "cuts.jsonl"
        path.write_text("".join(json.dumps(cuts[i].to_dict()) + "\n" for i in order))
        with pytest.raises(UserError, match=what):
            extract_features(
                path, folder / "out", options=FeatureOptions(), threads=1,
                max_skipped_fraction=0,
            )  # fmt: skip


def test_cut_of_several_channels_is_refused(tmp_path):
    soundfile.write(tmp_path / "two.wav", np.zeros((4000, 2)), RATE)
    recording = Recording.from_file(tmp_path / "two.wav")
    cut = MultiCut("a", 0.0, 0.5, [0, 1], recording=recording)
    with pytest.raises(UserError, match="a: is not a cut of one channel"):
        run([cut], tmp_path)


def normalize(folder, name="frames", training_dir=None, **cmvn):
    compute_cmvn(
        folder / "out",
        folder / name,
        cmvn=read_options(CmvnOptions, cmvn),
        training_dir=training_dir,
    )
    return FrameStore.load(folder / name)


def test_speaker_cmvn_gives_zero_mean_per_speaker(corpus):
    folder, cuts = corpus
    made = run(cuts, folder)
    store = normalize(folder, type="speaker")
    assert store.utt_ids == [cut.id for cut in cuts]
    assert store.texts == [f"word {i}" for i in range(6)]
    assert store.speakers == ["s0", "s1"] * 3
    assert store.frame_shift == 0.01
    statistics = dict(read_matrices(folder / "frames" / "cmvn.ark"))
    assert list(statistics) == ["s0", "s1"]
    for speaker in range(2):
        parts = [store.frames(i) for i in range(speaker, 6, 2)]
        mean = np.concatenate(parts).mean(axis=0)
        np.testing.assert_allclose(mean, 0.0, atol=1e-4)
        assert statistics[f"s{speaker}"][0, -1] == sum(map(len, parts))
    np.testing.assert_allclose(
        store.frames(0), made.frames(0) - statistics["s0"][0, :-1]
        / statistics["s0"][0, -1], atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize(
    "cmvn",
    [{"type": "utterance", "norm_vars": True}, {"type": "global", "norm_vars": True},
     {"type": "speaker", "norm_vars": True}, {"type": "none"},
     {"type": "sliding", "window": 5, "norm_vars": True}],
)  # fmt: skip
def test_kinds_of_cmvn(corpus, cmvn):
    folder, cuts = corpus
    made = run(cuts, folder)
    store = normalize(folder, **cmvn)
    everything = store.block(0, 6)
    match cmvn["type"]:
        case "none":
            np.testing.assert_array_equal(everything, made.block(0, 6))
            assert np.may_share_memory(everything, store["frames"].flat)
        case "sliding":
            assert not np.allclose(everything.mean(axis=0), 0.0, atol=1e-4)
            assert np.abs(everything).max() < 3
        case "utterance":
            for i in range(6):
                np.testing.assert_allclose(store.frames(i).var(axis=0), 1, atol=1e-2)
        case _:
            np.testing.assert_allclose(everything.mean(axis=0), 0.0, atol=1e-4)
            np.testing.assert_allclose(everything.var(axis=0), 1.0, atol=1e-2)
    assert store.meta["cmvn"]["type"] == cmvn["type"]


def test_online_cmvn_begins_with_the_training_set(corpus):
    folder, cuts = corpus
    made = run(cuts, folder)
    training = folder / "training"
    training.mkdir()
    stats = cmvn_statistics(np.ones((5, FeatureOptions().dim), np.float32))
    write_matrices(training / "cmvn.ark", [("global", stats)])
    # of the set itself, and of another
    own = normalize(folder, type="online", window=10, global_frames=5)
    other = normalize(
        folder, "other", training, type="online", window=10, global_frames=5
    )
    raw = made.block(0, 6)
    means = raw.mean(axis=0), np.ones(raw.shape[1])
    for store, name, mean in zip((own, other), ("frames", "other"), means, strict=True):
        first = made.frames(0)[0]
        np.testing.assert_allclose(
            store.frames(0)[0], first - (first + 5 * mean) / 6, rtol=1e-4, atol=1e-4
        )
        copied = dict(read_matrices(folder / name / "cmvn.ark"))["global"]
        np.testing.assert_allclose(copied[0, :-1] / copied[0, -1], mean, rtol=1e-6)
    # far from the beginning, only of the window
    late = made.frames(0)[20 - 9 : 21]
    for store in (own, other):
        np.testing.assert_allclose(
            store.frames(0)[20], late[-1] - late.mean(axis=0), atol=1e-3
        )
    write_matrices(training / "cmvn.ark", [("s0", stats)])
    with pytest.raises(UserError, match=r"cmvn.ark: no statistics of the key global"):
        normalize(folder, "other", training, type="online")


def test_speaker_and_text_may_be_unknown(corpus):
    folder, cuts = corpus
    bare = [MonoCut(c.id, c.start, c.duration, 0, recording=c.recording) for c in cuts]
    run(bare, folder)
    store = normalize(folder, type="speaker")
    assert store.speakers == store.utt_ids
    assert store.texts == [""] * 6


def reference_frames(made, speakers, cmvn):
    """Frames normalized as Kaldi's programs say, an utterance at a time, slowly."""
    raw = [made.frames(i).astype(np.float64) for i in range(len(made))]
    for i, frames in enumerate(raw):
        match cmvn["type"]:
            case "none":
                yield frames
                continue
            case "sliding":
                yield reference.sliding_cmvn(
                    made.frames(i),
                    window=cmvn["window"],
                    min_window=cmvn["min_window"],
                    center=cmvn["center"],
                    norm_vars=cmvn["norm_vars"],
                )
                continue
            case "utterance":
                group = frames
            case "speaker":
                same = [j for j, name in enumerate(speakers) if name == speakers[i]]
                group = np.concatenate([raw[j] for j in same])
            case "global":
                group = np.concatenate(raw)
        scale = group.std(axis=0) if cmvn.get("norm_vars") else 1.0
        yield (frames - group.mean(axis=0)) / scale


SLIDING = {"type": "sliding", "window": 30, "min_window": 8, "norm_vars": True}


@pytest.mark.parametrize(
    "cmvn",
    [
        {"type": "none"}, {"type": "utterance"}, {"type": "speaker"},
        {"type": "global"}, {"type": "utterance", "norm_vars": True},
        {"type": "speaker", "norm_vars": True}, {"type": "global", "norm_vars": True},
        {**SLIDING, "center": True}, {**SLIDING, "center": False},
    ],
)  # fmt: skip
def test_frames_are_normalized_when_read(corpus, cmvn):
    folder, cuts = corpus
    made = run(cuts, folder)
    store = normalize(folder, **cmvn)
    wanted = list(reference_frames(made, store.speakers, cmvn))
    for i, frames in enumerate(wanted):
        np.testing.assert_allclose(store.frames(i), frames, atol=2e-4, rtol=1e-4)
    several = store.block(1, 5)
    np.testing.assert_array_equal(several, np.concatenate(store.get(range(1, 5))))
    assert several.dtype == np.float32
    assert not list((folder / "frames").glob("*.npy"))


@pytest.mark.parametrize(
    "cmvn",
    [{"type": "speaker"}, {"type": "sliding"}, {"type": "online"}, {"type": "none"}],
)
def test_normalized_frames_survive_pickling_and_a_move(corpus, cmvn):
    folder, cuts = corpus
    run(cuts, folder)
    store = normalize(folder, **cmvn)
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.block(0, 6), store.block(0, 6))
    wanted = np.array(store.block(0, 6))
    moved = folder / "elsewhere"
    moved.mkdir()
    for name in ("out", "frames"):
        (folder / name).rename(moved / name)
    np.testing.assert_array_equal(FrameStore.load(moved / "frames").block(0, 6), wanted)


def test_frames_without_their_features_are_refused(corpus):
    folder, cuts = corpus
    with pytest.raises(UserError, match="out: not a readable frame store"):
        normalize(folder, type="none")
    run(cuts, folder)
    normalize(folder, type="speaker")
    run(cuts[:4], folder)
    with pytest.raises(UserError, match="features are others than when it was made"):
        FrameStore.load(folder / "frames")
    shutil.rmtree(folder / "out")
    with pytest.raises(UserError, match="out: not a readable frame store"):
        FrameStore.load(folder / "frames")


def test_what_is_normalized_already_is_not_again(corpus):
    folder, cuts = corpus
    run(cuts, folder)
    normalize(folder, type="none")
    with pytest.raises(UserError, match="its format is latflow-normalized-frames-1"):
        compute_cmvn(folder / "frames", folder / "twice", cmvn=FeatureOptions().cmvn)


def written(folder):
    """Bytes of the files of a folder, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("count", [2, 9])
def test_parts_join_to_the_bytes_of_the_whole(corpus, count):
    """Of nine parts of six utterances some are empty; one utterance is too short."""
    folder, cuts = corpus
    soundfile.write(folder / "u2.flac", np.zeros(40), RATE, subtype="PCM_16")
    cuts = make_cuts(folder, [f"u{i}" for i in range(6)])
    values = {"dither": 1.0}
    limits = {"threads": 1, "max_skipped_fraction": 0.2}
    run(cuts, folder, **values, max_skipped_fraction=0.2)
    whole = written(folder / "out")
    options = FeatureOptions(**values)
    parts = [folder / f"{k}-of-{count}" for k in range(1, count + 1)]
    for part in parts:
        extract_features(
            folder / "cuts.jsonl.gz", part, options=options, part=part.name, **limits
        )
    shutil.rmtree(folder / "out")

    def join(allowed):
        join_features(
            parts, folder / "cuts.jsonl.gz", folder / "out",
            max_skipped_fraction=allowed,
        )  # fmt: skip

    with pytest.raises(UserError, match="skipped 1 of 6"):
        join(0.1)
    assert not (folder / "out").exists()
    join(0.2)
    assert written(folder / "out") == whole

    def of_s0(store):
        groups = np.array(store.speakers) == "s0"
        return store.summed(groups.astype(int), 2)[1]

    joined = FeatureStore.open(folder / "out")
    assert sorted(joined.speaker_names) == ["s0", "s1"]
    in_parts = sum(of_s0(FeatureStore.open(part)) for part in parts)
    np.testing.assert_allclose(of_s0(joined), in_parts, rtol=1e-12)


def test_parts_of_another_set_are_refused(corpus):
    folder, cuts = corpus
    run(cuts[:4], folder)
    options = FeatureOptions(dither=0.0)
    whole = folder / "1-of-1"
    extract_features(
        folder / "cuts.jsonl.gz", whole,
        options=options, part=whole.name, threads=1, max_skipped_fraction=0.0,
    )  # fmt: skip
    save(cuts[:3], folder / "other.jsonl.gz")
    with pytest.raises(UserError, match="have 4 utterances, not 3"):
        join_features(
            [whole], folder / "other.jsonl.gz", folder / "joined",
            max_skipped_fraction=0.0,
        )  # fmt: skip
