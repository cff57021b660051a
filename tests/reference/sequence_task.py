"""Trainings of the small system with a lattice criterion, alone or as a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.criteria.options import CriterionOptions
from latflow.criteria.registry import make_criterion
from latflow.graphs.hclg import load_model as load_transitions
from latflow.graphs.options import GraphOptions
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.nnet.model_dir import load_model
from latflow.nnet.normalization import Normalizer
from latflow.options import read_options
from latflow.sequence.criterion import SequenceCriterion
from latflow.sequence.generation import SequenceFiles, load_generator
from latflow.sequence.options import SequenceOptions
from latflow.training.batches import Targets, open_batches
from latflow.training.checkpoint import CheckpointStore
from latflow.training.data_options import DataOptions
from latflow.training.distributed import Backend
from latflow.training.launch import stop_requests
from latflow.training.options import TrainingOptions
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
    averaging: int | None = None,
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Three epochs from the seed; rank 0 leaves parameters and journal in the folder.

    With `averaging` ranks train alone for so many steps.

    Returns:
        (parameters, means on dev of each epoch).
    """
    system, given = Path(root), {"learning_rate": 0.2, "optimizer": {"type": "sgd"}}
    quiet = {"epochs": 3, "tensorboard": False, "log_interval": 1, "micro_sequences": 2}
    averaged = {"parameter_averaging": averaging}
    training = read_options(TrainingOptions, {**given, **quiet, **averaged})
    data = {"sequences": {"type": "utterances"}, "max_sequences": 4}
    data = read_options(DataOptions, {**data, "normalization": "none"})
    seed = load_model(system / "seed")
    batches = [
        open_batches(
            system / "frames",
            Targets(),
            data,
            normalizer=Normalizer("none"),
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
    options = read_options(SequenceOptions, sequence)
    chosen = read_options(CriterionOptions, {"type": kind, "acoustic_scale": 0.2})
    lattices = make_criterion(
        chosen,
        load_transitions(files.model_dir)[1],
        Lang.load(files.lang_dir).silence_phones,
    )
    criterion = SequenceCriterion(
        load_generator(files, lattices, options, GraphOptions()),
        seed.log_priors,
        options,
        ce_weight=ce,
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
    beams = backend.gather(criterion.lattice_beam)
    if backend.is_main:
        criterion.journal.write(folder, {})
        torch.save({**trainer.network.state_dict()}, Path(folder) / "final.pt")
        np.save(Path(folder) / "beams.npy", beams)
    backend.barrier()
    return dict(trainer.network.state_dict()), list(result.history)


def train_both_as_rank(backend: Backend, *, folder: str, **how: Any) -> None:
    """Train with gradients of all ranks in each step, and with averaged parameters."""
    for name, averaging in (("gradients", None), ("parameters", 2)):
        out = Path(folder, name)
        out.mkdir(exist_ok=True)
        train_as_rank(backend, folder=str(out), averaging=averaging, **how)
