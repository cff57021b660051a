"""Machine code that is kept: damaged, foreign or unwritable, it is compiled again."""

import importlib
import logging
import pickle
import random
import sys

import numpy as np
import pytest
from numba import TypingError

from latflow import jit

SOURCE = """
from latflow.jit import njit

@njit(cache=True, nogil=True)
def double(value):
    return 2 * value
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a module with a kernel afresh, as another process would."""
    folder = tmp_path / "jit_package"
    folder.mkdir()
    (folder / "doubling.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    jit._warn.cache_clear()

    def load_again():
        sys.modules.pop("doubling", None)
        return importlib.import_module("doubling").double

    load_again.folder = folder
    yield load_again
    sys.modules.pop("doubling", None)


def hits_and_misses(kernel):
    assert kernel(4) == 8
    stats = kernel.stats
    return sum(stats.cache_hits.values()), sum(stats.cache_misses.values())


def test_what_is_kept_is_loaded(load):
    assert hits_and_misses(load()) == (0, 1)
    assert hits_and_misses(load()) == (1, 0)


def flipped(raw, at):
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_damaged_file_is_compiled_again(load, ending):
    load()(4)
    (path,) = load.folder.rglob(f"*{ending}")
    whole = path.read_bytes()
    draw = random.Random(1)
    places = [draw.randrange(len(whole)) for _ in range(6)]
    damaged = [b"", whole[:3], whole[:-1], whole[: len(whole) // 2], b"x" * 500]
    damaged += [whole + b"\0", *(flipped(whole, at) for at in places)]
    for raw in damaged:
        path.write_bytes(raw)
        assert hits_and_misses(load()) == (0, 1)
        assert hits_and_misses(load()) == (1, 0)


def test_a_missing_or_unreadable_file_is_compiled_again(load):
    load()(4)
    for ending in (".nbi", ".nbc"):
        (path,) = load.folder.rglob(f"*{ending}")
        path.unlink()
        assert hits_and_misses(load()) == (0, 1)


def test_the_code_of_another_signature_is_not_taken(load):
    """Two processes that store at once can leave an index with the other's file."""
    kernel = load()
    kernel(4), kernel(4.0)
    first, second = sorted(load.folder.rglob("*.nbc"))
    second.replace(first)
    assert hits_and_misses(load()) == (0, 1)


@pytest.mark.parametrize("what", ["version", "processor", "class that is gone"])
def test_foreign_machine_code_is_compiled_again(load, monkeypatch, what):
    load()(4)
    if what == "version":
        monkeypatch.setattr("numba.__version__", "0.1")
    elif what == "processor":
        key = jit.KernelCache._index_key
        other = lambda *given: ("another", key(*given))  # noqa: E731
        monkeypatch.setattr(jit.KernelCache, "_index_key", other)
    else:

        def fail(_):
            raise AttributeError("no such class")

        monkeypatch.setattr(pickle, "loads", fail)
    assert hits_and_misses(load()) == (0, 1)


def blocked(folder):
    """Put a file in the place of a folder, which root cannot write to either."""
    folder.write_text("")


def test_where_nothing_can_be_written_it_runs_and_says_so(load, tmp_path, caplog):
    blocked(load.folder / "__pycache__")
    blocked(tmp_path / "home")
    with caplog.at_level(logging.WARNING, logger="latflow"):
        kernel = load()
        assert hits_and_misses(kernel) == (0, 1)
        kernel(4.0)
    (record,) = caplog.records
    message = record.getMessage()
    assert str(load.folder) in message
    assert "set NUMBA_CACHE_DIR" in message


def test_what_is_installed_is_taken_where_it_cannot_be_written(
    load, monkeypatch, tmp_path
):
    """Users of one installation do not compile what it brings along."""
    load()(4)
    cannot = jit._Places._locator_classes[2:]  # neither NUMBA_CACHE_DIR nor the source
    monkeypatch.setattr(jit._Places, "_locator_classes", cannot)
    kernel = load()
    assert str(tmp_path / "home") in kernel._cache.cache_path
    assert hits_and_misses(kernel) == (1, 0)
    assert kernel(4.0) == 8.0
    assert len([*(tmp_path / "home").rglob("*.nbc")]) == 1


def test_a_function_that_does_not_allocate_counts_no_references():
    arrays = (np.arange(3), np.ones(4))

    def total(arrays):
        return arrays[0].sum() + arrays[1][1:].sum()

    counting = jit.njit(cache=False)(total)
    plain = jit.njit(cache=False, allocates=False)(total)
    assert plain(arrays) == counting(arrays) == 6.0
    ((_, code),) = plain.inspect_llvm().items()
    assert "NRT_incref" not in code
    assert "NRT_incref" in next(iter(counting.inspect_llvm().values()))


def test_a_function_that_allocates_has_to_say_so():
    kernel = jit.njit(cache=False, allocates=False)(lambda n: np.zeros(n))
    with pytest.raises(TypingError):
        kernel(3)
