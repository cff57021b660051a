"""A small task for LF-MMI: frames, their supervision, a chain system of 3 phones."""

import shutil

import numpy as np

from latflow.align.options import SupervisionOptions
from latflow.align.supervision import PhoneLattice, SupervisionCompiler
from latflow.align.supervision_store import Supervisions
from latflow.features.frames import FrameWriter
from latflow.graphs.chain import make_chain_graphs
from latflow.graphs.options import PhoneLmOptions
from latflow.graphs.phone_lm import estimate_phone_lm
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiWriter
from latflow.ragged import RaggedWriter

PHONES = [1, 2, 3]


def write_lfmmi_task(folder, dim, frames_of, *, without=None):
    """Write a task.

    Args:
        folder: gets `train` and `dev` (frames), `supervisions` and `chain`.
        dim: numbers a frame.
        frames_of: gives frames [T, dim] of phones [T] and a generator.
        without: an utterance that has no supervision.
    """
    topology = chain_topology(PHONES)
    tree = ContextDependency.monophone([[1], [2], [3]], topology.pdf_class_counts())
    model = TransitionModel.from_tree(tree, topology)
    rng = np.random.default_rng(3)
    utterances = {}
    for split, count in (("train", 16), ("dev", 5)):
        for i in range(count):
            phones = rng.integers(1, 4, rng.integers(3, 12))
            utterances[split, f"{split}{i:02d}"] = (
                phones,
                rng.integers(4, 15, len(phones)),
            )
    sequences = [p.tolist() for (split, _), (p, _) in utterances.items()]
    lm = estimate_phone_lm(sequences, PhoneLmOptions())
    chain = folder / "chain"
    chain.mkdir()
    make_chain_graphs(lm, tree, model).write(chain)
    tree.save(chain / "tree")
    with KaldiWriter.open(chain / "final.mdl") as writer:
        model.write(writer)
    compiler = SupervisionCompiler(tree, model, SupervisionOptions())
    meta = {"subsampling": 3, "num_pdfs": model.num_pdfs}
    for split in ("train", "dev"):
        store = folder / "supervisions" / split
        store.mkdir(parents=True)
        with (
            FrameWriter(folder / split, dim=dim) as frames,
            RaggedWriter(store, Supervisions, meta=meta) as writer,
        ):
            for (of, name), (phones, durations) in utterances.items():
                if of != split:
                    continue
                values = frames_of(np.repeat(phones, durations), rng)
                frames.append(name, "s", "", values.astype(np.float32))
                if name != without:
                    found = compiler.compile(PhoneLattice.linear(phones, durations))
                    writer.write(name, *found)
        shutil.copy(chain / "normalization.fst", store)
