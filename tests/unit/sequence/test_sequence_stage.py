"""The stage `train_sequence`: a seed folder in, a model folder out."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from latflow.configuration import resolve_section
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.nnet.model_dir import load_model
from latflow.sequence.train import Sources, train_sequence


@pytest.fixture(scope="module")
def sources(system, tmp_path_factory):
    """All that the stage reads; dev is the training set, decoded with its graph."""
    root = tmp_path_factory.mktemp("stage")
    (root / "scales.json").write_text(json.dumps({"lmwt": 5, "wip": 0.0}))
    frames = str(system.root / "frames")
    return Sources(
        frames=frames,
        dev_frames=frames,
        parent=str(system.root / "seed"),
        lang=str(system.root / "lang"),
        denominator=str(system.root / "den/HCLG.fst"),
        graph=str(system.root / "den/HCLG.fst"),
        scales=str(root / "scales.json"),
        alignments=str(system.root / "ali.ark"),
        training_graphs=str(system.root / "graphs"),
    )


@pytest.fixture
def options(system, repository):
    """A sequence-trained system, as the recipe hands it over."""
    schemas = repository / "workflow/schemas"
    training = {"epochs": 2, "learning_rate": 0.1, "tensorboard": False}
    data = {"sequences": {"type": "utterances"}, "max_sequences": 4}
    return {
        "criterion": resolve_section(
            schemas, "criterion", {"type": "mmi", "acoustic_scale": 0.2}
        ),
        "sequence": system.options(
            alignments={"source": "on_the_fly"}, dev_search={"acoustic_scale": 0.2}
        ),
        "data": resolve_section(schemas, "nnet_data", data),
        "training": resolve_section(
            schemas, "nnet_training", {**training, "micro_sequences": 2}
        ),
        "score": resolve_section(schemas, "score", {}),
        "device": "cpu",
        "backend": "auto",
        "seed": 1,
    }


def epochs_of(folder):
    """What the log says of each epoch."""
    lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def test_model_folder_is_whole_and_its_dev_errors_are_words(
    sources, options, system, tmp_path
):
    out = tmp_path / "model"
    train_sequence(
        sources, out, options=options, checkpoints_dir=tmp_path / "work", threads=2
    )
    model, seed = load_model(out), load_model(sources.parent)
    before, after = seed.network.state_dict(), model.network.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(model.log_priors, seed.log_priors)
    assert model.meta["criterion"] == "mmi"
    assert model.meta["parent"] == sources.parent
    epochs = epochs_of(out)
    num_words = sum(len(t.split()) for t in FrameStore.load(sources.frames).texts)
    assert [line["dev"]["frames"] for line in epochs] == [num_words] * 2
    rates = np.array([line["dev"]["loss"] for line in epochs]) * num_words
    assert np.allclose(rates, np.round(rates))
    assert json.loads((out / "drift.json").read_text())
    assert (out / "sequence_ledger.jsonl").is_file()
    assert not list((tmp_path / "work").iterdir())


def test_a_missing_file_is_named(sources, options, tmp_path):
    missing = {**vars(sources), "scales": str(tmp_path / "none.json")}
    with pytest.raises(UserError, match=r"none\.json"):
        train_sequence(
            Sources(**missing),
            tmp_path / "m",
            options=options,
            checkpoints_dir=tmp_path,
        )


def teaching(options, repository, **training):
    """The options, with a teacher's criterion alone."""
    own = {"type": "teacher", "teacher": "any", "ce_weight": 0.0}
    schemas = repository / "workflow/schemas"
    return {
        **options,
        "criterion": resolve_section(schemas, "criterion", own),
        "training": {**options["training"], **training},
    }


def test_who_is_his_own_teacher_learns_nothing(sources, options, repository, tmp_path):
    out = tmp_path / "model"
    train_sequence(
        replace(sources, teacher=sources.parent),
        out,
        options=teaching(options, repository, optimiser={"type": "sgd"}),
        checkpoints_dir=tmp_path / "work",
    )
    before, after = (
        load_model(folder).network.state_dict() for folder in (sources.parent, out)
    )
    for name, value in before.items():
        assert torch.allclose(after[name], value, atol=1e-6), name
    last = epochs_of(out)[-1]["train"]
    assert last["objective"] == pytest.approx(-last["teacher_entropy"], abs=1e-6)


def test_a_pupil_comes_closer_to_its_teacher(
    system, sources, options, repository, tmp_path
):
    teacher = shutil.copytree(sources.parent, tmp_path / "teacher")
    weights = load_file(teacher / "weights.safetensors")
    generator = torch.Generator().manual_seed(3)
    for value in weights.values():
        value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    save_file(weights, teacher / "weights.safetensors")
    out = tmp_path / "model"
    train_sequence(
        replace(sources, teacher=str(teacher)),
        out,
        options=teaching(options, repository, epochs=6, learning_rate=0.01),
        checkpoints_dir=tmp_path / "work",
    )
    distances = [
        -epoch["train"]["objective"] - epoch["train"]["teacher_entropy"]
        for epoch in epochs_of(out)
    ]
    assert min(distances) > 0
    assert distances[-1] < 0.8 * distances[0]


def test_a_teacher_of_another_normalisation_is_refused(
    sources, options, repository, tmp_path
):
    teacher = shutil.copytree(sources.parent, tmp_path / "teacher")
    meta = json.loads((teacher / "meta.json").read_text())
    meta["normalisation"] = {"kind": "mean"}
    (teacher / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="normalisation differ"):
        train_sequence(
            replace(sources, teacher=str(teacher)),
            tmp_path / "m",
            options=teaching(options, repository),
            checkpoints_dir=tmp_path,
        )
