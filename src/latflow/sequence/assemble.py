"""A lattice criterion from files and options, for the trainer.

Public: `SequenceFiles`, `assemble`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from latflow.decode.search_graph import GraphFile
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.composition import load_model
from latflow.lang.directory import Lang
from latflow.sequence.aligner import Aligner
from latflow.sequence.alignment_archive import AlignmentArchive
from latflow.sequence.alignments import AlignmentSource
from latflow.sequence.criterion import LatticeCriterion, LossWeights
from latflow.sequence.generation import Generator, LatticeMaker, Objective
from latflow.sequence.policy import BeamPolicy, FailureBound
from latflow.sequence.transcripts import TranscriptGraphs, Transcripts


@dataclass(frozen=True)
class SequenceFiles:
    """Where the things lie that a lattice criterion needs; all are mapped or small.

    Attributes:
        frames_dirs: features of all utterances trained or tested on.
        lang_dir: the lang directory.
        model_dir: folder with the tree and `final.mdl` of the system whose pdfs the
            network scores.
        graph: the denominator, see `latflow.sequence.denominator`.
        alignments: archives `ali.ark`; may be none where alignments are made on the
            fly.
        training_graphs: see `latflow.sequence.transcripts`; needed for alignments on
            the fly.
    """

    frames_dirs: Sequence[str | Path]
    lang_dir: str | Path
    model_dir: str | Path
    graph: str | Path
    alignments: Sequence[str | Path] = ()
    training_graphs: str | Path | None = None


def assemble(
    files: SequenceFiles,
    objective: Callable[[TransitionModel, Lang], Objective],
    options: Mapping[str, Any],
    *,
    log_priors: Tensor | np.ndarray | None,
    weights: LossWeights,
    output: str | None = None,
    threads: int = 1,
) -> LatticeCriterion:
    """Make the criterion.

    Args:
        files: see there.
        objective: makes the criterion of an utterance, for a model and its language.
        options: `workflow/schemas/sequence.yaml`, filled.
        log_priors: float32 [P] of the seed network.
        weights: of the parts of the loss.
        output: the network's output that scores pdfs; None = its first.
        threads: utterances worked on at a time by this rank.

    Raises:
        UserError: a file is missing or garbled, files do not belong together, or
            alignments on the fly are asked for without training graphs.
    """
    lang = Lang.load(files.lang_dir)
    _, model = load_model(files.model_dir)
    graph = GraphFile(Graph.load(files.graph), files.graph)
    lattices = options["lattices"]
    generator = Generator(
        LatticeMaker(graph, model, lattices),
        _alignments(files, model, options["alignments"]),
        objective(model, lang),
        model,
        Transcripts(files.frames_dirs, lang),
        oracle_every=lattices["oracle_every"],
    )
    return LatticeCriterion(
        generator,
        log_priors,
        output=output,
        weights=weights,
        beam=BeamPolicy.from_options(lattices),
        bound=FailureBound(lattices["max_failed_fraction"]),
        threads=threads,
        depth=options["depth"],
    )


def _alignments(
    files: SequenceFiles, model: TransitionModel, options: Mapping[str, Any]
) -> AlignmentSource:
    """Static alignments, or those made on the fly."""
    static = AlignmentArchive(*files.alignments) if files.alignments else None
    if options["source"] == "static":
        if static is None:
            raise UserError(
                "static alignments are asked for, but none are given",
                remedy="align the training set, or set alignments.source to on_the_fly",
            )
        return AlignmentSource(model, static)
    if files.training_graphs is None:
        raise UserError(
            "alignments on the fly are asked for, but there are no training graphs",
            remedy="compile them first",
        )
    aligner = Aligner(
        model,
        acoustic_scale=options["acoustic_scale"],
        beam=options["beam"],
        retry_beam=options["retry_beam"],
    )
    return AlignmentSource(
        model,
        static,
        aligner=aligner,
        graphs=TranscriptGraphs(files.training_graphs),
        fall_back=options["on_failure"] == "static",
    )
