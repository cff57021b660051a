"""A pretrained encoder learns by lattice-free MMI, from samples on."""

import json

import numpy as np
import pytest
import torch
from fixtures.encoders import RATE, write_encoder
from fixtures.lfmmi_task import write_lfmmi_task
from fixtures.training_task import training_options

from latflow.align.supervision_store import Supervisions
from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import LatticeFree
from latflow.criteria.options import LfmmiOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.graphs.chain import ChainGraphs
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model
from latflow.nnet.network import Network
from latflow.options import read_options
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.lfmmi import LfmmiJob, train_lfmmi
from latflow.training.options import LfmmiRunOptions
from latflow.training.readers import StoreReader
from latflow.training.supervised import SupervisedSource

WINDOW, SHIFT = 400, 160
ENCODER = {"class": "pretrained", "sample_rate": RATE, "stride": 3, "mask_width": 2}


def tones(phones, rng):
    """Return windows of a tone for each phone, in noise."""
    hertz = np.repeat(300.0 + 700.0 * phones, SHIFT)
    hertz = np.append(hertz, np.full(WINDOW - SHIFT, hertz[-1]))
    signal = 0.3 * np.sin(2 * np.pi / RATE * np.cumsum(hertz))
    signal = signal + 0.02 * rng.normal(size=len(signal))
    return np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[::SHIFT]


def data_of(**changes):
    few = {
        "sequences": {"type": "chunks", "size": 60},
        "max_sequences": 8,
        "normalization": "none",
    }
    return read_options(LfmmiDataOptions, {**few, **changes}, "data")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Windows of samples whose tone tells the phone, and an encoder."""
    folder = tmp_path_factory.mktemp("task")
    write_encoder(folder / "encoder", layerdrop=0.1)
    write_lfmmi_task(folder, WINDOW, tones)
    return folder


def write_network(task, **options):
    layers = {
        "encoder": ENCODER | {"folder": str(task / "encoder")} | options,
        "output": {"class": "output", "loss": "lfmmi"},
        "xent": {"class": "output", "from": "encoder"},
    }
    (task / "network.yaml").write_text(json.dumps({"layers": layers}))
    return NetworkDescription.load(task / "network.yaml")


def job_of(task, out, **training):
    quiet = {"epochs": 3, "learning_rate": 0.01, "max_change": None, "final": "last"}
    return LfmmiJob(
        options=LfmmiRunOptions(
            data=data_of(),
            training=training_options(**{**quiet, **training}),
            device="cpu",
            seed=3,
        ),
        checkpoints=out.parent / "c",
        frames_dir=task / "train",
        supervisions_dir=task / "supervisions/train",
        dev_frames_dir=task / "dev",
        dev_supervisions_dir=task / "supervisions/dev",
        chain_dir=task / "chain",
        network=task / "network.yaml",
        out_dir=out,
    )


def train(task, out, **training):
    train_lfmmi(job_of(task, out, **training))
    return json.loads((out / "info.json").read_text())


def test_gradients_are_those_of_the_objective(task):
    description = write_network(task, freeze=[], mask_share=0.0)
    network = Network(description, WINDOW, {"pdf": 6}, seed=1).double().eval()
    source = SupervisedSource(
        StoreReader(FrameStore.load(task / "train")),
        Supervisions.load(task / "supervisions/train"),
        data_of(max_sequences=3),
        context=None,
        subsampling=3,
        seed=2,
    )
    batches = source.epoch(0)
    batch = next(batches)
    batches.close()
    graphs = ChainGraphs.read(task / "chain")
    denominator = Denominator(graphs.denominator, graphs.initial_probs, 6)
    criterion = LatticeFree(description.outputs, denominator, LfmmiOptions(xent=0.0))

    def loss():
        outputs = network(batch.features.double(), batch.lengths)
        return criterion.begin(outputs, batch)().value

    loss().backward()
    generator = torch.Generator().manual_seed(4)
    for name in ("feature_extractor.conv_layers.0.conv.weight", "layers.0.attention"):
        chosen = [v for n, v in network.named_parameters() if name in n]
        ways = [torch.randn(v.shape, generator=generator).double() for v in chosen]
        pairs = list(zip(chosen, ways, strict=True))
        slope = sum(float((value.grad * way).sum()) for value, way in pairs)
        found = []
        for size in (1e-5, -2e-5):
            with torch.no_grad():
                for value, way in pairs:
                    value.add_(way, alpha=size)
                found.append(float(loss()))
        # the objective itself is computed on float32
        assert (found[0] - found[1]) / 2e-5 == pytest.approx(slope, rel=0.02)
        with torch.no_grad():
            for value, way in pairs:
                value.add_(way, alpha=1e-5)
    criterion.close()


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2, "freeze_steps": 3}])
def test_a_training_that_is_stopped_ends_with_the_same_bits(task, tmp_path, options):
    write_network(task, checkpointing=True, learning_rate_decay=0.9, **options)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    info = train(task, tmp_path / "a/model")
    assert info["history"][-1]["loss"] < info["history"][0]["loss"]
    steps = []

    def stop(self, totals):
        steps.append(totals)
        if len(steps) == 4:
            raise RuntimeError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatticeFree, "stepped", stop)
        with pytest.raises((RuntimeError, UserError)):
            train(task, tmp_path / "b/model", checkpoint_minutes=1e-9)
    train(task, tmp_path / "b/model")
    first, second = (
        load_model(tmp_path / name / "model").network.state_dict() for name in "ab"
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_parameters_are_another_training(task, tmp_path):
    from safetensors.torch import load_file, save_file

    write_network(task)
    before = job_of(task, tmp_path / "model").identify()
    path = task / "encoder/model.safetensors"
    kept, weights = path.read_bytes(), load_file(path)
    weights["feature_projection.projection.bias"] += 1.0
    save_file(weights, path)
    after = job_of(task, tmp_path / "model").identify()
    path.write_bytes(kept)
    name = str(task / "encoder")
    assert before.pop("encoders")[name] != after.pop("encoders")[name]
    assert before == after
