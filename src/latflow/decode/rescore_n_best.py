"""Stages that rescore lattices with a neural language model mixed with an n-gram.

The history of a neural model is the whole sentence, so that states of a lattice cannot
be kept apart by it as by the histories of an n-gram. In its place the n best word
sequences of each lattice are rescored, by the scale and the word insertion penalty that
dev chose for the lattice as it is: the lattice is determinized; of each of its n best
sequences the costs of the grammar that it was decoded with are taken out, and those of
the mixture put in,

    -ln(weight p_neural(w | h) + (1 - weight) p_grammar(w | h)),

summed over the words and the sentence end. A word that the network lacks has the second
term alone. What is written is a lattice with one linear path a sequence, with the times
that it had. The network scores the sequences of some utterances together; memory holds
the models and these.

`mix_language_models` chooses the weight, and writes a JSON file: `weight`, `chosen_on`
(`dev`, or `recipe` where the weight is given), and for the models `neural`, `ngram` and
`mixture` the `perplexity` of the transcripts of dev, with `num_words` and `num_oov`.
`rescore_n_best` writes the files of `latflow.decode.rescore`; `cpu_seconds` are without
what the network takes, which is in `wall_seconds`.

Source: Mikolov et al. 2010, "Recurrent neural network based language model" (n-best
lists rescored, the mixture); Kaldi `steps/rnnlmrescore.sh`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from latflow.decode.rescore import (
    Rescored,
    RescoreJob,
    RescoreTotals,
    arc_frames,
    write_rescored,
)
from latflow.errors import UserError
from latflow.files import read_json, write_json
from latflow.fst.graph import Graph
from latflow.lang.arpa import read_arpa
from latflow.lang.directory import read_symbols
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram_counts import transcript_sentences
from latflow.lattice.best_path import BestPath, Scales, linear_paths
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.n_best import n_best as best_sequences
from latflow.lattice.prune import prune
from latflow.nnet.language_model import (
    Mixture,
    NeuralLm,
    mixed,
    perplexities,
    weight_on,
)
from latflow.nnet.model_dir import choose_device
from latflow.parallel import in_order, worker_pool
from latflow.scoring.transcripts import names_of
from latflow.scoring.tune import read_scales

_UTTERANCES = 32  # whose sequences the network scores together
_MAX_WEIGHT = 0.99  # of the network, where dev chooses: see `mix_language_models`


def mix_language_models(
    network_dir: Path,
    arpa: Path,
    cuts: Path,
    mixture: Path,
    *,
    weight: float | None = None,
    device: str = "auto",
) -> None:
    """Choose the weight of a neural model beside an n-gram model (stage).

    A weight that is chosen is at most 0.99: words that the network lacks, which do not
    count in the choice, have the share of the n-gram model alone.

    Args:
        network_dir: folder of the neural model.
        arpa: the n-gram model.
        cuts: `cuts.jsonl.gz` of dev, for its transcripts.
        mixture: JSON file to write, see the module.
        weight: of the neural model; None for that which makes the transcripts most
            probable.
        device: of the network: `cpu`, `cuda` or `auto`.

    Raises:
        UserError: a file is missing or faulty; no transcript has a word.
    """
    neural = NeuralLm.load(network_dir, choose_device(device))
    models = Mixture(neural, read_arpa(arpa))
    chosen = weight
    if chosen is None:
        try:
            chosen = min(weight_on(models, transcript_sentences([cuts])), _MAX_WEIGHT)
        except UserError as error:
            remedy = "check the transcripts of dev, or name the weight in the recipe"
            raise error.at(file=cuts, remedy=remedy) from None
    scores = perplexities(models, transcript_sentences([cuts]), chosen)
    counted = scores["mixture"]
    mixture_values = {
        "weight": chosen,
        "chosen_on": "dev" if weight is None else "recipe",
        "perplexity": {name: score.perplexity for name, score in scores.items()},
        "num_words": counted.num_words,
        "num_oov": counted.num_oov,
    }
    write_json(mixture, mixture_values)


def rescore_n_best(
    job: RescoreJob,
    network_dir: Path,
    mixture: Path,
    *,
    scales: Path,
    n_best: int,
    device: str = "auto",
) -> None:
    """Give the n best word sequences of a set's lattices the costs of a mixture.

    Args:
        job: the lattices; their grammar is also the n-gram of the mixture.
        network_dir: folder of the neural model.
        mixture: what `mix_language_models` wrote.
        scales: `scales.json` of the lattices before they are rescored: their n best
            sequences are those at its `lmwt` and `wip`.
        n_best: word sequences of a lattice, at most.
        device: of the network: `cpu`, `cuda` or `auto`.

    Raises:
        UserError: a file is missing or faulty; too many utterances are skipped.
    """
    started, before = time.perf_counter(), time.process_time()
    word_ids = read_symbols(Path(job.lang_dir, "words.txt"))
    old = LmTrie.from_graph(Graph.load(job.grammar), word_ids, file=job.grammar)
    neural = NeuralLm.load(network_dir, choose_device(device))
    what, remedy = "a mixture of language models", "choose its weight again"
    weight = read_json(mixture, _weight, what, remedy)
    chosen = read_scales(scales)
    at = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
    totals = RescoreTotals(started, time.process_time() - before)

    def work(item: tuple[str, Lattice]) -> _Sequences:
        return _Sequences.of(*item, old, n_best, job.beam, at)

    with worker_pool(job.threads) as pool:
        found = in_order(pool, work, read_lattices(job.lattices), ahead=2 * job.threads)
        write_rescored(
            _rescored(found, neural, weight, job.beam, at.acoustic_scale),
            job.out_dir,
            totals,
            stage="rescore_n_best",
            max_skipped_fraction=job.max_skipped_fraction,
            settings={
                "threads": job.threads,
                "beam": job.beam,
                "acoustic_scale": at.acoustic_scale,
                "word_insertion_penalty": at.word_insertion_penalty,
                "n_best": n_best,
                "weight": weight,
            },
        )


@dataclass(frozen=True, eq=False)
class _Sequences:
    """The n best word sequences of a lattice.

    Attributes:
        paths: the best path of each.
        words: of each, by name.
        old_costs: of the grammar, of each: float64[words + 1], with the sentence end.
        error: why there are none.
        notes: for the ledger.
        frames: of the utterance.
        arcs: arcs over frames, before and determinized.
        seconds: processor time.
    """

    utterance: str
    paths: list[BestPath]
    words: list[list[str]]
    old_costs: list[np.ndarray]
    error: UserError | None
    frames: int
    arcs: tuple[int, int]
    seconds: float
    notes: list[str]

    @classmethod
    def of(
        cls,
        utterance: str,
        lattice: Lattice,
        old: LmTrie,
        count: int,
        beam: float,
        scales: Scales,
    ) -> _Sequences:
        """Find them, and what they cost under the grammar."""
        started = time.thread_time()
        paths: list[BestPath] = []
        words: list[list[str]] = []
        costs: list[np.ndarray] = []
        error, size = None, 0
        notes: list[str] = []
        scale = scales.acoustic_scale
        try:
            small = determinize(
                lattice, beam=beam, acoustic_scale=scale, note=notes.append
            )
            size = arc_frames(small)
            for path in best_sequences(small, count, **scales._asdict()):
                found = old.sentence_costs(path.words)
                if np.isfinite(found).all():
                    words.append(names_of(path.words, old.names))
                    paths.append(path)
                    costs.append(found)
            if not paths:
                raise UserError(
                    "no path of the lattice is a sentence of its language model",
                    remedy="take the grammar that it was decoded with",
                )
        except UserError as caught:
            error, paths, words, costs = caught, [], [], []
        return cls(
            utterance,
            paths,
            words,
            costs,
            error,
            lattice.num_frames,
            (int(np.count_nonzero(lattice.transition_id)), size),
            time.thread_time() - started,
            notes,
        )


def _weight(mixture: Mapping[str, Any]) -> float:
    weight = float(mixture["weight"])
    if not 0 <= weight <= 1:
        raise ValueError(f"weight {weight}")
    return weight


def _rescored(
    sequences: Iterator[_Sequences],
    neural: NeuralLm,
    weight: float,
    beam: float,
    acoustic_scale: float,
) -> Iterator[Rescored]:
    """Yield the lattices with the costs of the mixture."""
    while batch := list(islice(sequences, _UTTERANCES)):
        log_probs = iter(neural.log_probs([w for one in batch for w in one.words]))
        for one in batch:
            if one.error is not None:
                arcs = *one.arcs, 0
                yield Rescored(
                    one.utterance, None, one.error, one.frames, arcs, one.seconds
                )
                continue
            started = time.thread_time()
            costs = [
                path.graph_cost + _change(next(log_probs), old, weight)
                for path, old in zip(one.paths, one.old_costs, strict=True)
            ]
            whole = linear_paths(one.paths, costs)
            lattice = prune(whole, beam, acoustic_scale=acoustic_scale)
            seconds = one.seconds + time.thread_time() - started
            arcs = *one.arcs, arc_frames(lattice)
            yield Rescored(
                one.utterance, lattice, None, one.frames, arcs, seconds, one.notes
            )


def _change(log_probs: np.ndarray, old: np.ndarray, weight: float) -> float:
    """Return the cost of a sentence under the mixture less that under the grammar.

    Args:
        log_probs: float64[N + 1], ln p of the network; NaN for words that it lacks.
        old: float64[N + 1], -ln p of the grammar.
        weight: of the network.
    """
    known = np.where(np.isnan(log_probs), -np.inf, log_probs)
    return float(-(mixed(np.stack([known, -old]), weight) + old).sum())
