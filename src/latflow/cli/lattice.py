"""The commands `latflow lattice <verb>`: what Kaldi's `lattice-*` programs do.

Each is a few lines over a function of `latflow.lattice`. Lattices are streamed and
worked on by several threads.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from latflow.cli.commands import Action, Arguments, Group, Option, flag, option
from latflow.errors import UserError

log = logging.getLogger(__name__)

COMMANDS = Group("lattice", "Read, measure, change and decode lattices.")


def _verb(example: str, *options: Option) -> Callable[[Action], Action]:
    """Add a command, named as in the example."""
    name = example.split(maxsplit=1)[0]
    return COMMANDS.command(name, *options, example=f"lattice {example}")


_ARCHIVE = option("lattices", "archive, binary or text, .gz or not; or an scp file")
_IN = (_ARCHIVE, option("--threads", "lattices at a time", 2))
_FORM = option(
    "--form",
    "an arc for each word with its transition-ids, or for each transition-id",
    "compact",
    choices=("compact", "raw"),
)
_TEXT = flag("--text", "write Kaldi's text form")
_OUT = (
    option("out", "archive to write, gzipped if it ends in .gz; - to print as text"),
    *(_FORM, _TEXT),
    option("--scp", "scp file of the archive to write too"),
)
_SCALES = (
    option("--lm-scale", "factor on graph costs", 1.0),
    option("--acoustic-scale", "factor on acoustic costs, about 1/LMWT", 1.0),
)
_PENALTY = option("--word-insertion-penalty", "cost of a word", 0.0)
_WORDS = option("--words", "words.txt; without it words are numbers")
_BEAM = option("--beam", "on scaled costs", 10.0)


def _scales(arguments: Arguments) -> dict[str, Any]:
    """Return the scales as arguments of functions."""
    names = ("lm_scale", "acoustic_scale", "word_insertion_penalty")
    return {name: value for name, value in vars(arguments).items() if name in names}


def _is_compact(arguments: Arguments) -> bool:
    """Return whether compact lattices are asked for."""
    return arguments.form == "compact"


def _read(arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """Yield (utterance, lattice), compact or raw as the option `form` says."""
    from latflow.lattice.io.archives import read_compact_lattices, read_lattices

    read = read_compact_lattices if _is_compact(arguments) else read_lattices
    return read(arguments.lattices)


def _each(
    arguments: Arguments, work: Callable[[str, Any], Any], *, compact: bool = False
) -> AbstractContextManager[Iterator[tuple[str, Any]]]:
    """Open (utterance, work(utterance, lattice)) of each lattice, in order."""
    from latflow.lattice.io.archives import map_lattices

    path, threads = arguments.lattices, arguments.threads
    return map_lattices(path, work, threads=threads, compact=compact)


def _print_each(
    arguments: Arguments, work: Callable[[str, Any], str], *, compact: bool = False
) -> None:
    """Print the text that `work` makes of each lattice; see `_each`."""
    with _each(arguments, work, compact=compact) as texts:
        for _, text in texts:
            sys.stdout.write(text)


def _write_each(
    arguments: Arguments,
    work: Callable[[str, Any], Any],
    *,
    compact: bool = False,
) -> None:
    """Write the lattice that `work` makes of each, if any; see `_each` and `_write`."""
    with _each(arguments, work, compact=compact) as lattices:
        _write(arguments, (item for item in lattices if item[1] is not None))


def _determinized(utterance: str, lattice: Any, *args: Any, **options: Any) -> Any:
    """Determinize a lattice; one that is too large is logged, and gives None."""
    from latflow.lattice.determinize.pruned import TooLargeError, determinize

    note = partial(log.warning, "%s: %s", utterance)
    try:
        return determinize(lattice, *args, note=note, **options)
    except TooLargeError as error:
        log.warning("%s: left out: %s - %s", utterance, error.what, error.remedy)
        return None


def _write(arguments: Arguments, items: Iterable[tuple[str, Any]]) -> None:
    """Write (utterance, lattice) as `out`, `form`, `text` and `scp` ask for."""
    from latflow.lattice.io.archives import write_lattices
    from latflow.lattice.io.text import as_text

    is_compact = _is_compact(arguments)
    formed = (
        (utterance, lattice.to_compact() if is_compact else lattice.to_lattice())
        for utterance, lattice in items
    )
    if arguments.out != "-":
        options = {"binary": not arguments.text, "scp": arguments.scp}
        write_lattices(arguments.out, formed, **options)
        return
    if arguments.scp:
        raise UserError(
            "no scp file of lattices that are printed",
            file=arguments.scp,
            remedy="name an archive to write",
        )
    for item in formed:
        sys.stdout.write(as_text(*item))


def _names(arguments: Arguments) -> Mapping[int, str] | None:
    """Return word id -> word, None where no table is given."""
    from latflow.lang.directory import read_symbols

    if arguments.words is None:
        return None
    return {number: word for word, number in read_symbols(arguments.words).items()}


def _text(words: np.ndarray, names: Mapping[int, str] | None) -> str:
    """Return words with blanks between them; numbers where there are no names."""
    from latflow.scoring.transcripts import names_of

    if names is None:
        return " ".join(map(str, words.tolist()))
    return " ".join(names_of(words, names))


def _transitions(path: str | None) -> Any:
    """Return the transition model at the head of a `final.mdl`; None without one."""
    from latflow.hmm.transition_model import TransitionModel
    from latflow.kaldi.io import KaldiReader

    if path is None:
        return None
    with KaldiReader.open(path) as reader:
        return TransitionModel.read(reader)


@_verb("copy lattices.ark - --form raw", _ARCHIVE, *_OUT)
def _copy(arguments: Arguments) -> None:
    """Copy lattices from any of Kaldi's forms to any."""
    _write(arguments, _read(arguments))


@_verb("info lattices.ark", _ARCHIVE, _FORM)
def _info(arguments: Arguments) -> None:
    """List sizes and depth of lattices."""
    sys.stdout.write("utterance\tframes\tstates\tarcs\tdepth\n")
    total = np.zeros(4)
    for utterance, lattice in _read(arguments):
        sizes = lattice.num_frames, lattice.num_states, lattice.num_arcs
        row = "\t".join(map(str, (utterance, *sizes)))
        sys.stdout.write(f"{row}\t{lattice.depth:.3f}\n")
        total += *sizes, lattice.depth * lattice.num_frames
    sums = "\t".join(f"{count:.0f}" for count in total[:3])
    sys.stdout.write(f"all\t{sums}\t{total[3] / max(total[0], 1):.3f}\n")


@_verb("depth lattices.ark", _ARCHIVE)
def _depth(arguments: Arguments) -> None:
    """Count the arcs that cross each frame."""
    from latflow.lattice.io.archives import read_lattices
    from latflow.lattice.prune import depth_per_frame

    for utterance, lattice in read_lattices(arguments.lattices):
        counts = depth_per_frame(lattice).tolist()
        sys.stdout.write(f"{utterance} {' '.join(map(str, counts))}\n")


@_verb(
    "best-path lattices.ark --words lang/words.txt --acoustic-scale 0.1",
    *(*_IN, _WORDS, *_SCALES, _PENALTY),
    option("--alignments", "archive of its transition-ids to write"),
)
def _best_path(arguments: Arguments) -> None:
    """Print the words of the cheapest path."""
    from latflow.kaldi.io import write_int_vectors
    from latflow.lattice.best_path import best_path

    names, scales = _names(arguments), _scales(arguments)

    def work(_: str, lattice: Any) -> tuple[str, np.ndarray]:
        path = best_path(lattice, **scales)
        return _text(path.words, names), path.transition_ids

    def printed(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, np.ndarray]]:
        for utterance, (text, transition_ids) in found:
            sys.stdout.write(f"{utterance} {text}".rstrip() + "\n")
            yield utterance, transition_ids

    with _each(arguments, work) as found:
        if arguments.alignments:
            write_int_vectors(arguments.alignments, printed(found))
        else:
            for _ in printed(found):
                pass


@_verb(
    "n-best lattices.ark -n 10 --words lang/words.txt --acoustic-scale 0.1",
    *(*_IN, _WORDS, *_SCALES, _PENALTY),
    option("-n", "how many of a lattice", 10),
)
def _n_best(arguments: Arguments) -> None:
    """Print the cheapest word sequences with their costs."""
    from latflow.lattice.n_best import n_best

    names, scales = _names(arguments), _scales(arguments)

    def work(utterance: str, lattice: Any) -> str:
        paths = n_best(lattice, arguments.n, **scales)
        return "".join(
            f"{utterance}\t{rank}\t{path.graph_cost:.5f}\t{path.acoustic_cost:.5f}\t"
            f"{_text(path.words, names)}\n"
            for rank, path in enumerate(paths, 1)
        )

    sys.stdout.write("utterance\trank\tgraph_cost\tacoustic_cost\twords\n")
    _print_each(arguments, work)


@_verb(
    "oracle lattices.ark data/test/text --words lang/words.txt",
    *_IN,
    option("text", "references: utterance and words on each line"),
    option("--words", "words.txt", required=True),
    option("--ignore", "words not to count", nargs="*", metavar="WORD"),
    option("--out", "file for the words of the paths"),
)
def _oracle(arguments: Arguments) -> None:
    """Find the least word error rate of any paths."""
    from latflow.lang.directory import read_symbols
    from latflow.lattice.edit_distance import ErrorCounts
    from latflow.lattice.oracle import oracle
    from latflow.scoring.transcripts import read_text, write_text

    word_ids, references = read_symbols(arguments.words), read_text(arguments.text)
    names, other = _names(arguments), max(word_ids.values()) + 1
    skipped = arguments.ignore or []
    ignore = [word_ids.get(word, other + 1) for word in skipped]

    def work(utterance: str, lattice: Any) -> Any:
        if utterance not in references:
            raise UserError(
                "a lattice without a reference", remedy=f"add it to {arguments.text}"
            )
        kept = [word for word in references[utterance] if word not in skipped]
        reference = [word_ids.get(word, other) for word in kept]
        return oracle(lattice, np.array(reference, np.int32), ignore=ignore)

    total, texts = ErrorCounts(), {}
    with _each(arguments, work) as results:
        for utterance, found in results:
            total += found.counts
            texts[utterance] = _text(found.words, names).split()
    sys.stdout.write(
        f"%WER {total.wer:.2f} [ {total.errors} / {total.words}, {total.ins} ins, "
        f"{total.del_} del, {total.sub} sub ]\n"
    )
    if arguments.out:
        write_text(arguments.out, texts)


@_verb(
    "mbr lattices.ark --lang lang --model final.mdl --ctm --acoustic-scale 0.1",
    *(*_IN, *_SCALES),
    option("--lang", "lang directory", required=True),
    option("--model", "final.mdl, for exact times"),
    flag("--ctm", "print times and confidences too (CTM)"),
    option("--frame-shift", "seconds", 0.01),
    flag("--keep-best-path", "its words; only confidences"),
    option("--beam", "word sequences that take part", 6.0),
)
def _mbr(arguments: Arguments) -> None:
    """Print the words with the fewest errors to expect."""
    from latflow.corpus.ctm import ctm_line
    from latflow.lang.directory import Lang
    from latflow.lattice.mbr import minimum_bayes_risk
    from latflow.lattice.word_alignment import WordAligner
    from latflow.scoring.transcripts import timed_words

    if arguments.ctm and not arguments.model:
        raise UserError("a CTM file needs times of words", remedy="name the --model")
    lang, scales = Lang.load(arguments.lang), _scales(arguments)
    model = _transitions(arguments.model)
    align = WordAligner(model, lang) if model else None

    def work(utterance: str, lattice: Any) -> str:
        small = _determinized(utterance, lattice, beam=arguments.beam, **scales)
        if small is None:
            return ""
        found = minimum_bayes_risk(
            align(small) if align else small,
            decode_mbr=not arguments.keep_best_path,
            **scales,
        )
        if not arguments.ctm:
            return f"{utterance} {_text(found.words, lang.words)}".rstrip() + "\n"
        shift = arguments.frame_shift
        words = timed_words(utterance, found, lang.words, frame_shift=shift)
        return "".join(map(ctm_line, words))

    _print_each(arguments, work, compact=True)


@_verb(
    "prune lattices.ark pruned.ark --beam 5 --acoustic-scale 0.1",
    *(*_IN, *_OUT, *_SCALES, _BEAM),
)
def _prune(arguments: Arguments) -> None:
    """Leave out arcs that only costly paths take."""
    from latflow.lattice.prune import prune

    beam, scales, compact = arguments.beam, _scales(arguments), _is_compact(arguments)
    _write_each(arguments, lambda _, one: prune(one, beam, **scales), compact=compact)


@_verb(
    "determinize lattices.ark small.ark --beam 6 --acoustic-scale 0.1",
    *(*_IN, *_OUT, *_SCALES, _BEAM),
    option("--model", "final.mdl: determinize on words and phones first"),
)
def _determinize(arguments: Arguments) -> None:
    """Keep one path for each word sequence."""
    model = _transitions(arguments.model)
    scales = {"beam": arguments.beam, **_scales(arguments)}
    _write_each(arguments, lambda name, one: _determinized(name, one, model, **scales))


@_verb(
    "boost lattices.ark ali.ark final.mdl boosted.ark --lang lang --b 0.1",
    *_IN,
    option("alignments", "archive of reference alignments, transition-ids"),
    option("model", "final.mdl"),
    *_OUT,
    option("--lang", "lang directory: its silences", required=True),
    option("--b", "nats a wrong frame", 0.1),
    option("--max-silence-error", "share of b for silences", 0.0),
)
def _boost(arguments: Arguments) -> None:
    """Make wrong phones cheaper, for boosted MMI."""
    from latflow.kaldi.io import read_int_vectors
    from latflow.lang.directory import Lang
    from latflow.lattice.discriminative import boost

    alignments = dict(read_int_vectors(arguments.alignments))
    model = _transitions(arguments.model)
    options = {"b": arguments.b, "max_silence_error": arguments.max_silence_error}
    options["silence_phones"] = Lang.load(arguments.lang).silence_phones

    def work(utterance: str, lattice: Any) -> Any:
        if utterance not in alignments:
            raise UserError(
                "a lattice without an alignment",
                remedy=f"align it, see {arguments.alignments}",
            )
        return boost(lattice, alignments[utterance], model, **options)

    _write_each(arguments, work)


@_verb(
    "rescore in.ark out.ark --old lm/G.fst --new large.arpa --words lang/words.txt",
    *(*_IN, *_OUT),
    option("--old", "G.fst they were decoded with", required=True),
    option("--new", "ARPA file, or what pack-lm made of one", required=True),
    option("--words", "words.txt", required=True),
    option("--lm-scale", "share that is exchanged", 1.0),
)
def _rescore(arguments: Arguments) -> None:
    """Exchange the language model's costs."""
    from latflow.fst.graph import Graph
    from latflow.lang.directory import read_symbols
    from latflow.lang.lm_trie import LmTrie
    from latflow.lattice.rescore import rescore

    word_ids = read_symbols(arguments.words)
    old = LmTrie.from_graph(Graph.load(arguments.old), word_ids, file=arguments.old)
    new = LmTrie.load(arguments.new, word_ids)

    scales, compact = _scales(arguments), _is_compact(arguments)
    _write_each(
        arguments, lambda _, one: rescore(one, old, new, **scales), compact=compact
    )


@_verb(
    "pack-lm large.arpa.gz large.lm",
    option("arpa", "ARPA file, .gz or not"),
    option("out", "file to write"),
)
def _pack_lm(arguments: Arguments) -> None:
    """Turn an ARPA file to a form that is quick to open."""
    from latflow.lang.lm_trie import LmTrie

    LmTrie.load(arguments.arpa, {}).save(arguments.out)


@_verb(
    "to-post lattices.ark post.ark --acoustic-scale 0.1",
    *_IN,
    option("out", "archive to write, gzipped if it ends in .gz"),
    *_SCALES,
    option("--pdfs-of", "final.mdl: posteriors of its pdfs instead"),
    _TEXT,
)
def _to_post(arguments: Arguments) -> None:
    """Write posteriors of transition-ids; print the mean log-likelihood."""
    from latflow.lattice.path_sums import forward_backward
    from latflow.lattice.posteriors import FramePosteriors, posteriors, write_posteriors

    model = _transitions(arguments.pdfs_of)
    total = np.zeros(2)

    def work(_: str, lattice: Any) -> tuple[FramePosteriors, float]:
        sums = forward_backward(lattice, **_scales(arguments))
        found = posteriors(lattice, sums)
        return (found.to_pdfs(model) if model else found), sums.log_like

    def counted(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for utterance, (found, log_like) in items:
            total[:] += log_like, found.num_frames
            yield utterance, found

    with _each(arguments, work) as items:
        write_posteriors(arguments.out, counted(items), binary=not arguments.text)
    log_like, frames = total.tolist()
    mean = log_like / max(frames, 1)
    sys.stdout.write(f"log-likelihood {mean:.5f} a frame, {frames:.0f} frames\n")
