"""Mutated frames, labels, transforms and i-vectors."""

import shutil
from pathlib import Path

import numpy as np
from fixtures.made_up_alignments import cut as made_up_cut
from fixtures.made_up_alignments import recording
from fixtures.mutations import check, ivector_model, of_each, write_wave

from latflow.corpus.json_lines import ManifestWriter
from latflow.features.cmvn_options import OnlineCmvn, SpeakerCmvn
from latflow.features.frames import FeatureStore, FrameStore, FrameWriter
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import PasteOptions, StreamOptions
from latflow.features.pasting import paste_features
from latflow.gmm.ivector import (
    IvectorModel,
    append_ivectors,
)
from latflow.gmm.kaldi_ivector import read_ivectors, write_ivectors
from latflow.gmm.model import load_transform
from latflow.gmm.source import SpeakerTransforms
from latflow.kaldi.io import write_matrices
from latflow.options import read_options
from latflow.training.hdf5 import export_hdf, import_hdf
from latflow.training.labels import LabelStore, LabelWriter, load_targets


def write_frames(folder, rng):
    with FrameWriter(folder / "frames", dim=2) as writer:
        for i in range(3):
            frames = rng.normal(size=(4, 2)).astype(np.float32)
            writer.append(f"u{i}", "s", "ONE", frames)


def use_frames(folder):
    store = FrameStore.load(folder / "frames")
    names = (store.utt_ids, store.speakers, store.texts)
    assert all(len(column) == len(store) for column in names)
    for i in range(len(store)):
        float(store.frames(i).sum())
    store.frame_shift, store.num_frames  # noqa: B018


def write_hdf(path, rng):
    folder = path.parent / "of_hdf"
    write_frames(folder, rng)
    with LabelWriter(folder / "labels", 3) as writer:
        for i in range(3):
            writer.append(f"u{i}", np.array([0, 1, 2, 1], np.int32))
    export_hdf(folder / "frames", {"pdf": folder / "labels"}, path)
    shutil.rmtree(folder)


def use_hdf(path):
    out = path.parent
    import_hdf([path], out / "frames", out / "labels")
    FrameStore.load(out / "frames")
    for labels in (out / "labels").glob("*"):  # none where no target is left
        LabelStore.load(labels)


def use_ivectors(folder):
    read_ivectors(folder, 2, features="x").online(np.zeros((12, 2), np.float32))


def write_live(folder, rng):
    audio = folder.parent / "audio"
    audio.mkdir()
    with ManifestWriter(audio / "cuts.jsonl.gz") as writer:
        for name in ("u0", "u1"):
            write_wave(audio / f"{name}.wav", rng)
            held = recording(name, audio / f"{name}.wav", 0.5)
            writer.write(made_up_cut(name, held, "s", "ONE"))
    prepare_live_features(
        audio / "cuts.jsonl.gz",
        folder / "live",
        options=read_options(StreamOptions, {"cmvn": {"type": "none"}}),
        max_skipped_fraction=0,
    )


def use_live(folder):
    live = LiveFrames(folder / "live")
    assert len(live.texts) == len(live.utt_ids) == len(live)
    live.speaker_codes.max()
    for i in range(len(live)):
        live.frames(i)
        live.speaker(i)


def write_labels(folder, rng):
    with LabelWriter(folder / "labels/pdf", 3) as writer:
        for i in range(3):
            writer.append(f"u{i}", np.array([0, 1, -1, 2], np.int32))


def use_labels(folder):
    for store in load_targets(folder / "labels").values():
        for i, _ in enumerate(store.utt_ids):
            store.labels(i)
        if store.num_classes < 1000:  # else much memory is taken
            store.counts()


def write_stored_features(folder, rng):
    with FrameWriter(folder / "features", dim=13, kind=FeatureStore) as writer:
        for i in range(3):
            frames = rng.normal(size=(20, 13)).astype(np.float32)
            writer.append(f"u{i}", f"s{i % 2}", "ONE", frames)


def use_stored_features(folder):
    cmvn = read_options(SpeakerCmvn, {"norm_vars": True})
    compute_cmvn(folder / "features", folder / "out", cmvn=cmvn)
    read_all(folder / "out")


def write_normalized(folder, rng):
    """Write features, and what normalizes them."""
    write_stored_features(folder, rng)
    statistics = np.vstack([np.append(rng.normal(size=13), 9), np.full(14, 20.0)])
    (folder / "training").mkdir()
    write_matrices(folder / "training/cmvn.ark", [("global", statistics)])
    for name, cmvn in (("speaker", SpeakerCmvn()), ("online", OnlineCmvn())):
        compute_cmvn(
            folder / "features",
            folder / name,
            cmvn=cmvn,
            training_dir=folder / "training",
        )


def use_normalized(folder):
    for name in ("speaker", "online"):
        read_all(folder / name)
    cmvn = OnlineCmvn(norm_vars=True)
    training = folder / "training"
    compute_cmvn(folder / "features", folder / "out", cmvn=cmvn, training_dir=training)


def read_all(folder):
    store = FrameStore.load(folder)
    store.block(0, len(store))


def use_transforms(path):
    transforms = SpeakerTransforms.load(path)
    for speaker in transforms.matrices:
        transforms.apply(speaker, np.zeros((2, 2), np.float32))


def write_appended(folder, rng):
    write_frames(folder, rng)
    ivector_model(rng).save(folder / "extractor.npz")
    with FrameWriter(folder / "more", dim=3) as writer:
        for i in range(3):
            writer.append(f"u{i}", "s", "ONE", np.ones((5, 3), np.float32))


def use_appended(folder):
    append_ivectors(folder / "frames", folder / "extractor.npz", folder / "out")
    paste_features(
        [folder / "out", folder / "more"], folder / "pasted",
        options=PasteOptions(features=("a", "b")), max_skipped_fraction=1.0,
    )  # fmt: skip


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "transform": (
        "transform.json",
        lambda p, _: p.write_text(
            '{"type": "chain", "transforms": [{"type": "splice", "left": 1, '
            '"right": 1}, {"type": "deltas", "order": 2, "window": 2}]}'
        ),
        lambda path: load_transform(path.parent),
    ),
    "frames": ("", write_frames, use_frames),
    "HDF5": ("a.hdf", write_hdf, use_hdf),
    "i-vectors": (
        "extractor.npz",
        lambda p, rng: ivector_model(rng).save(p),
        lambda p: IvectorModel.load(p).online(np.zeros((12, 2), np.float32)),
    ),
    "Kaldi's i-vector extractor": (
        "",
        lambda p, rng: write_ivectors(ivector_model(rng), p),
        use_ivectors,
    ),
    "live features": ("", write_live, use_live),
    "labels": ("", write_labels, use_labels),
    "stored features": ("", write_stored_features, use_stored_features),
    "speaker transforms": (
        "trans.ark",
        lambda p, rng: write_matrices(p, [(s, rng.normal(size=(2, 3))) for s in "ab"]),
        use_transforms,
    ),
    "normalized features": ("", write_normalized, use_normalized),
    "frames and i-vectors": ("", write_appended, use_appended),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
