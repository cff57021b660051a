"""The frame rate that a description tells without torch is that of the network."""

import pytest
import yaml

from latflow.errors import UserError
from latflow.nnet.described import described_sample_rates, described_subsampling
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network

CASES = {
    "features": {"output": {"class": "output"}},
    "default": {"slow": {"class": "subsample"}, "output": {"class": "output"}},
    "a product": {
        "conv": {"class": "conv1d", "size": 4, "kernel": 3, "stride": 2},
        "slow": {"class": "subsample", "factor": 2},
        "output": {"class": "output"},
    },
    "pooled": {"pool": {"class": "pool"}, "output": {"class": "output"}},
    "joined": {
        "a": {"class": "subsample", "factor": 4, "from": "data"},
        "b": {"class": "subsample", "factor": 4, "from": "data"},
        "output": {"class": "output", "from": ["a", "b"]},
    },
    "reused": {
        "a": {"class": "subsample", "factor": 2},
        "b": {"reuse": "a", "from": "a"},
        "wide": {"class": "linear", "size": 4},
        "output": {"class": "linear", "loss": "ce", "from": "wide"},
    },
    "inside": {
        "part": {
            "class": "subnetwork",
            "repeat": 3,
            "layers": {
                "slow": {"class": "subsample", "factor": 2},
                "wide": {"class": "linear", "size": 4},
            },
        },
        "output": {"class": "output"},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_the_network(tmp_path, name):
    path = tmp_path / "network.yaml"
    path.write_text(yaml.safe_dump({"layers": CASES[name]}, sort_keys=False))
    network = Network(NetworkDescription.load(path), 8, {"pdf": 3})
    assert described_subsampling(path) == network.subsampling


def test_so_it_is_for_the_presets(repository):
    # Those on encoders are made where an encoder's folder is.
    presets = sorted((repository / "config/networks").glob("[!p]*.yaml"))
    assert presets
    for path in presets:
        description = NetworkDescription.load(path)
        classes = {loss.target: 5 for loss in description.outputs.values()}
        # A network on samples reads those of a window, 25 ms at 16 kHz.
        dim = 400 if described_sample_rates(path) else 40
        network = Network(description, dim, classes)
        assert described_subsampling(path) == network.subsampling, path


def test_what_is_no_description_has_none(tmp_path):
    path = tmp_path / "network.yaml"
    for text in (
        "[]",
        "layers: 3",
        "layers: {a: 2}",
        "layers: {a: {from: a, loss: x}}",
    ):
        path.write_text(text)
        assert described_subsampling(path) == 1
    path.write_text("{")
    with pytest.raises(UserError, match="YAML"):
        described_subsampling(path)
