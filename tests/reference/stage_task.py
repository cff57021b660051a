"""Inputs of the stage `train_network` that a network learns in seconds."""

import json
from pathlib import Path

import numpy as np
from reference.small_model import small_model
from reference.training_task import LAYERS, data_options, training_options

from latflow.features.frames import FrameWriter
from latflow.hmm.alignment import pdfs_of
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiWriter, write_int_vectors
from latflow.training.options import CeRunOptions
from latflow.training.train import NetworkJob, train_network

MODEL = small_model()
DIM = 4


def write_inputs(folder: Path) -> None:
    """Write frames whose mean tells the pdf; one utterance without an alignment."""
    tree = ContextDependency.monophone(
        [[1], [2, 3]], Topology.standard([2, 3], [1], 2, 1).pdf_class_counts()
    )
    with KaldiWriter.open(folder / "gmm" / "final.mdl") as writer:
        MODEL.write(writer)
    tree.save(folder / "gmm" / "tree")
    means = np.random.default_rng(5).normal(size=(MODEL.num_pdfs, DIM)) * 2
    for split, count, seed in (("train", 20, 1), ("dev", 6, 2)):
        rng = np.random.default_rng(seed)
        alignments = []
        with FrameWriter(folder / split, dim=DIM) as frames:
            for number in range(count):
                length = rng.integers(3, 40)
                ids = rng.integers(1, MODEL.num_transition_ids + 1, length, np.int32)
                noise = rng.normal(size=(len(ids), DIM))
                values = (means[pdfs_of(ids, MODEL)] + noise).astype(np.float32)
                frames.append(f"{split}{number:02d}", "s", "", values)
                alignments.append((f"{split}{number:02d}", ids.astype(np.int32)))
        write_int_vectors(folder / f"{split}.ark", alignments[1:])
    network = json.dumps({"layers": LAYERS})
    (folder / "network.yaml").write_text(network)


def options(**training):
    """Options of a short training."""
    return CeRunOptions(
        data=data_options(normalization="global"),
        training=training_options(**{"epochs": 3, "learning_rate": 0.02, **training}),
        device="cpu",
        seed=3,
    )


def stage(inputs: Path, out: Path, checkpoints: Path, chosen, **others) -> None:
    """Run the stage `train_network` on what `write_inputs` wrote."""
    train_network(
        NetworkJob(
            **others,
            frames_dir=inputs / "train",
            alignments=inputs / "train.ark",
            source_dir=inputs / "gmm",
            dev_frames_dir=inputs / "dev",
            dev_alignments=inputs / "dev.ark",
            network=inputs / "network.yaml",
            out_dir=out,
            options=chosen,
            checkpoints=checkpoints,
        )
    )
