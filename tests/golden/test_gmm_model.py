"""Kaldi's acoustic models and their log-likelihoods."""

import gzip

import numpy as np
import pytest

from latflow.gmm.model import AcousticModel
from latflow.kaldi.io import read_matrices

SYSTEMS = ["mono", "tri1", "tri2b", "tri3b"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_model_round_trips_byte_for_byte(golden, tmp_path, system):
    binary = golden / "gmm" / system / "final.mdl"
    AcousticModel.load(binary).save(tmp_path / "binary")
    assert (tmp_path / "binary").read_bytes() == binary.read_bytes()
    text = golden / "gmm" / system / "final.mdl.txt.gz"
    AcousticModel.load(text).save(tmp_path / "text", binary=False)
    assert (tmp_path / "text").read_bytes() == gzip.decompress(text.read_bytes())
    AcousticModel.load(binary).save(tmp_path / "as_text", binary=False)
    assert (tmp_path / "as_text").read_bytes() == gzip.decompress(text.read_bytes())


def test_alignment_model_round_trips(golden, tmp_path):
    path = golden / "gmm/tri3b/final.alimdl"
    AcousticModel.load(path).save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_constants_follow_from_the_parameters(golden, system):
    gmms = AcousticModel.load(golden / "gmm" / system / "final.mdl").gmms
    again = type(gmms).from_natural(
        gmms.begin, gmms.weights, gmms.means_invvars, gmms.inv_vars
    )
    np.testing.assert_allclose(again.gconsts, gmms.gconsts, rtol=3e-6, atol=1e-3)


@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_log_likelihoods_equal_kaldis(golden, system):
    gmms = AcousticModel.load(golden / "gmm" / system / "final.mdl").gmms
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    expected = dict(read_matrices(golden / f"align/loglikes_{system}.ark"))
    assert len(expected) == 6
    for utterance, wanted in expected.items():
        found = gmms.log_likelihoods(frames[utterance].astype(np.float32))
        np.testing.assert_allclose(found, wanted, atol=1e-3, rtol=0)
        some = np.array([5, 0, 17, 5, 66])
        np.testing.assert_allclose(
            gmms.log_likelihoods(frames[utterance], some), found[:, some], atol=1e-4
        )
