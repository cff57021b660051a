"""Stage `train_lfmmi`: lattice-free MMI, a network against all phone sequences.

A task of `latflow.training.task`. The network's first output gives the scores that are
trained (and decoded as they are: no softmax, no priors). Further outputs have a
cross-entropy with the posteriors of the supervision, which keeps the layers below from
learning the training data by heart, or learn the phones of the transcripts by CTC;
decoding leaves them out.

With the counted frames of all chunks of a step as denominator, the loss is

    - objective - l2 - out of range + xent * cross-entropy + loss_scale * CTC

Source: Povey et al. 2016; Kaldi `nnet3/nnet-chain-training.cc`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latflow.align.ctc import CtcGraphs
from latflow.criteria.ctc import CtcLoss
from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import LatticeFree
from latflow.criteria.losses import Joint
from latflow.criteria.protocol import Criterion
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
    graphs_dir: Path | None = None
    """Graphs of the transcripts of the training split, where an output learns by CTC.
    """
    dev_graphs_dir: Path | None = None
    """Those of the dev split."""

    @property
    def tree_dir(self) -> Path:
        """The folder whose `final.mdl` and `tree` go with the model."""
        return self.chain_dir

    def identify(self) -> dict[str, Any]:
        """Return what the training depends on; see `Job.identify`."""
        stores = {"train": self.supervisions_dir, "dev": self.dev_supervisions_dir}
        graphs = {"train": self.graphs_dir, "dev": self.dev_graphs_dir}
        transcripts = {
            split: digest_of_file(folder / "arcs.npy")
            for split, folder in graphs.items()
            if folder is not None
        }
        return {
            **({"graphs": transcripts} if transcripts else {}),
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
    FAILURE = (
        "a chunk had no path through its supervision or for CTC, or scores that are NaN"
    )

    def __init__(self, job: LfmmiJob, device: torch.device) -> None:
        options = job.options
        self.ledger = Ledger("train_lfmmi")
        normalizer = estimate_normalizer(job.frames_dir, options.data)
        _, transitions = load_transitions(job.chain_dir)
        features = open_features(job.frames_dir, options.data)
        self._graphs = {
            split: None if folder is None else CtcGraphs.load(folder)
            for split, folder in (
                ("train", job.graphs_dir),
                ("dev", job.dev_graphs_dir),
            )
        }
        labels = self._graphs["train"]
        classes = {} if labels is None else {"label": labels.num_classes}
        network = Network(
            read_network(job.network, features),
            features.dim,
            {"pdf": transitions.num_pdfs, **classes},
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
        self.criterion, self.dev_criterion = (
            _criterion(network, denominator, job, is_training=is_training)
            for is_training in (True, False)
        )
        by_ctc = network.losses_of("ctc").items()
        self.scales = {
            **options.criterion.scales,
            **{f"loss of {name}": loss.scale for name, loss in by_ctc},
            "prior_scale": 0.0,
        }
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
                graphs=self._graphs["train" if is_training else "dev"],
            )

        return (
            source(job.frames_dir, job.supervisions_dir, is_training=True),
            source(job.dev_frames_dir, job.dev_supervisions_dir, is_training=False),
        )

    def priors(self, network: Network, backend: Backend) -> None:
        """Return None: scores are log-likelihoods."""


def _criterion(
    network: Network, denominator: Denominator, job: LfmmiJob, *, is_training: bool
) -> Criterion:
    """Return the criterion; on dev CTC is measured, and no part of the loss."""
    ways = {"is_training": is_training, "threads": job.rank_threads}
    losses, options = network.description.outputs, job.options.criterion
    found = LatticeFree(losses, denominator, options, **ways)
    by_ctc = network.losses_of("ctc")
    if not by_ctc:
        return found
    measured = frozenset() if is_training else {"ctc"}
    return Joint([found, CtcLoss(by_ctc, **ways)], measured=measured)


def _check_outputs(network: Network, file: Path) -> None:
    """Refuse a network whose outputs are of another training."""
    kinds = [output.loss.name for output in network.outputs.values()]
    if kinds[0] != "lfmmi" or not {*kinds[1:]} <= {"ce", "ctc"}:
        raise UserError(
            f"has outputs with the losses {', '.join(kinds)}",
            file=file,
            remedy="give the first output `loss: lfmmi`, others `loss: ce` or `ctc`",
        )


def train_lfmmi(job: LfmmiJob) -> None:
    """Train a network by lattice-free MMI.

    Raises:
        UserError: inputs that do not fit each other; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    run_training(LfmmiTask, job)
