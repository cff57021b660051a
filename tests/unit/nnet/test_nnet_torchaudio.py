"""Pretrained encoders in torchaudio's form: numbers of transformers', strange files."""

import json
import pickle
import re

import pytest
import torch
from fixtures.encoders import RATE, write_encoder
from safetensors.torch import save_file
from torch import nn

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.torchaudio_encoders import derive_config

pytest.importorskip("transformers", reason="the extra encoders is not installed")

WINDOW, SHIFT = 400, 160
KINDS = ["wav2vec2", "wav2vec2_large", "hubert", "wavlm"]
CONFIG = {"num_attention_heads": 2}  # no shape tells them


def torchaudio_names(model):
    """Return a model's state dict as torchaudio names it."""
    inside = {
        "encoder.": "encoder.transformer.",
        "feature_projection.": "encoder.feature_projection.",
    }
    found = dict(model.state_dict())
    found.pop("masked_spec_embed", None)
    for name in [*found]:
        for old, new in inside.items():
            if name.startswith(old):
                found[new + name.removeprefix(old)] = found.pop(name)
    if model.config.model_type == "wavlm":
        for block in range(model.config.num_hidden_layers):
            place = f"encoder.transformer.layers.{block}.attention."
            for what in ("weight", "bias"):
                parts = [found.pop(f"{place}{x}_proj.{what}") for x in "qkv"]
                found[f"{place}attention.in_proj_{what}"] = torch.cat(parts)
                out = found.pop(f"{place}out_proj.{what}")
                found[f"{place}attention.out_proj.{what}"] = out
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Transformers' models by kind."""
    root = tmp_path_factory.mktemp("encoders")
    return {kind: write_encoder(root / kind, kind) for kind in KINDS}


def write(folder, state, *, config=CONFIG, name="bundle.pth"):
    folder.mkdir()
    torch.save(state, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def network_of(folder):
    encoder = {"class": "pretrained", "folder": str(folder), "sample_rate": RATE}
    layers = {"encoder": encoder, "output": {"class": "output"}}
    description = NetworkDescription.from_config({"layers": layers})
    return Network(description, WINDOW, {"pdf": 4}, seed=3).eval()


@torch.no_grad()
def encoded(network, signal):
    windows = signal.unfold(0, WINDOW, SHIFT)[None]
    lengths = torch.tensor([windows.shape[1]])
    return network(windows, lengths, layers=["encoder"])["encoder"].logits


@torch.no_grad()
def of_transformers(model, signal, *, normalized=False):
    if normalized:
        mean, variance = signal.mean(), signal.var(correction=0)
        signal = (signal - mean) / (variance + 1e-7).sqrt()
    return model(signal[None]).last_hidden_state


SIGNAL = 0.3 + 0.1 * torch.randn(
    97 * SHIFT + WINDOW, generator=torch.Generator().manual_seed(1)
)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_transformers(models, tmp_path, kind):
    model = models[kind]
    network = network_of(write(tmp_path / "x", torchaudio_names(model)))
    # large models get samples of mean 0 and variance 1, in torchaudio's pipelines too
    wanted = of_transformers(model, SIGNAL, normalized=kind == "wav2vec2_large")
    found = encoded(network, SIGNAL)
    torch.testing.assert_close(found, wanted[:, :49], rtol=0, atol=1e-5)


def test_what_shapes_tell_is_what_the_model_was_made_of(models, tmp_path):
    for kind, model in models.items():
        folder = write(tmp_path / kind, torchaudio_names(model))
        derived, is_normalized = derive_config(folder / "bundle.pth")
        of_model = json.loads(model.config.to_json_string())
        heads = derived.pop("num_attention_heads", None)
        assert heads == (2 if kind == "wavlm" else None)
        model_type = derived.pop("model_type")
        assert model_type == ("wavlm" if kind == "wavlm" else "wav2vec2")
        assert derived == {name: of_model[name] for name in derived}
        assert is_normalized == (kind == "wav2vec2_large")


def test_heads_of_wavlm_follow_from_its_shapes(models, tmp_path):
    state = torchaudio_names(models["wavlm"])
    network = network_of(write(tmp_path / "x", state, config=None))
    wanted = of_transformers(models["wavlm"], SIGNAL)
    torch.testing.assert_close(
        encoded(network, SIGNAL), wanted[:, :49], rtol=0, atol=1e-5
    )


def test_untold_heads_are_asked_for(models, tmp_path):
    state = torchaudio_names(models["wav2vec2"])
    folder = write(tmp_path / "x", state, config=None)
    told = re.escape("lacks num_attention_heads of an encoder of its size")
    with pytest.raises(UserError, match=f"bundle.pth: {told}.*config.json"):
        network_of(folder)


def test_heads_for_letters_and_of_pretraining_are_left_out(models, tmp_path):
    model = models["hubert"]
    plain = torchaudio_names(model)
    wanted = encoded(network_of(write(tmp_path / "plain", plain)), SIGNAL)
    letters = plain | {"aux.weight": torch.ones(29, 16), "aux.bias": torch.ones(29)}
    tuned = encoded(network_of(write(tmp_path / "tuned", letters)), SIGNAL)
    assert torch.equal(tuned, wanted)
    outer = {f"wav2vec2.{name}": value for name, value in plain.items()}
    outer["mask_generator.mask_embedding"] = torch.full((16,), 7.0)
    outer["logit_generator.label_embeddings"] = torch.ones(10, 16)
    network = network_of(write(tmp_path / "outer", outer, name="epoch3.pt"))
    assert torch.equal(encoded(network, SIGNAL), wanted)
    (mask,) = (v for k, v in network.named_parameters() if "masked_spec_embed" in k)
    assert mask.unique().tolist() == [7.0]


def test_older_names_and_half_precision_are_read(models, tmp_path):
    state = torchaudio_names(models["hubert"])
    place = "encoder.transformer.pos_conv_embed.conv."
    for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
        state[place + old] = state.pop(f"{place}parametrizations.weight.{new}")
    half = {name: value.half() for name, value in state.items()}
    network = network_of(write(tmp_path / "x", half))
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    wanted = of_transformers(models["hubert"], SIGNAL)[:, :49]
    torch.testing.assert_close(encoded(network, SIGNAL), wanted, rtol=0.05, atol=0.05)


class Witness(nn.Module):
    """Tells whether it was unpickled."""

    loaded = False

    def __setstate__(self, state):
        Witness.loaded = True
        super().__setstate__(state)


def _cut(path):
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def refused(folder, told):
    with pytest.raises(UserError, match=told) as caught:
        network_of(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_files_that_hold_code_are_refused_and_not_run(models, tmp_path):
    whole = write(tmp_path / "module", Witness())
    refused(whole, "may hold code and is not read")
    plain = write(tmp_path / "pickle", {})
    (plain / "bundle.pth").write_bytes(pickle.dumps(Witness()))
    refused(plain, "may hold code and is not read")
    script = write(tmp_path / "script", {})
    torch.jit.script(nn.Linear(2, 2)).save(script / "bundle.pth")
    refused(script, "may hold code and is not read")
    assert not Witness.loaded


def test_strange_files_are_refused_in_a_line(models, tmp_path):
    state = torchaudio_names(models["wav2vec2"])
    cut = write(tmp_path / "cut", state)
    _cut(cut / "bundle.pth")
    refused(cut, "is damaged, or may hold code")
    text = write(tmp_path / "text", {})
    (text / "bundle.pth").write_text("<html>404 Not Found</html>")
    refused(text, "is not a file of torch's")
    renamed = write(tmp_path / "renamed", {})
    save_file({k: v.clone() for k, v in state.items()}, renamed / "bundle.pth")
    refused(renamed, "looks like safetensors: name it model.safetensors")
    nested = write(tmp_path / "nested", {"model": state, "epoch": 3})
    refused(nested, "no state dict: not all are tensors")
    refused(write(tmp_path / "empty", {}), "it has no parameters, and no feature_ext")
    other = write(tmp_path / "other", nn.Linear(2, 2).state_dict())
    refused(other, "it has weight, and no feature_extractor")
    two = write(tmp_path / "two", state)
    (two / "other.pt").write_bytes(b"")
    refused(two, "has bundle.pth and other.pt")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda s: s | {"adapter.weight": torch.ones(2)},
            "adapter.weight is not a param",
        ),
        (
            lambda s: s | {"aux": torch.ones(2, dtype=torch.int64)},
            "aux is not a tensor of",
        ),
        (lambda s: _without(s, "encoder.transformer.layers.1."), "parameters are miss"),
        (lambda s: _without(s, "encoder.transformer.layer_norm"), "do not fit"),
        (lambda s: _without(s, "encoder.transformer.pos_conv"), "do not fit"),
    ],
)
def test_parameters_too_many_and_too_few_are_told(models, tmp_path, change, told):
    state = change(torchaudio_names(models["wav2vec2"]))
    refused(write(tmp_path / "x", state), told)


def _without(state, prefix):
    return {k: v for k, v in state.items() if not k.startswith(prefix)}


def test_safetensors_come_first(models, tmp_path):
    folder = tmp_path / "both"
    models["wavlm"].save_pretrained(folder)
    told = '{"do_normalize": false}'
    (folder / "preprocessor_config.json").write_text(told)
    (folder / "training.pt").write_bytes(b"of somebody's training")
    wanted = of_transformers(models["wavlm"], SIGNAL)[:, :49]
    torch.testing.assert_close(
        encoded(network_of(folder), SIGNAL), wanted, rtol=0, atol=1e-5
    )
