"""Versions and the git state of a run."""

import shutil

import pytest

import latflow
from latflow import provenance


def test_versions_name_ourselves():
    assert provenance.versions()["latflow"] == latflow.__version__


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_state_outside_a_checkout_is_unknown(tmp_path):
    assert provenance.git_state(tmp_path) == "unknown"
