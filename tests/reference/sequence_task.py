"""Trainings of the small system with a lattice criterion, alone or as a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.configuration import resolve_section
from latflow.ledger import Ledger
from latflow.nnet.model_dir import load_model
from latflow.sequence.assemble import SequenceFiles, assemble
from latflow.sequence.criterion import LossWeights
from latflow.sequence.objectives import objective_of
from latflow.training.checkpoint import CheckpointStore
from latflow.training.distributed import Backend
from latflow.training.interruption import stop_requests
from latflow.training.normalisation import Normaliser
from latflow.training.sources import open_batches
from latflow.training.trainer import Trainer

SCHEMAS = Path(__file__).resolve().parents[2] / "workflow" / "schemas"


def train_as_rank(
    backend: Backend,
    *,
    root: str,
    folder: str,
    kind: str,
    sequence: dict[str, Any],
    device: str = "cpu",
    threads: int = 1,
    ce: float = 0.1,
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Three epochs from the seed; rank 0 leaves parameters and journal in the folder.

    Returns:
        (parameters, means on dev of each epoch).
    """
    system, given = Path(root), {"learning_rate": 0.2, "optimiser": {"type": "sgd"}}
    quiet = {"epochs": 3, "tensorboard": False, "log_interval": 1, "micro_sequences": 2}
    training = resolve_section(SCHEMAS, "nnet_training", {**given, **quiet})
    data = {"sequences": {"type": "utterances"}, "max_sequences": 4}
    data = resolve_section(SCHEMAS, "nnet_data", {**data, "normalisation": "none"})
    seed = load_model(system / "seed")
    batches = [
        open_batches(
            system / "frames",
            {},
            data,
            normaliser=Normaliser("none"),
            seed=3,
            ledger=Ledger("train"),
            is_training=is_training,
        )
        for is_training in (True, False)
    ]
    files = SequenceFiles(
        [system / "texts"],
        system / "lang",
        system / "model",
        system / "den/HCLG.fst",
        [system / "ali.ark"],
        system / "graphs",
    )
    criterion = assemble(
        files,
        objective_of(
            resolve_section(SCHEMAS, "criterion", {"type": kind, "acoustic_scale": 0.2})
        ),
        sequence,
        log_priors=seed.log_priors,
        weights=LossWeights(ce=ce),
        threads=threads,
    )
    with stop_requests() as should_stop:
        trainer = Trainer(
            seed.network.to(device).train(),
            criterion,
            *batches,
            training,
            CheckpointStore(Path(folder) / "checkpoints", {"kind": kind}, keep=1),
            seed=5,
            backend=backend,
            should_stop=should_stop,
        )
        try:
            result = trainer.run()
        finally:
            criterion.close()
    criterion.journal.join(backend.gather(criterion.journal.contents()))
    if backend.is_main:
        criterion.journal.write(folder, {})
        beams = {"beam": criterion.lattice_beam}
        torch.save({**trainer.network.state_dict()}, Path(folder) / "final.pt")
        np.savez(Path(folder) / "beam.npz", **beams)
    backend.barrier()
    return dict(trainer.network.state_dict()), list(result.history)
