"""Lattice archives that Kaldi wrote."""

import gzip

import numpy as np
import pytest

from latflow.kaldi.io import read_int_vectors
from latflow.lattice.best_path import Scales, best_path, best_paths
from latflow.lattice.io.archives import read_lattices, write_lattices

SCALE = 0.1


def test_kaldis_binary_archive_is_written_back_byte_for_byte(golden, tmp_path):
    source = golden / "lattice" / "raw_beam13.lats"
    write_lattices(tmp_path / "copy.lats", read_lattices(source))
    assert (tmp_path / "copy.lats").read_bytes() == source.read_bytes()


def test_text_and_gzip_keep_every_bit(golden, tmp_path):
    source = golden / "lattice" / "raw_beam13.lats"
    write_lattices(tmp_path / "a.txt.gz", read_lattices(source), binary=False)
    write_lattices(tmp_path / "b.gz", read_lattices(tmp_path / "a.txt.gz"))
    with gzip.open(tmp_path / "b.gz") as stream:
        assert stream.read() == source.read_bytes()


@pytest.mark.parametrize("name", ["raw_beam13.txt.gz", "compact_beam13.txt"])
def test_compact_text_has_the_same_best_paths(golden, name):
    raw = dict(read_lattices(golden / "lattice" / "raw_beam13.lats"))
    words = dict(read_int_vectors(golden / "lattice" / "best_path_words.int"))
    ids = dict(read_int_vectors(golden / "lattice" / "best_path_ali.txt"))
    found = dict(read_lattices(golden / "lattice" / name))
    assert found.keys() == raw.keys()
    for utterance, lattice in found.items():
        path = best_path(lattice, acoustic_scale=SCALE)
        exact = best_path(raw[utterance], acoustic_scale=SCALE)
        np.testing.assert_array_equal(path.words, words[utterance])
        np.testing.assert_array_equal(path.transition_ids, ids[utterance])
        assert path.graph_cost == pytest.approx(exact.graph_cost, rel=1e-5)
        assert path.acoustic_cost == pytest.approx(exact.acoustic_cost, rel=1e-5)
        assert lattice.num_frames == raw[utterance].num_frames


def test_boosted_lattices_are_read(golden):
    raw = dict(read_lattices(golden / "lattice" / "raw_beam13.lats"))
    for utterance, lattice in read_lattices(golden / "lattice" / "boosted_b0.1.lats"):
        plain = raw[utterance]
        assert lattice.num_frames == plain.num_frames
        assert lattice.graph_cost.sum() != plain.graph_cost.sum()


def test_word_times_increase_and_more_penalty_means_fewer_words(golden):
    settings = [Scales.from_lmwt(10, wip) for wip in (-20, 0, 20, 1000)]
    for _, lattice in read_lattices(golden / "lattice" / "raw_beam13.lats"):
        paths = best_paths(lattice, settings)
        lengths = [len(path.words) for path in paths]
        assert lengths == sorted(lengths, reverse=True)
        for path in paths:
            assert (np.diff(path.word_begin) >= 0).all()
            assert (path.word_begin < path.word_end).all()
