"""Pretrained encoders as layers: numbers of transformers', padding, what learns."""

import json
import shutil

import numpy as np
import pytest
import torch
from fixtures.encoders import RATE, write_encoder

from latflow.errors import UserError
from latflow.nnet.described import described_subsampling
from latflow.nnet.description import NetworkDescription
from latflow.nnet.footprint import footprint_of
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.training.optimizer_options import AdamWOptions
from latflow.training.optimizers import FlatGradient, make_optimizer

pytest.importorskip("transformers", reason="the extra encoders is not installed")

ALL = ["wav2vec2", "wav2vec2_large", "hubert", "wavlm", "data2vec", "w2v_bert"]
ALL += ["whisper"]
WINDOW, SHIFT = 400, 160


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of encoders by kind, and transformers' models."""
    root = tmp_path_factory.mktemp("encoders")
    return {kind: (root / kind, write_encoder(root / kind, kind)) for kind in ALL}


def described(folder, **options):
    layer = {"class": "pretrained", "folder": str(folder), "sample_rate": RATE}
    if "whisper" in str(folder):
        options = {"overlap": 40} | options
    layers = {"encoder": layer | options, "output": {"class": "output"}}
    return NetworkDescription.from_config({"layers": layers})


def network_of(folder, **options):
    return Network(described(folder, **options), WINDOW, {"pdf": 4}, seed=3).eval()


def test_an_encoder_inside_a_subnetwork_keeps_its_parameters(folders):
    folder, _ = folders["wav2vec2"]
    inside = described(folder).config["layers"]["encoder"]
    block = {"class": "subnetwork", "layers": {"encoder": inside}}
    layers = {"encoder": block, "output": {"class": "output"}}
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, WINDOW, {"pdf": 4}, seed=3).eval()
    values = windows_of(signal_of(0.3))
    expected = encoded(network_of(folder), values)
    torch.testing.assert_close(encoded(network, values), expected)


def windows_of(signal):
    """Return the windows of a signal, [1, T, 400]."""
    return torch.as_tensor(signal, dtype=torch.float32).unfold(0, WINDOW, SHIFT)[None]


def encoded(network, values, lengths=None):
    """Return what the encoder gives for windows, [B, T', D]."""
    if lengths is None:
        lengths = torch.tensor([values.shape[1]] * len(values))
    return network(values, lengths, layers=["encoder"])["encoder"].logits


def signal_of(seconds, seed=1):
    rng = np.random.default_rng(seed)
    return 0.1 * rng.normal(size=int(RATE * seconds)).astype(np.float32)


def states_of(kind, model, signal):
    """Return what transformers gives for a signal, with its own front end."""
    import transformers

    if kind == "whisper":
        seconds = model.config.max_source_positions // 50
        front_end = transformers.WhisperFeatureExtractor(chunk_length=seconds)
        found = front_end(signal, sampling_rate=RATE, return_tensors="pt")
        return model.encoder(found.input_features, output_hidden_states=True)
    if kind == "w2v_bert":
        front_end = transformers.SeamlessM4TFeatureExtractor()
        found = front_end(signal, sampling_rate=RATE, return_tensors="pt")
        return model(**found, output_hidden_states=True)
    front_end = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    found = front_end(signal, sampling_rate=RATE, return_tensors="pt")
    return model(found.input_values, output_hidden_states=True)


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL)
def test_numbers_are_those_of_transformers(folders, kind):
    folder, model = folders[kind]
    signal = signal_of(1.0)[: 97 * SHIFT + WINDOW]  # 98 windows, 49 pairs of them
    wanted = states_of(kind, model, signal)
    last = encoded(network_of(folder), windows_of(signal))
    frames = last.shape[1]
    assert frames == 49
    # the front end of w2v-BERT is in float64 there
    near = {"rtol": 0, "atol": 5e-5 if kind == "w2v_bert" else 1e-5}
    expected = wanted.last_hidden_state[:, :frames]
    torch.testing.assert_close(last, expected, **near)
    for block in (0, 2):
        found = encoded(network_of(folder, block=block), windows_of(signal))
        expected = wanted.hidden_states[block][:, :frames]
        torch.testing.assert_close(found, expected, **near)
    mean = torch.stack([x[:, :frames] for x in wanted.hidden_states]).mean(0)
    found = encoded(network_of(folder, weighted=True), windows_of(signal))
    torch.testing.assert_close(found, mean, **near)


@torch.no_grad()
def test_samples_are_normalized_where_the_folder_says_so(tmp_path):
    import transformers

    model = write_encoder(tmp_path / "x", "wav2vec2_large", normalized=True)
    signal = 3.0 + signal_of(0.5)
    signal = signal[: 40 * SHIFT + WINDOW]
    front_end = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    found = front_end(signal, sampling_rate=RATE, return_tensors="pt")
    wanted = model(found.input_values).last_hidden_state
    network = network_of(tmp_path / "x")
    own = encoded(network, windows_of(signal))
    torch.testing.assert_close(own, wanted, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL)
def test_padding_never_counts(folders, kind):
    network = network_of(folders[kind][0])
    values = torch.cat([windows_of(signal_of(1.2, seed)) for seed in (1, 2)])
    lengths = torch.tensor([values.shape[1], 47])
    values[1, 47:] = np.nan
    both = encoded(network, values, lengths)
    alone = encoded(network, values[1:, :47])
    assert alone.shape[1] == 24
    torch.testing.assert_close(both[1, :24], alone[0], rtol=1e-4, atol=2e-5)
    assert not both[1, 24:].any()


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_frames_come_at_our_rate(folders, stride):
    folder, values = folders["wavlm"][0], windows_of(signal_of(0.6))
    twos = encoded(network_of(folder), values)[0]
    network = network_of(folder, stride=stride)
    found = encoded(network, values)[0]
    assert network.subsampling == stride
    assert len(found) == -(-values.shape[1] // stride)
    for at, row in enumerate(found):
        before = min(at * stride // 2, len(twos) - 1)
        after = min(-(-at * stride // 2), len(twos) - 1)
        wanted = (twos[before] + twos[after]) / 2
        torch.testing.assert_close(row, wanted, rtol=0, atol=1e-6)


@torch.no_grad()
def test_long_sequences_go_in_windows(folders):
    folder = folders["hubert"][0]
    values = windows_of(signal_of(5.0))
    whole = encoded(network_of(folder), values)
    network = network_of(folder, longest=200, overlap=40)
    found = encoded(network, values)
    assert found.shape == whole.shape
    # the first window is of frames 0 .. 199, of which 0 .. 159 count
    first = encoded(network, values[:, :200])
    near = {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(found[:, :80], first[:, :80], **near)
    second = encoded(network, values[:, 120:320])
    torch.testing.assert_close(found[:, 80:140], second[:, 20:80], **near)
    # in a batch as alone
    lengths = torch.tensor([values.shape[1], 260])
    both = encoded(network, torch.cat((values, values)), lengths)
    alone = encoded(network, values[:, :260])
    torch.testing.assert_close(both[1, :130], alone[0], **near)


def test_a_frame_rate_is_read_without_torch(tmp_path):
    layer = {"class": "pretrained", "folder": "x", "sample_rate": RATE}
    layers = {"encoder": layer, "output": {"class": "output"}}
    path = tmp_path / "network.yaml"
    path.write_text(json.dumps({"layers": layers}))
    assert described_subsampling(path) == 2
    layer["stride"] = 3
    path.write_text(json.dumps({"layers": layers}))
    assert described_subsampling(path) == 3


def learnt(network):
    """Return the names of the encoder's parameters that learn."""
    prefix = "body.layers.encoder.model."
    named = network.named_parameters()
    return {n.removeprefix(prefix) for n, v in named if v.requires_grad and prefix in n}


def test_what_learns(folders):
    folder = folders["wav2vec2"][0]
    by_default = learnt(network_of(folder))
    assert not any(name.startswith("feature_extractor") for name in by_default)
    assert any(name.startswith("feature_projection") for name in by_default)
    top = learnt(network_of(folder, top_blocks=1))
    assert top
    assert all(name.startswith("encoder.layers.2.") for name in top)
    assert not learnt(network_of(folder, top_blocks=0))
    some = learnt(network_of(folder, freeze=["*bias", "feature_*"]))
    assert some
    assert not any("bias" in name or "feature_" in name for name in some)
    changes = learnt(network_of(folder, lora_rank=2))
    assert len(changes) == 3 * 4 * 2
    assert all(name.endswith((".0.up", ".0.down")) for name in changes)
    assert len(learnt(network_of(folder, lora_rank=2, lora_in="all"))) == 3 * 6 * 2


@pytest.mark.parametrize("kind", ["wav2vec2", "wavlm", "w2v_bert"])
def test_lora_starts_from_no_change(folders, kind):
    folder, values = folders[kind][0], windows_of(signal_of(0.3))
    network = network_of(folder, lora_rank=2, mask_share=0.0)
    plain = network_of(folder, mask_share=0.0)
    torch.testing.assert_close(encoded(network, values), encoded(plain, values))
    encoded(network, values).square().sum().backward()
    state = dict(network.named_parameters())
    ups = [v.grad for n, v in state.items() if n.endswith(".up")]
    assert all(bool(grad.any()) for grad in ups)


def test_learning_rates_fall_from_block_to_block(folders):
    network = network_of(folders["hubert"][0], learning_rate_decay=0.5)
    factors = {"encoder": 0.1}
    optimizer = make_optimizer(network, AdamWOptions(), 2.0, factors)
    names = {id(v): n for n, v in network.named_parameters()}
    rates = {
        names[id(value)]: group["lr"]
        for group in optimizer.param_groups
        for value in group["params"]
    }
    assert len(rates) == len(list(network.parameters()))
    prefix = "body.layers.encoder.model."
    layer = prefix + "encoder.layers.{}.attention.k_proj.weight"
    assert rates[layer.format(2)] == pytest.approx(0.2)
    assert rates[layer.format(0)] == pytest.approx(0.05)
    assert rates[prefix + "feature_projection.projection.weight"] == pytest.approx(
        0.025
    )
    assert rates["body.layers.output.map.weight"] == pytest.approx(2.0)


def test_an_encoder_waits_for_its_first_step(folders):
    network = network_of(folders["wavlm"][0], freeze_steps=2, mask_share=0.0).train()
    optimizer = make_optimizer(network, AdamWOptions(), 0.01)
    gradient = FlatGradient(network.parameters())
    values, name = windows_of(signal_of(0.3)), "encoder.layers.1.attention.v_proj.bias"
    value = dict(network.named_parameters())[f"body.layers.encoder.model.{name}"]
    before, changes = value.detach().clone(), []
    for step in (1, 2, 3):
        network.at_step(step)
        gradient.clear()
        network(values, torch.tensor([values.shape[1]]))["output"].logits[
            ..., 0
        ].sum().backward()
        optimizer.step()
        changes.append(not torch.equal(value, before))
    assert changes == [False, False, True]
    # its moments begin with its own first step: Adam's first step has the whole length
    assert (value - before).abs().max().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    "kind", ["wav2vec2", "wavlm", "data2vec", "w2v_bert", "whisper"]
)
def test_checkpointing_keeps_gradients(folders, kind):
    values, found = windows_of(signal_of(0.3)), []
    for checkpointing in (False, True):
        network = network_of(folders[kind][0], checkpointing=checkpointing).train()
        torch.manual_seed(5)
        encoded(network, values).square().sum().backward()
        found.append(
            [v.grad for v in network.parameters() if v.grad is not None],
        )
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_masks_follow_from_the_seed(folders):
    network = network_of(folders["wav2vec2"][0], mask_share=0.4).train()
    values = windows_of(signal_of(0.5))
    network.body.layers["encoder"].model.config.layerdrop = 0.0
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(encoded(network, values))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    found[0].sum().backward()
    state = dict(network.named_parameters())
    assert state["body.layers.encoder.model.masked_spec_embed"].grad.any()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_a_model_folder_needs_no_other(folders, kind, tmp_path):
    folder = shutil.copytree(folders[kind][0], tmp_path / "whisper_or_other")
    network, values = network_of(folder, lora_rank=2), windows_of(signal_of(0.3))
    wanted = encoded(network, values)
    save_model(tmp_path / "model", network, network.description, np.ones(4), {})
    shutil.rmtree(folder)
    found = load_model(tmp_path / "model").network
    assert torch.equal(encoded(found, values), wanted)
    told = found.description.config["layers"]["encoder"]
    assert "folder" not in told
    text = json.dumps(network.description.config)
    (tmp_path / "model/network.yaml").write_text(text)
    with pytest.raises(UserError, match=r"names the folder .* all in its own"):
        load_model(tmp_path / "model")
    assert told["licence"] == "Terms of the small encoder\n"


def test_plan_counts_it_by_its_configuration(folders, tmp_path):
    folder = folders["wavlm"][0]
    network = network_of(folder)
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copy(folder / name, tmp_path)
    folder = tmp_path
    found = footprint_of(described(folder), WINDOW, {"pdf": 4})
    assert found.parameters == sum(v.numel() for v in network.parameters())
    assert found.per_frame > WINDOW
    less = footprint_of(described(folder, checkpointing=True), WINDOW, {"pdf": 4})
    assert less.kept(1, 1000) < 0.5 * found.kept(1, 1000)


def changed_config(folder, path, **changes):
    """Copy an encoder; its config.json says other things."""
    shutil.copytree(folder, path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_older_names_and_heads_are_read(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["wav2vec2"][0], tmp_path / "old")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {"original0": "weight_g", "original1": "weight_v"}
    renamed = {"lm_head.weight": torch.ones(3)}
    for name, value in weights.items():
        for new, old in parts.items():
            name = name.replace(f"parametrizations.weight.{new}", old)  # noqa: PLW2901
        renamed[f"wav2vec2.{name}"] = value
    names = sorted(renamed)
    index = {}
    for number, chosen in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({n: renamed[n].contiguous() for n in chosen}, folder / file)
        index |= dict.fromkeys(chosen, file)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    values = windows_of(signal_of(0.3))
    wanted = encoded(network_of(folders["wav2vec2"][0]), values)
    assert torch.equal(encoded(network_of(folder), values), wanted)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"block": 4}, "the encoder has 3 blocks"),
        ({"weighted": True, "block": 1}, "leave block out"),
        ({"freeze": ["encoder.layer.*"]}, r"no parameter encoder.layer.\*"),
        ({"freeze": [3]}, "freeze must be a list of names"),
        ({"mask_share": 0.95}, "mask_share is 0.85 at most"),
        ({"shift": 150}, "a frame every 320 samples, no multiple of shift 150"),
        ({"longest": 300}, "windows of 300 frames have no room for an overlap of 200"),
        ({"config": {"model_type": "wav2vec2"}}, "not both"),
    ],
)
def test_options_that_do_not_fit_are_refused(folders, options, told):
    with pytest.raises(UserError, match=told):
        network_of(folders["wav2vec2"][0], **options)


def test_folders_that_are_none_are_refused(folders, tmp_path):
    source = folders["wav2vec2"][0]
    with pytest.raises(UserError, match=r"config.json: no such file"):
        network_of(tmp_path)
    other = changed_config(source, tmp_path / "other", model_type="bert")
    with pytest.raises(UserError, match="model_type 'bert' is not wav2vec2, "):
        network_of(other)
    wide = changed_config(source, tmp_path / "wide", hidden_size=32)
    with pytest.raises(UserError, match="has the shape .* config.json says"):
        network_of(wide)
    deep = changed_config(source, tmp_path / "deep", num_hidden_layers=4)
    with pytest.raises(UserError, match="parameters are missing, encoder.layers.3"):
        network_of(deep)
    pickled = shutil.copytree(source, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin may hold code and is not"):
        network_of(pickled)
    broken = shutil.copytree(source, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UserError, match="no safetensors"):
        network_of(broken)
    told = json.dumps({"sampling_rate": 8000})
    slow = shutil.copytree(source, tmp_path / "slow")
    (slow / "preprocessor_config.json").write_text(told)
    with pytest.raises(UserError, match="the encoder is for 8000 Hz"):
        network_of(slow)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "nothing of an encoder's own"),
        ({"_attn_implementation": "kernels-x/evil"}, "nothing of an encoder's own"),
        ({"hidden_size": 1 << 40}, "above 1048576"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers 5000, above 1000"),
        ({"num_hidden_layers": None}, "makes no encoder"),
        ({"hidden_dropout": "much"}, "makes no encoder"),
        ({"hidden_size": -3}, "makes no encoder"),
        ({"num_attention_heads": 3}, "makes no encoder"),
        ({"add_adapter": True}, "adapters"),
    ],
)
def test_a_package_names_values_alone(folders, values, told):
    layers = described(folders["hubert"][0]).self_contained().config["layers"]
    layers["encoder"]["config"] |= values
    description = NetworkDescription.from_config({"layers": layers})
    with pytest.raises(UserError, match=told):
        Network(description, WINDOW, {"pdf": 4})


def test_code_of_a_folder_is_not_run(folders, tmp_path):
    mapping = {"AutoConfig": "code.C", "AutoModel": "code.M"}
    folder = changed_config(folders["hubert"][0], tmp_path / "x", auto_map=mapping)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    network_of(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ALL)
def test_passes_in_bf16_are_near(folders, kind):
    values = torch.cat([windows_of(signal_of(0.5, seed)) for seed in (1, 2)])
    lengths, found = torch.tensor([values.shape[1], 30]), []
    for is_half in (False, True):
        network = network_of(folders[kind][0], mask_share=0.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            states = encoded(network, values, lengths)
        states.float().square().sum().backward()
        slopes = [v.grad.flatten() for v in network.parameters() if v.grad is not None]
        found.append((states.float().flatten(), torch.cat(slopes)))
    for exact, near in zip(*found, strict=True):
        assert near.isfinite().all()
        assert torch.nn.functional.cosine_similarity(exact, near, 0) > 0.95
