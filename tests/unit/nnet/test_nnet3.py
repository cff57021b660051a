"""Networks as nnet3: shifts in time behind strides, what is left out, and refusals.

`tests/golden/test_vosk.py` has Kaldi's own code run them.
"""

import io

import numpy as np
import pytest
import torch

from latflow.errors import UserError
from latflow.kaldi.io import KaldiReader, KaldiWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.nnet3 import Nnet3

TAIL = {"output": {"class": "output", "loss": "lfmmi"}}
GLOBAL = {"type": "global", "mean": [1.0, -2.0, 0.5], "scale": [2.0, 0.25, 1.0]}


def model_of(layers, *, edges="repeat", scores="log_likelihoods", normalization=None):
    """A network of 3 features and 4 classes."""
    description = NetworkDescription.from_config(
        {"edges": edges, "layers": {**layers, **TAIL}}
    )
    network = Network(description, 3, {"pdf": 4}, seed=1).eval()
    meta = {"scores": scores, "normalization": normalization or {"type": "none"}}
    return AcousticNetwork(network, None, meta)


def inputs_of(model):
    """{node: descriptor} of the component nodes and the output."""
    words = [dict(w.split("=") for w in split(line)) for line in Nnet3(model).lines]
    return {word["name"]: word.get("input") for word in words}


def split(line):
    """The `key=value` words of a line; descriptors have blanks in them."""
    return line.replace(", ", ",").split(" ")[1:]


def test_shifts_count_frames_of_the_features_behind_a_stride():
    near = {"class": "tdnnf", "size": 3, "bottleneck": 2, "num_layers": 2, "stride": 3}
    far = {"class": "tdnnf", "size": 3, "bottleneck": 2, "bypass": 0.5}
    nodes = inputs_of(model_of({"near": near, "far": far}))
    assert nodes["near1.linear"] == "Append(Offset(input,-1),input)"
    assert nodes["near2.affine"] == "Append(near2.linear,Offset(near2.linear,1))"
    assert nodes["far1.linear"] == "Append(Offset(near2.sum,-3),near2.sum)"
    assert nodes["far1.affine"] == "Append(far1.linear,Offset(far1.linear,3))"
    assert nodes["far1.sum"] == "Sum(far1.offset,Scale(0.5,near2.sum))"
    assert nodes["output"] == "output.affine"


def test_an_output_behind_networks_side_by_side():
    near = {"class": "tdnnf", "from": "data", "size": 3, "bottleneck": 2}
    both = {"class": "concat", "from": ["n1", "n2"]}
    nodes = inputs_of(model_of({"n1": near, "n2": near, "both": both}))
    assert "Append(n11.sum,n21.sum)" in nodes.values()
    assert nodes["n21.linear"] == "Append(Offset(input,-1),input)"


def test_the_ivector_is_an_input_of_its_own():
    model = model_of({"near": {"class": "tdnnf", "size": 3, "bottleneck": 2}})
    lines = Nnet3(model, ivector_dim=2).lines
    assert lines[:2] == ["input-node name=input dim=1", "input-node name=ivector dim=2"]
    assert lines[2].endswith(" input=Append(input, ReplaceIndex(ivector, t, 0))")
    assert "(input_ivector, -1), input_ivector)" in lines[3]


def test_layers_of_other_outputs_and_of_training_are_left_out():
    layers = {
        "drop": {"class": "dropout"},
        "dense": {"class": "linear", "size": 5},
        **TAIL,
        "xent": {"class": "linear", "size": 7, "from": "dense"},
        "output_xent": {"class": "output", "from": "xent"},
    }
    description = NetworkDescription.from_config({"edges": "repeat", "layers": layers})
    network = Network(description, 3, {"pdf": 4}).eval()
    meta = {"scores": "log_likelihoods", "normalization": {"type": "none"}}
    nodes = inputs_of(AcousticNetwork(network, None, meta))
    assert list(nodes) == ["input", "dense.affine", "output.affine", "output"]
    assert nodes["dense.affine"] == "input"


def test_the_file_has_the_parameters_and_folds_both_normalizations():
    model = model_of({"norm": {"class": "batch_norm"}}, normalization=GLOBAL)
    norm = model.network.body.layers["norm"].norm
    with torch.no_grad():
        for values in (norm.mean, norm.variance, norm.scale, norm.offset):
            values.copy_(torch.rand(3) + 0.5)
    stream = io.BytesIO()
    Nnet3(model).write(KaldiWriter(stream))
    raw = stream.getvalue()
    start = raw.index(b"<NumComponents>")
    reader = KaldiReader(io.BytesIO(raw[start:]), binary=True)
    reader.expect("<NumComponents>")
    assert reader.int32() == 5
    x = torch.randn(1, 6, 3)
    ours = (x - torch.tensor(GLOBAL["mean"])) * torch.tensor(GLOBAL["scale"])
    expected = model.log_likelihoods(ours, torch.tensor([6]))[0][0].numpy()
    found = x[0].numpy()
    for _ in range(5):
        found = applied(reader, found)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    reader.expect("</Nnet3>")
    reader.expect("<LeftContext>")
    assert reader.int32() == 0


def applied(reader, frames):
    """Read a component, and apply it."""
    reader.expect("<ComponentName>")
    reader.token()
    kind = reader.token()
    token = reader.token()
    if kind == "<FixedAffineComponent>":
        matrix = reader.float_matrix()
        reader.expect("<BiasParams>")
        frames = frames @ matrix.T + reader.float_vector()
    else:
        vector = reader.float_vector()
        frames = frames * vector if token == "<Scales>" else frames + vector
    reader.expect(kind.replace("<", "</"))
    return frames


@pytest.mark.parametrize(
    ("layers", "more", "what"),
    [
        ({}, {"edges": "zeros"}, "repeats frames"),
        ({}, {"scores": "posteriors"}, "not log-likelihoods"),
        ({}, {"normalization": {"type": "mean"}}, "normalization mean"),
        (
            {"conv": {"class": "conv1d", "size": 3}},
            {},
            "layer conv: no nnet3 component is written for class conv1d",
        ),
        (
            {"dense": {"class": "linear", "size": 3, "activation": "gelu"}},
            {},
            "layer dense: nnet3 has no gelu",
        ),
    ],
)
def test_what_kaldi_cannot_compute_is_refused(layers, more, what):
    with pytest.raises(UserError, match=what):
        Nnet3(model_of(layers, **more))
