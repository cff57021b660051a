"""Scores for decoding and alignment on a device: batches give what utterances give."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.pretended_device import CUDA
from fixtures.sequence_system import SCALE

from latflow.decode.network_scorer import NetworkScorer
from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.decode.recognizer import Recognizer
from latflow.device_copies import HostCopy, sent
from latflow.features.frames import FrameStore
from latflow.lang.directory import Lang
from latflow.nnet.model_dir import AcousticNetwork, load_model
from latflow.nnet.normalization import KINDS, Normalizer
from latflow.training.forward import Forward

SEARCH = SearchOptions(acoustic_scale=SCALE, lattice_beam=4.0)


def scorers(system, device, monkeypatch, kind="mean_variance"):
    """Scorers on the processor and on a device, with windows of some utterances."""
    bytes_of_frame = 4 * system.model.num_pdfs
    monkeypatch.setattr(
        "latflow.decode.network_scorer._WINDOW_BYTES", 60 * bytes_of_frame
    )
    store = FrameStore.load(system.root / "frames")
    options = NetworkScoreOptions(device="cpu", prior_scale=0.5)
    here = NetworkScorer.load(store, system.root / "seed", options)
    dim = here.network.network.dim_in
    given = (np.ones(dim, np.float32), np.full(dim, 0.5, np.float32))
    normalizer = Normalizer(kind, *(given if kind == "global" else (None, None)))
    here = replace(here, normalization=normalizer)
    return here, moved(here, system.root / "seed", device)


def moved(scorer, model_dir, device):
    """The scorer with its network on a device."""
    network = load_model(model_dir)
    priors = network.log_priors.to(device)
    there = AcousticNetwork(network.network.to(device), priors, network.meta)
    return replace(scorer, network=there, device=torch.device(device), max_frames=40)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_in_batches_are_those_of_the_utterances(
    device, system, monkeypatch, kind
):
    here, there = scorers(system, device, monkeypatch, kind)
    numbers = [0, 1, 3, 4, 5]
    turns = list(there.turns(numbers))
    assert [turn.index for turn in turns] == numbers
    for turn in turns:
        (expected,) = here.log_likes(turn.index)
        for _ in range(2):  # a search with a wider beam asks again
            (found,) = turn.log_likes()
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_lattices_are_those_of_the_processor(device, system, monkeypatch):
    lang = Lang.load(system.root / "lang")
    found = []
    for scorer in scorers(system, device, monkeypatch):
        recognizer = Recognizer.load(scorer, system.root / "den/HCLG.fst", lang, SEARCH)
        with ThreadPoolExecutor(2) as pool:
            numbers = range(len(scorer.store))
            found.append(list(recognizer.results(pool, numbers, ahead=2)))
    for here, there in zip(*found, strict=True):
        assert here.utterance == there.utterance
        assert here.decoded is not None
        assert there.decoded is not None
        one, other = here.decoded.lattice, there.decoded.lattice
        np.testing.assert_array_equal(one.transition_id, other.transition_id)
        np.testing.assert_allclose(one.acoustic_cost, other.acoustic_cost, rtol=1e-4)
        assert there.log_like_seconds > 0


def test_forward_gives_what_the_processor_gives(device, system):
    store, folder = FrameStore.load(system.root / "frames"), system.root / "seed"
    here = Forward.load(store, folder, device="cpu", max_frames=40)
    network = load_model(folder)
    model = AcousticNetwork(
        network.network.to(device), network.log_priors.to(device), network.meta
    )
    for found, expected in zip(replace(here, model=model), here, strict=True):
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", [CUDA], indirect=True)
def test_copies_are_of_what_was_there_when_they_began(device):
    """Though the device goes on, and memory is used again."""
    copies = []
    for number in range(20):
        values = torch.full((1000, 1000), float(number), device=device)
        copies.append(HostCopy(values * 2))
        del values
        torch.full((1000, 1000), -1.0, device=device)
    for number, copy in enumerate(copies):
        assert (copy.wait() == 2 * number).all()
    for number in range(20):
        found = sent(np.full(100000, number, np.float32), device)
        assert bool((found == number).all())
