"""Batches of fixed shapes, as they go through a GPU: the scores are those of others."""

import numpy as np
import pytest
import torch
from fixtures.pretended_device import CUDA, pretended_device

from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.acoustics import ChunkCutter, NetworkAcoustics
from latflow.serving.batches import Batches
from latflow.serving.scoring import Observer

DIM, FRAMES = 4, 12
LAYERS = {
    "splice": {"class": "splice", "left": 2, "right": 2},
    "down": {"class": "subsample", "factor": 3},
    "tdnn": {"class": "tdnn", "size": 8, "offsets": [-2, 1]},
    "norm": {"class": "batch_norm"},
    "output": {"class": "output"},
}
NORMALIZER = Normalizer(
    "global", np.full(DIM, 0.5, np.float32), np.full(DIM, 2.0, np.float32)
)


class Counts(Observer):
    def __init__(self):
        self.chunks = []

    def scored(self, chunks, seconds):
        assert seconds >= 0
        self.chunks.append(chunks)


def acoustics_on(device, edges, normalizer=NORMALIZER):
    description = NetworkDescription.from_config({"edges": edges, "layers": LAYERS})
    network = Network(description, DIM, {"pdf": 5}, seed=2).eval().to(device)
    priors = torch.linspace(-3, -1, 5).to(device)
    model = AcousticNetwork(network, priors, {"prior_scale": 0.7})
    return NetworkAcoustics(model, normalizer, 0.7, torch.device(device))


def chunks_of_segments(acoustics, lengths):
    """All chunks of segments, their ends among them."""
    generator = np.random.default_rng(sum(lengths))
    found = []
    for length in lengths:
        cutter = ChunkCutter(FRAMES, acoustics.context)
        cutter.add(generator.normal(size=(length, DIM)).astype(np.float32))
        cutter.end()
        while (chunk := cutter.take()) is not None:
            found.append(chunk)
    return found


def assert_all_scored(batches, acoustics, chunks):
    alone = [acoustics.score([chunk])[0] for chunk in chunks]
    begun, found = [], []
    most = max(batches._shapes, default=1)
    for begin in range(0, len(chunks), most):  # as the scorer does: two at a time
        begun.append(batches.begin(chunks[begin : begin + most]))
        if len(begun) == batches.depth:
            found += [rows.copy() for rows in begun.pop(0)()]
    for flight in begun:
        found += [rows.copy() for rows in flight()]
    for rows, expected in zip(found, alone, strict=True):
        np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("edges", ["repeat", "zeros"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_scores_are_those_of_chunks_alone(edges, device):
    acoustics, counts = acoustics_on(device, edges), Counts()
    chunks = chunks_of_segments(acoustics, [1, 11, 12, 13, 40, 61, 97, 120])
    batches = Batches(acoustics, FRAMES, 8, counts)
    assert_all_scored(batches, acoustics, chunks)
    assert sum(counts.chunks) == len(chunks)
    if device == "cuda":
        assert all(shape._graph is not None for shape in batches._shapes.values())


@pytest.mark.parametrize("edges", ["repeat", "zeros"])
def test_nothing_is_mixed_up_with_the_processor(edges, monkeypatch):
    # Views of the pretended device's tensors are not to be had in inference mode.
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    here = acoustics_on("cpu", edges)
    chunks = chunks_of_segments(here, [30, 50])
    expected = here.score(chunks)
    with pretended_device() as device:
        batches = Batches(acoustics_on(device, edges), FRAMES, 8, Observer())
        picked = [chunk for chunk in chunks if batches._is_usual(chunk)]
        wait = batches._launch(picked)
        size = min(size for size in batches._shapes if size >= len(picked))
        values = batches._shapes[size]._scores.values.numpy()
    assert picked
    wait()
    rows = dict(zip(map(id, picked), here.rows_of(values, picked), strict=True))
    for chunk, scores in zip(chunks, expected, strict=True):
        if id(chunk) in rows:
            np.testing.assert_allclose(rows[id(chunk)], scores, atol=1e-5)


def test_a_chunk_that_is_longer_than_usual_goes_alone():
    acoustics, counts = acoustics_on("cpu", "repeat"), Counts()
    batches = Batches(acoustics, FRAMES // 2, 4, counts)
    chunks = chunks_of_segments(acoustics, [48, 5])
    assert_all_scored(batches, acoustics, chunks)
    assert sum(counts.chunks) == len(chunks)


@pytest.mark.parametrize("edges", ["repeat", "zeros"])
def test_a_network_that_needs_the_whole_segment_gets_it(edges):
    acoustics = acoustics_on("cpu", edges, Normalizer("mean"))
    batches = Batches(acoustics, FRAMES, 4, Observer())
    chunks = chunks_of_segments(acoustics, [7, 12, 90])
    assert len(chunks) == 3
    expected = [acoustics.log_likes(chunk.frames) for chunk in chunks]
    for rows, wanted in zip(batches.begin(chunks)(), expected, strict=True):
        np.testing.assert_allclose(rows, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (64, [1, 4, 16, 64]), (100, [1, 6, 25, 100])],
)
def test_batches_are_filled_up_to_few_sizes(most, sizes):
    acoustics = acoustics_on("cpu", "repeat")
    batches = Batches(acoustics, FRAMES, most, Observer())
    assert list(batches._shapes) == sizes
    chunks = chunks_of_segments(acoustics, [FRAMES * most])
    assert_all_scored(batches, acoustics, chunks[:most])


def test_a_fault_is_that_of_its_chunk():
    acoustics = acoustics_on("cpu", "repeat")
    batches = Batches(acoustics, FRAMES, 4, Observer())
    good, bad, _ = chunks_of_segments(acoustics, [12, 12, 12])
    bad = type(bad)(bad.frames[:, :2], bad.left, bad.right)  # of another dimension
    first, second, third = batches.begin([good, bad, good])()
    assert isinstance(second, Exception)
    expected = acoustics.score([good])[0]
    np.testing.assert_allclose(first, expected, atol=1e-5)
    np.testing.assert_allclose(third, expected, atol=1e-5)


def test_not_a_number_stays_in_its_chunk():
    acoustics = acoustics_on("cpu", "repeat")
    batches = Batches(acoustics, FRAMES, 4, Observer())
    good, bad = chunks_of_segments(acoustics, [24])
    bad.frames[:] = np.nan
    expected = acoustics.score([good])[0]
    for _ in range(3):  # rows of batches before are not part of later ones
        first, second = batches.begin([good, bad])()
        np.testing.assert_allclose(first, expected, atol=1e-5)
        assert np.isnan(second).all()
        (alone,) = batches.begin([good])()
        np.testing.assert_allclose(alone, expected, atol=1e-5)
