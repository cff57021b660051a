"""A conformer that sees chunks is packaged to be streamed, in whole chunks."""

import json
import shutil

import numpy as np
import pytest
import yaml
from fixtures.serving_package import RATE

from latflow.files import file_digest
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Final
from latflow.serving.session import Session

LAYERS = {
    "thirds": {"class": "conv2d", "size": 2, "stride": 3, "activation": "relu"},
    "input": {"class": "linear", "size": 16},
    "blocks": {
        "class": "conformer", "num_layers": 2, "heads": 2, "feed_forward": 16,
        "kernel": 5, "positions": "relative", "chunk": 4, "left_chunks": 1,
        "causal": True,
    },
    "output": {"class": "output"},
    # these only help training
    "wide": {"class": "linear", "from": "blocks", "size": 32},
    "ctc": {"class": "output", "loss": "ctc"},
    "phones": {"class": "output", "from": "thirds", "target": "phone"},
}  # fmt: skip


ZIPFORMER = {
    "class": "zipformer", "heads": 2, "feed_forward": 16, "kernel": 3,
    "positions": "relative", "chunk": 2, "left_chunks": 1, "causal": True,
    "downsampling": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def streamed(digits, tmp_path_factory):
    """The package of a random conformer."""
    return packaged(digits, tmp_path_factory.mktemp("conformer"), LAYERS)


def packaged(digits, root, layers):
    """Return the package of a random network."""
    for folder in ("lang", "graph", "scales.json"):
        (root / folder).symlink_to(digits.root / folder)
    known = load_model(digits.root / "nnet/tdnnf")
    classes = known.network.outputs["output"].num_classes
    description = NetworkDescription.from_config({"layers": layers})
    sizes = {"pdf": classes, "label": 9, "phone": 9}
    network = Network(description, 23, sizes, seed=2).eval()
    folder = root / "nnet/tdnnf"
    meta = {"normalization": known.meta["normalization"]}
    save_model(folder, network, description, np.ones(classes), meta)
    for name in ("final.mdl", "tree", "priors.npy"):
        shutil.copy(digits.root / "nnet/tdnnf" / name, folder / name)
    return type(digits)(root, digits.audio, digits.texts).package(root / "package")


def heard(model, pieces):
    """Return words and score of a segment whose audio comes in pieces."""
    options = SessionOptions(sample_rate=RATE, endpoint="off", chunk_length=0.3)
    with Session(model, options, "x") as session:
        events = [event for piece in pieces for event in session.accept(piece)]
        events += session.finish()
    (best,) = (event.segment.best for event in events if isinstance(event, Final))
    return [(word.word, word.start, word.end) for word in best.words]


def test_outputs_that_only_help_training_stay_behind(streamed, digits, tmp_path):
    """A package that has them still, as older ones do, hears the same."""
    root = (streamed / "model").resolve()
    trained = streamed.parent / "nnet/tdnnf"
    layers = yaml.safe_load((root / "network.yaml").read_text())["layers"]
    assert list(layers) == ["thirds", "input", "blocks", "output"]
    old = tmp_path / "old"
    shutil.copytree(streamed, old)
    info = json.loads((old / "package.json").read_text())
    for name in ("network.yaml", "weights.safetensors", "meta.json"):
        shutil.copy(trained / name, old / "model" / name)
        info["digests"][f"model/{name}"] = file_digest(old / "model" / name)
    (old / "package.json").write_text(json.dumps(info))
    weights = "model/weights.safetensors"
    assert (streamed / weights).stat().st_size < (old / weights).stat().st_size
    samples = [digits.samples(next(iter(digits.audio)))]
    assert heard(Model.load(old), samples) == heard(Model.load(streamed), samples)


def test_chunks_of_audio_are_whole_chunks_of_the_network(streamed, digits):
    model = Model.load(streamed)
    assert model.is_streaming
    assert json.loads((streamed / "package.json").read_text())["period"] == 12
    assert model.info.chunk_frames(0.34) == 36
    assert model.info.chunk_frames(0.01) == 12
    for name in list(digits.audio)[:2]:
        samples = digits.samples(name)
        whole = heard(model, [samples])
        rng = np.random.default_rng(5)
        cuts = np.sort(rng.integers(0, len(samples), 7))
        assert heard(model, np.split(samples, cuts)) == whole


def test_zipformers_that_see_chunks_are_streamed_with_their_context(digits, tmp_path):
    package = packaged(digits, tmp_path, {**LAYERS, "blocks": ZIPFORMER})
    model = Model.load(package)
    assert model.is_streaming
    assert not model.acoustics.network.network.can_stream
    assert model.info.chunk_frames(0.01) == 12
    samples = digits.samples(next(iter(digits.audio)))
    assert heard(model, np.array_split(samples, 5)) == heard(model, [samples])


def test_sessions_that_end_or_begin_anew_leave_nothing_to_those_that_follow(
    streamed, digits
):
    model = Model.load(streamed)
    assert model.acoustics.network.network.can_stream
    one, two = (digits.samples(name) for name in list(digits.audio)[:2])
    options = SessionOptions(sample_rate=RATE, endpoint="off", chunk_length=0.12)
    with Session(model, options, "x") as session:
        session.accept(one)
        found = []
        for _ in range(2):
            session.reset()
            found.append(session.accept(two) + session.finish())
    with Session(model, options, "x") as fresh:
        expected = fresh.accept(two) + fresh.finish()
    assert [*map(repr, found)] == [repr(expected)] * 2
    assert expected[-1].segment.best.words
