"""Stage `train_lfmmi`: lattice-free MMI, a network against all phone sequences.

A task of `latflow.training.task`. The network's first output gives the scores that are
trained (and decoded as they are: no softmax, no priors). Further outputs have a
cross-entropy with the posteriors of the supervision, which keeps the layers below from
learning the training data by heart; decoding leaves them out.

With the counted frames of all chunks of a step as denominator, the loss is

    - objective - l2 - out of range + xent * cross-entropy

Source: Povey et al. 2016; Kaldi `nnet3/nnet-chain-training.cc`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import LatticeFree
from latflow.errors import UserError
from latflow.graphs.chain import ChainGraphs
from latflow.graphs.hclg import load_model as load_transitions
from latflow.ledger import Ledger
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.training.distributed import Backend
from latflow.training.job import Job, digest_of_file
from latflow.training.options import LfmmiRunOptions
from latflow.training.readers import estimate_normalizer, open_features, open_reader
from latflow.training.supervised import (
    SupervisedSource,
    open_supervisions,
)
from latflow.training.task import Task, load_matching, read_network, run_training

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LfmmiJob(Job):
    """Files and options of a training by lattice-free MMI; see `Job`."""

    options: LfmmiRunOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    network: Path
    """Description of the network; see docs/networks.md."""
    chain_dir: Path
    """Tree, transition model and denominator."""
    supervisions_dir: Path
    """Supervision of the training split."""
    dev_supervisions_dir: Path
    """Supervision of the dev split."""
    parent_dir: Path | None = None

    @property
    def tree_dir(self) -> Path:
        """The folder whose `final.mdl` and `tree` go with the model."""
        return self.chain_dir

    def identify(self) -> dict[str, Any]:
        """Return what the training depends on; see `Job.identify`."""
        stores = {"train": self.supervisions_dir, "dev": self.dev_supervisions_dir}
        return {
            **self.identity_with(NetworkDescription.load(self.network), {}),
            "criterion": self.options.criterion.values(),
            "supervision": {
                split: dict(open_supervisions(folder).meta)
                for split, folder in stores.items()
            },
            "chain": {
                name: digest_of_file(self.chain_dir / name)
                for name in ("den.fst", "final.mdl")
            },
        }


class LfmmiTask(Task):
    """Training by lattice-free MMI; see `Task`."""

    JOB = LfmmiJob
    FAILURE = "a chunk had no path through its supervision, or scores that are NaN"

    def __init__(self, job: LfmmiJob, device: torch.device) -> None:
        options = job.options
        self.ledger = Ledger("train_lfmmi")
        normalizer = estimate_normalizer(job.frames_dir, options.data)
        _, transitions = load_transitions(job.chain_dir)
        features = open_features(job.frames_dir, options.data)
        network = Network(
            read_network(job.network, features),
            features.dim,
            {"pdf": transitions.num_pdfs},
            seed=options.seed,
        )
        _check_outputs(network, job.network)
        if job.parent_dir is not None:
            load_matching(network, job.parent_dir)
        self.network = network.to(device)
        graphs = ChainGraphs.read(job.chain_dir)
        denominator = Denominator(
            graphs.denominator, graphs.initial_probs, transitions.num_pdfs
        )
        losses = network.description.outputs
        self.criterion = LatticeFree(
            losses, denominator, options.criterion, threads=job.rank_threads
        )
        self.dev_criterion = LatticeFree(
            losses,
            denominator,
            options.criterion,
            is_training=False,
            threads=job.rank_threads,
        )
        self.scales = {**options.criterion.scales, "prior_scale": 0.0}
        self.batches = self._open(job, normalizer)
        self.meta = {
            "criterion": "lfmmi",
            "scores": "log_likelihoods",
            "normalization": normalizer.to_meta(),
        }

    def _open(
        self, job: LfmmiJob, normalizer: Normalizer
    ) -> tuple[SupervisedSource, SupervisedSource]:
        """Open the batches of training and of dev."""
        data, network = job.options.data, self.network
        context = network.context if network.description.repeats_edges else None

        def source(
            frames: Path, supervisions: Path, *, is_training: bool
        ) -> SupervisedSource:
            store = open_supervisions(supervisions)
            if store.subsampling != network.subsampling:
                raise UserError(
                    f"scores one frame in {network.subsampling}, the supervision has "
                    f"one in {store.subsampling}",
                    file=job.network,
                    remedy="set tree.frame_subsampling of the system to what the "
                    "network does",
                )
            if refused := store.meta.get("refused"):
                what = (
                    "%d of %d supervisions have phone sequences that the phone "
                    "language model lacks, and no weights: their objective may be "
                    "above 0 (%s)"
                )
                log.info(what, refused, len(store), supervisions)
            return SupervisedSource(
                open_reader(open_features(frames, data), normalizer),
                store,
                data if is_training else data.for_evaluation(),
                context=context,
                subsampling=network.subsampling,
                seed=job.options.seed,
                # what dev lacks is in the ledger of its supervision
                ledger=self.ledger if is_training else None,
                pin=torch.cuda.is_available(),
            )

        return (
            source(job.frames_dir, job.supervisions_dir, is_training=True),
            source(job.dev_frames_dir, job.dev_supervisions_dir, is_training=False),
        )

    def priors(self, network: Network, backend: Backend) -> None:
        """Return None: scores are log-likelihoods."""


def _check_outputs(network: Network, file: Path) -> None:
    """Refuse a network whose outputs are of another training."""
    kinds = [output.loss.name for output in network.outputs.values()]
    if kinds != ["lfmmi", *["ce"] * (len(kinds) - 1)]:
        raise UserError(
            f"has outputs with the losses {', '.join(kinds)}",
            file=file,
            remedy="give the first output `loss: lfmmi`, others `loss: ce`",
        )


def train_lfmmi(job: LfmmiJob) -> None:
    """Train a network by lattice-free MMI.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    run_training(LfmmiTask, job)
