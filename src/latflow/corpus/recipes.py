"""Corpora that Lhotse knows by name: download, preparation, and what goes with them.

Lhotse's `lhotse.recipes` holds a `prepare_<name>` (and often a `download_<name>`) for
some 150 corpora. `recipe_manifests` calls them and returns manifests as files, whatever
shape the recipe gives them. LibriSpeech's lexicon and language models are not part of
its recipe: they are files of OpenSLR resource 11 (see `latflow.corpus.download`).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lhotse.recipes
from lhotse import RecordingSet, SupervisionSet

import latflow.corpus.audio_backend  # noqa: F401 - recipes look into audio files
from latflow.errors import UserError
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

Manifests = tuple[RecordingSet, SupervisionSet]

# Names that share the functions of another recipe.
_ALIASES = {"mini_librispeech": "librispeech"}
# Folder that Lhotse's download makes below the root.
_SUBFOLDERS = {"librispeech": "LibriSpeech", "yesno": "waves_yesno"}
# How recipes call the argument that selects parts of a corpus.
_PART_ARGUMENTS = ("dataset_parts", "parts", "splits", "split", "subset", "subsets")


def recipe_manifests(
    recipe: str,
    root: str | Path,
    parts: Sequence[str],
    *,
    download: bool,
    arguments: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, Manifests]]:
    """Prepare parts of a corpus by Lhotse's recipe.

    Lhotse holds the manifests of one part in memory; parts come one after the other.

    Args:
        recipe: name as in `lhotse prepare <name>`, or `mini_librispeech`.
        root: folder that holds the corpus, or that it is downloaded to.
        parts: names of the parts; empty for a recipe without parts.
        download: fetch what is missing first.
        arguments: further arguments of the recipe's functions, by name; each goes to
            those of download and preparation that take it.

    Yields:
        (name of the part, its recordings and supervisions).

    Raises:
        UserError: Lhotse has no such recipe or the recipe no such argument, or the
            corpus is not there, incomplete or unreadable.
    """
    name = _ALIASES.get(recipe, recipe)
    prepare = _function(recipe, f"prepare_{name}")
    functions = [prepare]
    root, arguments = Path(root), arguments or {}
    if download:
        functions.append(_function(recipe, f"download_{name}"))
    known = {n for function in functions for n in _parameters(function)}
    if unknown := sorted(arguments.keys() - known):
        raise UserError(
            f"Lhotse's recipe {recipe} has no argument {unknown[0]}",
            remedy=f"it has {', '.join(sorted(known))}",
        )
    if download:
        _download(recipe, functions[1], root, parts, arguments)
    corpus = _corpus_folder(name, root, parts, recipe)
    for part in parts or ("",):
        yield part, _prepare(prepare, corpus, part, recipe, arguments)


def missing_utterances(
    recipe: str, root: str | Path, part: str, recordings: RecordingSet
) -> Iterator[tuple[Path, str]]:
    """Yield (transcript file, utterance) of utterances that Lhotse left out.

    Lhotse's LibriSpeech recipe passes over a transcript whose audio file is missing
    with no more than a warning; here it is found again. Other recipes have no common
    form of transcripts, and yield nothing.
    """
    name = _ALIASES.get(recipe, recipe)
    if name != "librispeech":
        return
    present = set(recordings.ids)
    folder = _corpus_folder(name, Path(root), [part], recipe) / part
    for path in sorted(folder.rglob("*.trans.txt")):
        for _, line in read_lines(path):
            fields = line.split(maxsplit=1)
            if fields and fields[0] not in present:
                yield path, fields[0]


def _function(recipe: str, name: str) -> Callable[..., Any]:
    """Return a function of Lhotse's recipes.

    Raises:
        UserError: there is no recipe of that name.
    """
    importlib.import_module("lhotse.recipes")
    found = getattr(lhotse.recipes, name, None)
    if found is None:
        raise UserError(
            f"Lhotse has no recipe function {name} for {recipe!r}",
            remedy="`lhotse prepare --help` lists the recipes",
        )
    return found


def _download(
    recipe: str,
    function: Callable[..., Any],
    root: Path,
    parts: Sequence[str],
    arguments: Mapping[str, Any],
) -> None:
    """Fetch a corpus by Lhotse's recipe."""
    given = _arguments(function, root, parts, arguments)
    log.info("downloading %s to %s", recipe, root)
    try:
        with _filtered_archives():
            function(**given)
    except Exception as error:  # of 150 recipes that are not ours
        raise UserError(
            f"the download of {recipe} failed: {_first_line(error)}",
            file=root,
            remedy="check the network and the disk and run again, or fetch the corpus "
            "by hand and set download: false",
        ) from error


@contextmanager
def _filtered_archives() -> Iterator[None]:
    """Restrict archives to files below their folder, as Python 3.14 does.

    Recipes extract them by `tarfile` with what is the default there. Python 3.11 has no
    filters before 3.11.4.
    """
    if not hasattr(tarfile, "data_filter"):
        yield
        return
    chosen = tarfile.TarFile.extraction_filter
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        yield
    finally:
        tarfile.TarFile.extraction_filter = chosen


def _corpus_folder(name: str, root: Path, parts: Sequence[str], recipe: str) -> Path:
    """Return the folder that Lhotse's preparation wants."""
    corpus = root / _SUBFOLDERS.get(name, ".")
    if not corpus.is_dir() and all((root / part).is_dir() for part in parts):
        corpus = root  # the root is the corpus itself
    if not corpus.is_dir():
        raise UserError(
            f"no corpus {recipe} here",
            file=corpus,
            remedy="set root to the folder that holds it, or set download: true",
        )
    if name == "librispeech":
        for part in parts:
            if not (corpus / part).is_dir():
                raise UserError(
                    f"{recipe} has no part {part} here",
                    file=corpus / part,
                    remedy="check the name of the part, or set download: true",
                )
    return corpus


def _prepare(
    prepare: Callable[..., Any],
    corpus: Path,
    part: str,
    recipe: str,
    arguments: Mapping[str, Any],
) -> Manifests:
    """Prepare one part; a recipe that cannot choose parts prepares all of them."""
    parts = [part] if part else []
    try:
        result = prepare(**_arguments(prepare, corpus, parts, arguments))
    except Exception as error:  # of 150 recipes that are not ours
        raise UserError(
            f"Lhotse's preparation of {recipe} {part} failed: {_first_line(error)}",
            file=corpus / part,
            remedy="check that the corpus is complete and its files are intact, and "
            "that the key arguments has what the recipe needs",
        ) from error
    if part and _part_argument(prepare) is None and part not in result:
        found = ", ".join(map(str, result)) if "recordings" not in result else ""
        raise UserError(
            f"recipe {recipe} has no part {part}",
            file=corpus,
            remedy=f"its parts are {found}" if found else "remove the key parts",
        )
    return _manifests(result, part, recipe, corpus)


def _manifests(result: Any, part: str, recipe: str, corpus: Path) -> Manifests:
    """Find recordings and supervisions in what a recipe returned."""
    while isinstance(result, dict) and "recordings" not in result:
        choice = result.get(part) if part in result else None
        if choice is None and len(result) == 1:
            choice = next(iter(result.values()))
        if choice is None:
            raise UserError(
                f"recipe {recipe} has the parts {', '.join(map(str, result))}",
                file=corpus,
                remedy="name one or more of them in the key parts",
            )
        result = choice
    if not isinstance(result, dict) or "supervisions" not in result:
        raise UserError(
            f"recipe {recipe} gives no transcripts",
            remedy="choose a corpus of transcribed speech",
        )
    return result["recordings"], result["supervisions"]


def _arguments(
    function: Callable[..., Any],
    folder: Path,
    parts: Sequence[str],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a recipe's function.

    The folder is its first one that is not given by name.
    """
    names = _parameters(function)
    arguments = {name: value for name, value in given.items() if name in names}
    first = next((name for name in names if name not in arguments), None)
    if first is not None:
        arguments[first] = folder
    part_argument = _part_argument(function)
    if parts and part_argument is not None and part_argument not in given:
        arguments[part_argument] = list(parts)
    return arguments


def _part_argument(function: Callable[..., Any]) -> str | None:
    """Return how a recipe's function calls its selection of parts.

    An argument of such a name that takes a single string or path is another thing.
    """
    parameters = inspect.signature(function).parameters
    for name in _PART_ARGUMENTS:
        if name in parameters:
            kind = str(parameters[name].annotation)
            takes_one = not re.search("Sequence|List|Tuple|list|tuple|_empty", kind)
            return None if takes_one else name
    return None


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments."""
    return list(inspect.signature(function).parameters)


def _first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
