"""Networks that score one frame in three, beside twins that score what is left."""

import json

import numpy as np
import pytest
from fixtures.sequence_system import SCALE, make_system
from reference.subsampled_twin import FACTOR, write_slow_frames, write_subsampling

from latflow.decode.align import align_network
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import (
    AlignNetworkOptions,
    NetworkScoreOptions,
    SearchOptions,
)
from latflow.features.frames import FrameStore
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors
from latflow.lattice.best_path import Scales
from latflow.lattice.io.archives import read_lattices
from latflow.nnet.described import frame_subsampling
from latflow.parts import SetJob
from latflow.scoring.score import Transcriber
from latflow.training.forward import Forward

SCORES = NetworkScoreOptions(device="cpu")
SEARCH = SearchOptions(acoustic_scale=SCALE, lattice_beam=4.0)
# A frame of the output stands for three: with this the search is that of the twin.
THIRD = SEARCH.replace(acoustic_scale=SCALE / FACTOR)


@pytest.fixture(scope="module")
def system(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("subsampling")
    made = make_system(folder, repository, count=6, seed=5)
    write_slow_frames(made.root / "frames", made.root / "slow")
    write_subsampling(made.root / "seed", made.root / "third")
    return made


def decode(system, out, frames, model, scores=SCORES, options=SEARCH):
    """Lattices of a network, and what is told of them."""
    decode_lattices(
        SetJob(
            frames_dir=system.root / frames,
            model_dir=system.root / model,
            lang_dir=system.root / "lang",
            out_dir=out,
            threads=2,
            max_skipped_fraction=0.0,
        ),
        graph=system.root / "den/HCLG.fst",
        options=options,
        scores=scores,
    )
    told = json.loads((out / "decode.json").read_text())
    return dict(read_lattices(out / "lattices.ark")), told


def test_the_model_folder_tells_its_rate(system):
    assert frame_subsampling(system.root / "third") == FACTOR
    assert frame_subsampling(system.root / "seed") == 1
    assert frame_subsampling(system.root / "model") == 1


def test_lattices_are_those_of_the_frames_that_are_scored(system, tmp_path):
    plain, told = decode(system, tmp_path / "plain", "frames", "seed")
    slow, told_slow = decode(system, tmp_path / "slow", "slow", "third", options=THIRD)
    assert plain.keys() == slow.keys() == set(system.texts)
    for utterance, lattice in plain.items():
        assert lattice.num_frames == slow[utterance].num_frames
        for name in ("transition_id", "word", "next_state"):
            ours, theirs = getattr(slow[utterance], name), getattr(lattice, name)
            np.testing.assert_array_equal(ours, theirs, err_msg=utterance)
        cost = FACTOR * lattice.acoustic_cost
        np.testing.assert_allclose(slow[utterance].acoustic_cost, cost, rtol=1e-5)
    store = FrameStore.load(system.root / "slow")
    assert told_slow["frames"] == store.num_frames
    assert told_slow["acoustic_scale"] == pytest.approx(told["acoustic_scale"])
    assert (told["lattice_scale"], told_slow["lattice_scale"]) == (1.0, FACTOR)
    assert told_slow["searched_frames"] == told["frames"] == told["searched_frames"]
    for name in ("mean_lattice_depth", "mean_active_tokens"):
        assert told_slow[name] == pytest.approx(told[name])


def test_times_of_words_are_those_of_the_features(system, tmp_path):
    def times(folder, frames, model, options, lmwt):
        lattices, _ = decode(system, tmp_path / folder, frames, model, options=options)
        transcriber = Transcriber.load(
            system.root / "lang",
            system.root / model,
            scales=Scales.from_lmwt(lmwt, 0.0),
            frame_shift=0.01,
            decision="mbr",
        )
        found = map(transcriber, lattices.items())
        return [
            (t.word, t.start, t.duration)
            for transcript in found
            for t in (*transcript.words, *transcript.phones)
        ]

    plain = times("plain", "frames", "seed", SEARCH, 5)
    slow = times("slow", "slow", "third", THIRD, 5 * FACTOR)
    assert len(plain) > 10
    assert [label for label, *_ in plain] == [label for label, *_ in slow]
    ratio = np.array([t[1:] for t in slow]) - FACTOR * np.array([t[1:] for t in plain])
    assert np.abs(ratio).max() < 1e-6


def test_alignments_have_the_rate_of_the_output(system, tmp_path):
    options = AlignNetworkOptions(acoustic_scale=SCALE, scores=SCORES)
    found = {}
    for name, frames, model in (("a", "frames", "seed"), ("b", "slow", "third")):
        align_network(
            SetJob(
                frames_dir=system.root / frames,
                lang_dir=system.root / "lang",
                model_dir=system.root / model,
                out_dir=tmp_path / name,
                threads=1,
                max_skipped_fraction=0.0,
            ),
            options=options,
            graph=GraphOptions(),
        )
        found[name] = dict(read_int_vectors(tmp_path / name / "ali.ark"))
    assert found["a"].keys() == found["b"].keys() == set(system.texts)
    for utterance, alignment in found["a"].items():
        np.testing.assert_array_equal(found["b"][utterance], alignment)
    store = FrameStore.load(system.root / "frames")
    for name, factor in (("a", 1), ("b", FACTOR)):
        told = json.loads((tmp_path / name / "statistics.json").read_text())
        assert told["frame_shift"] == pytest.approx(factor * store.frame_shift)


def test_forward_writes_a_row_for_each_frame_of_the_output(system):
    plain = dict(
        Forward.load(FrameStore.load(system.root / "frames"), system.root / "seed")
    )
    slow = dict(
        Forward.load(FrameStore.load(system.root / "slow"), system.root / "third")
    )
    for utterance, scores in plain.items():
        np.testing.assert_allclose(slow[utterance], scores, atol=1e-5)


def test_lattices_of_log_likelihoods_have_ten_times_their_costs(system, tmp_path):
    """Searched at scale 1, and written as Kaldi's recipe for such networks does."""
    kind = {"scores": "log_likelihoods"}
    write_subsampling(system.root / "seed", system.root / "outputs", **kind)
    outputs, _ = decode(system, tmp_path / "a", "slow", "outputs")
    scores = NetworkScoreOptions(prior_scale=0.0, acoustic_scale=1.0, device="cpu")
    posteriors, _ = decode(system, tmp_path / "b", "slow", "third", scores)
    store = FrameStore.load(system.root / "slow")
    rows = dict(Forward.load(store, system.root / "outputs"))
    assert outputs.keys() == posteriors.keys()
    for utterance, lattice in outputs.items():
        other = posteriors[utterance]
        # A softmax moves all scores of a frame alike: the paths are the same.
        np.testing.assert_array_equal(lattice.transition_id, other.transition_id)
        emits = np.flatnonzero(lattice.transition_id)
        source = np.repeat(np.arange(lattice.num_states), np.diff(lattice.arc_begin))
        pdf = system.model.pdf[lattice.transition_id[emits]]
        wanted = -10.0 * rows[utterance][lattice.frame[source[emits]], pdf]
        np.testing.assert_allclose(
            lattice.acoustic_cost[emits], wanted, rtol=1e-4, atol=1e-4
        )
