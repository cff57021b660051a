"""Data that Kaldi wrote of the digits: lattices, alignments, the model behind them."""

import pytest

from latflow.gmm.model import AcousticModel
from latflow.kaldi.io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.lattice.io.archives import read_lattices


@pytest.fixture(scope="module")
def raw(golden):
    return dict(read_lattices(golden / "lattice" / "raw_beam13.lats"))


@pytest.fixture(scope="module")
def model(golden):
    return AcousticModel.load(golden / "gmm" / "tri1" / "final.mdl").transitions


@pytest.fixture(scope="module")
def alignments(golden):
    return dict(read_int_vectors(golden / "align" / "ali_tri1.txt"))


@pytest.fixture(scope="module")
def silence_phones(golden):
    text = (golden / "lang" / "phones" / "silence.csl").read_text()
    return [int(phone) for phone in text.split(":")]


@pytest.fixture(scope="module")
def lang(golden):
    return Lang.load(golden / "lang")
