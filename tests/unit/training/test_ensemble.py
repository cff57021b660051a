"""Networks that are trained side by side leave no thread idle."""

import pytest

from latflow.training.ensemble import _number_at_a_time


@pytest.mark.parametrize(
    ("networks", "threads", "at_a_time"),
    [(2, 1, 1), (2, 2, 2), (3, 2, 3), (4, 2, 2), (5, 2, 3), (3, 16, 3), (2, 0, 1)],
)
def test_networks_at_a_time(networks, threads, at_a_time):
    assert _number_at_a_time(networks, threads) == at_a_time
