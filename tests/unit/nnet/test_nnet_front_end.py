"""Layers from the samples on: Kaldi's numbers at the start, and gradients through."""

import math

import numpy as np
import pytest
import torch
from fixtures.small_model import SILENCE, small_model
from reference.lfmmi_naive import random_denominator, random_supervision

from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.mmi import Mmi
from latflow.criteria.mpe import Mbr
from latflow.criteria.options import LfmmiOptions, MbrOptions, MmiOptions
from latflow.errors import UserError
from latflow.features.extract import make_extractor
from latflow.features.options import FrontEndOptions
from latflow.lattice.lattice import Lattice
from latflow.nnet.description import NetworkDescription
from latflow.nnet.layer import Padded
from latflow.nnet.layers.beamforming import beamformed
from latflow.nnet.network import Network

RATE = 16000
SPECTRA = {"class": "stft"}
MEL = {"class": "mel", "sample_rate": RATE}
TINY_MEL = {"class": "mel", "sample_rate": 1000, "num_bins": 3, "filters": "gaussian"}

# Edges in the wrong order: the widths of bells would be no numbers.
REVERSED = {"filters": "gaussian", "low_freq": 5000.0, "high_freq": 300.0}


def network(layers, dim, classes=4):
    """Return a network with an output behind some layers."""
    config = {"layers": {**layers, "output": {"class": "output"}}}
    return Network(NetworkDescription.from_config(config), dim, {"pdf": classes}).eval()


def noise(num_samples, seed=0):
    rng = np.random.default_rng(seed)
    return (0.1 * rng.normal(size=num_samples)).astype(np.float32)


def windows_of(wave):
    """Return the frames of type waveform, [1, T, 400]."""
    options = FrontEndOptions(type="waveform")
    found = make_extractor(options, RATE).extract_utterance(wave, 7)
    return torch.from_numpy(found)[None]


def results(net, features, names):
    """Return what layers give for one sequence, [T, D] each."""
    batch = Padded.of(features, torch.tensor([features.shape[1]]))
    found = {}
    with torch.no_grad():
        for name in names:
            batch = net.body.layers[name](batch)
            found[name] = batch.values[0].numpy()
    return found


@pytest.mark.parametrize("filters", ["fixed", "weights"])
@pytest.mark.parametrize("window_type", ["povey", "hamming"])
@pytest.mark.parametrize("dither", [0.0, 1.0])
def test_log_mel_at_the_start_is_that_of_the_front_end(filters, window_type, dither):
    wave = noise(4000)
    changes = {"high_freq": -400.0, "low_freq": 40.0, "num_mel_bins": 30}
    options = FrontEndOptions(
        type="fbank", window_type=window_type, dither=dither, **changes
    )
    wanted = make_extractor(options, RATE).extract_utterance(wave, 7)
    given = FrontEndOptions(type="waveform", dither=dither)
    windows = make_extractor(given, RATE).extract_utterance(wave, 7)
    mel = {"num_bins": 30, "low_freq": 40.0, "high_freq": -400.0, "filters": filters}
    layers = {"s": {**SPECTRA, "window_type": window_type}, "m": {**MEL, **mel}}
    net = network(layers, 400)
    found = results(net, torch.from_numpy(windows)[None], "sm")["m"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_network_on_samples_gives_what_it_gives_on_stored_log_mel():
    rest = {
        "norm": {"class": "batch_norm", "affine": False},
        "tdnn": {"class": "tdnn", "size": 12, "offsets": [-2, 0, 2]},
        "rec": {"class": "rec", "size": 6},
    }
    on_samples = network({"s": SPECTRA, "m": MEL, **rest}, 400)
    on_features = network(rest, 40)
    # of the same seed and the same names of layers: the same parameters
    for key, value in on_features.state_dict().items():
        assert torch.equal(on_samples.state_dict()[key], value)
    wave, lengths = noise(8000), torch.tensor([48])
    options = FrontEndOptions(type="fbank", num_mel_bins=40)
    stored = make_extractor(options, RATE).extract_utterance(wave, 7)
    wanted = on_features(torch.from_numpy(stored)[None], lengths)["output"].logits
    found = on_samples(windows_of(wave), lengths)["output"].logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_bells_start_at_the_triangles_centres():
    net = network({"s": SPECTRA, "m": {**MEL, "filters": "gaussian"}}, 400)
    bells = net.body.layers["m"].filters().detach().numpy()
    fixed = network({"s": SPECTRA, "m": MEL}, 400).body.layers["m"].weight.numpy()
    wide = fixed[:, 15:]  # the lowest triangles hold a line or two
    assert np.abs(bells[:, 15:].argmax(0) - wide.argmax(0)).max() <= 1
    np.testing.assert_allclose(bells[:, 15:].sum(0), wide.sum(0), rtol=0.1)


def test_channels_are_analysed_each_by_itself():
    first, second = windows_of(noise(1000, 1)), windows_of(noise(1000, 2))
    layers = {"s": {**SPECTRA, "channels": 2}, "m": MEL}
    both = results(network(layers, 800), torch.cat((first, second), 2), "sm")["m"]
    alone = network({"s": SPECTRA, "m": MEL}, 400)
    for columns, windows in ((slice(40), first), (slice(40, 80), second)):
        wanted = results(alone, windows, "sm")["m"]
        np.testing.assert_allclose(both[:, columns], wanted, atol=1e-5)


def test_pcen_is_its_formula():
    options = {"frames": 5, "smoothing": 0.2, "gain": 0.9, "bias": 1.5, "power": 0.4}
    layers = {"s": SPECTRA, "m": {**MEL, "log": False}, "p": {"class": "pcen"}}
    layers["p"] |= options
    found = results(network(layers, 400), windows_of(noise(2500)), "smp")
    energies = found["m"].astype(np.float64)
    for t, present in enumerate(energies):
        ages = range(min(t + 1, 5))
        weights = np.array([0.8**k for k in ages])
        mean = sum(w * energies[t - k] for w, k in zip(weights, ages, strict=True))
        gained = present / (mean / weights.sum() + 1e-6) ** 0.9
        wanted = (gained + 1.5) ** 0.4 - 1.5**0.4
        np.testing.assert_allclose(found["p"][t], wanted, rtol=1e-3)


def test_the_beamformer_is_its_formula():
    rng = np.random.default_rng(3)
    shape = 2, 3, 4, 30  # sequences, lines, microphones, frames
    spectra = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    speech, other = rng.uniform(size=(2, 2, 3, 30))
    found = beamformed(
        *map(torch.from_numpy, (spectra, speech, other)), reference=1, loading=1e-3
    )
    for b, f in np.ndindex(2, 3):
        y = spectra[b, f]
        outer = [np.outer(v, v.conj()) for v in y.T]
        target = np.einsum("t,tcd->cd", speech[b, f], outer)
        rest = np.einsum("t,tcd->cd", other[b, f], outer)
        target, rest = target / speech[b, f].sum(), rest / other[b, f].sum()
        rest += 1e-3 * np.trace(rest) / 4 * np.eye(4)
        ratio = np.linalg.inv(rest) @ target
        weights = ratio[:, 1] / np.trace(ratio)
        np.testing.assert_allclose(found[b, f], weights.conj() @ y, rtol=1e-9)


def test_the_beamformer_keeps_the_reference_and_suppresses_a_second_source():
    rng = np.random.default_rng(4)
    frames, microphones = 200, 3
    talks = np.arange(frames) < 100
    voice = rng.normal(size=frames) * talks + 1j * rng.normal(size=frames) * talks
    other = 2.0 * (rng.normal(size=frames) + 1j * rng.normal(size=frames))
    steering = np.exp(2j * np.pi * rng.uniform(size=(2, microphones)))
    spectra = np.outer(steering[0], voice) + np.outer(steering[1], other)
    spectra += 1e-3 * rng.normal(size=spectra.shape)
    # Speech alone is known where the other source is silent: oracle covariances.
    clean = np.outer(steering[0], voice)
    both = np.concatenate((clean, spectra[:, 100:]), 1)[None, None]
    is_voice = np.arange(both.shape[-1]) < frames
    found = beamformed(
        torch.from_numpy(both),
        torch.from_numpy(is_voice[None, None].astype(float)),
        torch.from_numpy(~is_voice[None, None] * 1.0),
        reference=0,
        loading=1e-6,
    )[0, 0].numpy()
    np.testing.assert_allclose(found[:frames], clean[0], atol=1e-2)
    assert np.abs(found[frames:]).mean() < 0.01 * np.abs(spectra[0, 100:]).mean()


def test_masks_do_not_depend_on_the_order_of_microphones():
    layers = {"s": {**SPECTRA, "channels": 2}, "k": {"class": "mask_estimator"}}
    layers["k"]["size"] = 4
    net = network(layers, 800)
    first, second = windows_of(noise(1500, 1)), windows_of(noise(1500, 2))
    there = results(net, torch.cat((first, second), 2), "sk")["k"]
    back = results(net, torch.cat((second, first), 2), "sk")["k"]
    np.testing.assert_allclose(there, back, atol=1e-6)
    assert ((there > 0) & (there < 1)).all()


@pytest.mark.parametrize(
    ("layers", "dim", "message"),
    [
        ({"m": MEL}, 400, "layer m: needs the spectra that class stft or mvdr gives"),
        ({"s": {**SPECTRA, "channels": 3}}, 400, "400 numbers a frame are not windows"),
        ({"s": SPECTRA, "m": {**MEL, "num_bins": 300}}, 400, "layer m: mel filter"),
        ({"s": SPECTRA, "v": {"class": "mvdr"}}, 400, "layer v: needs from: .<stft"),
        ({"m": {"class": "mel"}}, 400, "layer m: key sample_rate is missing"),
        ({"s": SPECTRA, "m": {**MEL, **REVERSED}}, 400, "layer m: mel filters from"),
    ],
)  # fmt: skip
def test_layers_that_do_not_fit_are_refused(layers, dim, message):
    with pytest.raises(UserError, match=message):
        network(layers, dim)


def test_a_beamformer_without_its_reference_is_refused():
    layers = {
        "s": {**SPECTRA, "channels": 2},
        "k": {"class": "mask_estimator", "size": 2},
        "v": {"class": "mvdr", "from": ["s", "k"], "reference": 2},
    }
    with pytest.raises(UserError, match="layer v: reference is 2, there are 2 micro"):
        network(layers, 800)


def test_half_precision_leaves_spectra_alone():
    layers = {"s": SPECTRA, "m": {**MEL, "filters": "weights"}}
    net = network(layers, 400)
    windows, lengths = windows_of(noise(2000)), torch.tensor([11])
    whole = results(net, windows, "sm")["m"]
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(results(net, windows, "sm")["m"], whole)
        net(windows, lengths)["output"].logits.float().sum().backward()
    assert net.body.layers["m"].weight.grad.isfinite().all()


def test_digital_silence_has_finite_gradients():
    layers = {
        "s": {**SPECTRA, "channels": 2},
        "k": {"class": "mask_estimator", "size": 2},
        "v": {"class": "mvdr", "from": ["s", "k"]},
        "m": {**MEL, "log": False, "filters": "weights"},
        "p": {"class": "pcen", "frames": 4},
    }
    net = network(layers, 800)
    logits = net(torch.zeros(1, 6, 800), torch.tensor([6]))["output"].logits
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters())


# -- gradients from a criterion to the samples -----------------------------------------

FRAMES = 4
FRONT_ENDS = {
    "log_mel": ({"s": SPECTRA, "m": TINY_MEL}, 1),
    "weights": ({"s": SPECTRA, "m": {**TINY_MEL, "filters": "weights"}}, 1),
    "pcen": (
        {
            "s": SPECTRA,
            "m": {**TINY_MEL, "log": False},
            "p": {"class": "pcen", "frames": 2},
        },
        1,
    ),
    "beam": (
        {
            "s": {**SPECTRA, "channels": 2},
            "k": {"class": "mask_estimator", "size": 2},
            "v": {"class": "mvdr", "from": ["s", "k"], "loading": 0.1},
            "m": TINY_MEL,
        },
        2,
    ),
}


def chain_of(name, classes):
    """Return a network, float64, and the function from samples to its outputs."""
    layers, channels = FRONT_ENDS[name]
    layers = {**layers, "hidden": {"class": "linear", "size": 4, "activation": "tanh"}}
    net = network(layers, 8 * channels, classes).double()
    with torch.no_grad():
        # outputs that differ between frames, so that no gradient is nearly zero
        net.body.layers["hidden"].map.weight.mul_(0.3)
        if name == "weights":  # away from 0, below which they count as 0
            net.body.layers["m"].weight.add_(0.1)

    def scores(waves):
        """[C, L] -> [T, P]."""
        frames = waves.unfold(1, 8, 4).transpose(0, 1).flatten(1)[None]
        return net(frames, torch.tensor([FRAMES]))["output"].logits[0]

    rng = np.random.default_rng(5)
    waves = torch.from_numpy(0.1 * rng.normal(size=(channels, 4 + 4 * FRAMES)))
    return net, scores, waves.requires_grad_()


def check_gradients(net, value, waves):
    """Compare gradients of samples and of what is learnt with differences."""
    assert torch.autograd.gradcheck(value, (waves,), eps=1e-6, atol=1e-6, rtol=1e-4)
    value(waves).backward()
    assert waves.grad.abs().sum(1).all()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in net.named_parameters():
        # along one direction: all numbers of it at once
        direction = torch.randn(parameter.shape, generator=generator).double()
        slope = (parameter.grad * direction).sum().item()
        assert abs(slope) > 1e-8, name
        ends = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                parameter.add_(direction, alpha=step)
                ends.append(value(waves).item())
            parameter.add_(direction, alpha=1e-5)
        found = (ends[0] - ends[1]) / 2e-5
        assert found == pytest.approx(slope, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_lfmmi_reaches_the_samples(name):
    rng = np.random.default_rng(6)
    graph, initial = random_denominator(rng, 4, 11, 5)
    supervision = random_supervision(rng, FRAMES, 5)
    denominator = Denominator(graph, initial, 5)
    net, scores, waves = chain_of(name, 5)

    def value(wave):
        options = LfmmiOptions(l2=0.01)
        found = evaluate_lfmmi(scores(wave)[None], [supervision], denominator, options)
        return found.value.sum()

    check_gradients(net, value, waves)


MODEL = small_model()


def two_paths():
    """Return a lattice of two phones, each a path, and the alignment of the first."""
    found = []
    for phone in (2, 1):
        states = 1 + np.flatnonzero(MODEL.tuples[:, 0] == phone)
        ids = [int(np.flatnonzero(MODEL.state == s)[0]) for s in states]
        found.append([*ids, *[ids[-1]] * (FRAMES - len(ids))])
    arcs, finals = [], [(np.inf, np.inf)]
    for word, ids in enumerate(found, start=1):
        state = 0
        for t, transition in enumerate(ids):
            finals.append((np.inf, np.inf))
            arcs.append((state, len(finals) - 1, transition, word if t == 0 else 0))
            state = len(finals) - 1
        finals[state] = (0.0, 0.0)
    costs = np.full((len(arcs), 2), 0.1, np.float32)
    lattice = Lattice.from_arcs(
        np.array(arcs, np.int32), costs, np.array(finals, np.float32)
    )
    return lattice, np.array(found[0], np.int32)


@pytest.mark.parametrize("name", FRONT_ENDS)
@pytest.mark.parametrize("kind", ["mmi", "smbr"])
def test_lattice_criteria_reach_the_samples(name, kind):
    lattice, alignment = two_paths()
    criterion = (
        Mmi(MmiOptions(), MODEL, SILENCE)
        if kind == "mmi"
        else Mbr(MbrOptions(type="smbr"), MODEL, SILENCE)
    )
    net, scores, waves = chain_of(name, MODEL.num_pdfs)

    def value(wave):
        return criterion(scores(wave), lattice, alignment, np.zeros(0, np.int32))

    assert math.isfinite(value(waves).item())
    check_gradients(net, value, waves)
