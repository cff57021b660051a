"""Kaldi's files of an i-vector extractor: byte by byte, and read again."""

import dataclasses
import struct

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.transform import Splice
from latflow.gmm.ivector import Extractor, FrameProjection, IvectorModel
from latflow.gmm.kaldi_ivector import read_ivectors, write_ivectors
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.kaldi.io import read_matrix, write_matrix

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


def check_read_again(model, found):
    """All numbers are the same; the projection but for single precision."""
    for part in ("matrices", "inverses"):
        expected = getattr(model.extractor, part)
        np.testing.assert_allclose(getattr(found.extractor, part), expected, rtol=1e-14)
    assert found.extractor.offset == model.extractor.offset
    for field in dataclasses.fields(model.ubm):
        expected = getattr(model.ubm, field.name)
        np.testing.assert_array_equal(getattr(found.ubm, field.name), expected)
    frames = np.random.default_rng(9).normal(size=(31, RAW)).astype(np.float32)
    one, other = found.projection(frames), model.projection(frames)
    np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(
        found.online(frames), model.online(frames), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    "cmvn", [None, OnlineCmvn(), OnlineCmvn(norm_vars=True, window=50, global_frames=9)]
)
def test_what_is_written_is_read_again(tmp_path, cmvn):
    rng = np.random.default_rng(4)
    model = make_model(rng)
    if cmvn is not None:
        stats = np.abs(rng.normal(size=(2, RAW + 1)))
        stats[:, -1] = 4.0, 0.0
        stats[1, :-1] += 9.0
        model = dataclasses.replace(model, cmvn=cmvn, cmvn_stats=stats)
    write_ivectors(model, tmp_path)
    found = read_ivectors(tmp_path, RAW, features="x")
    assert found.cmvn == cmvn
    if cmvn is not None:
        np.testing.assert_array_equal(found.cmvn_stats, model.cmvn_stats)
    changes = {"feature_dim": D, "context": CONTEXT, "history": "utterance"}
    assert found.options == model.options.replace(**changes)
    check_read_again(model, found)
    # and the same bytes, but for statistics that nothing is made of
    (tmp_path / "again").mkdir()
    write_ivectors(found, tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        if path.name != "global_cmvn.stats" or cmvn is not None:
            assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_files_as_kaldis_recipes_leave_them(tmp_path):
    model = make_model(np.random.default_rng(5))
    model = dataclasses.replace(
        model,
        projection=FrameProjection(4, np.zeros(9 * RAW), np.ones((D, 9 * RAW))),
    )
    write_ivectors(model, tmp_path)
    # no offset, Kaldi's splicing, CMVN of means, statistics of the training set
    write_matrix(tmp_path / "final.mat", np.ones((D, 9 * RAW), np.float32))
    (tmp_path / "splice.conf").write_text("# as it is\n")
    (tmp_path / "online_cmvn.conf").write_text("# configuration of apply-cmvn-online\n")
    conf = tmp_path / "ivector_extractor.conf"
    conf.write_text(
        "--splice-config=a/splice.conf\n--num-gselect=3\n--min-post=0.05\n"
        "--posterior-scale=0.2\n--ivector-period=5\n--use-most-recent-ivector=true\n"
    )
    found = read_ivectors(tmp_path, RAW, features="mfcc", conf=conf)
    assert found.cmvn == OnlineCmvn()
    assert found.options == IvectorOptions(
        features="mfcc", dim=S, num_gaussians=G, context=4, feature_dim=D,
        num_gselect=3, min_post=0.05, posterior_scale=0.2, period=5, max_count=0.0,
        history="utterance",
    )  # fmt: skip
    plain = dataclasses.replace(found, cmvn=None)
    check_read_again(dataclasses.replace(model, options=found.options), plain)


def token(name, value):
    """Replace what follows a token in `final.ie`."""

    def change(path):
        raw = path.read_bytes()
        begin = raw.index(name) + len(name)
        path.write_bytes(raw[:begin] + value + raw[begin + len(value) :])

    return change


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("splice.conf", "--left-context=1\n--right-context=2\n",
         "spliced with 1 to the left and 2 to the right - only as many on both"),
        ("splice.conf", "--left-context=1\n", "1 to the left and 4 to the right"),
        ("splice.conf", "--left-context=x\n--right-context=x\n", "spliced with x"),
        ("splice.conf", "--left-context=3\n--right-context=3\n",
         "a matrix of 2 x 16, for 7 frames of 5"),
        ("splice.conf", "--sideways=1\n", "--sideways is not known"),
        ("online_cmvn.conf", "--norm-means=false\n--norm-vars=true\n",
         "--norm-vars=true is not supported without --norm-means=true"),
        ("online_cmvn.conf", "--skip-dims=1\n", "--skip-dims is not known"),
        ("online_cmvn.conf", "--cmn-window=0\n", "window"),
        ("ivector.conf", "--online-cmvn-iextractor=true\n",
         "--online-cmvn-iextractor=true is not supported - only false is"),
        ("ivector.conf", "--ivector-period=0\n", "period"),
        ("ivector.conf", "--no-such=0\n", "--no-such is not known"),
        ("final.ie", token(b"<w> DM \4", b"\1\0\0\0\4\1\0\0\0"), "final.ie"),
        ("final.ie", token(b"<SigmaInv> DP \4\2\0\0\0", struct.pack("<3d", 1, 2, 1)),
         "covariances that are not positive"),
        ("final.ie", token(b"<IvectorOffset> \x08", struct.pack("<d", np.inf)),
         "not finite"),
        ("final.ie", token(b"<M> \4", struct.pack("<i", 2)), "final.ie"),
        ("final.dubm", token(b"<WEIGHTS> FV \4\3\0\0\0", struct.pack("<f", np.nan)),
         "not finite"),
        ("final.mat", np.ones((3, 16), np.float32),
         "final.dubm: 3 Gaussians of dimension 2, where final.ie and final.mat have 3"),
        ("final.mat", np.array([[1.0] * 16, [1.0] * 15 + [2.0]], np.float32),
         "the last column is of no mean"),
        ("global_cmvn.stats", np.ones((2, 5)), "statistics of 2 x 5 numbers, for"),
        ("global_cmvn.stats", np.zeros((2, 6)), "statistics of no frames"),
        *((name, None, "no such file") for name in (
            "final.ie", "final.dubm", "final.mat", "splice.conf", "online_cmvn.conf",
            "global_cmvn.stats")),
    ],
)  # fmt: skip
def test_what_ours_does_not_do_is_told_in_one_line(tmp_path, file, change, what):
    write_ivectors(make_model(np.random.default_rng(6)), tmp_path)
    path = tmp_path / file
    if change is None:
        path.unlink()
    elif isinstance(change, str):
        path.write_text(change)
    elif isinstance(change, np.ndarray):
        write_matrix(path, change)
    else:
        change(path)
    conf = path if file == "ivector.conf" else None
    with pytest.raises(UserError) as told:
        read_ivectors(tmp_path, RAW, features="x", conf=conf)
    assert what in str(told.value)
    assert "\n" not in str(told.value)
    assert str(tmp_path) in str(told.value)


def test_weights_that_depend_on_ivectors_are_refused(tmp_path):
    write_ivectors(make_model(np.random.default_rng(7)), tmp_path)
    path = tmp_path / "final.ie"
    empty, full = (
        b"<w> DM " + struct.pack("<bibi", 4, n, 4, n) + np.ones(n * n).tobytes()
        for n in (0, 1)
    )
    path.write_bytes(path.read_bytes().replace(empty, full))
    with pytest.raises(UserError, match="weights of Gaussians depend on i-vectors"):
        read_ivectors(tmp_path, RAW, features="x")
