"""A training step keeps a GPU busy: nobody waits, and little is copied or started.

Counted on the pretended device, where an operation of torch is a launch at least.
"""

import copy
from collections import Counter
from itertools import pairwise

import pytest
import torch
from fixtures.pretended_device import pretended_device, traffic
from fixtures.training_task import (
    CLASSES,
    DIM,
    data_options,
    training_options,
    write_task,
)
from torch import nn

from latflow.criteria.batch import SupervisedBatch
from latflow.criteria.losses import losses_of
from latflow.nnet.description import NetworkDescription
from latflow.nnet.draws import RowDraws
from latflow.nnet.layer import Padded, Shape
from latflow.nnet.layers.augment import SpecAugment, SpecAugmentOptions
from latflow.nnet.layers.simple import SemiOrthogonal, constrain
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.training import inverses, natural_gradient
from latflow.training.batches import Targets, open_batches
from latflow.training.distributed import Backend
from latflow.training.labels import LabelStore
from latflow.training.optimizer_options import NaturalGradientOptions
from latflow.training.optimizers import FlatGradient, limit_change, make_optimizer
from latflow.training.progress import Clock
from latflow.training.steps import CHECKPOINT, STOP, Stepper

REQUESTS = {CHECKPOINT: False, STOP: False}
MASKS = {
    "class": "specaugment",
    "from": "data",
    "time_share": 0.2,
    "time_width": 3,
    "time_warp": 2,
    "frequency_warp": 0.1,
    "frequency_width": 2,
}
SMALL = {"size": 12, "bottleneck": 4}
TDNNF = {
    "mask": MASKS,
    "first": {"class": "splice", "left": 1, "right": 1},
    "wide": {"class": "linear", "size": 12, "activation": "relu"},
    "near": {"class": "tdnnf", **SMALL, "num_layers": 3, "dropout": 0.2},
    "last": {"class": "linear", "size": 6, "bias": False, "semi_orthogonal": True},
    "output": {"class": "output"},
}
CNN_TDNNF = {
    "mask": MASKS,
    "cnn": {"class": "conv2d", "size": 4, "channels": 1, "activation": "relu"},
    "norm": {"class": "batch_norm", "affine": False},
    "narrow": {"class": "tdnnf", **SMALL, "time_stride": 0, "bypass": 0.0},
    "far": {"class": "tdnnf", **SMALL, "num_layers": 2, "stride": 2},
    "output": {"class": "output"},
    "other": {"class": "linear", "from": "narrow", "size": 8},
    "down": {"class": "subsample", "factor": 2},
    "output_other": {"class": "output"},
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def steps(task, place, layers, edges="zeros", dropout=0.0, **training):
    """Twelve steps: the network after them, and the traffic of each."""
    options = training_options(
        clip_norm=0.5,
        l2=1e-3,
        max_change=2.0,
        constrain_share=1.0,
        optimizer={"type": "natural_gradient", "momentum": 0.5},
        **training,
    )
    described = NetworkDescription.from_config({"edges": edges, "layers": layers})
    network = Network(described, DIM, {"pdf": CLASSES}, seed=3).to(place).train()
    for module in network.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = dropout  # a GPU draws other numbers
    optimizer = make_optimizer(network, options.optimizer, 0.02)
    stepper = Stepper(
        *(network, losses_of(network), optimizer, options), seed=3, backend=Backend()
    )
    source = open_batches(
        task / "frames",
        Targets({"pdf": LabelStore.load(task / "labels")}),
        data_options(sequences={"type": "chunks", "size": 12}),
        normalizer=Normalizer(),
        subsampling=network.subsampling,
        seed=3,
    )
    batches, counted = list(source.epoch(0)), []
    for step in range(1, 13):
        with traffic() as found:
            measured = stepper.make(
                [batches[step % len(batches)]], step, 0.02, Clock(), requests=REQUESTS
            )
        counted.append(found)
        assert measured.read()["frames"] > 0
    return {key: value.cpu() for key, value in network.state_dict().items()}, counted


@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("layers", [TDNNF, CNN_TDNNF])
def test_a_step_waits_for_nothing_and_receives_its_batch_alone(task, layers, micro):
    with pretended_device() as device:
        _, counted = steps(task, device, layers, dropout=0.2, micro_sequences=micro)
    for found in counted:
        assert found.waits == []
        kinds = Counter(len(shape) for shape in found.received)
        # features, labels, and the table of lengths and keys, of each pass
        assert kinds == {3: kinds[3], 2: 2 * kinds[3]}
        assert kinds[3] == (1 if micro is None else kinds[3])


@pytest.mark.parametrize("edges", ["zeros", "repeat"])
@pytest.mark.parametrize("layers", [TDNNF, CNN_TDNNF])
def test_steps_are_those_of_the_processor(device, task, layers, edges):
    here, _ = steps(task, "cpu", layers, edges)
    there, _ = steps(task, device, layers, edges)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=2e-3, atol=5e-4)


def test_draws_are_the_same_on_all_devices(device):
    keys = torch.tensor([3, -1, 2**62 + 7, -(2**63)])
    here, there = (RowDraws(keys.to(place)).named("mask") for place in ("cpu", device))
    for shape in ((2,), (50, 2)):
        drawn = there.uniform(*shape)
        assert drawn.device.type == device.type
        assert torch.equal(drawn.cpu(), here.uniform(*shape))


@pytest.mark.parametrize("share", [None, 0.3])
def test_masks_are_the_same_on_all_devices(device, share):
    options = {
        key: value for key, value in MASKS.items() if key not in ("class", "from")
    }
    options = SpecAugmentOptions.model_validate({**options, "time_share": share})
    values = torch.randn(5, 40, 8, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([40, 31, 7, 2, 1])
    masked = []
    for place in ("cpu", device):
        layer = SpecAugment(Shape(8), options).train()
        layer.draws = RowDraws(torch.arange(5, device=place), lengths.to(place))
        batch = Padded.of(values.to(place), lengths)
        masked.append(layer(batch).values.cpu())
    assert torch.equal(masked[0] == 0, masked[1] == 0)
    torch.testing.assert_close(*masked)


def test_a_mask_takes_few_operations():
    options = SpecAugmentOptions(time_share=0.2, frequency_masks=1)
    layer = SpecAugment(Shape(40), options).train()
    with pretended_device() as device:
        batch = Padded.of(torch.ones(8, 150, 40, device=device), torch.full((8,), 150))
        layer.draws = RowDraws(torch.arange(8, device=device))
        with traffic() as found:
            layer(batch)
    assert not found.waits
    assert not found.received
    assert found.launches.total() < 110


def gradients_of(network, place, dtype=None, alpha=4.0, backward=True):
    """An optimizer after a pass of the network on a device."""
    network.to(place)
    options = NaturalGradientOptions(alpha=alpha, momentum=0.5)
    optimizer = make_optimizer(network, options, 0.1, dtype=dtype)
    if backward:
        passed(network, optimizer, place, 1)
    return optimizer


def passed(network, optimizer, place, seed):
    """Set the gradients of a pass."""
    optimizer.zero_grad()
    rows = torch.randn(20, 30, generator=torch.Generator().manual_seed(seed))
    (network(rows.to(place)) - 1.0).square().mean().backward()


def sizes(*dims, bias=True):
    """Affine maps of some sizes, one after another."""
    torch.manual_seed(1)
    pairs = pairwise(dims)
    return nn.Sequential(*(nn.Linear(*pair, bias=bias) for pair in pairs))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("whole", [8, 16, 128])
def test_matrices_of_several_sizes_are_inverted_together(
    device, monkeypatch, whole, dtype
):
    for module in (inverses, natural_gradient):
        monkeypatch.setattr(module, "WHOLE", whole)
    network = sizes(30, 40, 30, 40, 33, 12, 3)
    other = copy.deepcopy(network)
    for net, place in ((network, "cpu"), (other, device)):
        optimizer = gradients_of(net, place, dtype, backward=False)
        for seed in range(4):
            passed(net, optimizer, place, seed)
            optimizer.step()
    tolerance = 1e-4 if dtype is None else 2e-2
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            two.cpu(), one, rtol=tolerance, atol=0.1 * tolerance, check_device=False
        )


def test_a_state_goes_from_one_device_to_another(device):
    network = sizes(30, 40, 30, 12)
    optimizer = gradients_of(network, "cpu")
    optimizer.step()
    other = copy.deepcopy(network)
    moved = gradients_of(other, device, backward=False)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for net, own, place in ((network, optimizer, "cpu"), (other, moved, device)):
        passed(net, own, place, 2)
        own.step()
    kept, found = optimizer.state_dict(), moved.state_dict()
    assert found["steps"] == kept["steps"] == 2
    for key, own in kept["state"].items():
        assert found["state"][key].keys() == own.keys()
        for name, value in own.items():
            other_value = found["state"][key][name].cpu()
            torch.testing.assert_close(other_value, value, rtol=1e-4, atol=1e-5)
    back = copy.deepcopy(network)
    again = gradients_of(back, "cpu", backward=False)
    moments = {
        key: {name: value.cpu() for name, value in own.items()}
        for key, own in found["state"].items()
    }
    again.load_state_dict({**copy.deepcopy(found), "state": moments})
    for net, own in ((network, optimizer), (back, again)):
        passed(net, own, "cpu", 3)
        own.step()
    for one, two in zip(network.parameters(), back.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


def test_maps_without_a_gradient_leave_those_of_their_shape_alone(device):
    network = sizes(30, 30, 30, 30)
    other = copy.deepcopy(network)
    for net, place in ((network, "cpu"), (other, device)):
        optimizer = gradients_of(net, place)
        net[1].weight.grad = None
        optimizer.step()
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two.cpu(), one, rtol=1e-4, atol=1e-5)


def test_the_natural_gradient_takes_few_operations():
    """A stack of maps takes as many as one map, but for what sees them."""
    launches = []
    with pretended_device() as device:
        for count in (2, 12):
            network = sizes(*[30] * (count + 1))
            optimizer = gradients_of(network, device)
            with traffic() as found:
                optimizer.step()
            assert not found.waits
            assert not found.received
            of_sgd = 2 * count * 4  # on a GPU torch has them all at once
            launches.append(found.launches.total() - of_sgd)
    assert launches[1] <= launches[0] + 10
    assert launches[1] < 80


def test_factors_of_one_shape_are_constrained_together(device):
    maps = [SemiOrthogonal(*dims) for dims in ((9, 4), (9, 4), (4, 9), (9, 4))]
    others = [copy.deepcopy(part).to(device) for part in maps]
    constrain(maps)
    constrain(others)
    for one, two in zip(maps, others, strict=True):
        torch.testing.assert_close(two.weight.cpu(), one.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_change", [0.1, 1e3])
def test_a_change_is_limited_without_waiting(max_change):
    here = [nn.Parameter(torch.randn(n, 3)) for n in (2, 5, 1)]
    with pretended_device() as device:
        there = [nn.Parameter(p.detach().to(device)) for p in here]
        with traffic() as found:
            for parameters in (here, there):
                with limit_change(parameters, max_change), torch.no_grad():
                    for parameter in parameters:
                        parameter.add_(1.0)
        assert not found.waits
        for one, two in zip(here, there, strict=True):
            torch.testing.assert_close(two.detach().cpu(), one.detach())
    assert found.launches.total() < 16


def test_gradients_are_pulled_at_once():
    with pretended_device() as device:
        gradient = FlatGradient(sizes(*[5] * 20).to(device).parameters())
        with traffic() as found:
            gradient.clear()
            gradient.pull(0.1)
            gradient.clip(1.0)
        assert not found.waits
    assert found.launches.total() < 10


def test_a_pass_over_chunks_with_context_receives_them_alone():
    """As LF-MMI has them; its criterion is another matter."""
    described = NetworkDescription.from_config({"edges": "repeat", "layers": CNN_TDNNF})
    network = Network(described, DIM, {"pdf": CLASSES}, seed=3).train()
    context, step = network.context, network.subsampling
    counted = torch.tensor([6, 4, 5])
    drawn = torch.Generator().manual_seed(1)
    batch = SupervisedBatch(
        utterances=("a", "b", "c"),
        features=torch.randn(3, 6 * step + sum(context), DIM, generator=drawn),
        lengths=torch.full((3,), 6 * step),
        targets={},
        first_frame=torch.tensor([0, 12, 3]),
        indices=torch.arange(3),
        counted=counted,
        subsampling=step,
        has_context=True,
        context=context,
    ).with_keys(1, 0)

    def passed_through(there):
        outputs = network(
            there.features,
            there.lengths,
            has_context=True,
            draws=there.draws(),
            lengths_there=there.lengths_there(),
        )
        return [output.logits.detach().cpu() for output in outputs.values()]

    state = copy.deepcopy(network.state_dict())
    here = passed_through(batch.split(1)[0])
    network.load_state_dict(state)
    with pretended_device() as device:
        network.to(device)
        with traffic() as found:
            there = passed_through(batch.to(device))
    assert sorted(map(len, found.received)) == [2, 3]
    assert len(found.waits) == len(there)  # this test's own copies
    for one, two in zip(here, there, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
