"""Checks that a model, or a graph, fits a lang directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang, read_symbols

_OF_MODEL = "name the lang directory that the model was trained with"


def check_phone_table(path: str | Path, lang: Lang) -> None:
    """Refuse another `phones.txt` than that of the language.

    Disambiguation symbols may differ: acoustic models know nothing of them.

    Args:
        path: the table of a system or graph; nothing is checked if there is none.

    Raises:
        UserError: a phone is missing in one of the two, or has another id.
    """
    if Path(path).is_file():
        theirs, ours = (
            {name: number for name, number in table.items() if name[0] != "#"}
            for table in (read_symbols(path), lang.phone_ids)
        )
        _compare(Path(path), "phone", theirs, lang.folder / "phones.txt", ours)


def check_words(path: str | Path, lang: Lang) -> None:
    """Refuse another `words.txt` than that of the language.

    Args:
        path: the table of a graph; nothing is checked if there is none.

    Raises:
        UserError: a word is missing in one of the two, or has another id.
    """
    if Path(path).is_file():
        check_word_ids(read_symbols(path), path, lang)


def check_word_ids(words: Mapping[str, int], path: str | Path, lang: Lang) -> None:
    """Refuse other words than those of the language.

    Args:
        words: ids of the words of a graph.
        path: where they come from.

    Raises:
        UserError: a word is missing in one of the two, or has another id.
    """
    _compare(Path(path), "word", words, lang.folder / "words.txt", lang.word_ids)


def _compare(
    path: Path,
    kind: str,
    theirs: Mapping[str, int],
    lang_path: Path,
    ours: Mapping[str, int],
) -> None:
    """Refuse two symbol tables that differ, naming the first difference."""
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            here, there = (
                f"id {table[name]}" if name in table else "missing"
                for table in (theirs, ours)
            )
            raise UserError(
                f"{kind} {name} is {here} in this table, but {there} in {lang_path}",
                file=path,
                remedy="name the lang directory that this was trained with",
            )


def check_language(model: TransitionModel, lang: Lang, path: str | Path) -> None:
    """Refuse a model with other phones, or other HMMs, than a language has.

    Initial probabilities do not matter.

    Args:
        path: where the model comes from.

    Raises:
        UserError: they do not fit.
    """
    check_phones(model, lang, path)
    for phone in sorted(lang.topology.phones):
        shapes = [
            [
                (s.pdf_class, s.loop_pdf_class, *(n for n, _ in s.transitions))
                for s in hmm
            ]
            for hmm in (model.topology.states(phone), lang.topology.states(phone))
        ]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"phone {lang.phones[phone]} has an HMM of {len(shapes[0]) - 1} states "
                f"in the model, which is not that of {lang.folder / 'topo'} "
                f"({len(shapes[1]) - 1} states)",
                file=path,
                remedy=_OF_MODEL,
            )


def check_phones(model: TransitionModel, lang: Lang, path: str | Path) -> None:
    """Refuse a model with other phones than a language has.

    Args:
        path: where the model comes from.

    Raises:
        UserError: a phone is in one of them only.
    """
    theirs, ours = set(model.topology.phones), set(lang.topology.phones)
    if theirs != ours:
        phone = min(theirs ^ ours)
        where = "the model" if phone in theirs else lang.folder
        name = lang.phones.get(phone, "without a name")
        raise UserError(
            f"phone {phone} ({name}) is in {where} only", file=path, remedy=_OF_MODEL
        )
