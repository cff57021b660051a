"""Kaldi's numbers on speech of our own, which every clone has; see own/README.md."""

import gzip
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from latflow.decode.decoder import LatticeDecoder
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.options import FrontEndOptions
from latflow.fst.graph import Graph
from latflow.gmm.estep import accumulate_frames
from latflow.gmm.model import AcousticModel
from latflow.gmm.update import UpdateOptions, update_gmms
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices

OWN = Path(__file__).with_name("own")
# As make.py has them.
SCALE, EVERY = 0.1, 8
LIMITS = {"beam": 13.0, "lattice_beam": 6.0, "max_active": 7000}


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(OWN / "golden.npz"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder with the packed files as they were."""
    folder = tmp_path_factory.mktemp("own")
    for path in OWN.glob("*.gz"):
        data = gzip.decompress(path.read_bytes())
        # Of a lattice, make it an archive of one.
        head = f"{path.stem} ".encode() if path.stem.endswith(".lat") else b""
        (folder / path.stem).write_bytes(head + data)
    return folder


@pytest.fixture(scope="module")
def model(unpacked):
    return AcousticModel.load(unpacked / "final.mdl")


@pytest.mark.parametrize("snipped", [True, False])
@pytest.mark.parametrize(("kind", "bins"), [("mfcc", 23), ("fbank", 40)])
def test_features_are_those_of_kaldis_front_end(golden, kind, bins, snipped):
    options = FrontEndOptions(
        type=kind, num_mel_bins=bins, snip_edges=snipped, dither=0.0
    )
    front_end = KaldiFrontEnd(options, 16000)
    for utterance in golden["utterances"]:
        samples, _ = soundfile.read(OWN / f"audio/{utterance}.flac", dtype="float32")
        ours = front_end.extract(samples)
        kaldis = golden[f"{utterance}.{kind}.{'snipped' if snipped else 'whole'}"]
        assert ours.shape == kaldis.shape
        np.testing.assert_allclose(ours, kaldis, atol=2e-3)


def test_log_likelihoods_are_kaldis(golden, model):
    for utterance in golden["utterances"]:
        frames = golden[f"{utterance}.frames"][::EVERY]
        ours = model.gmms.log_likelihoods(frames)
        np.testing.assert_allclose(ours, golden[f"{utterance}.log_likes"], rtol=1e-5)


def test_a_pass_of_em_gives_kaldis_mixtures(golden, model):
    names = golden["utterances"]
    frames = np.concatenate([golden[f"{name}.frames"] for name in names])
    ids = np.concatenate([golden[f"{name}.alignment"] for name in names])
    with ThreadPoolExecutor(1) as pool:
        found = accumulate_frames(model, frames, ids, pool)
    assert found.log_like == pytest.approx(golden["em_log_like"], rel=1e-6)
    gmms, report = update_gmms(model.gmms, found.moments, UpdateOptions())
    assert report.num_removed > 0  # most Gaussians see nothing of so little speech
    np.testing.assert_array_equal(np.diff(gmms.begin), golden["em_sizes"])
    np.testing.assert_allclose(gmms.weights, golden["em_weights"], rtol=1e-4)
    np.testing.assert_allclose(gmms.means, golden["em_means"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(gmms.variances, golden["em_vars"], rtol=1e-3)


def arcs_of(lattice):
    """How often each label comes at each frame."""
    emitting = lattice.transition_id != 0
    frame = lattice.frame[lattice.source()]
    columns = (frame, lattice.transition_id, lattice.word)
    return Counter(zip(*(c[emitting].tolist() for c in columns), strict=True))


def test_lattices_are_those_of_kaldis_decoder(golden, model, unpacked):
    graph = Graph.load(unpacked / "HCLG.fst")
    decoder = LatticeDecoder(graph, model.transitions.pdf, **LIMITS)
    for utterance in golden["utterances"]:
        likes = model.gmms.log_likelihoods(golden[f"{utterance}.frames"])
        ours = decoder.decode(likes, acoustic_scale=SCALE).lattice
        ((_, kaldis),) = read_lattices(unpacked / f"{utterance}.lat")
        mine, best = best_path(ours, acoustic_scale=SCALE), best_path(kaldis)
        np.testing.assert_array_equal(mine.words, best.words)
        np.testing.assert_array_equal(mine.transition_ids, best.transition_ids)
        cost = mine.graph_cost + SCALE * mine.acoustic_cost
        assert cost == pytest.approx(best.graph_cost + best.acoustic_cost, rel=1e-5)
        found, wanted = arcs_of(ours), arcs_of(kaldis)
        differing = (found - wanted).total() + (wanted - found).total()
        assert differing <= 0.01 * wanted.total()
