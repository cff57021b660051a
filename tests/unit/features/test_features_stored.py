"""Stored features as Lhotse reads them, and without it where that is possible."""

import json
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from lhotse import Features

from latflow.features.options import StorageOptions
from latflow.features.storage import FeatureStorage
from latflow.features.storage_names import STORAGES
from latflow.features.stored import StoredFeatures

WITHOUT_LHOTSE = ("numpy_hdf5", "numpy_files", "manifest_numpy")
BY_LHOTSE = ("lilcom_chunky", "lilcom_files", "lilcom_hdf5", "manifest_lilcom")
PROGRAM = """
import json, sys
from latflow.features.stored import StoredFeatures
with StoredFeatures() as stored:
    stored.load(json.loads(sys.stdin.read()))
sys.exit("torch" in sys.modules)
"""


def store(kind, folder, matrix):
    """Store a matrix; return its manifest."""
    storage = FeatureStorage(kind, folder, folder)
    key = storage.write("utt/1", matrix)
    storage.close()
    return {
        "type": "mfcc",
        "num_frames": len(matrix),
        "num_features": matrix.shape[1],
        "frame_shift": 0.01,
        "sampling_rate": 16000,
        "start": 0.25,
        "duration": 0.01 * len(matrix),
        "storage_type": kind,
        "storage_path": storage.path,
        "storage_key": key,
        "channels": 0,
    }


@pytest.fixture
def matrix():
    return np.random.default_rng(3).normal(size=(37, 5)).astype(np.float32)


@pytest.mark.parametrize("kind", WITHOUT_LHOTSE + BY_LHOTSE)
def test_features_are_those_that_lhotse_reads(kind, tmp_path, matrix):
    manifest = store(kind, tmp_path, matrix)
    with StoredFeatures() as stored:
        found = stored.load(manifest)
    expected = Features.from_dict(manifest).load()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if kind in WITHOUT_LHOTSE:
        np.testing.assert_array_equal(found, matrix)


@pytest.mark.parametrize("kind", ["lilcom_files", "numpy_files"])
@pytest.mark.parametrize("command", ["pipe:touch {};cat ", "pipe:touch {};echo ://"])
def test_a_path_that_is_a_command_runs_nothing(kind, command, tmp_path):
    ran = tmp_path / "ran"
    manifest = {
        "type": "x", "num_frames": 3, "num_features": 2, "frame_shift": 0.01,
        "sampling_rate": 8000, "start": 0, "duration": 0.03, "storage_type": kind,
        "storage_path": command.format(ran), "storage_key": "a.npy",
    }  # fmt: skip
    with StoredFeatures() as stored:
        with pytest.raises(ValueError, match="is a command"):
            stored.load(manifest)
        other = {"storage_type": "kaldiio", "storage_path": f"touch {ran}|"}
        with pytest.raises(ValueError, match="'kaldiio' is none of numpy_hdf5"):
            stored.load(manifest | other)
    assert not ran.exists()


def test_storages_are_those_of_the_option():
    """Stages without pydantic read the names."""
    told = StorageOptions.model_fields["storage"].annotation
    assert {*STORAGES} == {*get_args(told)}


@pytest.mark.parametrize("kind", WITHOUT_LHOTSE)
def test_plain_storages_are_read_without_torch(kind, tmp_path, matrix):
    given = json.dumps(store(kind, tmp_path, matrix))
    command = [sys.executable, "-c", PROGRAM]
    assert subprocess.run(command, input=given, text=True, check=False).returncode == 0
