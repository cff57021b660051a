"""`latflow hdf5` on files, from options to results."""

import argparse
from pathlib import Path

import h5py
import numpy as np
import pytest
from fixtures.small_model import small_model

from latflow.cli.data import HDF5
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import write_int_vectors
from latflow.training.labels import LabelStore, LabelWriter


def run(*words: object) -> None:
    parser = argparse.ArgumentParser()
    HDF5.add_to(parser.add_subparsers())
    arguments = parser.parse_args(["hdf5", *map(str, words)])
    arguments.run(arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Frames, alignments and their model."""
    model = small_model()
    ids = np.array([1, 2, 2, 3], np.int32)
    write_int_vectors(tmp_path / "ali.ark", [("a", ids)])
    with FrameWriter(tmp_path / "frames", dim=2) as writer:
        writer.append("a", "s", "", np.arange(8.0).reshape(4, 2))
    with LabelWriter(tmp_path / "labels", 5) as labels:
        labels.append("a", np.array([4, 4, 0, 0], np.int32))
    ones = np.ones((model.num_pdfs, 2))
    begin = np.arange(model.num_pdfs + 1)
    gmms = DiagGmms.from_moments(begin, ones[:, 0], ones, ones)
    (tmp_path / "model").mkdir()
    AcousticModel(model, gmms).save(tmp_path / "model/final.mdl")
    topology = model.topology
    counts = topology.pdf_class_counts()
    tree = ContextDependency.monophone([[1], [2, 3]], counts)
    tree.save(tmp_path / "model/tree")
    return tmp_path


def test_data_go_out_and_come_back(folder: Path) -> None:
    out = folder / "data.hdf"
    ali = ("--alignments", folder / "ali.ark", "--model", folder / "model")
    run("export", folder / "frames", out, *ali, "--labels", f"x={folder / 'labels'}")
    with h5py.File(out) as file:
        assert sorted(file["targets/data"]) == ["pdf", "x"]
    back = ("--frames", folder / "frames2", "--labels", folder / "labels2")
    run("import", out, *back, "--frame-shift", 0.02)
    store = FrameStore.load(folder / "frames2")
    assert store.frame_shift == 0.02
    assert store.frames(0).ravel().tolist() == list(range(8))
    pdfs = LabelStore.load(folder / "labels2/pdf").labels(0)
    assert pdfs.tolist() == small_model().pdf[[1, 2, 2, 3]].tolist()
    assert LabelStore.load(folder / "labels2/x").labels(0).tolist() == [4, 4, 0, 0]
    run("import", out, *back, "--targets", "x")
    with pytest.raises(UserError, match="has no target y; it has pdf, x"):
        run("import", out, *back, "--targets", "y")


def test_options_that_make_no_sense_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="belong together"):
        run("export", folder / "frames", folder / "o", "--alignments", "ali.ark")
    with pytest.raises(UserError, match="'x' is not NAME=FOLDER"):
        run("export", folder / "frames", folder / "o", "--labels", "x")
