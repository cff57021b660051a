"""Stage `train_sequence`: a network learns from lattices made on the fly.

The folder is that of `latflow.training.train`, and holds beside it

* `drift.json`: how far alignments made on the fly have moved, by phone;
* `sequence_ledger.jsonl`: utterances that were searched again, fell back, or gave
  nothing.

Public: `train_sequence`, `train_rank`, `Sources`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.criteria.base import Criterion
from latflow.errors import UserError
from latflow.lang.composition import load_model as load_transitions
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.nnet.model_dir import AcousticNetwork, load_model
from latflow.sequence.assemble import SequenceFiles, assemble
from latflow.sequence.criterion import LatticeCriterion, LossWeights
from latflow.sequence.generation import Teacher
from latflow.sequence.objectives import objective_of
from latflow.sequence.word_errors import Scorecard, WordErrors
from latflow.training.checkpoint import CheckpointStore, digest_of
from latflow.training.device import choose_device
from latflow.training.distributed import Backend, resolve_backend
from latflow.training.interruption import stop_requests
from latflow.training.launch import run_ranks, threads_of_rank
from latflow.training.normalisation import Normaliser
from latflow.training.session import identity_of, num_kept, place_rank, write_model
from latflow.training.sources import open_batches
from latflow.training.trainer import Trainer


@dataclass(frozen=True)
class Sources:
    """Paths of what sequence training reads.

    Attributes:
        frames: features of the training split, stored or on the fly.
        dev_frames: of the dev split.
        parent: model folder of the seed, with `final.mdl` and `tree`.
        lang: the lang directory.
        denominator: graph that lattices are made with.
        graph: decoding graph, for word errors on dev.
        scales: `scales.json` of the seed's decoding.
        alignments: `ali.ark` of the training split.
        training_graphs: of the transcripts, for alignments on the fly; or None.
        teacher: model folder of the network that criterion `teacher` learns from.
    """

    frames: str
    dev_frames: str
    parent: str
    lang: str
    denominator: str
    graph: str
    scales: str
    alignments: str
    training_graphs: str | None = None
    teacher: str | None = None


def train_sequence(
    sources: Sources,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    checkpoints_dir: str | Path,
    threads: int = 1,
    ranks: int = 1,
    hosts: str | None = None,
) -> None:
    """Train a network by a lattice criterion, from a seed.

    Dev is decoded at the end of each epoch; with `training.final: best` the model is
    the epoch with the fewest word errors there. Goes on from the newest checkpoint of
    the same training, if there is one.

    Args:
        sources: what is read.
        out_dir: the model folder, replaced as a whole.
        options: a sequence-trained system of `workflow/schemas/nnet.yaml`
            (`criterion`, `sequence`, `data`, `training`), with `score`, `device`,
            `backend` and `seed`.
        checkpoints_dir: where checkpoints are kept until the model is written.
        threads: of all ranks on this machine together.
        ranks: processes that share each batch.
        hosts: machines of the ranks, as for `horovodrun -H`; `srun` for those of the
            SLURM job that we are in; None for this one.

    Raises:
        UserError: inputs that do not fit each other; too many utterances without
            lattice; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    identity = _identity(sources, options)
    folder = Path(checkpoints_dir) / digest_of(identity)
    arguments = {
        "sources": asdict(sources),
        "out_dir": str(out_dir),
        "folder": str(folder),
        "options": dict(options),
        "identity": identity,
        "device": str(choose_device(options["device"])),
        "threads": threads_of_rank(threads, ranks, hosts),
    }
    run_ranks(
        f"{__name__}:train_rank",
        arguments,
        folder / "job.json",
        ranks=ranks,
        backend=resolve_backend(options["backend"], ranks),
        threads=threads,
        hosts=hosts,
        elastic=options["training"]["elastic"],
    )
    shutil.rmtree(folder)


def train_rank(
    backend: Backend,
    *,
    sources: Mapping[str, Any],
    out_dir: str,
    folder: str,
    options: Mapping[str, Any],
    identity: Mapping[str, Any],
    device: str,
    threads: int,
) -> None:
    """Train as one rank of several, or alone; rank 0 writes the model.

    Args:
        backend: the other ranks.
        sources: as `Sources`.
        out_dir: the model folder.
        folder: of the checkpoints.
        options: see `train_sequence`.
        identity: what the training depends on.
        device: `cpu` or `cuda`.
        threads: for lattices, of this rank.
    """
    named = Sources(**sources)
    where, training = place_rank(device, backend), options["training"]
    seed = load_model(named.parent, where)
    network = seed.network.train()
    if network.subsampling != 1:
        raise UserError(
            f"the network scores one frame in {network.subsampling}; lattices need all",
            file=named.parent,
            remedy="use a network without subsampling",
        )
    ledger = Ledger("train_sequence")
    train, dev = (
        open_batches(
            frames,
            {},
            options["data"],
            normaliser=Normaliser.from_meta(seed.meta["normalisation"]),
            subsampling=network.subsampling,
            seed=options["seed"],
            ledger=ledger,
            is_training=frames == named.frames,
        )
        for frames in (named.frames, named.dev_frames)
    )
    with (
        closing(_criterion(named, seed, options, threads)) as criterion,
        closing(_judge(named, seed, options, threads)) as judge,
        stop_requests() as should_stop,
    ):
        trainer = Trainer(
            network,
            criterion,
            train,
            dev,
            training,
            CheckpointStore(folder, identity, keep=num_kept(training)),
            seed=options["seed"],
            backend=backend,
            dev_criterion=judge,
            should_stop=should_stop,
        )
        result = trainer.run()
    criterion.journal.join(backend.gather(criterion.journal.contents()))
    if backend.is_main:
        meta = {
            "criterion": criterion.name,
            "options": dict(options),
            "parent": named.parent,
            "normalisation": seed.meta["normalisation"],
        }
        write_model(
            out_dir,
            network,
            np.load(Path(named.parent, "priors.npy")),
            meta,
            result=result,
            trainer=trainer,
            ledger=ledger,
            source_dir=named.parent,
        )
        names = {phone: name for name, phone in Lang.load(named.lang).phone_ids.items()}
        criterion.journal.write(out_dir, names)
    backend.barrier()


def _criterion(
    sources: Sources, seed: AcousticNetwork, options: Mapping[str, Any], threads: int
) -> LatticeCriterion:
    """The criterion that is trained by."""
    chosen = options["criterion"]
    return assemble(
        SequenceFiles(
            frames_dirs=[sources.frames],
            lang_dir=sources.lang,
            model_dir=sources.parent,
            graph=sources.denominator,
            alignments=[sources.alignments],
            training_graphs=sources.training_graphs,
        ),
        objective_of(
            chosen, teacher=_teacher(sources, seed, options), seed=options["seed"]
        ),
        options["sequence"],
        log_priors=seed.log_priors,
        weights=LossWeights(
            prior_scale=options["sequence"]["prior_scale"],
            ce=chosen["ce_weight"],
            l2=chosen["l2"],
        ),
        threads=threads,
    )


def _teacher(
    sources: Sources, seed: AcousticNetwork, options: Mapping[str, Any]
) -> Teacher | None:
    """The network that is learnt from, where there is one.

    Raises:
        UserError: it reads other features, or has other classes.
    """
    if sources.teacher is None:
        return None
    device = next(seed.network.parameters()).device
    teacher = load_model(sources.teacher, device)
    for what, expected, found in (
        ("normalisation", seed.meta["normalisation"], teacher.meta["normalisation"]),
        ("classes", seed.meta["classes"], teacher.meta["classes"]),
        ("features a frame", seed.network.dim_in, teacher.network.dim_in),
    ):
        if found != expected:
            raise UserError(
                f"its {what} differ from those of {sources.parent}",
                file=sources.teacher,
                remedy="train teacher and parent on the same features and alignments",
            )
    scale = options["sequence"]["prior_scale"]
    return lambda features, lengths: teacher.log_likelihoods(
        features, lengths, prior_scale=scale
    )[0]


def _judge(
    sources: Sources, seed: AcousticNetwork, options: Mapping[str, Any], threads: int
) -> Criterion:
    """What dev is evaluated by: its word errors."""
    lang = Lang.load(sources.lang)
    _, transitions = load_transitions(sources.parent)
    scorecard = Scorecard.of(sources.dev_frames, lang, sources.scales, options["score"])
    sequence = options["sequence"]
    priors = torch.zeros(transitions.num_pdfs)
    if seed.log_priors is not None:
        priors = sequence["prior_scale"] * seed.log_priors
    return WordErrors(
        sources.graph,
        transitions,
        scorecard,
        priors,
        options=sequence["dev_search"],
        threads=threads,
    )


def _identity(sources: Sources, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the training depends on; see `latflow.training.session.identity_of`."""
    network = load_model(sources.parent).network
    common = identity_of(
        options, network.description, sources.frames, {}, sources.parent
    )
    read = ("denominator", "graph", "alignments", "scales")
    files = {name: _digest(Path(getattr(sources, name))) for name in read}
    if sources.teacher is not None:
        files["teacher"] = _digest(Path(sources.teacher, "weights.safetensors"))
    own = {key: options[key] for key in ("criterion", "sequence")}
    return json.loads(json.dumps({**common, **own, "files": files}))


def _digest(path: Path) -> str:
    """Digest of a file's contents.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="make it first")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
