"""Forward-backward on random lattices: sums over enumerated paths, derivatives."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import (
    enumerate_paths,
    lattices,
    lattices_with_a_path,
    log_sum,
    path_posteriors,
)

from latflow.errors import UserError
from latflow.lattice.path_sums import forward_backward

scales = st.fixed_dictionaries(
    {
        "lm_scale": st.sampled_from([0.0, 0.5, 1.0, 12.0]),
        "acoustic_scale": st.sampled_from([0.0, 0.1, 1.0]),
    }
)


@given(lattice=lattices_with_a_path(impossible=0.1), scale=scales)
def test_sums_are_those_over_all_paths(lattice, scale):
    paths = enumerate_paths(lattice)
    total, posterior = path_posteriors(paths, **scale)
    found = forward_backward(lattice, **scale)
    expected = np.zeros(lattice.num_arcs)
    for path, share in zip(paths, posterior, strict=True):
        np.add.at(expected, list(path.arcs), share)
    assert found.log_like == pytest.approx(total, abs=1e-9)
    np.testing.assert_allclose(found.arc_posterior, expected, atol=1e-12)


@given(lattice=lattices_with_a_path(impossible=0.1), scale=scales)
def test_alpha_and_beta_sum_over_ways_to_and_from_each_state(lattice, scale):
    found = forward_backward(lattice, **scale)
    states = np.arange(lattice.num_states)
    for state in states:
        until = enumerate_paths(_ending_at(lattice, state))
        alpha = log_sum([-path.cost(**scale) for path in until])
        assert found.alpha[state] == pytest.approx(alpha, abs=1e-9)
    assert found.beta[0] == pytest.approx(found.log_like, abs=1e-9)
    posterior = np.zeros(lattice.num_states)
    np.add.at(posterior, lattice.next_state, found.arc_posterior)
    posterior[0] = 1.0
    with np.errstate(invalid="ignore"):
        logs = found.alpha + found.beta - found.log_like
    logs[np.isnan(logs)] = -np.inf  # a state that is not reached, and a dead end
    np.testing.assert_allclose(np.exp(logs), posterior, atol=1e-12)


def _ending_at(lattice, state):
    """The lattice with one final state, for nothing."""
    final = np.full(lattice.num_states, np.inf, np.float32)
    final[state] = 0.0
    return replace(lattice, final_graph_cost=final, final_acoustic_cost=final)


@given(lattice=lattices_with_a_path(), arc=st.integers(0, 10**6))
def test_the_posterior_is_the_derivative_of_the_total(lattice, arc):
    if lattice.num_arcs == 0:
        return
    arc %= lattice.num_arcs
    step, scale = 2.0**-8, 0.5  # a step that float32 costs take without rounding much

    def total(change):
        acoustic = lattice.acoustic_cost.astype(np.float64)
        acoustic[arc] += change
        return forward_backward(
            replace(lattice, acoustic_cost=acoustic), acoustic_scale=scale
        ).log_like

    slope = (total(step) - total(-step)) / (2.0 * step)
    posterior = forward_backward(lattice, acoustic_scale=scale).arc_posterior[arc]
    assert slope == pytest.approx(-scale * posterior, abs=1e-5)


@given(lattice=lattices(impossible=0.4))
def test_without_a_possible_path_there_is_an_error(lattice):
    if any(path.cost() < math.inf for path in enumerate_paths(lattice)):
        assert np.isfinite(forward_backward(lattice).log_like)
    else:
        with pytest.raises(UserError, match="without a path to a final state"):
            forward_backward(lattice)


@given(lattice=lattices_with_a_path(), arc=st.integers(0, 10**6))
def test_nan_anywhere_is_an_error(lattice, arc):
    if lattice.num_arcs == 0:
        return
    arc %= lattice.num_arcs
    lattice.graph_cost[arc] = np.nan
    frame = lattice.frame[lattice.source()[arc]]
    with pytest.raises(UserError, match=f"an arc at frame {frame} "):
        forward_backward(lattice)
