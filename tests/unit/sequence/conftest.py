"""A small system, made once."""

import pytest
from fixtures.sequence_system import make_system


@pytest.fixture(scope="session")
def system(tmp_path_factory, repository):
    return make_system(tmp_path_factory.mktemp("sequence"), repository)
