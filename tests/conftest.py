"""Fixtures that every layer of tests shares."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_folder(name: str) -> Path:
    """A folder of development data beside the checkout; skips when it is not there."""
    root = Path(os.environ.get("LATFLOW_SHARED", REPOSITORY.parent / "shared"))
    folder = root / name
    if not folder.is_dir():
        pytest.skip(f"{name} data not present (set LATFLOW_SHARED to their folder)")
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """Kaldi's numbers."""
    return shared_folder("golden")


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Real speech for development."""
    return shared_folder("corpora")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout."""
    return REPOSITORY
