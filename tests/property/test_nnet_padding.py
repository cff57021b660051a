"""Padding never changes a result: a batch gives each sequence what it gets alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network

STACKS = {
    "recurrent": {
        "a": {"class": "rec", "size": 4, "num_layers": 2},
        "b": {"class": "rec", "size": 3, "direction": "backward", "unit": "gru"},
        "c": {"class": "rec", "size": 4, "unit": "associative", "copies": 2},
    },
    "projected": {"a": {"class": "rec", "size": 5, "projection": 3}},
    "convolutions": {
        "a": {
            "class": "conv2d",
            "size": 2,
            "frequency_stride": 2,
            "activation": "relu",
        },
        "b": {"class": "conv2d", "size": 3, "kernel": 5, "stride": 2},
        "c": {"class": "conv1d", "size": 4, "kernel": 4, "dilation": 2},
        "d": {"class": "layer_norm"},
        "e": {"class": "conv1d", "size": 4, "groups": 2, "causal": True},
    },
    "splices": {
        "a": {"class": "splice", "left": 3, "right": 2},
        "b": {"class": "linear", "size": 4, "activation": "sigmoid"},
        "c": {"class": "window", "size": 4},
        "d": {"class": "pool", "kernel": 3, "stride": 2},
        "e": {"class": "pool", "mode": "mean", "kernel": 4, "stride": 2},
    },
    "tdnn": {
        "a": {"class": "tdnn", "size": 6, "offsets": [-2, 1, 4]},
        "b": {"class": "tdnnf", "size": 6, "bottleneck": 3, "num_layers": 3},
        "c": {"class": "subsample", "factor": 3},
    },
    "attention": {
        "a": {"class": "positional_encoding"},
        "b": {"class": "self_attention", "heads": 3, "look_ahead": 1, "look_back": 2},
        "c": {"class": "transformer", "heads": 2, "feed_forward": 8, "num_layers": 2},
        "d": {"class": "conformer", "heads": 2, "feed_forward": 8, "kernel": 4},
        "e": {"class": "self_attention", "heads": 2, "positions": "relative"},
    },
    "zipformer": {
        "a": {"class": "zipformer", "heads": 2, "feed_forward": 8, "downsampling": 3},
        "b": {"class": "bias_norm"},
        "c": {"class": "zipformer", "size": 4, "heads": 1, "positions": "relative"},
    },
    "norms": {
        "a": {"class": "activation", "function": "sigmoid"},
        "b": {"class": "batch_norm"},
        "c": {"class": "conv1d", "size": 5},
        "d": {"class": "layer_norm"},
        "e": {"class": "linear", "size": 4, "activation": "log_softmax"},
        "f": {"class": "rec", "size": 4, "direction": "forward", "num_layers": 2},
    },
    "samples": {
        "a": {"class": "stft", "channels": 2},
        "b": {"class": "mask_estimator", "size": 3},
        "c": {"class": "mvdr", "from": ["a", "b"]},
        "d": {
            "class": "mel",
            "sample_rate": 1000,
            "num_bins": 3,
            "filters": "gaussian",
            "log": False,
        },
        "e": {"class": "pcen", "frames": 3},
    },
    "branches": {
        "a": {"class": "linear", "size": 6},
        "b": {"class": "rec", "size": 3, "from": "data"},
        "c": {"class": "add", "from": ["a", "b", "data"]},
        "d": {
            "class": "subnetwork",
            "repeat": 2,
            "layers": {
                "x": {"class": "conv1d", "size": 6},
                "y": {"class": "add", "from": ["x", "data"]},
            },
        },
        "e": {"class": "concat", "from": ["c", "d"]},
        "f": {"class": "linear", "size": 4, "activation": "tanh"},
    },
}
HAS_BATCH_NORM = {
    "tdnn",
    "attention",
    "norms",
}  # these tie a batch together in training


def build(name):
    layers = {**STACKS[name], "output": {"class": "output"}}
    return Network(NetworkDescription.from_config({"layers": layers}), 6, {"pdf": 5})


CASES = [(name, "eval") for name in STACKS]
CASES += [(name, "train") for name in STACKS if name not in HAS_BATCH_NORM]


# torch says once that oneDNN knows no projections
UNKNOWN_TO_ONEDNN = pytest.mark.filterwarnings("ignore:LSTM with projections")


@pytest.mark.slow
@UNKNOWN_TO_ONEDNN
@pytest.mark.parametrize(("name", "mode"), CASES)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=4), more=st.integers(0, 3)
)
def test_a_batch_gives_each_sequence_what_it_gets_alone(name, mode, lengths, more):
    net = build(name).train(mode == "train")
    torch.manual_seed(sum(lengths))
    features = torch.randn(len(lengths), max(lengths) + more, 6)
    output = net(features, torch.tensor(lengths))["output"]
    for i, length in enumerate(lengths):
        alone = net(features[i : i + 1, :length], torch.tensor([length]))["output"]
        frames = int(output.lengths[i])
        assert frames == int(alone.lengths[0]) == -(-length // net.subsampling)
        assert alone.logits.shape[1] == frames
        torch.testing.assert_close(
            output.logits[i, :frames], alone.logits[0], rtol=1e-4, atol=1e-5
        )
        assert (output.logits[i, frames:] == 0).all()


@pytest.mark.slow
@UNKNOWN_TO_ONEDNN
@pytest.mark.parametrize("name", STACKS)
@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=3))
def test_more_padding_changes_neither_training_nor_its_statistics(name, lengths):
    torch.manual_seed(sum(lengths))
    features = torch.randn(len(lengths), max(lengths) + 7, 6)
    short, long = build(name).train(), build(name).train()
    one = short(features[:, : max(lengths)], torch.tensor(lengths))["output"].logits
    two = long(features, torch.tensor(lengths))["output"].logits
    torch.testing.assert_close(one, two[:, : one.shape[1]], rtol=1e-4, atol=1e-4)
    for (key, a), b in zip(
        short.state_dict().items(), long.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=key)
