"""Networks give streams, in any pieces, what they give a whole segment."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.nnet.streams import Memory
from latflow.serving.acoustics import ChunkCutter, NetworkAcoustics
from latflow.serving.scoring import Observer, score_each

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


BLOCK = {"layers": {
    "conv": {"class": "conv1d", "size": 6, "kernel": 2, "dilation": 2},
    "norm": {"class": "batch_norm"},
    "sum": {"class": "add", "from": ["norm", "data"]},
}}  # fmt: skip
#: Networks whose layers keep what they need: description without the output.
STREAMED = {
    "tdnnf": {"edges": "repeat", "layers": {
        "maps": {"class": "conv2d", "size": 2, "stride": 2, "activation": "relu"},
        "joined": {"class": "tdnnf", "size": 6, "bottleneck": 3, "bypass": 0.0},
        "far": {"class": "tdnnf", "size": 6, "bottleneck": 3, "num_layers": 2,
                "time_stride": 2, "stride": 2},
    }},
    "two ways": {"edges": "repeat", "layers": {
        "wide": {"class": "splice", "left": 5, "right": 1},
        "early": {"class": "tdnn", "size": 4, "offsets": [-1, 3], "from": "data"},
        "both": {"class": "concat", "from": ["wide", "early"]},
        "rate": {"class": "subsample", "factor": 3},
    }},
    "two rates": {"edges": "repeat", "layers": {
        "wide": {"class": "conv1d", "size": 4, "kernel": 11, "stride": 3},
        "early": {"class": "tdnn", "size": 4, "offsets": [-1, 3], "from": "data"},
        "thirds": {"class": "subsample", "factor": 3},
        "both": {"class": "concat", "from": ["wide", "thirds"]},
    }},
    "zeros": {"layers": {
        "first": {"class": "conv1d", "size": 6, "kernel": 1, "stride": 3},
        "block": {"class": "subnetwork", "repeat": 2, **BLOCK},
        "again": {"class": "window", "size": 4},
        "tdnn": {"class": "tdnn", "size": 5, "offsets": [-2, 1]},
    }},
    "attention": {"layers": {
        "maps": {"class": "conv1d", "size": 6, "stride": 2},
        "attention": {"class": "self_attention", "heads": 2, "look_back": 3,
                      "look_ahead": 2, "positions": "relative"},
    }},
    "looking ahead": {"layers": {
        "input": {"class": "linear", "size": 6},
        "blocks": {"class": "conformer", "num_layers": 2, "heads": 2,
                   "feed_forward": 4, "kernel": 4, "chunk": 3, "left_chunks": 2},
    }},
    "causal": {"layers": {
        "maps": {"class": "conv2d", "size": 2, "stride": 2},
        "input": {"class": "linear", "size": 6},
        "blocks": {"class": "conformer", "num_layers": 2, "heads": 2, "norm": "layer",
                   "feed_forward": 4, "kernel": 4, "chunk": 2, "left_chunks": 1,
                   "positions": "relative", "causal": True},
    }},
}  # fmt: skip


def network_of(name):
    config = STREAMED.get(name) or UNSTREAMED[name]
    layers = {**config["layers"], "output": {"class": "output", "loss": "lfmmi"}}
    description = NetworkDescription.from_config({**config, "layers": layers})
    network = Network(description, DIM, {"pdf": 3}, seed=4).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.add_(0.3 * torch.rand(value.shape, generator=generator))
    return network


@pytest.mark.parametrize("name", STREAMED)
@settings(max_examples=25)
@given(st.lists(st.integers(0, 25), max_size=8), st.integers(1, 9), st.integers(0, 9))
def test_layers_give_streams_in_any_pieces_what_they_give_the_whole(
    name, pieces, first, seed
):
    """Rows may be had once their receptive field has come, and any later."""
    network = network_of(name).double()
    assert network.can_stream
    pieces = [first, *pieces]
    length = sum(pieces)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, length, DIM, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        (whole, _), *_ = network(features, torch.tensor([length] * 2)).values()
    found, memory, seen, rows = [], Memory(), 0, 0
    period, right = network.period, network.receptive_field.right
    assert right is not None
    for index, size in enumerate(pieces):
        piece, seen = features[:, seen : seen + size], seen + size
        is_last = index == len(pieces) - 1
        there = max(0, seen - right) // period * (period // network.subsampling)
        wanted = max(0, (whole.shape[1] if is_last else there) - rows)
        wanted -= seed % (wanted + 1)
        with torch.no_grad():
            # streams side by side are each for itself
            memory = Memory.joined(memory.parted(2))
            scores, memory = network.stream(piece, memory, wanted, is_last=is_last)
        found.append(scores)
        rows += wanted
    rest, _ = network.stream(
        features[:, :0], memory, whole.shape[1] - rows, is_last=True
    )
    torch.testing.assert_close(torch.cat([*found, rest], 1), whole, rtol=0, atol=1e-9)


UNSTREAMED = {
    "all that was": {"layers": {"rec": {"class": "rec", "size": 4}}},
    "places": {"layers": {"place": {"class": "positional_encoding"}}},
    "zeros inside": {"layers": {
        "tdnnf": {"class": "tdnnf", "size": 6, "bottleneck": 3, "bypass": 0.0},
    }},
    "copies": {"layers": {"splice": {"class": "splice", "left": 1, "right": 2}}},
    "all before": {"layers": {
        "blocks": {"class": "conformer", "heads": 2, "chunk": 4, "causal": True},
    }},
    "inside": {"layers": {
        "block": {"class": "subnetwork", "layers": {
            "splice": {"class": "splice", "left": 1, "right": 2},
        }},
    }},
}  # fmt: skip


@pytest.mark.parametrize("name", UNSTREAMED)
def test_layers_that_keep_nothing_have_their_networks_score_chunks_alone(name):
    assert not network_of(name).can_stream


@settings(max_examples=25)
@given(
    name=st.sampled_from([*STREAMED]),
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    multiple=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_sessions_side_by_side_have_each_the_scores_of_its_own(
    name, lengths, multiple, seed
):
    """Their audio comes in any pieces, chunks of any of them are scored at a time."""
    acoustics = served(name)
    network = acoustics.network.network
    rng = np.random.default_rng(seed)
    segments = [rng.normal(size=(n, DIM)).astype(np.float32) for n in lengths]
    whole = [acoustics.log_likes(frames) for frames in segments]
    network.forward = refuse  # all that follows is kept, and nothing computed again
    cutters = [
        ChunkCutter(multiple * acoustics.period, acoustics.context) for _ in lengths
    ]
    waiting = [
        [*np.split(x, np.sort(rng.integers(0, len(x) + 1, 3)))] for x in segments
    ]
    found: list[list[np.ndarray]] = [[] for _ in lengths]
    while not all(cutter.is_done for cutter in cutters):
        for cutter, pieces in zip(cutters, waiting, strict=True):
            if pieces and rng.random() < 0.5:
                cutter.add(pieces.pop(0))
                if not pieces:
                    cutter.end()
        ready = [i for i, c in enumerate(cutters) if c.is_ready and rng.random() < 0.7]
        scores = acoustics.score([cutters[i].take() for i in ready])
        for i, rows in zip(ready, scores, strict=True):
            found[i].append(rows)
    for rows, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(np.concatenate(rows), expected, rtol=0, atol=1e-4)


def served(name):
    found = AcousticNetwork(network_of(name), None, {"scores": "log_likelihoods"})
    return NetworkAcoustics(found, Normalizer(), 0.0, torch.device("cpu"))


def refuse(*_, **__):
    raise ValueError("frames are computed again")


def chunks_of(acoustics, frames):
    cutter = ChunkCutter(acoustics.period, acoustics.context)
    cutter.add(frames)
    cutter.end()
    while (chunk := cutter.take()) is not None:
        yield chunk


def test_streams_of_any_length_go_through_the_network_in_one_pass():
    acoustics, rng = served("causal"), np.random.default_rng(0)
    frames = rng.normal(size=(3, 80, DIM)).astype(np.float32)
    alone = [[acoustics.score([c])[0] for c in chunks_of(acoustics, x)] for x in frames]
    streams = [chunks_of(acoustics, x) for x in frames]
    begun = [0, 4, 7]
    for stream, count in zip(streams, begun, strict=True):
        for _ in range(count + 3):
            acoustics.score([next(stream)])
    passes, stream = [], acoustics.network.network.stream
    acoustics.network.network.stream = lambda *a, **k: (
        passes.append(a),
        stream(*a, **k),
    )[1]
    together = acoustics.score([next(x) for x in streams])
    assert len(passes) == 1
    for rows, expected, count in zip(together, alone, begun, strict=True):
        np.testing.assert_allclose(rows, expected[count + 3], rtol=0, atol=1e-5)


def test_a_chunk_that_fails_leaves_the_streams_beside_it_where_they_were():
    acoustics, rng = served("causal"), np.random.default_rng(0)
    frames = rng.normal(size=(40, DIM)).astype(np.float32)
    whole = acoustics.log_likes(frames)
    acoustics.network.network.forward = refuse
    found = []
    for chunk in chunks_of(acoustics, frames):
        broken = replace(chunk, stream=None)
        rows, fault = score_each(acoustics.score, [chunk, broken], Observer())
        found.append(rows)
        assert str(fault) == "frames are computed again"
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=1e-5)


def test_a_stream_whose_chunk_was_scored_elsewhere_goes_on_by_its_frames():
    acoustics, rng = served("causal"), np.random.default_rng(0)
    frames = rng.normal(size=(60, DIM)).astype(np.float32)
    found = []
    for index, chunk in enumerate(chunks_of(acoustics, frames)):
        elsewhere = replace(chunk, stream=None) if index == 2 else chunk
        found += acoustics.score([elsewhere])
    whole = acoustics.log_likes(frames)
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=1e-5)


def test_a_stream_holds_what_will_be_seen_and_no_more():
    acoustics = served("causal")
    stream = chunks_of(acoustics, np.zeros((200, DIM), np.float32))
    for _ in range(9):
        chunk = next(stream)
        acoustics.score([chunk])
    memory = chunk.stream.memory
    assert memory.rows is not None
    found = [memory.rows, *(x for slot in memory.slots for x in slot)]
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in found}
    # of each block keys and values of a chunk, and three frames of the convolution; of
    # the network two frames of its features
    assert sum(held.values()) == 4 * (2 * (2 * 2 * 6 + 3 * 6) + 2 * DIM)


def test_rows_that_have_not_come_are_refused():
    network = network_of("causal")
    with pytest.raises(ValueError, match="3 rows are asked for before they have come"):
        network.stream(torch.zeros(1, 5, DIM), Memory(), 3, is_last=False)
