"""Utterances in batches: what each gives does not depend on its batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from latflow.device_copies import HostCopy, sent
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import KINDS, Normalizer
from latflow.nnet.utterances import UtteranceBatches

CPU = torch.device("cpu")
LENGTHS = [31, 7, 60, 1, 24, 25, 31]
NETWORKS = (
    "blstm_3x512",
    "blstm_small",
    "cnn_tdnnf_chain",
    "cnn_tdnnf_chain_small",
    "conformer_small",
    "mdlstm_ctc_small",
    "tdnnf",
    "tdnnf_chain_small",
    "tdnnf_chain_small_augmented",
    "tdnnf_chain_streaming",
    "tdnnf_ctc_small",
    "tdnnf_small",
    "transformer",
    "transformer_small",
    "waveform_tdnnf_chain_small",
    "waveform_tdnnf_small",
)


def store_of(dim, lengths=LENGTHS, seed=1):
    """Frames of utterances, read only as those of a store."""
    rng = np.random.default_rng(seed)
    frames = [(3 + 2 * rng.normal(size=(n, dim))).astype(np.float32) for n in lengths]
    for one in frames:
        one.flags.writeable = False
    begin = np.cumsum([0, *lengths])
    return SimpleNamespace(
        begin=begin,
        dim=dim,
        frames=frames.__getitem__,
        get=lambda numbers: [frames[i] for i in numbers],
    )


def batches_of(store, kind="none", max_frames=100):
    mean, scale = np.arange(store.dim, dtype=np.float32), np.full(store.dim, 0.3, "f4")
    given = (mean, scale) if kind == "global" else (None, None)
    return UtteranceBatches(store, Normalizer(kind, *given), CPU, max_frames)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_scores_do_not_depend_on_the_batch(repository, name):
    dim = 400 if name.startswith("waveform") else 40
    described = NetworkDescription.load(repository / f"config/networks/{name}.yaml")
    target = "label" if "ctc" in name else "pdf"
    network = Network(described, dim, {target: 11}, seed=1).eval()
    for weights in network.parameters():
        if not weights.any():  # as the output's before training
            weights.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    model = AcousticNetwork(network, None, {"scores": "log_likelihoods"})
    store = store_of(dim)
    batches = batches_of(store, "mean", max_frames=130)
    numbers = range(len(LENGTHS))
    assert len(list(batches.batches(numbers))) < len(LENGTHS)
    found = list(batches.scored(model.log_likelihoods, numbers, 10**6))
    assert [one.index for one in found] == list(numbers)
    for one in found:
        frames = torch.from_numpy(batches.normalizer(store.frames(one.index)))
        wanted, _ = model.log_likelihoods(frames[None], torch.tensor([len(frames)]))
        largest = float(wanted.abs().max())
        assert largest > 0.01
        np.testing.assert_allclose(one.wait(), wanted[0], atol=1e-5 * largest)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_normalized_to_the_bit_and_padded_with_zeros(kind):
    batches = batches_of(store_of(5), kind)
    features, lengths = batches.padded([2, 3, 0])
    assert lengths.tolist() == [60, 1, 31]
    for row, number in zip(features.numpy(), (2, 3, 0), strict=True):
        wanted = batches.normalizer(batches.store.frames(number))
        np.testing.assert_array_equal(row[: len(wanted)], wanted)
        assert not row[len(wanted) :].any()


def test_batches_are_of_like_length_and_bounded():
    batches = batches_of(store_of(2), max_frames=63)
    assert list(batches.batches([6, 0, 1, 2, 3, 4, 5])) == [
        [3, 1],
        [4, 5],
        [6, 0],
        [2],
    ]
    # Longer than allowed: alone.
    assert list(batches_of(store_of(2), max_frames=5).batches([2, 3])) == [[3], [2]]
    assert list(batches.batches([])) == []


@pytest.mark.parametrize("numbers", [range(7), [1, 2, 5, 6], [4], []])
def test_scores_come_in_order_whatever_the_windows(numbers):
    """A window has as many of the utterances asked for as fit, at least one."""
    store = store_of(2)
    batches, seen = batches_of(store, max_frames=60), []

    def score(features, lengths):
        seen.append(lengths.tolist())
        return features.cumsum(1)[:, ::2], (lengths + 1) // 2

    found = list(batches.scored(score, numbers, 40))
    assert [one.index for one in found] == list(numbers)
    for one in found:
        wanted = store.frames(one.index).cumsum(0)[::2]
        np.testing.assert_allclose(one.wait(), wanted, rtol=1e-5)
        assert one.seconds >= 0
    windows = [list(window) for window in batches.windows(numbers, 40)]
    assert [i for window in windows for i in window] == list(numbers)
    if len(numbers) == 7:
        assert windows == [[0, 1], [2], [3, 4], [5], [6]]
        assert seen == [[7], [31], [60], [1, 24], [25], [31]]


def test_a_batch_that_finds_no_memory_is_halved(caplog):
    store, sizes = store_of(2), []

    def score(features, lengths):
        sizes.append(len(lengths))
        if len(lengths) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return features, lengths

    batches = batches_of(store, max_frames=1000)
    with caplog.at_level("INFO"):
        found = list(batches.scored(score, range(7), 1000))
    assert [one.index for one in found] == list(range(7))
    for one in found:
        np.testing.assert_array_equal(one.wait(), store.frames(one.index))
    assert sizes == [7, 3, 1, 2, 4, 2, 2]
    assert "7 utterances of up to 60 frames find no memory on cpu" in caplog.text

    def refuse(features, lengths):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        list(batches.scored(refuse, range(7), 1000))


def test_copies_of_the_processor_are_none():
    values = torch.arange(6.0).view(2, 3)
    copy = HostCopy(values)
    assert np.shares_memory(copy.wait(), values.numpy())
    np.testing.assert_array_equal(HostCopy(values.T).wait(), values.T)
    array = np.ones(3)
    assert sent(array, CPU).numpy() is not None
    assert np.shares_memory(sent(array, CPU).numpy(), array)
