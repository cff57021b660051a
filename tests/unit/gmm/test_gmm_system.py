"""The folder of a system and the transforms of speakers: files, products, mistakes."""

import shutil

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.transform import Chain, Deltas, Linear, Splice
from latflow.gmm.model import GmmSystem, load_transform, save_transform
from latflow.gmm.source import FrameSource, SpeakerTransforms


def affine(dim, seed):
    return np.random.default_rng(seed).normal(size=(dim, dim + 1)).astype(np.float32)


def test_two_rounds_of_transforms_are_their_product():
    first = SpeakerTransforms({"a": affine(3, 1), "b": affine(3, 2)})
    second = SpeakerTransforms({"b": affine(3, 3), "c": affine(3, 4)})
    both = second.after(first)
    frames = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert sorted(both.matrices) == ["a", "b", "c"]
    for speaker in ("a", "b", "c", "unknown"):
        wanted = second.apply(speaker, first.apply(speaker, frames))
        np.testing.assert_allclose(
            both.apply(speaker, frames), wanted, rtol=1e-4, atol=1e-5
        )


def test_speaker_transforms_come_back_from_their_file(tmp_path):
    transforms = SpeakerTransforms({"b": affine(4, 1), "a": affine(4, 2)})
    transforms.save(tmp_path / "trans.ark")
    again = SpeakerTransforms.load(tmp_path / "trans.ark")
    assert list(again.matrices) == ["a", "b"]
    for speaker, matrix in again.matrices.items():
        np.testing.assert_array_equal(matrix, transforms.matrices[speaker])


@pytest.mark.parametrize("shapes", [[(3, 3)], [(3, 4), (4, 5)]])
def test_speaker_transforms_of_wrong_sizes_are_refused(shapes):
    with pytest.raises(UserError, match=r"D x \(D \+ 1\)"):
        SpeakerTransforms({str(k): np.ones(shape) for k, shape in enumerate(shapes)})


def test_a_source_adapts_each_utterance_to_its_speaker(tmp_path):
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path / "frames", dim=3) as writer:
        for k, speaker in enumerate(["s", "t", "s", "u"]):
            frames = rng.normal(size=(4 + k, 3)).astype(np.float32)
            writer.append(f"u{k}", speaker, "text", frames)
    store = FrameStore.load(tmp_path / "frames")
    transforms = SpeakerTransforms({"s": affine(6, 1), "t": affine(6, 2)})
    plain = FrameSource(store, Deltas(1), np.array([0, 2, 3]))
    adapted = plain.with_speaker_transforms(transforms)
    assert [adapted.speaker(u) for u in range(3)] == ["s", "s", "u"]
    for u in range(3):
        wanted = transforms.apply(adapted.speaker(u), plain.frames(u))
        np.testing.assert_allclose(adapted.frames(u), wanted, rtol=1e-6)


def test_the_matrix_of_a_transform_is_kaldis_final_mat(tmp_path):
    transform = Chain([Splice(3, 3), Linear(affine(21, 1)[:5, :21])])
    save_transform(tmp_path, transform)
    frames = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    np.testing.assert_array_equal(load_transform(tmp_path)(frames), transform(frames))
    assert (tmp_path / "final.mat").read_bytes()[:5] == b"\0BFM "
    (tmp_path / "final.mat").unlink()
    with pytest.raises(UserError, match="final.mat"):
        load_transform(tmp_path)


def test_files_of_different_trainings_do_not_make_a_system(tmp_path, golden):
    for system, name in (("tri1", "final.mdl"), ("mono", "tree")):
        shutil.copy(golden / "gmm" / system / name, tmp_path / name)
    save_transform(tmp_path, Deltas())
    with pytest.raises(UserError, match="pdfs in final.mdl, but"):
        GmmSystem.load(tmp_path)


def test_an_adapted_system_has_a_model_for_unadapted_features(tmp_path, golden):
    for name in ("final.mdl", "tree", "final.alimdl"):
        shutil.copy(golden / "gmm" / "tri3b" / name, tmp_path / name)
    save_transform(tmp_path, Deltas())
    assert GmmSystem.load(tmp_path).is_speaker_adapted
    (tmp_path / "final.alimdl").unlink()
    system = GmmSystem.load(tmp_path)
    assert not system.is_speaker_adapted
    assert system.alignment_model is system.model
