"""The search against the enumeration of all paths on small random graphs."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.decode_paths import (
    arc_extra_costs,
    graph_paths,
    lattice_paths,
    random_graph,
)

from latflow.decode.decoder import LatticeDecoder
from latflow.decode.streaming import DeadEndError
from latflow.lattice.best_path import best_path

TID_TO_PDF = np.array([0, 0, 1, 2, 1], np.int32)
SCALE = 0.5
LATTICE_BEAM = 2.5

cases = given(
    seed=st.integers(0, 2**32 - 1),
    num_states=st.integers(1, 5),
    num_frames=st.integers(1, 4),
    has_cycles=st.booleans(),
)


def make(seed, num_states, num_frames, has_cycles):
    """A random graph and random log-likelihoods, some of them -inf."""
    generator = np.random.default_rng(seed)
    graph = random_graph(generator, num_states, has_cycles=has_cycles)
    log_likes = generator.normal(size=(num_frames, 3)).astype(np.float32) * 3
    log_likes[generator.random(log_likes.shape) < 0.1] = -np.inf
    log_likes[np.isinf(log_likes).all(axis=1)] = 0.0
    return graph, log_likes


def search(graph, log_likes, **options):
    wide = {"beam": 1000.0, "lattice_beam": LATTICE_BEAM, "min_active": 0, **options}
    decoder = LatticeDecoder(graph, TID_TO_PDF, **wide)
    return decoder.decode(log_likes, acoustic_scale=SCALE)


def as_bytes(lattice):
    return [
        np.asarray(value).tobytes()
        for name, value in sorted(vars(lattice).items())
        if name != "num_frames"
    ]


@cases
def test_lattice_holds_the_paths_near_the_best(
    seed, num_states, num_frames, has_cycles
):
    graph, log_likes = make(seed, num_states, num_frames, has_cycles)
    paths = graph_paths(graph, TID_TO_PDF, log_likes, SCALE)
    if not paths:
        with pytest.raises(DeadEndError, match="no path through the decoding graph"):
            search(graph, log_likes)
        return
    decoded = search(graph, log_likes)
    complete = [p for p in paths if p.is_final]
    assert decoded.reached_final == bool(complete)
    counted = complete or paths
    least = min(p.cost for p in counted)
    best = best_path(decoded.lattice, acoustic_scale=SCALE)
    assert best.graph_cost + SCALE * best.acoustic_cost == pytest.approx(
        least, abs=1e-4
    )
    if has_cycles:
        return
    near = {(p.transition_ids, p.words) for p in counted if p.cost < least + 2.499}
    held = lattice_paths(decoded.lattice, 1.0, SCALE)
    assert near <= {(p.transition_ids, p.words) for p in held}
    assert len(held) <= len(counted)


@cases
def test_lattice_is_ordered_timed_and_tight(seed, num_states, num_frames, has_cycles):
    graph, log_likes = make(seed, num_states, num_frames, has_cycles)
    try:
        lattice = search(graph, log_likes).lattice
    except DeadEndError:
        return
    source = lattice.source()
    assert (lattice.next_state > source).all()
    steps = lattice.frame[lattice.next_state] - lattice.frame[source]
    np.testing.assert_array_equal(steps, lattice.transition_id != 0)
    is_final = np.isfinite(lattice.final_graph_cost)
    assert (lattice.frame[is_final] == num_frames).all()
    np.testing.assert_array_equal(is_final, np.isfinite(lattice.final_acoustic_cost))
    assert (arc_extra_costs(lattice, SCALE) <= LATTICE_BEAM + 1e-3).all()
    emitting = lattice.transition_id != 0
    expected = -log_likes[
        lattice.frame[source[emitting]], TID_TO_PDF[lattice.transition_id[emitting]]
    ]
    np.testing.assert_array_equal(lattice.acoustic_cost[emitting], expected)


@cases
def test_pruning_at_intervals_changes_nothing(seed, num_states, num_frames, has_cycles):
    graph, log_likes = make(seed, num_states, 3 * num_frames, has_cycles)
    results = []
    for interval in (1, 2, 1000):
        try:
            found = search(graph, log_likes, prune_interval=interval)
        except DeadEndError:
            results.append(None)
        else:
            results.append(as_bytes(found.lattice))
    assert results[0] == results[1] == results[2]


@given(
    seed=st.integers(0, 2**32 - 1),
    num_states=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    interval=st.integers(1, 5),
    has_cycles=st.booleans(),
)
def test_a_session_gives_the_offline_result_however_frames_are_cut(
    seed, num_states, cuts, interval, has_cycles
):
    graph, log_likes = make(seed, num_states, 12, has_cycles)
    decoder = LatticeDecoder(graph, TID_TO_PDF, prune_interval=interval)
    pieces = np.split(log_likes, sorted(cuts))
    try:
        whole = decoder.decode(log_likes, acoustic_scale=SCALE)
    except DeadEndError as error:
        with pytest.raises(DeadEndError, match=re.escape(str(error))):
            decoder.decode_chunks(pieces, acoustic_scale=SCALE)
        return
    session = decoder.session(acoustic_scale=SCALE)
    for piece in pieces:
        session.advance(piece)
        session.best_path()  # looking on changes nothing
    found = session.finalise()
    assert as_bytes(found.lattice) == as_bytes(whole.lattice)
    assert found.lattice.num_frames == whole.lattice.num_frames
    assert found.reached_final == whole.reached_final
    assert found.mean_active == whole.mean_active


@cases
def test_partial_paths_are_the_best_of_all(seed, num_states, num_frames, has_cycles):
    graph, log_likes = make(seed, num_states, num_frames, has_cycles)
    wide = {"beam": 1000.0, "lattice_beam": LATTICE_BEAM, "min_active": 0}
    decoder = LatticeDecoder(graph, TID_TO_PDF, prune_interval=2, **wide)
    session = decoder.session(acoustic_scale=SCALE)
    for end in range(1, num_frames + 1):
        paths = graph_paths(graph, TID_TO_PDF, log_likes[:end], SCALE)
        if not paths:
            with pytest.raises(DeadEndError):
                session.advance(log_likes[end - 1 : end])
            return
        session.advance(log_likes[end - 1 : end])
        without_final = [p.cost - p.final_cost for p in paths]
        complete = [p.cost for p in paths if p.is_final] or without_final
        for use_final, costs in ((False, without_final), (True, complete)):
            path = session.best_path(use_final=use_final)
            cost = path.graph_cost + SCALE * path.acoustic_cost
            assert cost == pytest.approx(min(costs), abs=1e-4)
            assert len(path.transition_ids) == end
            assert (
                any(
                    p.transition_ids == tuple(path.transition_ids)
                    and p.words == tuple(path.words)
                    for p in paths
                )
                or has_cycles
            )
            assert (np.diff(path.word_begin) >= 0).all()
            assert (path.word_end >= path.word_begin).all()


@given(seed=st.integers(0, 2**32 - 1), max_active=st.integers(2, 6))
def test_a_narrow_search_never_finds_a_better_path(seed, max_active):
    graph, log_likes = make(seed, 5, 4, has_cycles=False)
    try:
        wide = search(graph, log_likes)
        narrow = search(graph, log_likes, beam=2.0, max_active=max_active)
    except DeadEndError:
        return
    costs = [best_path(d.lattice, acoustic_scale=SCALE) for d in (wide, narrow)]
    totals = [p.graph_cost + SCALE * p.acoustic_cost for p in costs]
    if wide.reached_final == narrow.reached_final:
        assert totals[0] <= totals[1] + 1e-4
    assert narrow.mean_active <= wide.mean_active
