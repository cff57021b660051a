"""Compact lattices that Kaldi wrote, and what Kaldi makes of state-level ones."""

import gzip

import kaldifst
import numpy as np
import pytest

from latflow.lattice.io.archives import (
    LatticeArchive,
    read_compact_lattices,
    read_lattices,
    write_lattices,
)

COSTS = {"graph_cost", "acoustic_cost", "final_graph_cost", "final_acoustic_cost"}


def assert_equal(one, two, *, leave_out=frozenset()):
    assert type(one) is type(two)
    for name, value in vars(one).items():
        if name not in leave_out:
            np.testing.assert_array_equal(value, getattr(two, name), err_msg=name)


def test_kaldis_compact_binary_archive_is_written_back_byte_for_byte(golden, tmp_path):
    source = golden / "lattice" / "boosted_b0.1.lats"
    write_lattices(tmp_path / "copy", read_compact_lattices(source))
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_kaldis_compact_text_is_written_back_byte_for_byte(golden, tmp_path):
    source = golden / "lattice" / "raw_beam13.txt.gz"
    items = read_compact_lattices(source)
    write_lattices(tmp_path / "a.gz", items, binary=False)
    with gzip.open(tmp_path / "a.gz") as copy, gzip.open(source) as original:
        assert copy.read() == original.read()


def test_text_of_kaldis_determinized_lattices_keeps_all_lines(golden, tmp_path):
    # Kaldi does not sort these states; only their numbers may change.
    source = golden / "lattice" / "compact_beam13.txt"
    items = read_compact_lattices(source)
    write_lattices(tmp_path / "a", items, binary=False)
    written = (tmp_path / "a").read_text().splitlines()
    original = source.read_text().splitlines()
    assert len(written) == len(original)

    def without_states(lines):
        return sorted("\t".join(line.split("\t")[2:]) for line in lines)

    assert without_states(written) == without_states(original)
    assert sum(a == b for a, b in zip(written, original, strict=True)) >= 42


def test_chains_are_collapsed_as_kaldi_does_it(golden):
    raw = read_compact_lattices(golden / "lattice" / "raw_beam13.lats")  # converts
    boosted = read_compact_lattices(golden / "lattice" / "boosted_b0.1.lats")
    printed = read_compact_lattices(golden / "lattice" / "raw_beam13.txt.gz")
    for (name, ours), (_, theirs), (_, text) in zip(raw, boosted, printed, strict=True):
        assert_equal(ours, theirs, leave_out={"graph_cost"})  # what boosting changes
        assert_equal(ours, text, leave_out=COSTS)
        for cost in COSTS:
            value, six_digits = getattr(ours, cost), getattr(text, cost)
            np.testing.assert_allclose(value, six_digits, rtol=1e-5, err_msg=name)


def test_either_kind_is_read_as_either_kind(golden):
    for name in ("raw_beam13.lats", "boosted_b0.1.lats", "compact_beam13.txt"):
        raw = read_lattices(golden / "lattice" / name)
        compact = read_compact_lattices(golden / "lattice" / name)
        for (utterance, one), (again, two) in zip(raw, compact, strict=True):
            assert utterance == again
            assert one.num_frames == two.num_frames
            assert one.depth == pytest.approx(two.depth)
            spread = two.to_lattice()
            assert np.count_nonzero(spread.transition_id) == round(
                one.depth * one.num_frames
            )
            assert_equal(one.to_compact(), spread.to_compact())


@pytest.mark.parametrize("name", ["raw_beam13.lats", "boosted_b0.1.lats"])
@pytest.mark.parametrize("binary", [True, False])
def test_lists_of_places_lead_to_the_same_lattices(golden, tmp_path, name, binary):
    source, archive = golden / "lattice" / name, tmp_path / "copy.ark"
    is_compact = name.startswith("boosted")
    read = read_compact_lattices if is_compact else read_lattices
    wanted = dict(read(source))
    write_lattices(archive, wanted.items(), binary=binary, scp=tmp_path / "copy.scp")
    lines = (tmp_path / "copy.scp").read_text().splitlines()
    backwards = tmp_path / "backwards.scp"
    backwards.write_text("\n".join(reversed(lines)) + "\n")
    found = list(read(backwards))
    assert [utterance for utterance, _ in found] == list(reversed(wanted))
    for utterance, lattice in found:
        assert_equal(lattice, wanted[utterance])
    for path in (archive, tmp_path / "copy.scp", source):
        places = LatticeArchive(path)
        assert places.utterances == tuple(wanted)
        for utterance in ("theo-test-0004", "george-test-0000"):
            one = places.compact(utterance) if is_compact else places.lattice(utterance)
            assert_equal(one, wanted[utterance])
            assert places.lattice(utterance).num_frames == one.num_frames


def test_archives_longer_than_the_buffer(golden, tmp_path):
    items = list(read_lattices(golden / "lattice" / "raw_beam13.lats"))
    named = [(f"{name}-{k}", one) for k in range(7) for name, one in items]
    write_lattices(tmp_path / "a", named)
    assert (tmp_path / "a").stat().st_size > 2_400_000
    places = LatticeArchive(tmp_path / "a")
    assert places.utterances == tuple(name for name, _ in named)
    for (name, one), (again, read) in zip(
        named, read_lattices(tmp_path / "a"), strict=True
    ):
        assert name == again
        assert_equal(read, one)
        assert_equal(places.lattice(name), one)


def test_openfst_reads_what_is_written(golden, tmp_path):
    for _, lattice in read_lattices(golden / "lattice" / "raw_beam13.lats"):
        write_lattices(tmp_path / "a", [("a", lattice)])
        raw = (tmp_path / "a").read_bytes()
        (tmp_path / "a.fst").write_bytes(raw.removeprefix(b"a "))
        theirs = kaldifst.Lattice.read(str(tmp_path / "a.fst"))
        assert theirs.num_states == lattice.num_states
        rows = theirs.to_str().splitlines()
        num_final = np.isfinite(lattice.final_graph_cost).sum()
        assert len(rows) == lattice.num_arcs + num_final
