"""The search against Kaldi's: same graph, same log-likelihoods."""

from concurrent.futures import ThreadPoolExecutor

import kaldi_decoder
import kaldifst
import numpy as np
import pytest

from latflow.decode.decoder import LatticeDecoder, decode_batch
from latflow.decode.streaming import Decoded
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices, write_lattices

SCALE = 0.1


class System:
    """A decoder with the log-likelihoods, and what it makes of them, by utterance."""

    def __init__(self, golden, name):
        model = AcousticModel.load(golden / "gmm" / name / "final.mdl")
        self.graph = Graph.load(golden / "graph" / f"HCLG_{name}.fst")
        self.tid_to_pdf = model.transitions.pdf
        self.decoder = self.with_limits(max_active=7000)
        self.log_likes = dict(read_matrices(golden / "align" / f"loglikes_{name}.ark"))
        self.decoded = {
            u: self.decoder.decode(x, acoustic_scale=SCALE)
            for u, x in self.log_likes.items()
        }

    def with_limits(self, **limits):
        return LatticeDecoder(
            self.graph, self.tid_to_pdf, beam=13, lattice_beam=7, **limits
        )


@pytest.fixture(scope="module")
def tri1(golden):
    return System(golden, "tri1")


def cost_of(lattice):
    path = best_path(lattice, acoustic_scale=SCALE)
    return path.graph_cost + SCALE * path.acoustic_cost


def test_best_paths_are_kaldis(golden, tri1):
    ids = dict(read_int_vectors(golden / "lattice" / "best_ali_beam13.txt"))
    words = dict(read_int_vectors(golden / "lattice" / "best_words_beam13.int"))
    total = 0.0
    for utterance, found in tri1.decoded.items():
        assert found.reached_final
        path = best_path(found.lattice, acoustic_scale=SCALE)
        np.testing.assert_array_equal(path.transition_ids, ids[utterance])
        np.testing.assert_array_equal(path.words, words[utterance])
        total -= path.graph_cost + SCALE * path.acoustic_cost
    frames = sum(found.lattice.num_frames for found in tri1.decoded.values())
    assert total / frames == pytest.approx(-9.19229, abs=1e-5)


def rows(lattice):
    """Arcs that consume a frame, sorted: time, labels, costs."""
    source = lattice.source()
    emitting = lattice.transition_id != 0
    table = np.stack(
        [
            lattice.frame[source],
            lattice.transition_id,
            lattice.word,
            lattice.graph_cost,
            lattice.acoustic_cost,
        ],
        axis=1,
    )[emitting]
    return table[np.lexsort(table.T[::-1])]


def test_raw_lattices_are_kaldis_arc_by_arc(golden, tri1):
    for utterance, theirs in read_lattices(golden / "lattice" / "raw_beam13.lats"):
        ours = tri1.decoded[utterance].lattice
        assert (ours.num_states, ours.num_arcs) == (theirs.num_states, theirs.num_arcs)
        assert cost_of(ours) == pytest.approx(cost_of(theirs), rel=1e-6)
        assert ours.depth == theirs.depth
        mine, kaldis = rows(ours), rows(theirs)
        np.testing.assert_array_equal(mine[:, :3], kaldis[:, :3])
        np.testing.assert_allclose(mine[:, 3:], kaldis[:, 3:], rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("name", ["mono", "tri1"])
def test_costs_are_those_of_kaldis_faster_decoder(golden, name):
    system = System(golden, name)
    fst = kaldifst.StdConstFst.read(str(golden / "graph" / f"HCLG_{name}.fst"))
    options = kaldi_decoder.FasterDecoderOptions(beam=13, max_active=7000)
    peer = kaldi_decoder.FasterDecoder(fst, options)
    for utterance, matrix in system.log_likes.items():
        by_id = np.float32(SCALE) * matrix[:, system.tid_to_pdf[1:]]
        peer.decode(kaldi_decoder.DecodableCtc(by_id))
        _, best = peer.get_best_path()
        *_, words, weight = kaldifst.get_linear_symbol_sequence(best)
        path = best_path(system.decoded[utterance].lattice, acoustic_scale=SCALE)
        assert path.words.tolist() == words
        cost = path.graph_cost + SCALE * path.acoustic_cost
        assert cost == pytest.approx(weight.value1 + weight.value2, rel=1e-5)


def test_a_stream_ends_in_kaldis_best_path(golden, tri1):
    words = dict(read_int_vectors(golden / "lattice" / "best_words_beam13.int"))
    for utterance, log_likes in tri1.log_likes.items():
        session = tri1.decoder.session(acoustic_scale=SCALE, utterance=utterance)
        for first in range(0, len(log_likes), 10):
            session.advance(log_likes[first : first + 10])
            partial = session.best_path()
            assert len(partial.transition_ids) == session.num_frames
        path = session.best_path(use_final=True)
        np.testing.assert_array_equal(path.words, words[utterance])
        found = session.finalise().lattice
        expected = tri1.decoded[utterance].lattice
        for name, value in vars(expected).items():
            np.testing.assert_array_equal(vars(found)[name], value)


def test_ten_times_the_speech_takes_no_more_memory(tri1):
    log_likes = max(tri1.log_likes.values(), key=len)

    def room(decoder):
        """Tokens and links that there is room for after each of ten stretches."""
        sizes = []
        with decoder.session(acoustic_scale=SCALE) as session:
            for _ in range(10):
                session.advance(log_likes)
                store = session._open_store()
                sizes.append((len(store.cost), len(store.link)))
        return sizes

    pruned = room(tri1.with_limits(max_active=7000))
    assert pruned[1] == pruned[9]
    assert room(tri1.with_limits(prune_interval=10**6))[9][1] > 4 * pruned[9][1]


def test_a_batch_on_threads_is_the_same(tri1):
    found = decode_batch(
        tri1.decoder, list(tri1.log_likes.values()), acoustic_scale=SCALE, threads=2
    )
    for result, expected in zip(found, tri1.decoded.values(), strict=True):
        assert isinstance(result, Decoded)
        for name, value in vars(expected.lattice).items():
            np.testing.assert_array_equal(vars(result.lattice)[name], value)


def test_threads_do_not_change_a_byte(tri1, tmp_path):
    first = ((u, d.lattice) for u, d in tri1.decoded.items())
    write_lattices(tmp_path / "1", first)
    names = list(tri1.log_likes) * 2
    with ThreadPoolExecutor(2) as pool:
        again = pool.map(
            lambda u: tri1.decoder.decode(tri1.log_likes[u], acoustic_scale=SCALE),
            names,
        )
        named = [(u, d.lattice) for u, d in zip(names, again, strict=True)]
    for half in (named[:6], named[6:]):
        write_lattices(tmp_path / "2", half)
        assert (tmp_path / "2").read_bytes() == (tmp_path / "1").read_bytes()


def test_max_active_bounds_the_search(tri1):
    narrow = tri1.with_limits(max_active=20, min_active=5)
    for utterance, matrix in tri1.log_likes.items():
        found = narrow.decode(matrix, acoustic_scale=SCALE, utterance=utterance)
        assert found.mean_active <= 21
        wide = tri1.decoded[utterance]
        assert cost_of(found.lattice) >= cost_of(wide.lattice) - 1e-6
