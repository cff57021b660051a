"""Captured passes of a network: outputs, gradients and statistics of the usual ones."""

from functools import partial

import pytest
import torch
from fixtures.pretended_device import CUDA
from torch import nn

from latflow.criteria.batch import Batch
from latflow.nnet.description import NetworkDescription
from latflow.nnet.layer import Shape
from latflow.nnet.layers.simple import Linear
from latflow.nnet.network import Network
from latflow.nnet.precision import passes_in
from latflow.training.cuda_graphs import GraphedNetwork, is_capturable
from latflow.training.optimizers import FlatGradient

NAMES = ("cnn_tdnnf_chain", "tdnnf", "tdnnf_small_augmented", "tdnnf_chain_streaming")
DIM, SIZE, FRAMES = 40, 16, 60


def make_batch(network, seed, device, *, is_full):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.full((SIZE,), FRAMES)
    if not is_full:
        lengths = torch.randint(1, FRAMES + 1, (SIZE,), generator=generator)
        lengths[seed % SIZE] = FRAMES
    repeats = network.description.repeats_edges
    width = FRAMES + (sum(network.context) if repeats else 0)
    features = torch.randn(SIZE, width, DIM, generator=generator)
    batch = Batch(
        utterances=tuple(f"utt{i}" for i in range(SIZE)),
        features=features,
        lengths=lengths,
        targets={},
        first_frame=torch.zeros(SIZE, dtype=torch.int64),
        indices=torch.arange(SIZE),
        counted=-(-lengths // network.subsampling),
        subsampling=network.subsampling,
        has_context=repeats,
    )
    return batch.with_keys(seed, 1).to(device)


def trained_on(network, device, compiles, *, is_full):
    """Gradients of six batches, outputs of the last one, and all buffers."""
    network = network.to(device).train()
    gradient = FlatGradient(network.parameters())
    scorer = GraphedNetwork(
        network, partial(passes_in, "bf16", device), gradient, compiles=compiles
    )
    found = []
    for seed in range(6):
        torch.manual_seed(seed)
        gradient.clear()
        batch = make_batch(network, seed, device, is_full=is_full)
        outputs = scorer(batch)
        logits = [output.logits.float() for output in outputs.values()]
        sum(values.square().mean() for values in logits).backward()
        found.append(gradient.vector.clone())
    if compiles:
        assert len(scorer._captured) == 1
    lengths = [output.lengths for output in outputs.values()]
    buffers = [buffer.clone() for buffer in network.buffers()]
    return found, [x.detach().clone() for x in logits], lengths, buffers


@pytest.mark.parametrize("device", [CUDA], indirect=True)
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_replayed_passes_are_those_of_python(device, repository, name, is_full):
    described = NetworkDescription.load(repository / f"config/networks/{name}.yaml")
    sizes = {output.target: 50 for output in described.outputs.values()}
    usual, replayed = (
        trained_on(
            Network(described, DIM, sizes, seed=1), device, compiles, is_full=is_full
        )
        for compiles in (False, True)
    )
    for expected, found in zip(usual[0], replayed[0], strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * scale)
    for part in (1, 3):
        torch.testing.assert_close(replayed[part], usual[part], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(replayed[2], usual[2])


@pytest.mark.parametrize(
    ("name", "expected"), [("tdnnf", True), ("blstm_small", False)]
)
def test_networks_that_are_captured(repository, name, expected):
    described = NetworkDescription.load(repository / f"config/networks/{name}.yaml")
    sizes = {output.target: 50 for output in described.outputs.values()}
    assert is_capturable(Network(described, DIM, sizes, seed=1)) is expected


class ShortestFirst(Linear):
    """A layer of somebody's own, which looks at the lengths."""


def test_what_is_derived_of_a_layer_is_not_captured():
    network = nn.Sequential(Linear(Shape(3), Linear.OPTIONS(size=2)))
    assert is_capturable(network)
    network.append(ShortestFirst(Shape(2), Linear.OPTIONS(size=2)))
    assert not is_capturable(network)
