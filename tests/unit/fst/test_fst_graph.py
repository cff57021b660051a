"""Graph: arrays, files, faults. The graph used: 0 -1:2/.5-> 1 -0:0-> 2(final .25)."""

import struct

import kaldifst
import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, STATE

INF = np.float32(np.inf)


@pytest.fixture
def graph():
    return Graph.from_arrays(
        0, [0, 1, 3, 3], [1, 0, 2], [2, 0, 0], [0.5, 0, -1], [1, 2, 1], [INF, INF, 0.25]
    )


@pytest.fixture
def const_file(graph, tmp_path):
    graph.save(tmp_path / "a.fst")
    return tmp_path / "a.fst"


def same(one, other):
    return (
        one.start == other.start
        and np.array_equal(one.arcs, other.arcs)
        and np.array_equal(one.states, other.states)
        and np.array_equal(one.arc_begin, other.arc_begin)
    )


def test_arrays_describe_states_and_arcs(graph):
    assert (graph.num_states, graph.num_arcs, graph.num_final_states) == (3, 3, 1)
    assert graph.arc_begin.tolist() == [0, 1, 3, 3]
    assert graph.arc_begin.dtype == np.int64
    assert graph.num_input_epsilons.tolist() == [0, 1, 0]
    assert graph.sources().tolist() == [0, 1, 1]
    assert graph.weight.strides == (ARC.itemsize,)
    assert graph.final.strides == (STATE.itemsize,)


def test_arrays_are_read_only(graph):
    for array in (graph.ilabel, graph.weight, graph.final, graph.arc_begin):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_arc_list_keeps_the_order_within_a_state(graph):
    arcs = np.array(graph.arcs)[[1, 2, 0]]
    again = Graph.from_arc_list(0, np.array([1, 1, 0]), arcs, graph.final)
    assert same(graph, again)


def test_properties_are_found(graph):
    found = graph.properties
    assert not found.is_acceptor
    assert found.has_epsilons
    assert found.has_input_epsilons
    assert found.is_ilabel_sorted
    assert found.is_olabel_sorted
    assert found.is_weighted
    assert not found.is_top_sorted


def test_property_bits_are_those_of_openfst(graph):
    every = (1 << 48) - 1
    assert found_bits(graph) & ~graph.to_fst().properties(every, test=True) == 0


def found_bits(graph):
    return graph.properties.bits


@pytest.mark.parametrize("is_aligned", [False, True])
def test_const_file_round_trip(graph, tmp_path, is_aligned):
    path = tmp_path / "a.fst"
    graph.save(path, is_aligned=is_aligned)
    again = Graph.load(path)
    assert same(graph, again)
    assert again.weight.flags.aligned
    assert same(Graph.from_fst(kaldifst.StdFst.read(str(path))), graph)


def test_aligned_const_file_is_mapped_not_copied(graph, tmp_path):
    graph.save(tmp_path / "a.fst", is_aligned=True)
    assert not Graph.load(tmp_path / "a.fst").arcs.flags.owndata


def test_kaldifst_round_trip(graph):
    assert same(Graph.from_fst(graph.to_fst()), graph)


def test_vector_file_is_read(graph, tmp_path):
    graph.to_fst().write(str(tmp_path / "v.fst"))
    assert same(Graph.load(tmp_path / "v.fst"), graph)


def test_symbol_tables_are_stepped_over(graph, tmp_path):
    fst = graph.to_fst()
    table = kaldifst.SymbolTable("words")
    table.add_symbol("<eps>")
    table.add_symbol("hello")
    fst.input_symbols = table
    fst.output_symbols = table
    fst.write(str(tmp_path / "s.fst"))
    assert same(Graph.load(tmp_path / "s.fst"), graph)


def test_empty_graph_round_trip(tmp_path):
    empty = Graph.from_fst(kaldifst.StdVectorFst())
    assert (empty.start, empty.num_states) == (-1, 0)
    empty.save(tmp_path / "e.fst")
    assert Graph.load(tmp_path / "e.fst").num_states == 0


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        Graph.load(tmp_path / "none.fst")
    (tmp_path / "text").write_text("0 1 2 3\n")
    with pytest.raises(UserError, match="not an OpenFst file"):
        Graph.load(tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="empty"):
        Graph.load(tmp_path / "empty")


def test_other_arc_and_fst_types_are_refused(const_file):
    raw = const_file.read_bytes()
    log_arcs = raw.replace(struct.pack("<i", 8) + b"standard", b"\x03\0\0\0log")
    const_file.write_bytes(log_arcs)
    with pytest.raises(UserError, match="arcs of type log, not standard"):
        Graph.load(const_file)
    const_file.write_bytes(raw.replace(b"const", b"other"))
    with pytest.raises(UserError, match="type other"):
        Graph.load(const_file)


@pytest.mark.parametrize("kind", ["const", "vector"])
def test_every_truncation_is_refused(graph, tmp_path, kind):
    path = tmp_path / "t.fst"
    if kind == "const":
        graph.save(path)
    else:
        graph.to_fst().write(str(path))
    raw = path.read_bytes()
    for length in range(1, len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(UserError, match="truncated|not an OpenFst"):
            Graph.load(path)


def test_arcs_to_nowhere_are_refused(const_file):
    raw = bytearray(const_file.read_bytes())
    raw[-4:] = struct.pack("<i", 99)
    const_file.write_bytes(raw)
    with pytest.raises(UserError, match="a state that is not there"):
        Graph.load(const_file)


def test_unaligned_views_of_large_files_work(const_file, graph, monkeypatch):
    monkeypatch.setattr("latflow.fst.graph.COPY_BELOW_BYTES", 0)
    mapped = Graph.load(const_file)
    assert not mapped.weight.flags.aligned
    assert same(mapped, graph)
    assert mapped.properties == graph.properties
