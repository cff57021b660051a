"""GraphArchive: many graphs in one file."""

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.archive import GraphArchive, GraphWriter
from latflow.fst.graph import Graph


def chain(length):
    begin = [*range(length + 1), length]
    labels = np.arange(1, length + 1)
    final = np.full(length + 1, np.inf)
    final[-1] = length
    return Graph.from_arrays(
        0, np.array(begin), labels, labels, labels / 2, labels, final
    )


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "graphs"
    with GraphWriter.open(path) as writer:
        for length in (3, 1, 7):
            writer.append(f"utt-é{length}", chain(length))
    return path


def test_graphs_come_back_by_number(archive):
    graphs = GraphArchive(archive)
    assert len(graphs) == 3
    assert graphs.keys == ["utt-é3", "utt-é1", "utt-é7"]
    for graph, length in zip(graphs, (3, 1, 7), strict=True):
        wanted = chain(length)
        assert np.array_equal(graph.arcs, wanted.arcs)
        assert np.array_equal(graph.states, wanted.states)
        assert np.array_equal(graph.arc_begin, wanted.arc_begin)


def test_graphs_are_views_of_the_file(archive):
    graph = GraphArchive(archive)[2]
    assert not graph.arcs.flags.owndata
    assert graph.weight.flags.aligned


def test_archive_may_be_empty(tmp_path):
    with GraphWriter.open(tmp_path / "graphs"):
        pass
    assert len(GraphArchive(tmp_path / "graphs")) == 0


def test_failed_writing_leaves_nothing(tmp_path):
    with (
        pytest.raises(RuntimeError),
        GraphWriter.open(tmp_path / "graphs") as writer,
    ):
        writer.append("a", chain(2))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(archive, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        GraphArchive(tmp_path / "none")
    raw = archive.read_bytes()
    for broken in (raw[:-1], raw[:10], b""):
        archive.write_bytes(broken)
        with pytest.raises(UserError, match="not an archive of graphs"):
            GraphArchive(archive)
