"""Graphs of lattice-free MMI are those of Kaldi."""

import numpy as np
import pytest

from latflow.fst.graph import Graph
from latflow.graphs.chain import ChainGraphs, make_chain_graphs
from latflow.graphs.hclg import load_model
from latflow.hmm.topology import Topology, chain_topology


@pytest.fixture(scope="module")
def kaldi(golden):
    return ChainGraphs.read(golden / "chain")


@pytest.fixture(scope="module")
def ours(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    (folder / "tree").symlink_to(golden / "chain/tree")
    (folder / "final.mdl").symlink_to(golden / "chain/0.trans_mdl")
    phone_lm = Graph.load(golden / "chain/phone_lm.fst")
    return make_chain_graphs(phone_lm, *load_model(folder))


def by_state(graph):
    """Arcs sorted within each state, by label and target."""
    order = np.lexsort((graph.next_state, graph.ilabel, graph.sources()))
    return graph.sources()[order], graph.arcs[order]


def test_the_topology_is_that_of_gen_topo(golden):
    topology = Topology.load(golden / "chain/topo")
    assert chain_topology(topology.phones[::-1]) == topology


@pytest.mark.parametrize("name", ["denominator", "normalization"])
def test_graphs_are_those_of_chain_make_den_fst(ours, kaldi, name):
    mine, theirs = getattr(ours, name), getattr(kaldi, name)
    assert mine.start == theirs.start
    np.testing.assert_allclose(mine.final, theirs.final, atol=2e-6)
    (sources, arcs), (their_sources, their_arcs) = by_state(mine), by_state(theirs)
    np.testing.assert_array_equal(sources, their_sources)
    for field in ("ilabel", "olabel", "next_state"):
        np.testing.assert_array_equal(arcs[field], their_arcs[field])
    np.testing.assert_allclose(arcs["weight"], their_arcs["weight"], atol=2e-6)


def test_initial_probabilities_are_those_of_kaldi(golden, ours, kaldi):
    text = (golden / "chain/initial_probs.txt").read_text()
    printed = np.array(text.strip(" []\n").split(), float)  # six digits
    np.testing.assert_allclose(kaldi.initial_probs, printed, rtol=1e-5)
    np.testing.assert_allclose(ours.initial_probs, printed, rtol=1e-5)
