"""The lattice beam that follows a depth, and the bound on failures."""

import math

import pytest

from latflow.criteria.sequence.options import LatticeSearchOptions
from latflow.criteria.sequence.policy import BeamPolicy, FailureBound
from latflow.errors import UserError


def policy_of(lattice_beam, **depth):
    """A policy of these options."""
    return BeamPolicy(LatticeSearchOptions(lattice_beam=lattice_beam, depth=depth))


def depth_of(beam):
    """About how depth grows with the beam."""
    return math.exp(0.6 * beam)


@pytest.mark.parametrize("start", [3.0, 11.0])
def test_beam_comes_to_rest_at_the_wanted_depth(start):
    policy = policy_of(start, target=30.0, rate=0.2)
    for _ in range(100):
        policy.update(depth_of(policy.lattice_beam))
    assert depth_of(policy.lattice_beam) == pytest.approx(30.0, rel=0.1)
    beam = policy.lattice_beam
    policy.update(depth_of(beam))
    assert policy.lattice_beam == pytest.approx(beam, abs=0.13)


def test_beam_keeps_its_limits_and_its_step():
    policy = policy_of(8.0, target=1000.0, max_lattice_beam=9.5, rate=1.0)
    policy.update(1.0)
    assert policy.lattice_beam == 9.5  # not 8 x 1000, nor 8 x 1.25
    for _ in range(20):
        before = policy.lattice_beam
        policy.update(1e9)
        assert policy.lattice_beam >= before / 1.25 - 0.125
    assert policy.lattice_beam == 2.0


def test_the_least_lattice_beam_is_an_option():
    policy = policy_of(8.0, target=10.0, min_lattice_beam=5.5, rate=1.0)
    for _ in range(20):
        policy.update(1e9)
    assert policy.lattice_beam == 5.5


def test_a_fixed_beam_stays():
    policy = policy_of(7.3)
    policy.update(1e6)
    assert policy.lattice_beam == 7.3
    other = policy_of(5.0)
    other.load_state(policy.state())
    assert other.lattice_beam == 5.0  # configured anew


def test_no_lattices_change_nothing():
    policy = policy_of(6.0, target=10.0)
    for depth in (0.0, math.nan, math.inf):
        policy.update(depth)
    assert policy.lattice_beam == 6.0


def test_state_of_the_beam_survives():
    policy = policy_of(6.0, target=40.0)
    policy.update(3.0)
    other = policy_of(6.0, target=40.0)
    other.load_state(policy.state())
    for depth in (10.0, 70.0):
        policy.update(depth)
        other.update(depth)
        assert policy.state() == other.state()


def test_beam_outside_its_limits_is_refused():
    with pytest.raises(UserError, match="outside its limits"):
        policy_of(20.0, target=10.0, max_lattice_beam=12.0)


def test_too_many_failures_end_the_training():
    bound = FailureBound(0.02)
    bound.add(10, 2)  # 2 of 100 would be allowed
    with pytest.raises(UserError, match="3 of 20 utterances"):
        bound.add(10, 1)
    later = FailureBound(0.02)
    later.load_state(bound.state())
    later.add(1000, 17)
    with pytest.raises(UserError, match="allowed share 0.02"):
        later.add(0, 1)
