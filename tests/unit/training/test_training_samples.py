"""The stage `train_network` on recordings: mel filters learn, or stay where frozen."""

import json

import numpy as np
import pytest
import soundfile
from fixtures.small_model import small_model
from fixtures.training_task import training_options
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.front_end import mel_filters
from latflow.features.live import prepare_live_features
from latflow.features.options import Stream
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiWriter, read_matrices, write_int_vectors
from latflow.nnet.model_dir import load_model
from latflow.options import read_options
from latflow.training.data_options import DataOptions
from latflow.training.forward import ScoreFile, forward
from latflow.training.options import CeRunOptions
from latflow.training.train import NetworkJob, train_network

MODEL = small_model()
RATE, FRAMES = 8000, 40
NETWORK = {
    "edges": "repeat",
    "layers": {
        "spectra": {"class": "stft"},
        "mel": {
            "class": "mel", "sample_rate": RATE, "num_bins": 12, "filters": "weights",
        },
        "level": {"class": "batch_norm", "affine": False},
        "near": {"class": "tdnn", "size": 16},
        "output": {"class": "output"},
    },
}  # fmt: skip


def write_split(folder, count, seed):
    """Write recordings: a tone for each pdf; and alignments, as transition-ids."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    alignments = []
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for number in range(count):
            name = f"u{number}"
            ids = np.repeat(
                rng.integers(1, MODEL.num_transition_ids + 1, FRAMES // 8), 8
            )
            tones = 300 + 500 * np.asarray(MODEL.pdf)[ids]
            phase = 2 * np.pi / RATE * np.cumsum(np.repeat(tones, 80))
            wave = 0.1 * np.sin(phase) + 0.01 * rng.normal(size=phase.size)
            wave = np.append(wave, np.zeros(120))  # of the last window
            soundfile.write(folder / f"{name}.wav", wave, RATE)
            length = len(wave) / RATE
            said = SupervisionSegment(name, name, 0.0, length, speaker="a", text="x")
            recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
            writer.write(
                MonoCut(name, 0.0, length, 0, supervisions=[said], recording=recording)
            )
            alignments.append((name, ids.astype(np.int32)))
    write_int_vectors(folder / "ali.ark", alignments)
    shared = {"stored": False, "cmvn": {"type": "none"}}
    spectra = {"type": "lhotse", "extractor": "kaldi-log-spectrogram"}
    for name, options in (
        ("samples", {"type": "waveform", **shared}),
        ("spectra", {**spectra, "sample_rate": RATE, **shared}),
    ):
        prepare_live_features(
            folder / "cuts.jsonl.gz",
            folder / name,
            options=read_options(Stream, options),
            max_skipped_fraction=0.0,
        )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    tree = ContextDependency.monophone(
        [[1], [2, 3]], Topology.standard([2, 3], [1], 2, 1).pdf_class_counts()
    )
    with KaldiWriter.open(folder / "gmm/final.mdl") as writer:
        MODEL.write(writer)
    tree.save(folder / "gmm/tree")
    write_split(folder / "train", 8, 1)
    write_split(folder / "dev", 2, 2)
    (folder / "network.yaml").write_text(json.dumps(NETWORK))
    return folder


def train(inputs, folder, features, network, data, **training):
    """Train a network; return what `info.json` says of it."""
    shared = {"sequences": {"type": "utterances"}, "max_sequences": 4}
    train_network(
        NetworkJob(
            frames_dir=inputs / "train" / features,
            alignments=inputs / "train/ali.ark",
            source_dir=inputs / "gmm",
            dev_frames_dir=inputs / "dev" / features,
            dev_alignments=inputs / "dev/ali.ark",
            network=inputs / network,
            out_dir=folder / "model",
            options=CeRunOptions(
                data=read_options(DataOptions, {**shared, **data}),
                training=training_options(epochs=6, learning_rate=0.02, **training),
                device="cpu",
                seed=3,
            ),
            checkpoints=folder / "checkpoints",
        )
    )
    return json.loads((folder / "model/info.json").read_text())


def test_a_network_learns_from_an_extractor_of_lhotse(inputs, tmp_path):
    """It has a frame for each shift, the alignments two fewer: of whole windows."""
    layers = {name: NETWORK["layers"][name] for name in ("near", "output")}
    (inputs / "plain.yaml").write_text(json.dumps({**NETWORK, "layers": layers}))
    data = {"normalization": "global"}
    with pytest.raises(UserError, match="none of 8 utterances can be used"):
        train(inputs, tmp_path, "spectra", "plain.yaml", data)
    data["length_tolerance"] = 2
    info = train(inputs, tmp_path, "spectra", "plain.yaml", data)
    assert info["dev"]["frame_errors"] < 0.7
    forward(
        inputs / "dev/spectra", tmp_path / "model", ScoreFile(tmp_path / "scores.ark")
    )
    scores = dict(read_matrices(tmp_path / "scores.ark"))
    shapes = {name: rows.shape for name, rows in scores.items()}
    assert shapes == dict.fromkeys(("u0", "u1"), (FRAMES + 2, MODEL.num_pdfs))


@pytest.fixture(scope="module")
def model(inputs, tmp_path_factory):
    """Folder of a network that scores one frame of three."""
    wide = {"class": "tdnnf", "size": 16, "bottleneck": 4, "stride": 3}
    layers = {"near": NETWORK["layers"]["near"], "thirds": wide}
    layers["output"] = {"class": "output"}
    (inputs / "thirds.yaml").write_text(json.dumps({**NETWORK, "layers": layers}))
    folder = tmp_path_factory.mktemp("thirds")
    train(inputs, folder, "spectra", "thirds.yaml", {"length_tolerance": 2})
    return folder / "model"


@pytest.mark.parametrize(
    ("output", "name", "shift"),
    [(None, "scores", 0.03), ("thirds", "thirds", 0.03), ("near", "near", 0.01)],
)
def test_scores_go_to_cuts_and_a_storage_of_lhotse(
    inputs, model, tmp_path, output, name, shift
):
    cuts, spectra = inputs / "dev/cuts.jsonl.gz", inputs / "dev/spectra"
    forward(spectra, model, ScoreFile(tmp_path / "ark"), output=output)
    forward(
        spectra, model, ScoreFile(tmp_path / "out", "lhotse", cuts=cuts), output=output
    )
    wanted = dict(read_matrices(tmp_path / "ark"))
    for cut in CutSet.from_file(tmp_path / "out/cuts.jsonl.gz"):
        found = cut.load_custom(name)
        np.testing.assert_array_equal(found, wanted.pop(cut.id)[: len(found)])
        array = getattr(cut, name)
        assert array.frame_shift == pytest.approx(shift)
        assert abs(len(found) * shift - cut.duration) < 1.5 * shift
        assert cut.supervisions[0].text == "x"
    assert not wanted
    with pytest.raises(UserError, match=r"out: is not empty \(it holds cuts"):
        forward(spectra, model, ScoreFile(tmp_path / "out", "lhotse", cuts=cuts))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"form": "lhotse"}, "cuts and the form lhotse belong together"),
        ({"cuts": "train"}, "cuts and the form lhotse belong together"),
        ({"cuts": "train", "form": "lhotse", "scp": "x"}, "belongs to an archive"),
        ({"cuts": "none", "form": "lhotse"}, "u0: no such cut"),
    ],
)
def test_cuts_must_be_of_the_utterances(inputs, model, tmp_path, options, told):
    empty = tmp_path / "none.jsonl.gz"
    with ManifestWriter(empty):
        pass
    known = {"train": inputs / "train/cuts.jsonl.gz", "none": empty}
    options = {key: known.get(value, value) for key, value in options.items()}
    with pytest.raises(UserError, match=told):
        forward(inputs / "dev/spectra", model, ScoreFile(tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("freeze", [(), ("mel",)])
def test_a_network_learns_from_samples(inputs, tmp_path, freeze):
    data = {"normalization": "none"}
    info = train(inputs, tmp_path, "samples", "network.yaml", data, freeze=freeze)
    assert info["dev"]["frame_errors"] < 0.7
    network = load_model(tmp_path / "model").network
    start = mel_filters(12, 256, RATE, low_freq=20.0, high_freq=0.0)
    learnt = network.body.layers["mel"].weight.detach().numpy()
    is_start = np.array_equal(learnt, start.astype(np.float32))
    assert is_start == bool(freeze)
    forward(
        inputs / "dev/samples", tmp_path / "model", ScoreFile(tmp_path / "scores.ark")
    )
    scores = dict(read_matrices(tmp_path / "scores.ark"))
    shapes = {name: rows.shape for name, rows in scores.items()}
    assert shapes == dict.fromkeys(("u0", "u1"), (FRAMES, MODEL.num_pdfs))
