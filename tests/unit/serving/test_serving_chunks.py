"""Chunks of a segment: nothing lost, and the scores of the whole network."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.acoustics import ChunkCutter, NetworkAcoustics


def chunks_of(frames, size, context, pieces):
    cutter = ChunkCutter(size, context)
    found = []
    for piece in pieces:
        cutter.add(piece)
        while (chunk := cutter.take()) is not None:
            found.append(chunk)
    cutter.end()
    while (chunk := cutter.take()) is not None:
        found.append(chunk)
    assert cutter.is_done
    return found


def cut(frames, sizes):
    return np.split(frames, np.cumsum(sizes)[:-1]) if sizes else []


@given(
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_chunks_are_the_frames_with_their_context(sizes, size, left, right):
    frames = np.arange(sum(sizes), dtype=np.float32)[:, None]
    found = chunks_of(frames, size, (left, right), cut(frames, sizes))
    begin = 0
    for chunk in found:
        end = begin + chunk.num_frames
        assert chunk.num_frames == min(size, len(frames) - begin)
        expected = frames[max(0, begin - left) : end + right]
        np.testing.assert_array_equal(chunk.frames, expected)
        assert chunk.left == begin - max(0, begin - left)
        begin = end
    assert begin == len(frames)


@pytest.mark.parametrize("context", [(None, 0), (3, None)])
def test_without_a_limit_the_segment_is_one_chunk(context):
    frames = np.zeros((50, 2), np.float32)
    cutter = ChunkCutter(6, context)
    cutter.add(frames)
    assert cutter.take() is None
    cutter.end()
    chunk = cutter.take()
    assert (chunk.left, chunk.right, chunk.num_frames) == (0, 0, 50)
    assert cutter.take() is None


def test_little_is_held_of_a_long_segment():
    cutter = ChunkCutter(6, (9, 4))
    for _ in range(100):
        cutter.add(np.zeros((20, 3), np.float32))
        while cutter.take() is not None:
            pass
    assert sum(map(len, cutter._pieces)) < 60


LAYERS = {
    "conv": {"class": "conv1d", "size": 8, "kernel": 5, "activation": "relu"},
    "down": {"class": "subsample", "factor": 3},
    "tdnn": {"class": "tdnn", "size": 8, "offsets": [-2, 1]},
    "output": {"class": "output"},
}


@pytest.mark.parametrize("edges", ["repeat", "zeros"])
@pytest.mark.parametrize("num_frames", [1, 20, 61, 64])
def test_scores_of_chunks_are_those_of_the_whole(edges, num_frames):
    layers = dict(LAYERS)
    if edges == "repeat":
        del layers["conv"]
        splice = {"class": "splice", "left": 2, "right": 2}
        layers = {"splice": splice, **layers}
    description = NetworkDescription.from_config({"edges": edges, "layers": layers})
    network = Network(description, 4, {"pdf": 5}, seed=2).eval()
    acoustics = NetworkAcoustics(
        AcousticNetwork(network, None, {"scores": "log_likelihoods"}),
        Normalizer("none"),
        0.0,
        torch.device("cpu"),
    )
    frames = np.random.default_rng(num_frames).normal(size=(num_frames, 4))
    frames = frames.astype(np.float32)
    chunks = chunks_of(frames, 12, acoustics.context, [frames])
    together = np.concatenate(acoustics.score(chunks))
    alone = np.concatenate([acoustics.score([chunk])[0] for chunk in chunks])
    whole = acoustics.log_likes(frames)
    np.testing.assert_allclose(alone, whole, atol=1e-5)
    np.testing.assert_allclose(together, whole, atol=1e-5)
