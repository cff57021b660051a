"""Trainings: they raise the objective, on any number of ranks, and after a stop."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.sequence_task import train_as_rank

from latflow.criteria.sequence import generation
from latflow.errors import Interrupted, UserError
from latflow.nnet.model_dir import load_model
from latflow.training.distributed import Backend
from latflow.training.launch import launch, write_job

FOLLOWING = {
    "lattices": {"depth": {"target": 5.0, "rate": 0.5}},
    "alignments": {"source": "on_the_fly"},
}


def train(system, folder, *, kind="mmi", sequence=None, **how):
    """Train alone."""
    folder.mkdir(exist_ok=True)
    return train_as_rank(
        Backend(),
        root=str(system.root),
        folder=str(folder),
        kind=kind,
        sequence=system.options(**(sequence or {})).values(),
        **how,
    )


@pytest.mark.parametrize("kind", ["mmi", "smbr", "mpfe", "phone_mpe", "mwe"])
def test_training_raises_the_objective(system, tmp_path, kind):
    parameters, epochs = train(system, tmp_path, kind=kind, threads=2, ce=0.0)
    objectives = [epoch["objective"] for epoch in epochs]
    assert len(objectives) == 3
    assert sorted(objectives) == objectives
    assert objectives[-1] > objectives[0]
    seed = load_model(system.root / "seed").network.state_dict()
    assert any(not torch.equal(parameters[name], seed[name]) for name in seed)


@pytest.fixture(scope="module")
def by_two_ranks(system, tmp_path_factory):
    """What two ranks left that trained with gradients, and with parameters, of both."""
    folder = tmp_path_factory.mktemp("ranks")
    tests = str(Path(__file__).resolve().parents[2])
    path = f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    arguments = {
        "root": str(system.root),
        "folder": str(folder),
        "kind": "mmi",
        "sequence": system.options(**FOLLOWING).values(),
        "device": "cpu",
    }
    function = "fixtures.sequence_task:train_both_as_rank"
    job = write_job(folder / "job.json", function, arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        launch(job, ranks=2, backend="torch", threads=2)
    return folder


@pytest.mark.slow
def test_ranks_train_the_same(system, tmp_path, by_two_ranks):
    alone, _ = train(system, tmp_path / "1", sequence=FOLLOWING)
    folders = tmp_path / "1", by_two_ranks / "gradients"
    together = torch.load(folders[1] / "final.pt", weights_only=True)
    for name, value in alone.items():
        torch.testing.assert_close(value, together[name], rtol=1e-4, atol=1e-5)
    beams = [np.load(folder / "beams.npy").tolist() for folder in folders]
    assert beams[0] * 2 == beams[1]
    assert beams[0] != [6.0]  # it does follow the depth
    drifts = [json.loads((folder / "drift.json").read_text()) for folder in folders]
    assert drifts[0] == drifts[1]  # gathered from both ranks


def test_ranks_that_average_parameters_learn_and_agree_on_beams(system, by_two_ranks):
    folder = by_two_ranks / "parameters"
    lines = (folder / "checkpoints/log.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in lines if '"kind": "epoch"' in line]
    objectives = [epoch["dev"]["objective"] for epoch in epochs]
    assert objectives[-1] > objectives[0]
    one, other = np.load(folder / "beams.npy").tolist()
    assert one == other != 6.0
    averaged = torch.load(folder / "final.pt", weights_only=True)
    summed = torch.load(by_two_ranks / "gradients/final.pt", weights_only=True)
    seed = load_model(system.root / "seed").network.state_dict()
    assert any(not torch.equal(averaged[name], summed[name]) for name in seed)


def test_a_stopped_training_ends_with_the_same_bits(system, tmp_path, monkeypatch):
    whole, _ = train(system, tmp_path / "whole", sequence=FOLLOWING)
    evaluate, calls = generation.Generator.evaluate, []

    def stopping(self, *args, **named):
        calls.append(0)
        if len(calls) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *args, **named)

    monkeypatch.setattr(generation.Generator, "evaluate", stopping)
    with pytest.raises(Interrupted):
        train(system, tmp_path / "parts", sequence=FOLLOWING, threads=3)
    monkeypatch.undo()
    assert not (tmp_path / "parts/final.pt").exists()
    parts, _ = train(system, tmp_path / "parts", sequence=FOLLOWING, threads=3)
    for name, value in whole.items():
        assert torch.equal(value, parts[name])


def test_failures_end_a_training(system, tmp_path):
    narrow = {"beam": 1e-6, "max_active": 2, "min_active": 0, "retry_beam_factor": 1}
    given = {"lattices": {**narrow, "max_failed_fraction": 0.01}}
    with pytest.raises(UserError, match="allowed share"):
        train(system, tmp_path, sequence=given)
