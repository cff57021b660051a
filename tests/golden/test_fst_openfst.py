"""Graph against the files that OpenFst and Kaldi wrote."""

import kaldifst
import numpy as np
import pytest
from reference.graphs import read_graphs

from latflow.fst.graph import Graph


@pytest.mark.parametrize(
    ("system", "counts"), [("mono", (105, 228, 2)), ("tri1", (136, 307, 3))]
)
def test_const_file_round_trip_is_the_identity(golden, tmp_path, system, counts):
    source = golden / f"graph/HCLG_{system}.fst"
    graph = Graph.load(source)
    assert (graph.num_states, graph.num_arcs, graph.num_final_states) == counts
    graph.save(tmp_path / "copy.fst")
    assert (tmp_path / "copy.fst").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_kaldifst_reads_what_we_write(golden, tmp_path, system):
    graph = Graph.load(golden / f"graph/HCLG_{system}.fst")
    wanted = str(kaldifst.StdFst.read(str(golden / f"graph/HCLG_{system}.fst")))
    for is_aligned in (False, True):
        graph.save(tmp_path / "ours.fst", is_aligned=is_aligned)
        assert str(kaldifst.StdFst.read(str(tmp_path / "ours.fst"))) == wanted
    assert str(graph.to_fst()) == wanted


@pytest.mark.parametrize("name", ["L", "L_disambig", "G"])
def test_vector_files_are_read_as_kaldifst_reads_them(golden, name):
    path = golden / f"lang/{name}.fst"
    graph = Graph.load(path)
    again = Graph.from_fst(kaldifst.StdVectorFst.read(str(path)))
    assert np.array_equal(graph.arcs, again.arcs)
    assert np.array_equal(graph.states, again.states)


def test_property_bits_agree_with_openfst(golden):
    for path in sorted(golden.glob("graph/*.fst")):
        graph = Graph.load(path)
        known = graph.to_fst().properties((1 << 48) - 1, test=True)
        assert graph.properties.bits & ~known == 0


def test_archives_of_graphs_are_read(golden):
    keys = [
        line.split()[0] for line in (golden / "align/text").read_text().splitlines()
    ]
    graphs = dict(read_graphs(golden / "align/train_graphs_mono.fsts.gz"))
    assert list(graphs) == keys
    assert graphs[keys[0]].num_states == 207
