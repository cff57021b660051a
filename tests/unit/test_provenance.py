"""Digests follow the imports of the package."""

import shutil

import pytest

import latflow
from latflow import provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "latflow"
    (root / "room").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "room" / "__init__.py").write_text("")
    (root / "room" / "stage.py").write_text("from latflow.room.kernel import f\n")
    (root / "room" / "kernel.py").write_text("f = 1\n")
    (root / "other.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "PACKAGE_ROOT", root)
    provenance._closure.cache_clear()
    yield root
    provenance._closure.cache_clear()


def test_change_in_an_imported_module_changes_the_digest(package):
    before = provenance.source_digest("latflow.room.stage")
    (package / "room" / "kernel.py").write_text("f = 2\n")
    assert provenance.source_digest("latflow.room.stage") != before


def test_change_elsewhere_leaves_the_digest(package):
    before = provenance.source_digest("latflow.room.stage")
    (package / "other.py").write_text("x = 2\n")
    provenance._closure.cache_clear()
    assert provenance.source_digest("latflow.room.stage") == before


def test_unknown_module_is_refused(package):
    with pytest.raises(ModuleNotFoundError):
        provenance.source_digest("latflow.nowhere")


def test_versions_name_ourselves():
    assert provenance.versions()["latflow"] == latflow.__version__


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_state_outside_a_checkout_is_unknown(tmp_path):
    assert provenance.git_state(tmp_path) == "unknown"
