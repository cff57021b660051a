"""Stage that aligns a split with a network.

Alignments have a transition-id for each frame of the network's output; where it
subsamples, that is one for every s frames of the features.

Source: Kaldi `steps/nnet2/align.sh`, `bin/align-compiled-mapped.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from latflow.align.aligner import Aligner, Alignment, AlignmentFailure
from latflow.align.corpus import AlignmentSummary, Split, align_all
from latflow.decode.network_scorer import NetworkScorer
from latflow.decode.options import AlignNetworkOptions
from latflow.decode.turns import Turn
from latflow.features.source import open_frames
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.parallel import worker_pool
from latflow.parts import SetJob, utterances_of


def align_network(
    job: SetJob, *, options: AlignNetworkOptions, graph: GraphOptions
) -> None:
    """Align all utterances of a split with a network (stage).

    Args:
        job: the set and the network, whose folder has `tree`, too.
        options: of the search, with the factor of the priors and the device.
        graph: scales of the transition probabilities.

    Raises:
        UserError: network, language and frames do not fit, or too many utterances fail.
    """
    store = open_frames(job.frames_dir, threads=job.threads)
    scorer = NetworkScorer.load(store, job.model_dir, options.scores)
    utterances = utterances_of(job.part, store.begin).tolist()
    split = Split(
        Lang.load(job.lang_dir),
        job.model_dir.name,
        job.out_dir,
        len(store),
        job.max_skipped_fraction,
        store.frame_shift * scorer.subsampling,
    )
    tree, transitions = load_model(job.model_dir)
    compiler = TrainingGraphCompiler(split.lang, tree, transitions)
    silence = [split.lang.optional_silence]

    def graph_of(number: int) -> Graph | str:
        words = split.lang.words_to_ids(store.texts[number])
        return compiler.graph_or_reason(words)

    aligner = Aligner(transitions, options, graph, silence_phones=silence)
    with worker_pool(job.threads) as pool:
        alignments = align_scored(
            aligner, scorer, utterances, graph_of, pool, ahead=2 * job.threads
        )
        names = [store.utt_ids[u] for u in utterances]
        named = zip(names, alignments, strict=True)
        split.write(named, AlignmentSummary(options), transitions)


def align_scored(
    aligner: Aligner,
    scorer: NetworkScorer,
    utterances: Sequence[int],
    graph_of: Callable[[int], Graph | str],
    pool: Executor,
    *,
    ahead: int,
    fault_of: Callable[[int], str | None] = lambda _: None,
) -> Iterator[Alignment | AlignmentFailure]:
    """Yield the alignments of utterances by a network, in their order.

    Args:
        aligner: the system and its scales.
        scorer: the network; on a device it scores in batches.
        utterances: their numbers.
        graph_of: see `align_all`.
        ahead: likewise.
        fault_of: gives the reason why an utterance has no frames, once they were asked
            for.
    """

    def scores(turn: Turn) -> np.ndarray | str:
        (found,) = turn.log_likes()
        if fault := fault_of(turn.index):
            return fault
        return "scores that are not numbers" if np.isnan(found).any() else found

    turns = scorer.turns(utterances)
    return align_all(
        aligner, turns, lambda turn: graph_of(turn.index), scores, pool, ahead=ahead
    )
