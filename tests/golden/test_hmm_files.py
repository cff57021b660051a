"""Kaldi's own trees, topologies and models survive reading and writing."""

import gzip
import io

import numpy as np
import pytest

from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, KaldiWriter

SYSTEMS = ["mono", "tri1", "tri2b", "tri3b"]


def load_model(path):
    with KaldiReader.open(path) as reader:
        return TransitionModel.read(reader)


def phone_sets(golden):
    lines = (golden / "lang/phones/sets.int").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("name", "binary"), [("tree", True), ("tree.txt", False)])
def test_trees_round_trip(golden, tmp_path, system, name, binary):
    path = golden / "gmm" / system / name
    ContextDependency.load(path).save(tmp_path / name, binary=binary)
    assert (tmp_path / name).read_bytes() == path.read_bytes()


def test_the_chain_tree_round_trips(golden, tmp_path):
    tree = ContextDependency.load(golden / "chain/tree")
    assert (tree.context_width, tree.central_position, tree.num_pdfs) == (2, 1, 56)
    tree.save(tmp_path / "tree")
    assert (tmp_path / "tree").read_bytes() == (golden / "chain/tree").read_bytes()


@pytest.mark.parametrize("folder", ["lang", "chain"])
def test_topologies_round_trip_in_the_layout_of_gen_topo(golden, tmp_path, folder):
    path = golden / folder / "topo"
    Topology.load(path).save(tmp_path / "topo")
    assert (tmp_path / "topo").read_bytes() == path.read_bytes()


def test_the_standard_topology_is_that_of_prepare_lang(golden):
    read = Topology.load(golden / "lang/topo")
    assert read == Topology.standard(range(11, 87), range(1, 11))
    assert [read.min_duration(1), read.min_duration(11)] == [3, 3]
    assert Topology.load(golden / "chain/topo").min_duration(1) == 1


@pytest.mark.parametrize("system", SYSTEMS)
def test_heads_of_models_round_trip(golden, system):
    for name, binary in (("final.mdl", True), ("final.mdl.txt.gz", False)):
        path = golden / "gmm" / system / name
        raw = path.read_bytes() if binary else gzip.decompress(path.read_bytes())
        with KaldiReader.open(path) as reader:
            model = TransitionModel.read(reader)
            assert reader.peek_token() == "<DIMENSION>"
            if binary:
                # the token that follows was only looked at
                assert raw[reader.position :].startswith(b"<DIMENSION>")
        out = io.BytesIO()
        model.write(KaldiWriter(out, binary=binary))
        assert raw.startswith(out.getvalue())
        assert len(out.getvalue()) > 1000


def test_the_chain_model_round_trips(golden):
    path = golden / "chain/0.trans_mdl"
    model = load_model(path)
    out = io.BytesIO()
    model.write(KaldiWriter(out, binary=False))
    assert out.getvalue() == path.read_bytes()
    binary = io.BytesIO()
    model.write(KaldiWriter(binary, binary=True))
    binary.seek(0)
    again = TransitionModel.read(KaldiReader(binary))
    assert again.topology == model.topology
    np.testing.assert_array_equal(again.tuples, model.tuples)
    np.testing.assert_array_equal(again.log_prob, model.log_prob)


@pytest.mark.parametrize("system", SYSTEMS)
def test_tree_and_topology_make_the_transition_ids_of_kaldi(golden, system):
    folder = golden / "gmm" / system
    model = load_model(folder / "final.mdl")
    made = TransitionModel.from_tree(
        ContextDependency.load(folder / "tree"), Topology.load(golden / "lang/topo")
    )
    np.testing.assert_array_equal(made.tuples, model.tuples)
    np.testing.assert_array_equal(made.first_id, model.first_id)
    info = dict(
        line.rsplit(" ", 1) for line in (folder / "info.txt").read_text().splitlines()
    )
    assert made.num_pdfs == int(info["number of pdfs"])
    assert made.num_transition_ids == int(info["number of transition-ids"])
    assert made.num_states == int(info["number of transition-states"])


def test_the_chain_tree_makes_the_pairs_of_pdfs_of_kaldi(golden):
    model = load_model(golden / "chain/0.trans_mdl")
    made = TransitionModel.from_tree(
        ContextDependency.load(golden / "chain/tree"),
        Topology.load(golden / "chain/topo"),
    )
    np.testing.assert_array_equal(made.tuples, model.tuples)
    np.testing.assert_array_equal(made.log_prob, model.log_prob)


def test_the_monophone_tree_is_that_of_gmm_init_mono(golden, tmp_path):
    topology = Topology.load(golden / "lang/topo")
    tree = ContextDependency.monophone(phone_sets(golden), topology.pdf_class_counts())
    tree.save(tmp_path / "tree")
    assert (tmp_path / "tree").read_bytes() == (golden / "gmm/mono/tree").read_bytes()


@pytest.mark.parametrize("system", SYSTEMS)
def test_transitions_are_as_show_transitions_prints_them(golden, system):
    folder = golden / "gmm" / system
    model = load_model(folder / "final.mdl")
    symbols = dict(
        line.split() for line in (golden / "lang/phones.txt").read_text().splitlines()
    )
    state = 0
    seen = 0
    with gzip.open(folder / "transitions.txt.gz", "rt") as lines:
        for line in lines:
            word = line.split()
            if word[0] == "Transition-state":
                state = int(word[1].rstrip(":"))
                phone, hmm_state, pdf, _ = model.tuples[state - 1].tolist()
                assert int(symbols[word[4]]) == phone
                assert (int(word[7]), int(word[10])) == (hmm_state, pdf)
                continue
            tid = int(word[2])
            seen += 1
            assert model.state[tid] == state
            assert np.exp(model.log_prob[tid]) == pytest.approx(float(word[5]), 1e-5)
            assert model.is_self_loop[tid] == (word[6] == "[self-loop]")
            if not model.is_self_loop[tid]:
                assert int(word[8].rstrip("]")) == model.next_state[tid]
    assert (
        seen >= model.num_transition_ids - 4
    )  # Kaldi's print leaves out the last state


def test_every_window_has_a_pdf_in_range(golden):
    folder = golden / "gmm/tri1"
    tree = ContextDependency.load(folder / "tree")
    topology = Topology.load(golden / "lang/topo")
    model = load_model(folder / "final.mdl")
    random = np.random.default_rng(1)
    seen = set()
    for phone in topology.phones:
        for pdf_class in range(topology.num_pdf_classes(phone)):
            possible = tree.possible_pdfs(phone, pdf_class)
            for left, right in random.integers(0, 87, (30, 2)).tolist():
                pdf = tree.pdf((left, phone, right), pdf_class)
                assert pdf in possible
                seen.add(pdf)
                model.state_of(phone, pdf_class, pdf)
    assert seen <= set(range(96))
    assert len(seen) > 90
