"""A package of a pretrained encoder: its own files and licence, whole recordings."""

import json
import shutil

import numpy as np
import pytest
import soundfile
from fixtures.encoders import write_encoder
from fixtures.serving_package import RATE

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.package import Model

# Of 25 ms every 10 ms, at 8 kHz.
CONVOLUTIONS = {
    "conv_kernel": (10, 4, 4), "conv_stride": (5, 4, 4), "conv_dim": (6, 6, 6),
}  # fmt: skip
SAMPLES = FrontEndOptions(type="waveform", dither=0.0)


@pytest.fixture(scope="module")
def twin(digits, tmp_path_factory):
    """The experiment with a network of a random encoder, whose folder is gone."""
    root = tmp_path_factory.mktemp("encoder")
    for folder in ("lang", "graph", "scales.json"):
        (root / folder).symlink_to(digits.root / folder)
    small = {"num_feat_extract_layers": 3, **CONVOLUTIONS}
    write_encoder(root / "encoder", sample_rate=RATE, **small)
    layer = {
        "class": "pretrained", "folder": str(root / "encoder"), "sample_rate": RATE,
        "shift": 80, "stride": 3, "longest": 102, "overlap": 12,
    }  # fmt: skip
    layers = {"encoder": layer, "output": {"class": "output"}}
    description = NetworkDescription.from_config({"layers": layers})
    known = load_model(digits.root / "nnet/tdnnf")
    classes = known.network.outputs["output"].num_classes
    network = Network(description, 200, {"pdf": classes}).eval()
    folder = root / "nnet/tdnnf"
    meta = {"normalization": Normalizer().to_meta()}
    save_model(folder, network, description, np.ones(classes), meta)
    for name in ("final.mdl", "tree"):
        shutil.copy(digits.root / "nnet/tdnnf" / name, folder / name)
    shutil.rmtree(root / "encoder")
    return type(digits)(root, digits.audio, digits.texts)


def test_it_is_packaged_for_whole_recordings_alone(twin, tmp_path):
    with pytest.raises(UserError, match="tdnnf cannot be streamed: its network") as no:
        twin.package(tmp_path / "package", front_end=SAMPLES)
    assert "\n" not in str(no.value)


def test_a_recording_is_transcribed_in_windows(twin, digits, tmp_path):
    folder = twin.package(tmp_path / "package", front_end=SAMPLES, offline=True)
    assert json.loads((folder / "package.json").read_text())["licence"] == (
        "Terms of the small encoder\n"
    )
    model = Model.load(folder)
    samples = np.concatenate([digits.samples(name) for name in digits.audio])
    assert len(samples) > 4 * 1.02 * RATE
    stream = model.front_end()
    frames = np.concatenate([stream.accept(samples), stream.finish()])
    scores = model.acoustics.log_likes(frames)
    assert len(scores) == -(-len(frames) // 3)
    # scores in the middle of a window are those of the window alone
    alone = model.acoustics.log_likes(frames[78:180])
    np.testing.assert_allclose(scores[30:56], alone[4:30], rtol=0, atol=1e-4)
    soundfile.write(tmp_path / "long.wav", samples, RATE)
    main(["transcribe", str(folder), str(tmp_path / "long.wav")])
