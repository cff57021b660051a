"""Kaldi's files of an i-vector extractor, read back byte by byte."""

import struct

import numpy as np

from latflow.features.transform import Splice
from latflow.gmm.ivector import Extractor, FrameProjection, IvectorModel
from latflow.gmm.kaldi_ivector import write_ivectors
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.kaldi.io import read_matrix

G, D, S, RAW, CONTEXT = 3, 2, 4, 5, 1
FLOATS = {b"F": np.dtype("<f4"), b"D": np.dtype("<f8")}


class Bytes:
    """A binary file of Kaldi's, from its start."""

    def __init__(self, path):
        self.left = path.read_bytes()
        assert self.take(2) == b"\0B"

    def take(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def token(self):
        word, _, self.left = self.left.partition(b" ")
        return word

    def number(self, form):
        assert self.take(1)[0] == struct.calcsize(form)
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def array(self):
        kind = self.token()
        shape = [self.number("<i") for _ in range(2 if kind.endswith(b"M") else 1)]
        size = shape[0] * (shape[0] + 1) // 2 if kind[1:] == b"P" else np.prod(shape)
        item = FLOATS[kind[:1]]
        found = np.frombuffer(self.take(int(size) * item.itemsize), item)
        return kind, found if kind[1:] == b"P" else found.reshape(shape)


def make_model(rng):
    noise = rng.normal(size=(G, D, D))
    inverses = noise @ noise.transpose(0, 2, 1) + np.eye(D)
    ubm = DiagGmms.from_moments(
        np.array([0, G]),
        rng.dirichlet(np.ones(G)),
        rng.normal(size=(G, D)),
        rng.uniform(0.5, 2, (G, D)),
    )
    width = RAW * (2 * CONTEXT + 1)
    return IvectorModel(
        FrameProjection(CONTEXT, rng.normal(size=width), rng.normal(size=(D, width))),
        ubm,
        Extractor(rng.normal(size=(G, D, S)), inverses, 7.25),
        IvectorOptions(features="x", dim=S, num_gaussians=G),
    )


def test_the_extractor_is_written_in_double_precision(tmp_path):
    model = make_model(np.random.default_rng(1))
    write_ivectors(model, tmp_path)
    file = Bytes(tmp_path / "final.ie")
    assert [file.token(), file.token()] == [b"<IvectorExtractor>", b"<w>"]
    kind, found = file.array()
    assert (kind, found.shape) == (b"DM", (0, 0))
    assert file.token() == b"<w_vec>"
    np.testing.assert_array_equal(file.array()[1], model.ubm.weights)
    assert file.token() == b"<M>"
    assert file.number("<i") == G
    for matrix in model.extractor.matrices:
        kind, found = file.array()
        assert kind == b"DM"
        np.testing.assert_array_equal(found, matrix)
    assert file.token() == b"<SigmaInv>"
    for inverse in model.extractor.inverses:
        kind, found = file.array()
        assert kind == b"DP"
        rows = [inverse[i, : i + 1] for i in range(D)]
        np.testing.assert_array_equal(found, np.concatenate(rows))
    assert file.token() == b"<IvectorOffset>"
    assert file.number("<d") == 7.25
    assert file.left == b"</IvectorExtractor> "


def test_the_mixture_is_one_without_a_model_around(tmp_path):
    model = make_model(np.random.default_rng(2))
    write_ivectors(model, tmp_path)
    file = Bytes(tmp_path / "final.dubm")
    assert file.token() == b"<DiagGMM>"
    for token, array in (
        (b"<GCONSTS>", model.ubm.gconsts),
        (b"<WEIGHTS>", model.ubm.weights),
        (b"<MEANS_INVVARS>", model.ubm.means_invvars),
        (b"<INV_VARS>", model.ubm.inv_vars),
    ):
        assert file.token() == token
        np.testing.assert_array_equal(file.array()[1], array)
    assert file.left == b"</DiagGMM> "


def test_frames_are_projected_as_here(tmp_path):
    rng = np.random.default_rng(3)
    model = make_model(rng)
    write_ivectors(model, tmp_path)
    matrix = read_matrix(tmp_path / "final.mat")
    frames = rng.normal(size=(6, RAW)).astype(np.float32)
    spliced = Splice(CONTEXT, CONTEXT)(frames)
    found = spliced @ matrix[:, :-1].T + matrix[:, -1]
    np.testing.assert_allclose(found, model.projection(frames), atol=1e-4)
    conf = (tmp_path / "splice.conf").read_text().split()
    assert conf == ["--left-context=1", "--right-context=1"]
    # Kaldi refuses statistics without a frame.
    stats = Bytes(tmp_path / "global_cmvn.stats").array()[1]
    assert (stats.shape, stats[0, -1]) == ((2, RAW + 1), 1.0)
    np.testing.assert_array_equal(stats[0, :-1], model.projection.mean[RAW : 2 * RAW])
    assert "--norm-means=false" in (tmp_path / "online_cmvn.conf").read_text()
