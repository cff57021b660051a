"""Networks made of nnet3: of Kaldi's components by hand, and refusals.

`tests/property/test_nnet3_round_trip.py` has our own export and back again,
`tests/golden/test_vosk.py` whole folders.
"""

import io
import re

import numpy as np
import pytest
import torch
from reference.kaldi_nnet3 import HandWritten, xconfig_lines

from latflow.errors import UserError
from latflow.kaldi.io import KaldiReader
from latflow.nnet.nnet3_file import read_nnet3
from latflow.nnet.nnet3_import import import_nnet3


def imported(written, subsampling=3, ivector_dim=0):
    reader = KaldiReader(io.BytesIO(written.raw()), binary=True)
    found = import_nnet3(read_nnet3(reader), subsampling)
    assert found.ivector_dim == ivector_dim
    return found.network


def outputs(network, features):
    with torch.inference_mode():
        found = network(torch.from_numpy(features)[None], torch.tensor([len(features)]))
    return next(iter(found.values())).logits[0].numpy()


def check(written, subsampling=3, dim=6, ivector_dim=0):
    """A network gives what the naive evaluation of the nodes does."""
    network = imported(written, subsampling, ivector_dim)
    assert network.dim_in == dim + ivector_dim
    for frames in (1, 2, 31):
        rng = np.random.default_rng(frames)
        features = rng.normal(size=(frames, dim)).astype(np.float32)
        ivector = rng.normal(size=ivector_dim).astype(np.float32)
        expected = written.evaluate(features, subsampling, ivector=ivector)
        beside = np.tile(ivector, (frames, 1))
        found = outputs(network, np.hstack((features, beside)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
    return network.description.config["layers"]


@pytest.mark.parametrize("subsampling", [1, 3])
def test_layers_of_xconfig_compute_the_same(subsampling):
    layers = check(HandWritten(*xconfig_lines()), subsampling)
    factorized = {n: x for n, x in layers.items() if x["class"] == "tdnnf"}
    strides = {n: (x["time_stride"], x.get("stride", 1)) for n, x in factorized.items()}
    if subsampling == 3:  # one frame in three behind the layers of stride 1
        assert strides == {
            "tdnnf2": (1, 1), "tdnnf3": (1, 3), "tdnnf4": (0, 1), "tdnnf5": (1, 1),
            "tdnnf6": (1, 1),
        }  # fmt: skip
    else:
        assert [stride for stride, _ in strides.values()] == [1, 1, 0, 3, 3]
    assert layers["prefinal-l"]["semi_orthogonal"]
    assert layers["output"]["class"] == "output"
    assert not [name for name in layers if "xent" in name]


@pytest.mark.parametrize("subsampling", [1, 3])
def test_ivectors_of_xconfig_are_parts_of_our_frames(subsampling):
    written = HandWritten(*xconfig_lines(ivector_dim=4))
    layers = check(written, subsampling, ivector_dim=4)
    slices = [x for x in layers.values() if x["class"] == "slice"]
    assert [(x["begin"], x["size"]) for x in slices] == [(0, 6), (6, 4)]


def small(tail, **components):
    """An affine map of the input, nodes behind it, and the output."""
    lines = ["input-node name=input dim=6", "input-node name=ivector dim=2"]
    known = {"first": ("FixedAffineComponent", {"rows": 4, "columns": 6}), **components}
    lines.append("component-node name=first component=first input=input")
    for line in tail:
        kind = "output" if line.startswith("name=output ") else "component"
        kind = "dim-range" if "input-node=" in line else kind
        lines.append(f"{kind}-node {line}")
    return HandWritten(lines, known)


AFFINE = ("FixedAffineComponent", {"rows": 3, "columns": 8})
NOOP = ("NoOpComponent", {"dim": 4})


@pytest.mark.parametrize(
    ("tail", "components"),
    [
        (["name=output input=Offset(first, 2)"], {}),
        (["name=output input=Sum(first, Scale(0.5, Offset(first, -3)))"], {}),
        (["name=output input=Sum(first, first)"], {}),
        (["name=output input=Sum(first, Scale(-2, Scale(0.5, first)))"], {}),
        (["name=output input=Append(Offset(first, -1), first, Offset(first, 1))"], {}),
        (["name=output input=Append(first, input)"], {}),
        (["name=x component=x input=Append(Offset(first, 4), first)",
          "name=output input=x"], {"x": AFFINE}),
        (["name=x component=x input=Offset(Append(first, Scale(2, first)), -3)",
          "name=y component=y input=Offset(x, 3)",
          "name=output input=Append(y, Sum(x, y))"],
         {"x": AFFINE, "y": ("RectifiedLinearComponent", {"dim": 3})}),
        (["name=x component=x input=first",
          "name=output input=Sum(x, Offset(x, 1))"], {"x": NOOP}),
        (["name=x component=x input=Sum(first, Offset(first, -6))",
          "name=output input=x"],
         {"x": ("TdnnComponent", {"rows": 2, "columns": 8, "offsets": [3, -1]})}),
        (["name=part input-node=first dim-offset=1 dim=2",
          "name=output input=Append(first, Offset(part, 1))"], {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("subsampling", [1, 2, 3])
def test_any_sum_shift_and_scale_is_read(tail, components, subsampling):
    check(small(tail, **components), subsampling)


WHOLE = "Append(input, ReplaceIndex(ivector, t, 0))"


@pytest.mark.parametrize(
    ("tail", "components", "classes"),
    [
        # the `lda` of Kaldi's recipes
        (["name=lda component=lda input=Append(Offset(input, -1), input, "
          "Offset(input, 1), ReplaceIndex(ivector, t, 0))", "name=output input=lda"],
         {"lda": ("FixedAffineComponent", {"rows": 5, "columns": 20})},
         ["slice", "slice", "tdnn"]),
        # a map of its own
        (["name=i component=i input=ReplaceIndex(ivector, t, 0)",
          "name=n component=n input=i", "name=output input=Append(first, n)"],
         {"i": ("LinearComponent", {"rows": 3, "columns": 2}),
          "n": ("BatchNormComponent", {"dim": 3, "rms": 0.025})},
         ["slice", "linear", "slice", "linear", "batch_norm", "concat"]),
        # what our export writes
        ([f"name=both component=both input={WHOLE}",
          "name=x component=x input=both", "name=output input=x"],
         {"both": ("NoOpComponent", {"dim": 8}), "x": AFFINE}, ["output"]),
        # a shift of an i-vector is none
        ([f"name=x component=x input=Offset({WHOLE}, 3)", "name=output input=x"],
         {"x": AFFINE}, ["slice", "slice", "tdnn"]),
        (["name=output input=Sum(ReplaceIndex(ivector, t, 0), "
          "ReplaceIndex(Scale(0.5, ivector), t, 0))"], {}, None),
        ([f"name=output input={WHOLE.replace('input,', 'first,')}"], {}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("subsampling", [1, 3])
def test_ivectors_are_read_in_any_place(tail, components, classes, subsampling):
    layers = check(small(tail, **components), subsampling, ivector_dim=2)
    if classes is not None and subsampling == 1:
        found = sorted(x["class"].replace("output", "linear") for x in layers.values())
        assert found == sorted(x.replace("output", "linear") for x in classes)


@pytest.mark.parametrize(
    ("tail", "what"),
    [
        (["name=output input=ReplaceIndex(ivector, t, 1)"],
         "node output: descriptor ReplaceIndex with another index than t, 0"),
        (["name=output input=ReplaceIndex(ivector, x, 0)"], "another index than t, 0"),
        (["name=output input=ReplaceIndex(Offset(ivector, 1), t, 0)"],
         "another index than t, 0"),
        (["name=output input=Append(first, ivector)"],
         "node output: i-vectors are read as ReplaceIndex(ivector, t, 0)"),
        (["name=output input=ReplaceIndex(first, t, 0)"],
         "node output: i-vectors are read as ReplaceIndex(ivector, t, 0)"),
        (["name=output input=Append(first, Round(ivector, 10))"],
         "node output: descriptor Round"),
        (["name=output input=Switch(first, first)"], "node output: descriptor Switch"),
        (["name=output input=IfDefined(first)"], "node output: descriptor IfDefined"),
        (["name=output input=Sum(first, input)"], "a sum of different sizes"),
        (["name=part input-node=first dim-offset=3 dim=2", "name=output input=part"],
         "node part: it takes numbers that are not there"),
        (["name=output input=nowhere"], "there is no node nowhere"),
        (["name=x component=x input=x", "name=output input=x"], "in a circle"),
        (["name=x component=x input=input", "name=output input=x"],
         "node x, component x: it does not take the 6 numbers"),
        (["name=output input=Offset(first"], "node output: '' where"),
        (["name=output input=Offset(first, 5000)"], "more than 1000 away"),
        (["name=output input=first first"], "goes on behind its end"),
        (["name=x component=x input=first"], "no output-node named output"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(tail, what):
    with pytest.raises(UserError, match=re.escape(what)):
        imported(small(tail, x=NOOP))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (b"SoftmaxComponent", "node x, component z: SoftmaxComponent is read, and not"),
        (b"SoftComponent", "component z: 'SoftComponent' is not a class"),
    ],
)
def test_a_component_that_is_not_computed_is_named_with_its_node(kind, what):
    raw = small(["name=x component=z input=first", "name=output input=x"], z=NOOP).raw()
    raw = raw.replace(b"NoOpComponent", kind)
    with pytest.raises(UserError, match=what):
        import_nnet3(read_nnet3(KaldiReader(io.BytesIO(raw), binary=True)), 1)


def test_a_component_that_is_not_computed_may_stand_where_it_is_not_needed():
    lines = ["name=x component=z input=first", "name=output input=first"]
    raw = small(lines, z=NOOP).raw().replace(b"NoOpComponent", b"SoftmaxComponent")
    assert import_nnet3(read_nnet3(KaldiReader(io.BytesIO(raw), binary=True)), 1)


def test_priors_are_refused():
    raw = small(["name=output input=first"]).raw()
    raw = raw[: raw.index(b"FV ", raw.index(b"<Priors>"))] + (
        b"FV \x04\x01\x00\x00\x00" + np.float32(0.5).tobytes()
    )
    with pytest.raises(UserError, match="not trained by LF-MMI"):
        read_nnet3(KaldiReader(io.BytesIO(raw), binary=True))
