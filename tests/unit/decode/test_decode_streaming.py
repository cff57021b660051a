"""Sessions: partial paths, many at once, bounded memory, what happens after errors."""

import numpy as np
import pytest
from reference.decode_paths import endless_graph

from latflow.decode import tokens
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.streaming import DeadEndError
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lattice.best_path import best_path

TID_TO_PDF = np.array([0, 0, 1, 2, 1], np.int32)
SCALE = 0.5


def loop_graph():
    """Two words of one looped sound each, over and over."""
    return Graph.from_arrays(
        0,
        np.array([0, 2, 4, 6]),
        np.array([1, 2, 1, 0, 2, 0], np.int32),
        np.array([1, 2, 0, 0, 0, 0], np.int32),
        np.array([0.7, 0.7, 0.1, 0.3, 0.1, 0.3], np.float32),
        np.array([1, 2, 1, 0, 2, 0], np.int32),
        np.array([0.0, np.inf, np.inf], np.float32),
    )


def scores(num_frames, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(num_frames, 3)).astype(np.float32) * 3


@pytest.fixture
def decoder():
    return LatticeDecoder(loop_graph(), TID_TO_PDF, lattice_beam=4.0, prune_interval=7)


def test_the_path_so_far_is_that_of_an_utterance_that_ends_there(decoder):
    log_likes = scores(40)
    with decoder.session(acoustic_scale=SCALE) as session:
        for end in range(1, 41):
            session.advance(log_likes[end - 1 : end])
            assert session.num_frames == end
            found = session.best_path(use_final=True)
            whole = decoder.decode(log_likes[:end], acoustic_scale=SCALE).lattice
            expected = best_path(whole, acoustic_scale=SCALE)
            for name, value in vars(expected).items():
                np.testing.assert_allclose(vars(found)[name], value, rtol=1e-6)


def test_without_final_costs_the_path_may_end_anywhere(decoder):
    log_likes = scores(30, seed=3)
    session = decoder.session(acoustic_scale=SCALE)
    session.advance(log_likes)
    anywhere, at_end = session.best_path(), session.best_path(use_final=True)
    costs = [p.graph_cost + SCALE * p.acoustic_cost for p in (anywhere, at_end)]
    assert costs[0] <= costs[1]
    assert len(anywhere.transition_ids) == len(at_end.transition_ids) == 30
    session.close()


def test_a_path_before_the_first_frame_is_empty(decoder):
    with decoder.session(acoustic_scale=SCALE) as session:
        path = session.best_path()
        assert (len(path.words), len(path.transition_ids)) == (0, 0)
        assert (path.graph_cost, path.acoustic_cost) == (0.0, 0.0)
        session.advance(scores(5))
        assert len(session.best_path().transition_ids) == 5


def test_many_sessions_in_turns_are_as_good_as_one_after_the_other(decoder):
    utterances = [scores(20 + 3 * i, seed=i) for i in range(5)]
    alone = [decoder.decode(x, acoustic_scale=SCALE).lattice for x in utterances]
    sessions = [decoder.session(acoustic_scale=SCALE) for _ in utterances]
    for first in range(0, 40, 4):
        for session, log_likes in zip(sessions, utterances, strict=True):
            session.advance(log_likes[first : first + 4])
    for session, lattice in zip(sessions, alone, strict=True):
        again = session.finalise().lattice
        np.testing.assert_array_equal(again.acoustic_cost, lattice.acoustic_cost)
        np.testing.assert_array_equal(again.next_state, lattice.next_state)


def test_serials_may_begin_anew(decoder, monkeypatch):
    before = decoder.decode(scores(30), acoustic_scale=SCALE).lattice
    with decoder._engine.scratch() as holder:  # a scratch after years of speech
        holder[0].clock[tokens.BASE] = (1 << 30) - 20
    after = decoder.decode(scores(30), acoustic_scale=SCALE).lattice
    np.testing.assert_array_equal(before.acoustic_cost, after.acoustic_cost)
    np.testing.assert_array_equal(before.next_state, after.next_state)
    with decoder._engine.scratch() as holder:
        assert holder[0].clock[tokens.BASE] < 1 << 20


def test_memory_follows_the_lattice_not_the_search():
    graph = endless_graph(np.random.default_rng(5), 60)
    log_likes = np.tile(scores(50, seed=1), (40, 1))
    decoder = LatticeDecoder(
        graph, TID_TO_PDF, beam=8.0, lattice_beam=0.5, min_active=0, prune_interval=20
    )
    session = decoder.session(acoustic_scale=SCALE)
    store = session._open_store()
    per_frame = []
    for first in range(0, len(log_likes), 100):
        session.advance(log_likes[first : first + 100])
        store = session._open_store()
        per_frame.append(store.counts[tokens.LINKS] / session.num_frames)
    links, size = int(store.counts[tokens.LINKS]), len(store.link)
    lattice = session.finalise().lattice
    assert links < 2 * lattice.num_arcs + 1000  # one window that is not settled yet
    assert size <= max(8192, 2 * links)
    assert per_frame[-1] < 1.5 * per_frame[len(per_frame) // 2]
    searched = LatticeDecoder(
        graph, TID_TO_PDF, beam=8.0, lattice_beam=0.5, min_active=0, prune_interval=9999
    ).session(acoustic_scale=SCALE)
    searched.advance(log_likes)
    assert searched._open_store().counts[tokens.LINKS] > 3 * links


def test_a_bad_piece_leaves_the_session_as_it_was(decoder):
    log_likes = scores(20)
    session = decoder.session(acoustic_scale=SCALE, utterance="utt-9")
    session.advance(log_likes[:10])
    with pytest.raises(UserError, match="utt-9: log-likelihoods at frame 12 hold NaN"):
        session.advance(np.concatenate([log_likes[:2], np.full((1, 3), np.nan)]))
    with pytest.raises(UserError, match="utt-9: log-likelihoods of shape"):
        session.advance(log_likes[:, :1])
    session.advance(log_likes[10:])
    whole = decoder.decode(log_likes, acoustic_scale=SCALE).lattice
    np.testing.assert_array_equal(
        session.finalise().lattice.acoustic_cost, whole.acoustic_cost
    )


def test_a_dead_session_says_so_at_every_call():
    line = Graph.from_arrays(
        0,
        np.array([0, 1, 1]),
        np.array([1], np.int32),
        np.array([5], np.int32),
        np.array([0.5], np.float32),
        np.array([1], np.int32),
        np.array([np.inf, 0.0], np.float32),
    )
    session = LatticeDecoder(line, TID_TO_PDF).session(acoustic_scale=SCALE)
    with pytest.raises(DeadEndError, match="survives frame 1 "):
        session.advance(np.zeros((3, 1), np.float32))
    for call in (session.best_path, session.finalise):
        with pytest.raises(DeadEndError, match="survives frame 1 "):
            call()
    session.close()


def test_a_session_that_is_over_takes_no_more(decoder):
    session = decoder.session(acoustic_scale=SCALE)
    session.advance(scores(3))
    session.finalise()
    with pytest.raises(RuntimeError, match="session is over"):
        session.advance(scores(1))
    with (
        decoder.session(acoustic_scale=SCALE, utterance="u") as empty,
        pytest.raises(UserError, match="u: no frames"),
    ):
        empty.finalise()


def test_stores_of_many_sessions_are_not_all_kept(decoder):
    pool, links = decoder._engine.stores, 1 << 20
    large = links * tokens.LINK.itemsize
    for _ in range(2):
        sessions = [decoder.session(acoustic_scale=SCALE) for _ in range(20)]
        assert pool.num_bytes == 0
        for session in sessions:  # as after a long search
            session._store = tokens.with_capacity(session._open_store(), links=links)
        for session in sessions:
            session.close()
        assert large <= pool.num_bytes < 6 * large
        assert pool.num_bytes >= len(pool) * large
    stores = [pool.take() for _ in range(len(pool))]
    assert (len(pool), pool.num_bytes) == (0, 0)
    for store in (tokens.new_store(), *stores, tokens.new_store()):
        pool.give(store)
    assert len(pool) == len(stores) + 2  # small ones find room beside them
