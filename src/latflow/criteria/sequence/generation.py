"""The work on one utterance: alignment, lattice, criterion.

Runs in a thread, one utterance a thread; kernels release the interpreter's lock. The
result depends on nothing but the utterance's scores and the beams, so neither threads
nor batch mates nor ranks change it.

When something fails, this is done, and noted in the ledger: a search that ends in no
final state is repeated with a wider beam, and then its incomplete paths are taken or
the utterance is skipped (`lattices.on_no_final`); an utterance that cannot be aligned
takes its static alignment, or is skipped. A skipped utterance adds nothing, neither
value nor frames.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from latflow.align.aligner import Aligner, Alignment, AlignmentFailure
from latflow.align.corpus import AlignmentArchive
from latflow.align.graphs import TrainingGraphs, Transcripts
from latflow.criteria.arc_scores import frames_in_lattice
from latflow.criteria.criterion import LatticeCriterion, Utterance
from latflow.criteria.sequence.journal import Drift, UtteranceResult
from latflow.criteria.sequence.options import (
    AlignmentOptions,
    DevSearchOptions,
    LatticeSearchOptions,
    SequenceOptions,
)
from latflow.decode.decoder import Attempt, LatticeDecoder, RetryPolicy
from latflow.decode.search_graph import ArcArrays, GraphFile
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.lattice import Lattice
from latflow.lattice.oracle import oracle


@dataclass(frozen=True)
class SequenceFiles:
    """Paths of the files that lattices on the fly need; all are mapped or small.

    Attributes:
        frames_dir: features of all utterances trained on.
        lang_dir: the lang directory.
        model_dir: folder with the tree and `final.mdl` of the system whose pdfs the
            network scores.
        graph: the denominator, see `latflow.graphs.denominator`.
        alignments: archive `ali.ark`; None where there are those on the fly alone.
        training_graphs: see `latflow.align.graphs`; needed for alignments on
            the fly.
    """

    frames_dir: str | Path
    lang_dir: str | Path
    model_dir: str | Path
    graph: str | Path
    alignments: str | Path | None = None
    training_graphs: str | Path | None = None


class AlignmentSource:
    """Gives each utterance the alignment to train with; safe to share.

    Args:
        model: of the alignments.
        static: alignments made before training; None if there are none.
        aligner: aligns on the fly; None takes static alignments.
        graphs: training graphs for the aligner.
        fall_back: an utterance that cannot be aligned takes its static alignment, if
            it has one.
        subsampling: frames of the features for one of the network's output. Static
            alignments may have either rate; of one at the features' rate every s-th
            frame is taken, as cross-entropy training takes it.

    Raises:
        ValueError: there are neither static alignments nor an aligner with graphs.
    """

    def __init__(
        self,
        model: TransitionModel,
        static: AlignmentArchive | None,
        *,
        aligner: Aligner | None = None,
        graphs: TrainingGraphs | None = None,
        fall_back: bool = True,
        subsampling: int = 1,
    ) -> None:
        if (static if aligner is None else graphs) is None:
            raise ValueError("need static alignments, or an aligner and its graphs")
        self._static = static
        self._aligner = aligner
        self._graphs = graphs
        self._fall_back = fall_back
        self._subsampling = subsampling
        self._drift = Drift(model)  # for its tables; nothing is added to it

    def align(
        self, result: UtteranceResult, words: np.ndarray, log_likes: np.ndarray
    ) -> np.ndarray | None:
        """Return the alignment of an utterance, int32[T]; None if it is skipped.

        Args:
            result: of the utterance; gets retries, fall-backs and failures, and
                the drift where there are two alignments.
            words: word ids of the transcript, int32[N].
            log_likes: [T, P], unscaled.

        Raises:
            UserError: the static alignment has another number of frames.
        """
        static = self._static_alignment(result.utterance, len(log_likes))
        if self._aligner is None:
            if static is None:
                result.skip("no static alignment")
            return static
        attempt = self._fresh_alignment(self._aligner, words, log_likes)
        if isinstance(attempt, AlignmentFailure):
            return self._without_alignment(result, attempt, static)
        if attempt.beam != self._aligner.beams[0]:
            result.add("retried", 1.0)
            result.note("aligned with the retry beam", "retried", attempt.beam)
        fresh = attempt.transition_ids
        if static is not None:
            result.drift = self._drift.compare(static, fresh)
            result.add("aligned_frames", float(len(fresh)))
            result.add("drifted_frames", float(result.drift[:, 1].sum()))
        return fresh

    def _static_alignment(self, utterance: str, num_frames: int) -> np.ndarray | None:
        """Return the alignment made before training, if there is one."""
        alignment = None if self._static is None else self._static.get(utterance)
        if alignment is None or len(alignment) == num_frames:
            return alignment
        subsampled = alignment[:: self._subsampling]
        if len(subsampled) != num_frames:
            raise UserError(
                f"its alignment has {len(alignment)} frames, the network's output "
                f"{num_frames}",
                utterance=utterance,
                remedy="lattice criteria need whole utterances, and alignments of the "
                "same features or made by a network of the same frame rate",
            )
        return subsampled

    def _fresh_alignment(
        self, aligner: Aligner, words: np.ndarray, log_likes: np.ndarray
    ) -> Alignment | AlignmentFailure:
        """Align with the network's scores."""
        assert self._graphs is not None
        graph = self._graphs.get(words)
        if isinstance(graph, str):
            return AlignmentFailure(graph, 0.0)
        return aligner.align(graph, log_likes)

    def _without_alignment(
        self,
        result: UtteranceResult,
        failure: AlignmentFailure,
        static: np.ndarray | None,
    ) -> np.ndarray | None:
        """Return the static alignment where no other could be made, or skip."""
        if static is None or not self._fall_back:
            result.skip(failure.reason, failure.beam)
            return None
        result.add("fallbacks", 1.0)
        reason = f"{failure.reason}; its static alignment is taken"
        result.note(reason, "noted", failure.beam)
        return static


class LatticeMaker:
    """Makes lattices with a beam that may change from step to step.

    Args:
        graph: the denominator; a `GraphFile` is shared by all processes.
        model: its pdfs are the columns of the scores.
        options: beams and limits of the search.
        allow_partial: take incomplete paths where no search ends in a final state.
    """

    def __init__(
        self,
        graph: ArcArrays | GraphFile,
        model: TransitionModel,
        options: LatticeSearchOptions | DevSearchOptions,
        *,
        allow_partial: bool,
    ) -> None:
        self._graph, self._pdf = graph, model.pdf
        self._options = options
        beam, factor = options.beam, options.retry_beam_factor
        self._policy = RetryPolicy(
            (beam, beam * factor) if factor > 1 else (beam,),
            allow_partial=allow_partial,
        )
        self._lock = Lock()
        self._decoder: tuple[float, LatticeDecoder] | None = None

    def make(
        self, utterance: str, log_likes: np.ndarray, lattice_beam: float
    ) -> Attempt:
        """Search for the lattice of an utterance.

        Args:
            utterance: for messages.
            log_likes: [T, P], unscaled.
            lattice_beam: paths costing more than the best one plus this are left out.
        """
        decoder, scale = self._decoder_of(lattice_beam), self._options.acoustic_scale
        scores = np.ascontiguousarray(log_likes, np.float32)
        return self._policy.run(
            lambda beam: decoder.decode(
                scores, acoustic_scale=scale, utterance=utterance, beam=beam
            ),
            utterance=utterance,
        )

    def _decoder_of(self, lattice_beam: float) -> LatticeDecoder:
        """Return the decoder with a lattice beam; the last one is kept."""
        with self._lock:
            if self._decoder is None or self._decoder[0] != lattice_beam:
                decoder = LatticeDecoder(
                    self._graph,
                    self._pdf,
                    beam=self._options.beam,
                    lattice_beam=lattice_beam,
                    max_active=self._options.max_active,
                    min_active=self._options.min_active,
                )
                self._decoder = (lattice_beam, decoder)
            return self._decoder[1]


class Generator:
    """Does all the work on an utterance, from scores to the gradient.

    Args:
        maker: makes lattices.
        alignments: gives the reference alignment.
        criterion: of an utterance.
        model: what transition-ids mean.
        transcripts: words of the utterances.
        oracle_every: every n-th utterance, always the same ones, has the oracle
            error rate of its lattice measured; 0 = none.
    """

    def __init__(
        self,
        maker: LatticeMaker,
        alignments: AlignmentSource,
        criterion: LatticeCriterion,
        model: TransitionModel,
        transcripts: Transcripts,
        *,
        oracle_every: int = 0,
    ) -> None:
        self.criterion = criterion
        self.model = model
        self._maker = maker
        self._alignments = alignments
        self._transcripts = transcripts
        self._oracle_every = oracle_every

    def evaluate(
        self,
        utterance: str,
        log_likes: np.ndarray,
        gradient: np.ndarray,
        *,
        lattice_beam: float,
        teacher: np.ndarray | None = None,
    ) -> UtteranceResult:
        """Align, search, and compute the criterion.

        Frames of NaN give an objective of NaN, for the trainer's guard to report.

        Args:
            utterance: its id.
            log_likes: [T, P], unscaled; float32 or float64.
            gradient: the same shape and type, zeros; receives the derivative of the
                objective. Left as it is if the utterance is skipped.
            lattice_beam: of the lattice.
            teacher: log-likelihoods of a teacher, [T, P]; the lattice is then made with
                them.

        Raises:
            UserError: the utterance has no transcript, its alignment has another
                number of frames than the scores, or the criterion fails.
        """
        result = UtteranceResult(utterance)
        if np.isnan(log_likes[:, 0]).any():  # the softmax spreads it over the frame
            result.num_frames, result.objective = len(log_likes), float("nan")
            return result
        words = self._transcripts.words(utterance)
        with result.timed("seconds_align"):
            alignment = self._alignments.align(result, words, log_likes)
        if alignment is None:
            return result
        with result.timed("seconds_lattice"):
            guide = log_likes if teacher is None else teacher
            lattice = self._search(result, guide, lattice_beam)
        if lattice is None:
            return result
        with result.timed("seconds_criterion"):
            given = Utterance(log_likes, lattice, alignment, words, teacher)
            try:
                evaluation = self.criterion.evaluate(given, gradient)
            except UserError as error:
                raise error.at(utterance=utterance) from error
            result.objective = evaluation.objective
            result.num_frames = evaluation.num_frames
            result.sums.update(evaluation.statistics)
            result.alignment = alignment
            self._measure(result, lattice, alignment, words)
        result.add("lattice_beam", lattice_beam * len(log_likes))
        return result

    def _search(
        self, result: UtteranceResult, log_likes: np.ndarray, lattice_beam: float
    ) -> Lattice | None:
        """Return the lattice; None if the utterance is skipped."""
        attempt = self._maker.make(result.utterance, log_likes, lattice_beam)
        if attempt.was_retried:
            result.add("retried", 1.0)
        if attempt.decoded is None:
            reason = attempt.error.what if attempt.error else "no lattice"
            result.skip(reason, attempt.beam)
            return None
        if attempt.is_partial:
            result.add("partial", 1.0)
            reason = "the lattice reaches no final state"
            result.note(reason, "partial", attempt.beam)
        elif attempt.was_retried:
            reason = "no complete path at first, searched again"
            result.note(reason, "retried", attempt.beam)
        return attempt.decoded.lattice

    def _measure(
        self,
        result: UtteranceResult,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
    ) -> None:
        """Measure depth and coverage; oracle errors, if the utterance is sampled."""
        result.add("depth", float(np.count_nonzero(lattice.transition_id)))
        held = frames_in_lattice(lattice, self.model.pdf, alignment)
        result.add("numerator_in_lattice", float(held.sum()))
        key = zlib.crc32(result.utterance.encode())
        if self._oracle_every and key % self._oracle_every == 0:
            counts = oracle(lattice, words).counts
            result.add("oracle_errors", float(counts.errors))
            result.add("oracle_words", float(len(words)))


def load_generator(
    files: SequenceFiles,
    criterion: LatticeCriterion,
    options: SequenceOptions,
    scales: GraphOptions,
    *,
    subsampling: int = 1,
) -> Generator:
    """Make what does the work on an utterance.

    Args:
        files: see there.
        criterion: of an utterance, for the model and language of the files.
        options: section `sequence` of a sequence-trained system.
        scales: of the transition probabilities, for alignments on the fly.
        subsampling: frames of the features for one of the network's output.

    Raises:
        UserError: a file is missing or garbled, files do not belong together, or
            alignments on the fly are asked for without training graphs.
    """
    lang, (_, model) = Lang.load(files.lang_dir), load_model(files.model_dir)
    graph, lattices = GraphFile(Graph.load(files.graph), files.graph), options.lattices
    allow_partial = lattices.on_no_final == "partial"
    return Generator(
        LatticeMaker(graph, model, lattices, allow_partial=allow_partial),
        _alignments(files, lang, model, options.alignments, scales, subsampling),
        criterion,
        model,
        Transcripts([files.frames_dir], lang),
        oracle_every=lattices.oracle_every,
    )


def _alignments(
    files: SequenceFiles,
    lang: Lang,
    model: TransitionModel,
    options: AlignmentOptions,
    scales: GraphOptions,
    subsampling: int,
) -> AlignmentSource:
    """Open static alignments, or make those on the fly."""
    static = None if files.alignments is None else AlignmentArchive(files.alignments)
    if options.source == "static":
        if static is None:
            raise UserError(
                "static alignments are asked for, but none are given",
                remedy="align the training set, or set alignments.source to on_the_fly",
            )
        return AlignmentSource(model, static, subsampling=subsampling)
    if files.training_graphs is None:
        raise UserError(
            "alignments on the fly are asked for, but there are no training graphs",
            remedy="compile them first",
        )
    silence = [lang.optional_silence]
    aligner = Aligner(model, options, scales, silence_phones=silence)
    return AlignmentSource(
        model,
        static,
        aligner=aligner,
        graphs=TrainingGraphs.load(files.training_graphs),
        fall_back=options.on_failure == "static",
        subsampling=subsampling,
    )
