"""The feature stages: from cuts to frames, and what they do with bad input."""

import errno
import json
import os
import re
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import dask
import numpy as np
import pytest
import soundfile
from distributed import LocalCluster
from lhotse import CutSet, MonoCut, MultiCut, Recording, SupervisionSegment
from lhotse.qa import validate_features
from pydantic import ValidationError

from latflow import parallel
from latflow.errors import UserError
from latflow.features import frames as frames_module
from latflow.features.cmvn import (
    cmvn_statistics,
    normalize_features,
    read_features,
)
from latflow.features.extract import extract_features, make_extractor
from latflow.features.frames import FrameStore
from latflow.features.joining import join_features
from latflow.features.options import (
    CmvnOptions,
    FeatureOptions,
    FrontEndOptions,
    NoCmvn,
    SpeakerCmvn,
)
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
    return list(CutSet.from_jsonl_lazy(folder / "out" / "cuts.jsonl.gz"))


@pytest.mark.parametrize("storage", ["numpy_hdf5", "numpy_files"])
@pytest.mark.parametrize("snip_edges", [True, False])
def test_stored_features_are_exact(corpus, storage, snip_edges):
    folder, cuts = corpus
    made = run(cuts, folder, storage=storage, snip_edges=snip_edges)
    extractor = make_extractor(FrontEndOptions(snip_edges=snip_edges, dither=0.0), RATE)
    assert [cut.id for cut in made] == [cut.id for cut in cuts]
    for cut, source in zip(made, cuts, strict=True):
        assert cut.supervisions == source.supervisions
        wanted = extractor.extract(source.load_audio(), RATE)
        np.testing.assert_array_equal(cut.features.load(), wanted)
        np.testing.assert_array_equal(cut.load_features(), wanted)
        validate_features(cut.features, feats_data=wanted)
        assert cut.features.storage_path.startswith(str(folder / "out" / "storage"))
    assert list(read_ledger(folder / "out" / "ledger.jsonl")) == []


@pytest.mark.parametrize(
    "storage", ["lilcom_chunky", "lilcom_files", "lilcom_hdf5", "chunked_lilcom_hdf5"]
)
def test_lossy_storage_is_close(corpus, storage):
    folder, cuts = corpus
    exact = [cut.load_features() for cut in run(cuts, folder)]
    lossy = run(cuts, folder, storage=storage)
    assert {cut.features.storage_type for cut in lossy} == {storage}
    for wanted, cut in zip(exact, lossy, strict=True):
        np.testing.assert_allclose(cut.load_features(), wanted, atol=1 / 32)


@pytest.mark.parametrize("storage", ["manifest_numpy", "manifest_lilcom"])
def test_features_may_lie_in_the_manifest(corpus, storage, tmp_path):
    folder, cuts = corpus
    exact = [cut.load_features() for cut in run(cuts, folder)]
    manifest = folder / "out" / "cuts.jsonl.gz"
    others = manifest.stat().st_size
    made = run(cuts, folder, storage=storage)
    assert not list((folder / "out" / "storage").iterdir())
    tolerance = 1 / 32 if storage == "manifest_lilcom" else 0
    for wanted, cut in zip(exact, made, strict=True):
        np.testing.assert_allclose(cut.load_features(), wanted, atol=tolerance)
        assert (cut.features.storage_type, cut.features.storage_path) == (storage, "")
        part = cut.truncate(offset=0.1, duration=0.1).load_features()
        np.testing.assert_allclose(part, wanted[10:20], atol=tolerance)
    numbers = sum(wanted.size for wanted in exact)
    size = (manifest.stat().st_size - others) / numbers
    assert 0.5 < size < (1.5 if storage == "manifest_lilcom" else 4.5)
    normalize_features(manifest, tmp_path / "frames", cmvn=NoCmvn())
    store = FrameStore.load(tmp_path / "frames")
    np.testing.assert_array_equal(store.frames(0), made[0].load_features())
    damaged = CutSet.from_cuts([made[0]])
    damaged[0].features.storage_key = "no base64"
    with pytest.raises(UserError, match=r"cuts.jsonl.gz: .*features cannot be read"):
        list(read_features(save(damaged, tmp_path / "cuts.jsonl.gz")))
    with pytest.raises(ValidationError, match="manifest_numpy cannot lie there"):
        FeatureOptions(storage="manifest_numpy", storage_url="s3://x/y")


@pytest.mark.parametrize("storage", ["numpy_files", "lilcom_files"])
def test_features_may_lie_at_a_url(corpus, storage, tmp_path, monkeypatch):
    folder, cuts = corpus
    exact = [cut.load_features() for cut in run(cuts, folder)]
    # smart_open takes file://store/x for a path from here
    monkeypatch.chdir(tmp_path)
    own = folder / "out" / "storage"
    place = tmp_path / "store/x" / str(own).lstrip("/")
    place.mkdir(parents=True)
    made = run(cuts, folder, storage=storage, storage_url="file://store/x/")
    for wanted, cut in zip(exact, made, strict=True):
        np.testing.assert_allclose(cut.load_features(), wanted, atol=1 / 32)
        assert cut.features.storage_path.startswith("file://store/x/")
    assert len(list(place.iterdir())) == len(cuts)
    assert not list(own.iterdir())
    with pytest.raises(UserError, match="nosuch://b/.*: features cannot be stored"):
        run(cuts, folder, storage=storage, storage_url="nosuch://b")
    with pytest.raises(ValidationError, match="numpy_hdf5 cannot lie there"):
        FeatureOptions(storage_url="s3://bucket/x")


@pytest.mark.parametrize("storage", ["numpy_hdf5", "numpy_files", "lilcom_chunky"])
def test_number_of_threads_never_changes_a_byte(corpus, storage):
    folder, cuts = corpus
    run(cuts, folder, storage=storage, dither=1.0)
    first = snapshot(folder / "out")
    run(cuts, folder, storage=storage, dither=1.0, threads=3)
    assert snapshot(folder / "out") == first
    assert any(name.startswith("storage/") for name in first)


@pytest.mark.slow
def test_dasks_workers_compute_the_same_bytes(corpus, monkeypatch):
    folder, cuts = corpus
    run(cuts, folder, storage="numpy_hdf5", dither=1.0)
    first = snapshot(folder / "out")
    one = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
    with one as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        monkeypatch.setattr(parallel, "worker_pool", None)  # no threads of this process
        run(cuts, folder, storage="numpy_hdf5", dither=1.0)
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
    for cut, part in zip(made, (stereo[2000:6000, 1], stereo[8000:, 0]), strict=True):
        np.testing.assert_array_equal(
            cut.features.load(), extractor.extract(part, RATE)
        )
        np.testing.assert_array_equal(cut.load_features(), cut.features.load())
        validate_features(cut.features)


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
    high, low = (cut.load_features() for cut in made)
    assert high.shape == low.shape
    loudest = low.mean(axis=0).argmax()
    assert np.abs(high[5:-5, loudest] - low[5:-5, loudest]).max() < 0.1
    assert [cut.sampling_rate for cut in made] == [8000, 8000]

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
    assert [cut.id for cut in made] == ["u0", "u1", "u3", "u4", "u5"]
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
    run(cuts, folder, storage="lilcom_chunky")
    before = snapshot(folder / "out")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("lhotse.features.io.LilcomChunkyWriter.write", refuse)
        with pytest.raises(UserError, match=r"out: no space left on the disk"):
            run(cuts, folder, storage="lilcom_chunky")
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 5000, 5000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(UserError, match=r"out: no space left on the disk"):
            run(cuts, folder)
    assert snapshot(folder / "out") == before
    with monkeypatch.context() as patch:
        patch.setattr(frames_module.FrameWriter, "append", refuse)
        with pytest.raises(UserError, match=r"frames: no space left on the disk"):
            normalize_features(
                folder / "out/cuts.jsonl.gz", folder / "frames", cmvn=SpeakerCmvn()
            )
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
    normalize_features(
        folder / "out/cuts.jsonl.gz",
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
        store.frames(0), made[0].load_features() - statistics["s0"][0, :-1]
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
            raw = np.concatenate([cut.load_features() for cut in made])
            np.testing.assert_array_equal(everything, raw)
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
    raw = np.concatenate([cut.load_features() for cut in made])
    means = raw.mean(axis=0), np.ones(raw.shape[1])
    for store, name, mean in zip((own, other), ("frames", "other"), means, strict=True):
        first = made[0].load_features()[0]
        np.testing.assert_allclose(
            store.frames(0)[0], first - (first + 5 * mean) / 6, rtol=1e-4, atol=1e-4
        )
        copied = dict(read_matrices(folder / name / "cmvn.ark"))["global"]
        np.testing.assert_allclose(copied[0, :-1] / copied[0, -1], mean, rtol=1e-6)
    # far from the beginning, only of the window
    late = made[0].load_features()[20 - 9 : 21]
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


def test_cuts_without_readable_features_are_refused(corpus):
    folder, cuts = corpus
    (folder / "out").mkdir()
    save(cuts, folder / "out" / "cuts.jsonl.gz")
    with pytest.raises(UserError, match="u0: has no features"):
        normalize(folder, type="none")
    run(cuts, folder)
    shutil.rmtree(folder / "out" / "storage")
    with pytest.raises(UserError, match=r"storage/features\.h5: u0: stored features"):
        normalize(folder, type="none")
    assert not (folder / "frames").exists()


def test_relative_output_folder_gives_relative_manifests(corpus, monkeypatch):
    folder, cuts = corpus
    monkeypatch.chdir(folder)
    save(cuts, Path("cuts.jsonl.gz"))
    extract_features(
        "cuts.jsonl.gz",
        "out",
        options=FeatureOptions(),
        threads=1,
        max_skipped_fraction=0,
    )
    cut = next(iter(CutSet.from_jsonl_lazy("out/cuts.jsonl.gz")))
    assert cut.features.storage_path == "out/storage/features.h5"
    assert cut.load_features().shape == (cut.features.num_frames, 13)


def written(folder):
    """Bytes of the files of a folder, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "storage",
    ["lilcom_chunky", "lilcom_files", "numpy_hdf5", "manifest_lilcom"],
)
@pytest.mark.parametrize("count", [2, 9])
def test_parts_join_to_the_bytes_of_the_whole(corpus, storage, count):
    """Of nine parts of six utterances some are empty; one utterance is too short."""
    folder, cuts = corpus
    soundfile.write(folder / "u2.flac", np.zeros(40), RATE, subtype="PCM_16")
    cuts = make_cuts(folder, [f"u{i}" for i in range(6)])
    values = {"storage": storage, "dither": 1.0}
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
            options=options, max_skipped_fraction=allowed,
        )  # fmt: skip

    with pytest.raises(UserError, match="skipped 1 of 6"):
        join(0.1)
    assert not (folder / "out").exists()
    join(0.2)
    assert written(folder / "out") == whole


def test_parts_of_another_set_are_refused(corpus):
    folder, cuts = corpus
    run(cuts[:4], folder)
    options = FeatureOptions(dither=0.0)
    whole = folder / "1-of-1"
    extract_features(
        folder / "cuts.jsonl.gz", whole,
        options=options, part=whole.name, threads=1, max_skipped_fraction=0.0,
    )  # fmt: skip
    save(cuts[1:], folder / "other.jsonl.gz")
    with pytest.raises(UserError, match="have u0 next, not u1"):
        join_features(
            [whole], folder / "other.jsonl.gz", folder / "joined",
            options=options, max_skipped_fraction=0.0,
        )  # fmt: skip
