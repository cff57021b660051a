"""Stage `train_sequence`: a network learns from lattices made on the fly.

A task of `latflow.training.task`, whose model folder holds besides

* `drift.json`: how far alignments made on the fly have moved, by phone;
* `sequence_ledger.jsonl`: utterances that were searched again, fell back, or gave
  nothing.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.criteria.options import Scales
from latflow.criteria.protocol import Criterion
from latflow.criteria.registry import make_criterion
from latflow.criteria.sequence.criterion import SequenceCriterion, Teacher
from latflow.criteria.sequence.generation import SequenceFiles, load_generator
from latflow.criteria.sequence.word_errors import Scorecard, WordErrors
from latflow.errors import UserError
from latflow.graphs.hclg import load_model as load_transitions
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.nnet.model_dir import AcousticNetwork, load_model, read_priors
from latflow.nnet.network import Network
from latflow.scoring.results import is_far_worse
from latflow.scoring.tune import read_scales
from latflow.training.distributed import Backend
from latflow.training.job import Job, digest_of_file
from latflow.training.options import SequenceRunOptions
from latflow.training.steps import LOSS
from latflow.training.task import Task, run_training

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SequenceJob(Job):
    """Files and options of a training on lattices; see `Job`."""

    options: SequenceRunOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    parent_dir: Path
    """Model folder of the seed, with `final.mdl` and `tree`."""
    lang_dir: Path
    """The lang directory."""
    denominator: Path
    """Graph that lattices are made with."""
    graph: Path
    """Decoding graph, for word errors on dev."""
    scales: Path
    """`scales.json` of the seed's decoding."""
    alignments: Path
    """`ali.ark` of the training split."""
    training_graphs_dir: Path | None = None
    """Of the transcripts, for alignments on the fly."""
    teacher_dir: Path | None = None
    """Model folder of the network that criterion `teacher` learns from."""

    @property
    def tree_dir(self) -> Path:
        """The seed's folder."""
        return self.parent_dir

    def identify(self) -> dict[str, Any]:
        """Return what the training depends on; see `Job.identify`."""
        options = self.options
        files = {
            "denominator": self.denominator,
            "graph": self.graph,
            "alignments": self.alignments,
            "scales": self.scales,
        }
        if self.teacher_dir is not None:
            files["teacher"] = self.teacher_dir / "weights.safetensors"
        files |= {str(path): path for path in options.criterion.files}
        description = load_model(self.parent_dir).network.description
        return {
            **self.identity_with(description, {}),
            "criterion": options.criterion.values(),
            "sequence": options.sequence.values(),
            "files": {name: digest_of_file(path) for name, path in files.items()},
        }


class SequenceTask(Task):
    """Training by a lattice criterion, with the word errors of dev; see `Task`."""

    JOB = SequenceJob

    def __init__(self, job: SequenceJob, device: torch.device) -> None:
        self._job = job
        seed = load_model(job.parent_dir, device)
        self.network = seed.network.train()
        self.ledger = Ledger("train_sequence")
        normalizer = seed.normalizer
        subsampling = self.network.subsampling
        self.batches = job.batches({}, normalizer, subsampling, self.ledger)
        self.scales = _scales(job, seed)  # refuses to scale priors that there are not
        self.criterion = self._lattices = _criterion(job, seed)
        self.dev_criterion = _dev_criterion(job, seed)
        kind = {"scores": seed.meta["scores"]} if "scores" in seed.meta else {}
        self.meta = {
            "criterion": self.criterion.name,
            "normalization": normalizer.to_meta(),
            **kind,
        }

    def priors(
        self,
        network: Network,  # noqa: ARG002
        backend: Backend,  # noqa: ARG002
    ) -> np.ndarray | None:
        """Return the seed's, if it has some."""
        return read_priors(self._job.parent_dir)

    def gather(self, backend: Backend) -> None:
        """Join the journals of the ranks."""
        journal = self._lattices.journal
        journal.join(backend.gather(journal.contents()))

    def write(self, folder: Path) -> None:
        """Write the journal; warn of a network far worse than its seed."""
        self._compare_with_seed(folder)
        phones = Lang.load(self._job.lang_dir).phone_ids
        names = {phone: name for name, phone in phones.items()}
        self._lattices.journal.write(folder, names)

    def _compare_with_seed(self, folder: Path) -> None:
        """Warn of a network that gets far more of dev's words wrong than its seed."""
        info = json.loads((folder / "info.json").read_text(encoding="utf-8"))
        found = 100 * info["dev"][LOSS]
        before = read_scales(self._job.scales).get("wer")
        if before is not None and is_far_worse(found, before):
            log.warning(
                "%.2f %% of dev's words are wrong, and %.2f %% with the network that "
                "the training started from: it failed; try a smaller learning rate",
                found,
                before,
            )


def train_sequence(job: SequenceJob) -> None:
    """Train a network by a lattice criterion, from a seed.

    Dev is decoded at the end of each epoch; with `training.final: best` the model is
    the epoch with the fewest word errors there.

    Raises:
        UserError: inputs that do not fit each other; too many utterances without
            lattice; a training that fails.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    run_training(SequenceTask, job)


def _criterion(job: SequenceJob, seed: AcousticNetwork) -> SequenceCriterion:
    """Make the criterion that is trained by."""
    options = job.options
    files = SequenceFiles(
        frames_dir=job.frames_dir,
        lang_dir=job.lang_dir,
        model_dir=job.parent_dir,
        graph=job.denominator,
        alignments=job.alignments,
        training_graphs=job.training_graphs_dir,
    )
    criterion = make_criterion(
        options.criterion,
        load_transitions(job.parent_dir)[1],
        Lang.load(job.lang_dir).silence_phones,
        seed=options.seed,
    )
    return SequenceCriterion(
        load_generator(
            files,
            criterion,
            options.sequence,
            options.graph,
            subsampling=seed.network.subsampling,
        ),
        seed.scaled_log_priors(options.sequence.prior_scale),
        options.sequence,
        ce_weight=options.criterion.ce_weight,
        l2=options.criterion.l2,
        teacher=_teacher(job, seed),
        threads=job.rank_threads,
    )


def _scales(job: SequenceJob, seed: AcousticNetwork) -> Scales:
    """Return what weighs acoustics and graphs in criterion, search and alignments."""
    options = job.options
    search, aligned = options.sequence.lattices, options.sequence.alignments
    scales: Scales = {
        **options.criterion.scales,
        "prior_scale": _prior_scale(job, seed),
        "search.acoustic_scale": search.acoustic_scale,
    }
    if aligned.source == "on_the_fly":
        scales["alignments.acoustic_scale"] = aligned.acoustic_scale
    return scales | {f"denominator.{k}": v for k, v in options.graph.values().items()}


def _prior_scale(job: SequenceJob, seed: AcousticNetwork) -> float:
    """Return the factor of the log priors that are taken off the network's scores."""
    try:
        return seed.prior_scale(job.options.sequence.prior_scale)
    except UserError as error:
        raise error.at(file=job.parent_dir) from None


def _teacher(job: SequenceJob, seed: AcousticNetwork) -> Teacher | None:
    """Return the log-likelihoods of the network that is learnt from, if there is one.

    Raises:
        UserError: it reads other features, or has other classes.
    """
    if job.teacher_dir is None:
        return None
    device = next(seed.network.parameters()).device
    teacher = load_model(job.teacher_dir, device)
    for what, expected, found in (
        ("normalization", seed.normalizer.to_meta(), teacher.normalizer.to_meta()),
        ("classes", seed.meta["classes"], teacher.meta["classes"]),
        ("features per frame", seed.network.dim_in, teacher.network.dim_in),
        ("subsampling", seed.network.subsampling, teacher.network.subsampling),
    ):
        if found != expected:
            raise UserError(
                f"its {what} differ from those of {job.parent_dir}",
                file=job.teacher_dir,
                remedy="train teacher and parent on the same features and alignments",
            )
    scale = job.options.sequence.prior_scale
    return lambda features, lengths: teacher.log_likelihoods(
        features, lengths, prior_scale=scale
    )[0]


def _dev_criterion(job: SequenceJob, seed: AcousticNetwork) -> Criterion:
    """Return the word errors of dev."""
    options = job.options
    _, transitions = load_transitions(job.parent_dir)
    search = options.sequence.dev_search
    if not seed.gives_log_likelihoods:  # as decoding does
        scale = seed.lattice_scale * search.acoustic_scale
        search = search.replace(acoustic_scale=scale)
    return WordErrors(
        job.graph,
        transitions,
        Scorecard.of(
            job.dev_frames_dir,
            Lang.load(job.lang_dir),
            job.scales,
            options.score,
            lattice_scale=seed.lattice_scale,
        ),
        seed.scaled_log_priors(options.sequence.prior_scale),
        options=search,
        threads=job.rank_threads,
    )
