"""The stage: a seed goes on with lattices, on any number of ranks, and after a stop."""

import json
import os
import signal

import pytest
import torch

from latflow.configuration import resolve_section
from latflow.errors import UserError
from latflow.nnet.model_dir import load_model
from latflow.sequence import generation
from latflow.sequence.train import train_sequence
from latflow.training.interruption import Interrupted

CRITERION = {
    "type": "mmi",
    "acoustic_scale": 0.2,
    "lm_scale": 1.0,
    "drop_frames": False,
    "one_silence_class": True,
    "ce_weight": 0.1,
    "l2": 0.0,
}


def options(system, repository, *, criterion=None, training=None, **sequence):
    """Of a small training."""
    schemas = repository / "workflow/schemas"
    rates = {"epochs": 3, "learning_rate": 0.2, "optimiser": {"type": "sgd"}}
    quiet = {"tensorboard": False, "log_interval": 1, "micro_sequences": 2}
    data = {"sequences": {"type": "utterances"}, "max_sequences": 4}
    return {
        "device": "cpu",
        "backend": "torch",
        "seed": 5,
        "criterion": {**CRITERION, **(criterion or {})},
        "sequence": system.options(**sequence),
        "data": resolve_section(schemas, "nnet_data", data),
        "training": resolve_section(
            schemas, "nnet_training", {**rates, **quiet, **(training or {})}
        ),
    }


def train(system, folder, options, **how):
    """Run the stage; returns the parameters, and the log's lines by kind."""
    root = system.root
    train_sequence(
        root / "frames",
        root / "ali.ark",
        root / "frames",
        root / "ali.ark",
        root / "seed",
        root / "lang",
        system.files.graph,
        folder / "model",
        options=options,
        checkpoints_dir=folder / "checkpoints",
        training_graphs=root / "graphs",
        **how,
    )
    lines = map(json.loads, (folder / "model/log.jsonl").read_text().splitlines())
    model = load_model(folder / "model")
    assert model.log_priors is not None
    return dict(model.network.state_dict()), list(lines)


@pytest.mark.parametrize("criterion", ["mmi", "smbr", "mpfe"])
def test_training_raises_the_objective(system, repository, tmp_path, criterion):
    given = options(system, repository, criterion={"type": criterion, "ce_weight": 0.0})
    parameters, lines = train(system, tmp_path, given, threads=2)
    epochs = [line["dev"] for line in lines if line["kind"] == "epoch"]
    objectives = [epoch["objective"] for epoch in epochs]
    assert len(objectives) == 3
    assert sorted(objectives) == objectives
    assert objectives[-1] > objectives[0]
    seed = load_model(system.root / "seed").network.state_dict()
    assert any(not torch.equal(parameters[name], seed[name]) for name in seed)
    meta = json.loads((tmp_path / "model/meta.json").read_text())
    assert meta["criterion"] == criterion
    steps = [line for line in lines if line["kind"] == "step"]
    assert all({"depth", "oracle_words", "gradient_norm"} <= set(s) for s in steps)
    assert (tmp_path / "model/drift.json").is_file()


FOLLOWING = {
    "lattices": {"depth": {"target": 5.0, "rate": 0.5}},
    "alignments": {"source": "on_the_fly"},
}


def test_ranks_train_the_same(system, repository, tmp_path):
    given = options(system, repository, **FOLLOWING)
    found = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        found[ranks] = train(system, folder, given, ranks=ranks, threads=2)
    one, two = (parameters for parameters, _ in found.values())
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
    beams = [
        [line["lattice_beam"] for line in lines if line["kind"] == "step"]
        for _, lines in found.values()
    ]
    assert beams[0] == beams[1]
    assert len(set(beams[0])) > 1  # it does follow the depth
    drifts = [json.loads((tmp_path / r / "model/drift.json").read_text()) for r in "12"]
    assert drifts[0] == drifts[1]  # gathered from all ranks


def test_a_stopped_training_ends_with_the_same_bits(
    system, repository, tmp_path, monkeypatch
):
    given = options(system, repository, **FOLLOWING)
    whole, _ = train(system, tmp_path / "whole", given, threads=1)
    work, calls = generation.Generator.work, []

    def stopping(self, *args, **named):
        calls.append(0)
        if len(calls) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return work(self, *args, **named)

    monkeypatch.setattr(generation.Generator, "work", stopping)
    with pytest.raises(Interrupted):
        train(system, tmp_path / "parts", given, threads=3)
    monkeypatch.undo()
    assert not (tmp_path / "parts/model").exists()
    parts, _ = train(system, tmp_path / "parts", given, threads=3)
    for name in whole:
        assert torch.equal(whole[name], parts[name])


def test_what_cannot_be_trained_is_told(system, repository, tmp_path):
    chunks = options(system, repository)
    data = {"sequences": {"type": "chunks", "size": 8}}
    chunks["data"] = resolve_section(repository / "workflow/schemas", "nnet_data", data)
    with pytest.raises(UserError, match="whole utterances"):
        train(system, tmp_path / "a", chunks)
    other = options(system, repository, criterion={"type": "wer"})
    with pytest.raises(UserError, match="no criterion wer"):
        train(system, tmp_path / "b", other)
    failing = options(
        system,
        repository,
        lattices={"beam": 1e-6, "max_active": 2, "min_active": 0},
        training={"epochs": 60},
    )
    with pytest.raises(UserError, match="allowed share"):
        train(system, tmp_path / "c", failing)
