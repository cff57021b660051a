"""Networks that go to nnet3 and back: the same outputs, and the same bytes again."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.kaldi.io import KaldiReader, KaldiWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.nnet3 import Nnet3
from latflow.nnet.nnet3_file import read_nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.nnet.normalization import Normalizer

DIM, CLASSES = 5, 7
FUNCTIONS = ["none", "relu", "sigmoid", "tanh", "log_softmax"]


@st.composite
def layers(draw):
    """Layers that can be written, each of what there is so far at its frame rate."""
    found = {}
    by_stride, dims = {1: ["data"]}, {"data": DIM}
    for number in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from("abc")) + str(number)
        stride = draw(st.sampled_from(sorted(by_stride)))
        among = by_stride[stride]
        sources = draw(st.lists(st.sampled_from(among), min_size=1, max_size=3,
                                unique=True))  # fmt: skip
        size = draw(st.integers(1, 6))
        dim = sum(dims[source] for source in sources)
        kind = draw(st.sampled_from([
            "linear", "tdnn", "tdnnf", "batch_norm", "activation", "splice", "add",
            "concat", "subsample", "dropout",
        ]))  # fmt: skip
        layer = {"class": kind}
        if kind in {"linear", "tdnn"}:
            layer |= {"size": size, "bias": draw(st.booleans())}
            layer["activation"] = draw(st.sampled_from(FUNCTIONS))
            dim = size
        if kind == "tdnn":
            layer["offsets"] = draw(st.lists(st.integers(-3, 3), min_size=1))
        if kind == "tdnnf":
            has_bypass = draw(st.booleans())
            dim = dim if has_bypass else size
            layer |= {"size": dim, "bypass": 0.66 if has_bypass else 0.0}
            layer |= {"bottleneck": size, "num_layers": draw(st.integers(1, 3))}
            layer["time_stride"] = draw(st.integers(0, 2))
            layer["stride"] = draw(st.sampled_from([1, 3])) if stride == 1 else 1
        if kind == "batch_norm":
            layer["affine"] = draw(st.booleans())
        if kind == "activation":
            layer["function"] = draw(st.sampled_from(FUNCTIONS[1:]))
        if kind == "splice":
            # at least two frames: one alone is not a layer in nnet3
            layer |= {"left": draw(st.integers(0, 2)), "right": draw(st.integers(1, 2))}
            dim *= layer["left"] + 1 + layer["right"]
        if kind == "add":
            sources = [x for x in sources if dims[x] == dims[sources[0]]]
            dim = dims[sources[0]]
        if kind == "subsample":
            if stride == 3:
                continue
            layer["factor"] = 3
        if dim > 60:
            continue
        layer["from"] = sources
        found[name], dims[name] = layer, dim
        slower = kind == "subsample" or layer.get("stride") == 3
        by_stride.setdefault(3 if slower else stride, []).append(name)
    ends = by_stride[max(by_stride)]
    used = {source for layer in found.values() for source in layer["from"]}
    ends = [end for end in ends if end not in used] or ends[-1:]
    last = draw(st.sampled_from(ends))
    needed, keep = {last}, {}
    for name in reversed(list(found)):
        if name in needed:
            keep[name] = found[name]
            needed |= set(found[name]["from"])
    keep = dict(reversed(list(keep.items())))
    return {**keep, "output": {"class": "output", "from": last, "loss": "lfmmi"}}


def network_of(config, seed):
    """A network of random parameters and statistics."""
    description = NetworkDescription.from_config({"edges": "repeat", "layers": config})
    network = Network(description, DIM, {"pdf": CLASSES}, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in network.state_dict().items():
            drawn = torch.randn(values.shape, generator=generator) * 0.5
            positive = name.endswith(("norm.variance", "norm.scale"))
            values.copy_(drawn.abs() + 1e-3 if positive else drawn)
    return network


def written(model, ivector_dim, *, binary=True):
    stream = io.BytesIO()
    Nnet3(model, ivector_dim=ivector_dim).write(
        KaldiWriter(stream, binary=binary, mark=False)
    )
    return stream.getvalue()


def read_again(raw, subsampling, ivector_dim, *, binary=True):
    file = read_nnet3(KaldiReader(io.BytesIO(raw), binary=binary))
    found = import_nnet3(file, subsampling)
    assert found.ivector_dim == ivector_dim
    meta = {"scores": "log_likelihoods", "normalization": found.normalizer.to_meta()}
    return AcousticNetwork(found.network, None, meta)


def scores(model, features):
    normalizer = Normalizer.from_meta(model.meta["normalization"])
    frames = torch.from_numpy(normalizer(features))[None]
    return model.log_likelihoods(frames, torch.tensor([len(features)]))[0][0].numpy()


@pytest.mark.parametrize("binary", [True, False])
@settings(deadline=None)
@given(layers(), st.integers(0, 99), st.booleans(), st.integers(0, DIM - 1))
def test_export_and_import_give_the_same_network(
    binary, config, seed, normalizes, ivector_dim
):
    network, rng = network_of(config, seed), np.random.default_rng(seed)
    normalizer = Normalizer()
    if normalizes:
        mean, scale = rng.normal(size=DIM), rng.random(DIM) + 0.1
        normalizer = Normalizer("global", *np.array([mean, scale], np.float32))
    meta = {"scores": "log_likelihoods", "normalization": normalizer.to_meta()}
    model = AcousticNetwork(network, None, meta)
    raw = written(model, ivector_dim, binary=binary)
    again = read_again(raw, network.subsampling, ivector_dim, binary=binary)
    features = rng.normal(size=(20, DIM)).astype(np.float32)
    expected, found = scores(model, features), scores(again, features)
    exactness = 1e-5 if binary else 1e-4  # text has seven digits
    np.testing.assert_allclose(
        found, expected, rtol=exactness, atol=exactness * np.abs(expected).max()
    )
    assert written(again, ivector_dim, binary=binary) == raw
