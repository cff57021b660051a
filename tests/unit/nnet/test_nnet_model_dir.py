"""Model folders: written and read bit for bit; broken ones are refused by name."""

import json

import numpy as np
import pytest
import torch

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import keep_decoded, load_model, save_model
from latflow.nnet.network import Network

CONFIG = {
    "description": "für Prüfungen",
    "layers": {
        "rec": {"class": "rec", "size": 3},
        "fact": {"class": "tdnnf", "size": 6, "bottleneck": 2},
        "again": {"reuse": "fact"},
        "output": {"class": "output"},
        "phones": {"class": "output", "from": "rec", "target": "phone"},
    },
}


@pytest.fixture
def model():
    description = NetworkDescription.from_config(CONFIG)
    network = Network(description, 5, {"pdf": 4, "phone": 3}, seed=3).train()
    network(torch.randn(2, 7, 5), torch.tensor([7, 4]))  # moves the statistics
    return network


@pytest.fixture
def folder(model, tmp_path):
    priors = np.array([3.0, 0.0, 5.0, 2.0])
    save_model(tmp_path / "m", model, model.description, priors, {"criterion": "ce"})
    return tmp_path / "m"


def test_round_trip_bit_for_bit(model, folder):
    loaded = load_model(folder)
    assert not loaded.network.training
    state, again = model.state_dict(), loaded.network.state_dict()
    assert list(state) == list(again)
    assert all(torch.equal(state[name], again[name]) for name in state)
    x, lengths = torch.randn(2, 7, 5), torch.tensor([7, 4])
    model.eval()
    for name, output in model(x, lengths).items():
        assert torch.equal(output.logits, loaded.network(x, lengths)[name].logits)
    assert loaded.meta == {
        "criterion": "ce",
        "dim_in": 5,
        "classes": {"output": 4, "phones": 3},
        "subsampling": 1,
    }
    assert loaded.network.description.text == "für Prüfungen"
    assert list(loaded.network.outputs) == ["output", "phones"]


def test_written_twice_it_is_the_same_bytes(model, folder, tmp_path):
    loaded = load_model(folder)
    priors = np.array([0.3, 0.0, 0.5, 0.2])
    again = tmp_path / "again"
    save_model(again, loaded.network, loaded.network.description, priors, loaded.meta)
    for name in ("network.yaml", "weights.safetensors", "priors.npy", "meta.json"):
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_log_likelihoods_are_posteriors_over_scaled_priors(folder):
    loaded = load_model(folder)
    x, lengths = torch.randn(2, 7, 5), torch.tensor([7, 4])
    posteriors = torch.log_softmax(loaded.network(x, lengths)["output"].logits, -1)
    plain, told = loaded.log_likelihoods(x, lengths, prior_scale=0.0)
    torch.testing.assert_close(plain, posteriors.detach())
    assert told.tolist() == [7, 4]
    scores, _ = loaded.log_likelihoods(x, lengths, prior_scale=0.5)
    known = [0, 2, 3]
    expected = posteriors.detach()[..., known] - 0.5 * torch.log(
        torch.tensor([0.3, 0.5, 0.2])
    )
    torch.testing.assert_close(scores[..., known], expected)
    # a class without data must never win, and must not be infinite either
    assert scores[..., 1].max() < -1e15
    assert torch.isfinite(scores.sum())


def test_without_priors_only_posteriors(model, tmp_path):
    save_model(tmp_path / "m", model, model.description, None, {})
    assert np.load(tmp_path / "m" / "priors.npy").shape == (0,)
    loaded = load_model(tmp_path / "m")
    assert loaded.log_priors is None
    x, lengths = torch.randn(1, 3, 5), torch.tensor([3])
    assert loaded.log_likelihoods(x, lengths, prior_scale=0.0)[0].shape == (1, 3, 4)
    with pytest.raises(UserError, match="no priors"):
        loaded.log_likelihoods(x, lengths)


def test_outputs_that_are_log_likelihoods_stay_as_they_are(model, tmp_path):
    """Those of LF-MMI: no softmax, no priors, and lattices as Kaldi scales them."""
    meta = {"scores": "log_likelihoods"}
    save_model(tmp_path / "m", model, model.description, None, meta)
    loaded = load_model(tmp_path / "m")
    x, lengths = torch.randn(1, 3, 5), torch.tensor([3])
    outputs = loaded.network(x, lengths)["output"].logits.detach()
    torch.testing.assert_close(loaded.log_likelihoods(x, lengths)[0], outputs)
    assert loaded.lattice_scale == 10.0
    with pytest.raises(UserError, match="no priors"):
        loaded.prior_scale(0.5)


@pytest.mark.parametrize(
    "priors", [[1, 1, 1], [1, 1, -1, 1], [0, 0, 0, 0], [1, np.nan, 1, 1]]
)
def test_priors_that_cannot_be_are_refused(model, tmp_path, priors):
    with pytest.raises(ValueError, match="priors"):
        save_model(
            tmp_path / "m", model, model.description, np.array(priors, float), {}
        )
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["network.yaml", "weights.safetensors", "meta.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}.*no such file"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("network.yaml", "layers: {a: {class: nix}}", "layer a: unknown class nix"),
        ("weights.safetensors", "spoilt", "does not fit"),
        ("meta.json", "{", "not readable as JSON"),
        ("meta.json", "[" * 5000, "not readable as JSON"),
        ("meta.json", "{}", "dim_in and classes are missing"),
        (
            "meta.json",
            '{"dim_in": -1, "classes": {"output": 5, "phone": 3}}',
            "no network",
        ),
        ("priors.npy", "spoilt", "priors.npy"),
    ],
)
def test_a_broken_file_is_named(folder, name, content, what):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=what) as caught:
        load_model(folder)
    assert str(folder / name) in str(caught.value)


def test_files_of_different_trainings_are_refused(folder):
    meta = json.loads((folder / "meta.json").read_text())
    meta["classes"]["output"] = 6
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="does not fit.*output.map.weight"):
        load_model(folder)


def test_priors_of_another_size_are_refused(folder):
    np.save(folder / "priors.npy", np.full(5, 0.2, np.float32))
    with pytest.raises(UserError, match="priors have shape"):
        load_model(folder)


def test_outputs_that_are_not_decoded_are_taken_out(folder, tmp_path):
    """What is left gives the same scores, to the bit; a second time changes nothing."""
    whole = load_model(folder)
    keep_decoded(folder)
    left = load_model(folder)
    assert left.meta["classes"] == {"output": 4}
    assert left.network.description.plan.names == ["rec", "fact", "again", "output"]
    assert left.meta["num_parameters"] == left.network.num_parameters
    assert left.network.num_parameters < whole.network.num_parameters
    x, lengths = torch.randn(2, 7, 5), torch.tensor([7, 4])
    expected, found = (m.log_likelihoods(x, lengths) for m in (whole, left))
    assert all(map(torch.equal, found, expected))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    keep_decoded(folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_layers_of_other_outputs_stay_where_their_parameters_are_shared(tmp_path):
    """`decode` names an output that is not the first; a state and a module are lent."""
    layers = {
        "unused": {"class": "rec", "size": 3},
        "lent": {"class": "linear", "size": 3},
        "first": {"class": "output", "loss_scale": 0.3},
        "giver": {"class": "rec", "from": "data", "size": 3},
        "taker": {"class": "rec", "from": "data", "size": 3, "initial_state": "giver"},
        "same": {"reuse": "lent"},
        "second": {"class": "output", "loss": "ctc"},
    }
    description = NetworkDescription.from_config({"decode": "second", "layers": layers})
    network = Network(description, 5, {"pdf": 4, "label": 3}, seed=3).eval()
    save_model(tmp_path / "m", network, description, None, {"scores": "ctc"})
    keep_decoded(tmp_path / "m")
    left = load_model(tmp_path / "m").network
    kept = {"unused", "lent", "giver", "taker", "same", "second"}
    assert set(left.description.plan.names) == kept
    x, lengths = torch.randn(2, 7, 5), torch.tensor([7, 4])
    expected = network(x, lengths)["second"].logits
    assert torch.equal(left(x, lengths)["second"].logits, expected)
    assert list(left.outputs) == ["second"]
