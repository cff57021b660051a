"""Archives that were cut are not what their stage has written."""

import numpy as np
import pytest

from latflow.align.corpus import AlignmentArchive
from latflow.archive_sizes import Entries, archive_sizes, checked_entries
from latflow.errors import UserError
from latflow.files import write_json
from latflow.kaldi.io import (
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
)
from latflow.lattice.io.archives import LatticeArchive, read_lattices, write_lattices
from latflow.lattice.lattice import Lattice


def lattice():
    return Lattice(
        arc_begin=np.array([0, 1, 1]),
        next_state=np.array([1], np.int32),
        transition_id=np.array([3], np.int32),
        word=np.array([4], np.int32),
        graph_cost=np.zeros(1, np.float32),
        acoustic_cost=np.zeros(1, np.float32),
        final_graph_cost=np.array([np.inf, 0], np.float32),
        final_acoustic_cost=np.array([np.inf, 0], np.float32),
        frame=np.array([0, 1], np.int32),
        num_frames=1,
    )


def write_all(folder):
    names = [f"u{i}" for i in range(4)]
    write_lattices(folder / "lattices.ark", ((name, lattice()) for name in names))
    write_int_vectors(folder / "ali.ark", ((name, [1, 2, 3]) for name in names))
    write_matrices(folder / "trans.ark", ((name, np.eye(2)) for name in names))


READERS = {
    "lattices.ark": (lambda p: list(read_lattices(p)), LatticeArchive),
    "ali.ark": (lambda p: list(read_int_vectors(p)), AlignmentArchive),
    "trans.ark": (lambda p: list(read_matrices(p)),),
}
CASES = [(name, read) for name, reads in READERS.items() for read in reads]


@pytest.mark.parametrize("record", ["decode.json", "statistics.json", "rescore.json"])
@pytest.mark.parametrize(("name", "read"), CASES)
def test_an_archive_that_was_cut_is_refused(tmp_path, name, read, record):
    write_all(tmp_path)
    write_json(tmp_path / record, {"utterances": 4, **archive_sizes(tmp_path)})
    path = tmp_path / name
    whole = path.read_bytes()
    assert len(read(path)) == 4
    # Nothing, and what looks whole: one or two entries of four.
    entry = len(whole) // 4
    assert whole[entry : entry + 3] == b"u1 "
    for size in (0, entry, 2 * entry, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=f"{name}: has {size} bytes.*cut or chang"):
            read(path)
    path.write_bytes(whole + whole)
    with pytest.raises(UserError, match="cut or changed"):
        read(path)


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"archives": 3}', "[" * 5000])
def test_archives_without_a_record_are_read_as_they_are(tmp_path, told):
    write_all(tmp_path)
    (tmp_path / "decode.json").write_text(told)
    for name, read in CASES:
        assert len(read(tmp_path / name)) == 4
    assert not [*checked_entries(tmp_path / "none.ark", ())]
    (tmp_path / "decode.json").write_text('{"archives": {"ali.ark": "x"}}')
    with pytest.raises(UserError, match="'x'"):
        list(checked_entries(tmp_path / "ali.ark", ()))


@pytest.mark.parametrize(("name", "read"), CASES)
@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (lambda entries: entries[::-1], "4 entries.* 4, other ids"),
        (lambda entries: [*entries[:3], entries[0]], "4 entries.* 4, other ids"),
        (lambda entries: entries[:3], "3 entries.* 4, others"),
    ],
)
def test_entries_that_were_not_written_are_refused(tmp_path, name, read, raw, told):
    write_all(tmp_path)
    path, written = tmp_path / name, Entries()
    for i in range(4):
        written.add(f"u{i}")
    whole = path.read_bytes()
    size = len(whole) // 4
    entries = [whole[i * size : (i + 1) * size] for i in range(4)]
    path.write_bytes(b"".join(raw(entries)))
    write_json(tmp_path / "decode.json", archive_sizes(tmp_path, {name: written}))
    twice = "comes twice" if read is LatticeArchive else told
    with pytest.raises(UserError, match=f"{told}|{twice}"):
        read(path)
    path.write_bytes(whole)
    write_json(tmp_path / "decode.json", archive_sizes(tmp_path, {name: written}))
    assert len(read(path)) == 4


def test_writers_tell_what_they_have_written(tmp_path):
    expected = Entries()
    for name in ("b", "a"):
        expected.add(name)
    path = tmp_path / "lattices.ark"
    entries = write_lattices(path, [("b", lattice()), ("a", lattice())])
    assert entries.facts() == expected.facts()
    assert entries.facts()["entries"] == 2


def test_records_of_sizes_alone_are_compared(tmp_path):
    """Those of earlier versions."""
    write_all(tmp_path)
    size = (tmp_path / "ali.ark").stat().st_size
    write_json(tmp_path / "decode.json", {"archives": {"ali.ark": size}})
    assert len([*read_int_vectors(tmp_path / "ali.ark")]) == 4
    write_json(tmp_path / "decode.json", {"archives": {"ali.ark": size + 1}})
    with pytest.raises(UserError, match=f"has {size} bytes"):
        list(read_int_vectors(tmp_path / "ali.ark"))
