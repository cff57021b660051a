"""A conformer in chunks, streamed in any way, gives what it gives a whole segment."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.acoustics import ChunkCutter, NetworkAcoustics

DIM = 8


def acoustics_of(stride, blocks, **options):
    layers = {
        "maps": {"class": "conv2d", "size": 2, "stride": stride, "activation": "relu"},
        "input": {"class": "linear", "size": 8},
        "blocks": {
            "class": "conformer", "num_layers": blocks, "heads": 2, "feed_forward": 8,
            "positions": "relative", "causal": True, **options,
        },
        "output": {"class": "output", "loss": "lfmmi"},
    }  # fmt: skip
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, DIM, {"pdf": 3}, seed=4).eval()
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.1 * torch.randn(value.shape))
    found = AcousticNetwork(network, None, {"scores": "log_likelihoods"})
    return NetworkAcoustics(found, Normalizer(), 0.0, torch.device("cpu"))


@settings(max_examples=25)
@given(
    stride=st.integers(1, 4),
    blocks=st.integers(1, 3),
    chunk=st.integers(1, 5),
    left_chunks=st.integers(0, 2),
    kernel=st.integers(1, 6),
    norm=st.sampled_from(["batch", "layer"]),
    length=st.integers(1, 150),
    multiple=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_any_chunking_gives_the_scores_of_the_whole(
    stride, blocks, chunk, left_chunks, kernel, norm, length, multiple, seed
):
    options = {"chunk": chunk, "left_chunks": left_chunks, "kernel": kernel}
    acoustics = acoustics_of(stride, blocks, **options, norm=norm)
    assert None not in acoustics.context
    assert acoustics.period == stride * chunk
    rng = np.random.default_rng(seed)
    frames = rng.normal(size=(length, DIM)).astype(np.float32)
    whole = acoustics.log_likes(frames)
    cutter = ChunkCutter(multiple * acoustics.period, acoustics.context)
    cuts = np.sort(rng.integers(0, length + 1, 4))
    found = []
    for piece in np.split(frames, cuts):
        cutter.add(piece)
        while (ready := cutter.take()) is not None:
            found += acoustics.score([ready])
    cutter.end()
    while (ready := cutter.take()) is not None:
        found += acoustics.score([ready])
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=2e-4)


def test_a_frame_sees_its_chunk_and_those_before_alone():
    network = acoustics_of(1, 2, chunk=4, left_chunks=1, kernel=3).network.network
    features = torch.randn(1, 40, DIM, requires_grad=True)
    logits = network(features, torch.tensor([40]))["output"].logits
    logits[0, 22].sum().backward()
    assert features.grad is not None
    seen = features.grad.abs().sum(2)[0].nonzero().flatten()
    # its chunk is 20 .. 23, of two convolutions ahead by one frame: 24; behind, the
    # convolution of each block reaches into a further chunk
    assert int(seen.max()) == 24
    left, right = network.receptive_field
    assert (left, right) == (2 * (4 + 4) + 1, 1)
    assert int(seen.min()) >= 20 - left
