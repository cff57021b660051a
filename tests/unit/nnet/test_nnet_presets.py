"""The networks in config/networks: sizes, a step of training, learning by heart."""

import copy
import itertools

import pytest
import torch
from fixtures.encoders import write_encoder
from torch.nn import functional

from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.pretraining import carry_over, num_steps, shallower

LARGE = {"blstm_3x512": 20_944_520, "transformer": 26_637_448, "tdnnf": 18_295_432}
SMALL = (
    *("blstm_small", "tdnnf_small", "tdnnf_tiny"),
    *("transformer_small", "conformer_small"),
)
# parameters with 40 features and 2000 pdfs, look-ahead in frames
CHAIN = {
    "tdnnf_chain": (5_004_448, 28),
    "tdnnf_chain_large": (18_444_704, 40),
    "cnn_tdnnf_chain": (4_294_976, 29),
    "tdnnf_chain_small": (1_459_360, 21),
    "tdnnf_chain_small_augmented": (1_459_360, 21),
    "cnn_tdnnf_chain_small": (1_798_736, 26),
    "cnn_tdnnf_chain_medium": (3_093_760, 35),
    "tdnnf_chain_streaming": (1_335_840, 10),
}
# the same with 80 features, look-ahead, frames an output, frames of a chunk
CONFORMERS = {
    "conformer_chain": (20_352_000, None, 4, 4),
    "conformer_chain_streaming": (14_000_128, 3, 4, 64),
    "conformer_chain_small": (2_637_744, None, 3, 3),
}
# the same
ZIPFORMERS = {
    "zipformer_chain": (22_843_969, None, 4, 4),
    "zipformer_chain_small": (3_061_565, None, 3, 3),
}
# LF-MMI with CTC: parameters with 40 features, 2000 pdfs and 40 labels
BOTH = {"conformer_chain_ctc": 2_620_504}
# parameters with 40 features and 40 labels, look-ahead, frames an output
CTC = {"tdnnf_ctc_small": (866_280, 21, 3), "conformer_ctc": (19_120_776, None, 4)}
# the same with 40 units
ATTENTION = {"attention_small": (991_010, None)}
# the same with 20 rows of an image and 11 labels
IMAGES = {"mdlstm_ctc_small": (40_811, None)}
# the same, of windows of 400 samples
SAMPLES = {"waveform_tdnnf_chain_small": (1_469_640, 21)}
# parameters with 1200 pdfs, features per frame, layers of the front end with parameters
FRONT_ENDS = {
    "tdnnf_small_augmented": (842_544, 40, set()),
    "waveform_tdnnf_small": (852_984, 400, {"mel", "pcen"}),
}
# their encoders are the user's
PRETRAINED = ("pretrained_chain",)
NUM_CLASSES = 7


@pytest.fixture(scope="module")
def preset(repository):
    def load(name):
        return NetworkDescription.load(repository / f"config/networks/{name}.yaml")

    return load


def two_utterances():
    """Features and labels that a network can only know by heart."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 24, 20, generator=generator)
    labels = torch.randint(0, NUM_CLASSES, (2, 24), generator=generator)
    lengths = torch.tensor([24, 17])
    labels[1, 17:] = -1
    return features, lengths, labels


def loss_of(net, features, lengths, labels):
    logits = net(features, lengths)["output"].logits
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1
    )


def test_every_preset_is_tested(repository):
    found = {path.stem for path in (repository / "config/networks").glob("*.yaml")}
    others = {*BOTH, *CTC, *ATTENTION, *IMAGES, *SAMPLES, *FRONT_ENDS, *PRETRAINED}
    assert found == {*LARGE, *SMALL, *CHAIN, *CONFORMERS, *ZIPFORMERS, *others}


@pytest.mark.parametrize("name", CHAIN)
def test_sizes_and_look_ahead_of_networks_for_lfmmi(preset, name):
    with torch.device("meta"):
        net = Network(preset(name), 40, {"pdf": 2000})
    assert (net.num_parameters, net.receptive_field.right) == CHAIN[name]
    assert net.subsampling == 3
    losses = [(end, output.loss.name) for end, output in net.outputs.items()]
    assert losses == [("output", "lfmmi"), ("output_xent", "ce")]


@pytest.mark.parametrize("name", [*CONFORMERS, *ZIPFORMERS])
def test_conformers_and_zipformers_for_lfmmi(preset, name):
    with torch.device("meta"):
        net = Network(preset(name), 80, {"pdf": 2000})
    found = (net.num_parameters, net.receptive_field.right, net.subsampling, net.period)
    assert found == {**CONFORMERS, **ZIPFORMERS}[name]
    losses = [(end, output.loss.name) for end, output in net.outputs.items()]
    assert losses == [("output", "lfmmi"), ("output_xent", "ce")]


@pytest.mark.parametrize("name", ["tdnnf_chain_small_augmented", "conformer_chain_ctc"])
def test_scores_need_no_other_output(preset, name):
    """Of TDNN-F with repeated edges too, to the bit."""
    whole = Network(preset(name), 40, {"pdf": 90, "label": 9}).eval()
    alone = Network(preset(name).decoded(), 40, {"pdf": 90}).eval()
    assert alone.num_parameters < whole.num_parameters
    state = whole.state_dict()
    alone.load_state_dict({key: state[key] for key in alone.state_dict()})
    features, lengths = torch.randn(2, 50, 40), torch.tensor([50, 31])
    (logits, lengths_out), *_ = whole(features, lengths).values()
    ((found, lengths_found),) = alone(features, lengths).values()
    assert torch.equal(logits, found)
    assert torch.equal(lengths_out, lengths_found)


@pytest.mark.parametrize("name", BOTH)
def test_ctc_beside_lfmmi_is_the_same_conformer_with_an_output(preset, name):
    with torch.device("meta"):
        net = Network(preset(name), 40, {"pdf": 2000, "label": 40})
        without = Network(preset("conformer_chain_small"), 40, {"pdf": 2000})
    assert net.num_parameters == BOTH[name]
    assert net.num_parameters == without.num_parameters + 145 * 40
    losses = [output.loss.name for output in net.outputs.values()]
    assert losses == ["lfmmi", "ce", "ctc"]


@pytest.mark.parametrize("name", [*CONFORMERS, "zipformer_chain_small"])
def test_conformers_and_zipformers_train_in_bf16(preset, name):
    """Losses and gradients are finite, and near those of float32."""
    config = copy.deepcopy(dict(preset(name).config))
    del config["layers"]["mask"]
    for layer in config["layers"].values():
        if "heads" in layer:
            layer |= {"num_layers": min(2, layer.get("num_layers", 1)), "dropout": 0.0}
    net = Network(NetworkDescription.from_config(config), 40, {"pdf": 20}).train()
    generator = torch.Generator().manual_seed(1)
    # levels far from 0, as features without normalization have
    features = 10.0 + 5.0 * torch.randn(2, 150, 40, generator=generator)
    found = []
    for is_half in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            logits = net(features, torch.tensor([150, 90]))["output"].logits
        logits.float().log_softmax(-1)[..., 3].sum().backward()
        grads = [v.grad.flatten() for v in net.parameters() if v.grad is not None]
        found.append((logits.float(), torch.cat(grads)))
    (exact, slope), (near, rough) = found
    assert near.isfinite().all()
    assert rough.isfinite().all()
    assert (near - exact).abs().mean() < 0.05 * exact.abs().mean()
    assert functional.cosine_similarity(slope, rough, 0) > 0.95


@pytest.mark.parametrize(
    ("name", "width"), [("tdnnf_chain", 768), ("tdnnf_chain_large", 1536)]
)
def test_networks_take_ivectors_behind_the_spectrum(preset, name, width):
    """They are spliced with it, and not masked."""
    with torch.device("meta"):
        net = Network(preset(name), 140, {"pdf": 2000})
    assert net.num_parameters == CHAIN[name][0] + 3 * 100 * width
    mask = preset(name).plan.layers[0]
    assert (mask.name, mask.options.size) == ("mask", 40)


@pytest.mark.parametrize("name", PRETRAINED)
def test_networks_on_pretrained_encoders_train(preset, name, tmp_path):
    write_encoder(tmp_path / "encoder", layerdrop=0.0)
    config = dict(preset(name).config)
    config["layers"]["encoder"]["folder"] = str(tmp_path / "encoder")
    description = NetworkDescription.from_config(config)
    net = Network(description, 400, {"pdf": 20}).train()
    assert net.subsampling == 3
    net.at_step(501)
    found = net(0.1 * torch.randn(2, 24, 400), torch.tensor([24, 17]))
    sum(output.logits.square().sum() for output in found.values()).backward()
    still = [n for n, v in net.named_parameters() if v.requires_grad and v.grad is None]
    assert not [name for name in still if "masked_spec_embed" not in name]


@pytest.mark.parametrize("name", SAMPLES)
def test_networks_on_samples_give_chunks_what_they_give_utterances(preset, name):
    net = Network(preset(name), 400, {"pdf": 2000}).eval()
    assert (net.num_parameters, net.receptive_field.right) == SAMPLES[name]
    left, right = net.context
    utterance = 0.1 * torch.randn(1, 75, 400)
    whole = net(utterance, torch.tensor([75]))["output"].logits
    chunk = utterance[:, 30 - left : 42 + right]
    found = net(chunk, torch.tensor([12]), has_context=True)["output"].logits
    torch.testing.assert_close(found, whole[:, 10:14], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_front_ends_before_tdnnf_small(preset, name):
    """They train, and frozen they stay as they are."""
    size, dim, front = FRONT_ENDS[name]
    layers, behind = (
        [layer.name for layer in preset(n).plan.layers] for n in (name, "tdnnf_small")
    )
    assert layers[-len(behind) :] == behind
    net = Network(preset(name), dim, {"pdf": 1200}).train()
    assert net.num_parameters == size
    net.freeze(layers[: -len(behind)])
    values = 0.1 * torch.randn(2, 24, dim)
    net(values, torch.tensor([24, 17]))["output"].logits.square().sum().backward()
    still = {n.split(".")[2] for n, p in net.named_parameters() if p.grad is None}
    assert still == front


@pytest.mark.parametrize("name", CTC)
def test_sizes_and_look_ahead_of_networks_for_ctc(preset, name):
    with torch.device("meta"):
        net = Network(preset(name), 40, {"label": 40})
    field = net.receptive_field.right
    assert (net.num_parameters, field, net.subsampling) == CTC[name]
    assert [output.loss.name for output in net.outputs.values()] == ["ctc"]


@pytest.mark.parametrize("name", ATTENTION)
def test_networks_with_a_decoder_train(preset, name):
    net = Network(preset(name), 40, {"unit": 40, "label": 40})
    assert (net.num_parameters, net.receptive_field.right) == ATTENTION[name]
    found = net(torch.randn(2, 24, 40), torch.tensor([24, 17]))
    assert [*found] == ["decoder", "labels"]
    assert found["labels"].lengths.tolist() == [6, 5]
    values, lengths = found["decoder"]
    _, decoder = net.decoder
    units = torch.tensor([[1, 2], [3, 4]])
    logits = decoder.teach(decoder.memory(values, lengths), units)
    assert logits.shape == (2, 3, 40)
    (logits.square().sum() + found["labels"].logits.square().sum()).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("name", IMAGES)
def test_networks_that_read_images_train(preset, name):
    net = Network(preset(name), 20, {"label": 11})
    assert (net.num_parameters, net.receptive_field.right) == IMAGES[name]
    output = net(torch.rand(2, 31, 20), torch.tensor([31, 18]))["output"]
    assert output.lengths.tolist() == [16, 9]
    output.logits.square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("name", CHAIN)
def test_networks_for_lfmmi_give_chunks_what_they_give_utterances(preset, name):
    net = Network(preset(name), 40, {"pdf": NUM_CLASSES}).eval()
    left, right = net.context
    utterance = torch.randn(1, 120, 40)
    whole = net(utterance, torch.tensor([120]))
    chunk = utterance[:, 45 - left : 66 + right]
    found = net(chunk, torch.tensor([21]), has_context=True)
    for end, output in found.items():
        expected = whole[end].logits[:, 15:22]
        torch.testing.assert_close(output.logits, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CHAIN)
def test_a_network_for_lfmmi_trains(preset, name):
    net = Network(preset(name), 40, {"pdf": NUM_CLASSES}).train()
    features, lengths = torch.randn(2, 24, 40), torch.tensor([24, 17])
    outputs = net(features, lengths)
    assert outputs["output"].logits.shape == (2, 8, NUM_CLASSES)
    assert outputs["output"].lengths.tolist() == [8, 6]
    assert not outputs["output"].logits[1, 6:].any()
    sum(output.logits.square().sum() for output in outputs.values()).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("name", LARGE)
def test_sizes_are_those_of_the_papers(preset, name):
    with torch.device("meta"):
        net = Network(preset(name), 80, {"pdf": 5768})
    assert net.num_parameters == LARGE[name]


@pytest.mark.parametrize("name", LARGE)
def test_a_large_preset_trains(preset, name):
    net = Network(preset(name), 20, {"pdf": NUM_CLASSES}).train()
    features, lengths, labels = two_utterances()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    before = loss_of(net.eval(), features, lengths, labels).item()
    loss_of(net.train(), features, lengths, labels).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    assert all(p.grad.any() for p in net.parameters())
    optimizer.step()
    net.constrain()
    assert loss_of(net.eval(), features, lengths, labels).item() != before


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_preset_learns_two_utterances_by_heart(preset, name):
    torch.manual_seed(2)
    net = Network(preset(name), 20, {"pdf": NUM_CLASSES}).train()
    features, lengths, labels = two_utterances()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(net, features, lengths, labels).backward()
        optimizer.step()
        net.constrain()
    net.eval()
    found = net(features, lengths)["output"].logits.argmax(-1)
    wrong = ((found != labels) & (labels >= 0)).sum().item()
    assert wrong <= 1


@pytest.mark.parametrize("name", [*SMALL, *LARGE, "tdnnf_chain_streaming"])
def test_receptive_fields_of_presets_are_what_autograd_finds(preset, name):
    net = Network(preset(name), 8, {"pdf": 3}).eval()
    left, right = net.receptive_field
    bounds = [side for side in (left, right) if side is not None]
    num_frames = 2 * max(bounds, default=10) + 21
    middle = num_frames // 2 // net.subsampling
    frame = middle * net.subsampling
    features = torch.randn(1, num_frames, 8, requires_grad=True)
    logits = net(features, torch.tensor([num_frames]))["output"].logits
    logits[0, middle].square().sum().backward()
    seen = features.grad[0].abs().sum(1).nonzero().flatten()
    assert seen[0].item() == (0 if left is None else frame - left)
    assert seen[-1].item() == (num_frames - 1 if right is None else frame + right)


@pytest.mark.parametrize("name", SMALL)
def test_half_precision_on_the_cpu(preset, name):
    net = Network(preset(name), 20, {"pdf": NUM_CLASSES}).train()
    features, lengths, labels = two_utterances()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(net, features, lengths, labels)
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())


@pytest.mark.parametrize(("name", "steps"), [*zip(SMALL, (2, 8, 7, 4, 4), strict=True)])
def test_pretraining_adds_a_layer_in_each_step(preset, name, steps):
    description = preset(name)
    assert num_steps(description) == steps
    networks = [
        Network(shallower(description, step), 20, {"pdf": NUM_CLASSES})
        for step in range(steps)
    ]
    assert shallower(description, steps) is description
    assert networks[-1].description is description
    last = dict(networks[-1].named_parameters())
    depths = [len(list(net.parameters())) for net in networks]
    assert depths == sorted(set(depths))
    for before, after in itertools.pairwise(networks):
        for parameter in before.parameters():
            parameter.data.fill_(0.25)
        new = carry_over(before, after)
        known = dict(before.named_parameters())
        for key, value in after.named_parameters():
            assert (value == 0.25).all().item() == (key not in new), key
            same = key in known and known[key].shape == value.shape
            assert (key not in new) == same, key
        # what is not the output's is carried over to the very end
        assert {k for k in known if "output" not in k} <= set(last)


def test_pretraining_of_branches_and_shared_layers():
    description = NetworkDescription.from_config(
        {
            "layers": {
                "one": {"class": "linear", "size": 6},
                "two": {"reuse": "one"},
                "norm": {"class": "layer_norm"},
                "side": {"class": "linear", "size": 6, "from": "one"},
                "sum": {"class": "add", "from": ["norm", "side"]},
                "main": {"class": "output", "from": "sum"},
                "low": {"class": "output", "from": ["one", "side"]},
            }
        }
    )
    assert num_steps(description) == 3
    first, second, whole = (shallower(description, step) for step in range(3))
    assert [layer.name for layer in first.plan.layers] == ["one", "main", "low"]
    assert [layer.inputs for layer in first.plan.layers[1:]] == [("one",), ("one",)]
    names = [layer.name for layer in second.plan.layers]
    assert names == ["one", "two", "norm", "main", "low"]
    assert whole is description
    assert list(first.outputs) == list(description.outputs)
    with pytest.raises(ValueError, match="step -1 is negative"):
        shallower(description, -1)
