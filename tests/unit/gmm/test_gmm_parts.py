"""Frame sources, initial models, schedules, graph files."""

import numpy as np
import pytest

from latflow.align.aligner import failure_reason
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.transform import Deltas
from latflow.fst.graph import Graph
from latflow.gmm.options import DeltasOptions, GmmOptions, MonoOptions
from latflow.gmm.source import FrameSource
from latflow.gmm.train import equal_alignment, flat_start, from_leaf_statistics
from latflow.gmm.training import shortest, targets
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.options import read_options
from latflow.parallel import worker_pool


def store_of(folder, lengths, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    with FrameWriter(folder, dim=dim) as writer:
        for n, length in enumerate(lengths):
            writer.append(f"u{n:03}", "s", "A", rng.normal(size=(length, dim)))
    return FrameStore.load(folder)


def chain(num_states):
    """A graph of states in a row, each with a self-loop (ids 2 n + 1 and 2 n + 2)."""
    arcs = []
    for n in range(num_states):
        arcs.append((n, n + 1, 2 * n + 1))
        arcs.append((n + 1, n + 1, 2 * n + 2))
    arcs.sort()
    source = np.array([a[0] for a in arcs])
    ids = np.array([a[2] for a in arcs], np.int32)
    final = np.full(num_states + 1, np.inf, np.float32)
    final[-1] = 0.0
    return Graph.from_arrays(
        0,
        np.searchsorted(source, np.arange(num_states + 2)),
        ids,
        np.zeros_like(ids),
        np.zeros(len(ids), np.float32),
        np.array([a[1] for a in arcs], np.int32),
        final,
    )


def test_source_gives_transformed_frames_in_chunks(tmp_path):
    store = store_of(tmp_path / "s", [5, 9, 0, 30, 4, 7])
    transform = Deltas()
    chosen = np.array([0, 1, 3, 5])
    for cache in (0, 10**6):
        source = FrameSource(
            store, transform, chosen, chunk_bytes=4 * 9 * 15, cache_bytes=cache
        )
        assert [c.last - c.first for c in source.chunks] == [2, 1, 1]
        with worker_pool(2) as pool:
            for _ in range(2):
                rows = [source.chunk(c, pool) for c in source.chunks]
                expected = [transform(store.frames(i)) for i in chosen.tolist()]
                np.testing.assert_array_equal(
                    np.concatenate(rows), np.concatenate(expected)
                )
                for u in range(len(source)):
                    np.testing.assert_array_equal(source.frames(u), expected[u])
        assert source.dim == 9
        assert source.num_frames == 51
        assert source.utt_id(3) == "u005"


def test_shortest_utterances(tmp_path):
    store = store_of(tmp_path / "s", [5, 9, 0, 5, 4, 7])
    assert shortest(store, None).tolist() == [0, 1, 3, 4, 5]
    assert shortest(store, 2).tolist() == [0, 4]
    assert shortest(store, 3).tolist() == [0, 3, 4]


def test_no_frames_at_all_is_an_error(tmp_path):
    store = store_of(tmp_path / "s", [0, 0])
    with pytest.raises(UserError, match="no frames to train on"):
        shortest(store, None)


def test_flat_start_is_the_gaussian_of_all_frames():
    topology = Topology.standard([2, 3], [1])
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    rng = np.random.default_rng(1)
    blocks = [rng.normal(3.0, 2.0, (n, 2)).astype(np.float32) for n in (5, 50)]
    model = flat_start(tree, topology, blocks)
    everything = np.concatenate(blocks).astype(float)
    assert model.gmms.num_pdfs == 8
    np.testing.assert_allclose(model.gmms.means[3], everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        model.gmms.variances[7], everything.var(axis=0), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("blocks", "message"),
    [([], "no frames"), ([np.ones((9, 2), np.float32)], "feature 0 does not vary")],
)
def test_flat_start_needs_frames_that_vary(blocks, message):
    topology = Topology.standard([2], [1])
    tree = ContextDependency.monophone([[1], [2]], topology.pdf_class_counts())
    with pytest.raises(UserError, match=message):
        flat_start(tree, topology, blocks)


def test_leaves_without_data_get_the_gaussian_of_all():
    counts = np.array([10.0, 0.0])
    sums = np.array([[20.0], [0.0]])
    squares = np.array([[90.0], [0.0]])
    gmms = from_leaf_statistics(counts, sums, squares)
    np.testing.assert_allclose(gmms.means, 2.0)
    np.testing.assert_allclose(gmms.variances, 5.0)


def test_equal_alignment_shares_frames_out_equally():
    ids = equal_alignment(chain(3), 11, np.random.default_rng(0))
    states = (ids - 1) // 2
    assert (np.diff(states) >= 0).all()
    assert np.bincount(states).tolist() == [4, 4, 3]
    assert equal_alignment(chain(3), 2, np.random.default_rng(0)) is None
    assert len(equal_alignment(chain(3), 3, np.random.default_rng(0))) == 3


def test_reason_of_a_failure():
    assert (
        failure_reason(chain(5), 4)
        == "too short: 4 frames, its transcript needs at least 5"
    )
    assert "beam" in failure_reason(chain(5), 5)


def test_schedule_mixes_up_as_kaldis_scripts():
    mono = MonoOptions()
    wanted = targets(mono, 100)
    assert len(wanted) == 39
    assert wanted[:3] == [100, 130, 160]
    assert wanted[29:32] == [970, 1000, 1000]
    assert mono.search(1).beam == 6.0
    assert mono.search(2).beam == 10.0
    assert mono.realign_iterations[8:11] == (9, 10, 12)
    assert mono.realign_iterations[-1] == 38
    tri = DeltasOptions(alignments="mono")
    assert targets(tri, 2000)[:2] == [2000, 2320]
    assert targets(tri, 2000)[-1] == 10000
    assert tri.search(1).beam == 10.0


def test_systems_of_the_default_and_the_nearest_key():
    assert list(GmmOptions().systems) == ["mono", "tri1"]
    with pytest.raises(UserError, match="did you mean retry_beam"):
        read_options(GmmOptions, {"align": {"retrybeam": 3}}, "gmm")


def test_the_first_alignment_has_a_beam_of_its_own():
    options = MonoOptions(initial_beam=3.0, beam=9.0)
    assert [options.search(iteration).beam for iteration in (1, 2)] == [3.0, 9.0]
