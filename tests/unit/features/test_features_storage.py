"""Export of features to Lhotse's storages."""

import shutil
from collections import namedtuple

import lhotse
import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.cmvn_options import SpeakerCmvn
from latflow.features.extract import extract_features
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.normalization import compute_cmvn
from latflow.features.options import ExtractionOptions
from latflow.features.storage import STORAGES, export_features

RATE = 8000


@pytest.fixture
def features(tmp_path):
    """Features of four cuts of a recording of 2 s, of one utterance too short."""
    wave = 0.1 * np.random.default_rng(1).normal(size=2 * RATE)
    soundfile.write(tmp_path / "a.flac", wave, RATE, subtype="PCM_16")
    recording = Recording.from_file(tmp_path / "a.flac")
    places = {
        "u/0": (0.0, 0.5),
        "u1": (0.5, 0.001),
        "u2": (0.25, 0.7),
        "u3": (1.0, 1.0),
    }
    cuts = []
    for name, (start, duration) in places.items():
        said = SupervisionSegment(name, "a", 0.0, duration, text="a b", speaker="s")
        cut = MonoCut(
            name, start, duration, 0, recording=recording, supervisions=[said]
        )
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_jsonl(tmp_path / "cuts.jsonl.gz")
    return tmp_path


def extract(folder, **options):
    extract_features(
        folder / "cuts.jsonl.gz", folder / "features", threads=1,
        options=ExtractionOptions(dither=0.0, **options), max_skipped_fraction=0.5,
    )  # fmt: skip
    return FrameStore.load(folder / "features")


def exported(folder, **how):
    out = folder / "out"
    export_features(folder / "features", folder / "cuts.jsonl.gz", out, **how)
    return CutSet.from_jsonl(out / "cuts.jsonl.gz")


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("snip_edges", [True, False])
def test_each_storage_gives_what_lhotse_takes_for_valid(features, storage, snip_edges):
    store = extract(features, snip_edges=snip_edges)
    cuts = exported(features, storage=storage)
    assert list(cuts.ids) == store.utt_ids == ["u/0", "u2", "u3"]
    lhotse.validate(cuts, read_data=True)
    tolerance = 1 / 32 if "lilcom" in storage else 0
    for cut in cuts:
        wanted = store.frames(store.position(cut.id))
        np.testing.assert_allclose(cut.load_features(), wanted, atol=tolerance)
        np.testing.assert_allclose(cut.features.load(), wanted, atol=tolerance)
        assert cut.features.storage_type == storage
        assert cut.supervisions[0].text == "a b"
        covered = len(wanted) / 100
        assert cut.duration == pytest.approx(covered if snip_edges else cut.duration)
    part = cuts["u3"].truncate(offset=0.1, duration=0.1).load_features()
    wanted = store.frames(2)[10 : 10 + len(part)]
    np.testing.assert_allclose(part, wanted, atol=tolerance)


def test_samples_are_of_the_rate_of_the_features(features):
    extract(features, sample_rate=4000, num_mel_bins=15, high_freq=1900)
    (first, *_) = exported(features)
    assert first.sampling_rate == first.features.sampling_rate == 4000


def test_normalized_features_are_exported_too(features):
    extract(features)
    compute_cmvn(features / "features", features / "frames", cmvn=SpeakerCmvn())
    cuts, out = features / "cuts.jsonl.gz", features / "out"
    export_features(features / "frames", cuts, out)
    made = CutSet.from_file(out / "cuts.jsonl.gz")
    found = np.concatenate([cut.load_features() for cut in made])
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-4)


@pytest.mark.parametrize("storage", ["numpy_files", "lilcom_files"])
def test_features_may_lie_at_a_url(features, storage, monkeypatch):
    store = extract(features)
    # smart_open takes file://store/x for a path from here
    monkeypatch.chdir(features)
    place = features / "store/x" / str(features / "out/storage").lstrip("/")
    place.mkdir(parents=True)
    cuts = exported(features, storage=storage, url="file://store/x/")
    for cut in cuts:
        wanted = store.frames(store.position(cut.id))
        np.testing.assert_allclose(cut.load_features(), wanted, atol=1 / 32)
        assert cut.features.storage_path.startswith("file://store/x/")
    assert len(list(place.iterdir())) == 3
    assert not list((features / "out/storage").iterdir())
    with pytest.raises(UserError, match="nosuch://b/.*: features cannot be stored"):
        exported(features, storage=storage, url="nosuch://b")
    with pytest.raises(UserError, match="numpy_hdf5 cannot lie there"):
        exported(features, url="s3://bucket/x")


@pytest.fixture
def s3(monkeypatch):
    """A client of a server on this machine that speaks S3."""
    moto = pytest.importorskip("moto.server", reason="moto[server], S3 on this machine")
    boto3 = pytest.importorskip("boto3", reason="the extra s3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield boto3.client("s3")
    server.stop()


@pytest.mark.parametrize("storage", ["numpy_files", "lilcom_files"])
def test_features_may_lie_in_a_bucket(features, storage, s3, monkeypatch):
    store = extract(features)
    bucket = storage.replace("_", "-")
    s3.create_bucket(Bucket=bucket)
    for cut in exported(features, storage=storage, url=f"s3://{bucket}/x/"):
        wanted = store.frames(store.position(cut.id))
        tolerance = 1 / 32 if "lilcom" in storage else 0
        np.testing.assert_allclose(cut.load_features(), wanted, atol=tolerance)
        assert cut.features.storage_path.startswith(f"s3://{bucket}/x/")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 3
    with pytest.raises(UserError, match="s3://none/.*: features cannot be stored"):
        exported(features, storage=storage, url="s3://none")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UserError, match="s3://.*: features cannot be stored"):
        exported(features, storage=storage, url=f"s3://{bucket}")


def test_what_cannot_be_exported_is_refused(features, monkeypatch):
    store = extract(features)
    with pytest.raises(UserError, match="no 'kaldiio' - choose from: numpy_hdf5"):
        exported(features, storage="kaldiio")
    CutSet.from_file(features / "cuts.jsonl.gz").subset(first=2).to_file(
        features / "two.jsonl.gz"
    )
    with pytest.raises(UserError, match="1 of 3 utterances are among the cuts"):
        export_features(
            features / "features", features / "two.jsonl.gz", features / "out"
        )
    with FrameWriter(features / "made", dim=store.dim) as writer:
        writer.append("u2", "s", "", store.frames(1))
    with pytest.raises(UserError, match="does not name the extractor of its features"):
        export_features(features / "made", features / "cuts.jsonl.gz", features / "out")
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 5000, 5000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(UserError, match=r"out: no space left on the disk"):
            exported(features)
    assert not (features / "out").exists()
    extract(features, type="waveform")
    with pytest.raises(UserError, match="lilcom_files would round samples to 1/32"):
        exported(features, storage="lilcom_files")


def test_relative_folders_give_relative_manifests(features, monkeypatch):
    extract(features)
    monkeypatch.chdir(features)
    told = ["export-features", "features", "cuts.jsonl.gz", "out"]
    assert main(told) == 0
    cut = next(iter(CutSet.from_jsonl_lazy("out/cuts.jsonl.gz")))
    assert cut.features.storage_path == "out/storage/features.h5"
    assert cut.load_features().shape == (cut.features.num_frames, 13)


def test_a_url_of_a_file_names_a_folder_from_the_root(features):
    store = extract(features)
    url = f"file://{features}/far%20away"
    for cut in exported(features, storage="numpy_files", url=url):
        wanted = store.frames(store.position(cut.id))
        np.testing.assert_array_equal(cut.load_features(), wanted)
    assert len(list((features / "far away").rglob("*.npy"))) == 3
