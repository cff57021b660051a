"""What the commands `latflow lattice <verb>` do: what Kaldi's `lattice-*` programs do.

Each is a few lines over a function of this package; `latflow.lattice.command_io` has
what they share, `latflow.lattice.commands` their options. Lattices are streamed and
worked on by several threads.

Public: `ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.kaldi_io import read_int_vectors, write_int_vectors
from latflow.lang.directory import Lang, read_symbols
from latflow.lang.lm_trie import LmTrie
from latflow.lattice.best_path import best_path
from latflow.lattice.boost import boost
from latflow.lattice.command_io import (
    Arguments,
    each,
    emit,
    load_transitions,
    names_of,
    read_in_form,
    scales_of,
    text_of,
    write,
)
from latflow.lattice.compact import CompactLattice
from latflow.lattice.determinise import determinise
from latflow.lattice.forward_backward import forward_backward
from latflow.lattice.io import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.lattice.n_best import n_best
from latflow.lattice.oracle import Oracle, oracle
from latflow.lattice.posterior_io import write_posteriors
from latflow.lattice.posteriors import FramePosteriors, posteriors
from latflow.lattice.prune import depth_per_frame, prune
from latflow.lattice.rescore import rescore
from latflow.lattice.word_alignment import WordAligner
from latflow.scoring.alignment import ErrorCounts
from latflow.scoring.ctm import ctm_line, timed_words
from latflow.scoring.text import read_text, write_text


def _copy(arguments: Arguments) -> None:
    """Write what is read."""
    write(arguments, read_in_form(arguments))


def _info(arguments: Arguments) -> None:
    """Print a table with a line for each lattice, and their sums."""
    emit("utterance\tframes\tstates\tarcs\tdepth\n")
    total = np.zeros(4)
    for utterance, lattice in read_in_form(arguments):
        frames = lattice.num_frames
        sizes = frames, lattice.num_states, lattice.num_arcs
        emit("\t".join(map(str, (utterance, *sizes))) + f"\t{lattice.depth:.3f}\n")
        total += *sizes, lattice.depth * frames
    sums = "\t".join(f"{count:.0f}" for count in total[:3])
    emit(f"all\t{sums}\t{total[3] / max(total[0], 1):.3f}\n")


def _depth(arguments: Arguments) -> None:
    """Print a line of counts for each lattice."""
    for utterance, lattice in read_lattices(arguments.lattices):
        counts = depth_per_frame(lattice).tolist()
        emit(f"{utterance} {' '.join(map(str, counts))}\n")


def _best_path(arguments: Arguments) -> None:
    """Print `utterance words`; write alignments if asked for."""
    names, scales = names_of(arguments), scales_of(arguments)

    def work(_: str, lattice: Lattice) -> tuple[str, np.ndarray]:
        path = best_path(lattice, **scales)
        return text_of(path.words, names), path.transition_ids

    def printed() -> Iterator[tuple[str, np.ndarray]]:
        for utterance, (text, transition_ids) in each(arguments, work):
            emit(f"{utterance} {text}".rstrip() + "\n")
            yield utterance, transition_ids

    if arguments.alignments:
        write_int_vectors(arguments.alignments, printed())
        return
    for _ in printed():
        pass


def _n_best(arguments: Arguments) -> None:
    """Print utterance, rank, graph cost, acoustic cost and words."""
    names, scales = names_of(arguments), scales_of(arguments)

    def work(utterance: str, lattice: Lattice) -> str:
        paths = n_best(lattice, arguments.n, **scales)
        return "".join(
            f"{utterance}\t{rank}\t{path.graph_cost:.5f}\t{path.acoustic_cost:.5f}\t"
            f"{text_of(path.words, names)}\n"
            for rank, path in enumerate(paths, 1)
        )

    emit("utterance\trank\tgraph_cost\tacoustic_cost\twords\n")
    for _, lines in each(arguments, work):
        emit(lines)


def _oracle(arguments: Arguments) -> None:
    """Print the error rate as Kaldi's compute-wer does."""
    word_ids, references = read_symbols(arguments.words), read_text(arguments.text)
    names, other = names_of(arguments), max(word_ids.values()) + 1
    ignore = [word_ids.get(word, other + 1) for word in arguments.ignore]

    def work(utterance: str, lattice: Lattice) -> Oracle:
        if utterance not in references:
            raise UserError(
                "a lattice without a reference", remedy=f"add it to {arguments.text}"
            )
        kept = [word for word in references[utterance] if word not in arguments.ignore]
        reference = [word_ids.get(word, other) for word in kept]
        return oracle(lattice, np.array(reference, np.int32), ignore=ignore)

    total, texts = ErrorCounts(), {}
    for utterance, found in each(arguments, work):
        total += found.counts
        texts[utterance] = text_of(found.words, names).split()
    emit(
        f"%WER {total.wer:.2f} [ {total.errors} / {total.words}, {total.ins} ins, "
        f"{total.del_} del, {total.sub} sub ]\n"
    )
    if arguments.out:
        write_text(arguments.out, texts)


def _mbr(arguments: Arguments) -> None:
    """Print `utterance words`, or lines of a CTM file."""
    if arguments.ctm and not arguments.model:
        raise UserError("a CTM file needs times of words", remedy="name the --model")
    lang, scales = Lang.load(arguments.lang), scales_of(arguments)
    align = None
    if arguments.model:
        align = WordAligner(load_transitions(arguments.model), lang)

    def work(utterance: str, lattice: CompactLattice) -> str:
        small = determinise(lattice, beam=arguments.beam, **scales)
        found = minimum_bayes_risk(
            align(small) if align else small,
            decode_mbr=not arguments.keep_best_path,
            **scales,
        )
        if not arguments.ctm:
            return f"{utterance} {text_of(found.words, lang.words)}".rstrip() + "\n"
        words = timed_words(
            utterance, found, lang.words, frame_shift=arguments.frame_shift
        )
        return "".join(map(ctm_line, words))

    for _, lines in each(arguments, work, compact=True):
        emit(lines)


def _prune(arguments: Arguments) -> None:
    """Write pruned lattices."""
    scales = scales_of(arguments)
    is_compact = arguments.form == "compact"

    def work(_: str, lattice: Any) -> Any:
        return prune(lattice, arguments.beam, **scales)

    write(arguments, each(arguments, work, compact=is_compact))


def _determinise(arguments: Arguments) -> None:
    """Write determinised lattices."""
    model = load_transitions(arguments.model) if arguments.model else None
    scales = scales_of(arguments)

    def work(_: str, lattice: Lattice) -> CompactLattice:
        return determinise(lattice, model, beam=arguments.beam, **scales)

    write(arguments, each(arguments, work))


def _boost(arguments: Arguments) -> None:
    """Write boosted lattices."""
    alignments = dict(read_int_vectors(arguments.alignments))
    boosted = partial(
        boost,
        model=load_transitions(arguments.model),
        b=arguments.b,
        silence_phones=Lang.load(arguments.lang).silence_phones,
        max_silence_error=arguments.max_silence_error,
    )

    def work(utterance: str, lattice: Lattice) -> Lattice:
        if utterance not in alignments:
            raise UserError(
                "a lattice without an alignment",
                remedy=f"align it, see {arguments.alignments}",
            )
        return boosted(lattice, alignments[utterance])

    write(arguments, each(arguments, work))


def _rescore(arguments: Arguments) -> None:
    """Write rescored lattices; not determinised."""
    word_ids = read_symbols(arguments.words)
    old = LmTrie.from_graph(Graph.load(arguments.old), word_ids, file=arguments.old)
    new = LmTrie.load(arguments.new, word_ids)
    is_compact = arguments.form == "compact"

    def work(_: str, lattice: Any) -> Any:
        return rescore(lattice, old, new, lm_scale=arguments.lm_scale)

    write(arguments, each(arguments, work, compact=is_compact))


def _pack_lm(arguments: Arguments) -> None:
    """Write a language model for `LmTrie.load`."""
    LmTrie.load(arguments.arpa, {}).save(arguments.out)


def _to_post(arguments: Arguments) -> None:
    """Write posteriors; print the mean log-likelihood."""
    model = load_transitions(arguments.pdfs_of) if arguments.pdfs_of else None
    scales = scales_of(arguments)
    total = np.zeros(2)

    def work(_: str, lattice: Lattice) -> tuple[FramePosteriors, float]:
        sums = forward_backward(lattice, **scales)
        found = posteriors(lattice, sums)
        if model is not None:
            found = found.to_pdfs(model)
        return found, sums.log_like

    def counted() -> Iterator[tuple[str, FramePosteriors]]:
        for utterance, (found, log_like) in each(arguments, work):
            total[:] += log_like, found.num_frames
            yield utterance, found

    write_posteriors(arguments.out, counted(), binary=not arguments.text)
    log_like, frames = total.tolist()
    mean = log_like / max(frames, 1)
    emit(f"log-likelihood {mean:.5f} a frame, {frames:.0f} frames\n")


ACTIONS: dict[str, Callable[[Arguments], None]] = {
    "copy": _copy,
    "info": _info,
    "depth": _depth,
    "best-path": _best_path,
    "n-best": _n_best,
    "oracle": _oracle,
    "mbr": _mbr,
    "prune": _prune,
    "determinise": _determinise,
    "boost": _boost,
    "rescore": _rescore,
    "pack-lm": _pack_lm,
    "to-post": _to_post,
}
