"""Networks, optimizers and steps on a device: what the processor computes."""

import numpy as np
import pytest
import torch
from fixtures.pretended_device import CUDA, cases
from fixtures.training_task import (
    CLASSES,
    DIM,
    LAYERS,
    data_options,
    description,
    training_options,
    write_task,
)
from torch import nn

from latflow.criteria.losses import losses_of
from latflow.decode.network_scorer import score_frames
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import Targets, open_batches
from latflow.training.distributed import Backend
from latflow.training.labels import LabelStore
from latflow.training.optimizers import OPTIMIZERS, FlatGradient, make_optimizer
from latflow.training.progress import Clock
from latflow.training.steps import CHECKPOINT, STOP, Stepper

REQUESTS = {CHECKPOINT: False, STOP: False}
PRESETS = (  # between them they have nearly all kinds of layers
    "blstm_small",
    "conformer_small",
    "tdnnf_chain_small_augmented",
    "mdlstm_ctc_small",
    "waveform_tdnnf_chain_small",
)
MORE_PRESETS = (
    "blstm_3x512",
    "cnn_tdnnf_chain",
    "tdnnf",
    "tdnnf_chain_streaming",
    "transformer",
)
NORMED = {
    "hidden": {"class": "linear", "from": "data", "size": 12, "activation": "tanh"},
    "norm": {"class": "batch_norm"},
    "small": {"class": "linear", "size": 4, "bias": False, "semi_orthogonal": True},
    "output": {"class": "output"},
}


def without_dropout(network):
    """A device draws other numbers than the processor."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return network


def passed(network, features, lengths, place):
    """Outputs, gradient of the input, gradients of the parameters."""
    network = network.to(place)
    torch.manual_seed(3)  # keys of SpecAugment's masks come from the processor
    inputs = features.to(place).detach().clone().requires_grad_()
    outputs = network(inputs, lengths)
    logits = [output.logits for output in outputs.values()]
    total = sum((values.square() * values.tanh()).sum() for values in logits)
    total.backward()
    gradients = {name: p.grad.cpu() for name, p in network.named_parameters()}
    return [x.detach().cpu() for x in logits], inputs.grad.cpu(), gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "name"), cases(PRESETS, MORE_PRESETS), indirect=["device"]
)
def test_presets_forward_and_backward(device, repository, name):
    dim = 400 if name.startswith("waveform") else 40
    described = NetworkDescription.load(repository / f"config/networks/{name}.yaml")
    target = "label" if "ctc" in name else "pdf"
    features = torch.randn(2, 24, dim, generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([24, 17])
    exact, there = (
        passed(
            without_dropout(Network(described, dim, {target: 7}, seed=1))
            .train()
            .to(number),
            features.to(number),
            lengths,
            place,
        )
        for place, number in (("cpu", torch.float64), (device, torch.float32))
    )
    # ReLU is not differentiable at 0: where a sum is next to it, the processor's
    # float32 has derivatives as far from float64's as any other device.
    assert distance(there[0], exact[0]) < 1e-3
    assert distance([there[1]], [exact[1]]) < 2e-2
    assert distance(there[2].values(), exact[2].values()) < 2e-2


def distance(found, expected):
    """Length of the difference of all numbers, relative to the expected ones."""
    one, other = (
        torch.cat([part.double().flatten() for part in parts])
        for parts in (found, expected)
    )
    return float((one - other).norm() / other.norm())


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def stepper_of(network, options):
    """Stepper of a network, alone."""
    optimizer = make_optimizer(network, options.optimizer, 0.02)
    return Stepper(
        *(network, losses_of(network), optimizer, options), seed=3, backend=Backend()
    )


def stepped(task, place, layers=LAYERS, **training):
    """Numbers of three steps and the network after them."""
    options = training_options(clip_norm=0.5, **training)
    network = Network(description(layers), DIM, {"pdf": CLASSES}, seed=3).to(place)
    stepper = stepper_of(network, options)
    source = open_batches(
        task / "frames",
        Targets({"pdf": LabelStore.load(task / "labels")}),
        data_options(),
        normalizer=Normalizer(),
        seed=3,
    )
    batches = list(source.epoch(0))[:3]
    numbers = [
        stepper.make([batch], step, 0.02, Clock(), requests=REQUESTS).read()
        for step, batch in enumerate(batches, start=1)
    ]
    assert all(p.device.type == torch.device(place).type for p in network.parameters())
    return numbers, {key: value.cpu() for key, value in network.state_dict().items()}


def assert_same(here, there):
    for expected, found in zip(here[0], there[0], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    for name, value in here[1].items():
        torch.testing.assert_close(there[1][name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("device", "kind"),
    cases(["adam"], [kind for kind in OPTIMIZERS if kind != "adam"]),
    indirect=["device"],
)
def test_steps_of_each_optimizer(device, task, kind):
    training = {"optimizer": {"type": kind}}
    assert_same(*(stepped(task, place, **training) for place in ("cpu", device)))


def test_steps_with_limits_and_constraints(device, task):
    training = {
        "l2": 1e-3,
        "max_norm": 0.7,
        "max_change": 0.05,
        "constrain_share": 1.0,
        "micro_sequences": 2,
        "outliers": {"action": "clip"},
        "optimizer": {"type": "sgd", "momentum": 0.9},
    }
    assert_same(
        *(stepped(task, place, NORMED, **training) for place in ("cpu", device))
    )


def test_a_bad_feature_is_told_by_its_utterance(device, task):
    options = training_options()
    network = Network(description(), DIM, {"pdf": CLASSES}, seed=3).to(device)
    stepper = stepper_of(network, options)
    labels = {"pdf": LabelStore.load(task / "labels")}
    source = open_batches(
        task / "frames",
        Targets(labels),
        data_options(),
        normalizer=Normalizer(),
        seed=3,
    )
    batch = next(iter(list(source.epoch(0))))
    batch.features[1, 2, 3] = torch.nan
    measured = stepper.make([batch], 1, 0.02, Clock(), requests=REQUESTS)
    assert not np.isfinite(measured.read()["loss"])
    assert measured.suspects() == [batch.utterances[1]]


@pytest.mark.parametrize("device", [CUDA], indirect=True)
def test_steps_in_bf16_are_near_float32(device, task):
    exact, rounded = (
        stepped(task, device, precision=precision) for precision in ("float32", "bf16")
    )
    for one, other in zip(exact[0], rounded[0], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=0.02)
        assert other["loss"] != one["loss"]
    assert all(value.dtype != torch.bfloat16 for value in rounded[1].values())


def test_gradients_with_windows_on_one_vector(device):
    network = nn.Linear(5, 3).to(device)
    gradient = FlatGradient(network.parameters())
    gradient.clear()
    network(torch.ones(2, 5, device=device)).square().sum().backward()
    norm = gradient.clip(1e-3)
    assert float(gradient.clip(None)) == pytest.approx(1e-3, rel=1e-5)
    assert float(norm) > 1e-3
    joined = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert torch.equal(joined.cpu(), gradient.vector.cpu())


def test_noise_is_normal_and_follows_from_seed_and_step(device):
    drawn = []
    for step, seed in ((0, 1), (0, 1), (0, 2), (99, 1)):
        gradient = FlatGradient([nn.Parameter(torch.zeros(199, 201, device=device))])
        gradient.clear()
        gradient.add_noise(0.04, step, seed)
        drawn.append(gradient.vector.cpu())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert float(drawn[3].var()) == pytest.approx(0.04 / 100**0.55, rel=0.05)
    values = drawn[0].sort().values.double() / 0.2
    shares = (torch.arange(len(values)) + 0.5) / len(values)
    expected = torch.special.ndtri(shares.double())
    assert (values - expected)[200:-200].abs().max() < 0.06


def test_scores_for_decoding(device):
    frames = np.random.default_rng(0).normal(size=(30, DIM)).astype(np.float32)

    def scores(place):
        network = Network(description(), DIM, {"pdf": CLASSES}, seed=2).to(place).eval()
        priors = torch.linspace(-3.0, -1.0, CLASSES).to(place)
        loaded = AcousticNetwork(network, priors, {})
        return score_frames(loaded, frames, 1.0, torch.device(place))

    np.testing.assert_allclose(scores(device), scores("cpu"), rtol=1e-4, atol=1e-4)
