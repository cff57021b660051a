"""Acoustic models that are damaged, or used with the wrong features."""

import io

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.kaldi.io import KaldiReader, KaldiWriter


def small_gmms():
    return DiagGmms.from_moments(
        np.array([0, 1, 3]),
        np.array([1.0, 0.25, 0.75]),
        np.arange(6.0).reshape(3, 2),
        np.full((3, 2), 2.0),
    )


def written(gmms, *, binary):
    stream = io.BytesIO()
    gmms.write(KaldiWriter(stream, binary=binary))
    return stream.getvalue()


@pytest.mark.parametrize("binary", [True, False])
def test_read_of_write_is_the_same(binary):
    gmms = small_gmms()
    again = DiagGmms.read(KaldiReader(io.BytesIO(written(gmms, binary=binary))))
    assert again.num_pdfs == 2
    assert again.num_gaussians == 3
    np.testing.assert_array_equal(again.begin, gmms.begin)
    np.testing.assert_allclose(again.means, gmms.means, rtol=1e-6)
    np.testing.assert_allclose(again.variances, gmms.variances, rtol=1e-6)


@pytest.mark.parametrize("cut", [10, 40, 90])
def test_truncated_model_is_refused(cut):
    raw = written(small_gmms(), binary=True)[:cut]
    with pytest.raises(UserError, match="ends|expected"):
        DiagGmms.read(KaldiReader(io.BytesIO(raw)))


def test_mixture_with_parts_of_different_size_is_refused():
    raw = written(small_gmms(), binary=False).replace(b"0.25 0.75", b"0.25")
    with pytest.raises(UserError, match="parts differ"):
        DiagGmms.read(KaldiReader(io.BytesIO(raw)))


def test_model_of_another_dimension_is_refused():
    raw = written(small_gmms(), binary=False).replace(b"N> 2", b"N> 3")
    with pytest.raises(UserError, match="dimension 3"):
        DiagGmms.read(KaldiReader(io.BytesIO(raw)))


def test_missing_model_names_the_file(tmp_path):
    with pytest.raises(UserError, match="final.mdl: no such file"):
        AcousticModel.load(tmp_path / "final.mdl")


def test_frames_of_another_dimension_are_refused():
    with pytest.raises(UserError, match="dimension 3, but the model is of 2"):
        small_gmms().log_likelihoods(np.zeros((4, 3), np.float32))


def test_no_frames_have_no_log_likelihoods():
    assert small_gmms().log_likelihoods(np.zeros((0, 2), np.float32)).shape == (0, 2)


def test_variance_of_zero_is_refused():
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(UserError, match="positive variance"),
    ):
        DiagGmms.from_moments(
            np.array([0, 1]), np.ones(1), np.zeros((1, 2)), np.array([[1.0, 0.0]])
        )
