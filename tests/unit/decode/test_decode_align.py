"""Alignment of a split with a network, and a network that is trained on it."""

import json

import numpy as np
import pytest
import yaml
from fixtures.sequence_system import make_system
from fixtures.training_task import data_options, training_options

from latflow.align.aligner import Aligner
from latflow.align.graphs import TrainingGraphs
from latflow.align.options import AlignSplitOptions
from latflow.decode.align import align_network
from latflow.decode.joining import join_alignments
from latflow.decode.network_scorer import NetworkScorer
from latflow.decode.options import AlignNetworkOptions, NetworkScoreOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors
from latflow.ledger import read_ledger
from latflow.nnet.model_dir import load_model
from latflow.parts import SetJob
from latflow.training.options import CeRunOptions
from latflow.training.train import NetworkJob, train_network

SCORES = NetworkScoreOptions(prior_scale=0.0, device="cpu")
OPTIONS = AlignNetworkOptions(acoustic_scale=0.2, scores=SCORES)


@pytest.fixture(scope="module")
def system(tmp_path_factory, repository):
    return make_system(tmp_path_factory.mktemp("align"), repository, count=8, seed=3)


def align(system, out, frames="frames", options=OPTIONS, **limits):
    limits = {"threads": 1, "max_skipped_fraction": 0.0, **limits}
    align_network(
        SetJob(
            frames_dir=system.root / frames,
            lang_dir=system.root / "lang",
            model_dir=system.root / "seed",
            out_dir=out,
            **limits,
        ),
        options=options,
        graph=GraphOptions(),
    )
    return dict(read_int_vectors(out / "ali.ark"))


def test_alignments_are_the_best_paths_of_the_networks_scores(system, tmp_path):
    found = align(system, tmp_path / "seed/train")
    threaded = align(system, tmp_path / "seed/again", threads=3)
    store = FrameStore.load(system.root / "frames")
    scorer = NetworkScorer.load(store, system.root / "seed", SCORES)
    graphs = TrainingGraphs.load(system.files.training_graphs)
    aligner = Aligner(system.model, OPTIONS, GraphOptions())
    assert list(found) == store.utt_ids
    for u, utterance in enumerate(store.utt_ids):
        graph = graphs.get(system.lang.words_to_ids(store.texts[u]))
        wanted = aligner.align(graph, *scorer.log_likes(u)).transition_ids
        np.testing.assert_array_equal(found[utterance], wanted)
        np.testing.assert_array_equal(found[utterance], threaded[utterance])
    statistics = json.loads((tmp_path / "seed/train/statistics.json").read_text())
    assert statistics["num_aligned"] == 8
    assert statistics["num_frames"] == store.num_frames
    assert statistics["log_like_per_frame"] < 0
    assert statistics["phones"]


def test_parts_of_an_alignment_join_to_the_bytes_of_the_whole(system, tmp_path):
    align(system, tmp_path / "whole")
    parts = [tmp_path / f"{k}-of-3" for k in (1, 2, 3)]
    for part in parts:
        align(system, part, part=part.name)
    join_alignments(
        parts, system.root / "lang", system.root / "seed", tmp_path / "joined",
        options=OPTIONS.part(AlignSplitOptions), max_skipped_fraction=0.0,
    )  # fmt: skip
    files = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        joined = tmp_path / "joined" / path.relative_to(tmp_path / "whole")
        assert joined.read_bytes() == path.read_bytes(), path.name


def test_what_cannot_be_aligned_is_in_the_ledger(system, tmp_path):
    store = FrameStore.load(system.root / "frames")
    with FrameWriter(tmp_path / "frames", dim=store.dim) as writer:
        for u, utterance in enumerate(store.utt_ids):
            writer.append(utterance, "s", store.texts[u], store.frames(u))
        writer.append("v0", "s", "A B C A B", store.frames(0)[:2])
        writer.append("v1", "s", "A", np.full((30, store.dim), np.nan))
        writer.append("v2", "s", "", store.frames(0))
    limits = {"frames": tmp_path / "frames", "max_skipped_fraction": 0.3}
    found = align(system, tmp_path / "seed/train", **limits)
    assert len(found) == 8
    reasons = {
        e.utterance: e.reason for e in read_ledger(tmp_path / "seed/train/ledger.jsonl")
    }
    assert reasons["v0"].startswith("too short: 2 frames")
    assert "not numbers" in reasons["v1"]
    assert "empty" in reasons["v2"]
    with pytest.raises(UserError, match="skipped 3 of 11"):
        align(system, tmp_path / "strict/train", frames=tmp_path / "frames")
    assert not (tmp_path / "strict/train/ali.ark").exists()


def test_a_network_learns_the_alignments_of_another(system, tmp_path):
    """With the tree and the transition model in the folder of the first."""
    align(system, tmp_path / "seed/train")
    layers = {"hidden": {"class": "linear", "size": 8}, "output": {"class": "output"}}
    (tmp_path / "network.yaml").write_text(yaml.safe_dump({"layers": layers}))
    frames, ali = system.root / "frames", tmp_path / "seed/train/ali.ark"
    options = CeRunOptions(
        data=data_options(), training=training_options(epochs=1), device="cpu", seed=1
    )
    train_network(
        NetworkJob(
            frames_dir=frames,
            alignments=ali,
            source_dir=system.root / "seed",
            dev_frames_dir=frames,
            dev_alignments=ali,
            network=tmp_path / "network.yaml",
            out_dir=tmp_path / "second",
            options=options,
            checkpoints=tmp_path / "checkpoints",
        )
    )
    for name in ("final.mdl", "tree"):
        ours = (tmp_path / "second" / name).read_bytes()
        assert ours == (system.root / "model" / name).read_bytes()
    network = load_model(tmp_path / "second").network
    assert network.outputs["output"].num_classes == system.model.num_pdfs
