"""What the commands `latflow lattice ...` share: lattices in and out, words, models.

Public: `scales_of`, `read_in_form`, `each`, `write`, `emit`, `names_of`, `text_of`,
`load_transitions`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import KaldiReader
from latflow.lang.directory import read_symbols
from latflow.lattice.compact import CompactLattice
from latflow.lattice.io import (
    read_compact_lattices,
    read_lattices,
    write_compact_lattices,
    write_lattices,
)
from latflow.lattice.lattice import Lattice
from latflow.lattice.text_form import as_text
from latflow.parallel import map_in_order

Arguments = argparse.Namespace
Result = TypeVar("Result")
AnyLattice = Lattice | CompactLattice


def scales_of(arguments: Arguments) -> dict[str, Any]:
    """Scales as arguments of functions."""
    names = ("lm_scale", "acoustic_scale", "word_insertion_penalty")
    given = vars(arguments)
    return {name: given[name] for name in names if name in given}


# -- lattices -----------------------------------------------------------------------


def read_in_form(arguments: Arguments) -> Iterator[tuple[str, AnyLattice]]:
    """Yield (utterance, lattice), raw or compact as the option `form` says."""
    if arguments.form == "raw":
        return read_lattices(arguments.lattices)
    return read_compact_lattices(arguments.lattices)


def each(
    arguments: Arguments,
    work: Callable[[str, Any], Result],
    *,
    compact: bool = False,
) -> Iterator[tuple[str, Result]]:
    """Yield (utterance, work(utterance, lattice)) of each lattice, in order.

    Args:
        arguments: with `lattices` and `threads`.
        work: safe to call from several threads.
        compact: whether it takes compact lattices; raw ones if not.

    Raises:
        UserError: what `work` raised, with file and utterance.
    """
    read = read_compact_lattices if compact else read_lattices

    def named(item: tuple[str, AnyLattice]) -> tuple[str, Result]:
        utterance, lattice = item
        try:
            return utterance, work(utterance, lattice)
        except UserError as error:
            raise UserError(
                error.what,
                file=error.file or arguments.lattices,
                utterance=utterance,
                remedy=error.remedy,
            ) from None

    return map_in_order(named, read(arguments.lattices), arguments.threads)


def write(arguments: Arguments, items: Iterable[tuple[str, AnyLattice]]) -> None:
    """Write lattices in the form that is asked for.

    Args:
        arguments: with `out`, `form`, `text` and `scp`.
        items: (utterance, lattice), raw or compact.

    Raises:
        UserError: the archive cannot have a list of places.
    """
    is_raw = arguments.form == "raw"
    if arguments.out == "-":
        if arguments.scp:
            raise UserError(
                "no list of places in lattices that are printed",
                file=arguments.scp,
                remedy="name an archive to write",
            )
        for utterance, lattice in items:
            form = as_raw(lattice) if is_raw else as_compact(lattice)
            emit(as_text(utterance, form))
        return
    options = {"binary": not arguments.text, "scp": arguments.scp}
    if is_raw:
        raw = ((utterance, as_raw(lattice)) for utterance, lattice in items)
        write_lattices(arguments.out, raw, **options)
    else:
        compact = ((utterance, as_compact(lattice)) for utterance, lattice in items)
        write_compact_lattices(arguments.out, compact, **options)


def as_raw(lattice: AnyLattice) -> Lattice:
    """The lattice with an arc for each transition-id."""
    return lattice.to_lattice() if isinstance(lattice, CompactLattice) else lattice


def as_compact(lattice: AnyLattice) -> CompactLattice:
    """The lattice with an arc for each chain of arcs; it is not determinised."""
    if isinstance(lattice, Lattice):
        return CompactLattice.from_lattice(lattice)
    return lattice


def emit(text: str) -> None:
    """Print."""
    sys.stdout.write(text)


# -- words and models ---------------------------------------------------------------


def names_of(arguments: Arguments) -> Mapping[int, str] | None:
    """Word id -> word, None where no table is given."""
    if arguments.words is None:
        return None
    return {number: word for word, number in read_symbols(arguments.words).items()}


def text_of(words: np.ndarray, names: Mapping[int, str] | None) -> str:
    """Words with blanks between them; numbers where there are no names.

    Raises:
        UserError: a word has no name.
    """
    if names is None:
        return " ".join(map(str, words.tolist()))
    missing = [word for word in words.tolist() if word not in names]
    if missing:
        raise UserError(
            f"word id {missing[0]} is not in words.txt",
            remedy="use the words.txt of the graph that the lattices come from",
        )
    return " ".join(names[word] for word in words.tolist())


def load_transitions(path: str) -> TransitionModel:
    """The transition model at the head of a `final.mdl`."""
    with KaldiReader.open(path) as reader:
        return TransitionModel.read(reader)
