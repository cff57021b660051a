"""Aligning with a system that adapts to speakers."""

import json
import shutil

import numpy as np
import pytest
from fixtures.adapted_system import LIMITS, make_systems, system_options, write_frames

from latflow.align.options import AlignSplitOptions
from latflow.decode.joining import join_alignments
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.alignment import align_gmm
from latflow.gmm.apply import adapt_frames
from latflow.gmm.model import GmmSystem
from latflow.gmm.options import AlignAdaptedOptions
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.ledger import read_ledger
from latflow.parts import SetJob


@pytest.fixture(scope="module")
def root(tmp_path_factory, request):
    root = make_systems(tmp_path_factory.mktemp("align"), request.config.rootpath)
    # Other utterances of the same speakers.
    write_frames(root / "other", count=18, seed=8)
    return root


@pytest.fixture(scope="module")
def options(request):
    return system_options(request.config.rootpath)["align"]


def run(root, out, options, *, system="tri3", frames="other", **limits):
    align_gmm(
        SetJob(
            frames_dir=root / frames,
            lang_dir=root / "lang",
            model_dir=root / system,
            out_dir=out,
            **{**LIMITS, **limits},
        ),
        options=options,
        graph=GraphOptions(),
    )
    return dict(read_int_vectors(out / "ali.ark"))


def statistics(folder):
    return json.loads((folder / "statistics.json").read_text())


def test_transforms_are_written_beside_the_alignments(root, options, tmp_path):
    out = tmp_path / "tri3" / "other"
    found = run(root, out, options)
    assert sorted(p.name for p in out.iterdir()) == [
        "ali.ark",
        "ledger.jsonl",
        "log_likes",
        "statistics.json",
        "trans.ark",
    ]
    store = FrameStore.load(root / "other")
    assert {u: len(ids) for u, ids in found.items()} == {
        u: len(store.frames(i)) for i, u in enumerate(store.utt_ids)
    }
    matrices = dict(read_matrices(out / "trans.ark"))
    assert list(matrices) == ["s0", "s1", "s2"]
    trained = dict(read_matrices(root / "tri3/trans.ark"))
    # Of the same speakers, so that they are about those of training.
    for speaker, matrix in matrices.items():
        np.testing.assert_allclose(matrix[:2, :2], trained[speaker][:2, :2], atol=0.25)
    adaptation = statistics(out)["adaptation"]
    assert (adaptation["num_speakers"], adaptation["num_unadapted"]) == (3, 0)
    assert adaptation["gain_per_frame"] > 0.1
    ids = np.concatenate(list(found.values()))
    transitions = GmmSystem.load(root / "tri3").model.transitions
    silence = np.isin(transitions.phone[ids], [1, 2, 3, 4, 5])
    assert adaptation["num_frames"] == pytest.approx((~silence).sum(), rel=0.05)


def test_adapted_frames_fit_better_than_in_the_first_pass(root, options, tmp_path):
    """Without a transform (too few frames) the model meets unadapted features."""
    few = AlignAdaptedOptions(fmllr={"min_count": 1e9})
    run(root, tmp_path / "adapted/other", options)
    run(root, tmp_path / "unadapted/other", few)
    adapted, unadapted = (
        statistics(tmp_path / name / "other") for name in ("adapted", "unadapted")
    )
    assert adapted["log_like_per_frame"] > unadapted["log_like_per_frame"] + 0.1
    assert unadapted["adaptation"]["num_unadapted"] == 3
    for matrix in dict(read_matrices(tmp_path / "unadapted/other/trans.ark")).values():
        np.testing.assert_array_equal(matrix, np.eye(4, 5))


def test_plain_systems_write_no_transforms(root, options, tmp_path):
    out = tmp_path / "mono" / "other"
    run(root, out, options, system="mono")
    assert not (out / "trans.ark").exists()
    assert "adaptation" not in statistics(out)


def contents(folder):
    """Bytes of the files of an alignment, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("system", ["tri3", "mono"])
@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_an_alignment_join_to_the_bytes_of_the_whole(
    root, options, tmp_path, system, count
):
    """Speakers take turns, one of four parts has none of three; some fail or retry."""
    with FrameWriter(tmp_path / "bad", dim=2) as writer:
        store = FrameStore.load(root / "other")
        for i, utterance in enumerate(store.utt_ids):
            text = "A A A A A A A A A A A A" if i in {0, 5} else store.texts[i]
            writer.append(utterance, store.speakers[i], text, store.frames(i)[:80])
    for path in root.iterdir():
        (tmp_path / path.name).symlink_to(path)
    narrow = options.replace(beam=2.0, rescue_memory_mb=0)
    limits = {"frames": "bad", "system": system, "max_skipped_fraction": 0.5}
    whole, joined = tmp_path / "whole", tmp_path / "joined"
    run(tmp_path, whole, narrow, **limits)
    entries = list(read_ledger(whole / "ledger.jsonl"))
    assert {entry.action for entry in entries} == {"skipped", "retried"}
    parts = [tmp_path / f"{k}-of-{count}" for k in range(1, count + 1)]
    for part in parts:
        run(tmp_path, part, narrow, part=part.name, **limits)

    def join(out, allowed):
        join_alignments(
            parts, root / "lang", root / system, out,
            options=narrow.part(AlignSplitOptions), max_skipped_fraction=allowed,
            transforms=out / "trans.ark" if system == "tri3" else None,
        )  # fmt: skip

    join(joined, 0.5)
    assert contents(joined) == contents(whole)
    failed = sum(entry.action == "skipped" for entry in entries)
    with pytest.raises(UserError, match=f"align_{system} skipped {failed} of 18"):
        join(tmp_path / "strict", 0.02)
    assert not (tmp_path / "strict/ali.ark").exists()


def test_threads_do_not_change_a_bit(root, options, tmp_path):
    one = run(root, tmp_path / "a/tri3", options)
    two = run(root, tmp_path / "b/tri3", options, threads=3)
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[u], two[u]) for u in one)
    assert (tmp_path / "a/tri3/trans.ark").read_bytes() == (
        tmp_path / "b/tri3/trans.ark"
    ).read_bytes()


def test_utterances_that_cannot_be_aligned_do_not_adapt(root, options, tmp_path):
    """They are in the ledger once, and their speakers live from the others."""
    store = FrameStore.load(root / "other")
    frames = {u: np.array(store.frames(i)) for i, u in enumerate(store.utt_ids)}
    frames["u03"] = frames["u03"][:5]
    frames["u04"][7] = np.nan
    bad = tmp_path / "bad"
    with FrameWriter(bad, dim=2) as writer:
        for i, utterance in enumerate(store.utt_ids):
            text, speaker = store.texts[i], store.speakers[i]
            writer.append(utterance, speaker, text, frames[utterance])
    out = tmp_path / "tri3" / "bad"
    align_gmm(
        SetJob(
            frames_dir=bad,
            lang_dir=root / "lang",
            model_dir=root / "tri3",
            out_dir=out,
            threads=2,
            max_skipped_fraction=0.2,
        ),
        options=options,
        graph=GraphOptions(),
    )
    skipped = [e.utterance for e in read_ledger(out / "ledger.jsonl")]
    assert skipped == ["u03", "u04"]
    for matrix in dict(read_matrices(out / "trans.ark")).values():
        assert np.isfinite(matrix).all()
    with pytest.raises(UserError, match="skipped 2 of 18"):
        align_gmm(
            SetJob(
                frames_dir=bad,
                lang_dir=root / "lang",
                model_dir=root / "tri3",
                out_dir=tmp_path / "strict",
                **LIMITS,
            ),
            options=options,
            graph=GraphOptions(),
        )
    assert not (tmp_path / "strict" / "ali.ark").exists()


def test_features_are_those_of_the_systems_folder(root, options, tmp_path):
    """The configuration's transform serves training; a system brings its own."""
    shutil.copytree(root / "mono", tmp_path / "system")
    (tmp_path / "system/transform.json").write_text('{"type": "none"}')
    (tmp_path / "lang").symlink_to(root / "lang")
    (tmp_path / "other").symlink_to(root / "other")
    with pytest.raises(UserError, match="dimension 2, but the model is of 4"):
        run(tmp_path, tmp_path / "c/mono", options, system="system")
    assert not (tmp_path / "c/mono/ali.ark").exists()


def test_stored_features_are_those_that_the_model_sees(root, tmp_path):
    system = GmmSystem.load(root / "tri3")
    adapt_frames(
        root / "frames",
        root / "tri3",
        root / "tri3/trans.ark",
        tmp_path / "f",
        threads=2,
    )
    plain, adapted = FrameStore.load(root / "frames"), FrameStore.load(tmp_path / "f")
    transforms = SpeakerTransforms.load(root / "tri3/trans.ark")
    assert adapted.utt_ids == plain.utt_ids
    assert adapted.texts == plain.texts
    for i in range(len(plain)):
        seen = transforms.apply(plain.speakers[i], system.transform(plain.frames(i)))
        assert np.array_equal(adapted.frames(i), seen)


def test_features_of_an_adapted_system_need_transforms(root, tmp_path):
    with pytest.raises(UserError, match="no transforms are given"):
        adapt_frames(root / "frames", root / "tri3", None, tmp_path / "f", threads=1)
