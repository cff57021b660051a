"""Fixtures that every layer of tests shares."""

import faulthandler
import gc
import os
import tracemalloc  # noqa: F401 - else imported within a warning, which cannot be told
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Processes of tests share the cores: torch's threads, which ask all the time whether
# the others are done, would take them away (a small training: 28 s of a core for 4).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples on every machine and day; new ones: --hypothesis-profile explore.
# A busy machine may take long to draw them.
_ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _ANY_TIME, max_examples=25, derandomize=True)
settings.register_profile("explore", _ANY_TIME, max_examples=200, print_blob=True)
settings.load_profile("same")

_TERMINAL = pytest.StashKey[int]()
SLOW_LIMIT = 3600  # seconds; pyproject.toml has the limit of other tests
REPOSITORY = Path(__file__).resolve().parents[1]
# Files of tests that take minutes, the longest first.
LONGEST = (
    *("test_cluster.py", "test_e2e_kill.py", "test_e2e_demo.py"),
    *("test_e2e_wheel.py", "test_e2e_align.py", "test_workflow_plans.py"),
)


def pytest_configure(config) -> None:
    """Keep the terminal at hand, which a worker of pytest-xdist has as errors only."""
    config.stash[_TERMINAL] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    """Print all stacks shortly before the limit of a test in a worker of pytest-xdist.

    There nobody sees what pytest-timeout prints.
    """
    if hasattr(item.config, "workerinput"):
        terminal = item.config.stash[_TERMINAL]
        faulthandler.dump_traceback_later(0.95 * settings.timeout, file=terminal)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item):
    """End what `pytest_timeout_set_timer` began."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


def pytest_collection_modifyitems(items) -> None:
    """Put the longest files first; give slow tests more time, where they do not say.

    Else one process of pytest-xdist would be alone with a long file in the end.
    """
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


@pytest.fixture(scope="module", autouse=True)
def _collect():
    """Collect what the tests of a file have left.

    Warnings of unclosed files in it then fail the last of them, and no test of another
    file, or none: at the end of a process of pytest-xdist nobody sees them.
    """
    yield
    gc.collect()


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
