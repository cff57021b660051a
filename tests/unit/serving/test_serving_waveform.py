"""A network on samples, or on Lhotse's features, recognizes as its twin on log-mel."""

import numpy as np
import pytest
import torch
from fixtures.serving_package import FBANK, NETWORK, RATE, Digits, words_of

from latflow.errors import UserError
from latflow.features.options import FrontEndOptions, LhotseFrontEndOptions
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Final
from latflow.serving.session import Session

WAVEFORM = FrontEndOptions(type="waveform", dither=FBANK.dither)
LAYERS = {
    "spectra": {"class": "stft"},
    "mel": {"class": "mel", "sample_rate": RATE, "num_bins": 23, "filters": "weights"},
    "level": {"class": "batch_norm", "affine": False, "epsilon": 0.0},
    **NETWORK["layers"],
}


@pytest.fixture(scope="module")
def on_samples(digits, tmp_path_factory):
    """The package of a network that has the other's layers behind those of log-mel."""
    root = tmp_path_factory.mktemp("on_samples")
    for folder in ("lang", "graph", "scales.json"):
        (root / folder).symlink_to(digits.root / folder)
    known = load_model(digits.root / "nnet/tdnnf")
    description = NetworkDescription.from_config({**NETWORK, "layers": LAYERS})
    classes = known.network.outputs["output"].num_classes
    network = Network(description, 200, {"pdf": classes}).eval()
    normalizer = Normalizer.from_meta(known.meta["normalization"])
    state = network.state_dict() | known.network.state_dict()
    state["body.layers.level.norm.mean"] = torch.tensor(normalizer.mean)
    state["body.layers.level.norm.variance"] = torch.tensor(normalizer.scale) ** -2
    network.load_state_dict(state)
    folder = root / "nnet/tdnnf"
    meta = {"normalization": Normalizer().to_meta()}
    save_model(folder, network, description, np.ones(classes), meta)
    for name in ("final.mdl", "tree", "priors.npy"):
        (folder / name).write_bytes((digits.root / "nnet/tdnnf" / name).read_bytes())
    twin = Digits(root, digits.audio, digits.texts)
    return Model.load(twin.package(root / "package", front_end=WAVEFORM))


def frames_of(model, samples, pieces):
    """All frames of a segment that comes in pieces."""
    stream = model.front_end()
    found = [stream.accept(piece) for piece in np.array_split(samples, pieces)]
    return np.concatenate([*found, stream.finish()])


def test_it_can_be_streamed(model, on_samples):
    assert on_samples.is_streaming
    assert on_samples.acoustics.context == model.acoustics.context


def test_its_scores_are_those_of_the_features_twin(model, on_samples, digits):
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        wanted = model.acoustics.log_likes(frames_of(model, samples, 1))
        found = on_samples.acoustics.log_likes(frames_of(on_samples, samples, 7))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4)


def test_it_recognizes_the_same_words(model, on_samples, digits):
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        assert words_of(on_samples, samples) == words_of(model, samples)


@pytest.mark.filterwarnings("ignore:.*snip_edges")  # Lhotse prefers it off
def test_a_package_may_have_an_extractor_of_lhotse(model, digits, tmp_path):
    front_end = LhotseFrontEndOptions(
        extractor="kaldi-fbank",
        options={"num_filters": 23, "high_freq": 0.0, "snip_edges": True},
        sample_range="int16",
        dither=FBANK.dither,
    )
    with pytest.raises(UserError, match="the extractor kaldi-fbank takes whole signal"):
        digits.package(tmp_path / "no", front_end=front_end)
    options = {"front_end": front_end, "offline": True}
    twin = Model.load(digits.package(tmp_path / "package", **options))
    whole = SessionOptions(sample_rate=RATE, endpoint="off")
    assert not twin.is_streaming
    assert twin.geometry == model.geometry
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        wanted, found = frames_of(model, samples, 1), frames_of(twin, samples, 3)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.02)
        assert words_of(twin, samples) == words_of(model, samples)
        with Session(twin, whole, "x") as session:
            events = session.accept(samples) + session.finish()
        (heard,) = (event.segment for event in events if isinstance(event, Final))
        assert [word.word for word in heard.best.words] == words_of(model, samples)
