"""Forward-backward on lattices small enough to do by hand, and on hard ones."""

import math
from itertools import pairwise

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward

INF = np.inf


def lattice_of(arcs, finals):
    """A lattice of (source, target, transition-id, graph, acoustic) and final costs."""
    table = np.array([(*arc[:3], 0) for arc in arcs], np.int32).reshape(-1, 4)
    costs = np.array([arc[3:] for arc in arcs], np.float32).reshape(-1, 2)
    return Lattice.from_arcs(table, costs, np.array(finals, np.float32))


def two_arcs(first, second, final=(0.0, 0.0)):
    """One frame, two parallel arcs with these (graph, acoustic) costs."""
    return lattice_of([(0, 1, 1, *first), (0, 1, 2, *second)], [(INF, INF), final])


def sausage(num_frames, width, costs=(0.0, 0.0)):
    """As many parallel arcs at each frame."""
    arcs = [(t, t + 1, k + 1, *costs) for t in range(num_frames) for k in range(width)]
    return lattice_of(arcs, [(INF, INF)] * num_frames + [(0.0, 0.0)])


def test_two_arcs_share_by_their_scaled_costs():
    lattice = two_arcs((1.0, 20.0), (2.0, 0.0), final=(0.5, 30.0))
    found = forward_backward(lattice, lm_scale=2.0, acoustic_scale=0.1)
    # costs 2 + 2 and 4 + 0; the end costs 1 + 3
    np.testing.assert_allclose(found.arc_posterior, [0.5, 0.5])
    assert found.log_like == pytest.approx(math.log(2.0) - 8.0)
    np.testing.assert_allclose(found.alpha, [0.0, math.log(2.0) - 4.0])
    np.testing.assert_allclose(found.beta, [found.log_like, -4.0])


def test_a_state_alone_is_an_utterance_without_frames():
    found = forward_backward(lattice_of([], [(0.25, 0.5)]))
    assert found.log_like == -0.75
    assert found.arc_posterior.shape == (0,)
    np.testing.assert_array_equal(found.beta, [-0.75])


def test_an_impossible_arc_has_no_share_even_at_scale_zero():
    lattice = two_arcs((1.0, INF), (1.0, 3.0))
    for scale in (0.0, 1.0):
        found = forward_backward(lattice, acoustic_scale=scale)
        np.testing.assert_array_equal(found.arc_posterior, [0.0, 1.0])


def test_dead_ends_and_what_follows_impossible_arcs_have_no_share():
    lattice = lattice_of(
        [
            (0, 1, 1, 0.0, 0.0),
            (0, 2, 1, 0.0, -50.0),  # good, but leads nowhere
            (0, 3, 1, 0.0, INF),
            (1, 4, 1, 0.0, 0.0),
            (3, 4, 1, 0.0, -50.0),
        ],
        [(INF, INF)] * 4 + [(0.0, 0.0)],
    )
    found = forward_backward(lattice)
    np.testing.assert_array_equal(found.arc_posterior, [1, 0, 0, 1, 0])
    assert found.log_like == 0.0
    np.testing.assert_array_equal(found.alpha, [0.0, 0.0, 50.0, -INF, 0.0])
    np.testing.assert_array_equal(found.beta, [0.0, 0.0, -INF, 50.0, 0.0])


def without_states():
    """The lattice of no path at all."""
    nothing = {
        name: value[:0]
        for name, value in vars(two_arcs((0.0, 0.0), (0.0, 0.0))).items()
        if name not in ("arc_begin", "num_frames")
    }
    return Lattice(arc_begin=np.zeros(1, np.int64), num_frames=0, **nothing)


@pytest.mark.parametrize(
    "lattice",
    [
        without_states(),
        lattice_of([(0, 1, 1, 0.0, 0.0)], [(INF, INF), (INF, INF)]),
        two_arcs((0.0, INF), (INF, 0.0)),
        two_arcs((0.0, 1.0), (1.0, 0.0), final=(0.0, INF)),
    ],
    ids=["no state", "no final state", "impossible arcs", "an impossible end"],
)
def test_no_path_is_an_error(lattice):
    with pytest.raises(UserError, match="without a path to a final state"):
        forward_backward(lattice)


@pytest.mark.parametrize("bad", [np.nan, -INF])
def test_a_cost_that_is_no_number_is_an_error_that_names_the_frame(bad):
    arcs = [(0, 1, 1, 0.0, 0.0), (1, 2, 1, 0.0, bad)]
    lattice = lattice_of(arcs, [(INF, INF)] * 2 + [(0.0, 0.0)])
    with pytest.raises(UserError, match=rf"frame 1 \(state 1\) .* of {bad}"):
        forward_backward(lattice)
    # a NaN beside a cost of inf is no better
    with pytest.raises(UserError, match="frame 0"):
        forward_backward(two_arcs((0.0, 0.0), (INF, np.nan)))
    good = two_arcs((0.0, 0.0), (0.0, 0.0))
    good.final_graph_cost[1] = bad
    with pytest.raises(UserError, match=r"a final state \(state 1\)"):
        forward_backward(good)


def test_more_paths_than_a_float_can_count():
    """8 ** 3000 paths of the same cost."""
    found = forward_backward(sausage(3000, 8, (0.5, 0.25)))
    assert found.log_like == pytest.approx(3000 * (math.log(8.0) - 0.75), rel=1e-12)
    np.testing.assert_allclose(found.arc_posterior, 1.0 / 8.0, rtol=1e-9)
    np.testing.assert_allclose(
        found.alpha + found.beta, np.full(3001, found.log_like), rtol=1e-12
    )


@pytest.mark.parametrize("many_first", [True, False])
@pytest.mark.parametrize("bonus", [0.0, 500.0, 3000 * math.log(4.0) - 1.0, 3000.0])
def test_many_bad_paths_meet_a_few_good_ones(many_first, bonus):
    """A chain that is `bonus` better than each of 4 ** 3000 parallel paths."""
    length, width = 3000, 4
    end = 2 * length - 1
    low = pairwise([0, *range(1, length), end])
    high = pairwise([0, *range(length, end), end])
    crowd, chain = (low, high) if many_first else (high, low)
    arcs = [(s, t, k + 1, 0.0, 0.0) for s, t in crowd for k in range(width)]
    arcs += [(s, t, 9, -bonus / length, 0.0) for s, t in chain]
    lattice = lattice_of(arcs, [(INF, INF)] * end + [(0.0, 0.0)])
    per_arc = float(np.float32(bonus / length))
    crowd_log, chain_log = length * math.log(width), per_arc * length
    found = forward_backward(lattice)
    total = np.logaddexp(crowd_log, chain_log)
    assert found.log_like == pytest.approx(total, rel=1e-10)
    np.testing.assert_allclose(
        found.arc_posterior[lattice.transition_id == 9],
        math.exp(chain_log - total),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        found.arc_posterior[lattice.transition_id != 9],
        math.exp(crowd_log - total) / width,
        rtol=1e-6,
        atol=1e-300,
    )


def test_a_way_beyond_all_floats_keeps_its_beta():
    lattice = lattice_of(
        [
            (0, 1, 1, 0.0, 0.0),
            (0, 2, 1, 0.0, 0.0),
            (1, 3, 1, 0.0, 0.0),
            (2, 3, 1, 0.0, 5000.0),
        ],
        [(INF, INF)] * 3 + [(0.0, 0.0)],
    )
    found = forward_backward(lattice)
    np.testing.assert_array_equal(found.beta, [0.0, 0.0, -5000.0, 0.0])
    np.testing.assert_array_equal(found.arc_posterior, [1.0, 0.0, 1.0, 0.0])


def test_a_compact_lattice_has_the_same_total():
    lattice = lattice_of(
        [
            (0, 1, 1, 0.0, 1.0),
            (1, 2, 2, 0.5, 1.0),
            (0, 3, 1, 0.0, 0.0),
            (3, 2, 3, 0.0, 1.0),
        ],
        [(INF, INF), (INF, INF), (0.25, 0.0), (INF, INF)],
    )
    compact = lattice.to_compact()
    assert compact.num_arcs == 2
    raw, short = forward_backward(lattice), forward_backward(compact)
    assert short.log_like == pytest.approx(raw.log_like, rel=1e-12)
    np.testing.assert_allclose(short.arc_posterior, raw.arc_posterior[[0, 1]])
