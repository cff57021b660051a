"""Fused networks give the mean of the scores, and others are refused by name."""

import json

import numpy as np
import pytest
import torch

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.score_fusion import fuse_models

X, LENGTHS = torch.randn(2, 12, 5), torch.tensor([12, 7])
SMALL = {
    "first": {"class": "tdnn", "size": 6, "offsets": [-1, 0, 1]},
    "norm": {"class": "batch_norm"},
    "output": {"class": "output", "loss": "lfmmi"},
    "xent": {"class": "output", "from": "first"},
}
WIDE = {
    "scores": {"class": "output", "loss": "lfmmi", "from": ["deep", "norm"]},
    "near": {"class": "linear", "from": "data", "size": 7, "activation": "relu"},
    "again": {"class": "linear", "size": 7},
    "deep": {"reuse": "again"},
    "norm": {"class": "batch_norm", "from": "near"},
    "far": {"class": "output", "from": "near", "target": "phone"},
}


def write(
    folder, layers, *, seed=0, priors=None, tree="a tree", edges="repeat", **meta
):
    description = NetworkDescription.from_config({"edges": edges, "layers": layers})
    network = Network(description, 5, {"pdf": 4, "phone": 3}, seed=seed).train()
    network(X, LENGTHS)  # moves the statistics
    save_model(folder, network, description, priors, meta)
    (folder / "tree").write_text(tree)
    (folder / "final.mdl").write_text("a model")
    return folder


def scores(folder):
    return load_model(folder).log_likelihoods(X, LENGTHS)[0].detach()


@pytest.fixture
def pair(tmp_path):
    kind = {"scores": "log_likelihoods"}
    one = write(tmp_path / "one", SMALL, seed=1, **kind)
    return one, write(tmp_path / "two", WIDE, seed=2, **kind)


def test_scores_are_the_mean(pair, tmp_path):
    main(["fuse", *map(str, pair), str(pair[0]), "--out", str(tmp_path / "all")])
    one, two, fused = map(scores, (*pair, tmp_path / "all"))
    assert (one - two).abs().max() > 0.1
    torch.testing.assert_close(fused, (2 * one + two) / 3)
    model = load_model(tmp_path / "all")
    assert list(model.network.outputs) == ["output"]
    assert not any("xent" in layer for layer in model.network.body.layers)
    assert model.network.receptive_field == (1, 1)
    assert model.meta["fused"] == ["one", "two", "one"]
    assert (tmp_path / "all/tree").read_text() == "a tree"


def test_outputs_of_which_one_has_no_offset(pair, tmp_path):
    bare = {**SMALL, "output": {**SMALL["output"], "bias": False}}
    one = write(tmp_path / "bare", bare, scores="log_likelihoods")
    fuse_models([one, pair[1]], tmp_path / "both")
    expected = (scores(one) + scores(pair[1])) / 2
    torch.testing.assert_close(scores(tmp_path / "both"), expected)


def test_of_posteriors_the_geometric_mean_counts(tmp_path):
    layers = {"wide": {"class": "linear", "size": 6}, "output": {"class": "output"}}
    shares = [[0.4, 0.4, 0.1, 0.1], [0.1, 0.4, 0.4, 0.1]]
    paths = [
        write(tmp_path / f"m{n}", layers, seed=n, priors=np.array(shares[n]))
        for n in range(2)
    ]
    fuse_models(paths, tmp_path / "both")
    expected = torch.stack([scores(path) for path in paths]).mean(0)
    # both are known up to a constant of a frame
    difference = scores(tmp_path / "both") - expected
    spread = difference[0].max(-1).values - difference[0].min(-1).values
    assert spread.max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree": "another"}, r"two.tree: is not that of .*one: pdfs are others"),
        ({"edges": "zeros"}, r"two.network.yaml: edges are not those of .*one"),
        ({"normalization": {"type": "none"}}, "normalization is .*'none'.*None"),
        ({"scores": "ctc"}, "scores is ctc, that of .*one log_likelihoods"),
    ],
)
def test_networks_that_do_not_fit_are_refused(pair, tmp_path, changes, message):
    kind = {"scores": "log_likelihoods", **changes}
    other = write(tmp_path / "two", SMALL, **kind)
    with pytest.raises(UserError, match=message):
        fuse_models([pair[0], other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_network_or_a_curved_output_is_refused(pair, tmp_path):
    with pytest.raises(UserError, match="one model is not to be fused"):
        fuse_models(pair[:1], tmp_path / "out")
    curved = {**SMALL, "output": {**SMALL["output"], "activation": "relu"}}
    other = write(tmp_path / "two", curved, scores="log_likelihoods")
    with pytest.raises(UserError, match="output: scores of such an output cannot"):
        fuse_models([pair[0], other], tmp_path / "out")


def test_a_fused_model_can_be_fused_again(pair, tmp_path):
    fuse_models(pair, tmp_path / "both")
    fuse_models([tmp_path / "both", pair[0]], tmp_path / "all")
    names = json.loads((tmp_path / "all/meta.json").read_text())["fused"]
    assert names == ["both", "one"]
    expected = (scores(tmp_path / "both") + scores(pair[0])) / 2
    torch.testing.assert_close(scores(tmp_path / "all"), expected)
