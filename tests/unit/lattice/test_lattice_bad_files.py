"""Lattice archives that are broken, odd or empty, and best paths that are not there."""

import struct

import numpy as np
import pytest
from reference.decode_paths import random_lattice

from latflow.errors import UserError
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices, write_lattices
from latflow.lattice.lattice import Lattice


@pytest.fixture
def lattice():
    return random_lattice(np.random.default_rng(1), 4)


@pytest.fixture
def archive(tmp_path, lattice):
    write_lattices(tmp_path / "a.lats", [("one", lattice), ("two", lattice)])
    return tmp_path / "a.lats"


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.lats: no such file"):
        list(read_lattices(tmp_path / "none.lats"))


def test_empty_archives_have_no_lattices(tmp_path):
    write_lattices(tmp_path / "a", [])
    assert list(read_lattices(tmp_path / "a")) == []
    write_lattices(tmp_path / "b.gz", [])
    assert list(read_lattices(tmp_path / "b.gz")) == []


@pytest.mark.parametrize("kept", [10, 40, 60, 150, -1])
def test_truncated_binary_archive(archive, kept):
    whole = archive.read_bytes()
    archive.write_bytes(whole[:kept])
    with pytest.raises(UserError, match="a.lats"):
        list(read_lattices(archive))


def test_truncated_gzip(tmp_path, lattice):
    path = tmp_path / "a.gz"
    write_lattices(path, [("one", lattice)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="not a whole gzip file"):
        list(read_lattices(path))


def test_every_truncation_is_noticed(tmp_path, lattice):
    write_lattices(tmp_path / "a", [("one", lattice)])
    whole = (tmp_path / "a").read_bytes()
    for size in range(1, len(whole), 7):
        (tmp_path / "b").write_bytes(whole[:size])
        with pytest.raises(UserError, match="b: "):
            list(read_lattices(tmp_path / "b"))


def test_another_kind_of_fst(tmp_path):
    header = struct.pack("<i6si8s", 6, b"vector", 8, b"standard") + bytes(100)
    path = tmp_path / "g.fst"
    path.write_bytes(b"utt " + (2125659606).to_bytes(4, "little") + header)
    with pytest.raises(UserError, match="vector standard, which is not a lattice"):
        list(read_lattices(path))


def test_arc_to_a_state_that_is_not_there(archive):
    raw = bytearray(archive.read_bytes())
    at = raw.index(b"lattice4") + 8 + 40 + 16  # first arc of the first state
    raw[at + 16 : at + 20] = struct.pack("<i", 999)
    archive.write_bytes(raw)
    with pytest.raises(UserError, match="an arc to a state that it does not have"):
        list(read_lattices(archive))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("utt\n0 1 5\n1 x\n\n", "line 3: no arc"),
        ("utt\n0 1 5 6 7 8 9\n\n", "line 2: no arc"),
        ("utt more\n", "line 1: an utterance alone"),
        ("utt\n0 1 5 0 1,2\n1 0 5 0 1,2\n1\n\n", "utt: a lattice with a cycle"),
        ("utt\n0 1 5 0 1,2\n0 1 0 0 1,2\n1\n\n", "different numbers of frames"),
    ],
)
def test_bad_text(tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_lattices(tmp_path / "a.txt"))


def test_text_that_starts_elsewhere_and_is_unsorted(tmp_path):
    (tmp_path / "a.txt").write_text("utt\n2 0 5 7 1,2\n0 1 6 0\n1 0.5,0\n\n")
    ((utterance, lattice),) = read_lattices(tmp_path / "a.txt")
    assert utterance == "utt"
    assert lattice.frame.tolist() == [0, 1, 2]
    path = best_path(lattice)
    assert (path.words.tolist(), path.transition_ids.tolist()) == ([7], [5, 6])
    assert (path.graph_cost, path.acoustic_cost) == (1.5, 2.0)


def test_compact_arcs_are_spread(tmp_path):
    (tmp_path / "a.txt").write_text("utt\n0 1 7 1,2,5_6\n0 1 8 3,4,5_5\n1 0.5,1,9\n\n")
    ((_, lattice),) = read_lattices(tmp_path / "a.txt")
    path = best_path(lattice)
    assert (path.words.tolist(), path.transition_ids.tolist()) == ([7], [5, 6, 9])
    assert (path.graph_cost, path.acoustic_cost) == (1.5, 3.0)
    assert lattice.num_frames == 3


def compact_binary():
    """0 -(7 : 1, 2 : 5 6)-> 1, final 0.5, 1 with the string 9."""
    body = struct.pack("<ffiq", np.inf, np.inf, 0, 1)
    body += struct.pack("<iiffiiii", 7, 7, 1.0, 2.0, 2, 5, 6, 1)
    body += struct.pack("<ffiiq", 0.5, 1.0, 1, 9, 0)
    magic = (2125659606).to_bytes(4, "little")
    head = struct.pack("<i6si16s", 6, b"vector", 16, b"compactlattice44")
    return b"utt " + magic + head + struct.pack("<iiQqqq", 2, 0, 3, 0, 2, 0) + body


def test_compact_binary_is_spread(tmp_path):
    raw = compact_binary()
    (tmp_path / "a").write_bytes(raw * 2)
    lattices = [lattice for _, lattice in read_lattices(tmp_path / "a")]
    assert len(lattices) == 2
    for lattice in lattices:
        path = best_path(lattice)
        assert (path.words.tolist(), path.transition_ids.tolist()) == ([7], [5, 6, 9])
        assert (path.graph_cost, path.acoustic_cost) == (1.5, 3.0)
    for size in range(1, len(raw)):
        (tmp_path / "a").write_bytes(raw[:size])
        with pytest.raises(UserError, match="a: "):
            list(read_lattices(tmp_path / "a"))


def test_no_final_state_means_no_best_path():
    lattice = Lattice.from_arcs(
        np.array([[0, 1, 5, 7]], np.int32),
        np.zeros((1, 2), np.float32),
        np.full((2, 2), np.inf, np.float32),
    )
    with pytest.raises(UserError, match="without a path to a final state"):
        best_path(lattice)


def test_unreachable_states_are_dropped():
    lattice = Lattice.from_arcs(
        np.array([[0, 2, 5, 7], [1, 2, 5, 8]], np.int32),
        np.ones((2, 2), np.float32),
        np.array([[np.inf] * 2, [np.inf] * 2, [0, 0]], np.float32),
    )
    assert (lattice.num_states, lattice.num_arcs) == (2, 1)
    assert lattice.word.tolist() == [7]
    assert lattice.depth == 1.0


def test_half_written_archive_is_removed(tmp_path, lattice):
    def items():
        yield "one", lattice
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lattices(tmp_path / "a", items())
    assert list(tmp_path.iterdir()) == []
