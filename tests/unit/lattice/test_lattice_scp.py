"""scp files, and single lattices that are not where they should be."""

import numpy as np
import pytest
from reference.decode_paths import random_lattice

from latflow.errors import UserError
from latflow.lattice.io.archives import (
    LatticeArchive,
    LatticeWriter,
    read_compact_lattices,
    read_lattices,
    write_lattices,
)
from latflow.lattice.lattice import CompactLattice, Strings


@pytest.fixture
def lattice():
    return random_lattice(np.random.default_rng(1), 4)


@pytest.fixture
def archive(tmp_path, lattice):
    path = tmp_path / "a.lats"
    items = [("one", lattice), ("two", lattice)]
    write_lattices(path, items, scp=tmp_path / "a.scp")
    return path


def test_a_list_names_the_archive_and_offsets_behind_keys(archive):
    lines = archive.with_suffix(".scp").read_text().splitlines()
    raw = archive.read_bytes()
    for line, key in zip(lines, ("one", "two"), strict=True):
        name, place = line.split(" ")
        path, offset = place.rsplit(":", 1)
        assert (name, path) == (key, str(archive))
        at = int(offset)
        assert raw[at - 4 : at + 4] == key.encode() + b" \xd6\xfd\xb2\x7e"


def test_paths_beside_the_list_and_files_of_one_lattice(tmp_path, archive, lattice):
    raw = archive.read_bytes()
    (tmp_path / "single").write_bytes(raw[4 : len(raw) // 2])
    (tmp_path / "b.scp").write_text("x a.lats:4\ny single\n")
    found = dict(read_lattices(tmp_path / "b.scp"))
    assert list(found) == ["x", "y"]
    for one in found.values():
        np.testing.assert_array_equal(one.graph_cost, lattice.graph_cost)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("one", "line 1: no entry"),
        ("one gunzip -c a.gz |", "line 1: no entry"),
        ("one nowhere.lats:4", r"nowhere\.lats: no such file"),
        ("one a.lats:3", "no arc or final state|is expected"),
        ("one a.lats:99999", "no lattice at byte 99999|ends"),
    ],
)
def test_bad_entries(tmp_path, archive, entry, message):
    (tmp_path / "b.scp").write_text(f"{entry}\n")
    with pytest.raises(UserError, match=message):
        list(read_lattices(tmp_path / "b.scp"))


def test_a_list_that_points_into_a_truncated_archive(archive):
    archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(UserError, match="the file ends within a lattice"):
        list(read_lattices(archive.with_suffix(".scp")))
    with pytest.raises(UserError, match="the file ends within a lattice"):
        LatticeArchive(archive)


def test_utterances_that_are_missing_or_twice(tmp_path, archive, lattice):
    places = LatticeArchive(archive)
    assert len(places) == 2
    assert "one" in places
    assert "three" not in places
    with pytest.raises(UserError, match="three: no lattice of this utterance"):
        places.lattice("three")
    write_lattices(tmp_path / "twice", [("one", lattice), ("one", lattice)])
    with pytest.raises(UserError, match="one: the utterance comes twice"):
        LatticeArchive(tmp_path / "twice")


def test_packed_archives_have_no_places(tmp_path, lattice):
    with pytest.raises(UserError, match="gzipped archive"):
        write_lattices(tmp_path / "a.gz", [("one", lattice)], scp=tmp_path / "a.scp")
    write_lattices(tmp_path / "a.gz", [("one", lattice)])
    with pytest.raises(UserError, match="gzipped archive"):
        LatticeArchive(tmp_path / "a.gz")
    with pytest.raises(UserError, match="no such file"):
        LatticeArchive(tmp_path / "b")


def test_nothing_half_written_is_left(tmp_path, lattice):
    def fail():
        paths = {"scp": tmp_path / "a.scp", "binary": False}
        with LatticeWriter.open(tmp_path / "a", **paths) as writer:
            writer.write("one", lattice)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_bad_lattice_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("one \n0 1 7 1,2,5\n1 0 7 1,2,5\n1\n\n")
    for read in (read_lattices, read_compact_lattices):
        with pytest.raises(UserError, match=r"a\.txt: one: a lattice with a cycle"):
            list(read(tmp_path / "a.txt"))
    with pytest.raises(UserError, match=r"a\.txt: one: a lattice with a cycle"):
        LatticeArchive(tmp_path / "a.txt").compact("one")


@pytest.mark.parametrize(
    "text",
    [
        "utt\n0 1 7 1,2,5\n0 1 7 8 1,2\n\n",  # an arc of each kind
        "utt\n0 1 7 8 1,2\n0 1 7 1,2,5\n\n",
        "utt\n0 1 7 1,2,5_x\n\n",
        "utt\n0 1 7 1,2,5,6\n\n",
        "utt\n0 1 7 1,two,5\n\n",
        "utt\n0 1\n\n",
    ],
)
def test_bad_compact_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=r"line \d: no arc or final state"):
        list(read_compact_lattices(tmp_path / "a.txt"))


def test_lattices_without_states(tmp_path):
    empty = CompactLattice.from_arcs(
        np.empty((0, 3), np.int32),
        np.empty((0, 2), np.float32),
        Strings.empty(0),
        np.empty((0, 2), np.float32),
    )
    for binary in (True, False):
        write_lattices(tmp_path / "a", [("one", empty)], binary=binary)
        found = list(read_compact_lattices(tmp_path / "a"))
        assert [(name, one.num_states) for name, one in found] == [("one", 0)]
