"""Folders of encoders as others save them: read right, or refused by name."""

import json
import shutil

import numpy as np
import pytest
import torch
from fixtures.encoders import RATE, write_encoder

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.encoders import NORMALIZED, read_config
from latflow.nnet.network import Network

transformers = pytest.importorskip(
    "transformers", reason="the extra encoders is not installed"
)
WINDOW, SHIFT = 400, 160
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:7c19\nsize 225\n"


@pytest.fixture
def folder(tmp_path):
    write_encoder(tmp_path / "encoder", "wav2vec2", normalized=True)
    return tmp_path / "encoder"


@torch.no_grad()
def encoded(folder, signal):
    """Return what a network's encoder gives for a signal, [1, T, D]."""
    layer = {"class": "pretrained", "folder": str(folder), "sample_rate": RATE}
    layers = {"encoder": layer, "output": {"class": "output"}}
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, WINDOW, {"pdf": 4}, seed=3).eval()
    values = torch.as_tensor(signal).unfold(0, WINDOW, SHIFT)[None]
    lengths = torch.tensor([values.shape[1]])
    return network(values, lengths, layers=["encoder"])["encoder"].logits


def some_signal():
    rng = np.random.default_rng(2)
    return 0.3 + rng.normal(size=40 * SHIFT + WINDOW).astype(np.float32)


def write_json(path, values):
    path.write_text(json.dumps(values))


def test_a_processor_saved_by_transformers_says_what_is_normalized(folder):
    """Version 5 writes all in one file, which comes first, as in transformers."""
    write_json(folder / "vocab.json", {"<pad>": 0, "<unk>": 1, "|": 2, "a": 3})
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    front_end = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    transformers.Wav2Vec2Processor(front_end, tokenizer).save_pretrained(folder)
    told = json.loads((folder / "processor_config.json").read_text())
    assert told["feature_extractor"]["do_normalize"] is False
    assert read_config(folder)[NORMALIZED] is False
    (folder / "preprocessor_config.json").unlink()
    assert read_config(folder)[NORMALIZED] is False
    # what older versions wrote beside preprocessor_config.json tells nothing
    write_json(folder / "processor_config.json", {"processor_class": "x"})
    with pytest.raises(UserError, match="nothing in it says whether samples"):
        read_config(folder)
    write_json(folder / "preprocessor_config.json", {"sampling_rate": RATE})
    assert read_config(folder)[NORMALIZED] is front_end.__class__().do_normalize


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        ("wav2vec2", {"do_normalize": "false"}, "do_normalize is 'false', not true"),
        ("wav2vec2", {"feature_size": 2}, "feature_size is 2, and only .* with 1"),
        ("wav2vec2", {"sampling_rate": "16k"}, "sampling_rate is '16k'"),
        ("w2v_bert", {"stride": 1}, "stride is 1, and only encoders with 2"),
        ("whisper", {"hop_length": 320}, "hop_length is 320, and only .* with 160"),
        ("whisper", {"feature_size": 128}, "feature_size is 128, and only .* with 80"),
    ],
)
def test_other_features_than_ours_are_refused(tmp_path, kind, values, told):
    write_encoder(tmp_path / "x", kind)
    path = tmp_path / "x/preprocessor_config.json"
    write_json(path, json.loads(path.read_text()) | values)
    with pytest.raises(UserError, match=told):
        encoded(tmp_path / "x", some_signal())


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "model.safetensors"]
)
def test_pointers_of_git_lfs_are_told(folder, name):
    (folder / name).write_text(POINTER)
    with pytest.raises(UserError, match=f"{name}: stands for a file of Git LFS.*pull"):
        encoded(folder, some_signal())


def test_a_pointer_in_the_place_of_torchaudios_file_is_told(tmp_path):
    (tmp_path / "wavlm_base.pth").write_text(POINTER)
    with pytest.raises(UserError, match="wavlm_base.pth: stands for a file of Git LFS"):
        read_config(tmp_path)


def test_half_precision_is_widened(folder):
    model = transformers.Wav2Vec2Model.from_pretrained(folder).eval().half()
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
    front_end = transformers.Wav2Vec2FeatureExtractor()
    read = front_end(some_signal(), sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        wanted = model.float()(read.input_values).last_hidden_state
    found = encoded(folder, some_signal())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_quantized_parameters_are_refused(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layers.0.attention.q_proj.weight"
    save_file(weights | {name: (weights[name] * 100).to(torch.int8)}, path)
    with pytest.raises(UserError, match=f"{name} is of type torch.int8: it is quant"):
        encoded(folder, some_signal())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"load_in_8bit": True}
    write_json(folder / "config.json", config)
    with pytest.raises(UserError, match=r"config.json: its parameters are quantized"):
        encoded(folder, some_signal())


def test_parameters_that_are_there_twice_are_refused(folder):
    from safetensors.torch import load_file, save_file

    path, name = folder / "model.safetensors", "encoder.layer_norm.weight"
    weights = load_file(path)
    save_file(weights | {f"wav2vec2.{name}": weights[name] + 1}, path)
    with pytest.raises(UserError, match=f"has {name} twice"):
        encoded(folder, some_signal())


def test_adapters_of_languages_inside_blocks_are_read(tmp_path):
    """Those of MMS; such of other languages, in files beside, are not."""
    folder = tmp_path / "mms"
    model = write_encoder(folder, "wav2vec2_large", adapter_attn_dim=4)
    assert any("adapter_layer" in name for name, _ in model.named_parameters())
    shutil.copy(folder / "model.safetensors", folder / "adapter.eng.safetensors")
    with torch.no_grad():
        wanted = model(torch.as_tensor(some_signal())[None]).last_hidden_state
    found = encoded(folder, some_signal())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_keys_of_older_versions_change_nothing(folder):
    """As in a wav2vec 2.0 that was saved by version 4.9 of transformers."""
    wanted = encoded(folder, some_signal())
    config = json.loads((folder / "config.json").read_text())
    old = {
        "architectures": ["Wav2Vec2ForPreTraining"],
        "freeze_feat_extract_train": True,
        "gradient_checkpointing": True,
        "mask_channel_selection": "static",
        "no_mask_time_overlap": False,
        "torch_dtype": "float16",
        "transformers_version": "4.9.0.dev0",
    }
    write_json(folder / "config.json", config | old)
    assert torch.equal(encoded(folder, some_signal()), wanted)


def test_one_file_comes_before_an_index_of_several(folder):
    """As in transformers: the index may be of another precision."""
    wanted = encoded(folder, some_signal())
    shards = {"encoder.layer_norm.weight": "model-00001-of-00002.safetensors"}
    write_json(folder / "model.safetensors.index.json", {"weight_map": shards})
    assert torch.equal(encoded(folder, some_signal()), wanted)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model-00001-of-00002.safetensors: no such"):
        encoded(folder, some_signal())
